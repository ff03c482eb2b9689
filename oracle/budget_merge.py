"""The error that merging partial results may add, for every element of output and LSE.

Part i of S that are not empty has output o_i and log-sum-exp z_i; L = log sum e^z_i, weights
p_i = e^(z_i - L), o = sum p_i o_i. What is held of a part may be off by d_i and by c_i. A merge
makes weights off by factors e^eta_i, |eta_i| <= E_i, and whatever is common to all cancels:

    o^ - o = sum p_i (e^eta_i - 1)(o_i - o) / sum p_i e^eta_i

    C = e^M sum p_i [(e^E_i - 1)|o_i - o| + e^E_i d_i],     M = log sum p_i e^E_i

since the denominator is at least e^-M (Jensen); and, as weights that sum to 1 stay in the hull,
C <= max (|o_i - o| + d_i). A kernel gets its output in one of two ways; the larger bound counts.

*It divides by the sum of weights*, at the end or each weight, maximum first or with rescaling:

    E_i = c_i + u |z_i| + 3u (L - z_i) + r_i u_exp
    |o^ - o| <= C + sum p_i (u (S + r_i) + u_div)|o_i| + K |o|,     K = u (S - 1 + sum p_i r_i)

for z_i log2 e; the difference, its product with log2 e and that constant; and exponentials, which
are exact at 0: whatever the order, weight i meets one for each part of a larger z at most, r_i of
them, and as many rescales. Sums are fp32, rounded to nearest.

*It computes weights anew once their sum is known*, exp(z_i - L^) or exp(z_i - m) / l^: errors of
the sum do not cancel, but each weight takes part in one exponential only:

    E_i = c_i + u |z_i| + 3u (L - z_i) + u_exp
    |o^ - o| <= C + sum p_i (u S + u_div)|o_i|
                  + |o| (K + u_log + 2u log l + u |L| + sum p_i [6u (L - z_i) + (1 + r_i) u_exp])

where L^ = m + log l, m the largest z. The LSE, with the E_i of the first way, is off by

    M + K + u_log + 2u log l + 3u |L|

for the last sum, the product with ln 2, and both constants; u_log is relative beyond log l = 1.
With a fused exp2(z c - m c) the product m c is off by u |m|, anew for each part and each rescale.
What is below 2^-126 may be flushed to 0. Then both results are rounded to the dtype that they are
kept in: along a tree that happens at each node, so that the error grows with depth, not with the
number of parts.

A part (out, lse) is the state m = z, l = 1, u = o. One that comes as another state has m_i for z_i
in |z_i|, L - z_i, log l and r_i, with z_i - log l_i <= m_i <= z_i, and the product with l_i in K.
A kernel that carries a running (out, lse) is a chain of merges of two (`merged_along`).
Not covered are updates o - s (o - o_i), lse - log s with a sigmoid s: where parts are far apart
their errors are relative to the larger numbers, whatever these weigh.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.budget import GROWTH
from kernelassay.oracle.budget_lse import LOG_U
from kernelassay.oracle.budget_scores import U32
from kernelassay.oracle.budget_terms import TINY
from kernelassay.oracle.formats import Format, format_of
from kernelassay.oracle.merging import Tree, finish, fold, merge, state_of
from kernelassay.oracle.numerics import Numerics


@dataclass(frozen=True, eq=False)
class Part:
    """The true (out, lse) of a part or a merge, float64, and how far what is held may be off."""

    out: Tensor  # [..., Dv]
    lse: Tensor  # [...], natural logarithms, -inf for the empty part
    out_allowed: Tensor  # [..., Dv]
    lse_allowed: Tensor  # [...]


def exact_part(out: Tensor, lse: Tensor) -> Part:
    """A part that is given to a merge as it is: its numbers are the truth."""
    out, lse = finish(state_of(out, lse))
    return Part(out, lse, torch.zeros_like(out), torch.zeros_like(lse))


def rounded_part(out: Tensor, lse: Tensor, numerics: Numerics, *, sums: float = 1.0) -> Part:
    """A true part of which a merge is given a rounding, to the dtypes of resolved *numerics*.

    Of a state u, m and l are rounded; l is between 1 and *sums*, and of the dtype of m.
    """
    out, lse = finish(state_of(out, lse))
    size = torch.where(lse > -torch.inf, lse, 0.0).abs() + math.log(sums)
    of_out, of_lse = format_of(numerics.out), format_of(numerics.lse)
    of_sum = of_lse.unit * (sums > 1)
    return Part(
        out,
        lse,
        _rounding(out, of_out) * (1 + 2 * of_sum) + 2 * of_sum * out.abs(),
        _rounding(size, of_lse) + 2 * of_sum,
    )


def merged(*parts: Part, numerics: Numerics, sums: float = 1.0) -> Part:
    """One merge of all parts, at least one, by a kernel of resolved *numerics*.

    Parts that come as states have an l between 1 and *sums*; those that come as (out, lse), of 1.
    Where all parts are empty so is the result, and allowances are next to nothing, but not 0.
    """
    g, x = _given(parts, math.log(sums)), numerics
    exps = g.turns * x.exp_u + (1 + g.turns) * (x.fma * U32 * g.largest)
    errors = g.errors + exps
    adds = U32 * ((g.count - 1).clamp_min(0) + (sums > 1) + g.mean(g.turns, errors))
    log = LOG_U * g.log_l.clamp_min(1) + 2 * U32 * g.log_l
    out = torch.maximum(_divided(g, x, errors, adds), _anew(g, x, exps, adds, log)) + _flushed(g)
    lse = torch.logsumexp(g.log_p + errors, 0).clamp_min(0) + adds + log + 3 * U32 * g.size
    return Part(
        g.out,
        g.lse,
        out + _last(g.out.abs() + out, format_of(x.out)),
        lse + _last(g.size + lse, format_of(x.lse)),
    )


def merged_along(
    tree: Tree,
    parts: Sequence[Part],
    numerics: Numerics,
    inner: Numerics | None = None,
    *,
    sums: float = 1.0,
) -> Part:
    """The parts merged along *tree*, each node by `merged`: below the root by *inner*, if any.

    Where results are states, *sums* is the largest l of any.
    """
    if isinstance(tree, int):
        return parts[tree]
    within = inner or numerics
    below = [fold(x, parts, lambda *some: merged(*some, numerics=within, sums=sums)) for x in tree]
    return merged(*below, numerics=numerics, sums=sums)


@dataclass(frozen=True, eq=False)
class _Given:
    """Parts of a merge side by side, 0 where empty."""

    out: Tensor  # o [..., Dv]
    lse: Tensor  # L [...]
    size: Tensor  # |L^|, at most [...], 0 if all are empty
    count: Tensor  # S [...]
    log_p: Tensor  # [S, ...], -inf where empty
    sizes: Tensor  # |o_i| + d_i [S, ..., Dv]
    away: Tensor  # |o_i - o| [S, ..., Dv]
    off: Tensor  # d_i [S, ..., Dv]
    below: Tensor  # L - m_i of what is held, at most [S, ...]
    log_l: Tensor  # the least of them [...]
    largest: Tensor  # the most of |L| and |m_i| [...]
    turns: Tensor  # r_i [S, ...]
    errors: Tensor  # E_i without exponentials [S, ...]

    def mean(self, values: Tensor, errors: Tensor) -> Tensor:
        """At most the mean of *values* [S, ...] with weights that are off by *errors*."""
        return torch.minimum((self.grown(errors) * values).sum(0), values.amax(0))

    def grown(self, errors: Tensor) -> Tensor:
        """e^M p_i e^E_i, at most what weights that are off by E_i may be; [S, ...]."""
        total = self.log_p + errors
        return (total + torch.logsumexp(total, 0).clamp_min(0)).clamp_max(GROWTH).exp()


def _given(parts: Sequence[Part], log_sums: float) -> _Given:
    """What a merge is given, whichever its way; in a state m is below z by up to *log_sums*."""
    out, lse = finish(merge(*(state_of(part.out, part.lse) for part in parts)))
    z, c = (torch.stack(x) for x in zip(*((p.lse, p.lse_allowed) for p in parts), strict=True))
    o, d = (torch.stack(x) for x in zip(*((p.out, p.out_allowed) for p in parts), strict=True))
    here = z > -torch.inf
    z, c, level = (
        torch.where(x > -torch.inf, x, 0.0) for x in (z, torch.where(here, c, 0.0), lse)
    )
    o, d = (torch.where(here[..., None], x, 0.0) for x in (o, d))
    below = torch.where(here, level - z + c + c.amax(0) + log_sums, 0.0)
    far = torch.where(here, z.abs() + c + log_sums, 0.0)
    return _Given(
        out=out,
        lse=lse,
        size=level.abs() + c.amax(0),
        count=here.sum(0),
        log_p=torch.where(here, z - level, -torch.inf),
        sizes=o.abs() + d,
        away=torch.where(here[..., None], o - out, 0.0).abs(),
        off=d,
        below=below,
        log_l=torch.where(here, below, below.amax(0)).amin(0),
        largest=torch.maximum(far.amax(0), level.abs() + c.amax(0)),
        turns=_turns(z - c - log_sums, z + c, here),
        errors=c + U32 * far + 3 * U32 * below,
    )


def _turns(low: Tensor, high: Tensor, here: Tensor) -> Tensor:
    """How many other parts may be larger than each part, between *low* and *high*; [S, ...]."""
    high = torch.where(here, high, -torch.inf)
    others = torch.stack([(high > x).sum(0) for x in low]) - (high > low).long()
    return torch.where(here, others, 0)


def _divided(g: _Given, x: Numerics, errors: Tensor, adds: Tensor) -> Tensor:
    """The error of sum w_i o_i / sum w_i, or of sum (w_i / sum w_j) o_i."""
    return _off(g, errors, U32 * (g.count + g.turns) + x.div_u, adds)


def _anew(g: _Given, x: Numerics, exps: Tensor, adds: Tensor, log: Tensor) -> Tensor:
    """The error of sum exp(z_i - L^) o_i, or of sum (exp(z_i - m) / l^) o_i, l^ summed before."""
    errors = g.errors + x.exp_u
    weights = g.mean(6 * U32 * g.below + x.exp_u + exps, errors)
    common = adds + log + U32 * g.size + weights + x.fma * U32 * g.largest
    return _off(g, errors, U32 * g.count.expand_as(g.turns) + x.div_u, common)


def _off(g: _Given, errors: Tensor, relative: Tensor, common: Tensor) -> Tensor:
    """The error of an output whose weights are off by *errors*, each by itself.

    Products p_i o_i are off by a share *relative*, and all of it by a share *common*.
    """
    grown = g.grown(errors)[..., None]
    moved = grown * -torch.expm1(-errors)[..., None]
    centred = torch.minimum((moved * g.away + grown * g.off).sum(0), (g.away + g.off).amax(0))
    noise = relative[..., None] * g.sizes
    noise = torch.minimum((grown * noise).sum(0), noise.amax(0))
    common = common[..., None].clamp_max(GROWTH)
    return centred + common.exp() * noise + torch.expm1(common) * (g.out.abs() + centred)


def _flushed(g: _Given) -> Tensor:
    """What weights, products, sums and results below fp32's normal range leave when they are 0.

    A weight is relative to the largest part, and their sum at least 1.
    """
    each = g.out.abs() + 3  # the weight where it does not cancel; o_i, the product, the sum
    return TINY * (g.sizes.sum(0) + g.count[..., None] * each + 2)


def _rounding(size: Tensor, to: Format) -> Tensor:
    """At most how far rounding to a format moves a number of at most this size."""
    return (to.unit * size.abs()).clamp_min(to.eta)


def _last(size: Tensor, to: Format) -> Tensor:
    """The rounding of a result to the dtype it is kept in; none in fp32, where it is made."""
    return _rounding(size, to) if to.unit > U32 else torch.zeros_like(size)
