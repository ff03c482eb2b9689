"""Error budgets against emulated kernels: right ones keep them, slightly wrong ones do not."""

import math
import statistics
from dataclasses import astuple, replace
from typing import Any

import pytest
import torch
from emulated import Kernel, cast, kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernelassay.oracle import budget as budget_module
from kernelassay.oracle.budget import (
    Z_RMS_ELEMENTS,
    Z_RMS_LIMIT,
    Budget,
    attention_budget,
    lse_allowed_in_base,
    recognised,
)
from kernelassay.oracle.formats import format_of
from kernelassay.oracle.numerics import Numerics, default_numerics

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v, visible
PLAIN = default_numerics("fp32")
MATH = Numerics(scale_rounded=True, p_normalised=True, l_from_p=False)

NUMERICS = {
    "fp16": ("fp16", Numerics()),
    "fp16, fp32 out": ("fp16", Numerics(out="fp32")),
    "bf16": ("bf16", Numerics()),
    "bf16, l of unrounded P": ("bf16", Numerics(l_from_p=False)),
    "bf16, l of rounded P": ("bf16", Numerics(l_from_p=True)),
    "fp16, l of rounded P": ("fp16", Numerics(l_from_p=True)),
    "bf16, P in fp32": ("bf16", Numerics(p="fp32")),
    "bf16, fused scale": ("bf16", Numerics(fma=True)),
    "bf16, q prescaled": ("bf16", Numerics(q_prescaled=True)),
    "fp16, q prescaled": ("fp16", Numerics(q_prescaled=True)),
    "bf16, math path": ("bf16", replace(MATH, score="bf16")),
    "fp16, math path": ("fp16", replace(MATH, score="fp16")),
    "bf16, scores in bf16": ("bf16", Numerics(score="bf16")),
    "fp16, fp16 accumulators": ("fp16", Numerics(acc_u=2.0**-11, acc_biased=False)),
    "bf16, P in e4m3": ("bf16", Numerics(p="e4m3", p_scale=256.0, acc_u=2.0**-13, kstep=32)),
    "fp32": ("fp32", PLAIN),
    "tf32": ("fp32", Numerics(dot="tf32", p="tf32", kstep=8)),
    "tf32, cut operands": ("fp32", Numerics(dot="tf32_trunc", p="tf32", kstep=8)),
}
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"block": 64},
    {"block": 16, "splits": 4, "base2": False},
    {"block": 32, "backwards": True},
)
HARD = (
    "logits of 10",
    "logits of 100",
    "tiny logits",
    "rising scores",
    "falling scores",
    "one key wins",
    "cancelling pairs",
    "mean of 4",
    "sorted values",
    "tiny values",
)
MASKS = ("causal", "holes and empty rows", "one key each")


