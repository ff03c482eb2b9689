"""Whether samples follow their law: e-values, levels, sample sizes, two stages.

The e-value of counts c of n samples against a law p is a mixture likelihood ratio,

    E = integral prod (t_i / p_i)^c_i dDirichlet(t; A p)
      = G(A) / G(A + n) prod G(A p_i + c_i) / (G(A p_i) p_i^c_i)        G the gamma function

Its expectation is 1 under p whatever n, p and the number of cells, and with A fixed beforehand it
is a martingale in n: P(E ever reaches 1 / level) <= level (Ville), with no approximation and no
pooling. A count in a cell of probability 0 makes it infinite. Sources: Gruenwald, de Heide,
Koolen, JRSS-B 86 (2024); Ramdas et al., arXiv 2210.01948.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from kernelassay.oracle.pooling import Cell, Floats, Ints, cells, counts_of, divergence, law_of

SCREEN = 1e-2
"""Level of the screen: from 1e-3 to 5e-2 the cost of a right sampler varies by 30 % only."""

FIRST_LOOK = 512
"""Samples at the first look of the decision; then doubled. Looks cost no level."""

Sampler = Callable[[str, int, int], npt.ArrayLike]
"""(stage, look, n) -> counts [k] of n samples; every (stage, look) has a seed of its own."""


@dataclass(frozen=True)
class Level:
    """A run of `tests` tests rejects some right sampler with probability `total` at most.

    Half of a run's 1e-6 is for samples, the rest for numerics; 50,000 tests are 50 laws with 1000
    cases each. The sum over tests bounds the family, whatever their dependence (Bonferroni).
    """

    total: float = 5e-7
    tests: int = 50_000

    def __post_init__(self) -> None:
        if not 0 < self.total < 1:
            raise ValueError(f"total: a level in (0, 1) expected, got {self.total}")
        if self.tests < 1:
            raise ValueError(f"tests: 1 or more expected, got {self.tests}")

    @property
    def each(self) -> float:
        """The share of one test."""
        return self.total / self.tests

    def split(self, tests: int) -> "Level":
        """One test's share, dealt again to the tests inside it."""
        return Level(self.each, tests)


EACH = Level().each
"""1e-11: rejects at log E >= 25.33."""


def strength(k: int, level: float) -> float:
    """The prior weight A = r n with which k cells reject soonest: this is r.

    Fixed point of r = df / (2 log(1/level) + df log(1 + 1/r)): the least of `threshold` over r.
    """
    in_unit(level=level)
    r, df = 1.0, k - 1
    if df < 1:
        return r  # one cell: E is 1 with any prior
    for _ in range(100):
        r = df / (-2 * math.log(level) + df * math.log1p(1 / r))
    return r


def threshold(k: int, level: float) -> float:
    """The G statistic at which E reaches 1 / level, for large counts."""
    r = strength(k, level)
    return 2 * (1 + r) * (-math.log(level) + (k - 1) / 2 * math.log1p(1 / r))


def log_evalue(counts: npt.ArrayLike, law: npt.ArrayLike, prior: float) -> Floats:
    """log E [...] of counts [..., k]; inf where an impossible cell was hit.

    `prior` is A, fixed before the first sample: strength(k, level) times the planned samples.
    The first count of a cell never raises E, however rare the cell: it takes a second to reject.
    """
    p = law_of(law)
    c = counts_of(counts, p.shape)
    if not (prior > 0 and math.isfinite(prior)):
        raise ValueError(f"prior: a positive number expected, got {prior}")
    some = p > 0
    struck = (c[..., ~some] > 0).any(-1)
    seen, q = c[..., some], p[some]
    whole = special.gammaln(prior) - special.gammaln(prior + seen.sum(-1))
    a = np.maximum(prior * q, 1e-300)  # of a subnormal q: at 0 the difference would be NaN
    parts = special.gammaln(a + seen) - special.gammaln(a) - seen * np.log(q)
    return np.where(struck, np.inf, whole + parts.sum(-1))


def log_average(log_e: npt.ArrayLike) -> float:
    """log of the mean of e-values: again an e-value, under any dependence between them."""
    e = np.asarray(log_e, dtype=np.float64).ravel()
    if e.size == 0 or np.isnan(e).any():
        raise ValueError("log_e: one or more numbers expected")
    return float(special.logsumexp(e)) - math.log(e.size)


@dataclass(frozen=True)
class Plan:
    """Samples by which a total variation of `effect` is missed with probability `miss` at most.

    `prior` is the A of the decision. Approximate (large counts), unlike the level.
    """

    cells: int
    effect: float
    level: float
    screen: int
    confirm: int
    prior: float


