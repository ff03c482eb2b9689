"""The statistics: levels by exact enumeration, calibration and power at fixed seeds."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from scipy import special, stats

from kernelassay.oracle.independence import decide_independence, log_independence, log_matches
from kernelassay.oracle.pooling import (
    cells,
    contingency,
    divergence,
    exact_p,
    groups,
    log_probability,
    tables,
)
from kernelassay.oracle.statistics import (
    EACH,
    SCREEN,
    Level,
    Plan,
    Sampler,
    decide,
    log_average,
    log_evalue,
    plan,
    strength,
    threshold,
    two_stages,
)

LAWS = [[0.5, 0.5], [0.98, 0.02], [0.2, 0.3, 0.5], [0.98, 0.019, 0.001], [0.1, 0.2, 0.3, 0.4]]


def uneven(k: int, effect: float) -> tuple[np.ndarray, np.ndarray]:
    """A uniform law and the least visible fault of this total variation."""
    p = np.full(k, 1 / k)
    return p, p * (1 + 2 * effect * np.where(np.arange(k) % 2, 1, -1))


def sampler(law: np.ndarray, seed: int) -> Sampler:
    """Draws from the law, afresh for every stage and look."""

    def sample(stage: str, look: int, n: int) -> np.ndarray:
        return np.random.default_rng([seed, len(stage), look]).multinomial(n, law)

    return sample


# The e-value


@pytest.mark.parametrize("law", LAWS)
def test_the_expectation_of_e_is_one(law: list[float]) -> None:
    """Over all tables, whatever the prior: so P(E >= 1 / level) <= level (Markov)."""
    for n, prior in product([0, 1, 2, 7, 12], [0.01, 1.0, 30.0]):
        c = tables(n, len(law))
        weights = np.exp(log_probability(c, np.array(law)))
        assert weights.sum() == pytest.approx(1, rel=1e-12)
        assert weights @ np.exp(log_evalue(c, law, prior)) == pytest.approx(1, rel=1e-10)


@pytest.mark.parametrize("prior", [0.3, 2.0, 10.0])
def test_looks_cost_no_level(prior: float) -> None:
    """P(E reaches 1 / level at any look) <= level, over all sequences of 12 (Ville)."""
    law = np.array([0.7, 0.3])
    steps = np.array(list(product([0, 1], repeat=12)))
    ones = steps.cumsum(1)
    seen = np.stack([np.arange(1, 13) - ones, ones], -1)  # [sequences, looks, 2]
    weights = 0.7 ** seen[:, -1, 0] * 0.3 ** seen[:, -1, 1]
    best = log_evalue(seen, law, prior).max(1)
    for level in (0.5, 0.2, 0.05, 0.01):
        assert weights[best >= -math.log(level)].sum() <= level
    assert weights[best >= math.log(2)].sum() > 0.02  # and is not idle


def test_e_is_a_martingale() -> None:
    """Given any table, the expectation of E after one more sample is E now."""
    law = np.array([0.2, 0.3, 0.5])
    for now in tables(6, 3):
        after = np.exp(log_evalue(now + np.eye(3, dtype=int), law, 4.0))
        assert law @ after == pytest.approx(np.exp(log_evalue(now, law, 4.0)), rel=1e-12)


def test_e_is_the_dirichlet_multinomial_ratio() -> None:
    """Against SciPy's own Dirichlet-multinomial and multinomial laws."""
    law, c = np.array([0.1, 0.2, 0.7]), np.array([40, 15, 45])
    mixture = stats.dirichlet_multinomial.logpmf(c, 30 * law, 100)
    single = stats.multinomial.logpmf(c, 100, law)
    assert log_evalue(c, law, 30.0) == pytest.approx(mixture - single, rel=1e-12)


@pytest.mark.parametrize("level", [1e-3, 1e-6, 1e-11])
def test_the_size_is_exact_where_pearson_is_not(level: float) -> None:
    """Two cells, the rarer expects 5: E keeps its level, Pearson exceeds 1e-11 7000 times."""
    law, n = [0.95, 0.05], 100
    c = tables(n, 2)
    weights = np.exp(log_probability(c, np.array(law)))
    size = weights[log_evalue(c, law, strength(2, level) * n) >= -math.log(level)].sum()
    pearson = weights[divergence(c, law, "pearson").p_value <= level].sum()
    assert size <= level
    assert pearson > level
    if level == 1e-11:
        assert pearson > 1000 * level


