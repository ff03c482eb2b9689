"""The law of large tensors: how far apart in memory the elements of an input may lie."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from kernelassay.oracle.formats import format_of
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.inputs import Inputs, logical
from kernelassay.properties.judge import judge
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject

FAR = 1 << 31
"""Elements: what a signed 32-bit offset cannot count."""
ROOM = 1 << 24
"""Elements for the tensors themselves."""
AXES = ("requests", "heads", "tokens")


def _needed(dtype: str) -> int:
    """Bytes: room for FAR elements on each side, so that a wrapped offset finds its own memory."""
    return (2 * FAR + ROOM) * format_of(dtype).dtype.itemsize


def enough_memory(subject: Subject) -> str | None:
    """Why the law cannot run here. Main memory is reserved, hardly any of it is touched."""
    if subject.home == "cuda":
        there = torch.cuda.get_device_properties(0).total_memory // 4
    else:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    needed = _needed(subject.dtype)
    if there >= needed:
        return None
    return f"needs {needed / 1e9:.1f} GB for one tensor, there may be {there / 1e9:.1f} GB"


@law(
    "attention.far_offsets",
    "Offsets are 64 bits wide: requests, heads or tokens that lie 2**31 elements apart are found.",
    requires=["strides"],
    here=enough_memory,
    strata={f"far_{axis}": s.far(index) for index, axis in enumerate(AXES)},
    weight=0.15,
)
def far_offsets(subject: Subject, case: AttendCase) -> None:
    near = subject.lay_out(logical(case, subject.dtype, subject.place))
    kind = format_of(subject.dtype).dtype
    with _alone(subject.home):
        storage = torch.empty(2 * FAR + ROOM, dtype=kind, device=subject.home)
        try:
            answer = subject.attend(_far_apart(near, storage, case.at % len(AXES)))
        finally:
            if storage.untyped_storage().resizable():  # not once numpy has seen it
                storage.untyped_storage().resize_(0)  # a failure's frames hold views of it
    judge(subject, case, answer)


@contextmanager
def _alone(home: str) -> Iterator[None]:
    """One worker at a time has this much of a device's memory, and gives it back."""
    if home != "cuda":
        yield
        return
    with (Path(tempfile.gettempdir()) / "kernelassay-memory.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the operating system frees it, whatever happens
        torch.cuda.empty_cache()
        try:
            yield
        finally:
            torch.cuda.empty_cache()


def _far_apart(near: Inputs, storage: Tensor, axis: int) -> Inputs:
    """The same call with q, k and v in *storage*; along one axis their ends are FAR apart.

    They start in the middle, a little apart, and take equal steps, so they do not overlap.
    """
    call, start = near.call, FAR
    tensors = {name: getattr(call, name) for name in ("q", "k", "v")}
    step = -(-FAR // max(1, *(x.shape[axis] - 1 for x in tensors.values())))
    for name, x in tensors.items():
        strides = list(x.stride())
        strides[axis] = step
        tensors[name] = storage.as_strided(x.shape, strides, start).copy_(x)
        start += ROOM // 4
    return Inputs(replace(call, **tensors), near.placed[3:])
