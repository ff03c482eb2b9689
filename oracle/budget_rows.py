"""Attention of a block of rows in float64, with the weighted moments that budgets are made of."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelassay.oracle.formats import Format
from kernelassay.oracle.numerics import Numerics
from kernelassay.oracle.scoring import capped

EXPONENTS = 128 * math.log(2)
"""Above, exp(x) overflows in float32."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Changes:
    """What is done to the scores of a block of rows; None: nothing."""

    softcap: float | None = None
    offset: Tensor | None = None  # [..., R, n], finite where seen
    alibi: Tensor | None = None  # [..., R, n], the part of it that is slope times distance
    sink: Tensor | None = None  # [..., R, 1], -inf is none

    def at(self, index: tuple[slice, ...]) -> "Changes":
        """Those of a block [b, h, G, t, n] of tensors, as rows [b, h, G t, n]."""
        offset, alibi, sink = (
            None if x is None else x[index].flatten(2, 3)
            for x in (self.offset, self.alibi, self.sink)
        )
        return replace(self, offset=offset, alibi=alibi, sink=sink)


UNCHANGED = Changes()


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows of queries that share their keys. Shapes: R rows, n keys, any leading dimensions.

    What no row may see has weight 0 and score 0. Notation: x_j = scale q.k_j, capped
    t_j = cap tanh(x_j / cap), score s_j = t_j + offset_j, maximum m, e_j = exp(s_j - m),
    l = sum e_j, p_j = e_j / l, o = sum p_j v_j. A row that sees nothing has p = 0, l = 1, m = 0,
    o = 0. A sink is a last key of its own with x = t = 0, v = 0 and its logit as offset.
    """

    q: Tensor  # [..., R, D]
    k: Tensor  # [..., n, D]
    v: Tensor  # [..., n, Dv]
    moments: Tensor  # [..., n, 2 Dv], v^2 beside v
    scale: float
    seen: Tensor  # [..., R, n] bool
    x: Tensor  # [..., R, n]
    t: Tensor  # [..., R, n]
    softcap: float | None
    offset: Tensor | None  # [..., R, n], 0 where unseen
    alibi: Tensor | None  # [..., R, n], 0 where unseen
    sink: bool
    s: Tensor  # [..., R, n]
    m: Tensor  # [..., R, 1]
    top: Tensor  # [..., R, 1], see `_top`
    e: Tensor  # [..., R, n]
    l: Tensor  # noqa: E741 - the literature's name for the denominator; [..., R, 1]
    p: Tensor  # [..., R, n]
    out: Tensor  # [..., R, Dv]
    numerics: Numerics  # resolved
    inp: Format  # of q, k and v as the kernel gets them
    generic: bool

    @property
    def n(self) -> int:
        """How many keys there are, unseen ones and a sink included."""
        return self.k.shape[-2]

    @property
    def is_key(self) -> Tensor:
        """1 for a key, 0 for the sink; [n]."""
        mark = self.k.new_ones(self.n)
        if self.sink:
            mark[-1] = 0
        return mark

    @property
    def lse(self) -> Tensor:
        """log sum_j exp(s_j), -inf where a row sees nothing; [..., R, 1]."""
        return torch.where(self.seen.any(-1, keepdim=True), self.m + self.l.log(), -torch.inf)

    def spread2(self, a: Tensor) -> Tensor:
        """sum_j a_j (v_jc - o_c)^2, for weights a of shape [..., R, n]."""
        square, linear = (a @ self.moments).chunk(2, -1)
        total = a.sum(-1, keepdim=True)
        return (square - 2 * self.out * linear + self.out**2 * total).clamp_min(0)

    def spread1(self, a: Tensor) -> Tensor:
        """At least sum_j a_j |v_jc - o_c|, by Cauchy-Schwarz; within 25 % for Gaussian v.

        A sink may hold nearly all the weight: its share, a |o_c|, is taken apart.
        """
        rest: Tensor | float = 0.0
        if self.sink:
            a, rest = a * self.is_key, a[..., -1:] * self.out.abs()
        return (a.sum(-1, keepdim=True) * self.spread2(a)).sqrt() + rest


def rows_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    seen: Tensor,
    numerics: Numerics,
    inp: Format,
    *,
    generic: bool,
    changes: Changes = UNCHANGED,
) -> Rows:
    """The `Rows` of float64 q, k, v, whose content must be finite."""
    if changes.sink is not None:
        k, v, seen, changes = _with_sink(k, v, seen, changes)
    offset, alibi = (
        None if a is None else torch.where(seen, a, 0.0) for a in (changes.offset, changes.alibi)
    )
    x = torch.where(seen, scale * (q @ k.mT), 0.0)
    t = capped(x, changes.softcap)
    s = torch.where(seen, t if offset is None else t + offset, -torch.inf)
    filled = seen.any(-1, keepdim=True)
    m = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_zeros(filled.shape)
    m = torch.where(filled, m, 0.0)
    e = (s - m).exp()
    l = torch.where(filled, e.sum(-1, keepdim=True), 1.0)  # noqa: E741
    p, sink = e / l, changes.sink is not None
    return Rows(
        q=q, k=k, v=v, moments=torch.cat((v * v, v), -1), scale=scale, seen=seen,
        x=x, t=t, softcap=changes.softcap, offset=offset, alibi=alibi, sink=sink,
        s=torch.where(seen, s, 0.0), m=m, top=_top(s, m) if sink else m, e=e, l=l, p=p,
        out=p @ v, numerics=numerics, inp=inp, generic=generic,
    )  # fmt: skip


def _with_sink(
    k: Tensor, v: Tensor, seen: Tensor, changes: Changes
) -> tuple[Tensor, Tensor, Tensor, Changes]:
    """The same with the sink as last key."""
    assert changes.sink is not None
    there, none = changes.sink > -torch.inf, torch.zeros_like(seen)
    logit = torch.where(there, changes.sink, 0.0)
    offset = none if changes.offset is None else changes.offset
    alibi = None if changes.alibi is None else torch.nn.functional.pad(changes.alibi, (0, 1))
    k, v = (torch.nn.functional.pad(a, (0, 0, 0, 1)) for a in (k, v))
    changes = replace(changes, offset=torch.cat((offset, logit), -1), alibi=alibi)
    return k, v, torch.cat((seen, there), -1), changes


def _top(s: Tensor, m: Tensor) -> Tensor:
    """The largest score of a key, or the maximum m.

    A kernel that adds the sink to a finished row sum subtracts the former, as long as the sink's
    weight relative to it fits into float32. s [..., R, n], -inf where unseen, the sink last.
    """
    keys = torch.nn.functional.pad(s[..., :-1], (1, 0), value=-torch.inf)
    top = keys.amax(-1, keepdim=True)
    return torch.where(m - top < EXPONENTS, top, m)
