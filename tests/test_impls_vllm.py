"""vLLM's adapters call the library as it wants, and where it is installed keep the laws."""

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from interpreted import lighter
from torch import Tensor

from kernelassay import AttendCase, Subject, Unsupported
from kernelassay.impls import (
    torch_law,
    torch_merge,
    torch_paged,
    vllm_law,
    vllm_merge,
    vllm_speculative,
    vllm_unified,
)
from kernelassay.impls.contract import (
    AttendCall,
    LawCall,
    MergeCall,
    Pages,
    Visibility,
    checked_adapter,
)
from kernelassay.impls.interpreter import interpreting
from kernelassay.properties.engine import Options, check
from kernelassay.properties.logits.case import LawCase
from kernelassay.properties.property import select
from kernelassay.properties.speculative.case import VerifyCase

ATTENTION = [vllm_unified.adapter, vllm_unified.segments]
EVERY = [
    vllm_merge.adapter, vllm_speculative.adapter, vllm_speculative.certain, vllm_law.adapter,
    *ATTENTION,
]  # fmt: skip
LAWS = {p.name: p for p in select()}
DEVICE = "cuda" if torch.cuda.is_available() else "interpreter"


def subject(adapter: Any, dtype: str = "fp32") -> Subject:
    """*adapter* where it runs here; the test is skipped where it or vLLM does not."""
    pytest.importorskip("vllm", reason="needs vllm")
    if DEVICE not in adapter.capabilities.devices:
        pytest.skip(f"{adapter.name} does not run in Triton's interpreter")
    if DEVICE == "interpreter" and not interpreting():
        pytest.skip("needs TRITON_INTERPRET=1 before Triton is imported")
    return Subject(adapter, dtype, DEVICE)


def named(value: Any) -> str:
    """An id."""
    return value if isinstance(value, str) else getattr(value, "name", "case")


@pytest.mark.parametrize("adapter", EVERY, ids=named)
def test_it_keeps_to_the_contract_without_its_library(adapter: Any) -> None:
    """Declarations are read without vLLM; all but strides is supported or declined."""
    assert checked_adapter(adapter) is adapter
    assert adapter.capabilities.undeclared <= {"strides"}
    assert adapter.needs == ("vllm",)


class Merging:
    """vLLM's function as documented: rows [N, H, D], LSEs [H, N] of any strides."""

    def merge_attn_states(
        self, out: Tensor, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, lse: Tensor
    ) -> None:
        """Fills out and lse."""
        assert out_a.is_contiguous()
        assert out_b.is_contiguous()
        assert lse_a.shape == lse_b.shape == lse.shape == (out.shape[1], out.shape[0])
        total = torch.logaddexp(lse_a, lse_b)
        a, b = (torch.exp(x - total).T[..., None] for x in (lse_a, lse_b))
        out.copy_(a * out_a + b * out_b)
        lse.copy_(total)


def test_the_merge_is_given_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in gets contiguous rows and views of LSEs; the results come back in place."""
    monkeypatch.setattr(vllm_merge, "_library", Merging)
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: True)
    monkeypatch.setattr(vllm_merge, "launching", nullcontext)
    generator = torch.Generator().manual_seed(1)
    outs = torch.randn(2, 2, 5, 3, 64, generator=generator).transpose(2, 3)
    lses = torch.randn(2, 2, 5, 3, generator=generator).transpose(2, 3)
    call = MergeCall(outs=outs, lses=lses)
    expected = torch_merge.adapter.merge(call)
    for got, wanted in zip(vllm_merge.adapter.merge(call), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    with pytest.raises(Unsupported, match="parts must be contiguous"):
        vllm_merge.adapter.merge(MergeCall(outs=outs.contiguous(), lses=lses))
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: False)
    with pytest.raises(Unsupported, match="it does not run on cpu"):
        vllm_merge.adapter.merge(call)


def test_the_masks_are_given_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mask and temperature come first, and the call's logits stay as they are."""
    here = dataclasses.replace(vllm_law.adapter.capabilities, devices=("cpu",))
    adapter = dataclasses.replace(vllm_law.adapter, capabilities=here)
    library = SimpleNamespace(apply_top_k_top_p_triton=lambda x, k, p: x.fill_(0.0))
    monkeypatch.setattr(vllm_law, "_library", lambda: library)
    monkeypatch.setattr(vllm_law, "launching", nullcontext)
    logits = torch.tensor([[3.0, 1.0, 2.0]])
    assert adapter.law(LawCall(logits=logits)).tolist() == [[pytest.approx(1 / 3)] * 3]
    assert logits.tolist() == [[3.0, 1.0, 2.0]]
    library.apply_top_k_top_p_triton = lambda x, k, p: x
    mask, temperature = torch.tensor([[True, False, True]]), torch.tensor([2.0])
    call = LawCall(logits=logits, mask=mask, temperature=temperature)
    torch.testing.assert_close(adapter.law(call), torch_law.adapter.law(call))
    with pytest.raises(Unsupported, match="it does not run on cpu"):
        vllm_law.adapter.law(call)