def test_the_mean_of_e_values() -> None:
    """Also beyond the largest float."""
    assert log_average([math.log(1), math.log(3)]) == pytest.approx(math.log(2))
    assert log_average([2000.0, 0.0]) == pytest.approx(2000 - math.log(2))
    assert log_average([-math.inf, math.inf]) == math.inf


def test_the_smallest_probabilities_are_not_zeros() -> None:
    """E is a number there too; a rare cell hit once rejects nothing, hit twice it does."""
    assert log_evalue([1000, 0], [1.0, 5e-324], 0.1) == pytest.approx(0, abs=1e-9)
    assert math.isfinite(log_evalue([998, 2], [1.0, 5e-324], 0.1))
    law = [1 - 1e-20, 1e-20]
    assert not decide([999, 1], law).rejected
    assert decide([998, 2], law).rejected


# Calibration


@pytest.mark.parametrize("k", [2, 8, 30])
@pytest.mark.parametrize("kind", ["pearson", "cressie-read"])
def test_p_values_of_right_samplers_are_uniform(k: int, kind: str) -> None:
    """Kolmogorov-Smirnov over 4000 runs, and the screen's own level within a third of it."""
    rng = np.random.default_rng(k)
    law = rng.dirichlet(np.full(k, 2.0))
    p = divergence(rng.multinomial(50_000, law, size=4000), law, kind).p_value
    assert stats.kstest(p, "uniform").pvalue > 1e-3
    assert (p <= SCREEN).mean() == pytest.approx(SCREEN, abs=5 * math.sqrt(SCREEN / 4000))


def test_right_samplers_are_never_rejected_at_the_level_of_the_suite() -> None:
    """40,000 tests of 80 laws, rare cells included; at level 1/20 under 1 in 20 are."""
    rng = np.random.default_rng(1)
    inflated, tests = 0, 0
    for i in range(80):
        k = int(rng.integers(2, 24))
        law = rng.dirichlet(np.full(k, (0.1, 0.5, 3.0)[i % 3]))
        n = int(rng.integers(50, 5000))
        c = rng.multinomial(n, law, size=500)
        assert (log_evalue(c, law, strength(k, EACH) * n) < -math.log(EACH)).all()
        inflated += int((log_evalue(c, law, strength(k, 0.05) * n) >= math.log(20)).sum())
        tests += len(c)
    assert tests == 40_000
    assert 0 < inflated < 0.05 * tests


def test_two_stages_pass_right_samplers_and_rarely_reach_the_second() -> None:
    """300 laws: none rejected; the screen alarms for about one in a hundred."""
    rng, second = np.random.default_rng(2), 0
    for i in range(300):
        k = int(rng.integers(2, 9))
        law = rng.dirichlet(np.ones(k))
        verdict = two_stages(sampler(law, i), law, plan(k))
        assert not verdict.rejected, verdict.reason
        second += not verdict.reason.startswith("screen")
    assert second <= 10


# Power and sample sizes


def test_sample_sizes_are_those_of_the_theory() -> None:
    """Screen at 1e-2, decision at 1e-11, each missing 1 in 2000: within rounding."""
    for k, effect, n1, n2 in [
        (2, 0.05, 3441, 11561),
        (8, 0.05, 4964, 13465),
        (16, 0.02, 37545, 94453),
        (64, 0.01, 233922, 523390),
        (256, 0.05, 15838, 32760),
    ]:
        found = plan(k, effect)
        assert abs(found.screen - n1) <= 1, k
        assert abs(found.confirm - n2) <= 1, k
    for k, g in [(2, 55.7), (8, 74.2), (16, 93.0), (64, 179.7)]:
        assert threshold(k, 1e-11) == pytest.approx(g, abs=0.06)


