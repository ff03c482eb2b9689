"""Temperature, top-k, top-p, min-p and masks are maps from logits to laws.

Two twins. Exact: a token's logit z is given by its mass e^z, a Fraction, 0 for z = -inf; a map
takes masses, in any common unit, and returns a law. Float64: a map takes logits [..., V] of any
float dtype and returns float64 logits, -inf where a token is removed; law_of ends the chain.

    temperature T   z / T, so mass ^ (1 / T)
    top-k           the k likeliest tokens; of those that tie with the k-th all, or the lowest ids
    top-p           the shortest run of tokens, likeliest first, of share at least p: the token
                    that crosses p is kept, the one after a run of exactly p is not
    min-p           tokens with law >= m max law

Ties in top-p: the lowest ids come first, or all tokens as likely as the last one kept are kept.
Maps do not commute: the order is the caller's (mostly temperature, top-k, top-p, min-p).

Sources: Holtzman et al. 2020 (top-p); Nguyen et al. 2024 (min-p); Fan et al. 2018 (top-k).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from kernelassay.oracle.speculative import Law, normalised

Masses = Sequence[Fraction | int]
Ties = Literal["all", "index"]


def tempered(masses: Masses, temperature: Fraction | int) -> Law:
    """The law of logits z / T. ValueError where mass ^ (1 / T) is irrational, and for T <= 0.

    Always exact for T = 1, 1/2, 1/3 ...; for T = 2 the masses must be squares of rationals. The
    limit T = 0 is speculative.one_hot of the greedy choice.
    """
    if temperature <= 0:
        raise ValueError(f"tempered: got temperature {temperature}, expected above 0")
    power = 1 / Fraction(temperature)
    return normalised([_root(Fraction(w) ** power.numerator, power.denominator) for w in masses])


def masked(masses: Masses, allowed: Sequence[bool]) -> Law:
    """The law of the allowed tokens. At least one of them must be possible."""
    return normalised([w if a else 0 for w, a in zip(masses, allowed, strict=True)])


def top_k(masses: Masses, k: int, ties: Ties = "all") -> Law:
    """The law of the k likeliest tokens, 1 <= k; a k beyond the vocabulary keeps all."""
    _check_top_k(k)
    order = _likeliest_first(masses)[:k]
    return masked(masses, _with_ties(masses, order, ties))


def top_p(masses: Masses, p: Fraction | int, ties: Ties = "index") -> Law:
    """The law of the shortest run of likeliest tokens whose share is at least p, 0 < p <= 1."""
    _check_top_p(p)
    law, before = normalised(masses), Fraction(0)
    kept: list[int] = []
    for x in _likeliest_first(law):
        if before >= p:
            break
        kept.append(x)
        before += law[x]
    return masked(law, _with_ties(law, kept, ties))


def min_p(masses: Masses, share: Fraction | int) -> Law:
    """The law of the tokens at least *share* times as likely as the likeliest, 0 <= share <= 1."""
    _check_min_p(share)
    return masked(masses, [w >= share * max(masses) for w in masses])


def top_p_margin(masses: Masses, p: Fraction | int) -> Fraction:
    """How far p is from where top-p keeps another set; 1 where one token has all the mass.

    Where it is below the rounding of a cumulated sum, floats may keep a token more or less.
    """
    law, before = normalised(masses), Fraction(0)
    margin = Fraction(1)
    for x in _likeliest_first(law):
        if 0 < before < 1:
            margin = min(margin, abs(before - p))
        before += law[x]
    return margin


def law_of(logits: Tensor) -> Tensor:
    """softmax in float64."""
    return torch.softmax(logits.double(), -1)


def tempered_logits(logits: Tensor, temperature: float) -> Tensor:
    """z / T, for any T > 0."""
    if not temperature > 0:
        raise ValueError(f"tempered_logits: got temperature {temperature}, expected above 0")
    return logits.double() / temperature


def masked_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """-inf where *allowed* (bool, broadcast against the logits) is false."""
    return torch.where(allowed, logits.double(), -math.inf)


def top_k_logits(logits: Tensor, k: int, ties: Ties = "all") -> Tensor:
    """The k likeliest tokens of each row keep their logits."""
    _check_top_k(k)
    ordered, order = logits.double().sort(dim=-1, descending=True, stable=True)
    keep = torch.arange(logits.shape[-1], device=logits.device).expand(logits.shape) < k
    return masked_logits(logits, _unsorted(ordered, order, keep, ties))


def top_p_logits(logits: Tensor, p: float, ties: Ties = "index") -> Tensor:
    """The shortest run of likeliest tokens whose share is at least p keeps its logits."""
    _check_top_p(p)
    ordered, order = logits.double().sort(dim=-1, descending=True, stable=True)
    shares = law_of(ordered)
    before = torch.cat([torch.zeros_like(shares[..., :1]), shares.cumsum(-1)[..., :-1]], -1)
    return masked_logits(logits, _unsorted(ordered, order, before < p, ties))


def min_p_logits(logits: Tensor, share: float) -> Tensor:
    """Tokens at least *share* times as likely as the likeliest keep their logits."""
    _check_min_p(share)
    law = law_of(logits)
    return masked_logits(logits, law >= share * law.amax(-1, keepdim=True))


def _likeliest_first(masses: Masses) -> list[int]:
    return sorted(range(len(masses)), key=lambda x: -masses[x])  # stable: lowest ids first


def _with_ties(masses: Masses, kept: Sequence[int], ties: Ties) -> list[bool]:
    least = masses[kept[-1]]
    return [x in kept or (ties == "all" and w == least) for x, w in enumerate(masses)]


def _unsorted(ordered: Tensor, order: Tensor, keep: Tensor, ties: Ties) -> Tensor:
    """*keep*, a prefix of each sorted row, in the order of the vocabulary, widened by ties."""
    if ties == "all":
        least = torch.where(keep, ordered, math.inf).amin(-1, keepdim=True)
        keep = keep | (ordered == least)
    return torch.zeros_like(keep).scatter(-1, order, keep)


def _check_top_k(k: int) -> None:
    if k < 1:
        raise ValueError(f"top-k: got k = {k}, expected at least 1")


def _check_top_p(p: float | Fraction) -> None:
    if not 0 < p <= 1:
        raise ValueError(f"top-p: got p = {p}, expected 0 < p <= 1")


def _check_min_p(share: float | Fraction) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"min-p: got a share of {share}, expected 0 to 1")


def _root(x: Fraction, n: int) -> Fraction:
    """The rational n-th root of x >= 0."""
    root = Fraction(_floor_root(x.numerator, n), _floor_root(x.denominator, n))
    if root**n != x:
        raise ValueError(f"tempered: got the mass {x}, whose root of order {n} is irrational")
    return root


def _floor_root(x: int, n: int) -> int:
    """The largest r with r^n <= x, by Newton's iteration from above."""
    r: int = 1 << -(-x.bit_length() // n)
    while r**n > x:
        r = ((n - 1) * r + x // r ** (n - 1)) // n
    return r
