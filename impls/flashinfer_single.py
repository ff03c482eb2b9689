"""FlashInfer's prefill of one request on a GPU (0.6.1), called once for each request.

    single_prefill_with_kv_cache(q [Tq, Hq, D], k [Tk, Hkv, D], v, causal=, return_lse=True)
    out [Tq, Hq, D], lse [Tq, Hq] in base 2

causal=True is the bottom-right corner, for which the library wants as many keys as queries or
more. Windows have no right side there, masks no axis of heads, ALiBi slopes of its own.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import torch

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
    Unsupported,
)

__all__ = ["adapter"]

# The maximum is taken before the scale multiplies: below 0 that is no softmax.
SUPPORTS = frozenset(
    ("attend", "lse", "causal.bottom_right", "unequal_lengths", "gqa", "scale", "softcap")
)
# What adds up to the row's sum, P before its cast or after it, depends on the device.
_TENSOR_CORES = Numerics(tanh_u=2.0**-11)


@cache
def _library() -> Any:
    return import_module("flashinfer")


class FlashInferSingle:
    """The function above."""

    name = "flashinfer_single"
    needs = ("flashinfer",)
    capabilities = Capabilities(
        devices=("cuda",),
        dtypes=("fp16", "bf16"),
        head_sizes=(128,),  # each is a compilation of minutes
        layouts=("BTHD", "BHTD"),
        tiles=(64, 128, 192),
        supports=SUPPORTS,
        # Views are declared neither way: D has to be innermost.
        declines=frozenset(FEATURES) - SUPPORTS - {"strides"},
        conventions=Conventions(lse_base="2", masked_content="finite_only", deterministic=True),
    )
    numerics: Mapping[str, Numerics] = {"fp16": _TENSOR_CORES, "bf16": _TENSOR_CORES}

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        if (place := call.q.device).type not in self.capabilities.devices:
            raise Unsupported(f"{self.name}: it does not run on {place}")
        if (size := call.q.shape[-1]) not in self.capabilities.head_sizes:
            raise Unsupported(f"{self.name}: D = {size}; it takes {self.capabilities.head_sizes}")
        q, k, v = (x.transpose(1, 2) for x in (call.q, call.k, call.v))
        parts = [
            _library().single_prefill_with_kv_cache(
                *request,
                causal=call.visibility.causal != "none",
                sm_scale=call.scale,
                logits_soft_cap=call.scoring.softcap,
                return_lse=True,
            )
            for request in zip(q, k, v, strict=True)
        ]
        out, lse = (torch.stack(x).transpose(1, 2) for x in zip(*parts, strict=True))
        return AttendResult(out, lse)


adapter = FlashInferSingle()
