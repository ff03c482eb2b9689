"""What a verification answered: its form, and each request's round."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import Unsupported, VerifyResult
from kernelassay.oracle.formats import name_of
from kernelassay.oracle.speculative import Round
from kernelassay.properties.answers import Answer
from kernelassay.properties.failures import Refused, WrongDtype, WrongShape, WrongToken
from kernelassay.properties.memory import Watch
from kernelassay.properties.speculative.batches import INTEGERS, Batch, Given, lay_out, sampling_of
from kernelassay.properties.subject import Subject


@dataclass(frozen=True, eq=False, kw_only=True)
class Verified(Answer):
    """What came, and on the CPU: tokens [R, K + 1], lengths [R] that say how many of them were
    emitted, accepted [R] how many of those are drafts."""

    came: VerifyResult
    tokens: Tensor
    lengths: Tensor
    accepted: Tensor

    @property
    def first(self) -> Tensor:
        """The main tensor."""
        return self.came.tokens

    def round(self, r: int) -> Round:
        """What request r emitted."""
        n = int(self.lengths[r])
        return Round(int(self.accepted[r]), tuple(self.tokens[r, :n].tolist()))


def verify(subject: Subject, source: Batch | Given) -> Verified:
    """The kernel's rounds; a refusal, an exception or a malformed answer is a failure."""
    given = source if isinstance(source, Given) else laid_out(subject, source)
    try:
        return answer(subject, given)
    except Unsupported as why:
        raise Refused(
            f"{subject.name} refused a call that it declares to support: {why}. "
            f"Answer it, or take the feature out of capabilities.supports"
        ) from why


def laid_out(subject: Subject, batch: Batch) -> Given:
    """The call of *batch* as the kernel wants it."""
    return lay_out(batch, subject.capabilities, subject.dtype, subject.home)


def answer(subject: Subject, given: Given) -> Verified:
    """The kernel's rounds, of the form that the contract says; `Unsupported` passes through."""

    def run() -> Any:
        return subject.kernel.verify(given.call)

    def made(came: Any, watched: str, watch: Watch | None) -> Verified:
        return _formed(subject, given.batch, came, watched, watch)

    return subject.guarded(given.call.p, lambda: subject.watching(run, made))


def _formed(
    subject: Subject, batch: Batch, came: Any, watched: str, watch: Watch | None
) -> Verified:
    sampling = sampling_of(subject.capabilities)
    if not isinstance(came, VerifyResult):
        raise WrongShape(
            f"{subject.name}.verify returned {type(came).__name__}; expected a VerifyResult"
        )
    R, K, V = batch.requests, batch.most, batch.vocabulary
    _check("tokens", came.tokens, (R, K + 1), INTEGERS[sampling.tokens])
    if came.accepted is not None:
        _check("accepted", came.accepted, (R,), None)
    if sampling.noise == "captured":
        _check("weights", came.weights, (R, V), None)
    tokens = came.tokens.to("cpu", torch.int64)
    there = tokens != sampling.placeholder
    lengths = there.long().cumprod(1).sum(1)
    beyond = there & (torch.arange(K + 1)[None] >= lengths[:, None])
    if bool(beyond.any()):
        r, i = (int(x) for x in beyond.nonzero()[0])
        raise WrongToken(
            f"tokens[{r}] = {tokens[r].tolist()}: token {int(tokens[r, i])} stands at {i}, after "
            f"a placeholder; expected {sampling.placeholder} to the end"
        )
    bad = there & ((tokens < 0) | (tokens >= V))
    if bool(bad.any()):
        r, i = (int(x) for x in bad.nonzero()[0])
        raise WrongToken(
            f"tokens[{r}, {i}] = {int(tokens[r, i])}; expected a token of the vocabulary, 0 to "
            f"{V - 1}, or the placeholder {sampling.placeholder}"
        )
    accepted = _counted(batch, tokens, lengths) if came.accepted is None else came.accepted
    return Verified(
        watched=watched,
        watch=watch,
        came=came,
        tokens=tokens,
        lengths=lengths,
        accepted=accepted.to("cpu", torch.int64),
    )


def _check(name: str, x: Any, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    if not isinstance(x, Tensor) or tuple(x.shape) != shape:
        got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise WrongShape(f"{name}: got {got}, expected a tensor of shape {shape}")
    if dtype is not None and x.dtype != dtype:
        raise WrongDtype(
            f"{name}: got dtype {name_of(x.dtype)}, expected {name_of(dtype)} "
            f"(Sampling.tokens says so)"
        )


def _counted(batch: Batch, tokens: Tensor, lengths: Tensor) -> Tensor:
    """How many tokens are drafts, where the kernel does not say: those that agree with them.

    A token that was drawn may equal the draft that was rejected only if it is the last one.
    """
    same = (tokens[:, : batch.most] == batch.drafts) & batch.real
    return torch.minimum(same.long().cumprod(1).sum(1), lengths)
