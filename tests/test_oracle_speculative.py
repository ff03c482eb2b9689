"""Speculative sampling emits the target's law: worked examples, enumeration, stops and budgets."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.oracle.speculative import (
    Law,
    Prefix,
    Round,
    acceptance,
    autoregressive_law,
    branches,
    commit_law,
    emitted_law,
    first_maximum,
    generated_law,
    greedy_round,
    greedy_rounds,
    last_maximum,
    length_law,
    mean_committed,
    mean_committed_equal,
    normalised,
    one_hot,
    overlap,
    residual,
    round_law,
    token_law,
    total_variation,
)

F = Fraction
MANY = settings(deadline=None)
FEW = settings(max_examples=40, deadline=None)
P, Q = (F(5, 10), F(3, 10), F(2, 10)), (F(2, 10), F(5, 10), F(3, 10))
P4, Q4 = normalised([5, 1, 1, 1]), normalised([1, 1, 2, 4])

masses = st.integers(0, 6)
rates = st.builds(lambda a, b: F(min(a, b), max(a, b)), st.integers(0, 9), st.integers(1, 9))


def laws(size: int) -> st.SearchStrategy[Law]:
    """Laws with zeros in them."""
    return st.lists(masses, min_size=size, max_size=size).filter(any).map(normalised)


def pairs(most: int = 5) -> st.SearchStrategy[tuple[Law, Law]]:
    """Two laws over one vocabulary."""
    return st.integers(1, most).flatmap(lambda size: st.tuples(laws(size), laws(size)))


def hashed(size: int, seed: int) -> Callable[[Prefix], Law]:
    """A law for every prefix, different ones, some with zeros."""

    def law(prefix: Prefix) -> Law:
        code = seed
        for token in prefix:
            code = (code * 7 + token + 1) % 1009
        return normalised([1 + code % 3, *((code * (x + 3) + x) % 5 for x in range(1, size))])

    return law


def test_by_hand() -> None:
    """p = (.5, .3, .2), q = (.2, .5, .3): accepted .7, and only token 0 is short of p."""
    assert acceptance(P, Q) == (1, F(3, 5), F(2, 3))
    assert overlap(P, Q) == F(7, 10)
    assert residual(P, Q) == (1, 0, 0)
    assert branches(P, Q) == [(F(2, 10), F(3, 10), F(2, 10)), (F(3, 10), 0, 0)]
    assert emitted_law(P, Q) == P


def test_by_hand_again() -> None:
    """p = (.1, .6, .3), q = (.5, .2, .3): accepted .6, and only token 1 is short of p."""
    p, q = (F(1, 10), F(6, 10), F(3, 10)), (F(5, 10), F(2, 10), F(3, 10))
    assert overlap(p, q) == F(6, 10)
    assert residual(p, q) == (0, 1, 0)
    assert emitted_law(p, q) == p


def test_drawing_from_p_after_a_rejection_is_wrong() -> None:
    """min(p, q) + .3 p = (.35, .39, .26)."""
    assert emitted_law(P, Q, resample=P) == (F(35, 100), F(39, 100), F(26, 100))


def test_drawing_from_another_law_than_q_is_wrong() -> None:
    """A draft drawn from its most likely token and judged by q, and every draft accepted."""
    greedy = emitted_law(P, Q, drawn=one_hot(first_maximum(Q), 3))
    assert greedy == (F(2, 5), F(3, 5), 0)
    assert total_variation(greedy, P) == F(3, 10)


def test_one_hot_drafts() -> None:
    """A draft that is certain is accepted with p(x); the residual is p without x."""
    assert acceptance(P, one_hot(1, 3)) == (0, F(3, 10), 0)
    assert residual(P, one_hot(1, 3)) == (F(5, 7), 0, F(2, 7))
    assert emitted_law(P, one_hot(1, 3)) == P
    assert residual(one_hot(1, 3), one_hot(1, 3)) is None


def test_a_sampled_draft_may_be_judged_as_one_hot() -> None:
    """The one-hot rule throughout keeps p, at the price of acceptances: sum p q for 1 - TV."""
    each = [emitted_law(P4, one_hot(x, 4)) for x in range(4)]
    assert tuple(sum(q * law[y] for q, law in zip(Q4, each, strict=True)) for y in range(4)) == P4
    assert sum(p * q for p, q in zip(P4, Q4, strict=True)) < overlap(P4, Q4)


@MANY
@given(pairs())
def test_one_step_emits_the_target(pair: tuple[Law, Law]) -> None:
    """Whatever p and q, zeros on either side included; accepted is 1 - TV; laws sum to 1."""
    p, q = pair
    assert emitted_law(p, q) == p
    assert overlap(p, q) == 1 - total_variation(p, q)
    assert sum(a * b for a, b in zip(acceptance(p, q), q, strict=True)) == overlap(p, q)
    rest = residual(p, q)
    assert (rest is None) == (p == q)
    assert rest is None or (sum(rest) == 1 and min(rest) >= 0)


@MANY
@given(pairs())
def test_resampling_from_p_is_right_only_where_nothing_is_rejected(pair: tuple[Law, Law]) -> None:
    """min(p, q) + (1 - sum min) p = p for all y where min(p, q) is a multiple of p only."""
    p, q = pair
    kept = overlap(p, q)
    scaled = all(min(a, b) == kept * a for a, b in zip(p, q, strict=True))
    assert (emitted_law(p, q, resample=p) == p) == scaled


def test_equal_and_disjoint_laws() -> None:
    """p = q: all is accepted, no residual. Disjoint supports: nothing is, the residual is p."""
    assert branches(P, P) == [P, (0, 0, 0)]
    p, q = (F(1, 3), F(2, 3), F(0), F(0)), (F(0), F(0), F(1, 4), F(3, 4))
    assert residual(p, q) == p
    assert branches(p, q) == [(0, 0, 0, 0), p]


def test_what_is_no_law_is_refused() -> None:
    """Negative masses, none at all, two vocabularies, a draft that q never makes, wrong rows."""
    for bad in ([0, 0], [1, -1, 3]):
        with pytest.raises(ValueError, match="normalised: got masses"):
            normalised(bad)
    with pytest.raises(ValueError, match="zip"):
        acceptance(P, P4)
    certain = one_hot(0, 2)
    with pytest.raises(ValueError, match="never makes"):
        branches(certain, certain, drawn=one_hot(1, 2))
    with pytest.raises(ValueError, match="got 1 target rows, not 2"):
        round_law([P], [Q], 1)
    with pytest.raises(ValueError, match="budget -1"):
        round_law([P, P], [Q], 1, budget=-1)


def test_a_round_of_two_drafts_by_hand() -> None:
    """Every row is another law: the rejection at row i uses row i, the bonus row k."""
    p = [(F(1, 2), F(1, 2)), (F(1, 4), F(3, 4)), (F(1, 8), F(7, 8))]
    q = [(F(1), F(0)), (F(1), F(0))]
    assert round_law(p, q, 2) == {
        Round(0, (1,)): F(1, 2),
        Round(1, (0, 1)): F(3, 8),
        Round(2, (0, 0, 0)): F(1, 64),
        Round(2, (0, 0, 1)): F(7, 64),
    }


def test_no_drafts() -> None:
    """A round without drafts is one draw from the target."""
    assert round_law([P], [], 0) == {Round(0, (y,)): P[y] for y in range(3)}


@FEW
@given(
    st.integers(0, 3), st.integers(2, 3), st.integers(0, 4), st.integers(0, 99), st.integers(0, 99)
)
def test_rounds_write_the_targets_text(k: int, size: int, length: int, a: int, b: int) -> None:
    """Joint law of all tokens = product of the target's conditionals, however the rounds fall."""
    p, q = hashed(size, a), hashed(size, b)
    assert generated_law(p, q, k, length) == autoregressive_law(p, length)


