"""Assisted generation of Hugging Face transformers, end to end, on tiny random models.

    target.generate(prompt, assistant_model=draft, do_sample=True)

is rounds of k = min(K, tokens left - 1) drafts. In each the noise is used in this order: k calls
of torch.multinomial draw the drafts, torch.rand_like gives k acceptance uniforms at once, a last
torch.multinomial draws the token after the accepted drafts. Where k = 0 there is that one alone.

Models compute in float64, so that keys and values that come from a cache give the same logits as
new ones; generate() casts logits to fp32, softmaxes and quotients included. The laws here are
those of the cast logits, by a float64 softmax: generate()'s are off by a few units of 2^-24.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from kernelassay.oracle.speculative import Law, Prefix, normalised

__all__ = ["Assisted", "injected", "model"]

LONGEST = 64
"""Tokens of a prompt and what follows it, at most."""


def model(seed: int, V: int, layers: int) -> Any:
    """A float64 Llama with weights drawn from *seed*; torch's generator stays as it is.

    Weights of standard deviation 0.3 give laws that are neither nearly uniform nor nearly certain.
    """
    library = import_module("transformers")
    config = library.LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LONGEST,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,  # generate() hides it from the assistant, also with a mask of ones
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return library.LlamaForCausalLM(config).double().eval()


@contextmanager
def injected(uniforms: Iterable[Fraction]) -> Iterator[None]:
    """Inside, torch.multinomial and torch.rand_like use up *uniforms*, one for each number.

    A draw is the first y with C_y > u C_V of the cumulated weights, in float64. RuntimeError where
    the uniforms do not last.
    """
    left = iter(uniforms)

    def several(n: int) -> Tensor:
        found = [float(u) for _, u in zip(range(n), left, strict=False)]
        if len(found) < n:
            raise RuntimeError(f"injected: {n} more uniforms asked for, {len(found)} left")
        return torch.tensor(found, dtype=torch.float64)

    def multinomial(weights: Tensor, num_samples: int) -> Tensor:
        below = weights.double().cumsum(-1)
        at = several(weights.shape[0]) * below[:, -1]
        return torch.searchsorted(below, at[:, None], right=True)

    def rand_like(like: Tensor) -> Tensor:
        return several(like.numel()).view(like.shape).to(like.dtype)

    with (
        patch.object(torch, "multinomial", multinomial),
        patch.object(torch, "rand_like", rand_like),
    ):
        yield


@lru_cache(4096)
def next_law(of: Any, text: Prefix) -> Law:
    """The law of the token that the model *of* puts after *text*."""
    with torch.no_grad():
        logits = of(torch.tensor([text])).logits[0, -1]
    masses = logits.float().double().softmax(-1).tolist()
    return normalised([Fraction(w) for w in masses])


@dataclass(frozen=True)
class Assisted:
    """A target, an assistant that makes K drafts in a round, and a prompt of a token or more."""

    target: Any
    draft: Any
    K: int
    prompt: Prefix

    def sampled(self, length: int, uniforms: Iterable[Fraction] | None = None) -> Prefix:
        """*length* tokens after the prompt, under these uniforms or torch's own generator."""
        noise: AbstractContextManager[None]
        noise = nullcontext() if uniforms is None else injected(uniforms)
        with noise:
            return self._generated(
                length,
                assistant_model=self._assistant(),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
            )

    def greedy(self, length: int, assisted: bool = True) -> Prefix:
        """The likeliest tokens, *length* of them, with the assistant or of the target alone."""
        helper = {"assistant_model": self._assistant()} if assisted else {}
        return self._generated(length, do_sample=False, **helper)

    def target_law(self, run: Prefix) -> Law:
        """The target's law of the token after the prompt and *run*."""
        return next_law(self.target, self.prompt + run)

    def draft_law(self, run: Prefix) -> Law:
        """The assistant's."""
        return next_law(self.draft, self.prompt + run)

    def _assistant(self) -> Any:
        """The draft model, told to make K drafts always."""
        config = self.draft.generation_config
        config.num_assistant_tokens = self.K
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0  # else drafts end after an unlikely one
        return self.draft

    def _generated(self, length: int, **options: Any) -> Prefix:
        ids = torch.tensor([self.prompt])
        made = self.target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, **options
        )
        return tuple(made[0, len(self.prompt) :].tolist())
