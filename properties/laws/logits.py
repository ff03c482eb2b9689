"""Laws of logits that become laws: temperature, top-k, top-p, min-p and masks."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from kernelassay.impls.contract import Capabilities, LawCall, Unsupported
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.failures import (
    Accepted,
    Different,
    InputMutated,
    NonDeterministic,
    Raised,
    WrongDistribution,
)
from kernelassay.properties.judge import difference
from kernelassay.properties.logits import strata as s
from kernelassay.properties.logits import strata_extent as e
from kernelassay.properties.logits import strata_wide as w
from kernelassay.properties.logits.answers import answer, laws_of
from kernelassay.properties.logits.batches import Given, batch_of, lay_out
from kernelassay.properties.logits.case import LawCase
from kernelassay.properties.logits.judge import allowed, described, judge, judge_support
from kernelassay.properties.logits.rows import NEEDING, Stratum
from kernelassay.properties.memory import check_written, same_bits
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject

EQUAL_CALLS = 4  # threads that race often agree twice


def value(subject: Subject, case: LawCase) -> None:
    """The law of each row is the right one."""
    batch = batch_of(case, subject.dtype)
    judge(subject, batch, laws_of(subject, batch).p)


def _mask_first(c: Capabilities) -> str | None:
    """Whether a masked logit is nobody's concern."""
    order = c.maps.order if c.maps is not None else ()
    if "mask" in order and order.index("mask") > min(
        map(order.index, ("top_k", "top_p", "min_p"))
    ):
        return "by Maps.order tokens are cut before the mask is looked at"
    return None


_VALUES: dict[str, tuple[str, dict[str, Stratum]]] = {
    "value": (
        "p_i = e^(z_i / T) / sum_j e^(z_j / T) over the tokens that the maps keep, 0 elsewhere.",
        {
            "softmax": s.softmax,
            "mass_rows": s.mass_rows,
            "all_maps": s.all_maps,
            "own_parameters": s.own_parameters,
        },
    ),
    "temperature": (
        "A temperature T makes logits z / T.",
        {"cold": s.cold, "hot": s.hot},
    ),
    "top_k": (
        "Top-k keeps the k likeliest tokens; of those that tie with the k-th all, or the lowest "
        "ids, as is declared.",
        {
            "top_k_cuts": s.top_k_cuts,
            "top_k_ties": s.top_k_ties,
            "top_k_one": s.top_k_one,
            "top_k_all": s.top_k_all,
            "spread_top_k": w.spread_top_k,
            "never_top_k": w.never_top_k,
        },
    ),
    "top_p": (
        "Top-p keeps the shortest run of likeliest tokens whose share is at least p.",
        {
            "top_p_cuts": s.top_p_cuts,
            "top_p_ties": s.top_p_ties,
            "top_p_all": s.top_p_all,
            "top_p_tiny": s.top_p_tiny,
            "exact_share": s.exact_share,
            "spread_top_p": w.spread_top_p,
            "never_top_p": w.never_top_p,
        },
    ),
    "min_p": (
        "Min-p keeps the tokens at least m times as likely as the likeliest.",
        {
            "min_p_cuts": s.min_p_cuts,
            "min_p_keeps": s.min_p_keeps,
            "min_p_zero": s.min_p_zero,
            "min_p_one": s.min_p_one,
        },
    ),
    "order": (
        "The maps are applied in the declared order; each sees what the ones before it left.",
        s.ORDERS,
    ),
    "mask": (
        "A mask removes the tokens where it says so, the likeliest as well.",
        {"masked": s.any_mask, "masked_likeliest": s.masked_likeliest, "one_token": s.one_left},
    ),
    "extreme": (
        "Logits far from 0, -inf, all equal or of one token give finite laws, the right ones.",
        {
            "far_above": e.far_above,
            "far_below": e.far_below,
            "minus_infinity": e.minus_infinity,
            "equal_logits": e.equal_logits,
            "one_token": e.one_token,
            "spread_rows": w.spread_rows,
            "never_rows": w.never_rows,
        },
    ),
    "vocabulary": (
        "Each token of a large vocabulary counts, those at its end and at tile edges as well.",
        {"large_vocabulary": e.large_vocabulary, "tile_edges": e.tile_edges},
    ),
}
for _name, (_sentence, _strata) in _VALUES.items():
    _weight = 0.5 if _name == "vocabulary" else 1.0
    law(f"logits.{_name}", _sentence, operation="law", strata=_strata, weight=_weight)(value)


@law(
    "logits.support",
    "Tokens that are removed have probability 0, those that are kept more, and rows add up to 1.",
    operation="law",
    strata={"all_maps": s.all_maps, "mass_rows": s.mass_rows, "masked": s.any_mask},
    weight=0.5,
)
def support(subject: Subject, case: LawCase) -> None:
    batch = batch_of(case, subject.dtype)
    p = laws_of(subject, batch).p
    judge_support(subject, batch, p)
    off, most = (p.double().sum(-1) - 1).abs(), allowed(subject, batch, p).sum(-1)
    subject.observe(float((off / most).max()))
    if bool((off > most).any()):
        r = int((off / most).argmax())
        raise WrongDistribution(
            f"p of row {r} adds up to {float(p[r].double().sum()):.9g}; expected 1 within "
            f"{float(most[r]):.2g}",
            lines=described(subject, batch, r, p),
        )


@law(
    "logits.masked_content",
    "What a masked logit holds changes nothing.",
    operation="law",
    requires=["law.mask"],
    rests_on=_mask_first,
    strata={"hidden_garbage": s.hidden_garbage},
)
def masked_content(subject: Subject, case: LawCase) -> None:
    value(subject, case)


