"""What calls of a store of recurrent states must be: malformed ones raise ValueError first.

Shared by the bundled stores. Laws and oracles do not use it.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from kernelassay.impls.recurrences import StateSpec

__all__ = ["check_append", "check_kept", "check_request", "check_spec"]


def check_spec(spec: StateSpec) -> None:
    """Sizes are positive; a tail and drafts may be none."""
    for name in ("R", "H", "D"):
        _expect(getattr(spec, name) > 0, name, getattr(spec, name), "above 0")
    for name in ("tail", "drafts"):
        _expect(getattr(spec, name) >= 0, name, getattr(spec, name), "0 or more")


def check_append(spec: StateSpec, a: Tensor, b: Tensor, offsets: Tensor) -> list[int]:
    """How many rows each request gets."""
    for name, x in (("a", a), ("b", b)):
        shape = (a.shape[0], spec.H, spec.D)
        _expect(tuple(x.shape) == shape, name, f"shape {tuple(x.shape)}", str(shape))
        _expect(x.dtype == spec.dtype, name, x.dtype, str(spec.dtype))
    good = tuple(offsets.shape) == (spec.R + 1,) and not offsets.is_floating_point()
    _expect(good, "offsets", f"{offsets.dtype} {tuple(offsets.shape)}", f"{spec.R + 1} integers")
    at = offsets.tolist()
    counts = [high - low for low, high in pairwise(at)]
    good = at[0] == 0 and min(counts) >= 0 and at[-1] <= a.shape[0]
    _expect(good, "offsets", at, f"rising numbers from 0 to at most {a.shape[0]}")
    return counts


def check_kept(spec: StateSpec, new: Sequence[int] | None, kept: Tensor) -> list[int]:
    """How many of its new tokens each request drops."""
    if new is None:
        raise ValueError("rollback: got no append right before it, expected one")
    _expect(tuple(kept.shape) == (spec.R,), "kept", f"shape {tuple(kept.shape)}", f"({spec.R},)")
    dropped = [n - k for n, k in zip(new, kept.tolist(), strict=True)]
    good = all(0 <= d <= min(n, spec.drafts) for n, d in zip(new, dropped, strict=True))
    _expect(good, "kept", kept.tolist(), f"of {[*new]} all but {spec.drafts} or fewer")
    return dropped


def check_request(spec: StateSpec, *requests: int) -> None:
    """The requests are there, and apart."""
    for r in requests:
        _expect(0 <= r < spec.R, "request", r, f"0 to {spec.R - 1}")
    _expect(len({*requests}) == len(requests), "child", requests[-1], "another request")


def _expect(good: bool, name: str, got: object, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}: got {got}, expected {expected}")
