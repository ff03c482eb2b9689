"""What a kernel answered: a law for each row, of the form that the contract says."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import Unsupported
from kernelassay.oracle.formats import name_of
from kernelassay.properties.answers import Answer
from kernelassay.properties.failures import Refused, WrongDtype, WrongShape
from kernelassay.properties.logits.batches import Batch, Given, lay_out
from kernelassay.properties.memory import Watch
from kernelassay.properties.subject import Subject


@dataclass(frozen=True, eq=False, kw_only=True)
class Lawful(Answer):
    """What came, where the kernel left it, and p [R, V], the same on the CPU."""

    came: Tensor
    p: Tensor

    @property
    def first(self) -> Tensor:
        """The main tensor."""
        return self.came


def laws_of(subject: Subject, source: Batch | Given) -> Lawful:
    """The kernel's laws; a refusal, an exception or a malformed answer is a failure."""
    given = source if isinstance(source, Given) else lay_out(subject, source)
    try:
        return answer(subject, given)
    except Unsupported as why:
        raise Refused(
            f"{subject.name} refused a call that it declares to support: {why}. "
            f"Answer it, or take the feature out of capabilities.supports"
        ) from why


def answer(subject: Subject, given: Given) -> Lawful:
    """The kernel's laws, of the form that the contract says; `Unsupported` passes through."""

    def run() -> Any:
        return subject.kernel.law(given.call)

    def made(came: Any, watched: str, watch: Watch | None) -> Lawful:
        _check(subject, given, came)
        return Lawful(watched=watched, watch=watch, came=came, p=came.to("cpu", copy=True))

    return subject.guarded(given.call.logits, lambda: subject.watching(run, made))


def _check(subject: Subject, given: Given, came: Any) -> None:
    if not isinstance(came, Tensor):
        raise WrongShape(f"{subject.name}.law returned {type(came).__name__}; expected a tensor")
    shape, home = tuple(given.batch.logits.shape), given.call.logits.device
    if tuple(came.shape) != shape:
        raise WrongShape(f"p: got shape {tuple(came.shape)}, expected {shape}, as logits")
    if came.dtype != torch.float32:
        raise WrongDtype(f"p: got dtype {name_of(came.dtype)}, expected fp32")
    if came.device.type != home.type:
        raise WrongDtype(f"p: got device {came.device}, expected {home}, as logits")