def plan(k: int, effect: float = 0.05, level: float = EACH, miss: float = 1e-3) -> Plan:
    """Sample sizes for k possible cells, from the non-central chi-squared law.

    The least visible fault of total variation d moves d between two halves of the mass: its
    noncentrality is 4 n d^2 (Cauchy-Schwarz). Each stage has half of `miss`.
    """
    if k < 1:
        raise ValueError(f"k: 1 or more cells expected, got {k}")
    in_unit(effect=effect, level=level, miss=miss)
    if k == 1:  # only impossible cells can be hit: one is, with probability 1 - miss, by then
        n = math.ceil(math.log(miss / 2) / math.log1p(-effect))
        return Plan(k, effect, level, n, n, float(n))
    critical = float(stats.chi2.isf(SCREEN, k - 1)), threshold(k, level)
    n1, n2 = (_samples(k - 1, at, effect, miss / 2) for at in critical)
    return Plan(k, effect, level, n1, n2, strength(k, level) * n2)


def _samples(degrees: int, critical: float, effect: float, miss: float) -> int:
    """The least n of which the statistic stays below its critical value with this probability."""

    def excess(shift: float) -> float:
        return float(stats.ncx2.cdf(critical, degrees, shift)) - miss

    # The mean of the statistic is degrees + shift, its variance 2 (degrees + 2 shift).
    shift = optimize.brentq(excess, 1e-9, 10 * (critical + degrees) - 100 * math.log10(miss))
    return math.ceil(shift / (4 * effect**2))


def in_unit(**numbers: float) -> None:
    """A `ValueError` that names the number, unless all lie between 0 and 1."""
    for name, x in numbers.items():
        if not 0 < x < 1:
            raise ValueError(f"{name}: a number in (0, 1) expected, got {x}")


@dataclass(frozen=True)
class Verdict:
    """What was decided, and the numbers to show: p, statistic, cells are of the pooled table."""

    log_e: float
    p_value: float
    statistic: float
    degrees: int
    cells: tuple[Cell, ...]
    samples: int
    rejected: bool
    reason: str

    @property
    def e_value(self) -> float:
        """Infinite beyond the largest float."""
        return math.exp(self.log_e) if self.log_e < 709 else math.inf


def decide(
    counts: npt.ArrayLike, law: npt.ArrayLike, level: float = EACH, prior: float | None = None
) -> Verdict:
    """Rejected iff E >= 1 / level, or an impossible cell was hit: a right law with p <= level.

    counts [k]. Without a `prior` the number of samples must have been fixed beforehand.
    """
    in_unit(level=level)
    p = law_of(law)
    table = cells(counts, p)
    c = counts_of(counts, p.shape)
    n = int(c.sum())
    a = strength(int((p > 0).sum()), level) * max(n, 1) if prior is None else prior
    log_e, shown = float(log_evalue(c, p, a)), divergence(c, p)
    needed = -math.log(level)
    if table[0].expected == 0 and n > 0:
        hit = table[0]
        reason = f"cell {hit.members[0]} has probability 0 and {hit.observed} of {n} samples"
    else:
        sign = ">=" if log_e >= needed else "<"
        reason = f"log E = {log_e:.2f} {sign} {needed:.2f} after {n} samples"
    p_value, statistic = float(shown.p_value), float(shown.statistic)
    return Verdict(log_e, p_value, statistic, shown.degrees, table, n, log_e >= needed, reason)


def two_stages(sample: Sampler, law: npt.ArrayLike, planned: Plan) -> Verdict:
    """A cheap screen, and where it alarms a decision on fresh samples at the planned level.

    The screen alarms on the pooled Cressie-Read statistic, and on E, which also sees faults
    between cells that were pooled. It spends no level: it can only spare a sampler the decision.
    Raises ValueError where the plan is for another number of cells, or samples are missing.
    """
    p = law_of(law)
    if planned.cells != (possible := int((p > 0).sum())):
        raise ValueError(f"planned: a plan for {possible} cells expected, got {planned.cells}")

    first = decide(_drawn(sample, "screen", 0, planned.screen, p.size), p, SCREEN)
    if first.log_e == math.inf:
        return first
    if first.p_value > SCREEN and not first.rejected:
        return replace(first, reason=f"screen: p = {first.p_value:.3g}, {first.reason}")

    total = np.zeros(p.size, dtype=np.int64)
    look, n, step = 0, 0, min(FIRST_LOOK, planned.confirm)
    while True:
        total += _drawn(sample, "confirm", look, step, p.size)
        look, n = look + 1, n + step
        if n == planned.confirm or log_evalue(total, p, planned.prior) >= -math.log(planned.level):
            return decide(total, p, planned.level, planned.prior)
        step = min(n, planned.confirm - n)


def _drawn(sample: Sampler, stage: str, look: int, n: int, k: int) -> Ints:
    """The counts of one call, n of them."""
    c = counts_of(sample(stage, look, n), (k,), "sample")
    if c.ndim != 1 or c.sum() != n:
        raise ValueError(f"sample: {n} counts in [{k}] expected, got {c.sum()} in {list(c.shape)}")
    return c
