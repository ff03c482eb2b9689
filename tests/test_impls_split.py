"""Split-KV kernels are attention into however many parts the keys are cut."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from attention_calls import (
    DTYPES,
    fields,
    lengths,
    make_call,
    numbers,
    over_budget,
    random_mask,
    seen_by,
)
from attention_examples import CALLS, any_call

from kernelassay.impls import torch_split, triton_split
from kernelassay.impls.calls import features_used
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Unsupported,
    checked_adapter,
)
from kernelassay.impls.interpreter import interpreting
from kernelassay.oracle.attention import attention

plain, compiled = torch_split.adapter, triton_split.adapter
interpreted = pytest.mark.skipif(
    not interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported"
)
KERNELS = [
    pytest.param(plain, id=plain.name),
    pytest.param(compiled, id=compiled.name, marks=interpreted),
]
both = pytest.mark.parametrize("kernel", KERNELS)
SUPPORTED = [
    n for n in CALLS if features_used(make_call(**CALLS[n])) <= plain.capabilities.supports
]


def cut(call: AttendCall, splits: int | None) -> AttendCall:
    """*call* with its keys in so many parts."""
    return dataclasses.replace(call, splits=splits)


def differs(result: AttendResult, call: AttendCall) -> float:
    """How far out and lse are from the oracle at most; an infinite lse is right or off by inf."""
    given = (call.softmax_scale, call.visibility, call.scoring)
    out, lse = attention(call.q, call.k, call.v, *given)
    assert result.lse is not None
    lse_error = torch.where(result.lse == lse, 0.0, (result.lse - lse).abs())
    return max(float((result.out - out).abs().max()), float(lse_error.max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SUPPORTED)
def test_torch_is_within_its_numerics(name: str, dtype: str) -> None:
    """out and lse differ from float64 by no more than the declared roundings, however cut."""
    call = make_call(**CALLS[name], dtype=dtype)
    for splits in (None, 1, 2, 5, 300):
        assert over_budget(plain, cut(call, splits)) <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(30))
def test_torch_does_any_features_together(seed: int, dtype: str) -> None:
    """Any features at once stay within the declared roundings, or are refused by name."""
    call = cut(any_call(seed, dtype), seed % 7 + 1)
    if missing := features_used(call) - plain.capabilities.supports:
        with pytest.raises(Unsupported, match=", ".join(sorted(missing))):
            plain.attend(call)
    else:
        assert over_budget(plain, call) <= 1.0


FEW: dict[str, tuple[int | None, dict[str, Any]]] = {
    "one part": (1, fields(Hq=1, Tq=3, Tk=40)),
    "parts of a tile": (3, fields(Hq=4, Hkv=1, Tq=1, Tk=40, D=64)),
    "more parts than tiles": (5, fields(Tq=2, Tk=33, causal="bottom_right")),
    "parts of two tiles": (2, fields(Hq=1, Tq=1, Tk=64, D=128)),
    "the kernel's own number": (None, fields(Hq=1, Tq=1, Tk=100)),
    "ragged": (3, fields(B=4, Hq=2, Hkv=1, Tq=2, Tk=40, lengths=lengths(0, 40, 5, 33))),
    "ragged, corner": (
        2,
        fields(B=3, Hq=1, Tq=9, Tk=40, lengths=lengths(5, 0, 40), causal="bottom_right"),
    ),
    "top left": (3, fields(Hq=1, Tq=20, Tk=40, causal="top_left")),
    "top left, fewer keys": (
        2,
        fields(B=2, Hq=1, Tq=20, Tk=19, lengths=lengths(5, 19), causal="top_left"),
    ),
    "more rows than a tile": (2, fields(Hq=6, Hkv=2, Tq=25, Tk=33, causal="bottom_right")),
    "sinks": (3, fields(Hq=6, Hkv=2, Tq=1, Tk=40, sink_logits=numbers(0, 1, 2, -3, -math.inf, 9))),
    "sinks and empty rows": (
        2,
        fields(Tq=9, Tk=4, sink_logits=numbers(0.3, -math.inf), causal="bottom_right"),
    ),
    "mask": (3, fields(B=2, Hq=2, Hkv=1, Tq=5, Tk=40, mask=random_mask(2, 2, 5, 40))),
    "soft cap": (3, fields(Hq=1, Tq=2, Tk=40, softcap=2.0, scale=1.0)),
    "odd sizes": (2, fields(Hq=3, Hkv=1, Tq=2, Tk=33, D=40, Dv=24, scale=-1.5)),
    "large sizes": (2, fields(Hq=1, Tq=2, Tk=33, D=256, Dv=200)),
    "scores far below zero": (3, fields(Hq=1, Tq=2, Tk=40, scale=-400.0)),
    "no keys": (3, fields(Tq=3, Tk=0)),
    "no queries": (2, fields(Tq=0, Tk=3)),
}


@interpreted
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FEW)
def test_triton_is_within_its_numerics(name: str, dtype: str) -> None:
    """out and lse differ from float64 by no more than the declared roundings, however cut."""
    splits, sizes = FEW[name]
    assert over_budget(compiled, cut(make_call(**sizes, dtype=dtype), splits)) <= 1.0


def test_every_feature_occurs_in_a_call_above() -> None:
    """Each feature that is supported is used; the rest is about memory."""
    for names, calls in ((SUPPORTED, CALLS), (FEW, {n: x for n, (_, x) in FEW.items()})):
        used = {"lse", "strides"}.union(*(features_used(make_call(**calls[n])) for n in names))
        assert used == plain.capabilities.supports == compiled.capabilities.supports


@both
@pytest.mark.parametrize("splits", [1, 2, 3, 4, 7, 23])
def test_any_number_of_parts_is_the_whole(kernel: Any, splits: int) -> None:
    """fp32 agrees with the oracle, a sink counted once, into however many parts keys are cut."""
    call = make_call(
        B=2, Hq=2, Hkv=1, Tq=2, Tk=40, causal="bottom_right", lengths=lengths(40, 17),
        sink_logits=numbers(1.0, 3.0),
    )  # fmt: skip
    assert differs(kernel.attend(cut(call, splits)), call) < 1e-5


@both
def test_parts_without_a_key_count_for_nothing(kernel: Any) -> None:
    """Rows that see keys of one part alone, or of none, have what those keys give, and no NaN."""
    Tk = 64
    for part in range(4):
        mask = torch.zeros(3, Tk, dtype=torch.bool)
        mask[0, 16 * part : 16 * part + 16] = True
        mask[1, 16 * part + 7] = True
        call = cut(make_call(Hq=1, Tq=3, Tk=Tk, mask=mask), 4)
        result = kernel.attend(call)
        assert differs(result, call) < 1e-5
        assert (result.out[:, :, 2] == 0).all()
        assert (result.lse[:, :, 2] == -math.inf).all()


@both
def test_a_sink_alone_is_the_lse(kernel: Any) -> None:
    """A row that sees a sink and no key has out = 0 and exactly the sink's logit as its lse."""
    sinks = numbers(0.3, -2e4, -math.inf)
    for Tk, splits in ((0, 4), (40, 3)):
        mask = torch.zeros(1, Tk, dtype=torch.bool)
        call = cut(make_call(Hq=3, Tq=2, Tk=Tk, sink_logits=sinks, mask=mask), splits)
        result = kernel.attend(call)
        assert (result.out == 0).all()
        assert torch.equal(result.lse, sinks[None, :, None].expand(1, 3, 2))