class Attending:
    """vLLM's function as documented, for one head and no cap: a window has equal sides."""

    def unified_attention(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, starts: Tensor, Tq: int,
        lengths: Tensor, most: int, scale: float, causal: bool, window: tuple[int, int],
        table: Tensor, *rest: Any, sinks: Tensor | None, **scratch: Any,
    ) -> None:  # fmt: skip
        """Fills out."""
        assert rest == (0.0, None, None, None)
        assert sinks is None
        assert most == table.shape[1] * k.shape[1]
        assert starts.dtype == lengths.dtype == table.dtype == torch.int32
        if scratch:
            assert scratch["seq_threshold_3D"] == len(q)
            assert scratch["num_par_softmax_segments"] == 4
            assert scratch["softmax_segm_output"].shape == (len(q), 1, 4, 32)
            for name in ("softmax_segm_max", "softmax_segm_expsum"):
                assert scratch[name].shape == (len(q), 1, 4)
        for b, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=False)):
            at = torch.arange(most)
            slots = table[b].long()[at // k.shape[1]] * k.shape[1] + at % k.shape[1]
            ahead = at - torch.arange(length - Tq, length)[:, None]
            seen = (at < length) & ((ahead <= 0) | (not causal))
            if window[0] >= 0:
                seen &= ahead.abs() <= window[0]
            rows = slice(start, start + Tq)
            scores = scale * q[rows, 0] @ k.flatten(0, 1)[slots, 0].T
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out[rows, 0] = weights @ v.flatten(0, 1)[slots, 0]


SEEN = [
    Visibility(causal="bottom_right"),
    Visibility(causal="bottom_right", window=(3, 1)),
    Visibility(window=(1, 1)),
    Visibility(window=(None, 2)),
]


@pytest.mark.parametrize("adapter", ATTENTION, ids=named)
@pytest.mark.parametrize("see", SEEN, ids=["causal", "causal window", "window", "all"])
def test_attention_is_given_its_rows_and_pages(
    adapter: Any, see: Visibility, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in sees of each request what torch_paged sees; other windows are refused."""
    monkeypatch.setattr(vllm_unified, "_library", Attending)
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: True)
    monkeypatch.setattr(vllm_unified, "launching", nullcontext)
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 1, 32, generator=generator).transpose(1, 2)
    k, v = torch.randn(2, 6, 16, 1, 32, generator=generator)
    pages = Pages(
        table=torch.tensor([[4, 0, 2], [5, 1, 3]], dtype=torch.int32), size=16, layout="NHD"
    )
    see = dataclasses.replace(see, lengths=torch.tensor([40, 16]))
    call = AttendCall(q=q, k=k, v=v, visibility=see, pages=pages)
    splits = 3 if adapter.capabilities.splits else None
    got = adapter.attend(dataclasses.replace(call, splits=splits))
    torch.testing.assert_close(got, torch_paged.adapter.attend(call).out)
    uneven = dataclasses.replace(see, causal="none", window=(1, None))
    with pytest.raises(Unsupported, match="equal sides"):
        adapter.attend(dataclasses.replace(call, visibility=uneven))
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: False)
    with pytest.raises(Unsupported, match="it does not run on cpu"):
        adapter.attend(call)


KEPT = [
    (vllm_merge.adapter, "merging.value", "bf16"),
    (vllm_merge.adapter, "merging.empty_parts", "fp32"),
    (vllm_unified.adapter, "attention.score_terms", "fp16"),
    (vllm_unified.segments, "alignment.causal_corner", "bf16"),
    (vllm_speculative.adapter, "speculative.requests_apart", "fp32"),
    (vllm_speculative.certain, "speculative.requests_apart", "fp32"),
]


@pytest.mark.parametrize(("adapter", "law", "dtype"), KEPT, ids=named)
def test_it_keeps_the_law(adapter: Any, law: str, dtype: str) -> None:
    """What was seen to hold of 0.33.0 holds."""
    record = check(lighter(LAWS[law]), subject(adapter, dtype), Options()).record
    assert record.status == "passed", record.reason


FORBIDDEN = VerifyCase(p=((1, 0), (1, 0)), q=((0, 1),))
ALIKE = VerifyCase(p=((0, 15, 1),) * 2, q=((0, 15, 1),), q_above=1)
AHEAD = AttendCase(
    Tq=2, Tk=2, D=32, window=(0, 0), page=16, q="random:0", k="random:1", v="random:2"
)
BROKEN = [
    (vllm_unified.adapter, "attention.value", AHEAD),
    (vllm_unified.segments, "attention.value", dataclasses.replace(AHEAD, splits=2)),
    (vllm_speculative.adapter, "speculative.decisions", FORBIDDEN),
    (vllm_speculative.adapter, "speculative.possible", ALIKE),
    (vllm_speculative.certain, "speculative.certain", dataclasses.replace(FORBIDDEN, q=None)),
    (vllm_law.adapter, "logits.top_p", LawCase(rows=((1, 2),), masses=True, top_p=(0.9,))),
    (vllm_law.adapter, "logits.top_k", LawCase(rows=((0, 0, 1),), top_k=(2,))),
]


@pytest.mark.parametrize(("adapter", "law", "case"), BROKEN, ids=named)
def test_a_known_fault_is_still_there(adapter: Any, law: str, case: Any) -> None:
    """docs/findings.md tells of it; the case fails until vLLM mends it."""
    record = check(LAWS[law], subject(adapter), Options(case=case)).record
    assert record.status == "failed"
    assert record.kind in ("WrongToken", "WrongDistribution", "WrongValue")


EMPTY = AttendCase(B=2, lengths=(0, 0), cuts=(0,), q="random:0", k="random:1", v="random:2")
RIGHT = [
    (vllm_merge.adapter, "merging.empty_parts", EMPTY),
    (
        vllm_speculative.certain,
        "speculative.skipped",
        VerifyCase(p=((1, 1), (1, 2)), q=None, skipped=(0,)),
    ),
]


@pytest.mark.parametrize(("adapter", "law", "case"), RIGHT, ids=named)
def test_an_edge_is_right(adapter: Any, law: str, case: Any) -> None:
    """Two empty parts are empty, as before vLLM's mend they were not; p follows a draft of -1."""
    record = check(LAWS[law], subject(adapter), Options(case=case)).record
    assert record.status == "passed", record.reason
