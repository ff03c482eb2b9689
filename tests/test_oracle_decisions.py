"""What injected uniforms decide: masses of pieces, breakpoints, rules, whole rounds."""

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.oracle.decisions import (
    GRID,
    SLACK,
    Noise,
    Piece,
    Rule,
    accept_pieces,
    breakpoints,
    correction_pieces,
    decide,
    decided_rounds,
    draw_pieces,
    outcomes,
    places,
    step_boxes,
)
from kernelassay.oracle.speculative import (
    Law,
    Round,
    emitted_law,
    normalised,
    one_hot,
    residual,
    round_law,
)

F = Fraction
MANY = settings(deadline=None)
FEW = settings(max_examples=40, deadline=None)
P, Q = (F(5, 10), F(3, 10), F(2, 10)), (F(2, 10), F(5, 10), F(3, 10))
LAST = 1 - GRID


def laws(size: int) -> st.SearchStrategy[Law]:
    """Laws with zeros in them."""
    return st.lists(st.integers(0, 6), min_size=size, max_size=size).filter(any).map(normalised)


pairs = st.integers(1, 5).flatmap(lambda size: st.tuples(laws(size), laws(size)))
uniforms = st.integers(0, 2**24 - 1).map(lambda n: n * GRID)


def test_a_step_by_hand() -> None:
    """Draft 1 of p = (.5, .3, .2), q = (.2, .5, .3): accepted below .6, else token 0."""
    assert accept_pieces(P, Q, 1) == (Piece(F(0), F(3, 5), True), Piece(F(3, 5), F(1), False))
    assert accept_pieces(P, Q, 0) == (Piece(F(0), F(1), True),)
    assert correction_pieces(P, Q) == (Piece(F(0), F(1), 0),)
    assert [(box.mass, box.token) for box in step_boxes(P, Q, 1)] == [(F(3, 5), 1), (F(2, 5), 0)]
    assert draw_pieces((F(0), F(1, 4), F(0), F(3, 4))) == (
        Piece(F(0), F(1, 4), 1),
        Piece(F(1, 4), F(1), 3),
    )


@MANY
@given(pairs)
def test_masses_of_boxes_are_the_emitted_law(pair: tuple[Law, Law]) -> None:
    """sum_x q(x) area(x, y) = p(y) exactly."""
    p, q = pair
    law = [F(0)] * len(p)
    for x, weight in enumerate(q):
        if weight:
            boxes = step_boxes(p, q, x)
            assert sum(box.mass for box in boxes) == 1
            assert all(box.mass > 0 for box in boxes)
            for box in boxes:
                law[box.token] += weight * box.mass
    assert tuple(law) == p == emitted_law(p, q)


@MANY
@given(pairs)
def test_pieces_cover_the_uniforms(pair: tuple[Law, Law]) -> None:
    """Pieces lie side by side from 0 to 1; a draw's masses are its law."""
    p, q = pair
    rows = [draw_pieces(p), *(accept_pieces(p, q, x) for x, w in enumerate(q) if w)]
    for pieces in rows:
        assert (pieces[0].low, pieces[-1].high) == (0, 1)
        assert all(a.high == b.low for a, b in pairwise(pieces))
    assert {x.outcome: x.mass for x in rows[0]} == {y: w for y, w in enumerate(p) if w}


@pytest.mark.parametrize(
    ("rule", "accepted"), [("u*q<p", False), ("u*q<=p", True), ("p/q>=u", True)]
)
def test_rules_differ_at_the_breakpoint_only(rule: Rule, accepted: bool) -> None:
    """u = p / q is rejected by the strict rule; just beside it they agree."""
    rows, edge = [P, P], F(3, 5)
    for u, expected in ((edge, accepted), (edge - GRID, True), (edge + GRID, False)):
        noise = Noise([u], [F(1, 2), F(1, 2)], rule)
        (only,) = decided_rounds(rows, [Q], (1,), noise, slack=F(0))
        assert only == (Round(1, (1, 1)) if expected else Round(0, (0,)))


@MANY
@given(pairs, uniforms, st.data())
def test_rules_as_they_are_written(
    pair: tuple[Law, Law], u: Fraction, data: st.DataObject
) -> None:
    """Pieces decide as the inequalities do, but for p(x) = 0 at u = 0."""
    p, q = pair
    x = data.draw(st.sampled_from([x for x, w in enumerate(q) if w]))
    for at in (u, F(0), min(p[x] / q[x], LAST), LAST):
        if p[x] == 0 and at == 0:
            continue
        pieces = accept_pieces(p, q, x)
        assert decide(pieces, at) == (at * q[x] < p[x])
        assert decide(pieces, at, closed=True) == (at * q[x] <= p[x]) == (p[x] / q[x] >= at)


