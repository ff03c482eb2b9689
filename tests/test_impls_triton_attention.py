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
    DTYPES,
    at,
    lengths,
    make_call,
    numbers,
    over_budget,
    plain_softmax,
    random_bias,
    random_mask,
    seen_by,
)
from attention_examples import CALLS, any_call

from kernelassay.impls.calls import features_used
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    Unsupported,
    checked_adapter,
)
from kernelassay.impls.interpreter import interpreting
from kernelassay.impls.triton_attention import adapter, compile_specs

if not interpreting():
    pytest.skip("needs TRITON_INTERPRET=1 before Triton is imported", allow_module_level=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_error_is_within_the_declared_numerics(name: str, dtype: str) -> None:
    """out and lse differ from float64 by no more than the declared roundings."""
    assert over_budget(adapter, make_call(**CALLS[name], dtype=dtype)) <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(8))
def test_features_work_together(seed: int, dtype: str) -> None:
    """Any features at once, of any sizes, stay within the declared roundings."""
    assert over_budget(adapter, any_call(seed, dtype)) <= 1.0


def test_every_feature_occurs_in_a_call_above() -> None:
    """Each feature of the contract is supported and used; the rest is about memory."""
    used = {"lse", "strides"}.union(*(features_used(make_call(**call)) for call in CALLS.values()))
    assert used == set(FEATURES)
    assert adapter.capabilities.supports == set(FEATURES)


AGREE = [
    "plain", "bottom right", "grouped heads", "lengths", "window with sinks",
    "positions and a window", "positions of ring buffers", "soft cap", "slopes, causal",
    "slopes of the top left corner", "bias that hides", "sinks", "narrow values",
]  # fmt: skip


@pytest.mark.parametrize("name", AGREE)
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


def test_a_sink_alone_is_the_lse() -> None:
    """A row that sees a sink and no key has out = 0 and exactly the sink's logit as its lse."""
    sinks = numbers(0.3, -2e4, -math.inf)
    for call in (
        make_call(Hq=3, Tq=2, Tk=0, sink_logits=sinks),
        make_call(Hq=3, Tq=2, Tk=70, sink_logits=sinks, mask=torch.zeros(1, 70).bool()),
    ):
        result = adapter.attend(call)
        assert (result.out == 0).all()
        assert torch.equal(result.lse, sinks[None, :, None].expand(1, 3, 2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_soft_cap_holds_at_any_score(dtype: str) -> None:
    """Scores of 6e4 and -6e4 become cap and -cap: exp overflows, and no NaN comes of it."""
    call = make_call(Tq=2, Tk=2, softcap=3.0, scale=1.0, dtype=dtype)
    q, k = torch.zeros_like(call.q), torch.zeros_like(call.k)
    q[..., 0], k[:, :, 0, 0], k[:, :, 1, 0] = 250.0, 250.0, -250.0
    lse = adapter.attend(dataclasses.replace(call, q=q, k=k)).lse
    expected = torch.tensor([3.0, -3.0]).logsumexp(0)
    torch.testing.assert_close(lse, expected.expand_as(lse))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_least_finite_bias_hides_nothing_by_itself(dtype: str) -> None:
    """Rows whose keys all have the least number as bias average their values, as in float64."""
    least = torch.finfo(DTYPES[dtype]).min
    call = make_call(Tq=3, Tk=40, dtype=dtype, bias=torch.full((1, 1), least), scale=0.0)
    result = adapter.attend(call)
    mean = call.v.double().mean(2, keepdim=True).expand_as(result.out)
    torch.testing.assert_close(result.out.double(), mean, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(result.lse, torch.full_like(result.lse, least + math.log(40)))


def test_inputs_are_left_alone() -> None:
    """A call changes none of its tensors."""
    call = make_call(
        B=2, Tq=2, Tk=33, lengths=lengths(3, 33), mask=random_mask(2, 1, 2, 33),
        causal="positions", q_positions=at((1, 2), (3, 4)),
        k_positions=torch.arange(66).view(2, 33),
        alibi=numbers(0.5, 0.3), sink_logits=numbers(0.5, 0.3), bias=random_bias(2, 1, 2, 33),
    )  # fmt: skip
    see, scoring = call.visibility, call.scoring
    tensors = (
        call.q, call.k, call.v, see.lengths, see.mask, see.q_positions, see.k_positions,
        scoring.alibi, scoring.sink_logits, scoring.bias,
    )  # fmt: skip
    before = [x.clone() for x in tensors]
    adapter.attend(call)
    assert all(map(torch.equal, before, tensors))


def wrong(**changes: Any) -> AttendCall:
    """A call of B2 H2 Tq3 Tk5 D16 with *changes*."""
    parts = {name: changes.pop(name) for name in ("q", "k", "v", "scale") if name in changes}
    return dataclasses.replace(make_call(B=2, Tq=3, Tk=5, **changes), **parts)


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
        (wrong(causal="positions"), "q_positions: got None, expected a tensor"),
        (
            wrong(causal="positions", q_positions=at((1, 2, 3)), k_positions=at((0, 1, 2, 3, 4))),
            "q_positions: got shape .1, 3., expected .2, 3.",
        ),
        (wrong(window=(-1, None)), "window: got .-1, None., expected .left, right."),
        (wrong(softcap=0.0), "softcap: got 0.0, expected a finite number above 0"),
        (wrong(alibi=numbers(1.0)), "alibi: got torch.float32 .1,., expected torch.float32 .2,."),
        (wrong(sink_logits=numbers(1.0, 2.0).double()), "sink_logits: got torch.float64"),
        (wrong(bias=torch.zeros(3, 4)), "bias: got torch.float32 .3, 4., expected floating point"),
    ],
)
def test_malformed_calls_raise(call: AttendCall, words: str) -> None:
    """What does not fit is a ValueError that names the argument, what came and what fits."""
    with pytest.raises(ValueError, match=words):
        adapter.attend(call)


@pytest.mark.parametrize(
    ("call", "words"),
    [(make_call(D=257), "D = 257; at most 256"), (make_call(Dv=300), "Dv = 300; at most 256")],
)
def test_head_sizes_that_fit_no_tile_are_refused(call: AttendCall, words: str) -> None:
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


def test_what_is_compiled_without_a_device_is_all_there_is_to_say() -> None:
    """Each spec types every argument of the kernel; each optional one is there and is absent."""
    absent = []
    for kernel, signature, constexprs, _ in compile_specs():
        assert set(signature) == set(kernel.arg_names)
        absent.append({name for name, value in constexprs.items() if value is None})
    assert set() in absent
    assert set.union(*absent) in absent
