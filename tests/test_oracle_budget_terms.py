"""Laws of budgets with soft cap, ALiBi, bias and sinks: neutral terms, masks, a sink as a key."""

import math
from collections.abc import Iterator
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulated import Terms
from emulated_inputs import HARD_TERMS, MATH, MILD, NUMERICS_OF_SCORES, PLAIN, made_hard, normal
from emulated_verdicts import asked, budget_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_oracle_budget_laws import COARSER, float64_rounding
from torch import Tensor

from kernelassay.oracle import budget as budget_module
from kernelassay.oracle.attention import attention
from kernelassay.oracle.budget import Budget, attention_budget
from kernelassay.oracle.budget_scores import U32, _slopes
from kernelassay.oracle.numerics import Numerics
from kernelassay.oracle.scoring import Scoring, alibi_offsets, offsets
from kernelassay.oracle.visibility import Visibility, visible

OF_TERMS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"tanh_u": 2.0**-21}, {"tanh_u": 2.0**-11}),
    ({"score": "bf16"}, {"score": "bf16", "score_roundings": 2}),
    ({"score": "fp16", "score_roundings": 2}, {"score": "bf16", "score_roundings": 2}),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def same(a: Budget, b: Budget) -> bool:
    """Whether two budgets are equal to the bit."""
    return all(torch.equal(x, y) for x, y in zip(astuple(a), astuple(b), strict=True))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    n=st.integers(1, 40),
    kind=st.sampled_from(sorted(MILD)),
    generic=st.booleans(),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
)
def test_a_coarser_declaration_never_shrinks_a_budget(
    seed: int, n: int, kind: str, generic: bool, dtype: str
) -> None:
    """Each field of the numerics, with each term."""
    inputs, last_bits = normal(n, dtype, seed, d=8), 1 - 2.0**-40
    for finer, coarser in COARSER + OF_TERMS:
        a, b = (
            budget_of(inputs, Numerics(**x), generic=generic, terms=MILD[kind](inputs))
            for x in (finer, coarser)
        )
        assert (b.out_allowed >= a.out_allowed * last_bits).all(), coarser
        assert (b.lse_allowed >= a.lse_allowed * last_bits).all(), coarser


def test_what_rounds_once_more_is_allowed_more() -> None:
    """A coarser tanh and a second rounding of scores count where there is a soft cap."""
    inputs = normal(50, "bf16", 1)
    for finer, coarser in OF_TERMS:
        a, b = (
            budget_of(inputs, Numerics(**x), generic=True, terms=MILD["cap of 5"](inputs))
            for x in (finer, coarser)
        )
        assert (b.out_allowed > a.out_allowed).all()
        assert (b.lse_allowed > a.lse_allowed).all()


@pytest.mark.parametrize("kind", [*MILD, *HARD_TERMS])
def test_the_generic_form_never_exceeds_the_rigorous_one(kind: str) -> None:
    """The worst case is the worst case, element for element."""
    made = (MILD | HARD_TERMS)[kind]
    for i, (dtype, numerics) in enumerate(NUMERICS_OF_SCORES.values()):
        inputs = normal((3, 70, 150)[i % 3], dtype, i, (4, 16)[i % 2])
        a, b = (budget_of(inputs, numerics, generic=g, terms=made(inputs)) for g in (True, False))
        assert (a.out_allowed <= b.out_allowed * (1 + 2.0**-40)).all()
        assert (a.lse_allowed <= b.lse_allowed * (1 + 2.0**-40)).all()


def parts_of(inputs: Any, **terms: Any) -> Budget:
    """The budget of bf16 scores with arguments of `attention_budget` as they are."""
    numerics = Numerics(score="bf16", score_roundings=2)
    return attention_budget(*inputs[:3], 0.125, inputs[3], numerics, generic=True, **terms)


def test_neutral_terms_change_nothing() -> None:
    """A bias of 0, slopes of 0 and a sink of -inf leave values, the first two every bit."""
    inputs = made_hard(normal(60, "bf16", 1), "holes and empty rows")
    plain, zeros = parts_of(inputs), torch.zeros(1, 1, 1, 60)
    assert same(plain, parts_of(inputs, offset=zeros))
    assert same(plain, parts_of(inputs, offset=zeros, alibi=zeros))
    none = parts_of(inputs, sink_logits=torch.full((4,), -math.inf))
    assert torch.equal(none.lse, plain.lse)
    assert (none.out - plain.out).abs().max() <= float64_rounding(inputs)
    assert (none.out_allowed >= plain.out_allowed * (1 - 2.0**-40)).all()
    assert (none.out_allowed <= plain.out_allowed * 1.5).all()