@FEW
@given(st.integers(1, 3), st.sets(st.integers(0, 2)), st.integers(0, 99), st.integers(0, 99))
def test_rounds_stop_as_the_target_does(k: int, stop: set[int], a: int, b: int) -> None:
    """With a stop set, also where drafts hold stop tokens."""
    p, q = hashed(3, a), hashed(3, b)
    text = generated_law(p, q, k, 4, stop)
    assert text == autoregressive_law(p, 4, stop)
    assert sum(text.values()) == 1
    assert all(not stop & {*tokens[:-1]} for tokens in text)


@FEW
@given(
    st.integers(1, 4).flatmap(
        lambda size: st.lists(st.tuples(laws(size), laws(size)), min_size=1, max_size=3)
    )
)
def test_a_round_by_rows(rows: list[tuple[Law, Law]]) -> None:
    """Masses sum to 1; token i has its row's law given that it was reached; lengths by rates."""
    k = len(rows) - 1
    p, q = [row[0] for row in rows], [row[1] for row in rows[:k]]
    rounds = round_law(p, q, k)
    assert sum(rounds.values()) == 1
    for i in range(k + 1):
        reached = sum((w for r, w in rounds.items() if len(r.tokens) > i), F(0))
        for y, share in enumerate(p[i]):
            here = sum((w for r, w in rounds.items() if r.tokens[i : i + 1] == (y,)), F(0))
            assert here == share * reached
    rate = [overlap(a, b) for a, b in zip(p, q, strict=False)]
    lengths = length_law(rounds)
    assert tuple(lengths.get(n, F(0)) for n in range(1, k + 2)) == commit_law(rate)
    assert sum(n * w for n, w in lengths.items()) == mean_committed(rate)