def normal(n: int, dtype: str, seed: int, d: int = 64) -> Inputs:
    """Standard normal content, four query heads on two KV heads, everything visible."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(1, heads, length, d, generator=generator)
        for heads, length in ((4, 16), (2, n), (2, n))
    )
    to = format_of(dtype).dtype
    return q.to(to), k.to(to), v.to(to), torch.ones(1, 4, 16, n, dtype=torch.bool)


def made_hard(inputs: Inputs, kind: str) -> Inputs:
    """*inputs* with the content or the mask that *kind* names."""
    q, k, v, visible = (x.clone() for x in inputs)
    n, rows = k.shape[2], torch.arange(q.shape[2])[:, None]
    ramp = torch.linspace(0, 4, n)[:, None]
    factor = {"logits of 10": 10, "logits of 100": 100, "tiny logits": 1e-4}
    q = (q * factor.get(kind, 1)).to(q.dtype)
    if kind in ("rising scores", "falling scores"):
        q, k = q.abs(), (k.abs() * (ramp if kind == "rising scores" else 4 - ramp)).to(k.dtype)
    elif kind == "one key wins":
        k[:, :, n // 3] *= 30
    elif kind == "cancelling pairs":
        k[:, :, 1::2], v[:, :, 1::2] = k[:, :, : n - 1 : 2], -v[:, :, : n - 1 : 2]
    elif kind == "mean of 4":
        v = v + 4
    elif kind == "sorted values":
        v = v.sort(2).values
    elif kind == "tiny values":
        v = v * 2**-10
    elif kind == "causal":
        visible = visible & (torch.arange(n) <= rows + n - 20)
    elif kind == "holes and empty rows":
        visible = visible & ((torch.arange(n) * 7 + rows * 5) % 3 == 0) & (rows % 4 != 1)
    elif kind == "one key each":
        visible = visible & (torch.arange(n) == rows % n)
    return q, k, v, visible


def judged(subject: Kernel, inputs: Inputs, *, generic: bool, scale: float | None = None) -> Any:
    """Worst error / allowed of the output and of the LSE, and z_rms, of an emulated kernel."""
    q, k, v, visible = inputs
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    budget = attention_budget(q, k, v, scale, visible, subject.x, generic=generic)
    return ratios(budget, *subject.attend(q, k, v, scale, visible))


def ratios(budget: Budget, out: Tensor, lse: Tensor) -> tuple[float, float, float]:
    """Worst error / allowed of output and LSE, and z_rms; empty rows must be exact."""
    empty = budget.lse == -torch.inf
    assert torch.equal(empty, lse == -torch.inf)
    assert out[empty].count_nonzero() == 0
    lse_error = torch.where(empty, 0.0, lse - budget.lse).abs()
    worst = ((out - budget.out).abs() / budget.out_allowed).max()
    return float(worst), float((lse_error / budget.lse_allowed).max()), budget.z_rms(out)


def kept(subject: Kernel, inputs: Inputs) -> float:
    """Asserts that both forms of the budget hold; the generic form's worst ratio."""
    generic, rigorous = (judged(subject, inputs, generic=g) for g in (True, False))
    assert max(generic[:2]) <= 1, generic
    assert max(rigorous[:2]) <= 1, rigorous
    assert inputs[0].numel() >= Z_RMS_ELEMENTS
    assert generic[2] <= Z_RMS_LIMIT, generic
    return generic[0]


def schedules(numerics: Numerics) -> list[dict[str, Any]]:
    """The schedules that make sense: a fused multiply-add needs exp2."""
    return [s for s in SCHEDULES if s.get("base2", True) or not numerics.fma]


@pytest.mark.parametrize("name", NUMERICS)
def test_right_kernels_keep_the_budget_and_use_a_good_part_of_it(name: str) -> None:
    """On normal inputs the worst error is within the budget, and not far within."""
    dtype, numerics = NUMERICS[name]
    found = [
        kept(kernel(dtype, numerics, **how), normal(n, dtype, n + i, 80 if n == 800 else 64))
        for n in (33, 256, 800)
        for i, how in enumerate(schedules(numerics))
        if n < 800 or i == 0
    ]
    least = 1 / 15 if name == "fp32" else 1 / 4
    assert statistics.median(found) >= least, found


@pytest.mark.parametrize("name", NUMERICS)
def test_right_kernels_keep_the_budget_on_hard_inputs(name: str) -> None:
    """Neither large, small, ordered or cancelling content nor masks break a budget."""
    dtype, numerics = NUMERICS[name]
    for i, kind in enumerate(HARD + MASKS):
        hows = schedules(numerics)
        inputs = made_hard(normal(160, dtype, i), kind)
        kept(kernel(dtype, numerics, **hows[i % len(hows)]), inputs)


def midpoint_score(dtype: str) -> float:
    """The score whose exp the cast to *dtype* moves the most, relatively."""
    scores = torch.linspace(-6, 0, 4096).to(format_of(dtype).dtype).double()
    weights = scores.exp()
    return float(
        scores[((cast(weights.float().double(), dtype) - weights) / weights).abs().argmax()]
    )


