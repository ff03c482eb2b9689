"""The bundled Triton kernel is attention, within the error its numerics declare."""

import dataclasses
import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from attention_calls import (
    CALLS,
    DTYPES,
    lengths,
    make_call,
    over_budget,
    plain_softmax,
    random_mask,
    seen_by,
)

from kernelassay.impls.contract import AttendCall, Unsupported, checked_adapter
from kernelassay.impls.interpreter import interpreting
from kernelassay.impls.triton_attention import adapter

if not interpreting():
    pytest.skip("needs TRITON_INTERPRET=1 before Triton is imported", allow_module_level=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_error_is_within_the_declared_numerics(name: str, dtype: str) -> None:
    """out and lse differ from float64 by no more than the declared roundings."""
    assert over_budget(adapter, make_call(**CALLS[name], dtype=dtype)) <= 1.0


@pytest.mark.parametrize("name", ["plain", "bottom right", "grouped heads", "lengths"])
def test_values_are_those_of_a_plain_softmax(name: str) -> None:
    """fp32 agrees with the definition, written down once more, to fp32 precision."""
    call = make_call(**CALLS[name])
    result = adapter.attend(call)
    out, lse = plain_softmax(call)
    torch.testing.assert_close(result.out.double(), out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result.lse.double(), lse, rtol=1e-5, atol=1e-5)


def test_a_row_without_keys_is_zero() -> None:
    """Rows that see no key, by mask, corner or length, have out = 0 and lse = -inf."""
    for call in (
        make_call(Tq=3, Tk=0),
        make_call(Tq=40, Tk=10, causal="bottom_right"),
        make_call(Tq=4, Tk=33, mask=random_mask(4, 33)),
        make_call(B=2, Tq=3, Tk=33, lengths=lengths(0, 5)),
    ):
        result = adapter.attend(call)
        empty = ~seen_by(call).any(-1)
        assert empty.any()
        assert (result.out[empty] == 0).all()
        assert (result.lse[empty] == -math.inf).all()
        assert result.lse[~empty].isfinite().all()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 6e4])
@pytest.mark.parametrize(
    "name", ["bottom right", "top left, fewer keys", "lengths, bottom right", "mask of keys"]
)
def test_keys_that_no_query_sees_may_hold_anything(name: str, poison: float) -> None:
    """NaN and infinities in k and v under a mask or past a length change no bit."""
    call = make_call(**CALLS[name], dtype="fp16")
    unseen = ~seen_by(call).any(dim=2).any(dim=1)[:, None, :, None]  # [B, 1, Tk, 1]
    k, v = (x.masked_fill(unseen, poison) for x in (call.k, call.v))
    clean = adapter.attend(call)
    poisoned = adapter.attend(dataclasses.replace(call, k=k, v=v))
    assert torch.equal(clean.out, poisoned.out)
    assert torch.equal(clean.lse, poisoned.lse)


def test_nan_that_a_query_sees_is_shown() -> None:
    """A NaN in a visible key reaches the rows that see it and no other."""
    call = make_call(Tq=4, Tk=4, causal="bottom_right")
    call.k[:, :, 2] = torch.nan
    out = adapter.attend(call).out
    assert out[:, :, 2:].isnan().all()
    assert out[:, :, :2].isfinite().all()


