"""The error that declared numerics allow, for every element of an attention's output and LSE.

First-order rounding errors of an output element are sum_k a_k delta_k with |delta_k| <= u_k. At
worst they add up to L = sum |a_k| u_k; independent and centred ones have variance proxy
V = sum (a_k u_k)^2, and exceed LAMBDA sqrt(V) practically never. Biased and second-order errors D
are added as they are:

    allowed = e^E (min(LAMBDA sqrt V, L) + D)(1 + u_out) + u_out |out| + eta_out     generic
    allowed = e^E (L + D)(1 + u_out) + u_out |out| + eta_out                         rigorous

with E the mean score error (Jensen's bound on the perturbed denominator). *generic* is for q, k
and v from a continuous generator; with few distinct scores, as in shrunk cases, cast errors repeat
and only the rigorous form holds. Overflow is never budgeted: an infinity is a fault.

Soft cap, ALiBi, bias and sinks change the scores (`budget_scores`). A sink is a key more, with a
score of its own and the value 0, that meets no cast and no product (`budget_rows`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernelassay.oracle import budget_terms as terms
from kernelassay.oracle.budget_lse import lse_term
from kernelassay.oracle.budget_rows import Changes, Rows, rows_of
from kernelassay.oracle.budget_scores import U32, score_errors
from kernelassay.oracle.formats import FORMATS, format_of, name_of
from kernelassay.oracle.numerics import Numerics

LAMBDA = 5.0
"""Standard proxies allowed to independent errors. Uniform on half an ulp they have variance u^2/3,
so P(exceeded) <= 2 exp(-1.5 LAMBDA^2) = 1e-16 per element (Hoeffding), 13 observed sigmas."""
Z_RMS_LIMIT = 1.1
"""E z_rms^2 <= 1 by construction; 10 % for sampling. The largest seen of right kernels is 0.83."""
Z_RMS_ELEMENTS = 1000
"""Elements from which on z_rms is a statistic; a correct kernel gave 1.16 on three."""
Z_RMS_USUAL = 0.4
"""z_rms of a rightly declared 16-bit kernel on normal inputs: 0.3 to 0.5."""
GROWTH = 300.0
"""Largest exponent of e^E: beyond, anything is allowed, and infinity would spoil what is 0."""
WORKSPACE = 2**28
"""Bytes of intermediates per block of rows."""
At = tuple[slice, slice, slice, slice]
"""A block of rows: a part of [B, Hkv, G, Tq]."""


@dataclass(frozen=True, eq=False)
class Budget:
    """The oracle's values and what may be off. All float64, LSE in natural logarithms.

    A row that sees no key has out 0, lse -inf (or the sink's logit) and allowances from the final
    roundings alone.
    """

    out: Tensor  # [B, Hq, Tq, Dv]
    lse: Tensor  # [B, Hq, Tq]
    out_allowed: Tensor  # [B, Hq, Tq, Dv]
    lse_allowed: Tensor  # [B, Hq, Tq]
    rms_scale: Tensor  # [B, Hq, Tq, Dv]

    def z_rms(self, got: Tensor) -> float:
        """Root mean square of error / proxy over rows that see a key; 0 if there are none."""
        rows = self.lse > -torch.inf
        z = (got.to(self.out.dtype) - self.out)[rows] / self.rms_scale[rows]
        return float(z.square().mean().sqrt()) if z.numel() else 0.0


def attention_budget(
    q: Tensor,  # [B, Hq, Tq, D]
    k: Tensor,  # [B, Hkv, Tk, D]
    v: Tensor,  # [B, Hkv, Tk, Dv]
    scale: float,
    visible: Tensor,  # bool, broadcastable to [B, Hq, Tq, Tk]
    numerics: Numerics,
    *,
    generic: bool,
    softcap: float | None = None,
    offset: Tensor | None = None,  # broadcastable to [B, Hq, Tq, Tk], -inf hides
    alibi: Tensor | None = None,  # likewise: the part of *offset* that is slope times distance
    sink_logits: Tensor | None = None,  # [Hq]
) -> Budget:
    """Attention in float64 and the error that *numerics* allow each element, on q's device.

    q, k and v come in the kernel's own dtype ("input" and casts of q and k refer to it). Head h
    uses KV head h // (Hq / Hkv). What no query sees is not read, NaN and infinities included.
    """
    (B, Hq, Tq, D), (Hkv, Tk, Dv) = q.shape, v.shape[1:]
    G, inp = Hq // max(Hkv, 1), FORMATS.get(name_of(q.dtype), FORMATS["fp64"])
    numerics = numerics.resolved(inp.name)
    if offset is not None:
        visible = visible & (offset != -torch.inf)
    visible = _grouped(visible.expand(B, Hq, Tq, Tk), Hkv)
    changes = _changes((B, Hq, Tq, Tk), Hkv, softcap, offset, alibi, sink_logits)
    q = _grouped(q, Hkv)
    shape, sizes = (B, Hkv, G, Tq), (Dv, 1, Dv, 1, Dv)
    results = [q.new_zeros((*shape, size), dtype=torch.float64) for size in sizes]
    per_row = _bytes_per_row(numerics, Tk, D, Dv)
    for at in _blocks(B, Hkv, G, Tq, WORKSPACE // per_row):
        qx, kx, vx, seen = _what_is_seen(q, k, v, visible, at)
        rows = rows_of(
            qx, kx, vx, scale, seen, numerics, inp, generic=generic, changes=changes.at(at)
        )
        for result, part in zip(results, _budget_of(rows), strict=True):
            result[at] = part.reshape(result[at].shape)
    out, lse, out_allowed, lse_allowed, rms_scale = (x.flatten(1, 2) for x in results)
    return Budget(out, lse.squeeze(-1), out_allowed, lse_allowed.squeeze(-1), rms_scale)


def _what_is_seen(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, at: At
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and visible of a block of rows, in float64, 0 where no query sees it."""
    seen = visible[at]  # [b, h, G, t, Tk]
    q = torch.where(seen.any(-1, keepdim=True), q[at].double(), 0.0)
    used = visible[at[:2]].flatten(2, 3).any(2).unsqueeze(-1)  # [b, h, Tk, 1]
    k, v = (torch.where(used, x[at[:2]].double(), 0.0) for x in (k, v))
    return q.flatten(2, 3), k, v, seen.flatten(2, 3)


def _grouped(x: Tensor, Hkv: int) -> Tensor:
    """[B, Hq, ...] as [B, Hkv, G, ...], a view wherever heads are evenly spaced."""
    return x.reshape(x.shape[0], Hkv, x.shape[1] // max(Hkv, 1), *x.shape[2:])


def _changes(
    shape: tuple[int, int, int, int],
    Hkv: int,
    softcap: float | None,
    offset: Tensor | None,
    alibi: Tensor | None,
    sink: Tensor | None,
) -> Changes:
    """What is done to scores, as views [B, Hkv, G, Tq, Tk or 1]."""

    def grouped(x: Tensor | None, last: int) -> Tensor | None:
        return None if x is None else _grouped(x.double().expand(*shape[:3], last), Hkv)

    return Changes(
        softcap=softcap,
        offset=grouped(offset, shape[3]),
        alibi=grouped(alibi, shape[3]),
        sink=grouped(None if sink is None else sink[:, None, None], 1),
    )


def _bytes_per_row(x: Numerics, Tk: int, D: int, Dv: int) -> int:
    """Float64 intermediates of one row: some 32 per key, four of partial sums, covariances."""
    casts_q = x.dot != "exact" or x.q_prescaled or x.scale_rounded
    partial = 4 * (Tk // terms.GRANULE + 1) * Dv
    return 8 * (32 * Tk + partial + 8 * Dv + (D * (Tk + 3 * Dv) if casts_q else 0))


def _blocks(B: int, H: int, G: int, T: int, rows: int) -> Iterator[At]:
    """Slices of batch, KV head, group and query position that hold about *rows* rows each."""
    t = min(max(rows // max(G, 1), 1), max(T, 1))
    h = min(max(rows // max(G * t, 1), 1), max(H, 1)) if t >= T else 1
    b = min(max(rows // max(G * t * h, 1), 1), max(B, 1)) if t >= T and h >= H else 1
    for i in range(0, B, b):
        for j in range(0, H, h):
            for start in range(0, T, t):
                yield slice(i, i + b), slice(j, j + h), slice(None), slice(start, start + t)


def _budget_of(r: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """out, lse, their allowances and rms_scale of a block of rows; each [..., R, Dv or 1]."""
    errors = score_errors(r)
    rounds, flushed = terms.cast_of_p(r, errors)
    count = terms.rescales(r)
    total = (
        terms.probability_cast(r, rounds, flushed)
        + terms.score_term(r, errors)
        + terms.operand_term(r, errors)
        + terms.rescale_term(r, count)
        + terms.accumulation_term(r, count)
        + terms.division_term(r, count)
        + terms.second_order_term(r, errors)
    )
    lse_total = lse_term(r, errors, rounds, flushed, count)
    to = format_of(r.numerics.out)
    growth = (r.p * errors.total).sum(-1, keepdim=True).clamp_max(GROWTH).exp()
    final = to.unit * r.out.abs() + to.eta
    allowed = growth * _combined(total, r.generic) * (1 + to.unit) + final
    rms_scale = (total.variance + torch.as_tensor(total.fixed) ** 2 + final**2 / 3).sqrt()
    return r.out, r.lse, allowed, _combined(lse_total, r.generic), rms_scale


def _combined(total: terms.Term, generic: bool) -> Tensor:
    noise = torch.as_tensor(total.worst)
    if generic:
        noise = torch.minimum(LAMBDA * torch.as_tensor(total.variance).sqrt(), noise)
    return noise + total.fixed


def lse_allowed_in_base(budget: Budget, base: Literal["e", "2"]) -> Tensor:
    """`lse_allowed` for an LSE that the caller converted to natural logarithms from *base*.

    From base 2 the kernel's constant log2 e and the caller's product add two fp32 roundings.
    """
    if base == "e":
        return budget.lse_allowed
    lse = torch.where(budget.lse > -torch.inf, budget.lse, 0.0).abs()
    return budget.lse_allowed + 2 * U32 * lse


def recognised(z_rms: float, numerics: Numerics) -> str:
    """Which coarser cast of P *z_rms* looks like, in a sentence; empty when within bounds."""
    if not z_rms > Z_RMS_LIMIT or not math.isfinite(z_rms) or numerics.p == "input":
        return ""
    ratio, declared = z_rms / Z_RMS_USUAL, format_of(numerics.p)
    coarser = [f for f in FORMATS.values() if f.unit > declared.unit]
    if not coarser:
        return ""
    nearest = min(coarser, key=lambda f: abs(math.log(f.unit / declared.unit / ratio)))
    return (
        f"errors are {ratio:.1f}x what {declared.name} probabilities usually give "
        f"(z_rms {z_rms:.2f}): as with {nearest.name} probabilities"
    )
