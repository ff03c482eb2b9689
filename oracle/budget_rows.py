"""Attention of a block of rows in float64, with the weighted moments that budgets are made of."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.formats import Format
from kernelassay.oracle.numerics import Numerics


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows of queries that share their keys. Shapes: R rows, n keys, any leading dimensions.

    What no row may see has weight 0 and score 0. Notation: score s_j = scale q.k_j, maximum m,
    e_j = exp(s_j - m), l = sum e_j, p_j = e_j / l, o = sum p_j v_j. A row that sees nothing has
    p = 0, l = 1, m = 0, o = 0.
    """

    q: Tensor  # [..., R, D]
    k: Tensor  # [..., n, D]
    v: Tensor  # [..., n, Dv]
    moments: Tensor  # [..., n, 2 Dv], v^2 beside v
    scale: float
    seen: Tensor  # [..., R, n] bool
    s: Tensor  # [..., R, n]
    m: Tensor  # [..., R, 1]
    e: Tensor  # [..., R, n]
    l: Tensor  # noqa: E741 - the literature's name for the denominator; [..., R, 1]
    p: Tensor  # [..., R, n]
    out: Tensor  # [..., R, Dv]
    numerics: Numerics  # resolved
    inp: Format  # of q, k and v as the kernel gets them
    generic: bool

    @property
    def n(self) -> int:
        """How many keys there are, unseen ones included."""
        return self.k.shape[-2]

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
        """At least sum_j a_j |v_jc - o_c|, by Cauchy-Schwarz; within 25 % for Gaussian v."""
        return (a.sum(-1, keepdim=True) * self.spread2(a)).sqrt()


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
) -> Rows:
    """The `Rows` of float64 q, k, v, whose content must be finite."""
    s = torch.where(seen, scale * (q @ k.mT), -torch.inf)
    filled = seen.any(-1, keepdim=True)
    m = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_zeros(filled.shape)
    m = torch.where(filled, m, 0.0)
    e = (s - m).exp()
    l = torch.where(filled, e.sum(-1, keepdim=True), 1.0)  # noqa: E741
    p = e / l
    return Rows(
        q=q,
        k=k,
        v=v,
        moments=torch.cat((v * v, v), -1),
        scale=scale,
        seen=seen,
        s=torch.where(seen, s, 0.0),
        m=m,
        e=e,
        l=l,
        p=p,
        out=p @ v,
        numerics=numerics,
        inp=inp,
        generic=generic,
    )
