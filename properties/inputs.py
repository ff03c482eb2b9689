"""From a case to a call: logical tensors, their place in memory, and the visibility."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendCall, MergeCall, Scoring, Visibility
from kernelassay.oracle.merging import Tree
from kernelassay.oracle.scoring import PLAIN
from kernelassay.properties.case import AttendCase
from kernelassay.properties.content import content
from kernelassay.properties.content_terms import (
    alibi_content,
    bias_content,
    mask_content,
    position_content,
    sink_content,
)
from kernelassay.properties.memory import Placed, place, placed_small

TERMS = ("alibi", "bias", "sink_logits")


@dataclass(frozen=True)
class Plan:
    """How keys are kept and divided, which changes no logical value: fields as of a case.

    *fill*: what is held by the outputs of parts that saw no key, and by slots of pages that are
    nobody's. None: 1000, in pages NaN where the conventions allow it.
    """

    page: int | None = None
    pages: str = "shuffled:0"
    splits: int | None = None
    cuts: tuple[int, ...] | None = None
    tree: str = "flat"
    order: int = 0
    fill: float | None = None


@dataclass(frozen=True, eq=False)
class Logical:
    """The tensors of a case by logical coordinates, rounded to the dtype, on the device."""

    q: Tensor  # [B, Hq, Tq, D]
    k: Tensor  # [B, Hkv, Tk, D]
    v: Tensor  # [B, Hkv, Tk, Dv]
    scale: float | None
    visibility: Visibility
    scoring: Scoring = PLAIN
    plan: Plan = Plan()

    @property
    def softmax_scale(self) -> float:
        """The scale as a number; 1/sqrt(D) by default."""
        return float(self.q.shape[-1]) ** -0.5 if self.scale is None else self.scale


@dataclass(frozen=True, eq=False)
class Inputs:
    """A call ready for a kernel, and every input's storage for the check afterwards."""

    call: AttendCall | MergeCall
    placed: tuple[Placed, ...]
    tree: Tree | None = None  # along which the parts of a merge are merged
    layout: str = "BHTD"  # how those lie

    def mutated(self) -> list[str]:
        """Names of the inputs, guards included, that are no longer what they were."""
        return [p.name for p in self.placed if not p.intact()]


def layout_of(q: Tensor, layouts: tuple[str, ...]) -> str:
    """The layout of a call, another one for another shape: all that are declared have their turn.

    *q* [B, Hq, Tq, D], the queries.
    """
    return layouts[sum(q.shape) % len(layouts)]


def visibility_of(case: AttendCase, device: str = "cpu") -> Visibility:
    """The visibility that a case describes, masks with True for keep."""
    q_positions = k_positions = None
    if case.positions is not None:
        q_positions, k_positions = position_content(case.positions, case)
    return Visibility(
        causal=case.causal,  # type: ignore[arg-type]
        window=case.window,
        sinks=case.sinks,
        lengths=None if case.lengths is None else torch.tensor(case.lengths, device=device),
        q_positions=None if q_positions is None else q_positions.to(device),
        k_positions=None if k_positions is None else k_positions.to(device),
        mask=None if case.mask is None else mask_content(case.mask, case).to(device),
    )


def scoring_of(case: AttendCase, dtype: str, device: str = "cpu") -> Scoring:
    """What a case does to its scores; numbers are rounded to *dtype*."""
    made = {
        "alibi": None if case.alibi is None else alibi_content(case.alibi, case, dtype),
        "sink_logits": (
            None if case.sink_logits is None else sink_content(case.sink_logits, case, dtype)
        ),
        "bias": None if case.bias is None else bias_content(case.bias, case, dtype),
    }
    placed = {n: None if x is None else x.to(device) for n, x in made.items()}
    return Scoring(softcap=case.softcap, **placed)


def logical(case: AttendCase, dtype: str, device: str = "cpu") -> Logical:
    """The tensors of *case*. An expanded view repeats request 0."""
    queries = (case.B, case.Hq, case.Tq, case.D)
    keys = (case.B, case.Hkv, case.Tk, case.D)
    values = (*keys[:3], case.value_size)
    made = [
        content(recipe, shape, case, dtype)
        for recipe, shape in ((case.q, queries), (case.k, keys), (case.v, values))
    ]
    if case.view == "expanded":
        made = [x[:1].expand_as(x) for x in made]
    q, k, v = (x.to(device) for x in made)
    scoring = scoring_of(case, dtype, device)
    return Logical(q, k, v, case.scale, visibility_of(case, device), scoring, plan_of(case))


def plan_of(case: AttendCase) -> Plan:
    """How a case's keys are kept and divided."""
    return Plan(case.page, case.pages, case.splits, case.cuts, case.tree, case.order)


def inputs(
    tensors: Logical, *, layout: str, view: str, device: str, mask_polarity: str = "keep"
) -> Inputs:
    """The call of *tensors*, laid out as the kernel wants it, guard zones around each input."""
    vis, scoring = tensors.visibility, tensors.scoring
    placed = [
        place(name, x, layout, view, device)
        for name, x in (("q", tensors.q), ("k", tensors.k), ("v", tensors.v))
    ]
    around = beside(vis, scoring, device, mask_polarity)
    call = AttendCall(
        q=placed[0].view,
        k=placed[1].view,
        v=placed[2].view,
        scale=tensors.scale,
        splits=tensors.plan.splits,
        **seen_by_kernel(vis, scoring, around),
    )
    return Inputs(call, (*placed, *around.values()))


def beside(
    vis: Visibility, scoring: Scoring, device: str, mask_polarity: str
) -> dict[str, Placed]:
    """What is given beside q, k and v, by name, on the kernel's device."""
    mask = vis.mask if vis.mask is None or mask_polarity == "keep" else ~vis.mask
    given: Mapping[str, Tensor | None] = {
        "lengths": vis.lengths,
        "q_positions": vis.q_positions,
        "k_positions": vis.k_positions,
        "mask": mask,
        **{n: getattr(scoring, n) for n in TERMS},
    }
    return {n: placed_small(n, x, device) for n, x in given.items() if x is not None}


def seen_by_kernel(
    vis: Visibility, scoring: Scoring, around: Mapping[str, Placed]
) -> dict[str, Any]:
    """Visibility and scoring with the tensors that the kernel gets."""
    terms = {n: p.view for n, p in around.items() if n in TERMS}
    others: dict[str, Any] = {n: p.view for n, p in around.items() if n not in TERMS}
    changed: dict[str, Any] = terms
    return {"visibility": replace(vis, **others), "scoring": replace(scoring, **changed)}
