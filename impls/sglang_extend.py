"""SGLang's Triton prefill attention over a pool of slots (0.5.23), on a GPU or in the interpreter.

    extend_attention_fwd(q [N, Hq, D], k [N, Hkv, D], v [N, Hkv, Dv], out [N, Hq, Dv],
        k_pool [slots, Hkv, D], v_pool, starts [B + 1], indptr [B + 1], indices, mask, is_causal,
        mask_indptr, longest, k_scale, v_scale, sm_scale=, logit_cap=, sliding_window_size=, ...)

Rows starts[b] to starts[b + 1] are the queries of request b and as many new keys; before these it
has a prefix of keys in the slots indices[indptr[b] : indptr[b + 1]]. A program has up to 128
queries of one request and head; it goes over the prefix, then over the new keys, in tiles of 32 or
more. Pools are taken as they lie; a call's last Tq keys are the new ones, gathered from the pages.

Under a causal corner a request of L < Tq keys has L new keys and L queries: one before the first
key has no place in the kernel, and its row is made here, zeros with an LSE of -inf. Without a
corner such a query sees keys. All keys of all requests are then a prefix, and the new ones are
skipped (`skip_extend`), as SGLang does for a chunk of a prefix.

The kernel's own windows are (left, any) under a corner and (left, left) without, left above 0. For
others all keys are a prefix, too, and a mask [queries, keys] of each request, which SGLang has for
trees of drafts, says what is seen.

LSEs are an adapter of their own, without sinks: the kernel adds exp(sink - m) to the row's sum and
leaves the maximum m as it was, which overflows where a sink lies 89 above. SGLang never asks for
both. A row without keys is 0 with an LSE of -inf, but NaN where its sink is -inf.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
)
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere
from kernelassay.impls.torch_paged import visible

__all__ = ["adapter", "with_lse"]


@cache
def _library() -> Any:
    mend()
    return import_module("sglang.kernels.ops.attention.extend_attention")


def _starts(counts: Tensor) -> Tensor:
    return pad(counts.cumsum(0), (1, 0))


def _slots(call: AttendCall, start: Tensor, stop: Tensor) -> Tensor:
    """The slots of keys start[b] <= j < stop[b], one request after the other."""
    pages = call.pages
    assert pages is not None
    slot = torch.arange(pages.size, device=start.device)
    slots = (pages.table.long()[:, :, None] * pages.size + slot).flatten(1)
    key = torch.arange(slots.shape[1], device=start.device)
    return slots[(key >= start[:, None]) & (key < stop[:, None])]


def _fits(call: AttendCall, lengths: Tensor) -> bool:
    """True if prefix, new keys and a window of the kernel's own say what *call* sees."""
    left, right = call.visibility.window
    if call.visibility.causal != "none":
        return left != 0
    return left == right != 0 and bool((lengths >= call.q.shape[2]).all())


def _mask(call: AttendCall, lengths: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What queries see of a prefix, and nothing of skipped keys, with each request's start.

    None, where nothing is hidden.
    """
    if call.visibility.window == (None, None):
        return None, None
    Tq, most = call.q.shape[2], int(lengths.max())
    key = torch.arange(most + Tq, device=lengths.device)
    widths = lengths + Tq
    seen = pad(visible(call, lengths, key[:most]), (0, Tq))
    used = (key < widths[:, None, None]).expand_as(seen)
    return seen[used], _starts(Tq * widths)


@dataclass(frozen=True, eq=False)
class SglangExtend:
    """The kernel above."""

    name: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]
    needs: tuple[str, ...] = ("sglang",)

    def attend(self, call: AttendCall) -> AttendResult:
        """out of *call*, and its lse where that is declared."""
        refuse_unsupported(self.name, self.capabilities, call)
        refuse_elsewhere(self.name, place := call.q.device)
        pages, see, scoring = call.pages, call.visibility, call.scoring
        assert pages is not None
        assert see.lengths is not None
        B, _, Tq, _ = call.q.shape
        lengths, fits = see.lengths.long(), _fits(call, see.lengths)
        counts = lengths.clamp(max=Tq) if fits else torch.full_like(lengths, Tq)
        prefix = lengths - counts if fits else lengths
        window = see.window[0] if fits and see.window[0] is not None else -1
        mask, mask_starts = (None, None) if fits else _mask(call, lengths)

        given = (torch.arange(Tq, device=place) >= Tq - counts[:, None]).flatten()
        rows = call.q.transpose(1, 2).flatten(0, 1)
        q = rows if given.all() else rows[given]
        k, v = call.k.flatten(0, 1), call.v.flatten(0, 1)
        new = _slots(call, prefix, lengths)
        out = q.new_empty((*q.shape[:2], v.shape[-1]))
        stored = "lse" in self.capabilities.supports
        lse = torch.empty(q.shape[:2], device=place) if stored else None
        with launching(call.q):
            _library().extend_attention_fwd(
                q, k[new], v[new], out, k, v, _starts(counts), _starts(prefix),
                _slots(call, torch.zeros_like(prefix), prefix), mask,
                fits and see.causal != "none", mask_starts, int(counts.max()), 1.0, 1.0,
                sm_scale=call.softmax_scale, logit_cap=scoring.softcap or 0.0,
                skip_prefix_custom_mask=False, sliding_window_size=window,
                sinks=scoring.sink_logits, lse_extend=lse, skip_extend=not fits,
                page_size=pages.size,
            )  # fmt: skip

        def placed(x: Tensor, absent: float) -> Tensor:
            """The rows *x* in their places [B, H, Tq, ...], *absent* in those not given."""
            if not given.all():
                x = x.new_full((B * Tq, *x.shape[1:]), absent).index_put_((given,), x)
            return x.view(B, Tq, *x.shape[1:]).transpose(1, 2)

        return AttendResult(placed(out, 0.0), None if lse is None else placed(lse, -torch.inf))


_SUPPORTS = frozenset(
    (
        "attend", "causal.bottom_right", "unequal_lengths", "more_queries", "no_keys",
        "value_size", "lengths", "window", "gqa", "scale", "scale.nonpositive", "softcap",
        "sink_logits",
    )
)  # fmt: skip
_WITH_LSE = _SUPPORTS - {"sink_logits"} | {"lse"}
_NUMERICS = Numerics(l_from_p=False, p_normalised=False, block=32)

adapter = SglangExtend(
    "sglang_extend",
    Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=("fp16", "bf16"),
        head_sizes=(16, 64, 80, 128, 192),
        layouts=("BTHD",),
        tiles=(32, 64, 128),
        pages=(1, 16),
        page_layout="NHD",
        supports=_SUPPORTS,
        declines=frozenset(FEATURES) - _SUPPORTS - {"strides"},
        conventions=Conventions(
            empty_row="undefined", masked_content="finite_only", deterministic=True
        ),
    ),
    dict.fromkeys(("fp16", "bf16"), _NUMERICS),
)
with_lse = replace(
    adapter,
    name="sglang_extend_lse",
    capabilities=replace(
        adapter.capabilities,
        supports=_WITH_LSE,
        declines=frozenset(FEATURES) - _WITH_LSE - {"strides"},
        conventions=replace(adapter.capabilities.conventions, empty_row="zeros"),
    ),
)
