"""How far a law that is computed in fp32 may be off, and which tokens its maps may confuse.

*An entry.* x_i = z_i / T are the scaled logits of the tokens kept, m the largest, d_i = m - x_i,
p_i = e^-d_i / sum_j e^-d_j. A kernel's weight is e^(-d_i + eta_i), and what is common to all of a
row cancels: the error of its m, above all. Of eta_i there remain

    E_i = u_div |x_i|                     z_i / T, rounded before m is subtracted; exact for a T
                                          that is a power of two, if z_i log2 e is not taken first
        + 4 u d_i                         the reciprocal of T, the difference, its product with
                                          log2 e and that constant, of rounded x_i and m
        - log (1 - u_exp)                 the exponential
        - (s - 1) log (1 - u_div)         for s normalisations: all but the last divide first

A weight p_i e^eta_i / sum_j p_j e^eta_j rises with eta_i and falls with each other eta_j, so that

    p_i+ = p_i e^E_i / (p_i e^E_i + sum_{j != i} p_j e^-E_j)

and p_i- with the signs turned are the ends of what is possible, and are reached. A sum of terms
none of which is negative, each part of at most a additions, is off by a share of at most
g = a u / (1 - a u); n terms in any order have a <= n - 1. With the quotient

    p_i^ - p_i <= (p_i+ - p_i) (1 + c) + c p_i        c = (1 + u_div) / (1 - g) - 1
    p_i - p_i^ <= (p_i - p_i-) + c p_i

Weights, sums and results below 2^-126 may be flushed: with sums of at least 1 / n that adds
2^-126 (2n + 3) at most. No entry exceeds 1. Assumed is that scaled logits are finite in fp32.

*A boundary.* What a map keeps is decided by sums and ratios of the same weights. Token j is surely
ahead of i if x_j - E_j > x_i + E_i, or if their logits are equal and the ids decide; otherwise,
unless i is surely ahead of j, it may be. Of a map's input only a lower and an upper set may be
known; a token has

    top-k   between the surely and the possibly ahead before it: kept below k
    top-p   before it a share X / (X + Y), X of those ahead, Y of itself and the rest, with the
            ends of X and Y as above, and off by at most 2g + 3u + u_div, whether it is summed
            from the likeliest down or its complement from the other end up: kept below p
    min-p   log(p_i / max p) = -d_i, off by E_i + E_max + u_div + 2u (1 + |log min_p|)

The token that nothing can be ahead of is kept by top-p, one as likely as the likeliest by min-p.

Sources: Higham 2002, section 4.2 (sums).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.budget import GROWTH
from kernelassay.oracle.budget_terms import TINY
from kernelassay.oracle.sampling_maps import Ties

ORDER = ("mask", "temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, kw_only=True)
class LawUnits:
    """The relative errors of a kernel's arithmetic."""

    unit: float = 2.0**-24
    """u: of a sum or product."""
    exp_unit: float = 2.0**-22
    """u_exp: of an exponential, beyond what its argument's rounding explains."""
    div_unit: float = 2.0**-24
    """u_div: of a quotient."""
    adds: int | None = None
    """a: the most additions that a term of a sum is part of; None: any order. A rescaled running
    sum counts 1 + u_exp / u for each rescale."""
    prescaled: bool = False
    """logits are multiplied by log2 e before the largest is subtracted."""
    normalisations: int = 1
    """how often weights are divided by their sum."""


FP32 = LawUnits()


def law_budget(
    logits: Tensor,
    temperature: Tensor | None,
    kept: Tensor,
    unit: float = FP32.unit,
    exp_unit: float = FP32.exp_unit,
    units: LawUnits | None = None,
) -> Tensor:
    """How far each entry of softmax(logits / temperature) over *kept* may be off; [R, V] float64.

    logits [R, V] and temperature [R] (None: 1) are numbers as the kernel is given them; kept [R,
    V] bool, with a token of a finite logit in each row. 0 where a token is removed. *units* says
    more than *unit* and *exp_unit*, and replaces them. ValueError where a row keeps nothing.
    """
    units = units or LawUnits(unit=unit, exp_unit=exp_unit)
    x = scaled_logits(logits, temperature).masked_fill(~kept, -math.inf)
    if not (x > -math.inf).any(-1).all():
        raise ValueError("law_budget: got a row that keeps nothing, expected a token in each")
    errors = _log_errors(x, temperature, units)
    far = x - x.amax(-1, keepdim=True)
    low, high = far - errors, far + errors
    p = torch.sigmoid(far - _others(far))
    above = torch.sigmoid(high - _others(low)) - p
    below = p - torch.sigmoid(low - _others(high))
    n = (x > -math.inf).sum(-1, keepdim=True)
    share = (1 + units.div_unit) / (1 - _sum_error(n, units)) - 1
    off = torch.maximum(above * (1 + share), below) + share * p + TINY * (2 * n + 3)
    return torch.where(x > -math.inf, off.clamp_max(1.0), 0.0)


