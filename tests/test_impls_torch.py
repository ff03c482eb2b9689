"""The PyTorch kernels are attention within their declared numerics, and refuse the rest."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from attention_calls import (
    DTYPES,
    at,
    fields,
    lengths,
    make_call,
    over_budget,
    plain_softmax,
    random_mask,
    seen_by,
)
from attention_examples import CALLS, any_call

from kernelassay.impls import torch_reference, torch_sdpa
from kernelassay.impls.calls import features_used
from kernelassay.impls.contract import FEATURES, Unsupported, checked_adapter

reference = torch_reference.adapter
SDPA = (
    torch_sdpa.math,
    torch_sdpa.flash,
    torch_sdpa.flash_cpu,
    torch_sdpa.efficient,
    torch_sdpa.cudnn,
)
ON_CPU = (torch_sdpa.math, torch_sdpa.flash_cpu)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_reference_is_within_its_numerics(name: str, dtype: str) -> None:
    """out and lse differ from float64 by no more than the declared roundings."""
    assert over_budget(reference, make_call(**CALLS[name], dtype=dtype)) <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(30))
def test_reference_does_any_features_together(seed: int, dtype: str) -> None:
    """Any features at once, of any sizes, stay within the declared roundings."""
    assert over_budget(reference, any_call(seed, dtype)) <= 1.0


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "window with sinks",
        "positions and a window",
        "soft cap",
        "slopes",
        "bias",
        "sinks",
    ],
)
def test_reference_agrees_with_a_plain_softmax(name: str) -> None:
    """fp32 agrees with the definition, written down once more, to fp32 precision."""
    call = make_call(**CALLS[name])
    result = reference.attend(call)
    out, lse = plain_softmax(call)
    torch.testing.assert_close(result.out.double(), out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result.lse.double(), lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "name",
    [
        "top left",
        "window far from the first keys",
        "lengths, bottom right",
        "mask of keys",
        "positions",
        "bias that hides the first tile",
    ],
)
def test_reference_is_unharmed_by_what_no_query_sees(name: str, poison: float) -> None:
    """NaN and infinities in k and v that no query sees change no bit."""
    call = make_call(**CALLS[name])
    unseen = ~seen_by(call).any(dim=2).any(dim=1)[:, None, :, None]  # [B, 1, Tk, 1]
    assert unseen.any()
    k, v = (x.masked_fill(unseen, poison) for x in (call.k, call.v))
    clean = reference.attend(call)
    poisoned = reference.attend(dataclasses.replace(call, k=k, v=v))
    assert torch.equal(clean.out, poisoned.out)
    assert torch.equal(clean.lse, poisoned.lse)


def test_reference_gives_zeros_for_empty_rows() -> None:
    """A row that sees no key has out = 0 and lse = -inf."""
    call = make_call(Tq=4, Tk=100, mask=random_mask(4, 100))
    result = reference.attend(call)
    assert (result.out[:, :, -1] == 0).all()
    assert (result.lse[:, :, -1] == -math.inf).all()


def test_reference_is_indifferent_to_layout() -> None:
    """Views of other strides give the bits of contiguous tensors, and a call repeats its bits."""
    call = make_call(B=2, Tq=7, Tk=70, D=64)
    q, k, v = (x.mT.contiguous().mT for x in (call.q, call.k, call.v))
    first = reference.attend(call)
    for other in (call, dataclasses.replace(call, q=q, k=k, v=v)):
        result = reference.attend(other)
        assert torch.equal(first.out, result.out)
        assert torch.equal(first.lse, result.lse)


def test_reference_supports_everything() -> None:
    """Each feature of the contract is supported and occurs in a call above."""
    assert reference.capabilities.supports == set(FEATURES)
    used = {"lse", "strides"}.union(*(features_used(make_call(**call)) for call in CALLS.values()))
    assert used == set(FEATURES)


def test_reference_checks_its_calls() -> None:
    """Positions of the wrong shape, or none at all, are a ValueError."""
    with pytest.raises(ValueError, match="q_positions: got None, expected a tensor"):
        reference.attend(make_call(causal="positions"))
    bad = fields(q_positions=at((1, 2)), k_positions=at((0, 1, 2, 3, 4)))
    with pytest.raises(ValueError, match=r"q_positions: got shape .1, 2., expected .1, 5."):
        reference.attend(make_call(causal="positions", **bad))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kernel", ON_CPU, ids=lambda kernel: kernel.name)
def test_sdpa_is_within_its_numerics_or_refuses(kernel: Any, name: str, dtype: str) -> None:
    """A call that needs a declined feature is refused; any other is answered within the budget."""
    call = make_call(**CALLS[name], dtype=dtype)
    missing = features_used(call) - kernel.capabilities.supports
    if missing:
        with pytest.raises(Unsupported, match=", ".join(sorted(missing))):
            kernel.attend(call)
    else:
        assert over_budget(kernel, call) <= 1.0
        assert kernel.attend(call).backend == kernel.backend.name


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_math_computes_16_bit_inputs_in_float32(dtype: str) -> None:
    """Its output has the bits of a float32 softmax over sqrt(scale) q and sqrt(scale) k."""
    call = make_call(Tq=64, Tk=64, D=64, dtype=dtype, scale=0.3)
    root = math.sqrt(0.3)
    q, k, v = (x.float() for x in (call.q, call.k, call.v))
    expected = ((q * root) @ (k * root).mT).softmax(-1) @ v
    got = torch_sdpa.math.attend(call).out
    assert (got == expected.to(got.dtype)).float().mean() > 0.999


@pytest.mark.parametrize("kernel", SDPA, ids=lambda kernel: kernel.name)
def test_sdpa_declines_what_it_has_no_argument_for(kernel: Any) -> None:
    """Lengths, windows and positions are refused by name, and no adapter returns an lse."""
    dtype = kernel.capabilities.dtypes[0]
    with pytest.raises(Unsupported, match="lengths"):
        kernel.attend(make_call(lengths=lengths(3), dtype=dtype))
    with pytest.raises(Unsupported, match="sink_tokens, window"):
        kernel.attend(make_call(window=(1, None), sinks=1, dtype=dtype))
    assert "lse" in kernel.capabilities.declines


@pytest.mark.parametrize(
    "kernel", [x for x in SDPA if "cpu" not in x.capabilities.devices], ids=lambda k: k.name
)
def test_cuda_backends_refuse_the_cpu(kernel: Any) -> None:
    """A backend that has no CPU kernel says so, also where PyTorch would answer without one."""
    for Tk in (5, 0):
        with pytest.raises(Unsupported, match=r"does not run on cpu|no_keys"):
            kernel.attend(make_call(Tk=Tk, dtype="fp16"))


def test_a_refusal_by_pytorch_is_in_its_words() -> None:
    """Where PyTorch finds no kernel, the refusal carries its reasons."""
    call = make_call(Tq=8, Tk=8)
    outside = dataclasses.replace(call, v=call.v.mT.contiguous().mT)  # D is not innermost
    with pytest.raises(Unsupported, match=r"No available kernel.*last dimension"):
        torch_sdpa.flash_cpu.attend(outside)


def test_other_errors_of_pytorch_pass_through() -> None:
    """A malformed call raises what PyTorch raises, not `Unsupported`."""
    call = make_call()
    with pytest.raises(RuntimeError):
        torch_sdpa.math.attend(dataclasses.replace(call, v=call.v[:, :, :3]))


@pytest.mark.parametrize("kernel", [reference, *SDPA], ids=lambda kernel: kernel.name)
def test_adapters_keep_to_the_contract(kernel: Any) -> None:
    """Each adapter has what the contract asks for and numerics for each of its dtypes."""
    assert checked_adapter(kernel) is kernel
    assert set(kernel.numerics) == set(kernel.capabilities.dtypes)
    assert kernel.capabilities.undeclared <= {"strides"}
