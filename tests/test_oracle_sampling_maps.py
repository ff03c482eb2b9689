"""Temperature, top-k, top-p, min-p and masks: by hand, as laws, and the float64 twin."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernelassay.oracle.exact import log_fraction
from kernelassay.oracle.sampling_maps import (
    Ties,
    law_of,
    masked,
    masked_logits,
    min_p,
    min_p_logits,
    tempered,
    tempered_logits,
    top_k,
    top_k_logits,
    top_p,
    top_p_logits,
    top_p_margin,
)
from kernelassay.oracle.speculative import Law, normalised

F = Fraction
MANY = settings(deadline=None)

some_masses = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)
shares = st.builds(lambda a, b: F(min(a, b), max(a, b)), st.integers(1, 9), st.integers(1, 9))
ties = st.sampled_from(["all", "index"])


def logits(masses: list[int]) -> torch.Tensor:
    """The logits whose exponentials are these masses."""
    return torch.tensor([log_fraction(F(w)) for w in masses], dtype=torch.float64)


def close(z: torch.Tensor, law: Law) -> None:
    """The law of float64 logits is the exact one; what is removed has probability 0, not less."""
    got = law_of(z).tolist()
    assert got == pytest.approx([float(w) for w in law], abs=1e-14)
    assert [w == 0 for w in got] == [w == 0 for w in law]


def test_temperatures_by_hand() -> None:
    """Logits (log 4, 0): 4 to 1 at temperature 1, 2 to 1 at 2, 16 to 1 at 1/2."""
    assert tempered([4, 1], 1) == (F(4, 5), F(1, 5))
    assert tempered([4, 1], 2) == (F(2, 3), F(1, 3))
    assert tempered([4, 1], F(1, 2)) == (F(16, 17), F(1, 17))
    assert tempered([F(8, 27), 1, 0], 3) == (F(2, 5), F(3, 5), 0)
    assert tempered([4, 9], F(2, 3)) == (F(8, 35), F(27, 35))
    z = torch.tensor([math.log(4), 0.0])
    assert law_of(tempered_logits(z, 2.0)).tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-7)


def test_irrational_temperatures_are_refused() -> None:
    """The square root of 2 is no Fraction; a temperature of 0 is another rule."""
    with pytest.raises(ValueError, match="root of order 2 is irrational"):
        tempered([2, 1], 2)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="expected above 0"):
            tempered([2, 1], bad)
        with pytest.raises(ValueError, match="expected above 0"):
            tempered_logits(torch.zeros(2), bad)


@MANY
@given(st.integers(0, 10**40), st.integers(1, 7))
def test_roots_of_any_size(x: int, n: int) -> None:
    """x^n has the root x, x^n + 1 has none (x > 0, n > 1)."""
    assert tempered([x**n, 1], n) == normalised([x, 1])
    if x > 0 and n > 1:
        with pytest.raises(ValueError, match="irrational"):
            tempered([x**n + 1, 1], n)


def test_top_k_by_hand() -> None:
    """Logits 1 2 2 2 3 as masses: k = 3 keeps four tokens, or three by index."""
    assert top_k([1, 2, 2, 2, 3], 3) == (0, F(2, 9), F(2, 9), F(2, 9), F(3, 9))
    assert top_k([1, 2, 2, 2, 3], 3, "index") == (0, F(2, 7), F(2, 7), 0, F(3, 7))
    assert top_k([1, 2, 2, 2, 3], 1) == (0, 0, 0, 0, 1)
    assert top_k([1, 3], 9) == (F(1, 4), F(3, 4))


def test_top_p_by_hand() -> None:
    """(.3, .1, .1, .5) with .8 keeps two tokens; .81 needs a third: the lower id, or both."""
    masses = [3, 1, 1, 5]
    assert top_p(masses, F(8, 10)) == (F(3, 8), 0, 0, F(5, 8))
    assert top_p(masses, F(81, 100)) == (F(3, 9), F(1, 9), 0, F(5, 9))
    assert top_p(masses, F(81, 100), "all") == (F(3, 10), F(1, 10), F(1, 10), F(5, 10))
    assert top_p(masses, F(1, 100)) == (0, 0, 0, 1)
    assert top_p([3, 0, 1], 1) == (F(3, 4), 0, F(1, 4))
    assert top_p_margin(masses, F(8, 10)) == 0
    assert top_p_margin(masses, F(77, 100)) == F(3, 100)
    assert top_p_margin([0, 4], F(1, 2)) == 1


def test_min_p_and_masks_by_hand() -> None:
    """A token of just the share is kept; a mask removes whatever it says."""
    assert min_p([5, 3, 2], F(6, 10)) == (F(5, 8), F(3, 8), 0)
    assert min_p([5, 3, 2], 0) == normalised([5, 3, 2])
    assert min_p([5, 3, 2], 1) == (1, 0, 0)
    assert masked([5, 3, 2], [False, True, True]) == (0, F(3, 5), F(2, 5))


def test_float64_at_the_breakpoints() -> None:
    """Two equal tokens, shares of 1/2 exactly: p = 1/2 is met by one, a share of 1 by both."""
    z = torch.tensor([-math.inf, 0.0, 0.0])
    assert law_of(top_p_logits(z, 0.5)).tolist() == [0, 1, 0]
    assert law_of(top_p_logits(z, 0.5, "all")).tolist() == [0, 0.5, 0.5]
    assert law_of(min_p_logits(z, 1.0)).tolist() == [0, 0.5, 0.5]
    assert law_of(top_k_logits(z, 1, "index")).tolist() == [0, 1, 0]


def test_the_order_of_maps_matters() -> None:
    """Top-p after temperature 1/2 keeps one token, before it two."""
    masses = [4, 3, 3]
    assert top_p(tempered(masses, F(1, 2)), F(45, 100)) == (1, 0, 0)
    assert tempered(top_p(masses, F(45, 100)), F(1, 2)) == (F(16, 25), F(9, 25), 0)
    assert top_k(top_p([4, 3, 2, 1], F(9, 10)), 2) == (F(4, 7), F(3, 7), 0, 0)
    assert top_p(top_k([4, 3, 2, 1], 2), F(1, 2)) == (1, 0, 0, 0)


@pytest.mark.parametrize("exact", [True, False])
def test_parameters_out_of_range(exact: bool) -> None:
    """k < 1, p outside (0, 1], a share outside [0, 1]."""
    z = torch.zeros(2)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            top_k([1, 1], bad) if exact else top_k_logits(z, bad)
    for bad in (0, 2):
        with pytest.raises(ValueError, match="0 < p <= 1"):
            top_p([1, 1], bad) if exact else top_p_logits(z, bad)
    for bad in (-1, 2):
        with pytest.raises(ValueError, match="0 to 1"):
            min_p([1, 1], bad) if exact else min_p_logits(z, bad)


def test_a_mask_that_leaves_nothing_is_refused() -> None:
    """No token that is allowed is possible."""
    with pytest.raises(ValueError, match="normalised: got masses"):
        masked([1, 0], [False, True])


@MANY
@given(some_masses, st.integers(1, 9), ties)
def test_top_k_keeps_the_likeliest(masses: list[int], k: int, how: Ties) -> None:
    """All that is kept is at least as likely as all that is not; counts as declared."""
    law = top_k(masses, k, how)
    kept = [w for w, share in zip(masses, law, strict=True) if share]
    lost = [w for w, share in zip(masses, law, strict=True) if not share]
    assert min(kept) >= max(lost, default=0)
    possible = sum(w > 0 for w in masses)
    if how == "index":
        assert len(kept) == min(k, possible)
    else:
        assert len(kept) >= min(k, possible)
        assert min(kept) > max(lost, default=0)


@MANY
@given(some_masses, shares, ties)
def test_top_p_is_the_shortest_run(masses: list[int], p: Fraction, how: Ties) -> None:
    """The share kept is at least p; without the least token kept (by index) it is below p."""
    law = top_p(masses, p, how)
    kept = [w for w, share in zip(masses, law, strict=True) if share]
    assert F(sum(kept), sum(masses)) >= p
    rest = sum(kept) - min(kept) if how == "index" else sum(w for w in kept if w > min(kept))
    assert F(rest, sum(masses)) < p


@MANY
@given(some_masses, st.integers(1, 9), shares, ties)
def test_float64_agrees_with_fractions(masses: list[int], k: int, p: F, how: Ties) -> None:
    """Every map, wherever p is not at a breakpoint of the cumulated sum."""
    z = logits(masses)
    close(tempered_logits(z, 0.5), tempered(masses, F(1, 2)))
    close(top_k_logits(z, k, how), top_k(masses, k, how))
    allowed = [bool(w) or x % 2 == 0 for x, w in enumerate(masses)]
    close(masked_logits(z, torch.tensor(allowed)), masked(masses, allowed))
    if all(w != p * max(masses) for w in masses):
        close(min_p_logits(z, float(p)), min_p(masses, p))
    assume(top_p_margin(masses, p) > 1e-9)
    close(top_p_logits(z, float(p), how), top_p(masses, p, how))


@MANY
@given(st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any), ties)
def test_rows_of_a_batch_are_their_own(masses: list[int], how: Ties) -> None:
    """[2, 3, V] logits: each row is mapped as if it were alone."""
    rows = torch.stack([logits([w + i for w in masses]) for i in range(6)]).reshape(2, 3, 4)
    for mapped in (
        lambda z: top_k_logits(z, 2, how),
        lambda z: top_p_logits(z, 0.7, how),
        lambda z: min_p_logits(z, 0.4),
        lambda z: tempered_logits(z, 1.5),
    ):
        alone = torch.stack([mapped(z) for z in rows.reshape(6, 4)]).reshape(2, 3, 4)
        assert torch.equal(mapped(rows), alone)
