"""From a case to a call: logical tensors, their place in memory, and the visibility."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendCall, Visibility
from kernelassay.properties.case import AttendCase
from kernelassay.properties.content import content, mask_content, position_content
from kernelassay.properties.memory import Placed, place, placed_integers


@dataclass(frozen=True, eq=False)
class Logical:
    """The tensors of a case by logical coordinates, rounded to the dtype, on the device."""

    q: Tensor  # [B, Hq, Tq, D]
    k: Tensor  # [B, Hkv, Tk, D]
    v: Tensor  # [B, Hkv, Tk, D]
    scale: float | None
    visibility: Visibility

    @property
    def softmax_scale(self) -> float:
        """The scale as a number; 1/sqrt(D) by default."""
        return float(self.q.shape[-1]) ** -0.5 if self.scale is None else self.scale


@dataclass(frozen=True, eq=False)
class Inputs:
    """A call ready for a kernel, and every input's storage for the check afterwards."""

    call: AttendCall
    placed: tuple[Placed, ...]

    def mutated(self) -> list[str]:
        """Names of the inputs, guards included, that are no longer what they were."""
        return [p.name for p in self.placed if not p.intact()]


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


def logical(case: AttendCase, dtype: str, device: str = "cpu") -> Logical:
    """The tensors of *case*. An expanded view repeats request 0."""
    queries = (case.B, case.Hq, case.Tq, case.D)
    keys = (case.B, case.Hkv, case.Tk, case.D)
    made = [
        content(recipe, shape, case, dtype)
        for recipe, shape in ((case.q, queries), (case.k, keys), (case.v, keys))
    ]
    if case.view == "expanded":
        made = [x[:1].expand_as(x) for x in made]
    q, k, v = (x.to(device) for x in made)
    return Logical(q, k, v, case.scale, visibility_of(case, device))


def inputs(
    tensors: Logical, *, layout: str, view: str, device: str, mask_polarity: str = "keep"
) -> Inputs:
    """The call of *tensors*, laid out as the kernel wants it, guard zones around each input."""
    vis = tensors.visibility
    placed = [
        place(name, x, layout, view, device)
        for name, x in (("q", tensors.q), ("k", tensors.k), ("v", tensors.v))
    ]
    small: Mapping[str, Tensor | None] = {
        "lengths": vis.lengths,
        "q_positions": vis.q_positions,
        "k_positions": vis.k_positions,
        "mask": vis.mask if vis.mask is None or mask_polarity == "keep" else ~vis.mask,
    }
    held = {n: placed_integers(n, x, device) for n, x in small.items() if x is not None}
    seen: dict[str, Any] = {n: p.view for n, p in held.items()}
    call = AttendCall(
        q=placed[0].view,
        k=placed[1].view,
        v=placed[2].view,
        scale=tensors.scale,
        visibility=replace(vis, **seen),
    )
    return Inputs(call, (*placed, *held.values()))
