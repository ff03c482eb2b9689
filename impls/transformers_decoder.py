"""The decode loop of Hugging Face transformers: generate() with an assistant or looked-up drafts.

One request a call, on tiny random Llama models (see `transformers_assisted.model`) that compute in
float64. Both loops make k = min(K, budget left - 1) drafts; none of them tells its rounds.

    assisted       drafts of an assistant, each round's noise used in the order draft, accept,
                   draw: torch.multinomial inside the assistant, torch.rand_like, torch.multinomial
    prompt_lookup  drafts that followed the text's last two tokens, or its last, where they
                   occurred first; a draft is accepted where it equals a draw from the target
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from kernelassay.impls.contract import Capabilities
from kernelassay.impls.decode_calls import refuse_decode
from kernelassay.impls.decoding import DecodeCall, DecodeResult, Decoding, Text, Uniforms
from kernelassay.impls.transformers_assisted import model

__all__ = ["TransformersDecoder", "assisted", "prompt_lookup"]

OTHERS, SHARE = 1000, 0.3
"""The seed's distance to another model, and how much of it is in a near draft."""


@lru_cache(32)
def target_of(seed: int, V: int) -> Any:
    """The target model of this seed."""
    return model(seed, V, 2)


@lru_cache(32)
def draft_of(seed: int, V: int, drafts: str) -> Any:
    """The draft model: the target's weights, another's, or a mixture."""
    made, other = deepcopy(target_of(seed, V)), target_of(seed + OTHERS, V)
    share = {"same": 0.0, "near": SHARE, "far": 1.0}[drafts]
    with torch.no_grad():
        for own, theirs in zip(made.parameters(), other.parameters(), strict=True):
            own.lerp_(theirs, share)
    return made


@contextmanager
def injected(uniforms: Uniforms, draft: Any) -> Iterator[None]:
    """Inside, draws of one request use these uniforms: of the round, and of the place in it."""
    t, i, drafting = 0, 0, False
    generate = draft.generate

    def generated(*args: Any, **options: Any) -> Any:
        nonlocal i, drafting
        i, drafting = 0, True
        try:
            return generate(*args, **options)
        finally:
            drafting = False

    def multinomial(weights: Tensor, num_samples: int) -> Tensor:
        nonlocal t, i
        if drafting:
            u, i = uniforms.draft[0, t, i], i + 1
        else:
            u, t = uniforms.draw[0, t, 0], t + 1
        below = weights.double().cumsum(-1)
        return torch.searchsorted(below, u * below[:, -1:], right=True)

    def rand_like(like: Tensor) -> Tensor:
        return uniforms.accept[0, t, : like.numel()].view(like.shape).to(like.dtype)

    with (
        patch.object(draft, "generate", generated),
        patch.object(torch, "multinomial", multinomial),
        patch.object(torch, "rand_like", rand_like),
    ):
        yield


@dataclass(eq=False)
class TransformersDecoder:
    """generate() under the contract of decode loops."""

    name: str
    capabilities: Capabilities
    needs: tuple[str, ...] = ("transformers",)

    def decode(self, call: DecodeCall) -> DecodeResult:
        """The text after the one prompt."""
        refuse_decode(self.name, self.capabilities, call)
        target, ids = target_of(call.model, call.vocabulary), torch.tensor([call.prompts[0]])
        options: dict[str, Any] = {"max_new_tokens": call.budget[0], "do_sample": True}
        if call.greedy[0]:
            options["do_sample"] = False
        else:
            options |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        if call.stop[0]:
            options |= {"eos_token_id": [*call.stop[0]], "pad_token_id": call.stop[0][0]}
        if call.minimum[0] and call.stop[0]:
            options["min_new_tokens"] = call.minimum[0]
        if call.drafts == "lookup":
            options["prompt_lookup_num_tokens"] = call.most
            made = self._seeded(call, target, ids, options)
        else:
            draft = draft_of(call.model, call.vocabulary, call.drafts)
            config = draft.generation_config
            config.num_assistant_tokens = call.most
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0  # else drafts end after an unlikely one
            options["assistant_model"] = draft
            assert call.uniforms is not None
            with injected(call.uniforms, draft):
                made = self._generated(target, ids, options)
        return DecodeResult((tuple(made[0, len(call.prompts[0]) :].tolist()),))

    def _seeded(self, call: DecodeCall, target: Any, ids: Tensor, options: dict[str, Any]) -> Any:
        assert call.seeds is not None
        with torch.random.fork_rng():
            torch.manual_seed(call.seeds[0])
            return self._generated(target, ids, options)

    def _generated(self, target: Any, ids: Tensor, options: dict[str, Any]) -> Any:
        return target.generate(ids, attention_mask=torch.ones_like(ids), **options)

    def target_law(self, call: DecodeCall, text: Text) -> Tensor:
        """p [V] of the token after *text*: generate() casts logits to fp32."""
        return _law(target_of(call.model, call.vocabulary), text)

    def draft_law(self, call: DecodeCall, text: Text) -> Tensor:
        """q [V] of a draft after *text*."""
        return _law(draft_of(call.model, call.vocabulary, call.drafts), text)


def _law(of: Any, text: Text) -> Tensor:
    with torch.no_grad():
        logits: Tensor = of(torch.tensor([text])).logits[0, -1]
    return logits.float().double().softmax(-1)


_OWN = {"decode", "decode.sampled", "decode.greedy", "decode.stop", "decode.minimum"}
_OTHERS = {"decode.requests", "decode.ragged", "decode.schedule", "decode.budget"}
_UNTOLD = {"decode.trace", "decode.logprobs"}
_ASSISTED = Capabilities(
    devices=("cpu",),
    dtypes=("fp32",),
    tiles=(16,),
    max_vocabulary=64,
    supports=frozenset(_OWN | {"decode.model"}),
    declines=frozenset(_OTHERS | _UNTOLD | {"decode.lookup"}),
    decoding=Decoding(
        noise="injected", shared_draw=True, trimmed=True, drafts_processed=True, slack=2.0**-18
    ),
)
_LOOKUP = replace(
    _ASSISTED,
    supports=frozenset(_OWN | {"decode.lookup"}),
    declines=frozenset(_OTHERS | _UNTOLD | {"decode.model"}),
    decoding=Decoding(rounds="joint", lookup="earliest", trimmed=True, slack=2.0**-18),
)

assisted = TransformersDecoder("transformers_assisted", _ASSISTED)
prompt_lookup = TransformersDecoder("transformers_prompt_lookup", _LOOKUP)
