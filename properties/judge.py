"""The verdict on outputs: the float64 oracle, the budget of the declared numerics, conventions."""

import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import Numerics
from kernelassay.oracle.attention import lse_in_base
from kernelassay.oracle.budget import (
    Z_RMS_ELEMENTS,
    Z_RMS_LIMIT,
    Budget,
    attention_budget,
    lse_allowed_in_base,
    recognised,
)
from kernelassay.oracle.scoring import alibi_offsets, offsets
from kernelassay.oracle.visibility import visible
from kernelassay.properties.answers import Attended
from kernelassay.properties.case import AttendCase
from kernelassay.properties.failures import Failure, Imprecise, NonFinite, Place, WrongValue
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.memory import bits
from kernelassay.properties.parts import merge_budget
from kernelassay.properties.subject import Subject

GROSS = 8.0
"""From this ratio on an error is WrongValue, below it Imprecise."""

_cache: "OrderedDict[Any, Budget]" = OrderedDict()
_CACHE_BYTES = 1 << 28
_held = [0]


def budget_for(case: AttendCase, dtype: str, place: str, numerics: Numerics) -> Budget:
    """Oracle and budget of a case; shared by all kernels of equal numerics."""
    key = (replace(case, at=0), dtype, place, numerics)
    if key in _cache:
        _cache.move_to_end(key)
        return _cache[key]
    made = budget_of(logical(case, dtype, place), numerics, generic=case.generic)
    _cache[key] = made
    _held[0] += _bytes(made)
    while len(_cache) > 1 and _held[0] > _CACHE_BYTES:
        _held[0] -= _bytes(_cache.popitem(last=False)[1])
    return made


def _bytes(budget: Budget) -> int:
    return budget.out.nelement() * 32


def seen_by(tensors: Logical) -> Tensor:
    """The visible set of logical tensors, broadcastable to [B, Hq, Tq, Tk].

    A bias of -inf hides its key.
    """
    shape = shape_of(tensors)
    seen = visible(tensors.visibility, shape, device=tensors.q.device)
    bias = tensors.scoring.bias
    return seen if bias is None else seen & (bias != -torch.inf)


def shape_of(tensors: Logical) -> tuple[int, int, int, int]:
    """(B, Hq, Tq, Tk)."""
    B, Hq, Tq, _ = tensors.q.shape
    return B, Hq, Tq, tensors.k.shape[2]


def budget_of(tensors: Logical, numerics: Numerics, *, generic: bool) -> Budget:
    """Oracle and budget of logical tensors; where they are cut, of the merge of the parts."""
    if tensors.plan.cuts is not None:
        return merge_budget(tensors, numerics)
    t, scoring, shape = tensors, tensors.scoring, shape_of(tensors)
    return attention_budget(
        t.q, t.k, t.v, t.softmax_scale, seen_by(t), numerics,
        generic=generic,
        softcap=scoring.softcap,
        offset=offsets(scoring, t.visibility, shape, t.q.device),
        alibi=alibi_offsets(scoring, t.visibility, shape, t.q.device),
        sink_logits=scoring.sink_logits,
    )  # fmt: skip


def empty_rows(budget: Budget) -> Tensor:
    """Rows [B, Hq, Tq] that see no key."""
    return torch.isneginf(budget.lse)


def judge(subject: Subject, case: AttendCase, answer: Attended) -> None:
    """Both outputs lie within their budgets, or a failure says where not.

    Rows that see no key are left to the law about them: one fault there is one failing law.
    """
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    judge_out(subject, answer.out, budget, generic=case.generic)
    if answer.lse is not None and subject.has("lse"):
        judge_lse(subject, answer.lse, budget)


def judge_out(subject: Subject, out: Tensor, budget: Budget, *, generic: bool) -> None:
    """The output lies within its budget and, on generic inputs, its errors are random in size."""
    rows = ~empty_rows(budget)[..., None].expand_as(out)
    got = out.double()
    compare(subject, "out", got, budget.out, budget.out_allowed, rows)
    if generic and int(rows.sum()) >= Z_RMS_ELEMENTS:
        z = float(budget.z_rms(got))
        subject.z_rms = max(subject.z_rms, z)
        if z > Z_RMS_LIMIT:
            raise Imprecise(
                f"out: the errors are {z:.2f} times as large on average as the declared numerics "
                f"allow (limit {Z_RMS_LIMIT}). {recognised(z, subject.numerics)}",
                ratio=z,
                measure="z_rms",
            )


