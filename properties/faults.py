"""Recognising a fault: which fault model gives what a kernel was observed to answer.

A model explains a call when it lies within the call's allowance of the observed output, and LSE,
everywhere, and takes away most of an error. Small cases fit many models, so each one that fits is
held against further calls, failing and passing, and the one that fits most of them is reported.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.budget import lse_allowed_in_base
from kernelassay.oracle.formats import format_of
from kernelassay.properties.case import AttendCase
from kernelassay.properties.fault_setting import Answer, Fault, Setting, scored
from kernelassay.properties.faults_arithmetic import FAULTS as ARITHMETIC
from kernelassay.properties.faults_merging import FAULTS as MERGING
from kernelassay.properties.faults_reading import FAULTS as READING
from kernelassay.properties.faults_scoring import FAULTS as SCORING
from kernelassay.properties.faults_terms import FAULTS as TERMS
from kernelassay.properties.faults_visibility import FAULTS as VISIBILITY
from kernelassay.properties.inputs import layout_of, logical
from kernelassay.properties.judge import budget_of, empty_rows
from kernelassay.properties.subject import Subject

FAULTS: tuple[Fault, ...] = (
    ARITHMETIC[0],
    *VISIBILITY,
    *SCORING,
    *TERMS,
    *READING,
    *ARITHMETIC[1:],
)
"""Of models that explain the same calls equally well, the earlier one is reported: first the one
that speaks of a single input, which a model that hides every key explains as well."""
EXPLAINED = 0.25
"""A model must leave no more than this part of the worst error unexplained."""
MOST_READINGS = 2
LOW = -1e4
"""An LSE below is one of a running maximum that started at a finite number, and saw nothing."""


@dataclass(frozen=True, eq=False)
class Part:
    """One observed tensor beside the truth, in float64, and how near a model must come."""

    got: Tensor
    truth: Tensor
    near: Tensor
    judged: Tensor
    wrong: Tensor

    @property
    def gross(self) -> bool:
        """Whether an error is larger than what a model may be off by; chance explains others."""
        far = ~((self.got - self.truth).abs() <= self.near)
        return bool((self.wrong & far).any())


@dataclass(frozen=True, eq=False)
class Observed:
    """What a kernel answered to one call."""

    case: AttendCase
    setting: Setting
    out: Part
    lse: Part | None

    @property
    def wrong(self) -> bool:
        """Whether any element of it is wrong."""
        return any(bool(p.wrong.any()) for p in (self.out, self.lse) if p is not None)

    @property
    def gross(self) -> bool:
        """Whether an element is so wrong that models can be told from each other."""
        return any(p.gross for p in (self.out, self.lse) if p is not None)


@dataclass(frozen=True)
class Reading:
    """A fault model that explains the counterexample: a guess."""

    name: str
    sentence: str
    detail: str
    error: float
    allowed: float
    fits: int
    tried: int


def observe(subject: Subject, case: AttendCase) -> Observed:
    """Run the kernel on *case* and put its answer beside the oracle's."""
    tensors = logical(case, subject.dtype, subject.place)
    answer = subject.attend(case)
    numerics = subject.numerics
    budget = budget_of(tensors, numerics, generic=False)
    empty, conventions = empty_rows(budget), subject.conventions
    cast = format_of(numerics.p).unit
    values = tensors.v.double().abs().amax() if tensors.v.numel() else 0.0
    allowed = budget.out_allowed
    unit = format_of(numerics.out).unit
    near = allowed.amax(-1, keepdim=True) + unit * answer.out.double().nan_to_num().abs()
    setting = Setting(
        tensors,
        subject.capabilities.tiles,
        case.view,
        layout_of(tensors.q, subject.capabilities.layouts),
    )
    slack = 4 * format_of(numerics.score).unit * _largest_terms(setting)
    near = near + (cast + slack[..., None]) * values
    judged = (~empty | (conventions.empty_row != "undefined"))[..., None].expand_as(allowed)
    truth = budget.out
    if conventions.empty_row == "nan":
        truth = torch.where(empty[..., None], math.nan, truth)
    out = _part(answer.out.double(), truth, allowed, near, judged)
    lse = None
    if answer.lse is not None and subject.has("lse"):
        natural = answer.lse.double() * (1.0 if conventions.lse_base == "e" else math.log(2))
        allowed = lse_allowed_in_base(budget, "2")
        truth = budget.lse if conventions.empty_lse == "-inf" else -budget.lse.abs()
        # Beside a wrong output NaN is part of the fault, where no key is seen as well.
        judged = ~empty | (out.wrong.any(-1) & natural.isnan())
        lse = _part(natural, truth, allowed, 2 * allowed + 8 * cast + slack, judged)
    return Observed(case, setting, out, lse)


def _largest_terms(s: Setting) -> Tensor:
    """The largest score of a row without its soft cap, or term that is added to one.

    The budget is that of capped scores; a fault may leave the cap out. 0 where scores are plain.
    """
    if s.tensors.scoring.plain or not s.shape[3]:
        return torch.zeros(s.shape[:3], device=s.keys.device).double()
    added = (s.scores - scored(s, alibi=0.0, bias=0.0)).abs()
    return torch.where(s.seen, s.scaled.abs() + added, 0.0).amax(-1)


def _part(got: Tensor, truth: Tensor, allowed: Tensor, near: Tensor, judged: Tensor) -> Part:
    wrong = judged & ~(((got - truth).abs() <= allowed) | (got.isnan() & truth.isnan()))
    return Part(got, truth, near, judged, wrong & (got != truth))


