"""Errors of the scores: casts of q and k, the dot product, and what happens until the weight.

    x = scale q.k      t = cap tanh(x / cap)      s = t - slope distance + bias

Before the cap x is off by the accumulation of q.k, by casts of q and k, by u |x| for the product
with the scale and the quotient by the cap each, and by u_S |x| for each rounding to a dtype S that
scores are kept in. The cap's slope is f'(x) = 1 / cosh^2(x / cap), and an error d of x moves t by

    f'(x) d + r,    |r| <= max |f' - f'(x)| |d|,    the maximum within |d| of x

So what is made before the cap counts times its slope at the true score, in covariances as well;
r is a term of its own. The cap then adds

    tanh_u cap + 2u |t| + [u_S |t|, twice where each operation is rounded to S]

for tanh, whose error is relative to 1, and for products with cap and log2 e. What is added to a
score is off by

    3u |a| + 2u |b| + (1 + sums) u |s| + [u_S |a| + sums u_S |s|, and u_S (|a| + |b|) for two sums]

with a = -slope distance, b the bias: for the products slope distance and with log2 e; for the
sums, whose partial results are at most |s| + |a| or |s| + |b|; and for a product of the whole
score with log2 e. |a| and |b| may be far more than |a + b|. A sink's logit is such a b.

Constants in fp32 (scale, 1 / cap, cap, log2 e, slopes) are off by one share for all keys: no
noise, but a covariance with the values. tanh is a function: equal scores have equal errors. Where
values are independent of the scores, its errors average out in an output like noise, as their
common part cancels. It does not cancel in the LSE, and counts in full there.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.budget_rows import Rows
from kernelassay.oracle.formats import Format, format_of
from kernelassay.oracle.numerics import Numerics

U32 = format_of("fp32").unit
TF32X3 = Format("3xtf32", 21, -126, torch.float32)
"""Two truncated tf32 numbers: at most two of an fp32 number's last bits are lost, and of a product
the lower parts' product, 2^-20 of it. Half of either is a bias, as with truncated operands."""
SIGMAS = 3.0
"""Standard proxies that a sum of independent roundings is given inside a deterministic term."""


@dataclass(frozen=True, eq=False)
class ScoreErrors:
    """What may be wrong with each score, [..., R, n] unless said otherwise.

    Errors made before a soft cap are taken times its slope at the true score; `bend` is what its
    curvature adds to their sum.
    """

    exp: Tensor  # products, sums, exp, score dtype: fresh for each key, at worst
    exp_variance: Tensor  # and as a sum of squares, one of each cast
    tanh: Tensor | float  # the soft cap's tanh: a function's error, the same for equal scores
    dot: Tensor  # accumulation of q.k: what to expect
    dot_worst: Tensor  # and at worst
    q: Tensor | None  # [..., R, D] change of q by a cast, common to all keys
    k: Tensor | None  # [..., n, D] change of k by a cast
    k_variance: Tensor | float  # (scale sum_i |q_i| dk_ji)^2 as a sum of squares
    k_worst: Tensor | float
    q_worst: Tensor | float
    constants: tuple[Tensor, ...]  # each times one unknown factor in [-1, 1] for all keys
    slope: Tensor | float  # of the soft cap
    bend: Tensor | float
    total: Tensor  # all of them together


def cast_error(x: Tensor, to: Format, factor: float = 1.0) -> Tensor:
    """At most how far rounding *factor* x to a format moves x; multiplying by 2**i is exact."""
    scaled = (factor * x).abs()
    exact = factor != 1.0 and math.frexp(factor)[0] == 0.5
    normal = torch.zeros_like(x) if exact else to.unit * scaled
    moved = torch.where(scaled < 2.0**to.emin, to.eta, normal)
    return torch.where(x == 0, 0.0, moved / factor)


def operand_format(x: Numerics) -> Format | None:
    """What the matrix units make of fp32 operands, None if they take them as they are."""
    if x.dot == "exact":
        return None
    return TF32X3 if x.dot == "3xtf32" else format_of("tf32")


def operand_bias(x: Numerics) -> float:
    """By how much an operand is too small on average, relatively: by a unit, if it is cut."""
    to = operand_format(x)
    return 0.0 if to is None or x.dot == "tf32" else to.unit


def operand_changes(r: Rows) -> tuple[Tensor | None, Tensor | None]:
    """At most how much casts change q and k before the dot product, in units of q and k.

    tf32 units round q and k. A prescaled q is rounded once (the log2 e that a kernel may have
    multiplied in makes its rounding inexact whatever the scale). With `scale_rounded` both are
    multiplied by sqrt(scale) and rounded; the second factor (1 + u) is their product.
    """
    x, q, k = r.numerics, None, None
    if r.scale == 0:
        return None, None
    if (to := operand_format(x)) is not None:
        q, k = to.unit * r.q.abs(), to.unit * r.k.abs()
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
    dot, dot_worst = _dot_errors(r)
    q, k = operand_changes(r)
    q_worst, k_worst, k_variance, moved = _operand_errors(r, q, k)
    before, casts_before = _before_the_cap(r)
    near = before + sum(casts_before) + _constants(r) * r.x.abs() + moved
    near = near + (dot if r.generic else dot_worst)
    slope, steepest, change = _slopes(r, near)
    tanh = 0.0 if r.softcap is None else r.numerics.tanh_u * r.softcap * r.is_key
    (after, casts_after), later = _after_the_cap(r), _constants_after_the_cap(r)
    casts = [*(c * slope for c in casts_before), *casts_after]
    exp = before * slope + after
    return ScoreErrors(
        exp=exp + sum(casts),
        exp_variance=exp**2 + sum(c**2 for c in casts),
        tanh=tanh,
        dot=dot * slope,
        dot_worst=dot_worst * slope,
        q=q,
        k=k,
        k_variance=k_variance * slope**2,
        k_worst=k_worst * slope,
        q_worst=q_worst * slope,
        constants=(_constants(r) * slope * r.x, *later),
        slope=slope,
        bend=change * near,
        total=steepest * near + tanh + after + sum(casts_after) + sum(c.abs() for c in later),
    )