@law(
    "logits.rows",
    "A row's law depends on neither the other rows nor their number.",
    operation="law",
    strata={
        "many_copies": e.many_copies,
        "mapped_copies": e.mapped_copies,
        "tied_copies": e.tied_copies,
        "spread_copies": w.spread_copies,
    },
    weight=0.4,
)
def rows(subject: Subject, case: LawCase) -> None:
    every, r = batch_of(case, subject.dtype), case.at % case.height
    others = {
        "the other rows left": [r],
        "the rows came in the opposite order": [*range(case.height)][::-1],
        f"there were {case.copies} rows": [(r + i) % case.height for i in range(case.copies)],
    }
    first = laws_of(subject, every).p
    judge(subject, every, first)
    for what, some in others.items():
        batch = every.some(some)
        p = laws_of(subject, batch).p
        judge(subject, batch, p)
        if subject.conventions.batch_invariant and not same_bits(first[some], p):
            raise Different(
                f"rows changed when {what}: they differ in {difference(first[some], p)}; the "
                f"kernel declares Conventions.batch_invariant",
                lines=described(subject, batch, some.index(r), p),
            )


@law(
    "logits.shift",
    "A number added to all logits of a row changes nothing.",
    operation="law",
    strata={"shifted": e.shifted},
    weight=0.25,
)
def shift(subject: Subject, case: LawCase) -> None:
    moved = tuple(tuple(x + case.shift for x in row) for row in case.rows)
    fill = None if case.fill is None else case.fill + case.shift
    value(subject, case)
    value(subject, replace(case, rows=moved, fill=fill))


@law(
    "logits.memory",
    "Inputs are unchanged, nothing is written outside p, every element is written.",
    operation="law",
    strata={
        "all_maps": s.all_maps,
        "softmax": s.softmax,
        "hidden_garbage": s.hidden_garbage,
        "tile_edges": e.tile_edges,
    },
    weight=0.5,
)
def memory(subject: Subject, case: LawCase) -> None:
    given = lay_out(subject, batch_of(case, subject.dtype))
    came = laws_of(subject, given)
    if changed := given.mutated():
        raise InputMutated(
            f"{', '.join(changed)} changed during the call; expected every input, and the guard "
            f"zones around it, to be left alone"
        )
    came.check_guards()
    if came.watched != "opaque":
        check_written("p", came.came)


def _declares(convention: str) -> Callable[[Capabilities], str | None]:
    def why(capabilities: Capabilities) -> str | None:
        if getattr(capabilities.conventions, convention):
            return None
        return f"rests on Conventions.{convention}, which is not declared"

    return why


@law(
    "logits.deterministic",
    "The same logits give the same bits.",
    operation="law",
    rests_on=_declares("deterministic"),
    strata={"all_maps": s.all_maps, "mass_rows": s.mass_rows},
    weight=0.25,
)
def deterministic(subject: Subject, case: LawCase) -> None:
    batch = batch_of(case, subject.dtype)
    first = laws_of(subject, batch).p
    for _ in range(EQUAL_CALLS - 1):
        again = laws_of(subject, batch).p
        if not same_bits(first, again):
            raise NonDeterministic(
                f"p of two equal calls differs in {difference(first, again)}; the kernel "
                f"declares Conventions.deterministic"
            )


@law(
    "logits.declines",
    "A call that needs a declined map is refused with Unsupported, never answered.",
    operation="law",
    rests_on=lambda c: None if c.declines & set(NEEDING) else "declines no map",
    strata={"declined": e.declined},
    weight=0.25,
)
def declines(subject: Subject, case: LawCase) -> None:
    try:
        answer(subject, lay_out(subject, batch_of(case, subject.dtype)))
    except Unsupported:
        return
    domain = domain_of(subject)
    needed = ", ".join(x for x in lacking(case, domain) if x in domain.declines)
    raise Accepted(
        f"{subject.name} answered a call that needs {needed}, which it declines; "
        f"expected Unsupported. Refuse it, or declare it as supported"
    )


@law(
    "logits.validates",
    "Malformed calls raise.",
    operation="law",
    rests_on=_declares("validates_calls"),
    strata={"malformed": e.malformed},
    weight=0.5,
)
def validates(subject: Subject, case: LawCase) -> None:
    given = lay_out(subject, batch_of(case, subject.dtype))
    for what, wrong in malformed_calls(given.call).items():
        try:
            answer(subject, Given(wrong, given.batch))
        except (Unsupported, Raised):
            continue
        raise Accepted(
            f"{subject.name} answered a malformed call: {what}; expected an exception, since it "
            f"declares Conventions.validates_calls"
        )


def malformed_calls(call: LawCall) -> dict[str, LawCall]:
    """What is wrong with a call -> the call; of its maps alone."""
    x = call.logits
    made = {
        "the logits have one axis": replace(call, logits=x[0]),
        "the logits are integers": replace(call, logits=torch.zeros_like(x, dtype=torch.int32)),
        "no logit is left": replace(call, logits=torch.full_like(x, -math.inf), mask=None),
    }
    for name, values in {
        "temperature": (0.0, -1.0, math.nan),
        "top_k": (0, -1, x.shape[1] + 1),
        "top_p": (0.0, 1.5, math.nan),
        "min_p": (-0.5, 1.5, math.nan),
    }.items():
        if (given := getattr(call, name)) is not None:
            for bad in values:
                one = given.clone()
                one[-1] = bad
                made[f"a {name} of {bad}"] = replace(call, **{name: one})
            made[f"one {name} too many"] = replace(call, **{name: torch.cat([given, given[:1]])})
    if call.mask is not None:
        made["a mask of one row too many"] = replace(
            call, mask=torch.cat([call.mask, call.mask[:1]])
        )
    return made