@pytest.mark.parametrize("k", [2, 8, 64])
def test_the_least_visible_fault_is_found_with_the_promised_samples(k: int) -> None:
    """Bias of total variation 0.05, 4000 runs of each stage: 1 in 2000 may be missed."""
    p, wrong = uneven(k, 0.05)
    assert np.abs(p - wrong).sum() / 2 == pytest.approx(0.05)
    rng, planned = np.random.default_rng(k), plan(k, 0.05)
    screened = divergence(rng.multinomial(planned.screen, wrong, size=4000), p).p_value <= SCREEN
    e = log_evalue(rng.multinomial(planned.confirm, wrong, size=4000), p, planned.prior)
    assert screened.mean() >= 0.998
    assert (e >= -math.log(EACH)).mean() >= 0.998
    # A fourth of the samples does not suffice: the promise is not bought by excess.
    few = log_evalue(rng.multinomial(planned.confirm // 4, wrong, size=500), p, planned.prior)
    assert (few >= -math.log(EACH)).mean() < 0.1


def test_two_stages_find_wrong_samplers_early() -> None:
    """40 samplers off by 0.2: all rejected, with fewer samples than planned."""
    p, wrong = uneven(8, 0.2)
    found = [two_stages(sampler(wrong, seed), p, plan(8)) for seed in range(40)]
    assert all(v.rejected for v in found)
    assert max(v.samples for v in found) <= 8192 < plan(8).confirm
    assert found[0].e_value >= 1e11


def speculative(p: np.ndarray, q: np.ndarray, rule: str, seed: int) -> Sampler:
    """One draft token of law q, verified for p by a rule."""

    def sample(stage: str, look: int, n: int) -> np.ndarray:
        rng = np.random.default_rng([seed, len(stage), look])
        draft = rng.choice(p.size, size=n, p=q)
        accept = p if rule == "one-hot" else np.minimum(1, p / q)
        residual = {"one-hot": p, "right": np.maximum(p - q, 0), "from p": p}[rule]
        rows = np.tile(residual, (p.size, 1))
        if rule == "one-hot":
            np.fill_diagonal(rows, 0)
        rows = (rows / rows.sum(1, keepdims=True)).cumsum(1)
        other = (rng.random((n, 1)) >= rows[draft]).sum(1).clip(max=p.size - 1)
        emitted = np.where(rng.random(n) < accept[draft], draft, other)
        return np.bincount(emitted, minlength=p.size)

    return sample


@pytest.mark.parametrize("rule", ["right", "one-hot", "from p"])
def test_lossless_rules_pass_and_a_lossy_one_fails(rule: str) -> None:
    """min(1, p/q) with the residual p - q, and "accept with p(x), else p without x", keep p."""
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.3, 0.2, 0.4])
    found = [two_stages(speculative(p, q, rule, i), p, plan(4)).rejected for i in range(20)]
    assert found == [rule == "from p"] * 20


def test_a_fault_between_rare_cells_passes_no_screen() -> None:
    """All counts of ten rare cells in one of them: pooled cells hide it, E does not."""
    law = np.array([0.99, *np.full(10, 0.001)])
    wrong = np.array([0.99, 0.01, *np.zeros(9)])
    verdict = two_stages(sampler(wrong, 3), law, plan(11))
    assert verdict.rejected
    assert len(groups(law, 600)) < 4  # at 600 samples the ten are three groups at most


# Impossible cells


def test_one_count_in_an_impossible_cell_rejects() -> None:
    """At the screen already, whatever the rest looks like; the reason says which cell."""
    law = np.array([0.5, 0.0, 0.5])
    verdict = decide([500, 1, 499], law)
    assert verdict.rejected
    assert verdict.e_value == math.inf
    assert verdict.p_value == 0
    assert verdict.reason == "cell 1 has probability 0 and 1 of 1000 samples"
    assert verdict.cells[0].members == (1,)
    staged = two_stages(sampler(np.array([0.49, 0.02, 0.49]), 0), law, plan(2))
    assert staged.rejected
    assert staged.samples == plan(2).screen
    assert exact_p([1, 1, 1], law).p == 0
    assert divergence([[1, 0, 1], [1, 1, 0]], law).p_value.tolist() == [1.0, 0.0]


def test_a_law_of_one_cell_has_only_impossible_cells_to_fail_by() -> None:
    """Greedy laws: no statistics, and the plan sees one wrong token in twenty."""
    law, planned = [0.0, 1.0, 0.0], plan(1, 0.05)
    assert not two_stages(lambda _s, _l, n: [0, n, 0], law, planned).rejected
    assert two_stages(lambda _s, _l, n: [0, n - 1, 1], law, planned).rejected
    assert (1 - 0.05) ** planned.screen <= 5e-4 < (1 - 0.05) ** (planned.screen - 1)


