"""Weights that are powers of two: whole tensors agree with exact fractions, element by element."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernelassay.oracle.dyadic import dyadic_quotients


def by_fractions(exponents: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """The definition, one element at a time, in fractions; correctly rounded by Python."""
    B, H, Tq, _ = visible.shape
    out = torch.zeros(B, H, Tq, v.shape[-1], dtype=torch.float64)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in (B, H, Tq))).tolist():
        keys = visible[b, h, i].nonzero().flatten().tolist()
        weights = {j: Fraction(2) ** int(exponents[b, h, j]) for j in keys}
        for d in range(v.shape[-1]):
            total = sum((w * int(v[b, h, j, d]) for j, w in weights.items()), Fraction(0))
            out[b, h, i, d] = float(total / sum(weights.values())) if keys else 0.0
    return out


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_quotients_are_the_exact_ones_rounded(data: st.DataObject) -> None:
    """Every bit agrees with exact rational arithmetic, empty rows included."""
    B, H, Tq, Tk, D = (data.draw(st.integers(1, n)) for n in (2, 2, 3, 9, 3))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    span = data.draw(st.sampled_from([0, 1, 6, 20]))
    exponents = torch.randint(-span, span + 1, (B, H, Tk), generator=g)
    v = torch.randint(-9, 10, (B, H, Tk, D), generator=g)
    visible = torch.randint(0, 3, (B, H, Tq, Tk), generator=g) > 0
    visible[0, 0, 0] = data.draw(st.booleans())
    expected = by_fractions(exponents, v, visible)
    assert torch.equal(dyadic_quotients(exponents, v, visible), expected)


def test_by_hand() -> None:
    """Weights 1, 2, 4 and values 3, 0, -1 give (3 - 4) / 7; a common factor changes nothing."""
    v = torch.tensor([[[[3], [0], [-1]]]])
    see = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    for shift in (-40, 0, 40):
        exponents = torch.tensor([[[0, 1, 2]]]) + shift
        assert float(dyadic_quotients(exponents, v, see)) == -1 / 7


def test_equal_weights_are_the_mean() -> None:
    """With one exponent for all keys the output is the mean of the visible values."""
    v = torch.arange(8)[None, None, :, None]
    see = (torch.arange(8) < 5)[None, None, None]
    assert float(dyadic_quotients(torch.zeros(1, 1, 8).long(), v, see)) == 2.0


def test_no_keys_give_zeros() -> None:
    """Tk = 0 and rows that see nothing are 0, of the shape of the output."""
    none = dyadic_quotients(
        torch.zeros(2, 3, 0).long(), torch.zeros(2, 3, 0, 4).long(),
        torch.zeros(2, 3, 5, 0, dtype=torch.bool),
    )  # fmt: skip
    assert none.shape == (2, 3, 5, 4)
    assert none.dtype == torch.float64
    assert not bool(none.any())
    blind = dyadic_quotients(
        torch.zeros(1, 1, 2).long(), torch.ones(1, 1, 2, 1).long(),
        torch.zeros(1, 1, 1, 2, dtype=torch.bool),
    )  # fmt: skip
    assert float(blind) == 0.0


def test_what_is_not_exact_is_refused() -> None:
    """Integers of 2**53 and more would be rounded: an error, at the bound and not below it."""
    v = torch.ones(1, 1, 2, 1).long()
    see = torch.ones(1, 1, 1, 2, dtype=torch.bool)
    fits = torch.tensor([[[0, 51]]])
    assert float(dyadic_quotients(fits, v, see)) == 1.0
    for exponents, values in ((fits + torch.tensor([0, 1]), v), (fits, 2 * v)):
        with pytest.raises(ValueError, match=r"got too wide a range, expected below 2\*\*53"):
            dyadic_quotients(exponents, values, see)
