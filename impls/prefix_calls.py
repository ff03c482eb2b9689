"""What calls of a prefix cache must be: malformed ones raise ValueError before anything changes.

Shared by the bundled caches. Laws and oracles do not use it.
"""

from collections.abc import Sequence

from torch import Tensor

from kernelassay.impls.prefixes import PrefixSpec

__all__ = ["check_append", "check_begin", "check_length", "check_running", "check_spec", "expect"]


def check_spec(spec: PrefixSpec) -> None:
    """Sizes are positive."""
    for name in ("R", "Hkv", "D", "Dv", "block", "blocks", "most"):
        expect(getattr(spec, name) > 0, name, getattr(spec, name), "above 0")


def check_begin(
    spec: PrefixSpec, runs: Sequence[bool], request: int, tokens: Sequence[int]
) -> None:
    """The request is there and does not run; its prompt fits."""
    expect(0 <= request < spec.R, "request", request, f"0 to {spec.R - 1}")
    expect(not runs[request], "request", request, "one that does not run")
    expect(0 < len(tokens) <= spec.most, "tokens", len(tokens), f"1 to {spec.most} of them")


def check_running(spec: PrefixSpec, runs: Sequence[bool], request: int) -> None:
    """The request is there and runs."""
    expect(0 <= request < spec.R, "request", request, f"0 to {spec.R - 1}")
    expect(runs[request], "request", request, "one that runs")


def check_append(
    spec: PrefixSpec, length: int, tokens: Sequence[int], k: Tensor, v: Tensor
) -> None:
    """An entry for each token, and room for them."""
    n = len(tokens)
    for name, x, size in (("k", k, spec.D), ("v", v, spec.Dv)):
        shape = (n, spec.Hkv, size)
        expect(tuple(x.shape) == shape, name, f"shape {tuple(x.shape)}", str(shape))
        expect(x.dtype == spec.dtype, name, x.dtype, str(spec.dtype))
    expect(length + n <= spec.most, "tokens", length + n, f"at most {spec.most} of a request")


def check_length(committed: int, held: int, length: int) -> None:
    """What stays, or becomes final, is between what is final and what is there."""
    expect(committed <= length <= held, "length", length, f"{committed} to {held}")


def expect(good: bool, name: str, got: object, expected: str) -> None:
    """A ValueError unless *good*."""
    if not good:
        raise ValueError(f"{name}: got {got}, expected {expected}")
