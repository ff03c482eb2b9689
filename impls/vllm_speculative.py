"""vLLM's rejection sampler (0.33.0), on a GPU or in Triton's interpreter.

    _sample_recovered_tokens(recovered [N], ends [R], drafts [N], q [N, V] or None, p [N, V],
                             1 / race [R, V], max_spec_len=K)
    _rejection_greedy_sample(tokens [R, K + 1], ends, drafts, argmax p [N], bonus [R], greedy [R],
                             K, None, None)
    _rejection_random_sample(tokens, ends, drafts, q, p, bonus, recovered, uniforms [N], greedy,
                             K, None)

These launch the three kernels behind `rejection_sample`, which draws uniforms and exponential
noise itself; here they come with the call. A draft x is accepted where q(x) > 0 and
p(x) / q(x) >= u; what follows a rejection is argmax [p - q]+ / race. The bonus token comes drawn.
Laws are fp32, uniforms fp64, tokens int32 except the argmax and the bonus, which are int64.

A draft of -1 is one that was drawn from q and that a grammar forbids: it is rejected, and [p - q]+
follows, which is right, since p has no share of it. Drafts that are certain have an adapter of
their own: without q, p follows.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

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

__all__ = ["adapter", "certain"]

TILE = 8192
"""Tokens that the draw of a recovered token looks at in one step."""


@cache
def _library() -> Any:
    mend()
    return import_module("vllm.v1.sample.rejection_sampler")


def _tokens(call: VerifyCall) -> Tensor:
    """tokens [R, K + 1], as `rejection_sample` makes them from its noise."""
    assert call.accept is not None
    assert call.race is not None
    assert call.bonus is not None
    library, p, q, drafts = _library(), call.p, call.q, call.drafts
    R, K, ends, bonus = call.requests, call.most, call.offsets[1:], call.bonus.long()
    tokens = torch.full((R, K + 1), -1, dtype=torch.int32, device=p.device)
    greedy = call.greedy
    if greedy is None:
        greedy = torch.zeros(R, dtype=torch.bool, device=p.device)
    else:
        top = p.argmax(-1)
        library._rejection_greedy_sample(tokens, ends, drafts, top, bonus, greedy, K, None, None)
    recovered = torch.empty_like(drafts)
    library._sample_recovered_tokens(
        recovered, ends, drafts, q, p, call.race.reciprocal(), max_spec_len=K
    )
    library._rejection_random_sample(
        tokens, ends, drafts, q, p, bonus, recovered, call.accept.double(), greedy, K, None
    )
    return tokens


@dataclass(eq=False)
class VllmRejection:
    """The three kernels above."""

    name: str
    capabilities: Capabilities
    needs: tuple[str, ...] = ("vllm",)

    def verify(self, call: VerifyCall) -> VerifyResult:
        """tokens of *call*; `Unsupported` refuses it."""
        refuse_verify(self.name, self.capabilities, call)
        refuse_elsewhere(self.name, call.p.device)
        with launching(call.p):
            return VerifyResult(_tokens(call))


_SUPPORTS = frozenset(VERIFYING) - {"stop", "budget"}
_OF_LAWS = _SUPPORTS - {"draft_certain"}
_CERTAIN = _SUPPORTS - {"draft_law"}


def _adapter(name: str, supports: frozenset[str]) -> VllmRejection:
    return VllmRejection(
        name,
        Capabilities(
            devices=("cuda", "interpreter"),
            dtypes=("fp32",),
            tiles=(TILE,),
            max_vocabulary=3 * TILE,
            supports=supports,
            declines=frozenset(VERIFYING) - supports,
            sampling=Sampling(
                noise="injected",
                rule="p/q>=u",
                draw="race",
                shared_draw=True,
                bonus="given",
                skipped="rejected",
                ties="any",  # torch says of no tie which argmax it takes
            ),
            conventions=Conventions(deterministic=True),
        ),
    )


adapter = _adapter("vllm_rejection", _OF_LAWS)
certain = _adapter("vllm_rejection_certain", _CERTAIN)