# Pooling, and what is shown


def test_pooling_keeps_every_count() -> None:
    """Groups partition the possible cells, expect 5 or more, and sum to the table."""
    rng = np.random.default_rng(5)
    for k in range(1, 40):
        law = rng.dirichlet(np.full(k, 0.3))
        law[law < 1e-6] = 0
        law /= law.sum()
        c = rng.multinomial(300, law)
        shown = cells(c, law)
        members = sorted(i for cell in shown for i in cell.members)
        assert members == np.flatnonzero(law > 0).tolist()
        assert sum(cell.observed for cell in shown) == 300
        assert sum(cell.expected for cell in shown) == pytest.approx(300)
        assert len(shown) == 1 or min(cell.expected for cell in shown) >= 5
    struck = cells([3, 2, 95], [0.04, 0.0, 0.96])
    assert [(c.members, c.observed) for c in struck] == [((1,), 2), ((0, 2), 98)]


def test_without_pooling_the_statistic_is_scipys() -> None:
    """Pearson, G and Cressie-Read, one table at a time."""
    law, c = np.array([0.1, 0.2, 0.3, 0.4]), np.array([[12, 18, 33, 37], [5, 25, 30, 40]])
    found = divergence(c, law, "pearson")
    for row, at, p in zip(c, found.statistic, found.p_value, strict=True):
        assert (at, p) == pytest.approx(tuple(stats.chisquare(row, 100 * law)))
    for kind in ("log-likelihood", "cressie-read"):
        theirs = stats.power_divergence(c, 100 * law, axis=1, lambda_=kind)
        assert divergence(c, law, kind).p_value == pytest.approx(theirs.pvalue)
    assert found.degrees == 3
    assert divergence([3, 4], [0.5, 0.5]) == (0.0, 1.0, 0)  # one group: nothing to see


@pytest.mark.parametrize("law", LAWS)
def test_the_exact_p_value_is_the_enumerated_one(law: list[float]) -> None:
    """Against a sum over all sequences; uniform or larger over all tables."""
    n = 4
    for c in tables(n, len(law)):

        def statistic(t: np.ndarray) -> float:
            return float(stats.power_divergence(t, n * np.array(law), lambda_="cressie-read")[0])

        mine = statistic(c) * (1 - 1e-9) - 1e-9
        p = 0.0
        for t in tables(n, len(law)):
            if statistic(t) >= mine:
                p += float(stats.multinomial.pmf(t, n, law))
        assert exact_p(c, law).p == pytest.approx(p, rel=1e-9)
        assert exact_p(c, law).enumerated


def test_many_tables_are_drawn_and_bounded() -> None:
    """The drawn p-value is near the enumerated one, below its bound, and repeats."""
    law, c = [0.2, 0.3, 0.5], [30, 30, 60]
    true = exact_p(c, law).p
    drawn = exact_p(c, law, limit=5000)
    assert not drawn.enumerated
    assert drawn.p == pytest.approx(true, rel=0.2)
    assert drawn.p < drawn.upper
    assert true <= drawn.upper
    assert exact_p(c, law, limit=5000) == drawn
    assert exact_p([0, 0, 120], law, limit=100).p == pytest.approx(1 / 101)
    assert exact_p([120], [1.0], limit=1).p == 1


def test_tables_are_all_tables() -> None:
    """As many as there are multisets, each once, each of the total."""
    found = tables(6, 4)
    assert len({tuple(t) for t in found.tolist()}) == len(found) == math.comb(9, 3)
    assert (found.sum(1) == 6).all()
    assert (found >= 0).all()


def test_a_verdict_shows_its_numbers() -> None:
    """E and its threshold, the pooled table, the samples."""
    verdict = decide([300, 700], [0.5, 0.5])
    assert verdict.rejected
    assert verdict.reason == f"log E = {verdict.log_e:.2f} >= 25.33 after 1000 samples"
    assert (verdict.samples, verdict.degrees) == (1000, 1)
    assert verdict.statistic == pytest.approx(stats.power_divergence([300, 700], lambda_=2 / 3)[0])
    assert [(c.observed, c.expected) for c in verdict.cells] == [(300, 500.0), (700, 500.0)]
    assert not decide([0, 0], [0.5, 0.5]).rejected
    assert decide([0, 10**7], [0.5, 0.5]).e_value == math.inf


