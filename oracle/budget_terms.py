"""Where the rounding errors of one attention row come from, one function per source.

A weight error common to numerator and denominator moves the output by a *centred* sum:
out^ - out = sum_j p_j (e^{eps_j} - 1)(v_j - out) / sum_j p_j e^{eps_j}. So score errors carry
(v_j - out), and whatever is common to all keys cancels. The cast of P, the accumulation of P.V,
the division and the output rounding do not cancel.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.budget_rows import Rows
from kernelassay.oracle.budget_scores import U32, ScoreErrors, operand_bias, operand_format
from kernelassay.oracle.formats import Format, format_of

GRANULE = 16
"""Keys per partial sum when the range of the running P.V sum is taken: the widest of the usual
matrix-unit steps; what can happen inside a granule is added as sum |p v|."""
TINY = 2.0**-126
"""fp32 results below its normal range may be 0: those of exp are on GPUs, and so are products."""
FLUSHED = 4.0
"""Weights up to so many eta err with a bias and count at full size. Rounding to the coarse grid of
subnormals is biased where weights get denser towards 0, by eta^2 / (3 e) for a density like 1/e:
beyond 4 eta by less than eta / 12 each, which lambda sigmas cover up to 3600 such keys."""
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


def p_format(r: Rows) -> Format | None:
    """The format P is cast to before P.V, None if it stays in fp32; tf32 units cast it too."""
    p = format_of(r.numerics.p)
    to = operand_format(r.numerics)
    if to is not None and p.unit < to.unit:
        return to
    return p if p.unit > U32 else None


def cast_of_p(r: Rows, errors: ScoreErrors) -> tuple[Tensor, Tensor]:
    """At most how far the cast moves each weight: as noise, and (tiny ones) with a bias.

    A sink's weight meets no value: it is not cast. Without a cast weights are flushed by exp only.
    """
    p = p_format(r)
    unit, eta = (0.0, TINY) if p is None else (p.unit, max(p.eta / r.numerics.p_scale, TINY))
    e, norm = (r.e, r.l) if r.numerics.p_normalised is False else (r.p, 1.0)
    moved = r.is_key * torch.minimum(e, (unit * e).clamp_min(eta)) / norm
    biased = e <= FLUSHED * eta
    rounds = torch.where(errors.total > LARGE, moved * errors.total.clamp_max(50).exp(), moved)
    return torch.where(biased, 0.0, rounds), torch.where(biased, moved, 0.0)


def probability_cast(r: Rows, rounds: Tensor, flushed: Tensor) -> Term:
    """Rounding P before P.V. If the row sum adds the rounded P, numerator and sum err alike."""
    plain = Term(rounds**2 @ r.v**2, rounds @ r.v.abs(), flushed @ r.v.abs())
    fixed = operand_bias(r.numerics) * r.out.abs()
    if r.numerics.l_from_p is False:
        return plain + Term(fixed=fixed)
    centred = Term(r.spread2(rounds**2), r.spread1(rounds), r.spread1(flushed))
    if r.numerics.l_from_p:
        return centred + Term(fixed=fixed)
    return _either(plain, centred) + Term(fixed=fixed)


def _either(a: Term, b: Term) -> Term:
    def larger(x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.maximum(torch.as_tensor(x), torch.as_tensor(y))

    return Term(larger(a.variance, b.variance), larger(a.worst, b.worst), larger(a.fixed, b.fixed))


def score_term(r: Rows, errors: ScoreErrors) -> Term:
    """Errors fresh for each key, constants common to all of them, the soft cap's curvature."""
    variance = errors.exp_variance + torch.as_tensor(errors.tanh) ** 2
    term = Term(r.spread2(r.p**2 * variance), r.spread1(r.p * (errors.exp + errors.tanh)))
    if r.numerics.acc_biased:
        term += Term(fixed=r.spread1(r.p * errors.dot))
    else:
        term += Term(r.spread2((r.p * errors.dot) ** 2), r.spread1(r.p * errors.dot_worst))
    for constant in errors.constants:
        weighted = r.p * constant
        common = weighted @ r.v - weighted.sum(-1, keepdim=True) * r.out  # Cov_p(constant, v)
        term += Term(fixed=common.abs())
    if r.softcap is not None:
        term += Term(fixed=r.spread1(r.p * errors.bend))
    return term


