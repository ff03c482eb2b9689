"""Error budgets against emulated kernels: right ones keep them, slightly wrong ones do not."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated import kernel
from emulated_inputs import HARD, MASKS, MATH, NUMERICS, Inputs, made_hard, normal, structured
from emulated_verdicts import judged, kept, ratios, schedules

from kernelassay.oracle.budget import Z_RMS_LIMIT, attention_budget, recognised
from kernelassay.oracle.formats import format_of
from kernelassay.oracle.numerics import Numerics, default_numerics

TIGHT = {"fp32": 1 / 15, "3xtf32": 1 / 15, "fp16, fp16 accumulators": 1 / 5}
"""Least share of the budget that right kernels use on normal inputs, where it is not 1/4: many
roundings of a random walk share one budget there."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    assert statistics.median(found) >= TIGHT.get(name, 1 / 4), found


@pytest.mark.parametrize("name", NUMERICS)
def test_right_kernels_keep_the_budget_on_hard_inputs(name: str) -> None:
    """Neither large, small, ordered or cancelling content nor masks break a budget."""
    dtype, numerics = NUMERICS[name]
    for i, kind in enumerate(HARD + MASKS):
        hows = schedules(numerics)
        inputs = made_hard(normal(160, dtype, i), kind)
        kept(kernel(dtype, numerics, **hows[i % len(hows)]), inputs)


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
        result = judged(subject, inputs, generic=False, scale=scale)
        assert max(result[:2]) <= 1, result


@pytest.mark.parametrize("l_from_p", [True, False, None])
@pytest.mark.parametrize("low", [0.25, 1.05])
def test_weights_around_the_threshold_of_flushing(low: float, l_from_p: bool | None) -> None:
    """A continuum of tiny weights, on values of one sign, stays within the generic form too.

    Above the threshold all errors have one sign on average: as mere noise they have z_rms 4.7.
    """
    n, g, eta = 3000, torch.Generator().manual_seed(3), format_of("fp16").eta
    scores = math.log(eta) + torch.empty(1, 1, n, 1).uniform_(math.log(low), 3, generator=g)
    scores[..., 0, :] = 0
    q, k = torch.full((1, 1, 1, 1), 8.0), scores / 8
    v = 4 + torch.randn(1, 1, n, 64, generator=g)
    v[:, :, 0] = 0
    inputs = (q.half(), k.half(), v.half(), torch.ones(1, 1, 1, n, dtype=torch.bool))
    for generic in (True, False):
        subject = kernel("fp16", Numerics(l_from_p=l_from_p, out="fp32"))
        result = judged(subject, inputs, generic=generic, scale=1.0)
        assert max(result) <= 1, result


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