# Levels


def test_a_run_deals_its_level() -> None:
    """Half of 1e-6 to 50,000 tests, and a share again to the tests inside one."""
    assert Level().each == EACH == pytest.approx(1e-11)
    assert Level(1e-6, 10).split(4).each * 40 == pytest.approx(1e-6)


# Independence


def test_the_expectation_of_the_independence_e_value_is_one_at_most() -> None:
    """Over all pairs of sequences of five bits, for a grid of laws."""
    sequences = np.array(list(product([0, 1], repeat=5)))
    ones = sequences.sum(1)
    both = np.einsum("it,jt->ij", sequences, sequences)
    n10, n01 = ones[:, None] - both, ones[None] - both
    e = np.exp(
        log_independence(
            np.stack([5 - n10 - n01 - both, n01, n10, both], -1).reshape(32, 32, 2, 2)
        )
    )
    for p, q in product([0.0, 0.1, 0.5, 0.9], repeat=2):
        x = special.xlogy(ones, p) + special.xlog1py(5 - ones, -p)
        y = special.xlogy(ones, q) + special.xlog1py(5 - ones, -q)
        assert np.exp(x) @ e @ np.exp(y) <= 1


def test_dependent_sequences_are_found_and_independent_ones_are_not() -> None:
    """A tenth of 9000 pairs over six tokens copied; sooner seen where the laws are declared."""
    rng, law = np.random.default_rng(8), np.full(6, 1 / 6)
    x, y = rng.choice(6, size=(2, 9000), p=law)
    copied = np.where(rng.random(9000) < 0.1, x, y)

    def table(other: np.ndarray, n: int) -> np.ndarray:
        return contingency(x[:n], other[:n], (6, 6))

    right, wrong = (decide_independence(table(other, 9000)) for other in (y, copied))
    assert not right.rejected
    assert right.log_e < 0
    assert wrong.rejected
    assert wrong.reason.startswith("independence: log E = ")
    assert sum(c.observed for c in wrong.cells) == wrong.samples == 9000
    joint = np.outer(law, law).ravel()
    assert not decide(table(y, 3000).ravel(), joint).rejected
    assert decide(table(copied, 3000).ravel(), joint).rejected
    assert not decide_independence(table(copied, 3000)).rejected
    law = rng.dirichlet(np.ones(6))
    right_ones = [
        log_independence(contingency(*rng.choice(6, size=(2, 300), p=law), (6, 6)))
        for _ in range(500)
    ]
    assert max(right_ones) < math.log(20)


def test_shared_random_numbers_are_found_although_every_marginal_is_right() -> None:
    """32 rows over 64 tokens: one pair alike in every call, halves shared, calls repeated."""
    rng, law, needed = np.random.default_rng(9), np.full(64, 1 / 64), -math.log(EACH)
    right = rng.integers(0, 64, size=(128, 32))
    for shift in (0, 1, 2):
        assert log_matches(right, law, shift=shift) < 3
    pair, halves, repeated = right.copy(), right.copy(), right.copy()
    pair[:, 7] = pair[:, 3]
    halves[:, 16:] = halves[:, :16]
    repeated[1:, 5] = repeated[:-1, 4]
    assert log_matches(pair[:16], law) >= needed
    assert log_matches(halves[:16], law) >= needed
    assert log_matches(repeated, law, shift=1) >= needed
    assert log_matches(np.repeat(right[:64, :1], 2, 0), law, shift=1) >= needed


def test_matches_of_neighbouring_calls_keep_their_level() -> None:
    """E over all sequences of one row and an uneven law: expectation 1 at shifts 1 and 2."""
    law = np.array([0.8, 0.2])
    for shift in (1, 2):
        total = 0.0
        for s in product([0, 1], repeat=7):
            tokens = np.array(s)[:, None]
            total += law[np.array(s)].prod() * math.exp(log_matches(tokens, law, 0.2, shift))
        assert total == pytest.approx(1, rel=1e-10)


# Malformed input