@dataclass(frozen=True)
class Fit:
    """How a model explains a call: |observed - model| where it is largest beside what is allowed.

    *lenient*: a wrong number was taken as it came because the model sees nothing there, and says
    0 where NaN or infinity came; *told*: some wrong finite number is one that the model says.
    """

    error: float
    allowed: float
    lenient: bool
    told: bool


def distance(answer: Answer, seen: Observed) -> Fit | None:
    """How far the model is off where it is off most; None if it does not explain the call."""
    worst, lenient, told = (-1.0, 1.0), False, False
    nothing = None if answer.lse is None else torch.isneginf(answer.lse)
    pairs = [(answer.out, seen.out, None if nothing is None else nothing[..., None])]
    if answer.lse is not None and seen.lse is not None:
        pairs.append((answer.lse, seen.lse, nothing))
    explained = not seen.wrong
    for model, part, free in pairs:
        error = (part.got - model).abs()
        same = (part.got == model) | (part.got.isnan() & model.isnan())
        said = same | (error <= part.near)
        told |= bool((part.wrong & part.got.isfinite() & said).any())
        if free is not None:
            # What a kernel gives for a row in which it sees nothing is 0 or not finite.
            taken = free & (~part.got.isfinite() | (part.got == 0) | (part.got < LOW))
            lenient |= bool((taken & ~said & part.wrong).any())
            same |= taken
        error = torch.where(same | ~part.judged, 0.0, error)
        if not bool((error <= part.near).all()):
            return None
        if error.numel():
            at = int((error / part.near).argmax())
            here = (float(error.flatten()[at]), float(part.near.expand_as(error).flatten()[at]))
            worst = max(worst, here, key=lambda at: at[0] / at[1])
        explained = explained or _explains(error, part)
    return Fit(*worst, lenient, told) if explained else None


def _explains(error: Tensor, part: Part) -> bool:
    """Whether the model takes away most of the worst error."""
    if not bool(part.wrong.any()):
        return False
    before = torch.where(part.wrong, (part.got - part.truth).abs(), 0.0)
    before = torch.where(part.wrong & ~before.isfinite(), math.inf, before)
    at = int((before / part.near).argmax())
    return float(error.flatten()[at]) <= EXPLAINED * float(before.flatten()[at])


@dataclass(eq=False)
class _Candidate:
    """A variant that explains the first call: how, of how many calls, and what it says of them.

    *told*: it says a wrong finite number of some call.
    """

    fault: Fault
    detail: str
    fit: Fit
    told: bool
    fits: int = 1


def recognise(seen: Sequence[Observed]) -> list[Reading]:
    """At most two readings of the first of the calls: those that fit most of all of them.

    None where its errors are small: declarations of numerics explain those, faults by chance.
    A model that sees nothing where NaN came does not say NaN: it needs a call in which it says a
    wrong number. Where nothing but NaN or nothing but 0 is wrong, chance explains it as well as a
    fault does: what fits best is then named alone, and not where more models than two fit so.
    """
    if not seen[0].gross:
        return []
    fitting = [c for c in _candidates(seen) if c.told or not c.fit.lenient]
    most = max((c.fits for c in fitting), default=0)
    if 2 * most <= len(seen):
        return []
    # What says every number comes before what leaves some of them open.
    best = sorted((c for c in fitting if c.fits == most), key=lambda c: c.fit.lenient)
    blank = _blank(seen)
    if blank:
        best = [c for c in best if c.fit.lenient == best[0].fit.lenient]
    chosen: dict[str, Reading] = {}
    for c in best:
        fault, fit = c.fault, c.fit
        reading = Reading(
            fault.name, fault.sentence, c.detail, fit.error, fit.allowed, most, len(seen)
        )
        chosen.setdefault(fault.name, reading)
    if blank and len(chosen) > MOST_READINGS:
        return []
    return list(chosen.values())[:MOST_READINGS]


def _candidates(seen: Sequence[Observed]) -> list[_Candidate]:
    """The variants that explain the first call, held against the others."""
    first, *others = seen
    cut = first.setting.tensors.plan.cuts is not None
    found = [
        _Candidate(fault, detail, fit, fit.told)
        for fault in (MERGING if cut else FAULTS)
        for detail, answer in fault.variants(first.setting)
        if (fit := distance(answer, first)) is not None
    ]
    faults = {c.fault.name: c.fault for c in found}
    for other in others:
        answers = {
            (name, detail): answer
            for name, fault in faults.items()
            for detail, answer in fault.variants(other.setting)
        }
        for c in found:
            answer = answers.get((c.fault.name, c.detail))
            if answer is None:  # a fault that this call does not exercise leaves it right
                c.fits += not other.wrong
            elif fit := distance(answer, other):
                c.fits += 1
                c.told |= fit.told
    return found


def _blank(seen: Sequence[Observed]) -> bool:
    """Whether all that is wrong in these calls is NaN, or all is 0: it tells models apart badly.

    An LSE that is not finite, or lower than any score, goes with either.
    """
    out = torch.cat([o.out.got[o.out.wrong] for o in seen])
    lses = [o.lse.got[o.lse.wrong] for o in seen if o.lse is not None]
    number = any(bool((x.isfinite() & (x >= LOW)).any()) for x in lses)
    return not number and (bool(out.isnan().all()) or bool((out == 0).all()))
