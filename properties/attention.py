"""Laws of attention: values, LSE, exact inputs, empty rows, memory, independence, refusals."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendCall, Capabilities, Unsupported, Visibility
from kernelassay.oracle.budget import Budget
from kernelassay.oracle.dyadic import dyadic_quotients
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.failures import (
    Accepted,
    Different,
    InputMutated,
    NonDeterministic,
    Raised,
    WrongValue,
)
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.judge import (
    budget_for,
    budget_of,
    compare,
    difference,
    judge,
    judge_empty,
    judge_lse,
    judge_out,
    seen_by,
)
from kernelassay.properties.memory import check_written, same_bits
from kernelassay.properties.property import law
from kernelassay.properties.subject import Attended, Subject


@law(
    "attention.value",
    "out = sum_j softmax_j(scale q.k_j) v_j over the visible keys, within the error that the "
    "declared numerics allow.",
    strata={
        "random_content": s.random_content,
        "partial_tile": s.partial_tile,
        "padded_head": s.padded_head,
        "grouped": s.grouped,
        "decode": s.decode,
        "ragged": s.ragged,
        "boolean_mask": s.boolean_mask,
        "more_queries": s.more_queries,
        "windows": s.windows,
        "positions": s.positions,
        "long_sums": s.long_sums,
        "nonpositive_scale": s.nonpositive_scale,
        "plain": s.plain,
    },
)
def value(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    judge_out(subject, answer.out, budget, generic=case.generic)


@law(
    "attention.extreme_scores",
    "The output is right, and finite, wherever the scores lie: no exponent without its maximum "
    "subtracted, every rescale done.",
    strata={
        "scores_far_above": s.scores_far_above,
        "scores_far_below": s.scores_far_below,
        "spike_rows": s.spike_rows,
        "scores_rising": s.scores_rising,
        "scores_leap": s.scores_leap,
        "first_tile_masked": s.first_tile_masked,
        "scores_falling": s.scores_falling,
        "one_hot_softmax": s.one_hot_softmax,
    },
)
def extreme_scores(subject: Subject, case: AttendCase) -> None:
    judge(subject, case, subject.attend(case))


@law(
    "attention.lse",
    "lse = log sum_j exp(scale q.k_j) over the visible keys, in the declared base.",
    requires=["lse"],
    strata={
        "random_content": s.random_content,
        "partial_tile": s.partial_tile,
        "scores_far_below": s.scores_far_below,
        "scores_far_above": s.scores_far_above,
        "boolean_mask": s.boolean_mask,
        "ragged": s.ragged,
        "decode": s.decode,
    },
)
def lse(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    assert answer.lse is not None, "the form of the answer was checked"
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    judge_lse(subject, answer.lse, budget)


@law(
    "attention.exact_counting",
    "With q = 0 the output is the plain mean of the visible values: exactly the rounded quotient "
    "where their number is a power of two.",
    strata={"counting": s.counting},
)
def exact_counting(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    tensors = logical(case, subject.dtype, subject.place)
    exact, count = _quotients(tensors, torch.zeros((), device=subject.place))
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    rows = (count > 0)[..., None].expand_as(exact)
    compare(subject, "out", answer.out.double(), exact, budget.out_allowed, rows)
    power_of_two = (count > 0) & (count & (count - 1) == 0)
    rounded = exact.to(answer.out.dtype)
    wrong = power_of_two[..., None] & (answer.out != rounded)
    if bool(wrong.any()):
        index = tuple(int(i) for i in wrong.nonzero()[0])
        raise WrongValue(
            f"out{list(index)} is {float(answer.out[index]):.9g}; the mean of "
            f"{int(count[index[:3]])} visible values is exactly {float(exact[index]):.9g}, which "
            f"every step of the computation represents",
            ratio=None,
        )


@law(
    "attention.exact_dyadic",
    "With scale = ln 2 and integer scores every weight is a power of two and the output a "
    "rational number.",
    requires=["scale"],
    strata={"dyadic": s.dyadic},
)
def exact_dyadic(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    tensors = logical(case, subject.dtype, subject.place)
    exact, count = _quotients(tensors, tensors.k[..., 0].double().long())
    numerics = subject.numerics
    if numerics.p_normalised is False:  # powers of two pass through the cast of P unchanged
        numerics = replace(numerics, p="fp32")
    allowed = budget_for(case, subject.dtype, subject.place, numerics).out_allowed
    rows = (count > 0)[..., None].expand_as(exact)
    compare(subject, "out", answer.out.double(), exact, allowed, rows)


def _quotients(tensors: Logical, exponents: Tensor) -> tuple[Tensor, Tensor]:
    """The exact rational output for weights 2**exponents [B, Hkv, Tk], and the visible count."""
    B, Hq, Tq, _ = tensors.q.shape
    group = Hq // tensors.k.shape[1]
    v = tensors.v.double().long().repeat_interleave(group, 1)
    shape = (B, tensors.k.shape[1], tensors.k.shape[2])
    scores = exponents.long().expand(shape).repeat_interleave(group, 1)
    seen = seen_by(tensors).expand(B, Hq, Tq, shape[2])
    return dyadic_quotients(scores, v, seen), seen.sum(-1)


@law(
    "attention.empty_rows",
    "A row that sees no key has the declared output and LSE, and touches no other row.",
    strata={
        "masked_rows": s.masked_rows,
        "no_keys": s.no_keys,
        "ragged": s.ragged,
        "more_queries": s.more_queries,
        "all_rows_empty": s.nothing_visible,
    },
)
def empty_rows(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    judge_empty(subject, answer, budget)
    judge(subject, case, answer)


@law(
    "attention.unseen_content",
    "What no query sees changes nothing: garbage in masked keys and values, NaN beyond a length.",
    strata={
        "unseen_by_length": s.unseen_by_length,
        "unseen_by_mask": s.unseen_by_mask,
        "unseen_by_corner": s.unseen_by_corner,
    },
)
def unseen_content(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    clean = subject.attend(tensors)
    spoilt = subject.attend(_poisoned(subject, tensors))
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    agree(subject, "content that no query sees was replaced", clean, spoilt, budget)


def _poisoned(subject: Subject, tensors: Logical) -> Logical:
    """Unseen slots hold garbage: NaN where the declared convention says that it is harmless."""
    B, Hq, _, _ = tensors.q.shape
    Hkv, Tk = tensors.k.shape[1:3]
    seen = seen_by(tensors)
    seen = seen.expand(B, Hq, *seen.shape[2:]).any(2).view(B, Hkv, Hq // Hkv, Tk).any(2)
    garbage = torch.full_like(seen, 1000.0, dtype=tensors.k.dtype)
    harmless = subject.conventions.masked_content != "finite_only"
    beyond = torch.zeros_like(seen)
    if tensors.visibility.lengths is not None:
        slots = torch.arange(Tk, device=seen.device)
        beyond = (slots >= tensors.visibility.lengths[:, None, None]).expand_as(seen)
    garbage[beyond | harmless] = float("nan")
    hidden = ~seen[..., None]
    k = torch.where(hidden, garbage[..., None], tensors.k)
    return replace(tensors, k=k, v=torch.where(hidden, -garbage[..., None], tensors.v))


def agree(
    subject: Subject,
    what: str,
    first: Attended,
    second: Attended,
    budget: Budget,
) -> None:
    """Two answers that must be equal are: bit for bit where the kernel declares `batch_invariant`,
    within the budget of the common truth elsewhere."""
    if not subject.conventions.batch_invariant:
        for answer in (first, second):
            judge_out(subject, answer.out, budget, generic=False)
        return
    pairs = [("out", first.out, second.out)]
    if first.lse is not None and second.lse is not None:
        pairs.append(("lse", first.lse, second.lse))
    for name, a, b in pairs:
        if not same_bits(a, b):
            raise Different(
                f"{name} changed when {what}, which must not matter: {difference(a, b)}",
                tensor=name,
            )


@law(
    "attention.grouped_heads",
    "Query head h uses KV head h // (Hq / Hkv): the same as attention with repeated KV heads.",
    requires=["gqa"],
    strata={"grouped": s.grouped},
)
def grouped_heads(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    group = case.Hq // case.Hkv
    repeated = replace(
        tensors,
        k=tensors.k.repeat_interleave(group, 1),
        v=tensors.v.repeat_interleave(group, 1),
    )
    agree(
        subject,
        "each KV head was repeated for its group",
        subject.attend(tensors),
        subject.attend(repeated),
        budget_for(case, subject.dtype, subject.place, subject.numerics),
    )


@law(
    "attention.batch_independence",
    "A request's output is the same alone as in a batch.",
    strata={"several_requests": s.several_requests, "ragged": s.ragged},
)
def batch_independence(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    b = case.at % case.B
    alone = request(tensors, b)
    whole = subject.attend(tensors)
    mine = replace(
        whole,
        out=whole.out[b : b + 1],
        lse=None if whole.lse is None else whole.lse[b : b + 1],
    )
    agree(
        subject,
        "the other requests left the batch",
        mine,
        subject.attend(alone),
        budget_of(alone, subject.numerics, generic=case.generic),
    )


def request(tensors: Logical, b: int) -> Logical:
    """Request *b* alone."""
    vis = tensors.visibility
    mask = vis.mask
    if mask is not None and mask.shape[0] > 1:
        mask = mask[b : b + 1]
    one = slice(b, b + 1)
    alone = replace(
        vis,
        mask=mask,
        lengths=None if vis.lengths is None else vis.lengths[one],
        q_positions=None if vis.q_positions is None else vis.q_positions[one],
        k_positions=None if vis.k_positions is None else vis.k_positions[one],
    )
    return replace(tensors, q=tensors.q[one], k=tensors.k[one], v=tensors.v[one], visibility=alone)


@law(
    "attention.row_independence",
    "A query row's output does not depend on the other query rows.",
    strata={"several_rows": s.several_rows},
)
def row_independence(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    row = case.at % case.Tq
    others = tensors.q.flip(2) * 2  # any other content
    others[:, :, row] = tensors.q[:, :, row]
    changed = replace(tensors, q=others)
    first, second = (_row(subject.attend(t), row) for t in (tensors, changed))
    only = replace(tensors, q=tensors.q[:, :, row : row + 1], visibility=_row_only(tensors, row))
    agree(
        subject,
        f"every query but row {row} was replaced",
        first,
        second,
        budget_of(only, subject.numerics, generic=case.generic),
    )


def _row(answer: Attended, row: int) -> Attended:
    lse = answer.lse
    one = slice(row, row + 1)
    return replace(answer, out=answer.out[:, :, one], lse=None if lse is None else lse[:, :, one])


def _row_only(tensors: Logical, row: int) -> Visibility:
    """The visibility of a single row, as an explicit mask."""
    seen = seen_by(tensors)
    return Visibility(mask=seen[:, :, row : row + 1])


@law(
    "attention.views",
    "Strides do not matter: a transposed, padded, interleaved, shifted or expanded view gives "
    "what contiguous tensors of the same content give.",
    requires=["strides"],
    strata={"views": s.views},
)
def views(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    agree(
        subject,
        f"the same content was laid out {case.view}",
        subject.attend(subject.lay_out(tensors, "contiguous")),
        subject.attend(subject.lay_out(tensors, case.view)),
        budget_for(case, subject.dtype, subject.place, subject.numerics),
    )


@law(
    "attention.memory",
    "Inputs are unchanged, nothing is written outside the outputs, every element is written.",
    strata={
        "partial_tile": s.partial_tile,
        "ragged": s.ragged,
        "masked_rows": s.masked_rows,
        "more_queries": s.more_queries,
        "no_keys": s.no_keys,
        "plain": s.plain,
        "views": s.views,
    },
)
def memory(subject: Subject, case: AttendCase) -> None:
    given = subject.prepare(case)
    answer = subject.attend(given)
    if changed := given.mutated():
        raise InputMutated(
            f"{', '.join(changed)} changed during the call; expected every input, and the guard "
            f"zones around it, to be left alone"
        )
    answer.check_guards()
    if answer.watched != "opaque":
        check_written("out", answer.out)
        if answer.lse is not None:
            check_written("lse", answer.lse)


def _declares(convention: str) -> Callable[[Capabilities], str | None]:
    def why(capabilities: Capabilities) -> str | None:
        if getattr(capabilities.conventions, convention):
            return None
        return f"rests on Conventions.{convention}, which is not declared"

    return why


@law(
    "attention.deterministic",
    "The same call gives the same bits.",
    rests_on=_declares("deterministic"),
    strata={"random_content": s.random_content, "decode": s.decode},
    weight=0.5,
)
def deterministic(subject: Subject, case: AttendCase) -> None:
    first, second = subject.attend(case), subject.attend(case)
    if not same_bits(first.out, second.out):
        raise NonDeterministic(
            f"two equal calls differ in {difference(first.out, second.out)}; the kernel declares "
            f"Conventions.deterministic"
        )


@law(
    "attention.declines",
    "A call that needs a declined feature is refused with Unsupported, never answered.",
    rests_on=lambda c: (
        None if c.declines & set(s.NEEDING) else "declines nothing that a call could need"
    ),
    strata={"declined": s.declined},
)
def declines(subject: Subject, case: AttendCase) -> None:
    given = subject.prepare(case)
    try:
        subject.answer(given.call)
    except Unsupported:
        return
    needed = ", ".join(lacking(case, domain_of(subject)))
    raise Accepted(
        f"{subject.name} answered a call that needs {needed}, which it declines; "
        f" expected Unsupported. Refuse it, or declare it as supported"
    )


@law(
    "attention.validates",
    "Malformed calls raise.",
    rests_on=_declares("validates_calls"),
    strata={"malformed": s.malformed},
)
def validates(subject: Subject, case: AttendCase) -> None:
    what, call = malformed_call(subject.prepare(case).call, case.at)
    try:
        subject.answer(call)
    except (Unsupported, Raised):
        return
    raise Accepted(
        f"{subject.name} answered a malformed call: {what}; expected an exception, since it "
        f"declares Conventions.validates_calls"
    )


def malformed_call(call: AttendCall, which: int) -> tuple[str, AttendCall]:
    """What is wrong with the call, and the call."""
    q, k, v = call.q, call.k, call.v
    other = torch.float64 if q.dtype != torch.float64 else torch.float32
    table = {
        "q has three dimensions": {"q": q[0]},
        "k has one key less than v": {"k": k[:, :, :-1]},
        "q and k differ in head size": {"k": k[..., :-1]},
        "q and v differ in dtype": {"v": v.to(other)},
        "k has one request more than q": {"k": torch.cat([k, k[:1]])},
        "3 query heads over 2 KV heads": {
            "q": q[:, :1].expand(-1, 3, -1, -1),
            "k": k[:, :1].expand(-1, 2, -1, -1),
            "v": v[:, :1].expand(-1, 2, -1, -1),
        },
    }
    what = list(table)[which % len(table)]
    return what, replace(call, **table[what])  # type: ignore[arg-type]
