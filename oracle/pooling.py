"""What a table of counts looks like against its law: pooled cells, chi-squared family, exact p.

With counts c_i of n samples and a law p_i, the power divergences (Cressie and Read 1984)

    2 / (s (s + 1)) sum c_i ((c_i / (n p_i))^s - 1)      s = 1 Pearson, 2/3 Cressie-Read, 0 G

follow chi-squared with (cells - 1) degrees where every expected count is 5 or more. That holds to
a few percent down to p = 1e-3 and fails by orders of magnitude beyond (two cells, expected 5,
level 1e-11: true size 8e-8), so these numbers screen and illustrate; `statistics` decides.
"""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Groups = tuple[tuple[int, ...], ...]
"""Cell numbers, pooled; cells of probability 0 are in none."""

LEAST = 5.0
"""Smallest expected count of a pooled cell: below it the size at 1e-2 leaves its 3 %."""

SLACK = 2.0**-30
"""A law may miss the sum 1 by this: over 2^20 samples it moves log E by 2^-10 at most. A law
computed in float32 misses by more, and must: its own rounding would be blamed on the sampler."""

TABLES = 20_000
"""Tables that are enumerated, and Monte Carlo draws where there are more: some 20 ms."""

KINDS = ("pearson", "cressie-read", "log-likelihood", "freeman-tukey")
"""SciPy's names; its two others are infinite at an empty cell."""


