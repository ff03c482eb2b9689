"""Where the rounding errors of one attention row come from, one function per source.

A weight error common to numerator and denominator moves the output by a *centred* sum:
out^ - out = sum_j p_j (e^{eps_j} - 1)(v_j - out) / sum_j p_j e^{eps_j}. So score errors carry
(v_j - out), and whatever is common to all keys cancels. The cast of P, the accumulation of P.V,
the division and the output rounding do not cancel.
"""

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
GRANULE = 16
"""Keys per partial sum when the range of the running P.V sum is taken: the widest of the usual
matrix-unit steps; what can happen inside a granule is added as sum |p v|."""
LARGE = 0.1
"""Score errors from which on their product with the cast of P counts: 10 % of the cast."""


@dataclass(frozen=True)
class Term:
    """What one source adds to the error of each output element (or of each row's LSE).

    First-order errors sum_k a_k delta_k, |delta_k| <= u_k: *variance* is sum (a_k u_k)^2, *worst*
    is sum |a_k| u_k of the same, *fixed* what is biased or of second order.
    """

    variance: Tensor | float = 0.0
    worst: Tensor | float = 0.0
    fixed: Tensor | float = 0.0

    def __add__(self, other: "Term") -> "Term":
        return Term(
            self.variance + other.variance, self.worst + other.worst, self.fixed + other.fixed
        )


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
    if x.dot != "exact":
        q, k = UTF * r.q.abs(), UTF * r.k.abs()
    if x.q_prescaled:
        moved = torch.maximum(
            r.inp.unit * r.q.abs(), (r.q != 0) * (r.inp.eta / max(abs(r.scale), 1e-300))
        )
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


def p_format(r: Rows) -> Format | None:
    """The format P is cast to before P.V, None if it stays in fp32; tf32 units cast it too."""
    p = format_of(r.numerics.p)
    if r.numerics.dot != "exact" and p.unit < UTF:
        return format_of("tf32")
    return p if p.unit > U32 else None


def cast_of_p(r: Rows, errors: ScoreErrors) -> tuple[Tensor, Tensor]:
    """At most how far the cast moves each weight: those that may round, those that flush to 0."""
    p = p_format(r)
    if p is None:
        return torch.zeros_like(r.p), torch.zeros_like(r.p)
    eta = p.eta / r.numerics.p_scale
    e, norm = (r.e, r.l) if r.numerics.p_normalised is False else (r.p, 1.0)
    moved = torch.minimum(e, (p.unit * e).clamp_min(eta)) / norm
    lost = e <= eta
    rounds = torch.where(errors.total > LARGE, moved * errors.total.clamp_max(50).exp(), moved)
    return torch.where(lost, 0.0, rounds), torch.where(lost, moved, 0.0)


def probability_cast(r: Rows, rounds: Tensor, lost: Tensor) -> Term:
    """Rounding P before P.V. If the row sum adds the rounded P, numerator and sum err alike."""
    plain = Term(rounds**2 @ r.v**2, rounds @ r.v.abs(), lost @ r.v.abs())
    fixed = UTF * r.out.abs() if r.numerics.dot == "tf32_trunc" else 0.0
    if r.numerics.l_from_p is False:
        return plain + Term(fixed=fixed)
    centred = Term(r.spread2(rounds**2), r.spread1(rounds), r.spread1(lost))
    if r.numerics.l_from_p:
        return centred + Term(fixed=fixed)
    return _either(plain, centred) + Term(fixed=fixed)