def judge_lse(subject: Subject, lse: Tensor, budget: Budget) -> None:
    """The log-sum-exp, in the declared base, lies within its budget."""
    base = subject.conventions.lse_base
    expected = lse_in_base(budget.lse, math.e if base == "e" else 2.0)
    allowed = lse_allowed_in_base(budget, base)
    compare(subject, "lse", lse.double(), expected, allowed, ~empty_rows(budget))


def judge_empty(subject: Subject, answer: Attended, budget: Budget) -> None:
    """Rows that see no key hold what the declared conventions say."""
    empty = empty_rows(budget)
    out, lse = answer.out.double(), answer.lse
    policy = subject.conventions.empty_row
    if policy != "undefined":
        _exactly(
            out, "out", empty[..., None].expand_as(out), 0.0 if policy == "zeros" else math.nan
        )
    lse_policy = subject.conventions.empty_lse
    if lse_policy != "undefined" and lse is not None and subject.has("lse"):
        _exactly(lse.double(), "lse", empty, float(lse_policy))


def _exactly(got: Tensor, name: str, where: Tensor, wanted: float) -> None:
    wrong = where & (~got.isnan() if math.isnan(wanted) else got != wanted)
    if bool(wrong.any()):
        kind = (
            NonFinite if math.isfinite(wanted) and not got[wrong].isfinite().any() else WrongValue
        )
        expected, allowed = torch.full_like(got, wanted), torch.zeros_like(got)
        what = "of a row that sees no key"
        _raise_at(kind, name, got, expected, allowed, wrong, math.inf, what)


def compare(
    subject: Subject, name: str, got: Tensor, expected: Tensor, allowed: Tensor, where: Tensor
) -> None:
    """Elements of *got* under *where* lie within *allowed* of *expected*."""
    if not bool(where.any()):
        return
    bad = where & ~got.isfinite()
    if bool(bad.any()):
        _raise_at(NonFinite, name, got, expected, allowed, bad, math.inf)
    error = (got - expected).abs()
    ratio = torch.where(where, error / allowed, 0.0)
    # 0 / 0: an exact value that allows no error and has none.
    ratio = torch.where(where & (error == 0), 0.0, ratio)
    worst = float(ratio.max())
    if math.isnan(worst):
        raise ArithmeticError(f"{name}: a budget is no number where the kernel's output is one")
    subject.observe(worst)
    if worst > 1:
        kind: type[Failure] = WrongValue if worst > GROSS else Imprecise
        _raise_at(kind, name, got, expected, allowed, ratio > 1, worst, at=int(ratio.argmax()))


def _raise_at(
    kind: type[Failure],
    name: str,
    got: Tensor,
    expected: Tensor,
    allowed: Tensor,
    wrong: Tensor,
    ratio: float,
    what: str = "",
    at: int | None = None,
) -> None:
    flat = int(wrong.flatten().nonzero()[0]) if at is None else at
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape))
    place = Place(
        name, index, float(got[index]), float(expected[index]), float(allowed[index]),
        int(wrong.sum()), wrong.numel(),
    )  # fmt: skip
    if kind is NonFinite:
        message = (
            f"{name} is {place.got} {what}".strip() + f" where {place.expected:.7g} is right."
        )
    elif math.isinf(ratio):
        message = f"{name} {what} is {place.got:.7g}; expected {place.expected:.7g}, exactly."
    else:
        times = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
        message = f"{name} differs from the float64 oracle by {times}x the allowed error."
    raise kind(message, ratio=ratio, place=place)


def difference(a: Tensor, b: Tensor) -> str:
    """Where two tensors that should agree bit for bit first differ, in words."""
    differs = bits(a) != bits(b)
    index = tuple(int(i) for i in differs.nonzero()[0])
    return (
        f"{int(differs.sum())} of {a.numel()} elements, the first at {list(index)}: "
        f"{float(a[index]):.9g} and {float(b[index]):.9g}"
    )
