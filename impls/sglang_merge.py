"""SGLang's Triton merge of two partial results (0.5.23), on a GPU or in Triton's interpreter.

    merge_state_triton(out_a, lse_a, out_b, lse_b) -> out, lse

Outputs are [rows, H, D], LSEs [rows, H], fp32, natural, all contiguous: the B x T rows of a call
are the library's by view. An LSE of +inf counts as -inf. SGLang takes this kernel where its CUDA
kernel does not serve: on AMD devices, for odd head sizes, for very many heads.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

from kernelassay.impls.contract import (
    Capabilities,
    Conventions,
    MergeCall,
    Numerics,
)
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere
from kernelassay.impls.merge_calls import refuse_merge, rows_of

__all__ = ["adapter"]


@cache
def _library() -> Any:
    mend()
    return import_module("sglang.kernels.ops.attention.merge_state")


@dataclass(eq=False)
class SglangMerge:
    """The kernel above."""

    name: str
    capabilities: Capabilities
    numerics: Numerics
    needs: tuple[str, ...] = ("sglang",)

    def merge(self, call: MergeCall) -> tuple[Tensor, Tensor]:
        """out and lse of *call*."""
        refuse_merge(self.name, self.capabilities, call)
        outs, lses = call.outs, call.lses
        refuse_elsewhere(self.name, outs.device)
        _, B, _, T, _ = outs.shape
        if not B * T:
            return outs[0].clone(), lses[0].clone()
        v, s = ([rows_of(x, "SGLang") for x in both.transpose(2, 3)] for both in (outs, lses))
        with launching(outs):
            out, lse = _library().merge_state_triton(v[0], s[0], v[1], s[1])
        return tuple(x.view(B, T, *x.shape[1:]).transpose(1, 2) for x in (out, lse))


# Each row is a program of its own; NaN of an empty part leaks as 0 x NaN. Where both are empty the
# library says nothing.
adapter = SglangMerge(
    "sglang_merge",
    Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(1, 8, 16, 64, 80, 128, 192, 256),
        layouts=("BTHD",),
        supports=frozenset(("merge",)),
        declines=frozenset(("merge.many",)),
        conventions=Conventions(
            empty_row="zeros",
            empty_lse="-inf",
            lse_base="e",
            masked_content="finite_only",
            deterministic=True,
            batch_invariant=True,
        ),
    ),
    Numerics(out="input", lse="fp32", exp_u=2.0**-22, div_u=2.0**-22),
)