def law_of(law: npt.ArrayLike, name: str = "law") -> Floats:
    """The law as float64 [k] of sum 1; floats, Fractions or a tensor.

    Raises ValueError, with the argument's name, unless it is one-dimensional, finite, nonnegative
    and sums to 1 within rounding.
    """
    try:
        p = np.asarray(law, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise ValueError(f"{name}: numbers expected, got {law!r}") from e
    if p.ndim != 1 or p.size == 0:
        raise ValueError(f"{name}: shape [cells] expected, got {list(p.shape)}")
    if not np.isfinite(p).all() or (p < 0).any():
        at = int(np.flatnonzero(~(np.isfinite(p) & (p >= 0)))[0])
        raise ValueError(f"{name}: probabilities expected, got {name}[{at}] = {p[at]}")
    total = math.fsum(p)
    if abs(total - 1) > SLACK:
        raise ValueError(f"{name}: sum 1 expected within {SLACK:.0e}, got {total!r}")
    return p / total


def counts_of(counts: npt.ArrayLike, shape: tuple[int, ...], name: str = "counts") -> Ints:
    """The counts as int64 [..., *shape].

    Raises ValueError, with the argument's name, for other shapes, negative or broken numbers.
    """
    c = np.asarray(counts)
    if c.dtype.kind not in "iuf":
        raise ValueError(f"{name}: whole numbers expected, got {c.dtype}")
    if c.ndim < len(shape) or c.shape[c.ndim - len(shape) :] != shape:
        raise ValueError(f"{name}: shape [..., {str(shape)[1:-1]}] expected, got {list(c.shape)}")
    if not (np.isfinite(c) & (c >= 0) & (c == np.floor(c)) & (c < 2.0**53)).all():
        raise ValueError(f"{name}: whole numbers from 0 expected, got {c.min()} to {c.max()}")
    return c.astype(np.int64)


def contingency(x: npt.ArrayLike, y: npt.ArrayLike, shape: tuple[int, int]) -> Ints:
    """How often x = i together with y = j: [a, b] from two sequences of one length."""
    a, b = np.asarray(x), np.asarray(y)
    for name, s, k in (("x", a, shape[0]), ("y", b, shape[1])):
        if s.dtype.kind not in "iu" or s.ndim != 1 or ((s < 0) | (s >= k)).any():
            raise ValueError(f"{name}: a sequence of numbers from 0 to {k - 1} expected")
    if a.size != b.size:
        raise ValueError(f"y: {a.size} numbers expected, as in x, got {b.size}")
    return np.bincount(a * shape[1] + b, minlength=math.prod(shape)).reshape(shape)


def groups(law: Floats, samples: int, least: float = LEAST) -> Groups:
    """Every group expects `least` counts or more, unless there is one group only.

    Cells are taken from the rarest upwards and a group is closed once it is full: many small
    groups instead of one rest keep most faults among rare cells visible. Depends on no count.
    """
    support = np.flatnonzero(law > 0)
    full: list[tuple[int, ...]] = []
    now: list[int] = []
    expected = 0.0
    for i in support[np.argsort(law[support], kind="stable")]:
        now.append(int(i))
        expected += samples * float(law[i])
        if expected >= least:
            full.append(tuple(now))
            now, expected = [], 0.0
    if now:  # what is left joins the last group
        full[-1:] = [(*full[-1], *now)] if full else [tuple(now)]
    return tuple(full)


def pooled(values: Floats | Ints, parts: Groups) -> Floats:
    """Sums over the groups: [..., k] -> [..., groups]."""
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    order = [i for part in parts for i in part]
    return np.add.reduceat(values[..., order].astype(np.float64), starts, axis=-1)


@dataclass(frozen=True)
class Cell:
    """Cells of the table pooled into one: their numbers, the count seen, the count expected."""

    members: tuple[int, ...]
    observed: int
    expected: float


def cells(counts: npt.ArrayLike, law: npt.ArrayLike, least: float = LEAST) -> tuple[Cell, ...]:
    """The pooled table of counts [k], impossible cells that were hit first; no count is lost."""
    p = law_of(law)
    c = counts_of(counts, p.shape)
    if c.ndim != 1:
        raise ValueError(f"counts: one table [cells] expected, got {list(c.shape)}")
    n = int(c.sum())
    parts = groups(p, n, least)
    struck = [Cell((int(i),), int(c[i]), 0.0) for i in np.flatnonzero((p == 0) & (c > 0))]
    seen, mass = pooled(c, parts), pooled(p, parts)
    sums = zip(parts, seen, mass, strict=True)
    return (*struck, *(Cell(g, int(o), n * float(e)) for g, o, e in sums))


class Divergence(NamedTuple):
    """Statistic and asymptotic p-value [...], and the degrees of freedom after pooling."""

    statistic: Floats
    p_value: Floats
    degrees: int


def divergence(
    counts: npt.ArrayLike,
    law: npt.ArrayLike,
    kind: str = "cressie-read",
    least: float = LEAST,
) -> Divergence:
    """The statistic of counts [..., k], cells pooled; infinite where an impossible cell is hit.

    All tables have one total, on which the pooling depends. With fewer than two groups there is
    nothing to see: statistic 0, p 1. Source: `scipy.stats.power_divergence`.
    """
    p = law_of(law)
    c = counts_of(counts, p.shape)
    totals = np.unique(c.sum(-1))
    if totals.size > 1:
        raise ValueError(f"counts: tables of one total expected, got {totals[0]} to {totals[-1]}")
    if kind not in KINDS:
        raise ValueError(f"kind: one of {', '.join(KINDS)} expected, got {kind!r}")
    struck = np.asarray((c[..., p == 0] > 0).any(-1))
    n = int(totals[0]) if totals.size else 0
    parts = groups(p, n, least)
    if n == 0 or len(parts) < 2:
        return Divergence(np.where(struck, np.inf, 0.0), np.where(struck, 0.0, 1.0), 0)
    seen, expected = pooled(c, parts), n * pooled(p, parts)
    # Tables with impossible cells lack those counts here; SciPy insists on equal sums.
    seen = np.where(struck[..., None], expected, seen)
    statistic = stats.power_divergence(seen, expected, axis=-1, lambda_=kind).statistic
    statistic = np.maximum(statistic, 0.0)  # of equal counts -1e-14, of which SciPy's p is NaN
    p_value = stats.chi2.sf(statistic, len(parts) - 1)
    return Divergence(
        np.where(struck, np.inf, statistic), np.where(struck, 0.0, p_value), len(parts) - 1
    )


class ExactP(NamedTuple):
    """A p-value whose level holds at every n; `upper` bounds the enumerated one.

    By Monte Carlo p = (1 + hits) / (1 + draws), which is itself a valid p-value (Phipson and
    Smyth 2010), and `upper` is the Clopper-Pearson bound, wrong in one run of a million.
    """

    p: float
    upper: float
    enumerated: bool


def tables(samples: int, k: int) -> Ints:
    """All tables [., k] of so many samples, by stars and bars."""
    slots = samples + k - 1
    bars = np.array(list(combinations(range(slots), k - 1)), dtype=np.int64)
    bars = bars.reshape(math.comb(slots, k - 1), k - 1)
    ends = np.full((len(bars), 1), slots)
    return np.diff(np.concatenate([ends * 0 - 1, bars, ends], 1), axis=1) - 1


def log_probability(counts: Ints, law: Floats) -> Floats:
    """Log multinomial probability of tables [..., k]; -inf where an impossible cell is hit."""
    ways = special.gammaln(counts.sum(-1) + 1.0) - special.gammaln(counts + 1.0).sum(-1)
    return np.asarray(ways + special.xlogy(counts, law).sum(-1))


def exact_p(
    counts: npt.ArrayLike, law: npt.ArrayLike, limit: int = TABLES, seed: int = 0
) -> ExactP:
    """The probability, under the law, of a Cressie-Read statistic as large as that of counts [k].

    No pooling. Up to `limit` tables are enumerated; beyond, `limit` tables are drawn.
    """
    p = law_of(law)
    c = counts_of(counts, p.shape)
    if c.ndim != 1:
        raise ValueError(f"counts: one table [cells] expected, got {list(c.shape)}")
    if limit < 1:
        raise ValueError(f"limit: 1 or more tables expected, got {limit}")
    if (c[p == 0] > 0).any():
        return ExactP(0.0, 0.0, True)
    c, p, n = c[p > 0], p[p > 0], int(c.sum())
    # Equal statistics differ by rounding: those count as reached, which errs towards larger p.
    reached = float(divergence(c, p, least=0.0).statistic) * (1 - 1e-9) - 1e-9
    if math.comb(n + len(p) - 1, n) <= limit:
        all_of_them = tables(n, len(p))
        hit = divergence(all_of_them, p, least=0.0).statistic >= reached
        value = min(1.0, math.fsum(np.exp(log_probability(all_of_them[hit], p))))
        return ExactP(value, value, True)
    drawn = np.random.default_rng(seed).multinomial(n, p, size=limit)
    hits = int((divergence(drawn, p, least=0.0).statistic >= reached).sum())
    upper = 1.0 if hits == limit else float(stats.beta.isf(1e-6, hits + 1, limit - hits))
    return ExactP((1 + hits) / (1 + limit), upper, False)