def test_an_offset_of_minus_infinity_is_a_mask() -> None:
    """The same budget to the bit; what is hidden may be added NaN."""
    inputs = normal(60, "bf16", 1)
    _, _, _, seen = made_hard(inputs, "holes and empty rows")
    hidden = torch.where(seen, 0.5, -math.inf)
    masked = (*inputs[:3], seen)
    want = parts_of(masked, offset=torch.full((1,), 0.5))
    assert same(want, parts_of(inputs, offset=hidden))
    assert same(want, parts_of(masked, offset=torch.where(seen, 0.5, math.nan)))


def test_a_sink_is_a_key_without_a_value() -> None:
    """Values are those of one key more, whose score is the logit and whose value is 0."""
    q, k, v, seen = inputs = normal(60, "fp32", 1)
    logits = torch.tensor([1.0, 2.0, -3.0, 30.0])
    got = parts_of(inputs, sink_logits=logits)
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
    seen = torch.nn.functional.pad(seen, (0, 1), value=True)
    offset = torch.nn.functional.pad(logits[:, None, None], (60, 0))
    want = parts_of((q, k, v, seen), offset=offset)
    assert (got.out - want.out).abs().max() <= float64_rounding(inputs)
    assert (got.lse - want.lse).abs().max() <= float64_rounding(inputs)
    assert (got.lse_allowed <= want.lse_allowed * 1.01).all()


@pytest.mark.parametrize("numerics", [Numerics(), PLAIN])
def test_a_sink_that_takes_nearly_all_the_weight(numerics: Numerics) -> None:
    """What it leaves to the keys, e^-30 of the output, is judged about as sharply as before."""
    inputs = normal(60, "fp32", 1)
    plain = budget_of(inputs, numerics, generic=False)
    got = budget_of(inputs, numerics, generic=False, terms=Terms(sink=torch.full((4,), 30.0)))
    share = (plain.lse - got.lse).exp()[..., None]
    assert (share < 1e-8).all()
    assert (
        got.out_allowed <= 50 * share * (plain.out_allowed + plain.out.abs().amax() * U32)
    ).all()


