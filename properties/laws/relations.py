"""Laws that relate two calls of different truth: shifted scores, a window, a sink, the scale."""

from dataclasses import replace

import torch
from torch import Tensor

from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.laws.comparing import (
    answered,
    keep_budgets,
    related,
    same_answers,
    without_scoring,
)
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject

SHIFTS = (95.0, 23.0)
"""Numbers to add to the scores of a row: exp of the first overflows fp32, of the second fp16."""


@law(
    "attention.score_shift",
    "A constant added to all scores of a row moves its LSE by that constant, and nothing else.",
    strata={"row_bias": s.shifted_by_bias, "random_content": s.shifted_by_channel},
    weight=0.5,
)
def score_shift(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    if case.bias is not None:
        plain, moved, shift = without_scoring(tensors, "bias"), tensors, tensors.scoring.bias
        assert shift is not None
        shift = shift.double().expand(*tensors.q.shape[:3], -1)[..., 0]
        generic = case.generic
    else:
        plain, moved, shift = through_channel(tensors, SHIFTS[case.at % len(SHIFTS)])
        generic = False  # a column of constants is no random content
    first, second = (answered(subject, t, generic=generic) for t in (plain, moved))
    what = "a number was added to all scores of its row"
    same_answers(subject, what, first, second, shift)


def through_channel(tensors: Logical, number: float) -> tuple[Logical, Logical, Tensor]:
    """Two calls whose scores differ by a number for each row [B, Hq, Tq], and these numbers.

    Channel 0 of q holds 1, -0.5, 0.5, 1 and so on from row to row, that of k 0 or a constant.
    """
    q, k, scale = tensors.q.clone(), tensors.k.clone(), tensors.softmax_scale
    factors = torch.tensor([1.0, -0.5, 0.5], dtype=q.dtype, device=q.device)
    q[..., 0] = factors[torch.arange(q.shape[2], device=q.device) % 3]
    k[..., 0] = 0.0
    moved = k.clone()
    moved[..., 0] = number / scale
    shift = scale * q[..., 0].double() * float(moved[0, 0, 0, 0]) if k.shape[2] else q[..., 0] * 0
    return replace(tensors, q=q, k=k), replace(tensors, q=q, k=moved), shift


@law(
    "attention.default_scale",
    "No scale is a scale of 1 / sqrt(D).",
    requires=["scale"],
    strata={"random_content": s.default_scale, "padded_head": s.padded_head},
    weight=0.5,
)
def default_scale(subject: Subject, case: AttendCase) -> None:
    tensors = replace(logical(case, subject.dtype, subject.place), scale=None)
    explicit = replace(tensors, scale=tensors.softmax_scale)
    first, second = (answered(subject, t, generic=case.generic) for t in (tensors, explicit))
    what = f"its default scale was given, 1 / sqrt({case.D})"
    same_answers(subject, what, first, second)


@law(
    "attention.sink_relation",
    "A sink logit s multiplies the output by l / (l + e^s) and makes the LSE log(l + e^s); one of "
    "minus infinity changes nothing.",
    requires=["sink_logits"],
    strata={
        "sink_logits": s.sink_logits,
        "sink_far": s.sink_far,
        "no_sink": s.no_sink,
        "one_tile": s.sink_in_one_tile,
    },
    weight=0.5,
)
def sink_relation(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    logits = tensors.scoring.sink_logits
    if logits is None:
        return
    alone = without_scoring(tensors, "sink_logits")
    first, second = (answered(subject, t, generic=case.generic) for t in (alone, tensors))
    rows = first.rows
    (lse, spare), (after, own) = first.lse(subject), second.lse(subject)
    lse = torch.where(rows, lse, 0.0)
    sink = logits.double()[:, None]
    share, off = kept_share(lse, spare, sink)
    out, allowed = first.answer.out.double(), share * first.budget.out_allowed
    allowed = allowed + off * out.abs() + second.budget.out_allowed
    where = rows[..., None].expand_as(out)
    words = "with the sink is not out without it times l / (l + exp(sink))"
    related(subject, "out", words, second.answer.out, share * out, allowed, where)
    if second.answer.lse is not None:
        words = "with the sink is not log(l + exp(sink))"
        related(subject, "lse", words, after, torch.logaddexp(lse, sink), spare + own, rows)
    keep_budgets(subject, first, second)


def kept_share(lse: Tensor, spare: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """l / (l + e^s) = 1 / (1 + e^(s - lse)) [..., 1], and how far an LSE off by *spare* moves it.

    The derivative is share (1 - share), which grows by at most e^spare on the way.
    """
    share = torch.sigmoid(lse - sink)
    return share[..., None], (share * torch.sigmoid(sink - lse) * torch.expm1(spare))[..., None]
