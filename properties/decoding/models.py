"""The adapter's models as exact laws: the truth that its decode loop is held against.

A probability is rounded to a multiple of 2^-44, so that Fractions stay short; that is far below
every declared slack.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import torch

from kernelassay.impls.decoding import DecodeCall, Decoding
from kernelassay.oracle.decoding import Lookup, Task, looked_up, processed
from kernelassay.oracle.speculative import Context, Law, Prefix, normalised
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.failures import WrongValue

GRID = 2**44


@dataclass(frozen=True)
class Models:
    """The target and the draft model of a case, as one adapter has them."""

    kernel: Any
    decoding: Decoding
    case: DecodeCase
    device: str
    dtype: str

    def task(self, r: int) -> Task:
        """What request r asks for."""
        case = self.case
        return Task(
            prompt=case.prompts[r],
            budget=case.budget[r],
            schedule=case.schedule,
            stop=frozenset(case.stops(r)),
            minimum=case.least(r),
            trimmed=self.decoding.trimmed,
        )

    def target(self, r: int) -> Context:
        """The target's law after the prompt of request r and what was emitted."""
        return self._context("target_law", r)

    def draft(self, r: int) -> Context | None:
        """The draft model's law; None where drafts are looked up."""
        if self.case.drafts == "lookup":
            return None
        law = self._context("draft_law", r)
        return processed(self.task(r), law) if self.decoding.drafts_processed else law

    def lookup(self, r: int) -> Lookup | None:
        """Drafts that are looked up; None where a model makes them."""
        if self.case.drafts != "lookup":
            return None
        d, prompt = self.decoding, self.case.prompts[r]
        which: Literal["latest", "earliest"] = "earliest" if d.lookup == "earliest" else "latest"
        return lambda run, k: looked_up(prompt + run, k, d.longest, which)

    def processed(self, r: int) -> Context:
        """The target's law with the minimum in force."""
        return processed(self.task(r), self.target(r))

    def _context(self, which: str, r: int) -> Context:
        case = self.case
        fixed = (self.kernel, which, case.model, case.V, case.drafts, self.device, self.dtype)
        return lambda run: _law(*fixed, case.prompts[r] + run)


@lru_cache(1 << 16)
def _law(
    kernel: Any,
    which: str,
    model: int,
    V: int,
    drafts: Any,
    device: str,
    dtype: str,
    text: Prefix,
) -> Law:
    """The law that an adapter's model gives after *text*."""
    call = DecodeCall(
        model=model,
        vocabulary=V,
        prompts=(text,),
        drafts=drafts,
        stop=((),),
        budget=(1,),
        minimum=(0,),
        greedy=(False,),
        device=device,
        dtype=dtype,
    )
    ask: Callable[[DecodeCall, Prefix], torch.Tensor] = getattr(kernel, which)
    p = ask(call, text).double().tolist()
    if len(p) != V or not all(0 <= w <= 1 for w in p) or not abs(sum(p) - 1) < 1e-3:
        raise WrongValue(
            f"{kernel.name}.{which} after {list(text)} gave {p}; expected {V} probabilities"
        )
    return normalised([Fraction(round(w * GRID), GRID) for w in p])