@FEW
@given(
    st.integers(1, 4).flatmap(lambda size: st.lists(laws(size), min_size=5, max_size=5)),
    st.data(),
)
def test_known_drafts_mix_to_the_round(rows: list[Law], data: st.DataObject) -> None:
    """The laws of rounds with given drafts, weighted by q, sum to the law of the round."""
    p, q, size = rows[:3], rows[3:], len(rows[0])
    stop = data.draw(st.sets(st.integers(0, size - 1)))
    budget = data.draw(st.none() | st.integers(0, 4))
    mixed: dict[Round, Fraction] = {}
    for drafts in product(range(size), repeat=2):
        weight = q[0][drafts[0]] * q[1][drafts[1]]
        if weight:
            drawn = [one_hot(x, size) for x in drafts]
            for r, w in round_law(p, q, 2, stop, budget, drawn).items():
                mixed[r] = mixed.get(r, F(0)) + weight * w
    assert mixed == round_law(p, q, 2, stop, budget)


@pytest.mark.parametrize("at", range(4))
def test_a_stop_token_at_every_position(at: int) -> None:
    """Accepted at 0, 1, 2 or drawn as the bonus: it is the last token and brings no bonus."""
    drafts = [one_hot(2 if i == at else 0, 3) for i in range(3)]
    rows = [*drafts, one_hot(2, 3)]
    tokens = (*[0] * at, 2)
    assert round_law(rows, drafts, 3, {2}) == {Round(min(at + 1, 3), tokens): 1}
    assert greedy_round(rows, tuple(map(first_maximum, drafts)), {2}) == Round(
        min(at + 1, 3), tokens
    )


@pytest.mark.parametrize("at", range(3))
def test_a_rejected_stop_token_stops_nothing(at: int) -> None:
    """A draft of the stop token that the target refuses: its choice follows, then no more."""
    drafts = [one_hot(2 if i == at else 0, 3) for i in range(3)]
    rows = [one_hot(1 if i == at else 0, 3) for i in range(4)]
    assert round_law(rows, drafts, 3, {2}) == {Round(at, (*[0] * at, 1)): 1}


@pytest.mark.parametrize("at", range(3))
def test_a_stop_token_drawn_after_a_rejection(at: int) -> None:
    """It counts as emitted, not as accepted."""
    drafts = [one_hot(0, 3)] * 3
    rows = [one_hot(2 if i == at else 0, 3) for i in range(4)]
    assert round_law(rows, drafts, 3, {2}) == {Round(at, (*[0] * at, 2)): 1}


@pytest.mark.parametrize("budget", range(6))
def test_a_budget_cuts_at_every_position(budget: int) -> None:
    """min(accepted + 1, budget) tokens; a bonus only where it fits."""
    rows = [one_hot(0, 2)] * 4
    expected = Round(min(3, budget), (0,) * min(4, budget))
    assert round_law(rows, rows[:3], 3, budget=budget) == {expected: 1}
    assert greedy_round(rows, (0, 0, 0), budget=budget) == expected