def views(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """*x* in other memory layouts."""
    padded = torch.full((*x.shape[:-1], x.shape[-1] + 3), torch.nan, dtype=x.dtype)
    padded[..., 1:-2] = x
    interleaved = torch.stack([x, torch.full_like(x, torch.nan)], dim=-2)
    return {
        "BTHD": x.transpose(1, 2).contiguous().transpose(1, 2),
        "D outside": x.mT.contiguous().mT,
        "padded": padded[..., 1:-2],
        "interleaved": interleaved[..., 0, :],
    }


@pytest.mark.parametrize("view", ["BTHD", "D outside", "padded", "interleaved"])
def test_memory_layout_changes_no_bit(view: str) -> None:
    """Views of any strides give the bits of contiguous tensors."""
    call = make_call(B=2, Tq=5, Tk=33, dtype="bf16", causal="bottom_right")
    q, k, v = (views(x)[view] for x in (call.q, call.k, call.v))
    assert not q.is_contiguous()
    plain, seen = adapter.attend(call), adapter.attend(dataclasses.replace(call, q=q, k=k, v=v))
    assert torch.equal(plain.out, seen.out)
    assert torch.equal(plain.lse, seen.lse)


def test_expanded_keys_are_read_with_stride_zero() -> None:
    """One head of k and v expanded to all heads is every head's."""
    call = make_call(Hq=3, Tq=3, Tk=33)
    k, v = (x[:, :1].expand_as(x) for x in (call.k, call.v))
    apart = dataclasses.replace(call, k=k.contiguous(), v=v.contiguous())
    expanded = dataclasses.replace(call, k=k, v=v)
    assert torch.equal(adapter.attend(apart).out, adapter.attend(expanded).out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype: str) -> None:
    """A row's bits are the same alone, with other rows and in another batch."""
    call = make_call(B=2, Tq=70, Tk=70, D=32, dtype=dtype, causal="bottom_right")
    whole = adapter.attend(call)
    q, k, v = (x[1:] for x in (call.q, call.k, call.v))
    tail = adapter.attend(dataclasses.replace(call, q=q[:, :, 67:], k=k, v=v))
    assert torch.equal(whole.out[1:, :, 67:], tail.out)
    assert torch.equal(whole.lse[1:, :, 67:], tail.lse)


def test_inputs_are_left_alone() -> None:
    """A call changes none of its tensors."""
    call = make_call(B=2, Tq=5, Tk=33, lengths=lengths(3, 33), mask=random_mask(2, 1, 5, 33))
    tensors = (call.q, call.k, call.v, call.visibility.lengths, call.visibility.mask)
    before = [x.clone() for x in tensors]
    adapter.attend(call)
    assert all(map(torch.equal, before, tensors))


def wrong(**changes: Any) -> AttendCall:
    """A call of B2 H2 Tq3 Tk5 D16 with *changes*."""
    call = make_call(B=2, Tq=3, Tk=5)
    see = {name: x for name, x in changes.items() if name in ("mask", "lengths")}
    rest = {name: x for name, x in changes.items() if name not in see}
    return dataclasses.replace(
        call, visibility=dataclasses.replace(call.visibility, **see), **rest
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (wrong(q=torch.zeros(2, 3, 16)), "q: got 3 axes, expected 4"),
        (wrong(q=torch.zeros(1, 2, 3, 16)), "k: got shape"),
        (wrong(q=torch.zeros(2, 2, 3, 8)), "k: got shape .* D = 8"),
        (wrong(q=torch.zeros(2, 3, 3, 16)), "q: got 3 heads, expected a multiple of the 2 of k"),
        (wrong(q=torch.zeros(2, 2, 3, 16).half()), "k: got torch.float32, expected torch.float16"),
        (wrong(v=torch.zeros(2, 2, 4, 16)), "v: got shape"),
        (wrong(k=torch.zeros(2, 2, 5, 16, device="meta")), "k: got meta, expected cpu"),
        (wrong(scale=math.nan), "scale: got nan, expected a finite number"),
        (wrong(mask=torch.zeros(3, 5)), "mask: got torch.float32, expected torch.bool"),
        (wrong(mask=torch.ones(3, 4).bool()), "mask: got shape .3, 4., expected one that"),
        (wrong(lengths=lengths(1, 2, 3)), "lengths: got shape .3,., expected .2,."),
        (wrong(lengths=lengths(1, 6)), "lengths: got .1, 6., expected 0 to Tk = 5"),
        (wrong(lengths=lengths(-1, 5)), "lengths: got .-1, 5."),
        (wrong(lengths=torch.ones(2)), "lengths: got torch.float32, expected int64"),
    ],
)
def test_malformed_calls_raise(call: AttendCall, words: str) -> None:
    """What does not fit is a ValueError that names the argument, what came and what fits."""
    with pytest.raises(ValueError, match=words):
        adapter.attend(call)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (make_call(window=(1, None)), "window"),
        (make_call(window=(1, None), sinks=1), "sink_tokens, window"),
        (
            make_call(
                causal="positions",
                q_positions=torch.zeros(1, 5, dtype=torch.int64),
                k_positions=torch.zeros(1, 5, dtype=torch.int64),
            ),
            "causal.positions",
        ),
        (make_call(D=256), "D = 256; at most 128"),
    ],
)
def test_calls_outside_the_declaration_are_refused(call: AttendCall, words: str) -> None:
    """What the kernel does not do is refused with `Unsupported`, which says what was asked."""
    with pytest.raises(Unsupported, match=words):
        adapter.attend(call)


def test_other_dtypes_are_refused() -> None:
    """float64 is refused by name."""
    call = make_call()
    q, k, v = (x.double() for x in (call.q, call.k, call.v))
    with pytest.raises(Unsupported, match="dtype fp64; it takes fp16, bf16, fp32"):
        adapter.attend(dataclasses.replace(call, q=q, k=k, v=v))


def test_without_the_interpreter_a_cpu_tensor_is_refused() -> None:
    """A compiling process imports the module without a GPU and says what a CPU tensor needs."""
    code = (
        "import torch\n"
        "from kernelassay.impls.contract import AttendCall, Unsupported\n"
        "from kernelassay.impls.triton_attention import adapter\n"
        "x = torch.zeros(1, 1, 1, 16)\n"
        "try: adapter.attend(AttendCall(q=x, k=x, v=x))\n"
        "except Unsupported as refusal: print(refusal)"
    )
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert "set TRITON_INTERPRET=1 before Triton is imported" in done.stdout


def test_the_adapter_keeps_to_the_contract() -> None:
    """Name, capabilities, numerics and attend are what the contract asks for; all is declared."""
    assert checked_adapter(adapter) is adapter
    assert not adapter.capabilities.undeclared
