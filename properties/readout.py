"""The attention weights that a kernel used, read off its outputs with v = slices of the identity.

With v[j, d] = 1 where j = origin + d the output element d is the weight of key origin + d: about
Tk / Dv calls show the whole row, beside the weights that are right. What a sink takes is what the
weights lack of 1.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby

import torch
from torch import Tensor

from kernelassay.oracle.attention import weights
from kernelassay.properties.case import AttendCase
from kernelassay.properties.inputs import Logical, logical, plan_of
from kernelassay.properties.judge import budget_of, empty_rows
from kernelassay.properties.parts import spans
from kernelassay.properties.subject import Subject

MOST_CALLS = 64
MOST_GROUPS = 4


@dataclass(frozen=True)
class Group:
    """A run of keys whose weights are off in the same way (or right)."""

    keys: str
    expected: str
    observed: str
    run: range = range(0)


@dataclass(frozen=True)
class Readout:
    """The row that was read, its groups of keys that matter, and how many were left out."""

    row: tuple[int, int, int]
    groups: tuple[Group, ...]
    hidden: int
    calls: int

    @property
    def right(self) -> bool:
        """Whether every weight of every row is right."""
        return not self.groups


def read(subject: Subject, case: AttendCase, row: tuple[int, int, int] | None) -> Readout | str:
    """The weights of *row*, or of the worst row if it is right; a sentence if not available."""
    calls = -(-case.Tk // case.value_size)
    if case.Tk == 0 or case.Tq == 0:
        return "no key to weigh"
    if calls > MOST_CALLS:
        return f"reading {case.Tk} weights takes {calls} calls; at most {MOST_CALLS} are made"
    t = logical(case, subject.dtype, subject.place)
    expected = weights(t.q, t.k, t.softmax_scale, t.visibility, t.scoring)
    observed, allowed, empty = _observed(subject, t, case.view)
    right = (observed - expected).abs() <= allowed
    empty_is_free = subject.conventions.empty_row != "zeros"
    off = ~(right | (empty[..., None] & empty_is_free))
    if not bool(off.any()):
        return Readout(row or (0, 0, 0), (), 0, calls)
    if row is None or not bool(off[row].any()):
        gap = (observed - expected).abs().nan_to_num(math.inf).amax(-1)
        b, h, i = (int(x) for x in torch.unravel_index(gap.argmax(), gap.shape))
        row = (b, h, i)
    groups, hidden = grouped(expected[row], observed[row], allowed[row])
    groups = tuple(replace(g, keys=f"{g.keys}{whose(case, g.run)}") for g in groups)
    if t.scoring.sink_logits is not None:
        groups = (*groups, _sink(expected[row], observed[row], allowed[row]))
    return Readout(row, groups, hidden, calls)


def _observed(subject: Subject, t: Logical, view: str) -> tuple[Tensor, Tensor, Tensor]:
    """Each weight as the kernel has it, its allowance, and the rows that see nothing."""
    Tk, Dv = t.v.shape[2:]
    parts = []
    for origin in range(0, Tk, Dv):
        part = replace(t, v=_identity(t, origin))
        budget = budget_of(part, subject.numerics, generic=False)
        got = subject.attend(subject.lay_out(part, view)).out.double()
        parts.append((got[..., : Tk - origin], budget.out_allowed[..., : Tk - origin]))
    observed, allowed = (torch.cat(x, -1) for x in zip(*parts, strict=True))
    return observed, allowed, empty_rows(budget)


def _sink(expected: Tensor, observed: Tensor, allowed: Tensor) -> Group:
    """What is left for the sink."""
    right, got = (1 - x.sum(-1, keepdim=True) for x in (expected, observed))
    return Group("sink", *labels(right, got, allowed.sum(-1, keepdim=True)))


def _identity(tensors: Logical, origin: int) -> Tensor:
    v = torch.zeros_like(tensors.v)
    d = torch.arange(min(v.shape[-1], v.shape[2] - origin), device=v.device)
    v[:, :, origin + d, d] = 1
    return v


def grouped(expected: Tensor, observed: Tensor, allowed: Tensor) -> tuple[tuple[Group, ...], int]:
    """Runs of keys of one row that are off, the gravest kept, and one more for context."""
    states = [
        _state(e, o, a)
        for e, o, a in zip(expected.tolist(), observed.tolist(), allowed.tolist(), strict=True)
    ]
    runs: list[tuple[str, int, int]] = []
    at = 0
    for state, members in groupby(states):
        length = len(list(members))
        runs.append((state, at, at + length))
        at += length

    def weight(run: tuple[str, int, int]) -> float:
        gap = (observed - expected)[run[1] : run[2]].abs()
        return float(gap.nan_to_num(math.inf).sum())

    off = sorted((r for r in runs if r[0] not in ("right", "unseen")), key=weight, reverse=True)
    calm = [r for r in runs if r[0] == "right"] or [r for r in runs if r[0] == "unseen"]
    calm.sort(key=lambda r: r[1] - r[2])
    kept = off[: MOST_GROUPS - 1]
    shown = sorted([*kept, *calm[:1]], key=lambda r: r[1])
    made = tuple(
        Group(_keys(a, b), *labels(expected[a:b], observed[a:b], allowed[a:b]), range(a, b))
        for _, a, b in shown
    )
    return made, len(off) - len(kept)


def whose(case: AttendCase, run: range) -> str:
    """The part, split or page that a run of keys is, or lies in: " (part 1)"; "" if in several."""
    if not run:
        return ""
    if case.cuts is not None:
        parts = spans(replace(plan_of(case), order=0), case.Tk)
        held = [n for n, part in enumerate(parts) if set(run) & set(part)]
        return f" (part {held[0]})" if len(held) == 1 else ""
    size, what = case.page, "page"
    if case.splits is not None and case.splits > 1:
        size, what = -(-case.Tk // case.splits), "split"
    if size is None:
        return ""
    first, last = run.start // size, (run.stop - 1) // size
    edges = run.start % size == 0 and (run.stop % size == 0 or run.stop == case.Tk)
    if first == last:
        return f" ({what} {first})"
    return f" ({what}s {first}-{last})" if edges else ""


def _state(expected: float, observed: float, allowed: float) -> str:
    if not math.isfinite(observed):
        return "not finite"
    if abs(observed - expected) <= allowed:
        return "right" if expected > 0 else "unseen"
    if expected == 0:
        return "extra"
    if abs(observed) <= allowed:
        return "lost"
    return "more" if observed > expected else "less"


def _keys(start: int, stop: int) -> str:
    return f"key {start}" if stop == start + 1 else f"keys {start}-{stop - 1}"


def labels(expected: Tensor, observed: Tensor, allowed: Tensor) -> tuple[str, str]:
    """Both weights of a run of keys: "1/17 each" where all are equal, their sums otherwise."""
    near = float(allowed.max())
    if len(expected) > 1 and not (_equal(expected, 0.0) and _equal(observed, 2 * near)):
        return f"{float(expected.sum()):.4g} in all", f"{float(observed.sum()):.4g} in all"
    each = " each" if len(expected) > 1 else ""
    right, got = float(expected[0]), float(observed[0])
    near_right = Fraction(right).limit_denominator(999)
    if abs(float(near_right) - right) > 1e-12:
        return f"{right:.4g}{each}", f"{got:.4g}{each}"
    return f"{near_right}{each}", f"{part(got, near)}{each}"


def _equal(values: Tensor, near: float) -> bool:
    spread = (values - values[0]).abs().max()
    return bool(values.isnan().all()) or float(spread) <= max(near, 1e-12)


def part(value: float, near: float) -> str:
    """0, 1/n or 1 where *value* is *near* it, a decimal otherwise."""
    if abs(value) <= near:
        return "0"
    if 1 / 999 < value < 1.5 and abs(value - 1 / round(1 / value)) <= near:
        return str(Fraction(1, round(1 / value)))
    return f"{value:.4g}"
