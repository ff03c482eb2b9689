"""Laws of error budgets: coarser is larger, order and hidden content do not matter, any shape."""

import math
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import pytest
import torch
from emulated_inputs import MATH, NUMERICS, PLAIN, Inputs, made_hard, normal
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.oracle import budget as budget_module
from kernelassay.oracle.attention import attention
from kernelassay.oracle.budget import attention_budget, lse_allowed_in_base
from kernelassay.oracle.numerics import Numerics
from kernelassay.oracle.visibility import Visibility, visible


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


COARSER: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"out": "fp32"}, {"out": "bf16"}),
    ({"p": "fp32"}, {"p": "fp16"}),
    ({"p": "bf16"}, {"p": "e4m3"}),
    ({"l_from_p": True}, {"l_from_p": None}),
    ({"l_from_p": False}, {"l_from_p": None}),
    ({"dot": "exact"}, {"dot": "tf32"}),
    ({"dot": "tf32"}, {"dot": "tf32_trunc"}),
    ({"acc_u": 2.0**-23}, {"acc_u": 2.0**-13}),
    ({"kstep": 16}, {"kstep": 1}),
    ({"score": "fp32"}, {"score": "bf16"}),
    ({"q_prescaled": False}, {"q_prescaled": True}),
    ({"scale_rounded": False}, {"scale_rounded": True}),
    ({"fma": True}, {"fma": False}),
    ({"exp_u": 2.0**-22}, {"exp_u": 2.0**-18}),
    ({"div_u": 2.0**-22}, {"div_u": 2.0**-18}),
    ({"block": 64}, {"block": 16}),
    ({"lse": "fp32"}, {"lse": "bf16"}),
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    n=st.integers(1, 40),
    size=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    generic=st.booleans(),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
)
def test_a_coarser_declaration_never_shrinks_a_budget(
    seed: int, n: int, size: float, generic: bool, dtype: str
) -> None:
    """Each field, made coarser alone, leaves every allowance at least as large."""
    q, k, v, visible = normal(n, dtype, seed, d=8)
    q = (q * size).to(q.dtype)
    last_bits = 1 - 2.0**-40
    for finer, coarser in COARSER:
        a, b = (
            attention_budget(q, k, v, 0.3, visible, Numerics(**x), generic=generic)
            for x in (finer, coarser)
        )
        assert (b.out_allowed >= a.out_allowed * last_bits).all(), coarser
        assert (b.lse_allowed >= a.lse_allowed * last_bits).all(), coarser


@pytest.mark.parametrize("name", NUMERICS)
def test_the_generic_form_never_exceeds_the_rigorous_one(name: str) -> None:
    """The worst case is the worst case, element for element."""
    dtype, numerics = NUMERICS[name]
    for n, d in ((3, 4), (70, 16), (300, 64)):
        inputs = normal(n, dtype, n, d)
        a, b = (
            attention_budget(*inputs[:3], d**-0.5, inputs[3], numerics, generic=g)
            for g in (True, False)
        )
        assert (a.out_allowed <= b.out_allowed * (1 + 2.0**-40)).all()
        assert (a.lse_allowed <= b.lse_allowed * (1 + 2.0**-40)).all()


def float64_rounding(inputs: Inputs) -> float:
    """At most what reordering float64 sums of these inputs can move a result by."""
    q, k, v, _ = (x.double() for x in inputs)
    score = q.norm(dim=-1).max() * k.norm(dim=-1).max()
    return float(2.0**-52 * (q.shape[-1] * score + k.shape[2] + 8) * max(v.abs().max(), 1))


def test_not_knowing_where_p_is_normalised_allows_for_either() -> None:
    """Dividing before the cast underflows sooner, so it is what an unknown order is allowed."""
    q, k, v, visible = normal(300, "fp16", 3)
    none, true, false = (
        attention_budget(q * 10, k, v, 0.125, visible, Numerics(p_normalised=x), generic=False)
        for x in (None, True, False)
    )
    assert torch.equal(none.out_allowed, true.out_allowed)
    assert (none.out_allowed > false.out_allowed).any()


