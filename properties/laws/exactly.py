"""Laws of what can be said exactly, whatever the scores: hulls, integer weights, the last tile."""

import torch
from torch import Tensor

from kernelassay.oracle.dyadic import mass_sums
from kernelassay.oracle.hull import hull, hull_allowed
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.failures import WrongValue
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.judge import budget_for, compare, seen_by
from kernelassay.properties.laws.comparing import related
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


@law(
    "attention.hull",
    "Each output element lies between the least and the largest visible value of its channel, "
    "whatever the scores.",
    strata={
        "one_hot_softmax": s.one_hot_softmax,
        "scores_far_below": s.hidden_far_below,
        "scores_far_above": s.scores_far_above,
        "equal_values": s.peaky_equal_values,
        "sink_logits": s.peaky_sink,
    },
)
def hull_of_values(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    tensors = logical(case, subject.dtype, subject.place)
    seen = seen_by(tensors).expand(case.shape)
    low, high, far = hull(tensors.v, seen, tensors.scoring.sink_logits)
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    allowed = hull_allowed(far, seen.sum(-1), case.Tk, budget.lse, subject.numerics)
    out = answer.out.double()
    inside = torch.minimum(torch.maximum(out, low), high)
    where = seen.any(-1, keepdim=True).expand_as(out)
    words = "lies outside the hull of the visible values, where no error of scores can bring it"
    related(subject, "out", words, out, torch.where(out.isnan(), low, inside), allowed, where)


@law(
    "attention.integer_masses",
    "With scores that are logarithms of integers the output is a rational number: sum n_j v_j / "
    "sum n_j.",
    strata={"integer_masses": s.integer_masses},
    weight=0.5,
)
def integer_masses(subject: Subject, case: AttendCase) -> None:
    answer = subject.attend(case)
    tensors = logical(case, subject.dtype, subject.place)
    seen = seen_by(tensors).expand(case.shape)
    sums, total, moved = rational(tensors, seen)
    allowed = budget_for(case, subject.dtype, subject.place, subject.numerics).out_allowed + moved
    out, rows = answer.out.double(), (total > 0).expand_as(sums)
    refuse_other_integers(out, sums, total, allowed, rows)
    compare(subject, "out", out, sums / total.clamp(min=1.0), allowed, rows)


def refuse_other_integers(
    out: Tensor, sums: Tensor, total: Tensor, allowed: Tensor, rows: Tensor
) -> None:
    """out * total is the integer *sums* up to rounding, wherever that leaves less than 1 / 2."""
    sure = rows & (allowed * total < 0.5)
    wrong = sure & ((out * total).round() != sums)
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        weights, wanted = int(total[(*at[:3], 0)]), int(sums[at])
        raise WrongValue(
            f"out{list(at)} times {weights}, the sum of the visible weights, is "
            f"{float(out[at]) * weights:.7g}; expected the integer {wanted}, up to less than 1/2",
            ratio=float((out[at] - wanted / weights).abs() / allowed[at]),
            row=at[:3],
        )


def rational(tensors: Logical, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """sum_j n_j v_j and sum_j n_j, exactly, and how far the scores' rounding moves the quotient.

    n_j is the integer nearest to exp(score): scores are logarithms of integers, rounded to the
    dtype. Score j is off by d_j = score - log n_j, which moves the output by
    sum n_j (e^d_j - 1)(v_j - out) / sum n_j e^d_j.
    """
    group = tensors.q.shape[1] // tensors.k.shape[1]
    factor = tensors.softmax_scale * tensors.q[:, :, :1, 0].double()  # [B, Hq, 1], each row's
    scores = factor * tensors.k[..., 0].double().repeat_interleave(group, 1)  # [B, Hq, Tk]
    v = tensors.v.double().repeat_interleave(group, 1)
    masses = scores.exp().round().clamp(min=1.0)
    sums, total = mass_sums(masses, v.round().long(), seen)
    off = masses * torch.expm1(scores - masses.log())
    change = off[:, :, None] * seen
    out = sums / total.clamp(min=1.0)
    shift = change @ v - change.sum(-1, keepdim=True) * out
    return sums, total, (shift / (total + change.sum(-1, keepdim=True)).clamp(min=0.5)).abs()
