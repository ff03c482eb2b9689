"""FlashInfer's logits made laws on a GPU (0.6.1), by three of its kernels, one after the other.

    x = top_k_mask_logits(logits [R, V], k)     p = softmax(x, temperature)
    p = top_p_renorm_probs(p, share)

A mask is applied before them by torch. Of tokens that tie at either threshold all are kept. p is
fp32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import LOGITS, Capabilities, Conventions, LawCall, Maps, Numerics
from kernelassay.impls.law_calls import refuse_law

__all__ = ["adapter"]


@cache
def _library() -> Any:
    return import_module("flashinfer.sampling")


@dataclass(eq=False)
class FlashInferLaw:
    """The three kernels above."""

    name: str
    needs: tuple[str, ...]
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]

    def law(self, call: LawCall) -> Tensor:
        """p [R, V], fp32; `Unsupported` refuses the call."""
        refuse_law(self.name, self.capabilities, call)
        x = call.logits.float().contiguous()
        if call.mask is not None:
            x = torch.where(call.mask, x, -math.inf)
        if call.top_k is not None:
            x = _library().top_k_mask_logits(x, call.top_k)
        p = _library().softmax(x, call.temperature)
        if call.top_p is not None:
            p = _library().top_p_renorm_probs(p, call.top_p)
        return p


# The exponential is exp2 of a product, approximated; so is the reciprocal.
_FP32 = Numerics(out="fp32", exp_u=2.0**-21, div_u=2.0**-22)

adapter = FlashInferLaw(
    "flashinfer_law",
    ("flashinfer",),
    Capabilities(
        devices=("cuda",),
        dtypes=("fp32",),
        supports=frozenset(LOGITS) - {"law.min_p"},
        declines=frozenset(("law.min_p",)),
        maps=Maps(top_p_ties="all"),
        conventions=Conventions(masked_content="nan_safe", deterministic=True),
        tiles=(1024, 4096),
        max_vocabulary=3 * 4096,
    ),
    {"fp32": _FP32},
)