def operand_term(r: Rows, errors: ScoreErrors) -> Term:
    """Casts of q (common to all keys: a covariance), of k and of v (fresh for each key)."""
    term, scale = Term(), abs(r.scale)
    if errors.q is not None:
        p = r.p * errors.slope
        weighted = (p.unsqueeze(-2) * r.k.mT.unsqueeze(-3)).flatten(-3, -2)  # [..., R D, n]
        second = (weighted @ r.v).reshape(*r.q.shape, r.v.shape[-1])
        cov = second - (p @ r.k).unsqueeze(-1) * r.out.unsqueeze(-2)  # [..., R, D, Dv]
        change = scale * errors.q.unsqueeze(-2)
        variance, worst = change**2 @ cov**2, change @ cov.abs()
        term += Term(variance.squeeze(-2), worst.squeeze(-2))
    if errors.k is not None:
        term += Term(r.spread2(r.p**2 * errors.k_variance), r.spread1(r.p * errors.k_worst))
    if (to := operand_format(r.numerics)) is not None:
        term += Term(to.unit**2 * (r.p**2 @ r.v**2), to.unit * (r.p @ r.v.abs()))
        term += Term(fixed=operand_bias(r.numerics) * r.out.abs())
    return term


def steps_of(r: Rows, size: int) -> Tensor:
    """At most how many groups of *size* keys hold one that the row sees; adding 0 is exact."""
    return r.seen.sum(-1, keepdim=True).clamp_max(-(-r.n // size)).to(r.p.dtype)


def rescales(r: Rows) -> Tensor:
    """At most how often the running maximum changes, scanning from either end; [..., R, 1].

    A split in the middle of the keys can see more new maxima than both scans if scores rise inside
    it below an earlier maximum. Those are covered by the row sum's term, a rounding per tile, in
    the rigorous form; in the generic one as well, up to some 30,000 keys.
    """
    if r.n < 2:
        return steps_of(r, r.numerics.block)
    s = torch.where(r.seen, r.s, -torch.inf)

    def records(x: Tensor) -> Tensor:
        run = x.cummax(-1).values
        return (run[..., 1:] > run[..., :-1]).sum(-1, keepdim=True)

    # A sink may come first, where both scans take it last or first.
    most = torch.maximum(records(s), records(s.flip(-1))).to(s.dtype) + r.sink
    return torch.minimum(most, steps_of(r, r.numerics.block))


def rescale_term(r: Rows, count: Tensor) -> Term:
    """Each rescale multiplies the weights so far by a factor that is slightly wrong.

    A subset's sum of p_j (v_j - o) is at most half of sum p_j |v_j - o|; for independent v some
    four standard deviations.
    """
    reach = r.spread1(r.p) / 2
    if r.generic:
        reach = torch.minimum(reach, 4 * r.spread2(r.p**2).sqrt())
    m = torch.maximum(r.m.abs(), r.top.abs())
    return Term(fixed=count * (r.numerics.exp_u + 3 * U32 * m) * reach)


def accumulation_term(r: Rows, count: Tensor) -> Term:
    """Adding up P.V, one error per step relative to a partial sum."""
    x, total = r.numerics, r.p @ r.v.abs()
    steps = steps_of(r, x.kstep) + count
    tiny = Term(fixed=TINY * steps)
    partial, inside = _partial_sums(r)  # [..., R, n / 16, Dv], [..., R, Dv]
    reach = total
    if r.generic:
        top, bottom = partial.amax(-2).clamp_min(0), partial.amin(-2).clamp_max(0)
        reach = torch.minimum(top - bottom + inside, total)
    if x.acc_biased:
        return tiny + Term(fixed=x.acc_u * steps * reach)
    forward, backward = partial**2, (partial[..., -1:, :] - partial) ** 2
    mean = torch.maximum(forward.mean(-2), backward.mean(-2)) + 0.1 * (r.p**2 @ r.v**2)
    return tiny + Term(x.acc_u**2 * steps * mean, x.acc_u * steps * reach)


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
    """Additions behind the row sum: a tile, a rescale, the sink; 16 deep inside a tile."""
    return steps_of(r, r.numerics.block) + count + r.sink + 16


def division_term(r: Rows, count: Tensor) -> Term:
    """The row sum and the division by it."""
    o, adds = r.out.abs(), row_sum_roundings(r, count)
    return Term(U32**2 * adds * o**2, U32 * adds * o, r.numerics.div_u * o)


def second_order_term(r: Rows, errors: ScoreErrors) -> Term:
    """What (e^eps - 1) holds beyond eps: at most eps^2 e^eps / 2."""
    e = errors.total
    return Term(fixed=r.spread1(r.p * e**2 * e.clamp_max(50).exp()) / 2)
