"""What a decode loop is asked and what it answered: calls, the form of results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import Unsupported
from kernelassay.impls.decoding import DecodeCall, DecodeResult, Decoding, Uniforms
from kernelassay.properties.answers import Answer
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.decoding.models import Models
from kernelassay.properties.decoding.noise import seed_of, uniforms_of
from kernelassay.properties.failures import Refused, WrongShape
from kernelassay.properties.subject import Subject


@dataclass(frozen=True, eq=False, kw_only=True)
class Decoded(Answer):
    """What came, in its declared form."""

    result: DecodeResult

    @property
    def first(self) -> Tensor:
        """A decode loop has no tensor for its main result."""
        return torch.empty(0)


def decoding_of(subject: Subject) -> Decoding:
    """How the loop works, as its author declares."""
    declared = subject.capabilities.decoding
    assert declared is not None  # the contract says so
    return declared


def models_of(subject: Subject, case: DecodeCase) -> Models:
    """The models of the case as the subject has them."""
    return Models(subject.kernel, decoding_of(subject), case, subject.home, subject.dtype)


def call_of(
    subject: Subject,
    case: DecodeCase,
    some: Sequence[int] | None = None,
    runs: Sequence[int] = (0,),
    noise: Uniforms | None = None,
    seeds: Sequence[int] | None = None,
) -> DecodeCall:
    """The call of these requests of the case, all by default, once for each run, with the noise
    that is declared: that of the case, or the one given."""
    numbers, kind = range(case.requests) if some is None else some, decoding_of(subject).noise
    pairs = [(r, run) for run in runs for r in numbers]
    chosen = [r for r, _ in pairs]
    if kind == "injected" and noise is None:
        noise = uniforms_of(case, pairs)
    if kind == "seeded" and seeds is None:
        seeds = [seed_of(case, r, run) for r, run in pairs]
    if noise is not None:
        home = {n: getattr(noise, n).to(subject.home) for n in ("draft", "accept", "draw")}
        noise = Uniforms(**home)
    return DecodeCall(
        model=case.model,
        vocabulary=case.V,
        prompts=tuple(case.prompts[r] for r in chosen),
        drafts=case.drafts,  # type: ignore[arg-type]  # a case is checked
        schedule=case.schedule,
        stop=tuple(case.stops(r) for r in chosen),
        budget=tuple(case.budget[r] for r in chosen),
        minimum=tuple(case.least(r) for r in chosen),
        greedy=tuple(r in case.greedy for r in chosen),
        uniforms=noise,
        seeds=None if seeds is None else tuple(seeds),
        device=subject.home,
        dtype=subject.dtype,
    )


def decode(subject: Subject, call: DecodeCall) -> DecodeResult:
    """The loop's result; a refusal, an exception or a malformed result is a failure."""
    try:
        return answer(subject, call)
    except Unsupported as why:
        raise Refused(
            f"{subject.name} refused a call that it declares to support: {why}. "
            f"Answer it, or take the feature out of capabilities.supports"
        ) from why


def answer(subject: Subject, call: DecodeCall) -> DecodeResult:
    """The loop's result, of the form that the contract says; `Unsupported` passes through."""

    def run() -> Decoded:
        return Decoded(
            watched="opaque", result=_formed(subject, call, subject.kernel.decode(call))
        )

    place = torch.empty(0, device=subject.home)
    return subject.guarded(place, run).result


def _formed(subject: Subject, call: DecodeCall, came: Any) -> DecodeResult:
    def wrong(name: str, got: object, expected: str) -> WrongShape:
        return WrongShape(f"{name}: got {got}, expected {expected}")

    R = call.requests
    if not isinstance(came, DecodeResult):
        raise wrong(f"{subject.name}.decode", type(came).__name__, "a DecodeResult")
    if len(came.tokens) != R:
        raise wrong("tokens", f"{len(came.tokens)} texts", f"one for each of {R} requests")
    for text in came.tokens:
        if bad := [x for x in text if type(x) is not int or not 0 <= x < call.vocabulary]:
            raise wrong("tokens", repr(bad[0]), f"integers of 0 to {call.vocabulary - 1}")
    if subject.has("decode.trace") and (came.trace is None or len(came.trace) != R):
        raise wrong("trace", "none" if came.trace is None else len(came.trace), f"{R} lists")
    if subject.has("decode.logprobs"):
        lengths = [len(text) for text in came.tokens]
        got = None if came.logprobs is None else [len(row) for row in came.logprobs]
        if got != lengths:
            raise wrong("logprobs", f"rows of lengths {got}", f"{lengths}, as the tokens")
    return came
