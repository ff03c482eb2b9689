"""PyTorch's fused attention with its log-sum-exp, by the operators under the public function.

    flash_cpu, flash    out, lse [B, Hq, Tq]
    efficient           out, lse [B, Hq, Tq up to a multiple of 32]; +inf in what is added
    cudnn               out, lse [B, Hq, Tq, 1]

`scaled_dot_product_attention` calls them and drops the LSE. PyTorch's context parallelism calls
them as well, and merges their results. LSEs are natural. is_causal is the top-left corner, of
CUDA's flash operator the bottom-right one (torch.nn.attention.bias rests on that); other corners,
and boolean masks, go in as a bias of 0 and -inf.

The operators check less than the public function does: without queries or without keys the one
for the CPU divides by zero, and the process dies of it (torch 2.13).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls import torch_sdpa
from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
    Unsupported,
)
from kernelassay.impls.torch_sdpa import BIAS, EMPTY, FUSED, NEVER, mask_of

__all__ = ["cudnn", "efficient", "flash", "flash_cpu"]

Outputs = tuple[Tensor, ...]
"""out and lse, then what an operator keeps for its backward pass."""
aten = torch.ops.aten


@dataclass(frozen=True)
class SdpaWithLse:
    """One operator."""

    name: str
    operator: Callable[[AttendCall], Outputs]
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        if call.q.device.type not in self.capabilities.devices:
            raise Unsupported(f"{self.name}: it does not run on {call.q.device}")
        out, lse, *_ = self.operator(call)
        return AttendResult(out, lse.flatten(2)[..., : call.q.shape[2]])


def _flash_cpu(call: AttendCall) -> Outputs:
    causal, bias = _hidden(call)
    return aten._scaled_dot_product_flash_attention_for_cpu(
        call.q, call.k, call.v, is_causal=causal, attn_mask=bias, scale=call.scale
    )


def _flash(call: AttendCall) -> Outputs:
    causal = call.visibility.causal == "bottom_right"
    return aten._scaled_dot_product_flash_attention(
        call.q, call.k, call.v, is_causal=causal, scale=call.scale
    )


def _efficient(call: AttendCall) -> Outputs:
    causal, bias = _hidden(call)
    if bias is not None:  # rows 8 elements apart or a multiple of it, as the public function has
        shape, Tk = (*call.q.shape[:3], call.k.shape[2]), call.k.shape[2]
        bias = bias.expand(*bias.shape[:-1], Tk)
        bias = torch.nn.functional.pad(bias, (0, -Tk % 8))[..., :Tk].expand(shape)
    return aten._scaled_dot_product_efficient_attention(
        call.q, call.k, call.v, bias, True, is_causal=causal, scale=call.scale
    )


def _cudnn(call: AttendCall) -> Outputs:
    causal, bias = _hidden(call)
    if bias is not None:  # contiguous, as torch_sdpa gives it
        bias = bias.expand(*bias.shape[:-1], call.k.shape[2]).contiguous()
    return aten._scaled_dot_product_cudnn_attention(
        call.q, call.k, call.v, bias, True, is_causal=causal, scale=call.scale
    )


def _hidden(call: AttendCall) -> tuple[bool, Tensor | None]:
    """Whether is_causal says who sees what; else the bias that does, if anything is hidden."""
    corner, square = call.visibility.causal, call.q.shape[2] == call.k.shape[2]
    mask = mask_of(call)
    alone = call.visibility.mask is None and call.scoring.bias is None
    if alone and (corner == "top_left" or (corner == "bottom_right" and square)):
        return True, None
    if mask is not None and mask.dtype == torch.bool:
        mask = call.q.new_zeros(mask.shape).masked_fill(~mask, -math.inf)
    return False, mask


def _declared(like: torch_sdpa.Sdpa, supports: frozenset[str], **fields: Any) -> Capabilities:
    """What the public function declares of the backend, with these features and the LSE."""
    known = FUSED | NEVER
    supports |= {"lse"}
    return replace(like.capabilities, supports=supports, declines=known - supports, **fields)


flash_cpu = SdpaWithLse(
    name="aten_flash_cpu",
    operator=_flash_cpu,
    capabilities=_declared(torch_sdpa.flash_cpu, FUSED - EMPTY - {"value_size"}),
    numerics=torch_sdpa.flash_cpu.numerics,  # in the LSE the 2**-13 of its exponential shows
)

flash = SdpaWithLse(
    name="aten_flash",
    operator=_flash,
    capabilities=_declared(
        torch_sdpa.flash,
        FUSED - BIAS - EMPTY - {"value_size", "mask", "causal.top_left"},
        conventions=Conventions(empty_lse="+inf"),  # FlashAttention-2's own
    ),
    numerics=torch_sdpa.flash.numerics,
)

efficient = SdpaWithLse(
    name="aten_efficient",
    operator=_efficient,
    capabilities=_declared(torch_sdpa.efficient, FUSED - EMPTY - {"gqa"}),
    numerics=torch_sdpa.efficient.numerics,
)

cudnn = SdpaWithLse(
    name="aten_cudnn",
    operator=_cudnn,
    capabilities=_declared(torch_sdpa.cudnn, FUSED - EMPTY),
    numerics=torch_sdpa.cudnn.numerics,
)