def boundary(
    logits: Tensor,
    temperature: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    order: Sequence[str] = ORDER,
    top_k_ties: Ties = "all",
    top_p_ties: Ties = "index",
    exact_top_k: bool = False,
    units: LawUnits = FP32,
) -> tuple[Tensor, Tensor]:
    """Tokens whose entry is surely positive, and tokens whose entry is surely 0: [R, V] bool.

    logits and mask [R, V], the others [R]; a map that is None is off, and *order* is that of the
    maps. With *exact_top_k* the kernel compares the logits themselves, and only bits that are
    equal tie; otherwise quotients or weights, where logits that nearly tie may be taken for equal
    or in either order. What may underflow is neither; nor is, at p = 1, what no sum may notice.
    """
    z, heat = logits.double(), None
    sets = z > -math.inf, z > -math.inf
    ranked = _ranked_under(z, heat, units)
    for name in order:
        if name == "mask" and mask is not None:
            z = torch.where(mask, z, -math.inf)
            sets = sets[0] & mask, sets[1] & mask
            ranked = _ranked_under(z, heat, units)
        elif name == "temperature":
            heat = temperature
            ranked = _ranked_under(z, heat, units)
        elif name == "top_k" and top_k is not None:
            ranks = _ranked(z, torch.zeros_like(z)) if exact_top_k else ranked
            sets = _top_k(ranks, sets, top_k[:, None], top_k_ties)
        elif name == "top_p" and top_p is not None:
            sets = _top_p(ranked, sets, top_p[:, None].double(), top_p_ties, units)
        elif name == "min_p" and min_p is not None:
            sets = _min_p(ranked, sets, min_p[:, None].double(), units)
    x = ranked.x
    sure, maybe = sets
    total = torch.logsumexp((x + ranked.errors).masked_fill(~maybe, -math.inf), -1, keepdim=True)
    positive = x - ranked.errors - total > -125 * math.log(2)  # not flushed
    return sure & positive, ~maybe


def scaled_logits(logits: Tensor, temperature: Tensor | None) -> Tensor:
    """z / T in float64: logits [R, V], temperature [R] or None."""
    return logits.double() / (1.0 if temperature is None else temperature.double()[:, None])


@dataclass(frozen=True, eq=False)
class _Ranked:
    """The tokens of each row, likeliest first; counts of those before each; all [R, V]."""

    x: Tensor  # scaled logits, in the order of the vocabulary
    errors: Tensor  # E, likewise
    order: Tensor  # the ids; what follows is in this order
    surely: Tensor  # how many tokens are surely larger
    larger: Tensor  # larger
    equal: Tensor  # at least as large
    perhaps: Tensor  # perhaps as large

    def ahead(self, values: Tensor, ties: Ties) -> tuple[Tensor, Tensor]:
        """The sum of *values* [R, V] over tokens surely, and over those possibly, ahead of each.

        Of tokens that tie those of lower ids are ahead, or none.
        """
        sums = values.double().gather(-1, self.order).cumsum(-1)
        sums = torch.cat((torch.zeros_like(sums[:, :1]), sums), -1)

        def first(count: Tensor) -> Tensor:
            return sums.gather(-1, count)

        tied = sums[:, :-1] - first(self.larger) if ties == "index" else 0.0
        least = first(self.surely) + tied
        most = first(self.perhaps) - first(self.equal) + first(self.larger) + tied
        empty = torch.empty_like(sums[:, 1:])
        return empty.scatter(-1, self.order, least), empty.scatter(-1, self.order, most)


