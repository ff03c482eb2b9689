"""The algebra of states: an exact commutative monoid, and its float64 twin."""

import math
from fractions import Fraction
from itertools import pairwise, permutations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelassay.oracle.attention import attention
from kernelassay.oracle.exact import weighted_mean
from kernelassay.oracle.merging import (
    ExactState,
    State,
    binary_trees,
    depth,
    exact_merge,
    exact_state,
    finish,
    fold,
    merge,
    state_of,
)
from kernelassay.oracle.visibility import Visibility

F = Fraction
EMPTY = exact_state([], [], 1)

values = st.builds(F, st.integers(-20, 20), st.integers(1, 6))


@st.composite
def keys(draw: st.DrawFn, most: int = 4) -> list[tuple[Fraction, Fraction]]:
    """A few keys: (mass, value)."""
    ratio = st.builds(F, st.integers(1, 40), st.integers(1, 40))
    return draw(st.lists(st.tuples(ratio, values), max_size=most))


def made(part: list[tuple[Fraction, Fraction]]) -> ExactState:
    """The state of some keys with one column of values."""
    return exact_state([w for w, _ in part], [[x] for _, x in part], 1)


def meaning(state: ExactState) -> tuple[Fraction, tuple[Fraction, ...] | None]:
    """What a state says, whatever its representation."""
    return state.mass, state.out


states = keys().map(made)


def test_two_blocks_by_hand() -> None:
    """Scores log 2, log 1 | log 6 with values 3, 6 | 4: l = 3/2, u = 6, out = 4."""
    whole = exact_merge(exact_state([2, 1], [[3], [6]], 1), exact_state([6], [[4]], 1))
    assert (whole.top, whole.l, whole.u) == (6, F(3, 2), (6,))
    assert whole.out == (4,)
    assert whole.mass == 9
    assert whole.lse == pytest.approx(math.log(9), abs=1e-15)


def test_parts_weigh_as_much_as_their_mass() -> None:
    """Masses 1 and 3 with outputs 0 and 4 give 3, not the mean 2."""
    assert exact_merge(exact_state([1], [[0]], 1), exact_state([3], [[4]], 1)).out == (3,)
    lse = torch.tensor([[0.0], [math.log(3)]], dtype=torch.float64)
    out = torch.tensor([[[0.0]], [[4.0]]], dtype=torch.float64)
    merged, total = finish(merge(*(state_of(o, x) for o, x in zip(out, lse, strict=True))))
    assert float(merged) == pytest.approx(3, abs=1e-15)
    assert float(total) == pytest.approx(math.log(4), abs=1e-15)


@given(states, states, states)
def test_merging_is_associative(a: ExactState, b: ExactState, c: ExactState) -> None:
    """(a b) c = a (b c) = a b c."""
    left, right = exact_merge(exact_merge(a, b), c), exact_merge(a, exact_merge(b, c))
    assert meaning(left) == meaning(right) == meaning(exact_merge(a, b, c))


@given(states, states)
def test_merging_is_commutative(a: ExactState, b: ExactState) -> None:
    """a b = b a."""
    assert meaning(exact_merge(a, b)) == meaning(exact_merge(b, a))


@given(states)
def test_the_empty_state_is_neutral(a: ExactState) -> None:
    """a with nothing is a, on both sides."""
    assert meaning(exact_merge(a, EMPTY)) == meaning(a) == meaning(exact_merge(EMPTY, a))
    assert exact_merge(EMPTY, EMPTY) == EMPTY


@given(keys(6), st.lists(st.integers(0, 6), max_size=4))
def test_the_partition_does_not_matter(
    part: list[tuple[Fraction, Fraction]], cuts: list[int]
) -> None:
    """Parts cut anywhere, empty ones included, merge to the weighted mean of the union."""
    edges = [0, *sorted(min(c, len(part)) for c in cuts), len(part)]
    pieces = [made(part[a:b]) for a, b in pairwise(edges)]
    whole = exact_merge(*pieces)
    assert whole.mass == sum((w for w, _ in part), F(0))
    if part:
        assert whole.out == tuple(weighted_mean([w for w, _ in part], [[x] for _, x in part]))


