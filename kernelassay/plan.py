"""The plan of a run: one item for each law, kernel, dtype and device."""

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelassay.impls.contract import DEVICES, DTYPES
from kernelassay.loading import Loaded, LoadError
from kernelassay.properties.expectations import ExpectationError, Expectations
from kernelassay.properties.property import REGISTRY, Property


class PlanError(ValueError):
    """A selection that leaves nothing to run, or that cannot be made."""


@dataclass(frozen=True)
class Item:
    """One law on one kernel with one dtype on one device."""

    spec: str
    kernel: str
    law: str
    dtype: str
    device: str

    @property
    def id(self) -> str:
        """law-kernel-dtype-device, as pytest ids spell it."""
        return f"{self.law}-{self.kernel}-{self.dtype}-{self.device}"

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def interpreting() -> bool:
    """Whether this process runs Triton's kernels in the interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def cuda_available() -> bool:
    """Whether there is a CUDA device."""
    import torch

    return torch.cuda.is_available()


def device_problem(device: str, *, triton: bool = False) -> str | None:
    """Why nothing can run on *device* in this process, or None.

    *triton*: whether the kernel is written in Triton. A process interprets Triton's kernels or
    compiles them: the mode is fixed when Triton is first imported.
    """
    if device == "cuda" and not cuda_available():
        return "no CUDA device"
    if device == "cuda" and triton and interpreting():
        return "this process interprets Triton kernels; unset TRITON_INTERPRET for cuda items"
    if device == "interpreter" and not interpreting():
        return "this process compiles Triton kernels; set TRITON_INTERPRET=1 for interpreter items"
    return None


def is_triton(adapter: Any) -> bool:
    """Whether a kernel is written in Triton, as far as its devices tell."""
    return "interpreter" in adapter.capabilities.devices


def usual_devices(adapter: Any) -> tuple[str, ...]:
    """The declared devices to use unless told: cpu, and cuda if there is one, else interpreter."""
    declared = adapter.capabilities.devices
    usual = [d for d in declared if d == "cpu" or (d == "cuda" and cuda_available())]
    if "interpreter" in declared and "cuda" not in usual:
        usual.append("interpreter")
    return tuple(usual) or tuple(declared)


def plan(
    kernels: Sequence[Loaded],
    laws: Sequence[Property],
    devices: Sequence[str] = (),
    dtypes: Sequence[str] = (),
) -> list[Item]:
    """All items; those that share inputs and oracles (same law, dtype, device) lie side by side.

    Without *devices* or *dtypes*: all that a kernel declares. Laws of what a kernel does not do at
    all, such as laws of pages where it takes none, make no item.
    """
    _known("device", devices, DEVICES)
    _known("dtype", dtypes, DTYPES)
    _distinct(kernels)
    return [
        Item(kernel.spec, kernel.name, law.name, dtype, device)
        for law in laws
        for device in DEVICES
        for dtype in DTYPES
        for kernel in kernels
        if law.operation in kernel.adapter.capabilities.operations
        and device in _of(kernel.adapter.capabilities.devices, devices)
        and dtype in _of(kernel.adapter.capabilities.dtypes, dtypes)
    ]


def _of(declared: Iterable[str], chosen: Sequence[str]) -> list[str]:
    return [x for x in declared if not chosen or x in chosen]


def _known(what: str, got: Iterable[str], allowed: Sequence[str]) -> None:
    for value in got:
        if value not in allowed:
            raise PlanError(f"{what}: got {value!r}, expected some of {', '.join(allowed)}")


def _distinct(kernels: Sequence[Loaded]) -> None:
    seen: dict[str, Loaded] = {}
    for kernel in kernels:
        other = seen.setdefault(kernel.name, kernel)
        if other is not kernel:
            raise LoadError(
                kernel.spec,
                f"its name is {kernel.name!r}, and so is that of {other.spec!r}; "
                f"give each adapter a name of its own",
                kind="ContractError",
            )


def check_expectations(expectations: Expectations) -> None:
    """Every entry speaks of a law, a dtype and a device that there are."""
    for entry in expectations.entries:
        for what, got, allowed in (
            ("property", entry.law, tuple(REGISTRY)),
            ("dtype", entry.dtype, DTYPES),
            ("device", entry.device, DEVICES),
        ):
            if got is not None and got not in allowed:
                close = difflib.get_close_matches(str(got), allowed, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(allowed)}"
                raise ExpectationError(
                    f"{entry.where}: {what}: got {got!r}, which matches nothing; {hint}"
                )


BUNDLED_EXPECTATIONS = Path(__file__).parent / "expect"
"""Known faults of the libraries whose adapters come with the suite: they apply to every run."""


def unmatched(expectations: Expectations, items: Iterable[Item]) -> list[str]:
    """One line for each entry that speaks of no item of this run."""
    items = list(items)
    return [
        f"{e.where}: speaks of {e.law} on {e.kernel}, which is not part of this run"
        for e in expectations.entries
        if not e.where.startswith(str(BUNDLED_EXPECTATIONS))
        and not any(e.matches(i.law, i.kernel, i.dtype, i.device) for i in items)
    ]
