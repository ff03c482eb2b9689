"""Rows of a case as tensors, and their place in memory as a kernel wants it.

The oracle is given the tensors that the kernel is given: rounded logits, fp32 parameters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import LawCall
from kernelassay.oracle.formats import format_of
from kernelassay.properties.logits.case import LawCase
from kernelassay.properties.memory import Placed, placed_small, placed_view
from kernelassay.properties.subject import Subject

LARGE = 3e4
"""A garbage logit that every dtype holds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Rows on the CPU, as a `LawCall` has them: logits and mask [R, V], the others [R]."""

    logits: Tensor
    temperature: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    mask: Tensor | None = None

    def some(self, rows: Sequence[int]) -> "Batch":
        """These rows, in this order; a row may come several times."""
        at = torch.tensor(rows)
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        taken: dict[str, Any] = {n: None if x is None else x[at] for n, x in given.items()}
        return Batch(**taken)


@dataclass(frozen=True, eq=False)
class Given:
    """A call, its inputs' place in memory, and the rows that it is made of."""

    call: LawCall
    batch: Batch
    placed: Mapping[str, Placed] = field(default_factory=dict)

    def mutated(self) -> list[str]:
        """The inputs that changed, guard zones included."""
        return [name for name, placed in self.placed.items() if not placed.intact()]


def batch_of(case: LawCase, dtype: str) -> Batch:
    """The rows of *case* in *dtype*, masked logits as `LawCase.hidden` says."""
    R, V, columns = case.height, case.vocabulary, list(case.columns)
    logits = _others(case).expand(R, V).clone()
    held = [[_logit(case, x) for x in row] for row in case.rows]
    logits[:, columns] = torch.tensor(held, dtype=torch.float64)
    for r, absent in enumerate(case.absent or ()):
        logits[r, [columns[x] for x in absent]] = -math.inf
    mask = None
    if case.mask is not None:
        mask = torch.ones(R, V, dtype=torch.bool)
        for r, removed in enumerate(case.mask):
            tokens = [columns[x] for x in removed]
            mask[r, tokens] = False
            for n, token in enumerate(tokens):
                logits[r, token] = _hidden(case.hidden, n, float(logits[r, token]))

    def floats(values: Sequence[float] | None) -> Tensor | None:
        return None if values is None else torch.tensor(values, dtype=torch.float32)

    return Batch(
        logits=logits.to(format_of(dtype).dtype),
        temperature=floats(case.temperature),
        top_k=None if case.top_k is None else torch.tensor(case.top_k, dtype=torch.int32),
        top_p=floats(case.top_p),
        min_p=floats(case.min_p),
        mask=mask,
    )


def _others(case: LawCase) -> Tensor:
    """The logits [V] of a row's tokens as if it had no columns, in float64."""
    others = torch.zeros(case.vocabulary, dtype=torch.float64)
    if case.fill is None:
        return others - math.inf
    lower = 7 * torch.arange(case.vocabulary) % (case.spread + 1)
    return others + _logit(case, case.fill) - lower * case.step


def _logit(case: LawCase, x: int) -> float:
    """The logit of a level or a mass, in float64."""
    if not case.masses:
        return x * case.step
    return math.log(x) if x else -math.inf


def _hidden(kind: str, n: int, own: float) -> float:
    """What the n-th masked logit of a row holds."""
    if kind == "own":
        return own
    if kind == "large":
        return -LARGE if n % 2 else LARGE
    return (math.nan, math.inf, -math.inf)[n % 3]


def lay_out(subject: Subject, batch: Batch) -> Given:
    """The call of *batch* as the kernel wants it: floats between guards of NaN, all watched."""
    placed: dict[str, Placed] = {}

    def put(name: str, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        if x.dtype.is_floating_point:
            placed[name] = placed_view(name, x, subject.home, [*range(x.ndim)])
        else:
            placed[name] = placed_small(name, x, subject.home)
        return placed[name].view

    mask = batch.mask
    if mask is not None and subject.conventions.mask_polarity == "drop":
        mask = ~mask
    logits = put("logits", batch.logits)
    assert logits is not None
    call = LawCall(
        logits=logits,
        temperature=put("temperature", batch.temperature),
        top_k=put("top_k", batch.top_k),
        top_p=put("top_p", batch.top_p),
        min_p=put("min_p", batch.min_p),
        mask=put("mask", mask),
    )
    return Given(call, batch, placed)