@MANY
@given(pairs, uniforms, st.booleans())
def test_draws_invert_the_cdf(pair: tuple[Law, Law], u: Fraction, closed: bool) -> None:
    """The first token of positive law whose cumulated sum is beyond u."""
    p, _ = pair
    cdf = [sum(p[: y + 1], F(0)) for y in range(len(p))]
    for at in (u, F(0), LAST, *(c for c in cdf if c < 1)):
        beyond = [y for y, c in enumerate(cdf) if p[y] and (at <= c if closed else at < c)]
        assert decide(draw_pieces(p), at, closed) == beyond[0]


@FEW
@given(pairs, st.booleans())
def test_a_token_of_law_zero_is_never_emitted(pair: tuple[Law, Law], closed: bool) -> None:
    """Whatever the uniforms, u = 0 and the largest below 1 included, slack or not."""
    p, q = pair
    corners = (F(0), GRID, F(1, 2), LAST)
    rule: Rule = "u*q<=p" if closed else "u*q<p"
    for x, w in enumerate(q):
        for a, d in product(corners, corners) if w else ():
            for right in decided_rounds([p, p], [q], (x,), Noise([a], [d, d], rule, closed)):
                assert all(p[y] > 0 for y in right.tokens)


def test_equal_laws_reject_nothing() -> None:
    """p = q: one piece, no break, no correction."""
    for x in range(3):
        assert accept_pieces(P, P, x) == (Piece(F(0), F(1), True),)
        assert decide(accept_pieces(P, P, x), LAST)
    with pytest.raises(ValueError, match="nothing is rejected"):
        correction_pieces(P, P)


def test_disjoint_laws_accept_nothing() -> None:
    """Whatever u, 0 included; the correction is drawn from p."""
    p, q = (F(1, 2), F(1, 2), F(0)), one_hot(2, 3)
    assert accept_pieces(p, q, 2) == (Piece(F(0), F(1), False),)
    assert correction_pieces(p, q) == draw_pieces(p)


def test_what_cannot_be_decided_is_refused() -> None:
    """A draft that q never makes; a uniform outside [0, 1)."""
    with pytest.raises(ValueError, match="never makes"):
        accept_pieces(P, one_hot(0, 3), 1)
    for u in (F(1), F(-1, 2)):
        with pytest.raises(ValueError, match="expected 0 <= u < 1"):
            decide(draw_pieces(P), u)


@MANY
@given(st.lists(st.fractions(F(1, 1000), F(999, 1000)), max_size=5, unique=True).map(sorted))
def test_places(breaks: list[Fraction]) -> None:
    """0 and the largest float32 below 1, a place in every interval, both sides of each break."""
    found = places(breaks)
    assert (found[0], found[-1]) == (0, F(float(np.nextafter(np.float32(1), np.float32(0)))))
    assert all(F(float(np.float32(u.numerator / u.denominator))) == u for u in found)
    assert list(found) == sorted(set(found))
    for low, high in pairwise([F(0), *breaks, F(1)]):
        assert high - low <= GRID * 2 or any(low < u < high for u in found)
    for edge in breaks:
        assert any(SLACK <= edge - u < SLACK + GRID for u in found)
        assert any(SLACK <= u - edge < SLACK + GRID for u in found)


@MANY
@given(pairs)
def test_places_reach_every_outcome(pair: tuple[Law, Law]) -> None:
    """Every token that can be drawn is drawn at some place, there beyond doubt."""
    pieces = draw_pieces(pair[0])
    found = places(breakpoints(pieces))
    sure = [right for u in found if len(right := outcomes(pieces, u)) == 1]
    assert frozenset().union(*sure) == {y for y, w in enumerate(pair[0]) if w}
    assert len(sure) == len(found)


def test_slack_lets_both_neighbours_be_right() -> None:
    """Nearer than 2^-20 to a break; at 2^-20 no longer; a narrow piece has two breaks."""
    pieces = accept_pieces(P, Q, 1)
    edge = F(3, 5)
    assert outcomes(pieces, edge - SLACK + GRID) == {True, False}
    assert outcomes(pieces, edge - SLACK) == {True}
    assert outcomes(pieces, edge + SLACK) == {False}
    narrow = draw_pieces((F(1, 2), GRID, F(1, 2) - GRID))
    assert outcomes(narrow, F(1, 2)) == {0, 1, 2}
    assert outcomes(narrow, F(1, 2), slack=F(0)) == {1}


