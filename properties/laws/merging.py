"""Laws of a merge of partial results: parts of the keys, in whatever order, make the whole.

The suite cuts the keys and gives the kernel the true partial results, rounded.
"""

import math
from dataclasses import replace

import torch

from kernelassay.impls.contract import Capabilities, MergeCall, Unsupported
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.failures import Accepted, Raised
from kernelassay.properties.inputs import logical
from kernelassay.properties.judge import (
    budget_for,
    judge,
    judge_empty,
)
from kernelassay.properties.laws import conduct
from kernelassay.properties.laws.comparing import kept
from kernelassay.properties.laws.equality import agree
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


@law(
    "merging.value",
    "Merged partial results are those of all the keys: out = sum_i b^(lse_i - lse) out_i, "
    "lse = log_b sum_i b^lse_i, in the declared base b.",
    operation="merge",
    strata={
        "random_content": s.random_content,
        "boolean_mask": s.boolean_mask,
        "ragged": s.ragged,
        "decode": s.decode,
        "equal_maxima": s.equal_maxima,
        "equal_values": s.equal_values,
        "sink_logits": s.sink_logits,
    },
)
def value(subject: Subject, case: AttendCase) -> None:
    judge(subject, case, subject.attend(case))


@law(
    "merging.extreme",
    "Wherever the maxima of the parts lie, and however far apart, the result is right and finite.",
    operation="merge",
    strata={
        "maxima_apart": s.maxima_apart,
        "scores_far_above": s.scores_far_above,
        "scores_far_below": s.scores_far_below,
        "scores_leap": s.scores_leap,
        "scores_rising": s.scores_rising,
        "rows_apart": s.rows_apart,
    },
)
def extreme(subject: Subject, case: AttendCase) -> None:
    judge(subject, case, subject.attend(case))


@law(
    "merging.empty_parts",
    "A part that saw no key changes nothing, wherever it comes; where all are such, out is 0 and "
    "the LSE -inf.",
    operation="merge",
    strata={
        "empty_part": s.empty_part,
        "empty_for_some": s.empty_for_some,
        "all_parts_empty": s.all_parts_empty,
    },
)
def empty_parts(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    judge_empty(subject, answer, budget_for(case, subject.dtype, subject.place, subject.numerics))
    judge(subject, case, answer)


def _spares_nan(capabilities: Capabilities) -> str | None:
    if capabilities.conventions.masked_content == "finite_only":
        return "Conventions.masked_content says that NaN in what is unused may leak"
    return None


@law(
    "merging.unused_values",
    "What the output of an empty part holds changes nothing, NaN included.",
    operation="merge",
    rests_on=_spares_nan,
    strata={
        "empty_part": s.empty_part,
        "empty_for_some": s.empty_for_some,
        "all_parts_empty": s.all_parts_empty,
    },
)
def unused_values(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    clean, spoilt = (
        kept(subject.attend(replace(tensors, plan=replace(tensors.plan, fill=fill))))
        for fill in (0.0, math.nan)
    )
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    agree(subject, "outputs of empty parts were NaN", clean, spoilt, budget)


@law(
    "merging.trees",
    "Parts may be merged in any order, two at a time or all at once.",
    operation="merge",
    strata={"trees": s.trees, "many_parts": s.many_parts},
)
def trees(subject: Subject, case: AttendCase) -> None:
    judge(subject, case, subject.attend(case))


@law(
    "merging.single",
    "One part alone is the result.",
    operation="merge",
    requires=["merge.many"],
    strata={"single_part": s.single_part, "single_empty_part": s.single_empty_part},
    weight=0.5,
)
def single(subject: Subject, case: AttendCase) -> None:
    empty_parts.body(subject, case)


@law(
    "merging.memory",
    "Parts are unchanged, nothing is written outside the results, every element is written.",
    operation="merge",
    strata={
        "random_content": s.random_content,
        "empty_part": s.empty_part,
        "all_parts_empty": s.all_parts_empty,
    },
)
def memory(subject: Subject, case: AttendCase) -> None:
    conduct.memory.body(subject, case)


@law(
    "merging.deterministic",
    "The same parts give the same bits.",
    operation="merge",
    rests_on=lambda c: None if c.conventions.deterministic else "deterministic is not declared",
    strata={"random_content": s.random_content, "many_parts": s.many_parts},
    weight=0.5,
)
def deterministic(subject: Subject, case: AttendCase) -> None:
    conduct.deterministic.body(subject, case)


@law(
    "merging.declines",
    "Another number of parts than two is refused with Unsupported, where it is declined.",
    operation="merge",
    rests_on=lambda c: None if "merge.many" in c.declines else "declines no number of parts",
    strata={"three_parts": s.three_parts},
    weight=0.25,
)
def declines(subject: Subject, case: AttendCase) -> None:
    try:
        subject.answer(subject.prepare(case).call)
    except Unsupported:
        return
    raise Accepted(
        f"{subject.name} answered a call with {len(case.cuts or ()) + 1} parts, and declines "
        f"merge.many; expected Unsupported. Refuse it, or declare it as supported"
    )


@law(
    "merging.validates",
    "Malformed calls raise.",
    operation="merge",
    rests_on=lambda c: (
        None if c.conventions.validates_calls else "validates_calls is not declared"
    ),
    strata={"malformed": s.random_content},
    weight=0.5,
)
def validates(subject: Subject, case: AttendCase) -> None:
    call = subject.prepare(case).call
    assert isinstance(call, MergeCall), "the law is of merge"
    for what, wrong in malformed_merges(call).items():
        try:
            subject.answer(wrong)
        except (Unsupported, Raised):
            continue
        raise Accepted(
            f"{subject.name} answered a malformed call: {what}; expected an exception, since it "
            f"declares Conventions.validates_calls"
        )


def malformed_merges(call: MergeCall) -> dict[str, MergeCall]:
    """What is wrong with a call -> the call."""
    outs, lses = call.outs, call.lses
    made = {
        "the parts have no axis of their own": replace(call, outs=outs[0]),
        "there are more LSEs than parts": replace(call, lses=torch.cat([lses, lses[:1]])),
        "an LSE for each element": replace(call, lses=outs.to(lses.dtype)),
        "LSEs are integers": replace(call, lses=torch.zeros_like(lses, dtype=torch.int32)),
    }
    if call.sums is not None:
        made["the denominators are missing"] = replace(call, sums=None)
    return made
