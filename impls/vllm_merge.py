"""vLLM's Triton merge of two partial results (0.33.0), on a GPU or in Triton's interpreter.

    merge_attn_states(out, out_a, lse_a, out_b, lse_b, lse)

Outputs are [rows, H, D], contiguous but for padded heads; LSEs are [H, rows], fp32, natural, of
any strides. The B x T rows of a call are the library's by view. An LSE of +inf counts as -inf.
vLLM takes it where its CUDA kernel of the same name does not serve: head sizes that are no
multiple of 16 bytes, fp8 inputs, other devices than NVIDIA's and newer AMD ones.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
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
    return import_module("vllm.v1.attention.ops.triton_merge_attn_states")


@dataclass(eq=False)
class VllmMerge:
    """The kernel above."""

    name: str
    capabilities: Capabilities
    numerics: Numerics
    needs: tuple[str, ...] = ("vllm",)

    def merge(self, call: MergeCall) -> tuple[Tensor, Tensor]:
        """out and lse of *call*."""
        refuse_merge(self.name, self.capabilities, call)
        outs, lses = call.outs, call.lses
        refuse_elsewhere(self.name, outs.device)
        _, B, H, T, D = outs.shape
        out = torch.empty((B * T, H, D), dtype=outs.dtype, device=outs.device)
        lse = torch.empty((B * T, H), dtype=torch.float32, device=outs.device)
        v, s = ([rows_of(x, "vLLM") for x in both.transpose(2, 3)] for both in (outs, lses))
        if B * T:
            with launching(outs):
                _library().merge_attn_states(out, v[0], s[0].T, v[1], s[1].T, lse.T)
        return out.view(B, T, H, D).transpose(1, 2), lse.view(B, T, H).transpose(1, 2)


# Each row is a program of its own; NaN of an empty part leaks as 0 x NaN.
adapter = VllmMerge(
    "vllm_merge",
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
