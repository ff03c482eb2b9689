"""SGLang's sampling of chains of drafts (0.5.23), on a GPU or in Triton's interpreter.

    chain_speculative_sampling_triton(predicts [R (K + 1)], index [R, K + 1], accepted [R],
        candidates [R, K + 1], places [R, K + 1], None, None, uniforms [R, K], last [R],
        p [R, K + 1, V], q [R, K, V], 1.0, 1.0, True, block_verification=...)

Candidate 0 is the token before the drafts, place (r, i) is where predicts holds the token after
candidate i. A draft x is accepted where q(x) > 0 and u q(x) < p(x); the token after the drafts is
the first y with C_y > last C, C the cumulated weights [p - q]+, or p after the last draft. With
block verification (Sun et al. 2024) the longest prefix that its own uniform accepts is kept. Laws
are fp32, tokens and counters int32, candidates int64.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch

from kernelassay.impls.contract import (
    VERIFYING,
    Capabilities,
    Conventions,
    Sampling,
    VerifyCall,
    VerifyResult,
)
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere
from kernelassay.impls.verify_calls import refuse_verify

__all__ = ["adapter", "block"]

TILE = 4096
"""Tokens that are looked at in one step."""


@cache
def _library() -> Any:
    mend()
    return import_module("sglang.kernels.ops.speculative.reject_sampling")


@dataclass(eq=False)
class SglangChain:
    """The kernel above, draft by draft or by blocks."""

    name: str
    blocks: bool
    capabilities: Capabilities
    needs: tuple[str, ...] = ("sglang",)

    def verify(self, call: VerifyCall) -> VerifyResult:
        """tokens and accepted of *call*; `Unsupported` refuses it."""
        refuse_verify(self.name, self.capabilities, call)
        refuse_elsewhere(self.name, place := call.p.device)
        R, slots = call.requests, call.most + 1
        candidates = torch.nn.functional.pad(call.drafts.long(), (1, 0))
        places = torch.arange(R * slots, device=place).view(R, slots)
        predicts = torch.zeros(R * slots, dtype=torch.int32, device=place)
        accepted = torch.zeros(R, dtype=torch.int32, device=place)
        with launching(call.p):
            _library().chain_speculative_sampling_triton(
                predicts, torch.full_like(places, -1), accepted, candidates, places, None, None,
                call.accept, call.draw, call.p, call.q, 1.0, 1.0, True,
                block_verification=self.blocks,
            )  # fmt: skip
        emitted = torch.arange(slots, device=place) <= accepted[:, None]
        return VerifyResult(torch.where(emitted, predicts.view(R, slots), -1), accepted)


_SUPPORTS = frozenset(("verify", "requests", "drafts.many", "draft_law"))


def _adapter(name: str, blocks: bool) -> SglangChain:
    return SglangChain(
        name,
        blocks,
        Capabilities(
            devices=("cuda", "interpreter"),
            dtypes=("fp32",),
            tiles=(TILE,),
            max_vocabulary=3 * TILE,
            packing="padded",
            supports=_SUPPORTS,
            declines=frozenset(VERIFYING) - _SUPPORTS,
            sampling=Sampling(
                noise="injected",
                rule="u*q<p",
                shared_draw=True,
                rounds="joint" if blocks else "token",
                unit=2.0**-20,  # sums of a tile are trees, those of tiles are added in order
            ),
            conventions=Conventions(deterministic=True),
        ),
    )


adapter = _adapter("sglang_chain", blocks=False)
block = _adapter("sglang_block", blocks=True)
