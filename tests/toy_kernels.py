"""Kernels of a few lines for the tests: the plain PyTorch one, with what a test changes of it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls import torch_reference
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
)
from kernelassay.properties.subject import Subject

REFERENCE = torch_reference.adapter.capabilities
INVARIANT = replace(REFERENCE.conventions, batch_invariant=True)
UNDECLARED = Conventions()

Attend = Callable[[AttendCall], Any]


def right(call: AttendCall) -> AttendResult:
    """Attention as it should be."""
    return AttendResult(*torch_reference.attention(call))


@dataclass(eq=False)
class Toy:
    """An adapter around a function."""

    run: Attend = right
    name: str = "toy"
    capabilities: Capabilities = REFERENCE
    numerics: Any = field(default_factory=lambda: dict(torch_reference.adapter.numerics))

    def attend(self, call: AttendCall) -> Any:
        return self.run(call)


def toy(run: Attend = right, *, dtype: str = "fp32", **declared: Any) -> Subject:
    """A subject that runs *run*; what is *declared* replaces fields of the capabilities."""
    return Subject(Toy(run, capabilities=replace(REFERENCE, **declared)), dtype, "cpu")


def only(*features: str, **declared: Any) -> Capabilities:
    """Capabilities of attention with these features and no others."""
    given: dict[str, Any] = {"devices": ("cpu",), "dtypes": ("fp32",), "head_sizes": (64,)}
    return Capabilities(**{**given, "supports": {"attend", *features}, **declared})


def all_but(*features: str) -> frozenset[str]:
    """Every feature but these."""
    return frozenset(FEATURES) - set(features)


def hide(call: AttendCall, keep: Tensor) -> AttendCall:
    """The same call with *keep* [..., Tq, Tk] on top of its mask."""
    mask = call.visibility.mask
    joint = keep if mask is None else keep & mask
    shape = (*call.q.shape[:3], call.k.shape[2])
    return replace(call, visibility=replace(call.visibility, mask=joint.expand(shape)))


def without_tail(call: AttendCall, tile: int = 16) -> AttendResult:
    """The last key tile is not visited where it is partial."""
    Tk = call.k.shape[2]
    whole = Tk - Tk % tile if Tk > tile else Tk
    return right(hide(call, torch.arange(Tk) < whole))