def structured(kind: str, dtype: str, n: int = 4096) -> Inputs:
    """Inputs of few distinct scores: their cast errors repeat instead of averaging out."""
    g = torch.Generator().manual_seed(1)
    if kind == "rounding midpoints":
        q = torch.ones(1, 1, 1, 1)
        k = torch.full((1, 1, n, 1), midpoint_score(dtype))
        v = (torch.arange(n)[:, None] < torch.tensor([n, n // 2])).float()[None, None]
        k[..., 0, :], v[..., 0, :] = 0, 0
    elif kind == "few distinct keys":
        q, keys = torch.randn(1, 1, 16, 32, generator=g), torch.randn(1, 1, 5, 32, generator=g)
        k = keys[:, :, torch.randint(0, 5, (n,), generator=g)]
        v = 3 + torch.randn(1, 1, n, 32, generator=g) / 5
    else:
        q, k = (torch.randint(-1, 2, (1, 1, m, 16), generator=g).float() for m in (16, n))
        v = torch.randint(0, 4, (1, 1, n, 32), generator=g).float()
    to = format_of(dtype).dtype
    return q.to(to), k.to(to), v.to(to), torch.ones(1, 1, q.shape[2], n, dtype=torch.bool)


STRUCTURES = ("rounding midpoints", "few distinct keys", "integer lattice")


@pytest.mark.parametrize("kind", STRUCTURES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_rigorous_form_holds_on_structured_inputs(kind: str, dtype: str) -> None:
    """Repeated cast errors stay within the worst-case form, row sums of rounded P included."""
    for numerics in (Numerics(), Numerics(l_from_p=True), MATH):
        for out in ("input", "fp32"):
            subject = kernel(dtype, replace(numerics, out=out))
            result = judged(subject, structured(kind, dtype), generic=False, scale=1.0)
            assert max(result[:2]) <= 1, (numerics, out, result)


def test_the_generic_form_does_not_hold_on_structured_inputs() -> None:
    """Why *generic* must be declared truthfully: equal errors add up far beyond lambda sigmas."""
    subject = kernel("bf16", Numerics(out="fp32"))
    out, _, _ = judged(subject, structured("rounding midpoints", "bf16"), generic=True, scale=1.0)
    assert out > 8


@pytest.mark.parametrize("l_from_p", [True, False, None])
@pytest.mark.parametrize("share", [0.9, 1.1, 2.9])
def test_weights_at_the_threshold_of_flushing(share: float, l_from_p: bool | None) -> None:
    """Thousands of weights that fp16 flushes to zero, or nearly, move the result within budget."""
    n, scale = 4096, 8.0
    q, k, v = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, n, 1), torch.ones(1, 1, n, 2)
    k[..., 1:, :] = math.log(share * format_of("fp16").eta) / scale
    v[0, 0, 0, 1] = -1
    inputs = (q.half(), k.half(), v.half(), torch.ones(1, 1, 1, n, dtype=torch.bool))
    for out in ("fp16", "fp32"):
        subject = kernel("fp16", Numerics(l_from_p=l_from_p, out=out))
        for generic in (True, False):
            result = judged(subject, inputs, generic=generic, scale=scale)
            assert max(result[:2]) <= 1, result


def dropped(inputs: Inputs) -> Inputs:
    """The same without the sight of key 100."""
    q, k, v, visible = inputs
    return q, k, v, visible & (torch.arange(k.shape[2]) != 100)


def doubled(inputs: Inputs) -> Inputs:
    """The same with key 100 once more."""
    q, k, v, visible = inputs
    k, v = (torch.cat((x, x[:, :, 100:101]), 2) for x in (k, v))
    return q, k, v, torch.nn.functional.pad(visible, (0, 1), value=True)


@pytest.mark.parametrize("fault", [dropped, doubled])
@pytest.mark.parametrize(("dtype", "factor"), [("bf16", 8), ("fp16", 60), ("fp32", 2000)])
def test_a_wrong_key_set_is_far_outside(fault: Any, dtype: str, factor: float) -> None:
    """A key dropped or counted twice among 256 exceeds the budgets of output and LSE."""
    declared = replace(default_numerics(dtype), l_from_p=False)
    subject, inputs = kernel(dtype, declared), normal(256, dtype, 5)
    q, k, v, visible = inputs
    budget = attention_budget(q, k, v, 0.125, visible, subject.x, generic=True)
    q, k, v, visible = fault(inputs)
    out, lse, _ = ratios(budget, *subject.attend(q, k, v, 0.125, visible))
    assert out > factor
    assert lse > 1000


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_coarser_probabilities_than_declared_are_seen_and_named(n: int) -> None:
    """bf16 P under an fp16 declaration: twice the budget, z_rms 2.2 to 3; e4m3 P: far more."""
    declared = Numerics(block=64).resolved("fp16")
    q, k, v, visible = normal(n, "fp16", n)
    budget = attention_budget(q, k, v, 0.125, visible, declared, generic=True)
    found = {}
    for p in ("bf16", "e4m3"):
        got = kernel("fp16", replace(declared, p=p, p_scale=256.0 if p == "e4m3" else 1.0))
        worst, _, z = ratios(budget, *got.attend(q, k, v, 0.125, visible))
        found[p] = worst
        assert f"as with {p} probabilities" in recognised(z, declared)
        if p == "bf16":
            assert 2.2 <= z <= 3
    assert found["bf16"] > 1.5
    assert found["e4m3"] > 20


def test_e4m3_probabilities_under_a_bf16_declaration() -> None:
    """A cast four bits coarser than declared exceeds a bf16 budget too."""
    q, k, v, visible = normal(256, "bf16", 2)
    budget = attention_budget(q, k, v, 0.125, visible, Numerics(), generic=True)
    got = kernel("bf16", Numerics(p="e4m3", p_scale=256.0)).attend(q, k, v, 0.125, visible)
    worst, _, z = ratios(budget, *got)
    assert worst > 3
    assert z > Z_RMS_LIMIT


def test_recognised_is_silent_within_bounds() -> None:
    """A z_rms within its limit, or NaN, names nothing; nor is there anything coarser than e5m2."""
    fp16 = Numerics(p="fp16")
    assert [recognised(z, fp16) for z in (0.4, Z_RMS_LIMIT, math.nan, math.inf)] == [""] * 4
    assert recognised(9.0, Numerics(p="e5m2")) == ""
    assert recognised(9.0, Numerics()) == ""


COARSER: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"out": "fp32"}, {"out": "bf16"}),
    ({"p": "fp32"}, {"p": "fp16"}),
    ({"p": "bf16"}, {"p": "e4m3"}),
    ({"p": "e4m3", "p_scale": 256.0}, {"p": "e4m3", "p_scale": 1.0}),
    ({"l_from_p": True}, {"l_from_p": None}),
    ({"l_from_p": False}, {"l_from_p": None}),
    ({"p": "fp16", "p_normalised": False}, {"p": "fp16", "p_normalised": True}),
    ({"p": "fp16", "p_normalised": True}, {"p": "fp16"}),
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


@settings(max_examples=40, deadline=None)
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


def test_an_lse_kept_in_16_bits_is_allowed_its_rounding() -> None:
    """A bf16 LSE is off by up to u |lse|, and so much is allowed, not more than declared."""
    subject = kernel("bf16", Numerics(lse="bf16", l_from_p=False))
    inputs = normal(256, "bf16", 6)
    _, within, _ = judged(subject, inputs, generic=True)
    assert 0.5 < within <= 1
    q, k, v, visible = inputs
    finer = attention_budget(q, k, v, 0.125, visible, Numerics(l_from_p=False), generic=True)
    _, outside, _ = ratios(finer, *subject.attend(q, k, v, 0.125, visible))
    assert outside > 100
