"""ONNX Runtime's Attention (opsets 23, 24, 25 of ONNX) on the CPU, one adapter for each form.

Opset 23 serves bottom-right causality from a cache (`past_key`), 24 and 25 from lengths
(`nonpad_kv_seqlen`). Of 25, the one with windows, ONNX Runtime 1.32 has no kernel: it runs the
graph that the standard gives as the operator's meaning, another program altogether.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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
from kernelassay.impls.onnx_models import flat, joined, narrow, run

__all__ = ["Attention", "adapter", "adapters"]


@dataclass(frozen=True)
class Attention:
    """The operator at one opset; *packed*: q, k, v are given as [B, T, H D]."""

    name: str
    opset: int
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]
    packed: bool = False
    needs: tuple[str, ...] = ("onnx", "onnxruntime")

    def attend(self, call: AttendCall) -> AttendResult:
        """out of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        inputs, attributes = asked(call, self.opset)
        if self.opset >= 25:  # the kernels of 23 and 24 refuse a mask that is broadcast
            inputs[3] = narrow(inputs[3])
        (B, Hq, Tq, _), Hkv, Dv = call.q.shape, call.k.shape[1], call.v.shape[-1]
        out = torch.empty((B, Tq, Hq * Dv) if self.packed else (B, Hq, Tq, Dv), dtype=call.q.dtype)
        if self.packed:
            inputs = [*(flat(x) for x in inputs[:3] if x is not None), *inputs[3:]]
            attributes |= {"q_num_heads": Hq, "kv_num_heads": Hkv}
        outputs = 1 if inputs[4] is None else 3  # the cache comes back longer
        run("Attention", inputs, out, outputs=outputs, opset=self.opset, **attributes)
        return AttendResult(out.view(B, Tq, Hq, Dv).transpose(1, 2) if self.packed else out)


def asked(call: AttendCall, opset: int) -> tuple[list[Tensor | None], dict[str, Any]]:
    """The operator's seven inputs (q, k, v, mask, cache, used keys) and attributes for *call*."""
    past, used, keep, causal = visible(call, opset)
    k, v, (left, right) = call.k, call.v, call.visibility.window
    mask = joined(call, keep)
    cache = [k[:, :, :past], v[:, :, :past]] if past else [None, None]
    attributes = {
        "scale": call.scale,
        "is_causal": int(causal),
        "softcap": call.scoring.softcap,
        "left_window_size": left,
        "right_window_size": right,
    }
    given = {name: value for name, value in attributes.items() if value is not None}
    return [call.q, k[:, :, past:], v[:, :, past:], mask, *cache, used], given


def visible(call: AttendCall, opset: int) -> tuple[int, Tensor | None, Tensor | None, bool]:
    """How many keys are the cache, the used keys, the mask, is_causal.

    is_causal is bottom-right over a cache or over used keys, and top-left without. Windows are
    counted from the same corner; those of a call without a corner are bottom-right.
    """
    see, (B, _, Tq, _), Tk = call.visibility, call.q.shape, call.k.shape[2]
    low, causal = see.causal == "bottom_right", see.causal != "none"
    used, hidden = see.lengths, None
    if opset == 23 and low and Tk >= Tq:
        return Tk - Tq, None, see.mask, True
    if opset == 23 and low:
        hidden, causal = torch.ones(Tq, Tk, dtype=torch.bool).triu(Tk - Tq + 1), False
    elif see.causal == "top_left" and used is not None:
        hidden, used = torch.arange(Tk) >= used[:, None, None, None], None
    elif (low or (see.window != (None, None) and not causal)) and used is None:
        used = torch.full((B,), Tk)
    if hidden is None:
        return 0, used, see.mask, causal
    return 0, used, ~hidden if see.mask is None else see.mask & ~hidden, causal


NEVER = frozenset((
    "lse", "causal.positions", "window", "sink_tokens", "lengths", "alibi", "sink_logits",
    "no_keys", "no_queries", "scale.nonpositive",
))  # fmt: skip
"""What the operator has no input for, does not return, or refuses in words."""


def capabilities(*more: str, layout: str = "BHTD") -> Capabilities:
    """All but NEVER, and *more*. MLAS's products have tiles of 4 to 16 rows, 16 to 128 keys."""
    declines = NEVER - set(more)
    return Capabilities(
        devices=("cpu",),
        dtypes=("fp16", "fp32"),
        head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
        layouts=(layout,),
        conventions=Conventions(deterministic=True),
        supports=frozenset(FEATURES) - declines,
        declines=declines,
    )


# Sums and products run in fp32 with FMA; MLAS's exp and tanh were measured to be within 2**-23.
# The softmax is done before P meets V. For fp16 inputs the scores are rounded to fp16 after the
# scale, after the soft cap and after the bias; P is rounded too.
FP32 = Numerics(
    p="fp32",
    l_from_p=False,
    p_normalised=True,
    acc_u=2.0**-24,
    acc_biased=False,
    kstep=1,
    exp_u=2.0**-23,
    tanh_u=2.0**-23,
)
_KERNEL = {"fp16": replace(FP32, p="input", score="input"), "fp32": FP32}
# The standard's graph multiplies q and k by sqrt(scale). ONNX Runtime runs it in fp32 even for
# fp16 inputs (the casts between are optimised away): acc_u is doubled for those two products.
_GRAPH = {"fp16": replace(FP32, acc_u=2.0**-23), "fp32": replace(FP32, scale_rounded=True)}

opset23 = Attention("ort_attention_23", 23, capabilities(), _KERNEL)
adapter = Attention("ort_attention", 24, capabilities("lengths"), _KERNEL)
packed = Attention(
    "ort_attention_3d", 24, capabilities("lengths", layout="BTHD"), _KERNEL, packed=True
)
opset25 = Attention("ort_attention_25", 25, capabilities("lengths", "window"), _GRAPH)
adapters = (opset23, adapter, packed, opset25)
