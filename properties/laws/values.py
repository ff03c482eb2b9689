"""Laws of values: output, log-sum-exp, exact inputs, extreme scores, empty rows."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelassay.oracle.dyadic import dyadic_quotients
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.failures import WrongValue
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.judge import (
    budget_for,
    compare,
    judge,
    judge_empty,
    judge_lse,
    judge_out,
    seen_by,
)
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


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
        "zero_scale": s.zero_scale,
        "value_size": s.value_size,
        "equal_values": s.equal_values,
        "plain": s.plain,
    },
    weight=1.6,  # two cases of each stratum at the least level
)
def value(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    judge_out(subject, answer.out, budget, generic=case.generic)


@law(
    "attention.score_terms",
    "Soft cap, ALiBi, bias and sink do to a score what they say: the cap first, then ALiBi and "
    "the bias; the sink is in the denominator alone.",
    strata={
        "softcap": s.softcap,
        "alibi": s.alibi,
        "bias": s.bias,
        "sink_logits": s.sink_logits,
        "softcap_and_bias": s.softcap_and_bias,
        "softcap_and_mask": s.softcap_and_mask,
        "alibi_positions": s.alibi_positions,
        "bias_and_minus_infinity": s.bias_and_minus_infinity,
    },
)
def score_terms(subject: Subject, case: AttendCase) -> None:
    value.body(subject, case)


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
        "large_products": s.large_products,
        "softcap_far": s.softcap_far,
        "bias_far_below": s.bias_far_below,
        "bias_far_above": s.bias_far_above,
        "sink_far": s.sink_far,
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
        "softcap": s.softcap,
        "alibi": s.alibi,
        "alibi_ragged": s.alibi_ragged,
        "row_bias": s.row_bias,
        "bias_minus_infinity": s.bias_minus_infinity,
        "sink_logits": s.sink_logits,
        "sink_far": s.sink_far,
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
        "empty_row": s.rows_before_keys,
        "all_rows_empty": s.nothing_visible,
        "bias_hides_rows": s.bias_hides_rows,
        "sink_of_empty_rows": s.sink_of_empty_rows,
    },
)
def empty_rows(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    judge_empty(subject, answer, budget)
    judge(subject, case, answer)
