"""Speculative sampling of Hugging Face transformers, as generate(assistant_model=...) calls it.

    _speculative_sampling(ids [1, K], draft_logits [1, K, V], K, target_logits [1, K + 1, V])
        -> tokens [1, n + 1], n

The draft x is accepted under the uniform r, drawn by torch.rand_like, if r <= p(x) / q(x); after
n acceptances torch.multinomial draws from [p - q]+ over its sum, or from p where n = K. p and q
are softmaxes of the logits in the logits' dtype: laws arrive as log p and log q in float64. In
generate() the logits are float32. A draft that was certain is one of a one-hot q.

Stop tokens and the budget are cut off by generate(), greedy requests never come here, and without
a draft the function is not called: K = 0 would take the whole prompt for drafts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor

from kernelassay.impls.contract import (
    VERIFYING,
    Capabilities,
    Sampling,
    VerifyCall,
    VerifyResult,
)
from kernelassay.impls.verify_calls import refuse_verify

__all__ = ["adapter", "own_noise"]

SUPPORTS = frozenset(("verify", "drafts.many", "draft_law", "draft_certain"))


@contextmanager
def replaced(accept: Tensor, weights: list[Tensor]) -> Iterator[None]:
    """Inside, torch.rand_like gives *accept*, and *weights* gets what torch.multinomial is given.

    The token is drawn with a generator made for it, so that the default one is left as it is.
    """
    draw = torch.multinomial

    def uniforms(like: Tensor) -> Tensor:
        return accept.to(like.dtype)

    def drawn(given: Tensor, num_samples: int) -> Tensor:
        weights.append(given.clone())
        generator = torch.Generator(given.device).manual_seed(0)
        return draw(given, num_samples, generator=generator)

    with patch.object(torch, "rand_like", uniforms), patch.object(torch, "multinomial", drawn):
        yield


@dataclass(frozen=True)
class Speculative:
    """The function above, with the noise that comes with a call or with torch's own."""

    name: str
    capabilities: Capabilities
    needs: tuple[str, ...] = ("transformers",)

    def verify(self, call: VerifyCall) -> VerifyResult:
        """tokens, accepted and, where noise is captured, weights of *call*."""
        refuse_verify(self.name, self.capabilities, call)
        library: Any = import_module("transformers.generation.utils")
        K, p = call.most, call.p.double()
        q = p.new_zeros(K, p.shape[1]).scatter_(1, call.drafts[:, None], 1.0)
        if call.q is not None:
            q = call.q.double()
        given = (call.drafts[None], q.log()[None], K, p.log()[None])
        if call.accept is None:
            made, weights = library._speculative_sampling(*given), None
        else:
            caught: list[Tensor] = []
            with replaced(call.accept, caught):
                made = library._speculative_sampling(*given)
            (weights,) = caught
        emitted, accepted = made
        tokens = call.drafts.new_full((1, K + 1), -1)
        tokens[:, : emitted.shape[1]] = emitted
        return VerifyResult(tokens, accepted.view(1), weights)


def _capabilities(noise: Literal["captured", "global"]) -> Capabilities:
    return Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32",),
        supports=SUPPORTS,
        declines=frozenset(VERIFYING) - SUPPORTS,
        max_requests=1,
        # A law that was rounded to fp32 sums to 1 within 2^-24; the softmax makes that 1.
        sampling=Sampling(noise=noise, rule="p/q>=u", tokens="int64", unit=2.0**-23),
    )


adapter = Speculative("transformers_speculative", _capabilities("captured"))
own_noise = Speculative("transformers_speculative_global", _capabilities("global"))
