"""vLLM's Triton kernel of top-k and top-p (0.33.0) on a GPU.

    x = apply_top_k_top_p_triton(x [R, V], k [R], p [R])        p = softmax(x)

The kernel looks for a threshold of each row, in at most 18 steps, and writes -inf below it into x,
here a copy. A mask and temperatures are applied before it, and the softmax after it, by torch. Of
tokens that tie at a threshold the lowest ids are kept. Logits and laws are fp32. Up to 64 rows
without a top-k take another kernel there.

Triton's interpreter counts the loop over rows in numbers of Python, of which the kernel asks a
dtype: it does not run there.
"""

import math
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import (
    LOGITS,
    Capabilities,
    Conventions,
    LawCall,
    Maps,
    Numerics,
    Unsupported,
)
from kernelassay.impls.interpreter import launching, mend
from kernelassay.impls.law_calls import refuse_law

__all__ = ["adapter"]

TILES = (4096, 8192)
"""Tokens that are looked at in one step, of those far above the mean and of all."""


@cache
def _library() -> Any:
    mend()
    return import_module("vllm.v1.sample.ops.topk_topp_triton")


@dataclass(eq=False)
class VllmLaw:
    """The kernel above."""

    name: str
    capabilities: Capabilities
    numerics: Numerics
    needs: tuple[str, ...] = ("vllm",)

    def law(self, call: LawCall) -> Tensor:
        """p [R, V], fp32; `Unsupported` refuses the call."""
        refuse_law(self.name, self.capabilities, call)
        places = {"cpu" if d == "interpreter" else d for d in self.capabilities.devices}
        if (place := call.logits.device.type) not in places:
            raise Unsupported(f"{self.name}: it does not run on {place}")
        x = call.logits.clone()
        if call.mask is not None:
            x = torch.where(call.mask, x, -math.inf)
        if call.temperature is not None:
            x = x / call.temperature[:, None]
        with launching(x):
            x = _library().apply_top_k_top_p_triton(x, call.top_k, call.top_p)
        return x.softmax(-1)


_SUPPORTS = frozenset(LOGITS) - {"law.min_p"}

adapter = VllmLaw(
    "vllm_top_k_top_p",
    Capabilities(
        devices=("cuda",),
        dtypes=("fp32",),
        supports=_SUPPORTS,
        declines=frozenset(LOGITS) - _SUPPORTS,
        maps=Maps(top_k_ties="index", top_p_ties="index"),
        conventions=Conventions(masked_content="finite_only", deterministic=True),
        tiles=TILES,
        max_vocabulary=3 * TILES[-1],
    ),
    Numerics(out="fp32", exp_u=2.0**-22, div_u=2.0**-22),
)
