"""What a kernel answered: its form, who watched its memory, where an exception came from."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendResult
from kernelassay.properties.failures import WrongShape
from kernelassay.properties.memory import Watch, check_guards


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What a kernel answered: which backend ran, and who watched its memory."""

    backend: str | None = None
    watched: str
    watch: Watch | None = None
    guarded: tuple[Tensor, ...] = ()

    @property
    def first(self) -> Tensor:
        """The main tensor."""
        raise NotImplementedError

    def check_guards(self) -> None:
        """Raise `OutOfBounds` if the kernel wrote outside its outputs, as far as can be seen."""
        if self.watch is not None:
            self.watch.check()
        for storage in self.guarded:
            check_guards(storage)


@dataclass(frozen=True, eq=False, kw_only=True)
class Attended(Answer):
    """out [B, Hq, Tq, Dv] and lse [B, Hq, Tq] as they came."""

    out: Tensor
    lse: Tensor | None
    raw: tuple[Tensor, ...] = ()
    """the answer as the kernel gave it, where it has another form: (u, m, l)."""

    @property
    def first(self) -> Tensor:
        """The main tensor."""
        return self.state[0]

    @property
    def state(self) -> tuple[Tensor, ...]:
        """What the kernel gave: (out, lse), out alone, or (u, m, l)."""
        return self.raw or tuple(x for x in (self.out, self.lse) if x is not None)


def as_result(kernel: str, came: Any) -> AttendResult:
    if isinstance(came, AttendResult):
        result = came
    elif isinstance(came, tuple) and len(came) == 2:
        result = AttendResult(came[0], came[1])
    else:
        result = AttendResult(came)
    for name, x in (("out", result.out), ("lse", result.lse)):
        if not (isinstance(x, Tensor) or (name == "lse" and x is None)):
            raise WrongShape(
                f"{kernel} returned {type(x).__name__} as {name}; expected a tensor, a "
                f"tuple (out, lse) or an AttendResult"
            )
    return result


def sticky(error: Exception) -> bool:
    """Whether the device's context is lost: every later call would fail as well."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    accelerator = getattr(torch, "AcceleratorError", None)
    return (accelerator is not None and isinstance(error, accelerator)) or (
        isinstance(error, RuntimeError) and "CUDA error" in str(error)
    )


def innermost(error: BaseException) -> str:
    """file:line of the innermost frame outside installed libraries, where its author can look."""
    found, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not found or "site-packages" not in path:
            shown = os.path.relpath(path) if path.startswith("/") else path
            found = f"{shown}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
