"""What calls of a KV cache must be: malformed ones raise ValueError before anything is changed.

Shared by the bundled caches. Laws and oracles do not use it.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from kernelassay.impls.caching import CacheSpec

__all__ = ["check_append", "check_cut", "check_spec", "check_steps"]


def check_spec(spec: CacheSpec) -> None:
    """Sizes are positive, heads fit, a page size comes with a pool."""
    for name in ("R", "Hq", "Hkv", "D", "Dv", "most"):
        _expect(getattr(spec, name) > 0, name, getattr(spec, name), "above 0")
    _expect(spec.Hq % spec.Hkv == 0, "Hq", spec.Hq, f"a multiple of Hkv = {spec.Hkv}")
    for name in ("page", "window"):
        n = getattr(spec, name)
        _expect(n is None or n > 0, name, n, "above 0, or None")
    _expect(spec.pages is None or spec.pages >= 0, "pages", spec.pages, "0 or more, or None")
    _expect((spec.page is None) == (spec.pages is None), "pages", spec.pages, "given with page")
    _expect(spec.spare >= 0, "spare", spec.spare, "0 or more")


def check_append(
    spec: CacheSpec, lengths: Sequence[int], k: Tensor, v: Tensor, offsets: Tensor
) -> list[int]:
    """How many rows each request gets."""
    for name, x, size in (("k", k, spec.D), ("v", v, spec.Dv)):
        shape = (k.shape[0], spec.Hkv, size)
        _expect(tuple(x.shape) == shape, name, f"shape {tuple(x.shape)}", str(shape))
        _expect(x.dtype == spec.dtype, name, x.dtype, str(spec.dtype))
    good = tuple(offsets.shape) == (spec.R + 1,) and not offsets.is_floating_point()
    _expect(good, "offsets", f"{offsets.dtype} {tuple(offsets.shape)}", f"{spec.R + 1} integers")
    at = offsets.tolist()
    counts = [b - a for a, b in pairwise(at)]
    good = at[0] == 0 and min(counts) >= 0 and at[-1] <= k.shape[0]
    _expect(good, "offsets", at, f"rising numbers from 0 to at most {k.shape[0]}")
    for r, n in enumerate(counts):
        _expect(lengths[r] + n <= spec.most, "offsets", at, f"at most {spec.most} entries of {r}")
    return counts


def check_cut(lengths: Sequence[int], wanted: Tensor) -> list[int]:
    """The lengths that are to stay."""
    kept = wanted.tolist() if not wanted.is_floating_point() else []
    good = len(kept) == len(lengths) and all(
        0 <= n <= L for n, L in zip(kept, lengths, strict=True)
    )
    _expect(good, "lengths", wanted.tolist(), f"a whole number for each, at most {[*lengths]}")
    return [int(n) for n in kept]


def check_steps(
    lengths: Sequence[int],
    request: int,
    start: int,
    kept: Sequence[int],
    child: int | None = None,
) -> None:
    """The request (and the child) exists, the entries from *start* on that stay are its own."""
    for name, r in (("request", request), ("child", request if child is None else child)):
        _expect(0 <= r < len(lengths), name, r, f"0 to {len(lengths) - 1}")
    _expect(child != request, "child", child, "another request")
    L = lengths[request]
    _expect(0 <= start <= L, "start", start, f"0 to {L}")
    rising = all(a < b for a, b in pairwise(kept))
    good = rising and all(0 <= i < L - start for i in kept)
    _expect(good, "kept", [*kept], f"rising numbers below {L - start}")


def _expect(good: bool, name: str, got: object, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}: got {got}, expected {expected}")
