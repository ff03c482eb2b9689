"""Budgets of soft cap, ALiBi, bias and sinks: right kernels keep them, wrong ones do not."""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated import Terms, kernel
from emulated_inputs import (
    HARD,
    HARD_TERMS,
    MASKS,
    MILD,
    NUMERICS_OF_SCORES,
    PLAIN,
    Inputs,
    made_hard,
    normal,
)
from emulated_verdicts import attended, budget_of, judged, kept, ratios, schedules
from torch import Tensor

from kernelassay.oracle.numerics import Numerics, default_numerics

TIGHT = dict.fromkeys(("fp32", "3xtf32", "fp32, tanh.approx"), 1 / 15)
TIGHT["fp16, fp16 accumulators"] = 1 / 5
"""Least share of the budget that right kernels use on normal inputs, where it is not 1/4: many
roundings of a random walk share one budget there."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", NUMERICS_OF_SCORES)
def test_right_kernels_keep_the_budget_and_use_a_good_part_of_it(name: str) -> None:
    """With each term, in each order of operations, on normal inputs."""
    dtype, numerics = NUMERICS_OF_SCORES[name]
    found = [
        kept(kernel(dtype, numerics, **how), normal(128 + 50 * i, dtype, i), made)
        for made in MILD.values()
        for i, how in enumerate(schedules(numerics))
    ]
    assert statistics.median(found) >= TIGHT.get(name, 1 / 4), found


@pytest.mark.parametrize("kind", HARD_TERMS)
@pytest.mark.parametrize("name", NUMERICS_OF_SCORES)
def test_right_kernels_keep_the_budget_under_strain(name: str, kind: str) -> None:
    """Huge biases, tight caps, steep slopes, sinks near and far, on hard content and masks."""
    dtype, numerics = NUMERICS_OF_SCORES[name]
    hows, contents = schedules(numerics), (*HARD, *MASKS)
    turn = list(HARD_TERMS).index(kind) + list(NUMERICS_OF_SCORES).index(name)
    for i, content in enumerate(("", contents[turn % 13], contents[(turn + 5) % 13])):
        inputs = made_hard(normal(160, dtype, i), content)
        kept(kernel(dtype, numerics, **hows[(turn + i) % len(hows)]), inputs, HARD_TERMS[kind])


@pytest.mark.parametrize("kind", ["steep slopes", "all"])
@pytest.mark.parametrize("name", ["bf16", "fp16, op by op", "fp32"])
def test_long_rows(name: str, kind: str) -> None:
    """500 keys and more, of which slopes of 1 hide nearly all."""
    dtype, numerics = NUMERICS_OF_SCORES[name]
    for how in schedules(numerics):
        kept(kernel(dtype, numerics, **how), normal(530, dtype, 1), HARD_TERMS[kind])


def test_a_tanh_that_is_wrong_on_one_side_moves_the_log_sum_exp_in_full() -> None:
    """4000 capped scores, all too large: a mean error, which noise would not explain."""
    inputs = normal(4000, "bf16", 2)
    inputs = (inputs[0].abs(), inputs[1].abs(), *inputs[2:])
    subject = kernel("bf16", Numerics(tanh_u=2.0**-11, l_from_p=False))
    _, lse, _ = judged(subject, inputs, generic=True, terms=Terms(softcap=5.0))
    assert 0.1 < lse <= 1


def test_a_sink_added_to_a_finished_row_sum() -> None:
    """Far above the keys' maximum, which the sum is relative to: exp and log of 80 round more."""
    found = []
    for seed in range(20):
        made, inputs = torch.Generator().manual_seed(seed), normal(40, "fp32", seed)
        level = torch.full((1, 1), -80.0) - torch.rand(1, generator=made)
        terms = Terms(bias=level, sink=torch.randn(4, generator=made) / 2)
        subject = kernel("fp32", PLAIN, block=32, sink="sum", base2=False)
        kept(subject, inputs, lambda _, terms=terms: terms)
        found.append(judged(subject, inputs, generic=True, terms=terms)[1])
    assert max(found) > 0.1


def test_a_coarser_tanh_than_declared_is_seen() -> None:
    """tanh.approx under the default declaration exceeds the budgets of the LSE and of fp32."""
    for dtype in ("bf16", "fp32"):
        inputs, declared = normal(256, dtype, 3), replace(default_numerics(dtype), l_from_p=False)
        terms = Terms(softcap=5.0)
        got = kernel(dtype, replace(declared, tanh_u=2.0**-11))
        budget = budget_of(inputs, declared, generic=True, terms=terms)
        out, lse, _ = ratios(budget, *attended(got, inputs, terms=terms))
        assert lse > 8
        assert dtype == "bf16" or out > 8