def _either(a: Term, b: Term) -> Term:
    def larger(x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.maximum(torch.as_tensor(x), torch.as_tensor(y))

    return Term(larger(a.variance, b.variance), larger(a.worst, b.worst), larger(a.fixed, b.fixed))


def score_term(r: Rows, errors: ScoreErrors) -> Term:
    """Errors fresh for each key, and the constants scale and log2 e in fp32, common to all."""
    fresh = Term(r.spread2((r.p * errors.exp) ** 2), r.spread1(r.p * errors.exp))
    weighted = r.p * r.s
    common = weighted @ r.v - weighted.sum(-1, keepdim=True) * r.out  # Cov_p(s, v)
    constants = (2 + 2 * r.numerics.scale_rounded) * U32  # sqrt(scale) enters twice more
    if r.numerics.dot == "tf32_trunc":  # a cut operand is on average u too small, and so is s
        constants += 2 * UTF
    if r.numerics.acc_biased:
        dot = Term(fixed=r.spread1(r.p * errors.dot))
    else:
        dot = Term(r.spread2((r.p * errors.dot) ** 2), r.spread1(r.p * errors.dot_worst))
    return fresh + dot + Term(fixed=constants * common.abs())


def operand_term(r: Rows, errors: ScoreErrors) -> Term:
    """Casts of q (common to all keys: a covariance), of k and of v (fresh for each key)."""
    term, scale = Term(), abs(r.scale)
    if errors.q is not None:
        weighted = (r.p.unsqueeze(-2) * r.k.mT.unsqueeze(-3)).flatten(-3, -2)  # [..., R D, n]
        second = (weighted @ r.v).reshape(*r.q.shape, r.v.shape[-1])
        cov = second - (r.p @ r.k).unsqueeze(-1) * r.out.unsqueeze(-2)  # [..., R, D, Dv]
        change = scale * errors.q.unsqueeze(-2)
        variance, worst = change**2 @ cov**2, change @ cov.abs()
        term += Term(variance.squeeze(-2), worst.squeeze(-2))
    if errors.k is not None:
        term += Term(r.spread2(r.p**2 * errors.k_variance), r.spread1(r.p * errors.k_worst))
    if r.numerics.dot != "exact":
        term += Term(UTF**2 * (r.p**2 @ r.v**2), UTF * (r.p @ r.v.abs()))
    if r.numerics.dot == "tf32_trunc":
        term += Term(fixed=UTF * r.out.abs())
    return term


def steps_of(r: Rows, size: int) -> Tensor:
    """At most how many groups of *size* keys hold one that the row sees; adding 0 is exact."""
    return r.seen.sum(-1, keepdim=True).clamp_max(-(-r.n // size)).to(r.p.dtype)


def rescales(r: Rows) -> Tensor:
    """At most how often the running maximum changes, scanning from either end; [..., R, 1]."""
    if r.n < 2:
        return steps_of(r, r.numerics.block)
    s = torch.where(r.seen, r.s, -torch.inf)

    def records(x: Tensor) -> Tensor:
        run = x.cummax(-1).values
        return (run[..., 1:] > run[..., :-1]).sum(-1, keepdim=True)

    most = torch.maximum(records(s), records(s.flip(-1))).to(s.dtype)
    return torch.minimum(most, steps_of(r, r.numerics.block))


def rescale_term(r: Rows, count: Tensor) -> Term:
    """Each rescale multiplies the weights so far by a factor that is slightly wrong.

    A subset's sum of p_j (v_j - o) is at most half of sum p_j |v_j - o|; for independent v some
    four standard deviations.
    """
    reach = r.spread1(r.p) / 2
    if r.generic:
        reach = torch.minimum(reach, 4 * r.spread2(r.p**2).sqrt())
    return Term(fixed=count * (r.numerics.exp_u + 3 * U32 * r.m.abs()) * reach)


def accumulation_term(r: Rows, count: Tensor) -> Term:
    """Adding up P.V, one error per step relative to a partial sum."""
    x, total = r.numerics, r.p @ r.v.abs()
    steps = steps_of(r, x.kstep) + count
    partial, inside = _partial_sums(r)  # [..., R, n / 16, Dv], [..., R, Dv]
    reach = total
    if r.generic:
        top, bottom = partial.amax(-2).clamp_min(0), partial.amin(-2).clamp_max(0)
        reach = torch.minimum(top - bottom + inside, total)
    if x.acc_biased:
        return Term(fixed=x.acc_u * steps * reach)
    forward, backward = partial**2, (partial[..., -1:, :] - partial) ** 2
    mean = torch.maximum(forward.mean(-2), backward.mean(-2)) + 0.1 * (r.p**2 @ r.v**2)
    return Term(x.acc_u**2 * steps * mean, x.acc_u * steps * reach)


def _partial_sums(r: Rows) -> tuple[Tensor, Tensor]:
    """Sums of p v up to each granule's end, and the largest sum of |p v| inside one."""
    pad = -r.n % GRANULE + (GRANULE if r.n == 0 else 0)
    split = ((r.n + pad) // GRANULE, GRANULE)
    p = torch.nn.functional.pad(r.p, (0, pad)).reshape(*r.p.shape[:-1], *split).transpose(-2, -3)
    v = torch.nn.functional.pad(r.v, (0, 0, 0, pad))
    v = v.reshape(*v.shape[:-2], *split, v.shape[-1])
    sums, inside = p @ v, p @ v.abs()  # [..., n / 16, R, Dv]
    return sums.cumsum(-3).transpose(-2, -3), inside.amax(-3)


def row_sum_roundings(r: Rows, count: Tensor) -> Tensor:
    """Additions behind the row sum: one per tile and rescale, up to 16 deep inside a tile."""
    return steps_of(r, r.numerics.block) + count + 16


def division_term(r: Rows, count: Tensor) -> Term:
    """The row sum and the division by it."""
    o, adds = r.out.abs(), row_sum_roundings(r, count)
    return Term(U32**2 * adds * o**2, U32 * adds * o, r.numerics.div_u * o)


def second_order_term(r: Rows, errors: ScoreErrors) -> Term:
    """What (e^eps - 1) holds beyond eps: at most eps^2 e^eps / 2."""
    e = errors.total
    return Term(fixed=r.spread1(r.p * e**2 * e.clamp_max(50).exp()) / 2)
