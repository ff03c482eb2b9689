"""ONNX Runtime's MultiHeadAttention (com.microsoft, version 1) on the CPU.

Without a mask it runs a flash attention, with one a softmax over stored scores. Bottom-right
causality is that of queries behind a cache; what has no argument goes through `attention_bias`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
)
from kernelassay.impls.onnx_models import additive, flat, run, whole

__all__ = ["MultiHeadAttention", "adapter"]


@dataclass(frozen=True)
class MultiHeadAttention:
    """The operator: q, k, v as [B, T, H D], the cache as [B, H, T, D]."""

    name: str
    capabilities: Capabilities
    numerics: Numerics
    literal: bool = False
    """whether `unidirectional` stands for the top-left corner with Tq < Tk, too. It is not that:
    the last query sees every key (docs/findings.md). Otherwise a mask stands for it."""
    needs: tuple[str, ...] = ("onnx", "onnxruntime")

    def attend(self, call: AttendCall) -> AttendResult:
        """out of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        see, (B, H, Tq, D), (Tk, Dv) = call.visibility, call.q.shape, call.v.shape[2:]
        past, keep, causal = 0, see.mask, see.causal != "none"
        low, ragged = see.causal == "bottom_right", see.lengths is not None
        if low and Tq < Tk and Dv == D and not ragged:
            past = Tk - Tq
        elif (low and (Tq != Tk or ragged)) or (causal and Tq < Tk and not self.literal):
            keep, causal = causal_mask(call), False
        padding: Tensor | None = None if see.lengths is None else see.lengths.int()
        if keep is not None and padding is None and (keep.ndim < 3 or keep.shape[-3] == 1):
            padding, keep = whole(keep, call)[:, 0].expand(B, Tq, Tk).int(), None
        cache = [call.k[:, :, :past], call.v[:, :, :past]] if past else [None, None]
        out = torch.empty(B, Tq, H * Dv, dtype=call.q.dtype)
        run(
            "com.microsoft::MultiHeadAttention",
            [
                *(flat(x) for x in (call.q, call.k[:, :, past:], call.v[:, :, past:])),
                None,  # the bias of projections
                padding,
                additive(call, keep),
                *cache,
            ],
            out,
            outputs=3 if past else 1,
            num_heads=H,
            scale=call.scale,
            unidirectional=int(causal),
            mask_filter_value=torch.finfo(torch.float32).min,  # -10000 is not below all scores
        )
        return AttendResult(out.view(B, Tq, H, Dv).transpose(1, 2))


def causal_mask(call: AttendCall) -> Tensor:
    """The mask and the corner; a bottom-right one lies at the end of each request's keys."""
    see, Tq, Tk = call.visibility, call.q.shape[2], call.k.shape[2]
    last = torch.arange(Tq)[:, None]
    if see.causal == "bottom_right":
        used = torch.tensor([Tk]) if see.lengths is None else see.lengths
        last = last + (used[:, None, None, None] - Tq)
    corner = torch.arange(Tk) <= last
    return corner if see.mask is None else corner & see.mask


DECLINES = frozenset((
    "lse", "gqa", "causal.positions", "window", "sink_tokens", "alibi", "sink_logits", "softcap",
))  # fmt: skip

adapter = MultiHeadAttention(
    name="ort_multi_head",
    capabilities=Capabilities(
        devices=("cpu",),
        dtypes=("fp32",),
        head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
        layouts=("BTHD",),
        # A row that is masked whole is NaN or a mean, depending on the way it was masked.
        conventions=Conventions(empty_row="undefined", deterministic=True),
        supports=frozenset(FEATURES) - DECLINES,
        declines=DECLINES,
    ),
    # fp32 with FMA throughout; MLAS's exp was measured to be within 2**-23. Which of the two ways
    # runs depends on the call, so that p_normalised is left open.
    numerics=Numerics(
        p="fp32", l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1, exp_u=2.0**-23
    ),
)