def test_scores_rounded_more_often_than_declared_are_seen() -> None:
    """Scores that each operation rounds to bf16 exceed what fp32 scores are allowed."""
    inputs, terms = normal(256, "bf16", 4), Terms(softcap=5.0)
    declared = Numerics(p="fp32", out="fp32", p_normalised=True, l_from_p=False)
    got = kernel("bf16", replace(declared, score="bf16", score_roundings=2))
    budget = budget_of(inputs, declared, generic=True, terms=terms)
    out, lse, _ = ratios(budget, *attended(got, inputs, terms=terms))
    assert out > 1.5
    assert lse > 50


# Wrong kernels: right arithmetic on wrong terms.


def cap_after_bias(inputs: Inputs, terms: Terms, got: Any) -> tuple[Tensor, Tensor]:
    """cap tanh((z + bias) / cap), by a key for each query that holds the whole score."""
    q, k, v, visible = inputs
    assert terms.bias is not None
    group = q.shape[1] // k.shape[1]
    z = q.double() @ k.double().repeat_interleave(group, 1).mT / math.sqrt(q.shape[-1])
    assert terms.softcap is not None
    wrong = terms.softcap * ((z + terms.bias.double()) / terms.softcap).tanh()
    return attended(got, (0 * q, k, v, visible), terms=Terms(bias=wrong.float()))


def bias_of_the_wrong_sign(inputs: Inputs, terms: Terms, got: Any) -> tuple[Tensor, Tensor]:
    """z - bias."""
    assert terms.bias is not None
    return attended(got, inputs, terms=replace(terms, bias=-terms.bias))


def no_sink(inputs: Inputs, terms: Terms, got: Any) -> tuple[Tensor, Tensor]:
    """The sink left out."""
    return attended(got, inputs, terms=replace(terms, sink=None))


def scaled_sink(inputs: Inputs, terms: Terms, got: Any) -> tuple[Tensor, Tensor]:
    """The sink's logit times the scale, as if it were a dot product."""
    assert terms.sink is not None
    return attended(got, inputs, terms=replace(terms, sink=terms.sink / 8))


def slope_of_the_next_head(inputs: Inputs, terms: Terms, got: Any) -> tuple[Tensor, Tensor]:
    """ALiBi slopes shifted by one head."""
    assert terms.slopes is not None
    return attended(got, inputs, terms=replace(terms, slopes=terms.slopes.roll(-1)))


def distance_from_the_other_corner(inputs: Inputs, terms: Terms, got: Any) -> Any:
    """ALiBi distances as if queries began where the keys do."""
    q, k = inputs[:2]
    wrong = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()
    return attended(got, inputs, terms=replace(terms, distance=wrong))


def no_cap(inputs: Inputs, terms: Terms, got: Any) -> tuple[Tensor, Tensor]:
    """The soft cap left out."""
    return attended(got, inputs, terms=replace(terms, softcap=None))


WRONG: dict[Callable[..., Any], Callable[[Inputs], Terms]] = {
    cap_after_bias: lambda i: replace(MILD["bias"](i), softcap=5.0),
    bias_of_the_wrong_sign: MILD["bias"],
    no_sink: lambda i: Terms(sink=torch.tensor([2.0, 3.0, 4.0, 5.0])),
    scaled_sink: lambda i: Terms(sink=torch.tensor([2.0, 3.0, 4.0, 5.0])),
    slope_of_the_next_head: MILD["standard slopes"],
    distance_from_the_other_corner: MILD["standard slopes"],
    no_cap: MILD["cap of 5"],
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("dtype", "factor"), [("bf16", 4), ("fp16", 30), ("fp32", 4000)])
def test_wrong_terms_are_far_outside(wrong: Any, dtype: str, factor: float) -> None:
    """Each common mistake exceeds the budgets of output and LSE by a wide margin."""
    inputs, numerics = normal(200, dtype, 5), replace(default_numerics(dtype), l_from_p=False)
    terms = WRONG[wrong](inputs)
    got = kernel(dtype, numerics)
    budget = budget_of(inputs, got.x, generic=True, terms=terms)
    out, lse, _ = ratios(budget, *wrong(inputs, terms, got))
    assert out > factor
    assert lse > 1000
    rigorous = budget_of(inputs, got.x, generic=False, terms=terms)
    assert ratios(rigorous, *wrong(inputs, terms, got))[0] > factor / 16
