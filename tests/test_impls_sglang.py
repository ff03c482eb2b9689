"""SGLang's adapters call the library as it wants, and where it is installed keep the laws."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from interpreted import lighter
from torch import Tensor

from kernelassay import AttendCase, Subject, Unsupported
from kernelassay.impls import (
    sglang_decode,
    sglang_extend,
    sglang_merge,
    sglang_speculative,
    torch_merge,
    torch_paged,
)
from kernelassay.impls.contract import (
    AttendCall,
    MergeCall,
    Pages,
    VerifyCall,
    Visibility,
    checked_adapter,
)
from kernelassay.impls.interpreter import interpreting
from kernelassay.properties.engine import Options, check
from kernelassay.properties.property import select
from kernelassay.properties.speculative.case import VerifyCase

CHAINS = [sglang_speculative.adapter, sglang_speculative.block]
EXTENDS = [sglang_extend.adapter, sglang_extend.with_lse]
EVERY = [sglang_merge.adapter, sglang_decode.adapter, *EXTENDS, *CHAINS]
LAWS = {p.name: p for p in select()}
DEVICE = "cuda" if torch.cuda.is_available() else "interpreter"


def subject(adapter: Any, dtype: str = "fp32") -> Subject:
    """*adapter* where it runs here; the test is skipped where SGLang is not installed."""
    pytest.importorskip("sglang", reason="needs sglang")
    if DEVICE == "interpreter" and not interpreting():
        pytest.skip("needs TRITON_INTERPRET=1 before Triton is imported")
    return Subject(adapter, dtype, DEVICE)


def named(value: Any) -> str:
    """An id."""
    return value if isinstance(value, str) else getattr(value, "name", "case")


@pytest.mark.parametrize("adapter", EVERY, ids=named)
def test_it_keeps_to_the_contract_without_its_library(adapter: Any) -> None:
    """Declarations are read without SGLang; all but strides is supported or declined."""
    assert checked_adapter(adapter) is adapter
    assert adapter.capabilities.undeclared <= {"strides"}
    assert adapter.needs == ("sglang",)


class Merging:
    """SGLang's function as documented: contiguous rows [N, H, D] and LSEs [N, H]."""

    def merge_state_triton(
        self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """out and lse."""
        assert all(x.is_contiguous() for x in (out_a, lse_a, out_b, lse_b))
        assert lse_a.shape == lse_b.shape == out_a.shape[:2]
        lse = torch.logaddexp(lse_a, lse_b)
        a, b = torch.exp(lse_a - lse), torch.exp(lse_b - lse)
        return a[..., None] * out_a + b[..., None] * out_b, lse


def test_the_merge_is_given_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in gets contiguous rows; the results come back in place."""
    monkeypatch.setattr(sglang_merge, "_library", Merging)
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: True)
    monkeypatch.setattr(sglang_merge, "launching", nullcontext)
    generator = torch.Generator().manual_seed(1)
    outs = torch.randn(2, 2, 5, 3, 64, generator=generator).transpose(2, 3)
    lses = torch.randn(2, 2, 5, 3, generator=generator).transpose(2, 3)
    call = MergeCall(outs=outs, lses=lses)
    expected = torch_merge.adapter.merge(call)
    for got, wanted in zip(sglang_merge.adapter.merge(call), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    with pytest.raises(Unsupported, match="parts must be contiguous"):
        sglang_merge.adapter.merge(MergeCall(outs=outs.contiguous(), lses=lses))
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: False)
    with pytest.raises(Unsupported, match="it does not run on cpu"):
        sglang_merge.adapter.merge(call)


class Chains:
    """SGLang's function as documented; it accepts one draft of each request and then emits 7."""

    def chain_speculative_sampling_triton(
        self, predicts: Tensor, index: Tensor, accepted: Tensor, candidates: Tensor,
        places: Tensor, *rest: Any, block_verification: bool,
    ) -> None:  # fmt: skip
        """Fills predicts and accepted."""
        assert isinstance(block_verification, bool)
        assert rest[-3:] == (1.0, 1.0, True)
        assert candidates.dtype == torch.int64
        assert candidates.shape == places.shape == index.shape
        predicts[places[:, 0]] = candidates[:, 1].int()
        predicts[places[:, 1]] = 7
        accepted.fill_(1)


@pytest.mark.parametrize("adapter", CHAINS, ids=named)
def test_tokens_are_read_off_their_places(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted drafts, the drawn token, then placeholders."""
    monkeypatch.setattr(sglang_speculative, "_library", Chains)
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: True)
    monkeypatch.setattr(sglang_speculative, "launching", nullcontext)
    call = VerifyCall(
        drafts=torch.tensor([[3, 4], [5, 6]], dtype=torch.int32),
        offsets=torch.tensor([0, 2, 4], dtype=torch.int32),
        p=torch.full((2, 3, 8), 1 / 8),
        q=torch.full((2, 2, 8), 1 / 8),
        accept=torch.zeros(2, 2),
        draw=torch.zeros(2),
        most=2,
    )
    result = adapter.verify(call)
    assert result.tokens.tolist() == [[3, 7, -1], [5, 7, -1]]
    assert result.accepted.tolist() == [1, 1]
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: False)
    with pytest.raises(Unsupported, match="it does not run on cpu"):
        adapter.verify(call)


class Decoding:
    """SGLang's function as documented: slots of each request, one after the other."""

    def decode_attention_fwd(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, indptr: Tensor, indices: Tensor,
        mid: Tensor, lse: Tensor, splits: Tensor, S: int, scale: float, *rest: float,
        logit_cap: float, sinks: Tensor | None,
    ) -> None:  # fmt: skip
        """Fills out; no cap, no sinks."""
        assert mid.shape[:3] == lse.shape == (len(q), q.shape[1], S)
        assert splits.tolist() == [S] * len(q)
        assert (rest, logit_cap, sinks) == ((1.0, 1.0), 0.0, None)
        group = q.shape[1] // k.shape[1]
        for n, (start, end) in enumerate(itertools.pairwise(indptr.tolist())):
            slots = indices[start:end].long()
            keys, values = (x[slots].repeat_interleave(group, 1).float() for x in (k, v))
            weights = torch.softmax(scale * torch.einsum("hd,khd->hk", q[n].float(), keys), -1)
            out[n] = torch.einsum("hk,khd->hd", weights, values)


def test_each_query_is_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in gets the slots that each query sees; torch_paged finds the same."""
    monkeypatch.setattr(sglang_decode, "_library", Decoding)
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: True)
    monkeypatch.setattr(sglang_decode, "launching", nullcontext)
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(2, 3, 4, 16, generator=generator).half().transpose(1, 2)
    k, v = torch.randn(2, 6, 16, 2, 16, generator=generator).half()
    call = AttendCall(
        q=q,
        k=k,
        v=v,
        visibility=Visibility(causal="bottom_right", lengths=torch.tensor([40, 16])),
        pages=Pages(
            table=torch.tensor([[4, 0, 2], [5, -1, -1]], dtype=torch.int32),
            size=16,
            layout="NHD",
        ),
    )
    expected = torch_paged.adapter.attend(call).out
    here = replace(call, splits=2)
    torch.testing.assert_close(sglang_decode.adapter.attend(here), expected, rtol=0, atol=3e-3)
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: False)
    with pytest.raises(Unsupported, match="it does not run on cpu"):
        sglang_decode.adapter.attend(here)


class Extending:
    """SGLang's function as documented: a prefix in slots, then as many new keys as queries."""

    def extend_attention_fwd(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, k_pool: Tensor, v_pool: Tensor,
        starts: Tensor, indptr: Tensor, indices: Tensor, mask: Tensor | None, causal: bool,
        mask_starts: Tensor | None, longest: int, *scales: float, sm_scale: float,
        sliding_window_size: int, lse_extend: Tensor | None, skip_extend: bool, **rest: Any,
    ) -> None:  # fmt: skip
        """Fills out and lse; no cap, no sinks."""
        assert scales == (1.0, 1.0)
        assert (rest["logit_cap"], rest["sinks"]) == (0.0, None)
        assert longest == int(starts.diff().max())
        assert (len(k) == 0) if skip_extend else (len(k) == len(q))
        for b, (start, stop) in enumerate(itertools.pairwise(starts.tolist())):
            slots, new = indices[indptr[b] : indptr[b + 1]], slice(start, stop)
            key = torch.arange(len(slots) + stop - start)
            row = key[len(slots) :, None]
            keep = (key <= row) | (not causal)
            if mask is not None:
                assert mask_starts is not None
                keep = mask[mask_starts[b] : mask_starts[b + 1]].view(keep.shape)
            if (reach := sliding_window_size) > 0:
                keep = keep & (row - reach <= key) & (key <= row + reach)
            keys, values = (
                torch.cat((pool[slots], x[new])).repeat_interleave(q.shape[1] // x.shape[1], 1)
                for pool, x in ((k_pool, k), (v_pool, v))
            )
            z = sm_scale * torch.einsum("ihd,khd->hik", q[new].float(), keys.float())
            z = z.masked_fill(~keep[:, : len(keys)], -torch.inf)
            out[new] = torch.einsum("hik,khd->ihd", z.softmax(-1).nan_to_num(), values.float())
            if lse_extend is not None:
                lse_extend[new] = z.logsumexp(-1).T


SEEN = [
    ("bottom_right", (None, None), (40, 16)),
    ("bottom_right", (2, None), (40, 2)),
    ("bottom_right", (0, None), (40, 2)),
    ("none", (None, None), (40, 16)),
    ("none", (None, None), (40, 2)),
    ("none", (2, 2), (40, 16)),
    ("none", (2, 1), (40, 16)),
    ("none", (None, 1), (40, 0)),
]


@pytest.mark.parametrize(("causal", "window", "lengths"), SEEN)
def test_the_last_keys_are_new(
    causal: Any, window: Any, lengths: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in gets prefix and new keys; torch_paged finds the same."""
    monkeypatch.setattr(sglang_extend, "_library", Extending)
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: True)
    monkeypatch.setattr(sglang_extend, "launching", nullcontext)
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 3, 4, 16, generator=generator).half().transpose(1, 2)
    k, v = torch.randn(2, 6, 16, 2, 16, generator=generator).half()
    call = AttendCall(
        q=q,
        k=k,
        v=v,
        visibility=Visibility(causal=causal, window=window, lengths=torch.tensor(lengths)),
        pages=Pages(
            table=torch.tensor([[4, 0, 2], [5, -1, -1]], dtype=torch.int32),
            size=16,
            layout="NHD",
        ),
    )
    expected = torch_paged.adapter.attend(call)
    got = sglang_extend.with_lse.attend(call)
    torch.testing.assert_close(got.out, expected.out, rtol=0, atol=3e-3)
    torch.testing.assert_close(got.lse, expected.lse, rtol=0, atol=1e-5)
    monkeypatch.setattr("kernelassay.impls.interpreter.interpreting", lambda: False)
    with pytest.raises(Unsupported, match="it does not run on cpu"):
        sglang_extend.adapter.attend(call)


KEPT = [
    (sglang_merge.adapter, "merging.value", "bf16"),
    (sglang_decode.adapter, "attention.empty_rows", "bf16"),
    (sglang_extend.adapter, "alignment.causal_corner", "fp16"),
    (sglang_extend.with_lse, "attention.empty_rows", "bf16"),
    (sglang_speculative.adapter, "speculative.deterministic", "fp32"),
    (sglang_speculative.adapter, "speculative.requests_apart", "fp32"),
    (sglang_speculative.block, "speculative.deterministic", "fp32"),
]


@pytest.mark.parametrize(("adapter", "law", "dtype"), KEPT, ids=named)
def test_it_keeps_the_law(adapter: Any, law: str, dtype: str) -> None:
    """What was seen to hold of 0.5.23 holds."""
    record = check(lighter(LAWS[law]), subject(adapter, dtype), Options()).record
    assert record.status == "passed", record.reason


RANDOM = AttendCase(q="random:0", k="random:1", v="random:2")
NO_SCALE = replace(RANDOM, Tk=2, D=16, scale=0.0, page=1)
ALIKE = VerifyCase(p=((1, 15, 0),) * 2, q=((1, 15, 0),), q_above=1)
BROKEN = [
    (sglang_merge.adapter, "merging.empty_parts", replace(RANDOM, B=2, lengths=(0, 0), cuts=(0,))),
    (sglang_merge.adapter, "merging.trees", replace(RANDOM, Tk=17, cuts=(0, 0), tree="left")),
    (sglang_extend.adapter, "attention.value", NO_SCALE),
    (sglang_extend.with_lse, "attention.value", NO_SCALE),
    (sglang_speculative.adapter, "speculative.decisions", ALIKE),
    (sglang_speculative.block, "speculative.possible", ALIKE),
]


@pytest.mark.parametrize(("adapter", "law", "case"), BROKEN, ids=named)
def test_a_known_fault_is_there(adapter: Any, law: str, case: Any) -> None:
    """docs/findings.md tells of it; the case fails until SGLang mends it."""
    dtype = adapter.capabilities.dtypes[-1]
    record = check(LAWS[law], subject(adapter, dtype), Options(case=case)).record
    assert record.status == "failed"
    assert record.kind in ("NonFinite", "WrongValue", "WrongToken")
