"""ONNX Runtime's and ONNX's attention: right within the declared numerics, refusing the rest."""

import dataclasses
from typing import Any

import pytest
import torch
from attention_calls import (
    fields,
    lengths,
    make_call,
    numbers,
    over_budget,
    random_bias,
    random_mask,
)

import kernelassay
from kernelassay.impls.calls import features_used
from kernelassay.impls.contract import FEATURES, Unsupported, checked_adapter

ABSENT = "needs {}: pip install 'kernelassay[targets]'"
for library in ("onnx", "onnxruntime"):
    pytest.importorskip(library, reason=ABSENT.format(library))

from kernelassay.impls import (  # noqa: E402 - after the skip
    onnx_attention,
    onnx_group_query,
    onnx_models,
    onnx_multi_head,
    onnx_reference,
)

ADAPTERS = (
    *onnx_attention.adapters,
    onnx_multi_head.adapter,
    onnx_group_query.adapter,
    onnx_reference.adapter,
)
by_name = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.name)

CALLS: dict[str, dict[str, Any]] = {
    "plain": fields(B=2, Tk=17),
    "scale": fields(Tk=9, scale=0.7),
    "square": fields(Tq=19, causal="bottom_right"),
    "top left": fields(Tq=3, Tk=9, causal="top_left"),
    "top left, more queries": fields(Tq=9, Tk=3, causal="top_left"),
    "prefill over a cache": fields(B=2, Tq=3, Tk=40, causal="bottom_right"),
    "decode": fields(B=3, Hq=4, Hkv=2, Tq=1, Tk=33, causal="bottom_right"),
    "decode without a corner": fields(B=3, Hq=4, Hkv=2, Tq=1, Tk=33),
    "cross attention of groups": fields(B=2, Hq=6, Hkv=2, Tq=4, Tk=9),
    "values of another size": fields(Tq=3, Tk=7, Dv=24, causal="bottom_right"),
    "lengths": fields(B=2, Tq=3, Tk=9, lengths=lengths(9, 4)),
    "lengths and a corner": fields(
        B=2, Tq=3, Tk=9, lengths=lengths(4, 9), causal="bottom_right"
    ),
    "lengths and the other corner": fields(
        B=2, Tq=3, Tk=9, lengths=lengths(1, 9), causal="top_left"
    ),
    "mask of keys": fields(B=2, Tq=4, Tk=9, mask=torch.arange(9) % 3 != 1),
    "mask of keys and a corner": fields(
        Tq=4, Tk=9, mask=torch.arange(9) % 3 != 1, causal="bottom_right"
    ),
    "mask of heads": fields(B=2, Hq=3, Tq=4, Tk=9, mask=random_mask(3, 5, 9)[:, :4]),
    "bias": fields(B=2, Hq=3, Tq=4, Tk=9, bias=random_bias(3, 4, 9), causal="bottom_right"),
    "bias of queries": fields(Tq=4, Tk=9, bias=random_bias(4, 1)),
    "bias that hides": fields(Tq=4, Tk=9, bias=random_bias(5, 9, hides=True)[:4]),
    "bias and mask": fields(
        Tq=4, Tk=9, bias=random_bias(4, 9), mask=torch.arange(9) % 3 != 1
    ),
    "soft cap": fields(Tq=4, Tk=9, softcap=2.0, scale=3.0, causal="bottom_right"),
    "soft cap and bias": fields(Tq=4, Tk=9, softcap=2.0, scale=3.0, bias=random_bias(4, 9)),
    "sink logits": fields(
        B=2, Hq=3, Tq=4, Tk=9, sink_logits=numbers(1.0, -2.0, 0.5), causal="bottom_right"
    ),
    "window": fields(B=2, Tq=7, Tk=30, window=(2, None), causal="bottom_right"),
    "window of both sides": fields(Tq=7, Tk=30, window=(2, 1)),
    "window of the top left corner": fields(Tq=7, Tk=30, window=(1, None), causal="top_left"),
}  # fmt: skip


@by_name
@pytest.mark.parametrize("name", CALLS)
def test_right_or_refused(adapter: Any, name: str) -> None:
    """What is supported is within the numerics, in each dtype; anything else is refused."""
    for dtype in adapter.capabilities.dtypes:
        call = make_call(**CALLS[name], dtype=dtype)
        if features_used(call) <= adapter.capabilities.supports:
            assert over_budget(adapter, call) <= 1.0
        else:
            with pytest.raises(Unsupported, match=f"^{adapter.name}: the call needs"):
                adapter.attend(call)


@by_name
def test_declares_every_feature(adapter: Any) -> None:
    """Each adapter keeps to the contract and leaves no feature open."""
    assert checked_adapter(adapter).capabilities.undeclared == frozenset()
    assert adapter.capabilities.supports < set(FEATURES)


def test_takes_no_bf16() -> None:
    """A dtype that no kernel is there for is refused."""
    with pytest.raises(Unsupported, match="dtype bf16"):
        onnx_attention.adapter.attend(make_call(dtype="bf16"))


def test_shapes_share_a_session_and_scales_do_not() -> None:
    """A session is kept for each set of attributes, input ranks and dtype."""
    onnx_models._session.cache_clear()
    for Tq, Tk in ((3, 5), (1, 9), (17, 17)):
        onnx_attention.adapter.attend(make_call(B=2, Tq=Tq, Tk=Tk, D=8))
    assert onnx_models._session.cache_info().currsize == 1
    onnx_attention.adapter.attend(make_call(scale=0.3))
    assert onnx_models._session.cache_info().currsize == 2


@pytest.mark.parametrize("adapter", ADAPTERS[:-1], ids=lambda a: a.name)
def test_results_are_written_between_guards(adapter: Any) -> None:
    """ONNX Runtime writes into memory that the suite watches."""
    (record,) = kernelassay.check(adapter, "attention.memory", dtype="fp32")
    assert (record.status, record.watched) == ("passed", ["allocations"])


LAWS = ("attention.value", "attention.unseen_content", "alignment.visible_set")
KNOWN = {
    "attention.value": {"ort_multi_head", "ort_group_query"},
    "attention.unseen_content": {
        "ort_attention", "ort_attention_3d", "ort_attention_25", "ort_multi_head",
        "onnx_reference",
    },
}  # fmt: skip
"""Kernels with an entry in kernelassay/expect/onnxruntime.toml."""


@by_name
@pytest.mark.parametrize("law", LAWS)
def test_keeps_the_law(adapter: Any, law: str) -> None:
    """At the smoke level laws hold, or fail only where a known fault is expected."""
    dtype = adapter.capabilities.dtypes[len(adapter.name + law) % len(adapter.capabilities.dtypes)]
    (record,) = kernelassay.check(adapter, law, dtype=dtype)
    expected = "expected" if adapter.name in KNOWN.get(law, ()) else "passed"
    assert record.status == expected, f"{record.kind}: {record.reason} {record.case}"


@pytest.mark.parametrize(
    ("adapter", "law"),
    [
        (onnx_reference.literal, "alignment.visible_set"),
        (dataclasses.replace(onnx_multi_head.adapter, literal=True), "alignment.causal_corner"),
    ],
    ids=["mask of one row under is_causal", "unidirectional with fewer queries"],
)
def test_what_the_adapters_keep_away_from_is_found(adapter: Any, law: str) -> None:
    """Passed on as it is, each of two further faults is found; docs/findings.md tells of them."""
    (record,) = kernelassay.check(adapter, law, dtype="fp32")
    assert (record.status, record.kind) == ("failed", "WrongValue")
