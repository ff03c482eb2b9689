"""Calls of an open store, a cache or states: what it lacks, what raises, what must not change."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from kernelassay.impls.contract import Unsupported
from kernelassay.impls.interpreter import launching
from kernelassay.properties.answers import innermost, sticky
from kernelassay.properties.failures import DeviceLost, Failure, InputMutated, Raised
from kernelassay.properties.memory import same_bits
from kernelassay.properties.subject import Subject

__all__ = ["Calls"]


class Calls:
    """What runs of programs share: a subject, its open store, and a guard around each call."""

    opens: ClassVar[str]  # the adapter's method that opens a store
    subject: Subject
    spec: Any
    store: Any
    guard: Callable[[Callable[[], Any]], Any] | None

    def __init_subclass__(cls, opens: str) -> None:
        cls.opens = opens

    def told(self) -> list[str]:
        """The program up to now, for a failure."""
        raise NotImplementedError

    def opened(self, spec: Any) -> Any:
        """A store of *spec*."""
        return self.call(lambda: getattr(self.subject.kernel, self.opens)(spec), self.opens)

    def opening(self, **changes: Any) -> Callable[[], Any]:
        """Opens a store of the run's own spec with *changes*, beside the one that is open."""
        return lambda: self.opened(replace(self.spec, **changes))

    def integers(self, values: Sequence[int]) -> Tensor:
        """Lengths, offsets or counts as the kernel gets them."""
        return torch.tensor([*values], dtype=torch.int32, device=self.subject.home)

    def unchanged(self, name: str, **tensors: Tensor) -> Any:
        """What the method returns of tensors that it leaves as they are."""
        before = {n: x.clone() for n, x in tensors.items()}
        came = self.method(name, *tensors.values())
        if changed := [n for n, x in tensors.items() if not same_bits(x, before[n])]:
            raise InputMutated(
                f"{', '.join(changed)} changed during {name}; expected every input as it was"
            )
        return came

    def method(self, name: str, *arguments: Any) -> Any:
        """What a method of the store returns; one that it does not have is unsupported."""
        found = getattr(self.store, name, None)
        if not callable(found):
            raise Unsupported(f"the store has no {name}")
        return self.call(lambda: found(*arguments), name)

    def call(self, run: Callable[[], Any], name: str) -> Any:
        """What *run* returns; an exception is a failure, `Unsupported` passes through."""
        subject = self.subject
        subject.launches += 1
        where = torch.empty(0, device=subject.home)
        quiet = launching(where) if subject.device == "interpreter" else nullcontext()
        try:
            with quiet:
                came = run() if self.guard is None else self.guard(run)
            if subject.home == "cuda":
                torch.cuda.synchronize()
        except (Unsupported, Failure):
            raise
        except Exception as error:
            if sticky(error):
                raise DeviceLost(f"{type(error).__name__}: {error}") from error
            raise Raised(
                f"{subject.name} raised {type(error).__name__} in {name}: {error}".split("\n")[0],
                where=innermost(error),
                lines=self.told(),
            ) from error
        return came
