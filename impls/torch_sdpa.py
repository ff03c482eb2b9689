"""PyTorch's scaled_dot_product_attention, one adapter per backend, each pinned.

Without a pin PyTorch picks a backend by shape, so that a suite of small cases may never meet the
one that serves. What each backend takes was read from its refusals (2.6 to 2.13); `is_causal`
means the top-left corner whatever Tq and Tk, so the bottom-right one goes through a boolean mask,
where a backend takes masks. There is one argument for mask and bias: beside a bias, what a corner
or a mask hides becomes -inf in it.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Numerics,
    Unsupported,
)

__all__ = ["cudnn", "efficient", "flash", "flash_cpu", "math"]


@dataclass(frozen=True)
class Sdpa:
    """scaled_dot_product_attention with one backend allowed."""

    name: str
    backend: SDPBackend
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]
    headline: str = ""

    def attend(self, call: AttendCall) -> AttendResult:
        """out of *call*; where PyTorch refuses this backend, an `Unsupported` in its words."""
        refuse_unsupported(self.name, self.capabilities, call)
        if call.q.device.type not in self.capabilities.devices:
            raise Unsupported(f"{self.name}: it does not run on {call.q.device}")
        k, v, options = self._arguments(call)
        if call.q.shape[1] != k.shape[1]:
            options["enable_gqa"] = True
        with warnings.catch_warnings(record=True) as reasons, sdpa_kernel(self.backend):
            warnings.simplefilter("always")  # the reasons of a refusal come as warnings
            try:
                out = scaled_dot_product_attention(call.q, k, v, scale=call.scale, **options)
            except RuntimeError as error:
                if "No available kernel" in str(error) or "No viable backend" in str(error):
                    words = self._reasons([str(w.message) for w in reasons])
                    raise Unsupported(f"{self.name}: {error} {words}") from error
                raise
        return AttendResult(out, backend=self.backend.name)

    def _reasons(self, messages: list[str]) -> str:
        """What PyTorch says of this backend: it lists reasons behind a headline for each."""
        own, mine = [], True
        for message in messages:
            text = message.split(" (Triggered")[0]
            if "not used because" in text:
                mine = self.headline in text.lower()
            elif mine and text not in own:
                own.append(text)
        return " ".join(own or dict.fromkeys(messages))

    def _arguments(self, call: AttendCall) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """k, v and the arguments that say who sees what; views of k and v, never copies."""
        see, bias = call.visibility, call.scoring.bias
        Tq, Tk = call.q.shape[2], call.k.shape[2]
        by_flag = see.causal == "top_left" or (see.causal == "bottom_right" and Tq == Tk)
        if by_flag and see.mask is None and bias is None:
            keys = slice(None)
            if "mask" not in self.capabilities.supports:
                keys = slice(0, Tq)  # CUDA's flash backend takes squares; no query sees the rest
            return call.k[:, :, keys], call.v[:, :, keys], {"is_causal": True}
        mask = mask_of(call)
        if mask is not None and self.headline in ("memory efficient", "cudnn"):
            # One backend raises, the other reads a misaligned address where the last axis is
            # broadcast: docs/findings.md.
            mask = mask.expand(*mask.shape[:-1], Tk).contiguous()
        return call.k, call.v, {} if mask is None else {"attn_mask": mask}


def mask_of(call: AttendCall) -> Tensor | None:
    """Corner, mask and bias of *call* in one tensor of four axes: boolean without a bias."""
    see, bias = call.visibility, call.scoring.bias
    Tq, Tk = call.q.shape[2], call.k.shape[2]
    keep = see.mask
    if see.causal != "none":
        corner = torch.ones((Tq, Tk), dtype=torch.bool, device=call.q.device)
        corner = corner.tril(Tk - Tq if see.causal == "bottom_right" else 0)
        keep = corner if keep is None else keep & corner
    mask = keep if bias is None else bias
    if keep is not None and bias is not None:
        mask = torch.where(keep, bias, float("-inf"))
    return None if mask is None else mask[(None,) * (4 - mask.ndim)]


# NEVER: what scaled_dot_product_attention has no argument for, or does not return.
NEVER = frozenset(
    (
        "lse", "causal.positions", "window", "sink_tokens", "lengths",
        "softcap", "alibi", "sink_logits",
    )
)  # fmt: skip
# The fused backends need D innermost and take other views: declared neither way.
FUSED = frozenset(FEATURES) - NEVER - {"strides"}
SQUARE = frozenset(("causal.bottom_right", "mask", "more_queries"))
BIAS = frozenset(("bias", "bias.minus_infinity"))
EMPTY = frozenset(("no_keys", "no_queries"))  # CUDA's fused backends want at least one of each
LAYOUTS = ("BHTD", "BTHD")

# Read off the CPU's bits: 16-bit inputs become fp32, sqrt(scale) multiplies q and k there, the
# softmax is done before P meets v. acc_u is twice fp32's for those two multiplications.
_MATH_16_BIT = Numerics(
    p="fp32", l_from_p=False, p_normalised=True, acc_u=2.0**-23, acc_biased=False, kstep=1
)
_MATH_FP32 = Numerics(
    p="fp32",
    l_from_p=False,
    p_normalised=True,
    acc_u=2.0**-24,
    acc_biased=False,
    kstep=1,
    scale_rounded=True,
)

math = Sdpa(
    name="sdpa_math",
    backend=SDPBackend.MATH,
    capabilities=Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
        layouts=LAYOUTS,
        supports=frozenset(FEATURES) - NEVER,
        declines=NEVER,
    ),
    numerics={"fp16": _MATH_16_BIT, "bf16": _MATH_16_BIT, "fp32": _MATH_FP32},
)

flash = Sdpa(
    name="sdpa_flash",
    backend=SDPBackend.FLASH_ATTENTION,
    headline="flash",
    capabilities=Capabilities(
        devices=("cuda",),
        dtypes=("fp16", "bf16"),
        head_sizes=(16, 32, 64, 80, 128, 256),
        layouts=LAYOUTS,
        supports=FUSED - SQUARE - BIAS - EMPTY - {"value_size"},
        declines=NEVER | SQUARE | BIAS | EMPTY | {"value_size"},
    ),
    numerics=dict.fromkeys(("fp16", "bf16"), Numerics(l_from_p=False)),
)

# Its own exponentials: exp_u20, 20 bits; of 16-bit inputs fexp_u20, a cubic polynomial, of which
# 2**-13.2 was measured and follows from its coefficients.
_CPU_FLASH = Numerics(
    l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1, exp_u=2.0**-20, block=16
)
_CPU_FLASH_16 = replace(_CPU_FLASH, exp_u=2.0**-13)

flash_cpu = Sdpa(
    name="sdpa_flash_cpu",
    backend=SDPBackend.FLASH_ATTENTION,
    headline="flash",
    capabilities=Capabilities(
        devices=("cpu",),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
        layouts=LAYOUTS,
        tiles=(16, 32, 64, 128, 256, 512),
        supports=FUSED - {"value_size"},
        declines=NEVER | {"value_size"},
    ),
    numerics={"fp16": _CPU_FLASH_16, "bf16": _CPU_FLASH_16, "fp32": _CPU_FLASH},
)

efficient = Sdpa(
    name="sdpa_efficient",
    backend=SDPBackend.EFFICIENT_ATTENTION,
    headline="memory efficient",
    capabilities=Capabilities(
        devices=("cuda",),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(16, 32, 64, 80, 128, 256),
        layouts=LAYOUTS,
        supports=FUSED - EMPTY - {"gqa"},
        declines=NEVER | EMPTY | {"gqa"},
    ),
    # fp32: each operand is split into two tf32 numbers, three products are added, to nearest.
    numerics={
        "fp16": Numerics(l_from_p=False),
        "bf16": Numerics(l_from_p=False),
        "fp32": Numerics(
            l_from_p=False, p="fp32", dot="3xtf32", acc_u=2.0**-24, acc_biased=False, kstep=8
        ),
    },
)

cudnn = Sdpa(
    name="sdpa_cudnn",
    backend=SDPBackend.CUDNN_ATTENTION,
    headline="cudnn",
    capabilities=Capabilities(
        devices=("cuda",),
        dtypes=("fp16", "bf16"),
        head_sizes=(16, 32, 64, 80, 128),
        layouts=LAYOUTS,
        min_keys=2,  # PyTorch's own check: "key/value sequence length 1"
        supports=FUSED - EMPTY,
        declines=NEVER | EMPTY,
    ),
    numerics=dict.fromkeys(("fp16", "bf16"), Numerics()),
)
