"""Parts of the keys: what a kernel that merges partial results is given, and what it may be off.

The keys of a case are cut at *cuts* into consecutive parts, some of them empty; the true partial
results of the parts, rounded to the dtypes that the kernel takes, are its input. They are merged
along the case's *tree*: "flat", all in one call; "left" and "right", one after the other; or
"balanced", pairs of pairs. *order* says in which order they come: 0 as they are, 1 from the last
to the first, others shuffled.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from kernelassay.impls.contract import Capabilities, MergeCall, Numerics, Scoring, Visibility
from kernelassay.oracle.attention import attention
from kernelassay.oracle.budget import Budget
from kernelassay.oracle.budget_merge import merged_along, rounded_part
from kernelassay.oracle.formats import format_of
from kernelassay.oracle.merging import Tree
from kernelassay.oracle.scoring import offsets
from kernelassay.oracle.visibility import visible
from kernelassay.properties.inputs import Inputs, Logical, Plan, layout_of
from kernelassay.properties.memory import Placed, placed_view

LN2 = math.log(2.0)
AXES = {"BHTD": (0, 1, 2, 3, 4), "BTHD": (0, 1, 3, 2, 4), "BTNHD": (1, 3, 0, 2, 4)}
"""Logical axes [n, B, H, T, D] in the order in which they lie in memory."""


def spans(plan: Plan, Tk: int) -> list[range]:
    """The parts as runs of keys, in the order in which they are merged."""
    edges = [0, *sorted(min(c, Tk) for c in plan.cuts or ()), Tk]
    parts = [range(a, b) for a, b in pairwise(edges)]
    if plan.order == 0:
        return parts
    if plan.order == 1:
        return parts[::-1]
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(plan.order))
    return [parts[int(i)] for i in order]


def tree_of(plan: Plan) -> Tree:
    """The tree along which the parts, numbered in their order, are merged."""
    leaves = list(range(len(plan.cuts or ()) + 1))
    if plan.tree == "flat" or len(leaves) == 1:
        return tuple(leaves)
    if plan.tree == "balanced":
        return _balanced(leaves)
    made: Tree = leaves[0] if plan.tree == "left" else leaves[-1]
    for leaf in leaves[1:] if plan.tree == "left" else leaves[-2::-1]:
        made = (made, leaf) if plan.tree == "left" else (leaf, made)
    return made


def _balanced(leaves: list[int]) -> Tree:
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return (_balanced(leaves[:half]), _balanced(leaves[half:]))


def part_of(tensors: Logical, keys: range, *, sink: bool) -> Logical:
    """The call about a run of keys alone: what is visible is a mask, what is added a bias."""
    vis, scoring = tensors.visibility, tensors.scoring
    B, Hq, Tq, _ = tensors.q.shape
    shape, place = (B, Hq, Tq, tensors.k.shape[2]), tensors.q.device
    run = slice(keys.start, keys.stop)
    seen = visible(vis, shape, device=place).expand(shape)[..., run]
    added = offsets(scoring, vis, shape, place)
    return replace(
        tensors,
        k=tensors.k[:, :, run],
        v=tensors.v[:, :, run],
        visibility=Visibility(mask=seen),
        scoring=Scoring(
            softcap=scoring.softcap,
            bias=None if added is None else added.expand(shape)[..., run],
            sink_logits=scoring.sink_logits if sink else None,
        ),
    )


def true_parts(tensors: Logical) -> list[tuple[Tensor, Tensor]]:
    """out [B, H, T, Dv] and lse [B, H, T] of each part in float64, natural logarithms."""
    runs = spans(tensors.plan, tensors.k.shape[2])
    first = min(range(len(runs)), key=lambda n: (runs[n].start, runs[n].stop))
    parts = [part_of(tensors, keys, sink=n == first) for n, keys in enumerate(runs)]
    return [attention(t.q, t.k, t.v, t.softmax_scale, t.visibility, t.scoring) for t in parts]


def merge_budget(tensors: Logical, numerics: Numerics) -> Budget:
    """The truth about the whole, and what rounding the parts and merging them may be off."""
    given = true_parts(tensors)
    held = denominator(tensors) if numerics.states else 1.0
    parts = [rounded_part(*part, numerics, sums=held) for part in given]
    whole = merged_along(tree_of(tensors.plan), parts, numerics, sums=held * len(parts))
    return Budget(whole.out, whole.lse, whole.out_allowed, whole.lse_allowed, whole.out_allowed)


def denominator(tensors: Logical) -> float:
    """l of each part that is given as a state: about half as many keys as it has.

    How much of a state is in l and how much in e^m does not matter, within 1 and their number.
    """
    return 1.0 + tensors.k.shape[2] // (2 * (len(tensors.plan.cuts or ()) + 1))


def merge_inputs(
    tensors: Logical, capabilities: Capabilities, numerics: Numerics, device: str
) -> Inputs:
    """A call with all parts of *tensors* side by side, guard zones around each input."""
    parts = true_parts(tensors)
    out, lse = (torch.stack(x) for x in zip(*parts, strict=True))
    to, kept = format_of(numerics.out).dtype, format_of(numerics.lse).dtype
    empty = lse == -math.inf
    fill = 1000.0 if tensors.plan.fill is None else tensors.plan.fill
    out = torch.where(empty[..., None], fill, out)
    made: dict[str, Tensor] = {}
    if capabilities.state == "mlu":
        sums = torch.where(empty, 0.0, denominator(tensors)).double()
        made["sums"] = sums.to(kept)
        lse = torch.where(empty, lse, lse - torch.where(empty, 1.0, sums).log())
        out = torch.where(empty[..., None], out, out * sums[..., None])
    elif capabilities.conventions.lse_base == "2":
        lse = lse / LN2
    made |= {"outs": out.to(to), "lses": lse.to(kept)}
    layout = layout_of(tensors.q, capabilities.layouts)
    placed = {n: place_parts(n, x, layout, device) for n, x in made.items()}
    call = MergeCall(**{name: p.view for name, p in placed.items()})
    return Inputs(call, tuple(placed.values()), tree_of(tensors.plan), layout)


def place_parts(name: str, x: Tensor, layout: str, device: str) -> Placed:
    """*x* [n, B, H, T] or [n, B, H, T, D] in the layout of a merge, between guards."""
    axes = [a for a in AXES[layout] if a < x.ndim]
    physical = x.permute(axes)
    back = [axes.index(a) for a in range(x.ndim)]
    return placed_view(name, physical, device, back)


def stacked(parts: Sequence[tuple[Tensor, ...]], layout: str) -> MergeCall:
    """A call of results that a kernel gave before: (out, lse) or (u, m, l) of each part."""

    def side_by_side(some: tuple[Tensor, ...]) -> Tensor:
        x = torch.stack(some)
        axes = [a for a in AXES[layout] if a < x.ndim]
        return x.permute(axes).contiguous().permute([axes.index(a) for a in range(x.ndim)])

    outs, lses, *sums = (side_by_side(some) for some in zip(*parts, strict=True))
    return MergeCall(outs=outs, lses=lses, sums=sums[0] if sums else None)


def parts_of_call(call: MergeCall) -> list[tuple[Tensor, ...]]:
    """Each part of *call*, as `stacked` takes them."""
    given = [x for x in (call.outs, call.lses, call.sums) if x is not None]
    return [tuple(x[i] for x in given) for i in range(call.outs.shape[0])]


def finished(state: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """out and lse of an answer (u, m, l), in float64 and then rounded."""
    u, m, total = (x.double() for x in state)
    some = total != 0
    safe = torch.where(some, total, 1.0)
    out = torch.where(some[..., None], u / safe[..., None], torch.where(u.isnan(), u, 0.0))
    return out.to(dtype), torch.where(some, m + safe.log(), m).to(state[1].dtype)