@both
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_no_query_sees_may_hold_anything(kernel: Any, poison: float) -> None:
    """NaN and infinities in keys beyond lengths, corners or masks change no bit."""
    for given in (
        fields(lengths=lengths(0, 21)),
        fields(causal="top_left"),
        fields(mask=random_mask(1, 40)),
    ):
        call = cut(make_call(B=2, Hq=2, Hkv=1, Tq=3, Tk=40, **given), 3)
        unseen = ~seen_by(call).any(dim=2).any(dim=1)[:, None, :, None]  # [B, 1, Tk, 1]
        assert unseen.any()
        k, v = (x.masked_fill(unseen, poison) for x in (call.k, call.v))
        clean, spoilt = kernel.attend(call), kernel.attend(dataclasses.replace(call, k=k, v=v))
        assert torch.equal(clean.out, spoilt.out)
        assert torch.equal(clean.lse, spoilt.lse)


@both
def test_views_of_any_strides_give_the_same_bits(kernel: Any) -> None:
    """q, k, v and a mask are read where their strides say."""
    mask = random_mask(2, 2, 5, 40)
    call = cut(make_call(B=2, Hq=2, Hkv=1, Tq=5, Tk=40, mask=mask), 2)
    q, k, v = (x.mT.contiguous().mT for x in (call.q, call.k, call.v))
    other = mask.transpose(0, 3).contiguous().transpose(0, 3)
    see = dataclasses.replace(call.visibility, mask=other)
    strided = dataclasses.replace(call, q=q, k=k, v=v, visibility=see)
    first, second = kernel.attend(call), kernel.attend(strided)
    assert torch.equal(first.out, second.out)
    assert torch.equal(first.lse, second.lse)


