"""What fault models compute with: a call in float64, and its scores with a twist."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernelassay.impls.contract import Visibility
from kernelassay.oracle.scoring import capped
from kernelassay.properties.inputs import Logical
from kernelassay.properties.judge import seen_by, shape_of


@dataclass(frozen=True, eq=False)
class Answer:
    """What a kernel with a fault would answer: float64, LSE in natural logarithms.

    Where lse is -inf the model says that no key is seen; a kernel then answers 0 or NaN.
    """

    out: Tensor  # [B, Hq, Tq, Dv]
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
        return shape_of(self.tensors)

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
        """Values of each query head, [B, Hq, Tk, Dv]."""
        return self.tensors.v.double()[:, self.kv_heads]

    @cached_property
    def scores(self) -> Tensor:
        """scale q.k, capped, with ALiBi and bias: [B, Hq, Tq, Tk], invisible ones included."""
        return scored(self)

    @property
    def cap(self) -> float | None:
        """The soft cap."""
        return self.tensors.scoring.softcap

    @cached_property
    def bias(self) -> Tensor | None:
        """The additive bias, [B, Hq, Tq, Tk], -inf where it hides."""
        bias = self.tensors.scoring.bias
        return None if bias is None else bias.double().expand(self.shape)

    @cached_property
    def unhidden(self) -> Tensor:
        """Where no bias of -inf hides the key, broadcastable to [B, Hq, Tq, Tk]."""
        return (
            torch.ones_like(self.keys, dtype=torch.bool) if self.bias is None else kept(self.bias)
        )

    @property
    def slopes(self) -> Tensor | None:
        """ALiBi slopes, [Hq]."""
        slopes = self.tensors.scoring.alibi
        return None if slopes is None else slopes.double()

    @cached_property
    def sink(self) -> Tensor:
        """The sink logit of each head, [Hq, 1]; -inf where there is none."""
        logits = self.tensors.scoring.sink_logits
        none = torch.full((self.shape[1],), -math.inf, device=self.tensors.q.device)
        return (none if logits is None else logits).double()[:, None]

    @property
    def has_sink(self) -> bool:
        """Whether some head has a sink."""
        return bool((self.sink > -math.inf).any())

    @cached_property
    def scaled(self) -> Tensor:
        """scale q.k, [B, Hq, Tq, Tk]."""
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

    @property
    def key_positions(self) -> Tensor:
        """The position of each key, [B or 1, 1, 1, Tk]."""
        return positions(self, self.vis.causal, self.lengths)[1][:, None, None, :]

    def below(self, limit: Tensor) -> Tensor:
        """Keys j < limit[b], [B, 1, 1, Tk]."""
        return self.keys < limit.view(-1, 1, 1, 1)


def kept(bias: Tensor) -> Tensor:
    """Where a bias does not hide the key."""
    return ~torch.isneginf(bias)


def scored(
    s: Setting,
    scaled: Tensor | None = None,
    *,
    cap: Tensor | None = None,
    alibi: Tensor | float | None = None,
    bias: Tensor | float | None = None,
) -> Tensor:
    """Scores of *s* with another scale q.k, other capped scores, ALiBi term or bias.

    Finite throughout: a bias of -inf counts as 0, what it hides is for the visible set to say.
    """
    z = capped(s.scaled if scaled is None else scaled, s.cap) if cap is None else cap
    if alibi is None:
        alibi = 0.0 if s.slopes is None else penalty(s, gaps(s))
    if bias is None:
        bias = 0.0 if s.bias is None else s.bias
    if isinstance(bias, Tensor):
        bias = torch.where(kept(bias), bias, 0.0)
    return z + alibi + bias


def penalty(s: Setting, gap: Tensor) -> Tensor:
    """What ALiBi adds where query and key are a *gap* apart: -slope |gap|."""
    assert s.slopes is not None
    return -s.slopes[:, None, None] * gap.abs()


def gaps(s: Setting, corner: str | None = None, lengths: Tensor | None = None) -> Tensor:
    """position(i) - position(j) [B or 1, 1, Tq, Tk], from another corner or other lengths."""
    at, key_at = positions(s, corner or s.vis.causal, s.lengths if lengths is None else lengths)
    return at[:, None, :, None] - key_at[:, None, None, :]


def positions(s: Setting, corner: str, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of queries [B or 1, Tq] and of keys [B or 1, Tk] under a causal *corner*."""
    Tq = s.shape[2]
    row = torch.arange(Tq, device=s.keys.device)[None]
    if corner == "positions" and s.vis.q_positions is not None and s.vis.k_positions is not None:
        return s.vis.q_positions, s.vis.k_positions
    if corner == "top_left":
        return row, s.keys[None]
    return row + (lengths - Tq)[:, None], s.keys[None]


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
