"""What fault models compute with: float64 tensors, a softmax, visibility with a twist."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernelassay.impls.contract import Visibility
from kernelassay.properties.inputs import Logical
from kernelassay.properties.judge import seen_by


@dataclass(frozen=True, eq=False)
class Answer:
    """What a kernel with a fault would answer: float64, LSE in natural logarithms.

    Where lse is -inf the model says that no key is seen; a kernel then answers 0 or NaN.
    """

    out: Tensor  # [B, Hq, Tq, D]
    lse: Tensor | None  # [B, Hq, Tq]; None: the model says nothing of it


Variants = Iterator[tuple[str, Answer]]


@dataclass(frozen=True)
class Fault:
    """One fault: its name, what it means, and (detail, answer) of each variant for a call."""

    name: str
    sentence: str
    variants: "Callable[[Setting], Variants]"


@dataclass(frozen=True, eq=False)
class Setting:
    """A call by logical coordinates, and the tiles that its kernel declares."""

    tensors: Logical
    tiles: tuple[int, ...]
    view: str = "contiguous"
    layout: str = "BHTD"

    @property
    def vis(self) -> Visibility:
        """Who sees what, as it was asked for."""
        return self.tensors.visibility

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, Hq, Tq, Tk)."""
        B, Hq, Tq, _ = self.tensors.q.shape
        return B, Hq, Tq, self.tensors.k.shape[2]

    @property
    def scale(self) -> float:
        """The softmax scale, as it was asked for."""
        return self.tensors.softmax_scale

    @cached_property
    def seen(self) -> Tensor:
        """The visible set, [B, Hq, Tq, Tk]."""
        return seen_by(self.tensors).expand(self.shape)

    @cached_property
    def kv_heads(self) -> Tensor:
        """The KV head of each query head: h // (Hq / Hkv)."""
        Hq, Hkv = self.shape[1], self.tensors.k.shape[1]
        return torch.arange(Hq, device=self.tensors.k.device) // (Hq // Hkv)

    @cached_property
    def k(self) -> Tensor:
        """Keys of each query head, [B, Hq, Tk, D]."""
        return self.tensors.k.double()[:, self.kv_heads]

    @cached_property
    def v(self) -> Tensor:
        """Values of each query head, [B, Hq, Tk, D]."""
        return self.tensors.v.double()[:, self.kv_heads]

    @cached_property
    def scores(self) -> Tensor:
        """scale q.k, [B, Hq, Tq, Tk], invisible ones included."""
        return self.scale * self.dots

    @cached_property
    def dots(self) -> Tensor:
        """q.k, [B, Hq, Tq, Tk]."""
        return self.tensors.q.double() @ self.k.transpose(-1, -2)

    @cached_property
    def lengths(self) -> Tensor:
        """Used keys of each request, [B]."""
        B, Tk = self.shape[0], self.shape[3]
        if self.vis.lengths is not None:
            return self.vis.lengths
        return torch.full((B,), Tk, device=self.tensors.q.device)

    @cached_property
    def keys(self) -> Tensor:
        """0..Tk-1."""
        return torch.arange(self.shape[3], device=self.tensors.q.device)

    def below(self, limit: Tensor) -> Tensor:
        """Keys j < limit[b], [B, 1, 1, Tk]."""
        return self.keys < limit.view(-1, 1, 1, 1)


def attend(
    s: Setting,
    *,
    seen: Tensor | None = None,
    scores: Tensor | None = None,
    v: Tensor | None = None,
) -> Answer:
    """Attention of *s* with another visible set, other scores or other values."""
    seen, scores, v = (
        mine if given is None else given
        for mine, given in ((s.seen, seen), (s.scores, scores), (s.v, v))
    )
    z = torch.where(seen, scores, -math.inf)
    if not z.shape[-1]:
        return Answer(z.new_zeros(*z.shape[:3], v.shape[-1]), z.new_full(z.shape[:3], -math.inf))
    p = torch.where(seen, torch.softmax(z, -1), 0.0)
    return Answer(p @ v, torch.logsumexp(z, -1))


def positions(s: Setting, corner: str, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of queries [B or 1, Tq] and of keys [B or 1, Tk] under a causal *corner*."""
    Tq = s.shape[2]
    row = torch.arange(Tq, device=s.keys.device)[None]
    if corner == "positions" and s.vis.q_positions is not None and s.vis.k_positions is not None:
        return s.vis.q_positions, s.vis.k_positions
    if corner == "top_left":
        return row, s.keys[None]
    return row + (lengths - Tq)[:, None], s.keys[None]


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
) -> Tensor:
    """The visible set [B, Hq, Tq, Tk] with something else in place of what was asked for.

    *shift* moves the causal bound; *anchor* holds the lengths that place the bottom-right corner;
    *mask* replaces the boolean mask.
    """
    used = s.lengths if lengths is None else lengths
    corner = corner or s.vis.causal
    at, key_at = positions(s, corner, used if anchor is None else anchor)
    at, key_at = at[:, None, :, None], key_at[:, None, None, :]
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
    return keep.expand(s.shape)


def streamed(
    s: Setting,
    tile: int,
    *,
    rescale_u: bool = True,
    rescale_l: bool = True,
    last_sum: bool = False,
) -> Answer:
    """The softmax on line over key tiles, with a rescale left out or only the last tile's sum."""
    m = s.scores.new_full(s.shape[:3], -math.inf)
    l, u = torch.zeros_like(m), torch.zeros(*m.shape, s.v.shape[-1], device=m.device).double()  # noqa: E741
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
    return Answer(u / torch.where(l == 0, 1.0, l)[..., None], m + l.log())


def tiles_of(s: Setting, tile: int) -> Iterator[slice]:
    """Slices of *tile* keys."""
    return (slice(start, start + tile) for start in range(0, s.shape[3], tile))


def table(
    faults: list[Fault],
) -> Callable[[str, str], Callable[[Callable[[Setting], Variants]], Fault]]:
    """A decorator fault(name, sentence) that adds a function to *faults*."""

    def fault(name: str, sentence: str) -> Callable[[Callable[[Setting], Variants]], Fault]:
        def register(variants: Callable[[Setting], Variants]) -> Fault:
            faults.append(Fault(name, sentence, variants))
            return faults[-1]

        return register

    return fault
