"""Where tensors lie: layouts and views of inputs, guard zones, poison, and who wrote where.

Inputs lie between guard zones of NaN; their whole storage is compared bit for bit afterwards.
Outputs are watched at one of three levels: `destination` (the suite allocates them), `allocations`
(a dispatch mode gives every `torch.empty*` of the kernel's launcher poison and guards) and
`opaque` (allocated inside a library: nothing can be said).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelassay.properties.failures import NotWritten, OutOfBounds

GUARD = 4096
"""Elements of a guard zone: 64 rows of 64, so that a whole tile too much still lands in it."""

VIEWS = ("contiguous", "offset", "padded", "interleaved", "inner", "expanded")
"""contiguous; starting one element late; rows padded by 8; K/V interleaved (every other row is
another tensor's); D not the innermost axis; the batch expanded (stride 0)."""

_ALLOCATIONS = (
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
)  # fmt: skip
"""What hands out memory that nobody has written yet."""


@cache
def _allocating() -> frozenset[Any]:
    """Those operators, every overload."""
    packets = [getattr(torch.ops.aten, name) for name in _ALLOCATIONS]
    return frozenset(getattr(p, name) for p in packets for name in p.overloads())


# A NaN with a payload: what no kernel computes, and what 0 x NaN keeps visible. Of integers a
# number beyond any vocabulary.
_POISON_BITS = {
    torch.int64: (torch.int64, 0x7AD0_BAD0_BAD0_BAD0),
    torch.int32: (torch.int32, 0x7AD0_BAD0),
    torch.float64: (torch.int64, 0x7FF8_0BAD_0BAD_0BAD),
    torch.float32: (torch.int32, 0x7FC0_0BAD),
    torch.float16: (torch.int16, 0x7E5A),
    torch.bfloat16: (torch.int16, 0x7FDA),
}


def bits(x: Tensor) -> Tensor:
    """*x* reinterpreted as integers, so that NaN equals NaN and -0 differs from 0."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.contiguous().view(kind)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree bit for bit."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(bits(a), bits(b)))


def poison_like(numel: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """A flat tensor of poison."""
    kind, pattern = _POISON_BITS[dtype]
    return torch.full((numel,), pattern, dtype=kind, device=device).view(dtype)


def is_poison(x: Tensor) -> Tensor:
    """Where *x* still holds the poison pattern."""
    return bits(x) == _POISON_BITS[x.dtype][1]


@dataclass(frozen=True, eq=False)
class Placed:
    """An input: the view that the kernel gets, its whole storage, and a copy from before."""

    name: str
    view: Tensor
    storage: Tensor
    before: Tensor

    def intact(self) -> bool:
        """Whether no byte of the storage, guards included, has changed."""
        return same_bits(self.storage.to(self.before.device), self.before)


def place(name: str, logical: Tensor, layout: str, view: str, device: str) -> Placed:
    """*logical* [B, H, T, D] in a physical layout and view, between guards of NaN."""
    requests, H, T, D = logical.shape
    B = 1 if view == "expanded" else requests
    logical = logical[:B]
    row = {"padded": D + 8, "interleaved": 2 * D}.get(view, D)
    if view == "inner":  # D outermost within a head
        strides = (H * T * D, T * D, 1, T)
    elif layout == "BTHD":
        strides = (T * H * row, row, H * row, 1)
    else:
        strides = (H * T * row, T * row, row, 1)
    start = GUARD + (1 if view == "offset" else 0)
    size = B * H * T * row + 2 * GUARD + 1
    before = torch.full((size,), float("nan"), dtype=logical.dtype, device=logical.device)
    before.as_strided((B, H, T, D), strides, start).copy_(logical)
    storage = before.to(device, copy=True, non_blocking=True)
    seen = storage.as_strided((B, H, T, D), strides, start)
    if view == "expanded":
        seen = seen.expand(requests, H, T, D)
    return Placed(name, seen, storage, before)


def placed_view(name: str, physical: Tensor, device: str, axes: list[int]) -> Placed:
    """*physical* as it lies, between guards of NaN, seen with its axes permuted."""
    before = torch.full(
        (physical.numel() + 2 * GUARD,), float("nan"), dtype=physical.dtype, device=physical.device
    )
    before[GUARD : GUARD + physical.numel()] = physical.flatten()
    storage = before.to(device, copy=True, non_blocking=True)
    seen = storage[GUARD : GUARD + physical.numel()].view(physical.shape)
    return Placed(name, seen.permute(axes), storage, before)


def placed_small(name: str, values: Tensor, device: str) -> Placed:
    """An input beside q, k and v (lengths, positions, a mask, a bias), watched for writes."""
    before = values.contiguous()
    held = before.to(device, copy=True, non_blocking=True)
    return Placed(name, held, held, before)


def guarded_empty(
    size: Any, strides: Any, dtype: torch.dtype, device: Any
) -> tuple[Tensor, Tensor]:
    """An unwritten output of poison between guards: (its view, its whole storage)."""
    extent = (
        1 + sum((n - 1) * s for n, s in zip(size, strides, strict=True)) if 0 not in size else 0
    )
    storage = poison_like(extent + 2 * GUARD, dtype, device)
    return storage.as_strided(size, strides, GUARD), storage


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is untyped
    """Gives every `torch.empty*` of numbers inside it poison and guard zones."""

    # Higher-order operators, such as FlexAttention, pass through.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # By default every call below is wrapped, which costs more than most operators here, and
        # two seconds of imports. Nothing is compiled under a watch (`Capabilities.compiled`).
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _allocating() and isinstance(made, Tensor) and made.dtype in _POISON_BITS:
            view, storage = guarded_empty(made.shape, made.stride(), made.dtype, made.device)
            self.storages.append(storage)
            return view
        return made

    def owns(self, tensor: Tensor) -> bool:
        """Whether *tensor* lies in memory that was allocated under this watch."""
        where = tensor.untyped_storage().data_ptr()
        return any(s.untyped_storage().data_ptr() == where for s in self.storages)

    def check(self) -> None:
        """Raise `OutOfBounds` if a guard zone was written to."""
        check_guards(*self.storages)


def check_guards(*storages: Tensor) -> None:
    """Raise `OutOfBounds` if a guard zone of *storages* no longer holds poison."""
    zones = [zone for s in storages for zone in (s[:GUARD], s[-GUARD:])]
    # One question to the device for all of them.
    if zones and not bool(torch.stack([is_poison(zone).all() for zone in zones]).all()):
        for storage in storages:
            _check_guards(storage)


def _check_guards(storage: Tensor) -> None:
    for side, zone in (("before", storage[:GUARD]), ("after", storage[-GUARD:])):
        if bool((hit := ~is_poison(zone)).any()):
            places = hit.nonzero()
            distance = GUARD - int(places[-1]) if side == "before" else 1 + int(places[0])
            raise OutOfBounds(
                f"{int(hit.sum())} elements {side} an allocation of the kernel were written, "
                f"the nearest at distance {distance}; expected none"
            )


def check_written(name: str, out: Tensor) -> None:
    """Raise `NotWritten` if an element of *out* still holds poison."""
    if out.dtype in _POISON_BITS and bool((left := is_poison(out)).any()):
        index = tuple(int(i) for i in left.nonzero()[0])
        raise NotWritten(
            f"{name}{list(index)} was never written: it holds the poison it was allocated with "
            f"({int(left.sum())} of {left.numel()} elements); expected every element written"
        )
