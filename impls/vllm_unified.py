"""vLLM's Triton attention over pages (0.33.0), on a GPU or in Triton's interpreter.

    unified_attention(q [N, Hq, D], k, v [pages, size, Hkv, D], out [N, Hq, D], starts [B + 1],
        most queries, lengths [B], most keys, scale, causal, (left, right), table, cap, ...)

One kernel serves prefill and decode. The N = B x Tq rows of q are the library's by view, unless
requests share one query, which is then repeated; pools are taken as they lie. A program has 16
rows of one request and KV head, and takes 32 keys a step.

*segments* is the kernel's second form: keys are cut into segments of whole tiles of 16, whose
states, fp32, a second kernel adds up. There are as many as the next power of two from call.splits
on, or 16, as in serving. The launcher takes the first form instead for more than 8 queries, and
for several that are not causal.

Of a window the launcher takes the left side; in calls that are not causal the kernel looks as far
to the right, and windows of two sides are refused where there are keys ahead. ALiBi is slope (j -
first new key): a distance, but for a constant of the row, in causal calls without sinks alone. The
contract has no word for that, so it is declined.

A row that sees no key is 0 / 0 if its program has met a tile, and 0 if not; the second form leaves
out the rows of a request without keys. vLLM has no such rows but those of padding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    Capabilities,
    Conventions,
    Numerics,
    Unsupported,
)
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere

__all__ = ["adapter", "segments"]


@cache
def _library() -> Any:
    mend()
    return import_module("vllm.v1.attention.ops.triton_unified_attention")


def _scratch(call: AttendCall, parts: int) -> dict[str, Any]:
    """What makes the launcher take the second form: a threshold, and memory for the states."""
    B, Hq, Tq, D = call.q.shape
    parts, padded = (1 << (n - 1).bit_length() for n in (parts, D))
    states = torch.empty((B * Tq, Hq, parts, padded), device=call.q.device)
    return {
        "seq_threshold_3D": B * Tq,
        "num_par_softmax_segments": parts,
        "softmax_segm_output": states,
        "softmax_segm_max": torch.empty_like(states[..., 0]),
        "softmax_segm_expsum": torch.empty_like(states[..., 0]),
    }


def _window(call: AttendCall) -> tuple[int, int]:
    """The window as the launcher takes it, -1 for none; `Unsupported` if there is no such one."""
    left, right = call.visibility.window
    ahead = call.q.shape[2] - 1 if call.visibility.causal == "none" else 0  # so many keys at most
    before, after = (ahead if side is None else min(side, ahead) for side in (left, right))
    if before != after:
        raise Unsupported("vLLM's unified attention: windows that are not causal have equal sides")
    return -1 if left is None else left, -1


@dataclass(frozen=True, eq=False)
class VllmUnified:
    """The kernel above in one of its forms."""

    name: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]
    parts: int = 0
    """How many segments, where the call does not say; 0 for the first form."""
    needs: tuple[str, ...] = ("vllm",)

    def attend(self, call: AttendCall) -> Tensor:
        """out of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        refuse_elsewhere(self.name, place := call.q.device)
        pages, see, scoring = call.pages, call.visibility, call.scoring
        B, Hq, Tq, D = call.q.shape
        assert pages is not None
        assert see.lengths is not None
        parts = call.splits or self.parts
        scratch = _scratch(call, parts) if parts else {}
        out = torch.empty((B * Tq, Hq, D), dtype=call.q.dtype, device=place)
        starts = torch.arange(B + 1, dtype=torch.int32, device=place) * Tq
        with launching(call.q):
            _library().unified_attention(
                call.q.transpose(1, 2).flatten(0, 1), call.k, call.v, out, starts, Tq,
                see.lengths.int(), pages.table.shape[1] * pages.size, call.softmax_scale,
                see.causal != "none", _window(call), pages.table, scoring.softcap or 0.0,
                None, None, None, sinks=scoring.sink_logits, **scratch,
            )  # fmt: skip
        return out.view(B, Tq, Hq, D).transpose(1, 2)


_SUPPORTS = frozenset(
    (
        "attend", "causal.bottom_right", "unequal_lengths", "more_queries", "no_keys", "lengths",
        "window", "gqa", "scale", "scale.nonpositive", "softcap", "sink_logits",
    )
)  # fmt: skip
_16_BIT = Numerics(l_from_p=False, p_normalised=False)
# Dots of fp32 are left to Triton's default, tf32 on NVIDIA's matrix units, which cut operands.
_FP32 = Numerics(l_from_p=False, p_normalised=False, dot="tf32_trunc", kstep=8)

adapter = VllmUnified(
    "vllm_unified",
    Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(32, 64, 80, 128, 256),
        layouts=("BTHD",),
        tiles=(16, 32, 64),
        pages=(16, 48),
        page_layout="NHD",
        supports=_SUPPORTS,
        declines=frozenset(FEATURES) - _SUPPORTS - {"strides"},
        conventions=Conventions(
            empty_row="undefined",
            masked_content="finite_only",
            deterministic=True,
            batch_invariant=True,
        ),
    ),
    {
        "fp16": replace(_16_BIT, block=32),
        "bf16": replace(_16_BIT, block=32),
        "fp32": replace(_FP32, block=32),
    },
)
segments = VllmUnified(
    "vllm_unified_segments",
    replace(
        adapter.capabilities,
        tiles=(8, 16, 32),
        splits=True,
        work_limit={"interpreter": 32},
        conventions=replace(adapter.capabilities.conventions, batch_invariant=False),
    ),
    {"fp16": _16_BIT, "bf16": _16_BIT, "fp32": _FP32},
    parts=16,
)