def test_nearly_equal_laws_at_the_largest_uniform() -> None:
    """p / q = 1 - 2^-23: the draft or the correction is right, token 0 of law 0 is not."""
    p, q = (F(0), F(1, 2) + GRID, F(1, 2) - GRID), (F(0), F(1, 2), F(1, 2))
    right = decided_rounds([p, p], [q], (2,), Noise([LAST], [F(0), F(0)]))
    assert right == {Round(1, (2, 1)), Round(0, (1,))}


@FEW
@given(
    st.integers(2, 3).flatmap(lambda size: st.lists(laws(size), min_size=5, max_size=5)),
    st.sets(st.integers(0, 2), max_size=1),
    st.none() | st.integers(0, 3),
    st.booleans(),
)
def test_the_uniforms_of_a_round_have_its_law(
    rows: list[Law], stop: set[int], budget: int | None, closed: bool
) -> None:
    """Over cells between all breakpoints, decided rounds have exactly the law of the round."""
    p, q, size = rows[:3], rows[3:], len(rows[0])
    rule: Rule = "p/q>=u" if closed else "u*q<p"
    for drafts in product(range(size), repeat=2):
        if not all(q[i][x] for i, x in enumerate(drafts)):
            continue
        tests = [accept_pieces(p[i], q[i], x) for i, x in enumerate(drafts)]
        # one uniform serves all draws of the round: only one of them is looked at
        draws = [draw_pieces(r) for r in (p[2], *map(residual, p, q)) if r]
        cuts = sorted({F(0), F(1), *(b for pieces in draws for b in breakpoints(pieces))})
        law: dict[Round, Fraction] = {}
        for a, b, (low, high) in product(*tests, pairwise(cuts)):
            middle = [(x.low + x.high) / 2 for x in (a, b)]
            noise = Noise(middle, [(low + high) / 2] * 3, rule, closed)
            (only,) = decided_rounds(p, q, drafts, noise, stop, budget, F(0))
            law[only] = law.get(only, F(0)) + a.mass * b.mass * (high - low)
        drawn = [one_hot(x, size) for x in drafts]
        assert law == round_law(p, q, 2, stop, budget, drawn)


@pytest.mark.parametrize("reject", range(4))
def test_each_row_has_its_own_uniforms(reject: int) -> None:
    """The correction of draft i takes draw[i], the bonus draw[k]; later ones are not looked at."""
    accept = [F(0) if i < reject else LAST for i in range(3)]
    draw = [F(1, 4) if i == reject else F(3, 4) for i in range(4)]
    p, q = [(F(1, 4), F(1, 2), F(1, 4))] * 3 + [(F(1, 2), F(1, 2), F(0))], [one_hot(1, 3)] * 3
    expected = Round(reject, (*[1] * reject, 0))
    assert decided_rounds(p, q, (1, 1, 1), Noise(accept, draw)) == {expected}


def test_a_bonus_token_that_is_passed_in() -> None:
    """It follows full acceptance only, and not a stop token or a full budget."""
    given_bonus = Noise([F(0)], [F(0), F(0)], bonus=2)
    rows = [P, P]
    assert decided_rounds(rows, [Q], (0,), given_bonus) == {Round(1, (0, 2))}
    assert decided_rounds(rows, [Q], (0,), given_bonus, stop={0}) == {Round(1, (0,))}
    assert decided_rounds(rows, [Q], (0,), given_bonus, budget=1) == {Round(1, (0,))}
    rejecting = Noise([LAST], [F(0), F(0)], bonus=2)
    assert decided_rounds(rows, [Q], (1,), rejecting) == {Round(0, (0,))}


def test_rounding_may_reject_what_is_sure_only_beside_the_ratio() -> None:
    """p = q at u = 1 - 2^-24: by logarithms a draft may be rejected; the token is then p's."""
    p, u = (Fraction(1, 4), Fraction(0), Fraction(3, 4)), 1 - GRID
    noise = Noise((u,), (Fraction(1, 2), Fraction(1, 8)))
    accepted = Round(1, (0, 0))
    assert decided_rounds([p, p], [p], (0,), noise) == {accepted}
    assert decided_rounds([p, p], [p], (0,), noise, nearly=SLACK) == {accepted, Round(0, (2,))}
    half = (Fraction(1, 8), Fraction(0), Fraction(7, 8))  # p / q = 2: no rounding reaches u
    assert decided_rounds([p, p], [half], (0,), noise, nearly=SLACK) == {accepted}
