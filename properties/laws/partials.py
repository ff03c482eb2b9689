"""Laws of attention over parts of the keys: parts that the suite cuts, or the kernel itself."""

import math
from dataclasses import replace

import torch

from kernelassay.impls.contract import Numerics
from kernelassay.oracle.budget_merge import Part, merged
from kernelassay.oracle.merging import finish, merge, state_of
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.inputs import Logical, Plan, logical
from kernelassay.properties.judge import budget_of, compare, empty_rows, judge
from kernelassay.properties.laws.comparing import kept
from kernelassay.properties.parts import LN2, spans
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject

EXACTLY = Numerics(p="fp64", out="fp64", lse="fp64", exp_u=2.0**-50, div_u=2.0**-50)
"""A merge in float64."""


@law(
    "merging.of_partials",
    "Attention over parts of the keys, merged by out and LSE, is attention over all of them.",
    requires=["lse", "unequal_lengths"],
    strata={"cut_keys": s.cut_keys, "cascade": s.cascade, "cut_ragged": s.cut_ragged},
    weight=0.5,
)
def of_partials(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    rest, more = case.Tk - case.at, case.order
    cuts = (case.at, *(case.at + rest * n // (more + 1) for n in range(1, more + 1)))
    if case.causal != "none":  # the corner lies in the last part
        cuts = tuple(c for c in cuts if c <= case.Tk - case.Tq)
    runs = spans(Plan(cuts=_far_enough(subject, cuts, case)), case.Tk)
    given = [_alone(tensors, keys) for keys in runs]
    budgets = [budget_of(t, subject.numerics, generic=case.generic) for t in given]
    states = []
    for t, b in zip(given, budgets, strict=True):
        answer = kept(subject.attend(t))
        assert answer.lse is not None, "the law requires lse"
        natural = answer.lse.double() * (LN2 if subject.conventions.lse_base == "2" else 1.0)
        # What the LSE of an empty row is, conventions say; here it is an empty part.
        states.append(state_of(answer.out, torch.where(empty_rows(b), -math.inf, natural)))
    out, lse = finish(merge(*states))
    parts = [Part(b.out, b.lse, b.out_allowed, b.lse_allowed) for b in budgets]
    whole = merged(*parts, numerics=EXACTLY)
    rows = whole.lse > -math.inf
    compare(subject, "out", out, whole.out, whole.out_allowed, rows[..., None].expand_as(out))
    compare(subject, "lse", lse, whole.lse, whole.lse_allowed, rows)


def _far_enough(subject: Subject, cuts: tuple[int, ...], case: AttendCase) -> tuple[int, ...]:
    """Those cuts that leave each part as many keys as the kernel needs: one, or one per query."""
    least = subject.capabilities.min_keys
    if not subject.has("more_queries"):
        least = max(least, case.Tq)
    found: list[int] = []
    for cut in cuts:
        if cut - (found[-1] if found else 0) >= least and case.Tk - cut >= least:
            found.append(cut)
    return tuple(found)


def _alone(tensors: Logical, keys: range) -> Logical:
    """The call about a run of keys alone. A corner applies to the last one, which all see in part.

    Splits are as many as before, pages of the same size.
    """
    vis, Tk = tensors.visibility, tensors.k.shape[2]
    run = slice(keys.start, keys.stop)
    lengths = vis.lengths
    if lengths is not None:
        lengths = (lengths - keys.start).clamp(0, len(keys))
    causal = vis.causal if keys.stop == Tk else "none"
    return replace(
        tensors,
        k=tensors.k[:, :, run],
        v=tensors.v[:, :, run],
        visibility=replace(vis, lengths=lengths, causal=causal),
    )


@law(
    "merging.splits",
    "Into how many parts the kernel cuts the keys does not matter, more than there are keys "
    "included.",
    operation="splits",
    strata={
        "random_content": s.random_content,
        "more_splits_than_keys": s.more_splits_than_keys,
        "partial_tile": s.partial_tile,
        "sink_logits": s.sink_logits,
        "ragged": s.ragged,
        "scores_leap": s.scores_leap,
        "masked_rows": s.masked_rows,
    },
    weight=1.5,
)
def splits(subject: Subject, case: AttendCase) -> None:
    judge(subject, case, subject.attend(case))
