"""SGLang's Triton decode attention over a pool of slots (0.5.23), on a GPU or in the interpreter.

    decode_attention_fwd(q [N, Hq, D], k [slots, Hkv, D], v [slots, Hkv, Dv], out [N, Hq, Dv],
        indptr [N + 1], indices, mid [N, Hq, S, Dv], lse [N, Hq, S], splits [N], S,
        sm_scale, k_scale, v_scale, logit_cap=, sinks=)

The keys of request n are in the slots indices[indptr[n] : indptr[n + 1]]. They are cut into at
most S parts of whole tiles of 32, whose outputs, fp32, are merged by a second kernel. Pools are
taken as they lie. The kernel has one query a request: each query of a call is a request of its own
here, whose length ends where its corner does. A request without keys gets 0 / 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
    Capabilities,
    Conventions,
    Numerics,
)
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere

__all__ = ["adapter"]


@cache
def _library() -> Any:
    mend()
    return import_module("sglang.kernels.ops.attention.decode_attention")


def _lists(call: AttendCall) -> tuple[Tensor, Tensor]:
    """indptr and indices: the slots of each query's keys."""
    pages, lengths, Tq = call.pages, call.visibility.lengths, call.q.shape[2]
    assert pages is not None
    assert lengths is not None
    later = torch.arange(Tq - 1, -1, -1, device=lengths.device)  # queries after this one
    if call.visibility.causal == "none":
        later = torch.zeros_like(later)
    each = (lengths[:, None] - later).clamp(min=0).flatten()
    slot = torch.arange(pages.size, device=lengths.device)
    slots = (pages.table.long()[:, :, None] * pages.size + slot).flatten(1)
    slots = slots.repeat_interleave(Tq, 0)
    used = torch.arange(slots.shape[1], device=lengths.device) < each[:, None]
    return pad(each.cumsum(0), (1, 0)).int(), slots[used].int()


@dataclass(frozen=True, eq=False)
class SglangDecode:
    """The kernel above."""

    name: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]
    needs: tuple[str, ...] = ("sglang",)

    def attend(self, call: AttendCall) -> Tensor:
        """out of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        refuse_elsewhere(self.name, place := call.q.device)
        B, Hq, Tq, _ = call.q.shape
        N, S, Dv = B * Tq, call.splits or 1, call.v.shape[-1]
        out = torch.empty((N, Hq, Dv), dtype=call.q.dtype, device=place)
        mid = torch.empty((N, Hq, S, Dv), device=place)
        splits = torch.full((N,), S, dtype=torch.int32, device=place)
        with launching(call.q):
            _library().decode_attention_fwd(
                call.q.transpose(1, 2).flatten(0, 1), call.k.flatten(0, 1), call.v.flatten(0, 1),
                out, *_lists(call), mid, torch.empty_like(mid[..., 0]), splits, S,
                call.softmax_scale, 1.0, 1.0,
                logit_cap=call.scoring.softcap or 0.0, sinks=call.scoring.sink_logits,
            )  # fmt: skip
        return out.view(B, Tq, Hq, Dv).transpose(1, 2)


_SUPPORTS = frozenset(
    (
        "attend", "causal.bottom_right", "unequal_lengths", "more_queries", "no_keys", "lengths",
        "gqa", "scale", "scale.nonpositive", "softcap", "sink_logits",
    )
)  # fmt: skip
# Where each query head has a KV head of its own every product of q and k is rounded to the input
# dtype, for which `Numerics` has no word: a rounding of scale q allows as much.
_NUMERICS = Numerics(l_from_p=False, q_prescaled=True)

adapter = SglangDecode(
    "sglang_decode",
    Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=("fp16", "bf16"),
        head_sizes=(16, 64, 80, 128),
        layouts=("BTHD",),
        tiles=(32, 64),
        pages=(1, 16),
        page_layout="NHD",
        splits=True,
        supports=_SUPPORTS,
        declines=frozenset(FEATURES) - _SUPPORTS - {"strides"},
        conventions=Conventions(
            empty_row="nan",
            masked_content="nan_safe",
            deterministic=True,
        ),
    ),
    dict.fromkeys(("fp16", "bf16"), _NUMERICS),
)