def test_laws_may_be_fractions_or_tensors() -> None:
    """And are normalised when they miss 1 by rounding."""
    thirds = [Fraction(1, 3)] * 3
    same = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert log_evalue([1, 2, 3], thirds, 1.0) == log_evalue([1, 2, 3], same, 1.0)
    assert decide([1, 2, 3], same.numpy() * (1 + 1e-12)).samples == 6


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ([0.5, 0.4], "law: sum 1 expected"),
        ([0.5, 0.5 + 1e-6], "law: sum 1 expected"),
        ([1.5, -0.5], r"law: probabilities expected, got law\[1\]"),
        ([0.5, math.nan], "law: probabilities"),
        ([], "law: shape"),
        ([[0.5, 0.5]], "law: shape"),
        (["a", "b"], "law: numbers"),
    ],
)
def test_laws_that_are_none_are_refused(law: list[object], message: str) -> None:
    """By every function that takes one."""
    for f in (decide, divergence, exact_p, cells):
        with pytest.raises(ValueError, match=message):
            f([1, 1], law)
    with pytest.raises(ValueError, match=message):
        two_stages(lambda *_: [1, 1], law, plan(2))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1, -1], "counts: whole numbers from 0"),
        ([0.5, 1], "counts: whole numbers from 0"),
        ([math.inf, 1], "counts: whole numbers from 0"),
        ([1, 2, 3], r"counts: shape \[..., 2,?\]"),
        (3, "counts: shape"),
        ([True, False], "counts: whole numbers expected, got bool"),
        ([[1, 1]], "counts: one table"),
    ],
)
def test_counts_that_are_none_are_refused(counts: object, message: str) -> None:
    """Named, with what was expected and got."""
    for f in (decide, exact_p, cells):
        with pytest.raises(ValueError, match=message):
            f(counts, [0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: log_evalue([1, 1], [0.5, 0.5], 0.0), "prior: a positive"),
        (lambda: decide([1, 1], [0.5, 0.5], level=0.0), "level: a number"),
        (lambda: plan(0), "k: 1 or more"),
        (lambda: plan(2, effect=1.0), "effect: a number"),
        (lambda: plan(2, miss=0.0), "miss: a number"),
        (lambda: Level(0.0), "total: a level"),
        (lambda: Level(tests=0), "tests: 1 or more"),
        (lambda: divergence([1, 1], [0.5, 0.5], "chi"), "kind: one of"),
        (lambda: divergence([[1, 1], [1, 2]], [0.5, 0.5]), "counts: tables of one total"),
        (lambda: exact_p([1, 1], [0.5, 0.5], limit=0), "limit: 1 or more"),
        (lambda: log_average([]), "log_e: one or more"),
        (lambda: contingency([0, 2], [0, 1], (2, 2)), "x: a sequence"),
        (lambda: contingency([0, 1], [0], (2, 2)), "y: 2 numbers"),
        (lambda: log_independence([1, 2]), "table: shape"),
        (lambda: decide_independence([[1, -2], [1, 1]]), "table: whole numbers"),
        (lambda: decide_independence(np.ones((1, 2, 2), int)), "table: shape"),
        (lambda: log_matches([[0, 1]], [1.0]), "tokens: "),
        (lambda: log_matches([[0, 1]], [0.5, 0.5], shift=1), "shift: "),
        (lambda: log_matches([[0], [1]], [0.5, 0.5]), "shift: "),
        (lambda: two_stages(lambda *_: [1, 1], [0.5, 0.5], plan(3)), "planned: a plan for 2"),
        (lambda: two_stages(lambda *_: [1, 1], [0.5, 0.5], plan(2)), "sample: 344"),
        (lambda: two_stages(lambda *_: [-1, 1], [0.5, 0.5], plan(2)), "sample: whole"),
    ],
)
def test_malformed_arguments_are_named(call: object, message: str) -> None:
    """A ValueError whose first word is the argument."""
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()


def test_a_plan_is_data() -> None:
    """Plans may be made by hand, with any sizes."""
    tiny = Plan(cells=2, effect=0.3, level=0.05, screen=10, confirm=40, prior=4.0)
    assert two_stages(lambda _s, _l, n: [n, 0], [0.5, 0.5], tiny).rejected


def test_counts_that_equal_their_expectation_have_p_one() -> None:
    """The statistic is a sum of terms that cancel: rounding must not make it negative."""
    law, counts = np.array([3, 6, 8]) / 17, [120, 240, 320]
    found = divergence(counts, law)
    assert found.statistic == pytest.approx(0.0, abs=1e-9)
    assert found.p_value == pytest.approx(1.0)
