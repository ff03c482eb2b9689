"""Rational attention: worked numbers, the merge algebra, and agreement with the float64 oracle."""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.oracle.attention import attention
from kernelassay.oracle.exact import (
    as_float,
    as_tensor,
    counting_attention,
    dyadic_attention,
    integer_mass_attention,
    log_fraction,
    weighted_mean,
)
from kernelassay.oracle.visibility import Visibility, visible

F = Fraction
VALUES = [[1], [4], [5]]


@pytest.mark.parametrize(
    ("seen", "out", "mass"),
    [([1, 1, 0], F(2), 3), ([0, 0, 1], F(5), 6), ([1, 1, 1], F(4), 9), ([0, 0, 0], None, 0)],
)
def test_worked_numbers(seen: list[int], out: Fraction | None, mass: int) -> None:
    """Masses 2, 1, 6 on values 1, 4, 5: the parts give 2 and 5, the whole 4."""
    assert integer_mass_attention([[2, 1, 6]], VALUES, [seen]) == ([[out]], [mass])


def test_merge_of_worked_parts() -> None:
    """Merging 2 (mass 3) and 5 (mass 6) gives 4: neither the sum 7 nor the mean 3.5."""
    assert weighted_mean([3, 6], [[2], [5]]) == [4]


@given(
    st.lists(st.tuples(st.integers(1, 99), st.fractions(-9, 9), st.fractions(-9, 9)), min_size=2),
    st.data(),
)
@settings(max_examples=50, deadline=None)
def test_any_split_merges_to_the_whole(
    keys: list[tuple[int, Fraction, Fraction]], data: st.DataObject
) -> None:
    """Splitting the keys anywhere and merging by mass is exact."""
    masses, values = [w for w, *_ in keys], [[x, y] for _, x, y in keys]
    cut = data.draw(st.integers(1, len(keys) - 1))
    parts = [slice(0, cut), slice(cut, None)]
    outs = [weighted_mean(masses[part], values[part]) for part in parts]
    assert weighted_mean([sum(masses[part]) for part in parts], outs) == weighted_mean(
        masses, values
    )


def test_dyadic_worked() -> None:
    """Scores 1, 0, -1 in base 2 weigh 2, 1, 1/2; an invisible key may be anything."""
    k, v = [[1], [0], [-1], [math.nan]], [[1], [4], [5], [math.nan]]
    out, mass = dyadic_attention([[1], [0]], k, v, [[1, 1, 1, 0], [1, 1, 0, 0]])
    assert out == [[F(17, 7)], [F(5, 2)]]  # (2 + 4 + 5/2) / (7/2)
    assert mass == [F(7, 2), 2]


def test_dyadic_needs_integers() -> None:
    """A visible score that is no integer is refused."""
    with pytest.raises(ValueError, match="got the score 1/2, expected an integer"):
        dyadic_attention([[0.5]], [[1]], [[1]], [[True]])


def test_counting() -> None:
    """Each of n visible keys weighs 1/n."""
    out, count = counting_attention([[1, 0], [0, 1], [0, 0]], [[1, 1, 1], [0, 1, 1], [0, 0, 0]])
    assert out == [[F(1, 3), F(1, 3)], [0, F(1, 2)], [None, None]]
    assert count == [3, 2, 0]


@pytest.mark.parametrize("seed", range(5))
def test_float64_agrees_on_dyadic_inputs(seed: int) -> None:
    """The float64 oracle is the rational result within 1e-15, relative to the values."""
    draw = torch.Generator().manual_seed(seed)
    q = torch.randint(-1, 2, (6, 4), generator=draw)
    k, v = (
        torch.randint(-2, 3, (9, 4), generator=draw),
        torch.randint(1, 9, (9, 3), generator=draw),
    )
    vis = Visibility(causal="bottom_right", window=(5, None))
    seen = visible(vis, (1, 1, 6, 9))[0, 0]
    rows, mass = dyadic_attention(q, k, v, seen)
    out, lse = attention(*(x.double()[None, None] for x in (q, k, v)), math.log(2), vis)
    torch.testing.assert_close(out[0, 0], as_tensor(rows), rtol=1e-15, atol=0)
    want = torch.tensor([log_fraction(m) for m in mass], dtype=torch.float64)
    torch.testing.assert_close(lse[0, 0], want, rtol=1e-15, atol=1e-15)


def test_float64_agrees_on_counting_inputs() -> None:
    """q = 0: the float64 oracle averages within 1e-15."""
    v = torch.randint(1, 9, (33, 3), generator=torch.Generator().manual_seed(0))
    vis = Visibility(causal="bottom_right")
    rows, count = counting_attention(v, visible(vis, (1, 1, 17, 33))[0, 0])
    q, k = torch.zeros(1, 1, 17, 4), torch.ones(1, 1, 33, 4)
    out, lse = attention(q, k, v[None, None], 1.0, vis)
    torch.testing.assert_close(out[0, 0], as_tensor(rows), rtol=1e-15, atol=0)
    assert lse[0, 0].exp().round().tolist() == count


@given(st.fractions(min_value=F(1, 10**9), max_value=10**9), st.integers(-9000, 9000))
@settings(max_examples=200, deadline=None)
def test_log_fraction(x: Fraction, e: int) -> None:
    """log of a fraction of any size is right to 4 units in the last place."""
    for y in (x, x * F(2) ** e, 1 + x / F(2) ** 90, 1 - F(1, 10**30) / x.denominator):
        with mpmath.workdps(120):
            want = mpmath.log(mpmath.mpf(y.numerator) / y.denominator)
        got = log_fraction(y)
        assert abs(got - want) <= 4 * math.ulp(got)


def test_log_fraction_ends() -> None:
    """log 0 is -inf, log 1 is 0, and a negative number is refused."""
    assert (log_fraction(F(0)), log_fraction(F(1))) == (-math.inf, 0.0)
    with pytest.raises(ValueError, match="expected at least 0"):
        log_fraction(F(-1))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_as_float_round_trip(x: float) -> None:
    """A float's fraction is that float."""
    assert as_float(Fraction(x)) == x


def test_as_float_rounds_correctly() -> None:
    """Ties go to even, tiny numbers to the nearest subnormal, huge ones to infinity."""
    assert as_float(1 + F(1, 2**53)) == 1.0
    assert as_float(1 + F(3, 2**53)) == 1 + 2.0**-51
    assert as_float(1 + F(1, 2**53) + F(1, 2**200)) == 1 + 2.0**-52
    assert as_float(F(3, 2**1075)) == 2.0**-1073
    assert as_float(F(1, 2**1075)) == 0.0
    assert as_float(F(2) ** 1024 - F(2) ** 970) == math.inf
    assert as_float(-(F(10) ** 400)) == -math.inf


def test_as_tensor() -> None:
    """Fractions become float64; empty rows become 0, or what is asked for."""
    assert as_tensor([[F(1, 3)], [None]]).tolist() == [[1 / 3], [0.0]]
    assert as_tensor([[None]], empty=math.nan).isnan().all()
