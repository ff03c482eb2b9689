"""FlashInfer's merges of partial results on a GPU: of two, and of any number.

    merge_state(v_a, s_a, v_b, s_b)     v [rows, H, D],    s [rows, H]
    merge_states(v, s)                  v [rows, n, H, D], s [rows, n, H]

LSEs are fp32 in base 2, outputs of 16 bits. Both want contiguous tensors: the B x T rows of a call
are the library's by view, no tensor is copied. Where a call has as many parts as rows, or more,
merge_states rounds the results of up to 16 groups of parts to the dtype of v and merges those;
`Numerics` has no word for that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

from kernelassay.impls.contract import (
    Capabilities,
    Conventions,
    MergeCall,
    Numerics,
    Unsupported,
)
from kernelassay.impls.merge_calls import refuse_merge, rows_of

__all__ = ["pair", "several"]


@cache
def _library() -> Any:
    return import_module("flashinfer")


def _two(call: MergeCall) -> tuple[Tensor, Tensor]:
    """Each part is [B, T, H, D] in memory."""
    v, s = call.outs.transpose(2, 3), call.lses.transpose(2, 3)
    parts = [rows_of(x, "FlashInfer") for x in (v[0], s[0], v[1], s[1])]
    return _library().merge_state(*parts)


def _many(call: MergeCall) -> tuple[Tensor, Tensor]:
    """All parts together are [B, T, n, H, D] in memory."""
    v, s = call.outs.permute(1, 3, 0, 2, 4), call.lses.permute(1, 3, 0, 2)
    return _library().merge_states(rows_of(v, "FlashInfer"), rows_of(s, "FlashInfer"))


@dataclass(eq=False)
class FlashInferMerge:
    """One of the two functions."""

    name: str
    function: Callable[[MergeCall], tuple[Tensor, Tensor]]
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]
    needs: tuple[str, ...] = ("flashinfer",)

    def merge(self, call: MergeCall) -> tuple[Tensor, Tensor]:
        """out and lse of *call*."""
        refuse_merge(self.name, self.capabilities, call)
        if (place := call.outs.device).type not in self.capabilities.devices:
            raise Unsupported(f"{self.name}: it does not run on {place}")
        if (size := call.outs.shape[-1]) not in self.capabilities.head_sizes:
            raise Unsupported(f"{self.name}: Dv = {size}; it takes 64, 128 and 256")
        _, B, _, T, _ = call.outs.shape
        v, s = self.function(call)
        return (
            v.view(B, T, *v.shape[1:]).transpose(1, 2),
            s.view(B, T, *s.shape[1:]).transpose(1, 2),
        )


# Rows are independent and their parts summed in a fixed order; NaN of an empty part leaks as
# 0 x NaN. Of nothing comes (0, -inf): without a part the library says so itself.
_SEVERAL = Capabilities(
    devices=("cuda",),
    dtypes=("fp16", "bf16"),
    head_sizes=(64, 128, 256),
    layouts=("BTNHD",),
    supports=frozenset(("merge", "merge.many")),
    conventions=Conventions(
        empty_row="zeros",
        empty_lse="-inf",
        lse_base="2",
        masked_content="finite_only",
        deterministic=True,
    ),
)
_PAIR = replace(
    _SEVERAL,
    layouts=("BTHD",),
    supports=frozenset(("merge",)),
    declines=frozenset(("merge.many",)),
)
_FP32 = Numerics(out="input", lse="fp32", exp_u=2.0**-22, div_u=2.0**-22)  # approximations
_NUMERICS: Mapping[str, Numerics] = {"fp16": _FP32, "bf16": _FP32}

pair = FlashInferMerge("flashinfer_merge_state", _two, _PAIR, _NUMERICS)
several = FlashInferMerge("flashinfer_merge_states", _many, _SEVERAL, _NUMERICS)
