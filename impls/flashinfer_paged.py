"""FlashInfer's attention over pages on a GPU: decode, and prefill of several queries (0.6.1).

    plan(indptr, indices, last_page_len, ...)    run(q [rows, Hq, D], (k, v), return_lse=True)
    out [rows, Hq, D], lse [rows, Hq] in base 2

The pages of request b are indices[indptr[b] : indptr[b + 1]], the last one holds last_page_len[b]
keys. Lists and plan are made on the host, as serving does. Pools are taken as they lie, q too: its
B x Tq rows are the library's by view, unless requests share one query, which is then repeated.

Decode takes one query a request, so that each query of a call is a request of its own here, whose
length ends where its corner does. Prefill's causal=True is the bottom-right corner.

A list without pages is answered, though the documentation wants one key or more. There is no
minus infinity in the library: hidden keys score -5e4, and so does a row that sees none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.calls import key_heads, refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
    Unsupported,
)

__all__ = ["decode", "prefill"]

WORKSPACE = 128 << 20
"""Bytes, as the documentation recommends."""
GROUPS = (1, 2, 3, 4, 8)
"""Query heads to a KV head that decode was compiled for."""


@cache
def _wrapper(kind: str, place: torch.device) -> Any:
    """The library's wrapper of that kind; each plan takes the place of the last."""
    space = torch.zeros(WORKSPACE, dtype=torch.uint8, device=place)
    return getattr(import_module("flashinfer"), kind)(space, "NHD")


def _lists(table: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """indptr, indices and last_page_len of requests whose pages are the rows of *table*."""
    count = (lengths + size - 1) // size
    used = torch.arange(table.shape[1]) < count[:, None]
    indptr = torch.nn.functional.pad(count.cumsum(0), (1, 0))
    last = lengths - (count - 1).clamp(min=0) * size
    return indptr.int(), table[used], last.int()


def _run(call: AttendCall, wrapper: Any, *lists: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """out and lse of the rows, after a plan for these lists."""
    _, Hq, _, D = call.q.shape
    assert call.pages is not None
    wrapper.plan(
        *lists, Hq, key_heads(call), D, call.pages.size,
        sm_scale=call.scale, logits_soft_cap=call.scoring.softcap, q_data_type=call.q.dtype,
        **options,
    )  # fmt: skip
    rows = call.q.transpose(1, 2).flatten(0, 1)
    return wrapper.run(rows, (call.k, call.v), return_lse=True)


def _decode(call: AttendCall, table: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
    if (group := call.q.shape[1] // key_heads(call)) not in GROUPS:
        raise Unsupported(f"FlashInfer's decode: {group} query heads to a KV head; not compiled")
    Tq = call.q.shape[2]
    later = torch.arange(Tq - 1, -1, -1)  # queries after this one, whose own keys it does not see
    if call.visibility.causal == "none":
        later = torch.zeros_like(later)
    each = (lengths[:, None] - later).clamp(min=0).flatten()
    wrapper = _wrapper("BatchDecodeWithPagedKVCacheWrapper", call.q.device)
    return _run(call, wrapper, *_lists(table.repeat_interleave(Tq, 0), each, size))


def _prefill(call: AttendCall, table: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
    B, _, Tq, _ = call.q.shape
    starts = torch.arange(B + 1, dtype=torch.int32) * Tq
    wrapper = _wrapper("BatchPrefillWithPagedKVCacheWrapper", call.q.device)
    causal = call.visibility.causal != "none"
    return _run(call, wrapper, starts, *_lists(table, lengths, size), causal=causal)


@dataclass(frozen=True, eq=False)
class FlashInferPaged:
    """One of the two wrappers."""

    name: str
    function: Callable[[AttendCall, Tensor, Tensor, int], tuple[Tensor, Tensor]]
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]
    needs: tuple[str, ...] = ("flashinfer",)

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        if (place := call.q.device).type not in self.capabilities.devices:
            raise Unsupported(f"{self.name}: it does not run on {place}")
        if (size := call.q.shape[-1]) not in self.capabilities.head_sizes:
            raise Unsupported(f"{self.name}: D = {size}; it takes {self.capabilities.head_sizes}")
        pages, lengths = call.pages, call.visibility.lengths
        assert pages is not None
        assert lengths is not None
        out, lse = self.function(call, pages.table.cpu(), lengths.cpu(), pages.size)
        B, _, Tq, _ = call.q.shape
        out, lse = (x.view(B, Tq, *x.shape[1:]).transpose(1, 2) for x in (out, lse))
        return AttendResult(out, lse)


# ALiBi there has slopes of its own, windows have no right side, prefill's masks no axis of heads,
# sinks another wrapper. Views other than BTHD are declared neither way.
_DECODE = frozenset(
    (
        "attend", "lse", "causal.bottom_right", "unequal_lengths", "more_queries", "no_keys",
        "lengths", "gqa", "scale", "scale.nonpositive", "softcap",
    )
)  # fmt: skip
# Prefill takes the maximum before the scale multiplies: below 0 that is no softmax.
_PREFILL = _DECODE - {"scale.nonpositive"}
_CONVENTIONS = Conventions(
    empty_row="zeros",
    empty_lse="-inf",
    lse_base="2",
    masked_content="finite_only",
    deterministic=True,
)
_CAPABILITIES = Capabilities(
    devices=("cuda",),
    dtypes=("fp16", "bf16"),
    head_sizes=(64, 128, 256),
    layouts=("BTHD",),
    tiles=(16, 64, 128),
    pages=(16, 1, 3, 64),
    page_layout="NHD",
    supports=_DECODE,
    declines=frozenset(FEATURES) - _DECODE - {"strides"},
    conventions=_CONVENTIONS,
)
# CUDA cores: fp32 throughout, three keys a step at D = 256 and groups of three. Where keys are
# split, from 128 on, the parts' outputs are rounded to 16 bits before they are merged, for which
# `Numerics` has no word: P in the input dtype allows as much.
_CORES = Numerics(
    l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1, block=3, tanh_u=2.0**-11
)
# Tensor cores. What adds up to the row's sum differs: P before its cast with FlashAttention-3,
# after it with FlashAttention-2; the device decides.
_TENSOR = Numerics(tanh_u=2.0**-11)

decode = FlashInferPaged(
    "flashinfer_decode",
    _decode,
    # What a query does not see lies past the length of its request, and is not read.
    replace(_CAPABILITIES, conventions=replace(_CONVENTIONS, masked_content="nan_safe")),
    dict.fromkeys(("fp16", "bf16"), _CORES),
)
prefill = FlashInferPaged(
    "flashinfer_prefill",
    _prefill,
    replace(
        _CAPABILITIES,
        head_sizes=(128,),  # each is a compilation of minutes
        tiles=(64, 96, 128),
        supports=_PREFILL,
        declines=frozenset(FEATURES) - _PREFILL - {"strides"},
    ),
    dict.fromkeys(("fp16", "bf16"), _TENSOR),
)
