"""Errors of the scores: casts of q and k, the dot product, and what happens until the weight."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.budget_rows import Rows
from kernelassay.oracle.formats import Format, format_of

U32 = format_of("fp32").unit
UTF = format_of("tf32").unit
SIGMAS = 3.0
"""Standard proxies that a sum of independent roundings is given inside a deterministic term."""


@dataclass(frozen=True, eq=False)
class ScoreErrors:
    """What may be wrong with each score, [..., R, n] unless said otherwise."""

    exp: Tensor  # scale product, subtraction, exp, score dtype: fresh for each key
    dot: Tensor  # accumulation of q.k: what to expect
    dot_worst: Tensor  # and at worst
    q: Tensor | None  # [..., R, D] change of q by a cast, common to all keys
    k: Tensor | None  # [..., n, D] change of k by a cast
    k_variance: Tensor | float  # (scale sum_i |q_i| dk_ji)^2 as a sum of squares
    k_worst: Tensor | float
    q_worst: Tensor | float
    total: Tensor  # all of them together


def cast_error(x: Tensor, to: Format, factor: float = 1.0) -> Tensor:
    """At most how far rounding *factor* x to a format moves x; multiplying by 2**i is exact."""
    scaled = (factor * x).abs()
    exact = factor != 1.0 and math.frexp(factor)[0] == 0.5
    normal = torch.zeros_like(x) if exact else to.unit * scaled
    moved = torch.where(scaled < 2.0**to.emin, to.eta, normal)
    return torch.where(x == 0, 0.0, moved / factor)


def operand_changes(r: Rows) -> tuple[Tensor | None, Tensor | None]:
    """At most how much casts change q and k before the dot product, in units of q and k.

    tf32 units round q and k. A prescaled q is rounded once (the log2 e that a kernel may have
    multiplied in makes its rounding inexact whatever the scale). With `scale_rounded` both are
    multiplied by sqrt(scale) and rounded; the second factor (1 + u) is their product.
    """
    x, q, k = r.numerics, None, None
    if r.scale == 0:
        return None, None
    if x.dot != "exact":
        q, k = UTF * r.q.abs(), UTF * r.k.abs()
    if x.q_prescaled:
        moved = torch.maximum(r.inp.unit * r.q.abs(), (r.q != 0) * (r.inp.eta / abs(r.scale)))
        q = moved if q is None else q + moved
    if x.scale_rounded:
        root = math.sqrt(abs(r.scale))
        dq, dk = cast_error(r.q, r.inp, root), cast_error(r.k, r.inp, root) * (1 + r.inp.unit)
        q, k = dq if q is None else q + dq, dk if k is None else k + dk
    return q, k


def score_errors(r: Rows) -> ScoreErrors:
    """Every error of the scores; `total` is what second-order terms are taken of."""
    x, scale = r.numerics, abs(r.scale)
    q_abs, k_abs, q2, k2 = r.q.abs(), r.k.abs(), r.q**2, r.k**2
    dot, dot_worst = _dot_errors(r, scale * (q_abs @ k_abs.mT), scale**2 * (q2 @ k2.mT))
    exp = _exp_errors(r)
    total = exp + (dot if r.generic else dot_worst)
    q, k = operand_changes(r)
    q_worst = k_worst = k_variance = torch.zeros(())
    if q is not None:
        q_variance, q_worst = scale**2 * (q**2 @ k2.mT), scale * (q @ k_abs.mT)
        total = total + _likely(r, q_variance, q_worst)
    if k is not None:
        k_variance, k_worst = scale**2 * (q2 @ (k**2).mT), scale * (q_abs @ k.mT)
        total = total + _likely(r, k_variance, k_worst)
    if x.dot == "tf32_trunc" and not r.generic:
        total = total + 2 * UTF * scale * (q_abs @ k_abs.mT)
    return ScoreErrors(exp, dot, dot_worst, q, k, k_variance, k_worst, q_worst, total)


def _likely(r: Rows, variance: Tensor, worst: Tensor) -> Tensor:
    return torch.minimum(SIGMAS * variance.sqrt(), worst) if r.generic else worst


def _dot_errors(r: Rows, products: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Accumulation of q.k: one error per step, relative to a partial sum.

    A partial sum is at most sum |q_i k_i|; that of a random sequence is a bridge from 0 to the
    dot product, of mean square (s^2 + sum (q_i k_i)^2) / 2.
    """
    x = r.numerics
    steps = -(-r.q.shape[-1] // x.kstep) + 1
    worst = x.acc_u * steps * products
    if not x.acc_biased:
        return x.acc_u * math.sqrt(steps) * ((r.s**2 + squares) / 2).sqrt(), worst
    if not r.generic:
        return worst, worst
    return x.acc_u * steps * torch.minimum(products, r.s.abs() + SIGMAS * squares.sqrt()), worst


def _exp_errors(r: Rows) -> Tensor:
    """Scaling the score, subtracting the maximum, exp; a cast of the score, if there is one."""
    x = r.numerics
    below = torch.where(r.seen, r.s - r.m, 0.0).abs()
    error = 2 * U32 * below + x.exp_u + (0.0 if x.fma else U32 * r.s.abs())
    score = format_of(x.score)
    if score.unit > U32:
        error = error + torch.where(r.s == 0, 0.0, (score.unit * r.s.abs()).clamp_min(score.eta))
    return error