@both
def test_inputs_are_left_alone_and_answers_repeat(kernel: Any) -> None:
    """A call changes none of its tensors and gives the same bits again."""
    call = cut(make_call(Hq=2, Tq=2, Tk=40, sink_logits=numbers(0.3, 1.0)), 3)
    tensors = (call.q, call.k, call.v, call.scoring.sink_logits)
    before = [x.clone() for x in tensors]
    first, second = kernel.attend(call), kernel.attend(call)
    assert all(map(torch.equal, before, tensors))
    assert torch.equal(first.out, second.out)
    assert torch.equal(first.lse, second.lse)


@both
@pytest.mark.parametrize("splits", [0, -1, 1.5, True])
def test_malformed_numbers_of_parts_raise(kernel: Any, splits: Any) -> None:
    """What is no number of parts is a ValueError that says what came."""
    with pytest.raises(ValueError, match=f"splits: got {splits}, expected a whole number above 0"):
        kernel.attend(cut(make_call(), splits))


@both
def test_what_is_declined_is_refused_by_name(kernel: Any) -> None:
    """Windows, slopes, biases and positions are refused with `Unsupported`."""
    for name, call in CALLS.items():
        if name not in SUPPORTED:
            made = make_call(**call)
            missing = features_used(made) - kernel.capabilities.supports
            with pytest.raises(Unsupported, match=", ".join(sorted(missing))):
                kernel.attend(made)
    assert not kernel.capabilities.undeclared
    assert kernel.capabilities.supports | kernel.capabilities.declines == set(FEATURES)


@interpreted
def test_head_sizes_that_fit_no_tile_are_refused() -> None:
    """What the kernel does not do is refused with `Unsupported`, which says what was asked."""
    with pytest.raises(Unsupported, match="Dv = 300; at most 256"):
        compiled.attend(make_call(Dv=300))


@pytest.mark.parametrize("kernel", [plain, compiled], ids=lambda kernel: kernel.name)
def test_adapters_keep_to_the_contract(kernel: Any) -> None:
    """Each adapter has what the contract asks for and numerics for each of its dtypes."""
    assert checked_adapter(kernel) is kernel
    assert kernel.capabilities.splits
    assert set(kernel.numerics) == set(kernel.capabilities.dtypes)


def test_without_a_number_parts_fill_a_device() -> None:
    """Parts are as many as programs are wanting, none without need, none shorter than 64 keys."""
    assert triton_split.parts(2, 100) == 2
    assert triton_split.parts(2, 10**6) == 64
    assert triton_split.parts(500, 10**6) == 1
    assert triton_split.parts(1, 0) == 1


def test_what_is_compiled_without_a_device_is_all_there_is_to_say() -> None:
    """Each spec types every argument of its kernel; both kernels are there."""
    kernels = set()
    for kernel, signature, constexprs, _ in triton_split.compile_specs():
        assert list(signature) == kernel.arg_names
        assert {n for n, kind in signature.items() if kind == "constexpr"} == set(constexprs)
        kernels.add(kernel.__name__)
    assert kernels == {"partial_kernel", "combine_kernel"}
