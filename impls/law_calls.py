"""What a law is asked for: malformed calls raise ValueError, unsupported ones `Unsupported`.

Shared by the bundled kernels' launchers. Laws and oracles do not use it.
"""

import math

import torch
from torch import Tensor

from kernelassay.impls.contract import Capabilities, LawCall, Unsupported
from kernelassay.impls.logits import MAPS
from kernelassay.oracle.formats import name_of

__all__ = ["check_law", "refuse_law"]


def check_law(call: LawCall) -> None:
    """A `ValueError` that names the argument, unless *call* is well formed.

    Each row must have a token that mask and logits leave, and no NaN or +inf among those left.
    """
    logits = call.logits
    _expect(logits.ndim == 2, "logits", f"{logits.ndim} axes", "2: [R, V]")
    _expect(logits.dtype.is_floating_point, "logits", str(logits.dtype), "floating point")
    V = logits.shape[1]
    _expect(V > 0, "logits", "V = 0", "V of 1 or more")
    if call.mask is not None:
        _check_tensor("mask", call.mask, tuple(logits.shape), torch.bool, logits)
    _check_row("temperature", call.temperature, torch.float32, logits, 0.0, math.inf)
    _check_row("top_k", call.top_k, torch.int32, logits, 0, V)
    _check_row("top_p", call.top_p, torch.float32, logits, 0.0, 1.0)
    _check_row("min_p", call.min_p, torch.float32, logits, 0.0, 1.0, closed=True)
    left = logits if call.mask is None else logits.masked_fill(~call.mask, -math.inf)
    top = left.float().amax(1)  # NaN where a token that is left has it
    bad = top.isnan() | (top == math.inf)
    _expect(not bad.any(), "logits", f"NaN or +inf in row {_first(bad)}", "numbers and -inf")
    bad = top == -math.inf
    _expect(not bad.any(), "logits", f"no token left in row {_first(bad)}", "one or more")


def _check_tensor(
    name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, logits: Tensor
) -> None:
    _expect(tuple(x.shape) == shape, name, f"shape {tuple(x.shape)}", f"{shape}, as logits")
    _expect(x.dtype == dtype, name, str(x.dtype), str(dtype))
    _expect(x.device == logits.device, name, str(x.device), f"{logits.device}, as logits")


def _check_row(
    name: str,
    x: Tensor | None,
    dtype: torch.dtype,
    logits: Tensor,
    low: float,
    high: float,
    closed: bool = False,
) -> None:
    """One finite number for each row, above *low* (or equal to it, if *closed*), up to *high*."""
    if x is None:
        return
    _check_tensor(name, x, tuple(logits.shape[:1]), dtype, logits)
    good = ((x > low) | ((x == low) & closed)) & (x <= high) & x.isfinite()
    if not good.all():
        row = _first(~good)
        bounds = f"{'at least' if closed else 'above'} {low}"
        bounds += f", at most {high}" if high < math.inf else " and finite"
        raise ValueError(f"{name}: got {x[row].item()} in row {row}, expected {bounds}")


def _first(bad: Tensor) -> int:
    """The first row that is; 0 if none is."""
    return int(bad.int().argmax()) if len(bad) else 0


def _expect(good: bool | Tensor, name: str, got: str, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}: got {got}, expected {expected}")


def refuse_law(name: str, capabilities: Capabilities, call: LawCall) -> None:
    """An `Unsupported` if *call* needs a dtype or a map not in *capabilities*."""
    dtype = name_of(call.logits.dtype)
    if dtype not in capabilities.dtypes:
        raise Unsupported(f"{name}: dtype {dtype}; it takes {', '.join(capabilities.dtypes)}")
    for what in MAPS:
        if getattr(call, what) is not None and f"law.{what}" not in capabilities.supports:
            raise Unsupported(f"{name}: {what}; it does not offer law.{what}")
