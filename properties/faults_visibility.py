"""Fault models of visibility: a key too many, a key too few, the wrong corner, mask or length."""

import torch
from torch import Tensor

from kernelassay.properties.fault_answers import attend, sees
from kernelassay.properties.fault_setting import (
    Fault,
    Setting,
    Variants,
    gaps,
    penalty,
    scored,
    table,
)

FAULTS: list[Fault] = []
fault = table(FAULTS)


def with_distances(s: Setting, what: str, seen: Tensor, gap: Tensor) -> Variants:
    """The visible set *seen*, once with ALiBi as asked and once with distances of *gap*."""
    yield what, attend(s, seen=seen)
    scores = scored(s) if s.slopes is None else scored(s, alibi=penalty(s, gap))
    yield f"{what}, in ALiBi too".removeprefix(", "), attend(s, seen=seen, scores=scores)


@fault("tail tile dropped", "the last partial key tile is not visited")
def tail_tile(s: Setting) -> Variants:
    for tile in s.tiles:
        whole = s.below(s.lengths // tile * tile)
        yield f"tile {tile}", attend(s, seen=s.seen & whole)
        if s.vis.lengths is not None:
            yield (
                f"tile {tile}, of Tk",
                attend(s, seen=s.seen & (s.keys < s.shape[3] // tile * tile)),
            )
        if s.vis.causal != "none":
            ends = s.seen.long().mul(s.keys + 1).amax(-1, keepdim=True) if s.shape[3] else 0
            yield (
                f"tile {tile}, of each row",
                attend(s, seen=s.seen & (s.keys < ends // tile * tile)),
            )


@fault("causal corner swapped", "the causal corner is the other one")
def corner_swapped(s: Setting) -> Variants:
    other = {"bottom_right": "top_left", "top_left": "bottom_right"}.get(s.vis.causal)
    if other:
        what = f"{other} instead of {s.vis.causal}"
        yield from with_distances(s, what, sees(s, corner=other), gaps(s, other))
    if s.vis.causal == "positions":
        for corner in ("bottom_right", "top_left"):
            what = f"positions ignored, {corner}"
            yield from with_distances(s, what, sees(s, corner=corner), gaps(s, corner))


@fault("positions taken as slots", "key j is taken to be at position j, where it is stored")
def positions_as_slots(s: Setting) -> Variants:
    if s.vis.causal == "positions" and s.vis.q_positions is not None:
        gap = s.vis.q_positions[:, None, :, None] - s.keys
        yield from with_distances(s, "", sees(s, slots=True), gap)


@fault("causal ignored", "later keys are not masked")
def causal_ignored(s: Setting) -> Variants:
    if s.vis.causal != "none":
        yield "", attend(s, seen=sees(s, shift=1 << 40))


@fault("causal off by one", "the causal bound is off by one")
def causal_shifted(s: Setting) -> Variants:
    if s.vis.causal != "none":
        yield "one key more", attend(s, seen=sees(s, shift=1))
        yield "one key less", attend(s, seen=sees(s, shift=-1))


@fault("corner counted from Tk", "the bottom-right corner is placed by Tk, not by the length")
def corner_anchor(s: Setting) -> Variants:
    if s.vis.lengths is not None:
        full = torch.full_like(s.lengths, s.shape[3])
        yield from with_distances(s, "", sees(s, anchor=full), gaps(s, lengths=full))


@fault("lengths ignored", "keys beyond a request's length are visible")
def lengths_ignored(s: Setting) -> Variants:
    if s.vis.lengths is not None:
        full = torch.full_like(s.lengths, s.shape[3])
        yield "", attend(s, seen=sees(s, lengths=full, anchor=s.lengths))
        seen, gap = sees(s, lengths=full), gaps(s, lengths=full)
        yield from with_distances(s, "the corner as well", seen, gap)


@fault("length rounded up", "keys beyond a request's length are visible up to the end of the tile")
def length_rounded(s: Setting) -> Variants:
    if s.vis.lengths is not None:
        for tile in s.tiles:
            up = (-(-s.lengths // tile) * tile).clamp(max=s.shape[3])
            yield f"tile {tile}", attend(s, seen=sees(s, lengths=up, anchor=s.lengths))


@fault("length of request 0", "every request is given the length of request 0")
def first_length(s: Setting) -> Variants:
    if s.vis.lengths is not None:
        first = s.lengths[:1].expand_as(s.lengths)
        yield from with_distances(s, "", sees(s, lengths=first), gaps(s, lengths=first))


@fault("length off by one", "the length is off by one")
def length_shifted(s: Setting) -> Variants:
    if s.vis.lengths is not None:
        for by in (1, -1):
            moved = (s.lengths + by).clamp(0, s.shape[3])
            yield f"{by:+d}", attend(s, seen=sees(s, lengths=moved, anchor=s.lengths))


@fault("mask ignored", "the boolean mask is not applied")
def mask_ignored(s: Setting) -> Variants:
    if s.vis.mask is not None:
        yield "", attend(s, seen=sees(s, mask=torch.ones_like(s.vis.mask)))


@fault("mask inverted", "the boolean mask is applied with the opposite polarity")
def mask_inverted(s: Setting) -> Variants:
    if s.vis.mask is not None:
        yield "", attend(s, seen=sees(s, mask=~s.vis.mask))


@fault("mask broadcast", "the boolean mask of the first index of an axis is used for all")
def mask_broadcast(s: Setting) -> Variants:
    for axis, name in enumerate(("request", "head", "query")):
        if s.vis.mask is not None and s.vis.mask.shape[axis] > 1:
            yield f"{name} 0", attend(s, seen=sees(s, mask=s.vis.mask.narrow(axis, 0, 1)))


@fault("window ignored", "the window is not applied")
def window_ignored(s: Setting) -> Variants:
    if s.vis.window != (None, None):
        yield "", attend(s, seen=sees(s, window=(None, None)))


@fault("window off by one", "the window is one key too wide or too narrow")
def window_shifted(s: Setting) -> Variants:
    left, right = s.vis.window
    for by in (1, -1):
        if left is not None:
            yield f"left {by:+d}", attend(s, seen=sees(s, window=(left + by, right)))
        if right is not None:
            yield f"right {by:+d}", attend(s, seen=sees(s, window=(left, right + by)))


@fault("sinks ignored", "sink tokens outside the window are not visible")
def sinks_ignored(s: Setting) -> Variants:
    if s.vis.sinks:
        yield "", attend(s, seen=sees(s, sinks=0))


@fault("last key dropped", "the last key is not visited")
def last_key(s: Setting) -> Variants:
    yield "", attend(s, seen=s.seen & s.below(s.lengths - 1))


@fault("first key dropped", "the first key is not visited")
def first_key(s: Setting) -> Variants:
    yield "", attend(s, seen=s.seen & (s.keys > 0))