def test_every_order_and_tree_of_small_states() -> None:
    """All orders and binary trees of four states, one of them empty, say the same."""
    parts = [made([(F(n), F(v))]) if n else EMPTY for n, v in ((2, 1), (0, 0), (1, -3), (6, 5))]
    said = {
        meaning(fold(tree, parts, exact_merge))
        for order in permutations(range(4))
        for tree in binary_trees(order)
    }
    assert said == {(F(9), (F(29, 9),))}


def test_trees() -> None:
    """Catalan's numbers of trees; a chain is as deep as it is long."""
    assert [len(list(binary_trees(range(n)))) for n in (1, 2, 3, 4, 5)] == [1, 1, 2, 5, 14]
    assert depth(3) == 0
    assert depth((0, (1, (2, 3)))) == 3
    assert depth((0, 1, 2, 3)) == 1


@given(st.lists(keys(3), min_size=1, max_size=4))
def test_float64_agrees_with_fractions(parts: list[list[tuple[Fraction, Fraction]]]) -> None:
    """The tensor twin says what the fractions say, within a few units in the last place."""
    exact = exact_merge(*(made(p) for p in parts))
    tensors = []
    for p in parts:
        z = torch.tensor([math.log(w) for w, _ in p], dtype=torch.float64)
        v = torch.tensor([[float(x)] for _, x in p], dtype=torch.float64).reshape(-1, 1)
        m = z.max() if len(p) else torch.tensor(-math.inf, dtype=torch.float64)
        e = torch.exp(z - m)
        tensors.append(State(m, e.sum(), e @ v))
    out, lse = finish(merge(*tensors))
    if exact.out is None:
        assert (float(out), float(lse)) == (0.0, -math.inf)
    else:
        assert float(out) == pytest.approx(float(exact.out[0]), rel=1e-13, abs=1e-13)
        assert float(lse) == pytest.approx(exact.lse, abs=1e-13)


@pytest.mark.parametrize("far", [0.0, 1e2, -1e4, 1e5])
def test_merged_partials_are_attention_over_the_union(far: float) -> None:
    """(out, lse) of chunks, in any order and wherever the scores lie, merge to the whole."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, n, 8, generator=generator).double() for n in (3, 11, 11))
    k[..., 4:, 0] += far
    whole = attention(q, k, v, 0.5, Visibility())
    for order in product((0, 1, 2), repeat=3):
        if sorted(order) != [0, 1, 2]:
            continue
        cuts = [(0, 4), (4, 4), (4, 11)]
        chunks = [(k[:, :, slice(*cuts[i])], v[:, :, slice(*cuts[i])]) for i in order]
        parts = [state_of(*attention(q, kc, vc, 0.5, Visibility())) for kc, vc in chunks]
        out, lse = finish(merge(*parts))
        torch.testing.assert_close(out, whole[0], atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(lse, whole[1], atol=1e-12, rtol=1e-12)


def test_empty_parts_count_for_nothing() -> None:
    """(NaN, -inf) is empty; two empty parts are (0, -inf), and nothing is NaN."""
    nothing = state_of(torch.full((2, 3), math.nan), torch.full((2,), -math.inf))
    some = state_of(torch.ones(2, 3), torch.zeros(2))
    out, lse = finish(merge(nothing, some, nothing))
    assert torch.equal(out, torch.ones(2, 3, dtype=torch.float64))
    assert torch.equal(lse, torch.zeros(2, dtype=torch.float64))
    out, lse = finish(merge(nothing, nothing))
    assert torch.equal(out, torch.zeros(2, 3, dtype=torch.float64))
    assert torch.equal(lse, torch.full((2,), -math.inf, dtype=torch.float64))