def test_permuting_keys_changes_no_value() -> None:
    """The oracle's out and lse do not depend on the order of the keys."""
    inputs = made_hard(normal(100, "bf16", 3), "holes and empty rows")
    q, k, v, visible = inputs
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    a = attention_budget(q, k, v, 0.125, visible, Numerics(), generic=True)
    b = attention_budget(
        q, k[:, :, order], v[:, :, order], 0.125, visible[..., order], Numerics(), generic=True
    )
    seen = a.lse > -torch.inf
    assert (a.out - b.out).abs().max() <= float64_rounding(inputs)
    assert (a.lse - b.lse)[seen].abs().max() <= float64_rounding(inputs)


def test_values_are_those_of_the_definition() -> None:
    """out and lse agree with softmax written out head by head."""
    inputs = made_hard(normal(50, "fp32", 8), "causal")
    q, k, v, visible = inputs
    got = attention_budget(q, k, v, 0.3, visible, PLAIN, generic=True)
    for h in range(4):
        s = torch.where(
            visible[0, h], 0.3 * q[0, h].double() @ k[0, h // 2].double().T, -torch.inf
        )
        assert (s.softmax(-1) @ v[0, h // 2].double() - got.out[0, h]).abs().max() <= (
            float64_rounding(inputs)
        )
        assert (s.logsumexp(-1) - got.lse[0, h]).abs().max() <= float64_rounding(inputs)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e3])
@pytest.mark.parametrize("numerics", [Numerics(), Numerics(q_prescaled=True), MATH])
def test_what_nobody_sees_changes_nothing(poison: float, numerics: Numerics) -> None:
    """Content of keys and values hidden from all, and of rows that see nothing, is not read."""
    q, k, v, visible = normal(40, "bf16", 1)
    visible = visible & (torch.arange(40) < 30)
    visible[:, :, 5], visible[:, :2, :, 7] = False, False
    clean = attention_budget(q, k, v, 0.125, visible, numerics, generic=True)
    q[:, :, 5], k[:, :, 30:], v[:, :, 30:], k[:, 0, 7], v[:, 0, 7] = (poison,) * 5
    dirty = attention_budget(q, k, v, 0.125, visible, numerics, generic=True)
    for a, b in zip(astuple(clean), astuple(dirty), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(2, 4, 3, 0), (2, 4, 0, 5), (0, 4, 3, 5), (1, 4, 3, 1)])
@pytest.mark.parametrize("numerics", [Numerics(), PLAIN, Numerics(dot="tf32"), MATH])
def test_empty_shapes_and_rows(shape: tuple[int, ...], numerics: Numerics) -> None:
    """Without keys out is 0, lse is -inf and every allowance is finite."""
    B, H, Tq, Tk = shape
    q, k, v = torch.ones(B, H, Tq, 8), torch.ones(B, 2, Tk, 8), torch.ones(B, 2, Tk, 6)
    visible = torch.zeros(1, 1, 1, 1, dtype=torch.bool).expand(1, 1, 1, Tk)
    for generic in (True, False):
        got = attention_budget(q, k, v, 0.5, visible, numerics, generic=generic)
        assert got.out.shape == got.out_allowed.shape == got.rms_scale.shape == (B, H, Tq, 6)
        assert got.lse.shape == got.lse_allowed.shape == (B, H, Tq)
        assert got.out.count_nonzero() == 0
        assert (got.lse == -torch.inf).all()
        assert got.out_allowed.isfinite().all()
        assert got.lse_allowed.isfinite().all()
        assert got.z_rms(got.out) == 0