def _operand_errors(
    r: Rows, q: Tensor | None, k: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of changes of q and of k: each at worst, that of k as a sum of squares, and a likely sum."""
    scale = abs(r.scale)
    q_worst = k_worst = k_variance = moved = torch.zeros((), device=r.q.device)
    if q is not None:
        q_worst = scale * (q @ r.k.abs().mT)
        moved = moved + _likely(r, scale**2 * (q**2 @ (r.k**2).mT), q_worst)
    if k is not None:
        k_variance, k_worst = scale**2 * (r.q**2 @ (k**2).mT), scale * (r.q.abs() @ k.mT)
        moved = moved + _likely(r, k_variance, k_worst)
    if (bias := operand_bias(r.numerics)) and not r.generic:
        moved = moved + 2 * bias * scale * (r.q.abs() @ r.k.abs().mT)
    return q_worst, k_worst, k_variance, moved


def _slopes(r: Rows, error: Tensor) -> tuple[Tensor | float, Tensor | float, Tensor | float]:
    """The soft cap's slope 1 / cosh^2 (x / cap), its largest within *error*, and its change."""
    if r.softcap is None:
        return 1.0, 1.0, 0.0
    x, cap = r.x.abs(), r.softcap
    near, at, far = (
        (y / cap).cosh() ** -2 for y in ((x - error).clamp_min(0), x, x + error)
    )  # falling in |x|
    return at, near, torch.maximum(near - at, at - far)


def _likely(r: Rows, variance: Tensor, worst: Tensor) -> Tensor:
    return torch.minimum(SIGMAS * variance.sqrt(), worst) if r.generic else worst


def _dot_errors(r: Rows) -> tuple[Tensor, Tensor]:
    """Accumulation of q.k: one error per step, relative to a partial sum.

    A partial sum is at most sum |q_i k_i|; that of a random sequence is a bridge from 0 to the
    dot product, of mean square (s^2 + sum (q_i k_i)^2) / 2.
    """
    x, scale = r.numerics, abs(r.scale)
    products, squares = scale * (r.q.abs() @ r.k.abs().mT), scale**2 * (r.q**2 @ (r.k**2).mT)
    steps = -(-r.q.shape[-1] // x.kstep) + 1
    worst = x.acc_u * steps * products
    if not x.acc_biased:
        return x.acc_u * math.sqrt(steps) * ((r.x**2 + squares) / 2).sqrt(), worst
    if not r.generic:
        return worst, worst
    return x.acc_u * steps * torch.minimum(products, r.x.abs() + SIGMAS * squares.sqrt()), worst


def _constants(r: Rows) -> float:
    """Relative errors of q.k that all keys share.

    Scale and log2 e in fp32, or scale and 1 / cap; sqrt(scale) enters twice more. An operand cut
    to tf32 is on average u too small, and so is the product.
    """
    x = r.numerics
    return (2 + 2 * x.scale_rounded) * U32 + 2 * operand_bias(x)


def _constants_after_the_cap(r: Rows) -> list[Tensor]:
    """Cap and log2 e on capped scores; on offsets log2 e, and slopes in the scale's units."""
    capped = [] if r.softcap is None else [2 * U32 * r.t]
    return capped if r.offset is None else [*capped, 3 * U32 * r.offset]


def _before_the_cap(r: Rows) -> tuple[Tensor, list[Tensor]]:
    """Scaling the score, dividing it by the cap; casts of both, if there are any."""
    x, capped = r.numerics, r.softcap is not None
    casts = x.score_roundings + (capped and x.score_roundings > 1)
    return ((not x.fma) + capped) * U32 * r.x.abs(), casts * _cast_of_a_score(r, r.x)


def _after_the_cap(r: Rows) -> tuple[Tensor, list[Tensor]]:
    """The cap's product, what is added to the score, subtracting the maximum, exp; and casts.

    A sink's weight may be relative to `Rows.top`.
    """
    x = r.numerics
    below = torch.where(r.seen, torch.maximum((r.s - r.m).abs(), r.s - r.top), 0.0)
    error, casts = 2 * U32 * below + x.exp_u, []
    if r.softcap is not None:
        error = error + 2 * U32 * r.t.abs()
        casts += (2 if x.score_roundings > 1 else 1) * _cast_of_a_score(r, r.t)
    if r.offset is not None:
        a = torch.zeros_like(r.offset) if r.alibi is None else r.alibi.abs()
        b = r.offset.abs() if r.alibi is None else (r.offset - r.alibi).abs()
        first, second = (a > 0) | (b > 0), (a > 0) & (b > 0)
        s = r.s.abs()
        error = error + U32 * (3 * a + 2 * b + (2.0 * first + second) * s)
        for rounded in (a, first * s, second * s, second * (a + b)):
            casts += _cast_of_a_score(r, rounded)
    return error, casts


def _cast_of_a_score(r: Rows, score: Tensor) -> list[Tensor]:
    """What rounding to the score's dtype moves a score by; nothing in fp32."""
    to = format_of(r.numerics.score)
    if to.unit <= U32:
        return []
    # What is rounded before it is scaled may be smaller than the score, and so is its grid.
    eta = to.eta * max(1.0, abs(r.scale))
    return [torch.where(score == 0, 0.0, (to.unit * score.abs()).clamp_min(eta))]