def _ranked(x: Tensor, errors: Tensor) -> _Ranked:
    """x [R, V] and how far each may be off."""
    ordered, order = x.sort(dim=-1, descending=True, stable=True)
    errors_of = errors.gather(-1, order)
    middle, high, low = -ordered, -ordered - errors_of, -ordered + errors_of  # ascending
    return _Ranked(
        x,
        errors,
        order,
        surely=torch.searchsorted(low, high),
        larger=torch.searchsorted(middle, middle),
        equal=torch.searchsorted(middle, middle, right=True),
        perhaps=torch.searchsorted(high, low, right=True),
    )


def _ranked_under(z: Tensor, temperature: Tensor | None, units: LawUnits) -> _Ranked:
    """Logits [R, V] under a temperature, as fp32 has them."""
    x = scaled_logits(z, temperature)
    return _ranked(x, _log_errors(x, temperature, units))


Sets = tuple[Tensor, Tensor]
"""The tokens [R, V] that are surely left, and those that may be."""


def _top_k(ranked: _Ranked, sets: Sets, k: Tensor, ties: Ties) -> Sets:
    sure, maybe = sets
    return sure & (ranked.ahead(maybe, ties)[1] < k), maybe & (ranked.ahead(sure, ties)[0] < k)


def _top_p(ranked: _Ranked, sets: Sets, p: Tensor, ties: Ties, units: LawUnits) -> Sets:
    sure, maybe = sets
    n = maybe.sum(-1, keepdim=True)
    slack = 2 * _sum_error(n, units) + 3 * units.unit + units.div_unit
    far = ranked.x - ranked.x.masked_fill(~maybe, -math.inf).amax(-1, keepdim=True)
    light = torch.where(sure, (far - ranked.errors).clamp_max(GROWTH).exp(), 0.0)
    heavy = torch.where(maybe, (far + ranked.errors).clamp_max(GROWTH).exp(), 0.0)
    before, rest = ranked.ahead(heavy, ties)[1], ranked.ahead(light, ties)[1]
    most = before / (before + light.sum(-1, keepdim=True) - rest)
    kept = sure & ((before == 0) | (most + slack < p))
    before, rest = ranked.ahead(light, ties)[0], ranked.ahead(heavy, ties)[0]
    least = before / (before + heavy.sum(-1, keepdim=True) - rest)
    return kept, maybe & ((before == 0) | (least - slack < p))


def _min_p(ranked: _Ranked, sets: Sets, share: Tensor, units: LawUnits) -> Sets:
    sure, maybe = sets
    lowest, highest = (
        ranked.x.masked_fill(~some, -math.inf).amax(-1, keepdim=True) for some in sets
    )
    of_top = ranked.errors.gather(-1, ranked.x.masked_fill(~maybe, -math.inf).argmax(-1)[:, None])
    log = share.log()
    slack = ranked.errors + of_top + units.div_unit
    slack = slack + 2 * units.unit * (1 + log.abs().clamp_max(GROWTH))
    kept = (ranked.x - highest - slack > log) | (ranked.x == highest)
    return sure & kept, maybe & (ranked.x - lowest + slack >= log)


def _log_errors(x: Tensor, temperature: Tensor | None, units: LawUnits) -> Tensor:
    """E [R, V] of scaled logits x, relative to the largest; 0 where x = -inf."""
    top = x.amax(-1, keepdim=True)
    powers = x.new_zeros(len(x)) if temperature is None else torch.frexp(temperature).mantissa
    rounded = units.prescaled | (powers % 0.5 != 0)[:, None]
    moved = rounded * units.div_unit * x.abs()
    errors = (
        moved
        + 4 * units.unit * (top - x + moved + rounded * units.div_unit * top.abs())
        - math.log1p(-units.exp_unit)
        - (units.normalisations - 1) * math.log1p(-units.div_unit)
    )
    return torch.where(x > -math.inf, errors, 0.0)


def _sum_error(n: Tensor, units: LawUnits) -> Tensor:
    """g of a sum of n [R, 1] terms, n u below 1."""
    adds = n - 1 if units.adds is None else torch.full_like(n, units.adds)
    off = adds.double() * units.unit
    return off / (1 - off)


def _others(x: Tensor) -> Tensor:
    """log sum_{j != i} e^x_j of each row of x [R, V], -inf where no other is; no cancellation."""
    none = torch.full_like(x[:, :1], -math.inf)
    before = torch.cat((none, x[:, :-1]), -1).logcumsumexp(-1)
    after = torch.cat((x[:, 1:], none), -1).flip(-1).logcumsumexp(-1).flip(-1)
    return torch.logaddexp(before, after)