@given(
    cap=st.sampled_from([0.5, 1.0, 30.0]), x=st.floats(-100, 100), d=st.floats(0, 100),
    part=st.floats(-1, 1),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_an_error_before_the_cap_is_bounded_by_slope_and_bend(
    cap: float, x: float, d: float, part: float
) -> None:
    """|f(x + d) - f(x) - f'(x) d| <= change |d|, and an error of d moves f by steepest |d|."""
    row: Any = SimpleNamespace(softcap=cap, x=torch.tensor(x, dtype=torch.float64))
    found = _slopes(row, torch.tensor(d, dtype=torch.float64))
    slope, steepest, change = (float(s) for s in found)
    assert slope == pytest.approx(1 - math.tanh(x / cap) ** 2, rel=1e-12, abs=1e-15)
    moved = cap * (math.tanh((x + part * d) / cap) - math.tanh(x / cap))
    rounding = 8 * 2.0**-53 * cap
    assert abs(moved) <= steepest * abs(part) * d + rounding
    assert abs(moved - slope * part * d) <= change * abs(part) * d + 4 * rounding


@pytest.mark.parametrize("numerics", [Numerics(), PLAIN, Numerics(dot="tf32"), MATH])
@pytest.mark.parametrize("Tk", [0, 5])
def test_a_row_that_sees_only_the_sink(numerics: Numerics, Tk: int) -> None:
    """out is 0, exactly as far as any dtype can tell, and lse the logit, to a few roundings."""
    logits = torch.tensor([0.0, 7.5, -1e4, -math.inf])
    q, k, v = torch.ones(2, 4, 3, 8), torch.ones(2, 2, Tk, 8), torch.ones(2, 2, Tk, 6)
    seen = torch.zeros(1, 1, 1, Tk, dtype=torch.bool)
    for generic in (True, False):
        got = attention_budget(
            q, k, v, 0.5, seen, numerics, generic=generic, sink_logits=logits, softcap=3.0
        )
        assert not got.out.any()
        assert (got.out_allowed < 1e-35).all()
        assert torch.equal(got.lse, logits.double()[:, None].expand(2, 4, 3))
        there = got.lse > -math.inf
        assert (got.lse_allowed[there] <= 32 * 2.0**-24 * (2 + got.lse[there].abs())).all()
        assert got.lse_allowed.isfinite().all()


@pytest.mark.parametrize("kind", [*MILD, *HARD_TERMS])
def test_blocks_of_rows_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing a few rows at a time gives the same values and allowances."""
    inputs = made_hard(normal(40, "bf16", 4), "causal")
    terms = (MILD | HARD_TERMS)[kind](inputs)
    whole = budget_of(inputs, Numerics(), generic=True, terms=terms)
    per_row = budget_module._bytes_per_row(Numerics(), 40, 64, 64)
    for rows in (1, 7, 40):
        monkeypatch.setattr(budget_module, "WORKSPACE", rows * per_row)
        parts = budget_of(inputs, Numerics(), generic=True, terms=terms)
        for a, b in zip(astuple(whole), astuple(parts), strict=True):
            torch.testing.assert_close(a, b, rtol=2.0**-40, atol=2.0**-45)


@pytest.mark.parametrize("size", [1e2, 6e4, 1e30])
def test_anything_is_allowed_a_finite_error(size: float) -> None:
    """Not even -6e4 added twice in bf16, on values of 0 too, makes an allowance infinite."""
    inputs = made_hard(normal(60, "bf16", 1), "holes and empty rows")
    v = torch.where(torch.arange(64) < 9, 0, inputs[2])
    each = torch.full((1,), -size).double()
    for generic in (True, False):
        got = attention_budget(
            *inputs[:2], v, 0.125, inputs[3], Numerics(score="bf16", score_roundings=2),
            generic=generic, softcap=2.0, offset=2 * each, alibi=each,
        )  # fmt: skip
        for x in (got.out_allowed, got.lse_allowed, got.rms_scale):
            assert x.isfinite().all()
            assert (x > 0).all()


def scoring(seed: int, B: int, Hq: int, Tq: int, Tk: int, which: tuple[bool, ...]) -> Scoring:
    """Some of soft cap, ALiBi, bias and sink."""
    made = torch.Generator().manual_seed(seed)
    bias = 3 * torch.randn(B, Hq, Tq, Tk, generator=made)
    bias = torch.where(torch.rand(bias.shape, generator=made) < 0.2, -math.inf, bias)
    cap, slopes, sinks = 4.0, torch.rand(Hq, generator=made), torch.randn(Hq, generator=made)
    kept: list[Any] = [x if w else None for w, x in zip(which, (cap, slopes, bias, sinks),
                                                        strict=True)]  # fmt: skip
    return Scoring(softcap=kept[0], alibi=kept[1], bias=kept[2], sink_logits=kept[3])


@given(
    B=st.integers(1, 2), group=st.integers(1, 2), Tq=st.integers(1, 9), Tk=st.integers(0, 40),
    corner=st.sampled_from(["none", "bottom_right", "top_left"]), seed=st.integers(0, 99),
    which=st.tuples(*[st.booleans()] * 4),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_budget_holds_the_values_of_the_streaming_oracle(
    B: int, group: int, Tq: int, Tk: int, corner: Any, seed: int, which: tuple[bool, ...]
) -> None:
    """Two float64 oracles, one of whole rows and one that streams over keys, agree to rounding."""
    made = torch.Generator().manual_seed(seed)
    q = torch.randn(B, 2 * group, Tq, 8, generator=made)
    k, v = (torch.randn(B, 2, Tk, 8, generator=made) for _ in range(2))
    see = Visibility(causal=corner, lengths=torch.randint(0, Tk + 1, (B,), generator=made))
    shape, how = (B, 2 * group, Tq, Tk), scoring(seed, B, 2 * group, Tq, Tk, which)
    budget = attention_budget(
        q, k, v, 0.3, visible(see, shape), Numerics(p="fp32"), generic=False,
        softcap=how.softcap, offset=offsets(how, see, shape), alibi=alibi_offsets(how, see, shape),
        sink_logits=how.sink_logits,
    )  # fmt: skip
    out, lse = attention(q, k, v, 0.3, see, how, block=7)
    # Each oracle's own error: so many float64 roundings, of values and scores as large as these.
    roundings = (Tk + q.shape[-1] + 8) * 2.0**-52
    largest = 1 + float(v.abs().amax()) if Tk else 1.0
    assert bool(((budget.out - out).abs() <= roundings * largest * 64).all())
    assert torch.equal(torch.isneginf(budget.lse), torch.isneginf(lse))
    finite = torch.isfinite(lse)
    assert bool(((budget.lse - lse)[finite].abs() <= roundings * 64).all())


def test_terms_are_those_that_kernels_are_given() -> None:
    """What the emulated kernels are asked is what the budget is asked."""
    inputs = normal(9, "bf16", 1)
    got = asked(MILD["all"](inputs))
    assert isinstance(got["offset"], Tensor)
    assert got["alibi"][0, -1].tolist() == [-(2.0**-2) * d for d in reversed(range(9))]