@FEW
@given(st.integers(0, 5), st.integers(0, 99), st.integers(0, 99))
def test_a_budget_cuts_the_round_and_nothing_else(budget: int, a: int, b: int) -> None:
    """The law under a budget is that of the round cut to its first tokens."""
    p, q = hashed(3, a), hashed(3, b)
    cut: dict[Prefix, Fraction] = {}
    for tokens, w in token_law(round_law(p, q, 3)).items():
        cut[tokens[:budget]] = cut.get(tokens[:budget], F(0)) + w
    assert token_law(round_law(p, q, 3, budget=budget)) == cut


def test_commit_lengths() -> None:
    """1 + .9 + .9 .7 + .9 .7 .5 = 2.845; equal rates by the closed form; 0 and 1."""
    assert mean_committed([F(9, 10), F(7, 10), F(5, 10)]) == F(2845, 1000)
    assert commit_law([F(9, 10), F(7, 10), F(5, 10)]) == (
        F(100, 1000),
        F(270, 1000),
        F(315, 1000),
        F(315, 1000),
    )
    assert mean_committed_equal(F(7, 10), 2) == F(219, 100)
    assert mean_committed_equal(F(0), 4) == 1
    assert mean_committed_equal(F(1), 4) == 5


@MANY
@given(rates, st.integers(0, 6), st.lists(rates, max_size=5))
def test_means_are_those_of_the_laws(rate: Fraction, k: int, mixed: list[Fraction]) -> None:
    """sum n P(n) is the sum of survival products, and the closed form where rates are equal."""
    for each in ([rate] * k, mixed):
        law = commit_law(each)
        assert sum(law) == 1
        assert sum(n * w for n, w in enumerate(law, 1)) == mean_committed(each)
    assert mean_committed([rate] * k) == mean_committed_equal(rate, k)


def test_greedy_rounds() -> None:
    """Drafts count while they are the choice; the choice of the first other row follows."""
    rows = [P, Q, P, Q]  # choices 0, 1, 0, 1
    assert greedy_round(rows, (0, 1, 0)) == Round(3, (0, 1, 0, 1))
    assert greedy_round(rows, (0, 2, 0)) == Round(1, (0, 1))
    assert greedy_round(rows, (1, 1, 0)) == Round(0, (0,))
    assert greedy_round([P], ()) == Round(0, (0,))


def test_greedy_ties_are_declared() -> None:
    """The first or the last of equals."""
    tied = normalised([2, 1, 2])
    assert (first_maximum(tied), last_maximum(tied)) == (0, 2)
    assert greedy_round([tied, P], (2,)) == Round(0, (0,))
    assert greedy_round([tied, P], (2,), choose=last_maximum) == Round(1, (2, 0))


@MANY
@given(st.integers(0, 99), st.lists(st.integers(0, 2), max_size=4), st.sets(st.integers(0, 2)))
def test_greedy_is_sampling_from_one_hot_laws(a: int, drafts: list[int], stop: set[int]) -> None:
    """Greedy verification is the rule of p and q one-hot."""
    p = hashed(3, a)
    rows = [one_hot(x, 3) for x in drafts]

    def certain(run: Prefix) -> Law:
        return one_hot(first_maximum(p(run)), 3)

    assert round_law(certain, rows, len(drafts), stop) == {greedy_round(p, tuple(drafts), stop): 1}


def test_greedy_rounds_are_those_that_choices_lead_to() -> None:
    """One with the first or the last maximum; with any all that the ties lead to, no more."""
    rows = [(half, Fraction(0), half) for half in [Fraction(1, 2)] * 3]
    for drafts in ((0, 0), (2, 0), (1, 2), (2, 2)):
        first, last = (
            greedy_round(rows, drafts, choose=choose) for choose in (first_maximum, last_maximum)
        )
        assert greedy_rounds(rows, drafts) == {first}
        assert greedy_rounds(rows, drafts, ties="last") == {last}
        every = greedy_rounds(rows, drafts, ties="any")
        assert {first, last} <= every
        assert all(set(found.tokens) <= {0, 2} for found in every)
    assert greedy_rounds(rows, (2, 0), budget=1, ties="any") == {Round(0, (0,)), Round(1, (2,))}
