"""Answers that are related by more than equality: the relation, then each in its own budget.

Two answers that lie within their budgets keep the relation, so it is looked at first: it says
what went wrong in terms of the law. What is wrong in both alike is left to the budgets.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelassay.oracle.budget import Budget, lse_allowed_in_base
from kernelassay.properties.answers import Attended
from kernelassay.properties.failures import Failure, Imprecise, NonFinite, Place, WrongValue
from kernelassay.properties.inputs import Logical
from kernelassay.properties.judge import GROSS, budget_of, empty_rows, judge_lse, judge_out
from kernelassay.properties.subject import Subject


@dataclass(frozen=True, eq=False)
class Judged:
    """An answer beside the budget of its own call."""

    answer: Attended
    budget: Budget

    @property
    def rows(self) -> Tensor:
        """Rows [B, Hq, Tq] that see a key or have a sink."""
        return ~empty_rows(self.budget)

    def lse(self, subject: Subject) -> tuple[Tensor, Tensor]:
        """The answer's LSE in natural logarithms, or the oracle's, and what it may be off."""
        base = subject.conventions.lse_base
        allowed = lse_allowed_in_base(self.budget, base)
        if self.answer.lse is None:
            return self.budget.lse, torch.zeros_like(allowed)
        return self.answer.lse.double() * (math.log(2.0) if base == "2" else 1.0), allowed


def kept(answer: Attended) -> Attended:
    """A copy: a kernel may hand out the same memory again."""
    lse, raw = answer.lse, tuple(x.clone() for x in answer.raw)
    lse = None if lse is None else lse.clone()
    return replace(answer, out=answer.out.clone(), lse=lse, raw=raw)


def answered(subject: Subject, tensors: Logical, *, generic: bool) -> Judged:
    """The kernel's answer to *tensors*, and the budget."""
    budget = budget_of(tensors, subject.numerics, generic=generic)
    return Judged(kept(subject.attend(tensors)), budget)


def keep_budgets(subject: Subject, *judged: Judged) -> None:
    """Each answer lies within its own budget."""
    for one in judged:
        judge_out(subject, one.answer.out, one.budget, generic=False)
        if one.answer.lse is not None:
            judge_lse(subject, one.answer.lse, one.budget)


def same_answers(
    subject: Subject, what: str, first: Judged, second: Judged, shift: Tensor | None = None
) -> None:
    """Two answers of the same truth differ by no more than both allowances.

    The LSE of the second is larger by *shift* [B, Hq, Tq], if there is one.
    """
    rows = first.rows & second.rows
    spare = first.budget.out_allowed + second.budget.out_allowed
    words = f"changed when {what}, which must not matter"
    where = rows[..., None].expand_as(spare)
    related(subject, "out", words, second.answer.out, first.answer.out, spare, where)
    if first.answer.lse is not None:
        (a, spare_a), (b, spare_b) = first.lse(subject), second.lse(subject)
        if shift is not None:
            a, words = a + shift, f"did not change by that number when {what}"
        related(subject, "lse", words, b, a, spare_a + spare_b, rows)
    keep_budgets(subject, first, second)


def related(
    subject: Subject,
    name: str,
    words: str,
    got: Tensor,
    expected: Tensor,
    allowed: Tensor,
    where: Tensor,
) -> None:
    """Elements of *got* under *where* lie within *allowed* of *expected*; *words* say what not.

    What is not finite on both sides, or expected to be, is left to the budgets.
    """
    got, expected = got.double(), expected.double()
    where = where & expected.isfinite()
    lost = where & ~got.isfinite()
    error = torch.where(where & ~lost, (got - expected).abs(), 0.0)
    ratio = torch.where(error > 0, error / allowed, 0.0).masked_fill(lost, math.inf)
    worst = float(ratio.max()) if ratio.numel() else 0.0
    if math.isnan(worst):
        raise ArithmeticError(f"{name}: what is allowed is no number where the answers are")
    if math.isfinite(worst):
        subject.observe(worst)
    if worst > 1:
        index = tuple(int(i) for i in (ratio >= worst).nonzero()[0])
        a, b, spare = (float(x.expand_as(ratio)[index]) for x in (got, expected, allowed))
        place = Place(name, index, a, b, spare, int((ratio > 1).sum()), ratio.numel())
        kind, times = _grade(worst)
        raise kind(f"{name} {words}: {times}.", ratio=worst, place=place)


def _grade(ratio: float) -> tuple[type[Failure], str]:
    if math.isinf(ratio):
        return NonFinite, "it is not finite"
    times = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
    return (WrongValue if ratio > GROSS else Imprecise), f"{times}x what rounding allows"


def without_scoring(tensors: Logical, *names: str) -> Logical:
    """The same call without these parts of its scoring."""
    return replace(tensors, scoring=replace(tensors.scoring, **dict.fromkeys(names)))
