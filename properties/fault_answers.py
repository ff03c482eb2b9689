"""Answers and visible sets with a twist: softmax, softmax on line, who sees whom."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from kernelassay.properties.fault_setting import Answer, Setting, positions


def attend(
    s: Setting,
    *,
    seen: Tensor | None = None,
    scores: Tensor | None = None,
    v: Tensor | None = None,
    sink: Tensor | None = None,
) -> Answer:
    """Attention of *s* with another visible set, other scores, values or sink logits."""
    seen, scores, v, sink = (
        mine if given is None else given
        for mine, given in ((s.seen, seen), (s.scores, scores), (s.v, v), (s.sink, sink))
    )
    z = torch.where(seen, scores, -math.inf)
    if not z.shape[-1]:
        lse = sink.expand(z.shape[:3])
        return Answer(z.new_zeros(*z.shape[:3], v.shape[-1]), lse)
    of_keys = torch.logsumexp(z, -1)
    lse = torch.logaddexp(of_keys, sink)
    share = torch.where(of_keys == lse, 1.0, torch.exp(of_keys - lse))
    p = torch.where(seen, torch.softmax(z, -1), 0.0)
    return Answer(p @ v * share[..., None], lse)


def sees(
    s: Setting,
    *,
    corner: str | None = None,
    shift: int = 0,
    window: tuple[int | None, int | None] | None = None,
    sinks: int | None = None,
    lengths: Tensor | None = None,
    anchor: Tensor | None = None,
    mask: Tensor | None = None,
    unhidden: Tensor | None = None,
    slots: bool = False,
) -> Tensor:
    """The visible set [B, Hq, Tq, Tk] with something else in place of what was asked for.

    *shift* moves the causal bound; *anchor* holds the lengths that place the bottom-right corner;
    *mask* replaces the boolean mask, *unhidden* what the bias leaves; with *slots* the position
    of key j is j.
    """
    used = s.lengths if lengths is None else lengths
    corner = corner or s.vis.causal
    at, key_at = positions(s, corner, used if anchor is None else anchor)
    at, key_at = at[:, None, :, None], s.keys if slots else key_at[:, None, None, :]
    left, right = s.vis.window if window is None else window
    keep = s.below(used) & torch.ones_like(at <= key_at)
    if corner != "none":
        keep = keep & (key_at <= at + shift)
    if left is not None:
        keep = keep & (
            (key_at >= at - left) | (s.keys < (s.vis.sinks if sinks is None else sinks))
        )
    if right is not None:
        keep = keep & (key_at <= at + right)
    mask = s.vis.mask if mask is None else mask
    if mask is not None:
        keep = keep & mask
    keep = keep & (s.unhidden if unhidden is None else unhidden)
    return keep.expand(s.shape)


def streamed(
    s: Setting,
    tile: int,
    *,
    rescale_u: bool = True,
    rescale_l: bool = True,
    last_sum: bool = False,
    sink_last: bool = False,
) -> Answer:
    """The softmax on line over key tiles, with a rescale left out or only the last tile's sum.

    A sink is there from the start, or comes last.
    """
    none = torch.full_like(s.sink, -math.inf)
    m = (none if sink_last else s.sink).expand(s.shape[:3])
    l = torch.isfinite(m).double()  # noqa: E741
    u = torch.zeros(*m.shape, s.v.shape[-1], device=m.device).double()
    for keys in tiles_of(s, tile):
        z = torch.where(s.seen, s.scores, -math.inf)[..., keys]
        m_new = torch.maximum(m, z.amax(-1))
        safe = torch.where(m_new == -math.inf, 0.0, m_new)
        factor = torch.exp(m - safe)
        e = torch.exp(z - safe[..., None])
        # A kernel that rescales nothing starts from 0, not from what the first factor makes of it.
        l = (l * (factor if rescale_l else 1.0) if not last_sum else 0.0) + e.sum(-1)  # noqa: E741
        u = u * (factor[..., None] if rescale_u else 1.0) + e @ s.v[..., keys, :]
        m = m_new
    if sink_last:
        l = l + torch.exp(s.sink - torch.where(m == -math.inf, 0.0, m))  # noqa: E741
    m = torch.where(m == -math.inf, 0.0, m)
    return Answer(u / torch.where(l == 0, 1.0, l)[..., None], m + l.log())


def tiles_of(s: Setting, tile: int) -> Iterator[slice]:
    """Slices of *tile* keys."""
    return (slice(start, start + tile) for start in range(0, s.shape[3], tile))