@pytest.mark.parametrize("name", NUMERICS)
def test_a_scale_of_zero_or_below(name: str) -> None:
    """Scale 0 makes all weights equal; a negative scale is allowed what its absolute value is."""
    dtype, numerics = NUMERICS[name]
    q, k, v, visible = normal(40, dtype, 1)
    none = attention_budget(q, k, v, 0.0, visible, numerics, generic=True)
    assert none.out_allowed.isfinite().all()
    assert none.lse_allowed.isfinite().all()
    plus = attention_budget(q, -k, v, 0.125, visible, numerics, generic=True)
    minus = attention_budget(q, k, v, -0.125, visible, numerics, generic=True)
    assert torch.equal(plus.out_allowed, minus.out_allowed)
    assert torch.equal(plus.lse_allowed, minus.lse_allowed)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing a few rows at a time gives the same values and allowances."""
    q, k, v, visible = made_hard(normal(70, "bf16", 4), "causal")
    q, k, v, visible = (torch.cat((x, x.flip(2))) for x in (q, k, v, visible))
    numerics = Numerics(scale_rounded=True)
    whole = attention_budget(q, k, v, 0.125, visible, numerics, generic=True)
    for rows in (1, 10, 40, 200):
        per_row = budget_module._bytes_per_row(numerics, 70, 64, 64)
        monkeypatch.setattr(budget_module, "WORKSPACE", rows * per_row)
        parts = attention_budget(q, k, v, 0.125, visible, numerics, generic=True)
        for a, b in zip(astuple(whole), astuple(parts), strict=True):
            torch.testing.assert_close(a, b, rtol=2.0**-40, atol=2.0**-45)


def test_the_lse_of_another_base() -> None:
    """From base 2 two fp32 roundings are added, relative to the LSE; empty rows stay finite."""
    q, k, v, visible = made_hard(normal(40, "bf16", 4), "holes and empty rows")
    got = attention_budget(q, k, v, 0.125, visible, Numerics(), generic=True)
    assert torch.equal(lse_allowed_in_base(got, "e"), got.lse_allowed)
    more = lse_allowed_in_base(got, "2") - got.lse_allowed
    seen = got.lse > -torch.inf
    assert (more[~seen] == 0).all()
    torch.testing.assert_close(more[seen] * 2**23, got.lse[seen].abs(), rtol=2.0**-20, atol=0)
    assert lse_allowed_in_base(got, "2").isfinite().all()


@given(
    B=st.integers(1, 2), group=st.integers(1, 2), Tq=st.integers(1, 9), Tk=st.integers(0, 40),
    corner=st.sampled_from(["none", "bottom_right", "top_left"]), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_budget_holds_the_values_of_the_streaming_oracle(
    B: int, group: int, Tq: int, Tk: int, corner: Any, seed: int
) -> None:
    """Two float64 oracles, one of whole rows and one that streams over keys, agree to rounding."""
    made = torch.Generator().manual_seed(seed)
    q = torch.randn(B, 2 * group, Tq, 8, generator=made)
    k, v = (torch.randn(B, 2, Tk, 8, generator=made) for _ in range(2))
    see = Visibility(causal=corner, lengths=torch.randint(0, Tk + 1, (B,), generator=made))
    seen = visible(see, (B, 2 * group, Tq, Tk))
    budget = attention_budget(q, k, v, 0.3, seen, Numerics(p="fp32"), generic=False)
    out, lse = attention(q, k, v, 0.3, see, block=7)
    # Each oracle's own error: so many float64 roundings, of values as large as these.
    roundings = (Tk + q.shape[-1] + 8) * 2.0**-52
    largest = 1 + float(v.abs().amax()) if Tk else 1.0
    assert bool(((budget.out - out).abs() <= roundings * largest * 8).all())
    assert torch.equal(torch.isneginf(budget.lse), torch.isneginf(lse))
    finite = torch.isfinite(lse)
    assert bool(((budget.lse - lse)[finite].abs() <= roundings * 64).all())
