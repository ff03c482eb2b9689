"""What a merge is asked for: malformed calls raise ValueError, unsupported ones `Unsupported`.

Shared by launchers and adapters. Laws and oracles do not use it.
"""

from typing import Literal

import torch
from torch import Tensor

from kernelassay.impls.contract import Capabilities, MergeCall, Unsupported
from kernelassay.oracle.formats import name_of

__all__ = ["check_merge", "refuse_merge", "rows_of"]


def check_merge(call: MergeCall, state: Literal["out_lse", "mlu"]) -> None:
    """A `ValueError` that names the argument, unless *call* is well formed for this form."""
    outs = call.outs
    _expect(outs.ndim == 5, "outs", f"{outs.ndim} axes", "5: [n, B, H, T, Dv]")
    _expect(outs.dtype.is_floating_point, "outs", str(outs.dtype), "floating point")
    _expect(outs.shape[0] > 0, "outs", "no part", "n of 1 or more")
    _expect(outs.shape[4] > 0, "outs", "Dv = 0", "Dv of 1 or more")
    _check_scalars("lses", call.lses, outs)
    if state == "mlu":
        if call.sums is None:
            raise ValueError("sums: got None, expected a tensor beside u and m")
        _check_scalars("sums", call.sums, outs)
    else:
        _expect(call.sums is None, "sums", "a tensor", "None: parts are (out, lse)")


def _check_scalars(name: str, x: Tensor, outs: Tensor) -> None:
    """One number for each row of each part."""
    shape, wanted = tuple(x.shape), tuple(outs.shape[:4])
    _expect(shape == wanted, name, f"shape {shape}", f"{wanted}, as outs without Dv")
    _expect(x.dtype == torch.float32, name, str(x.dtype), "torch.float32")
    _expect(x.device == outs.device, name, str(x.device), f"{outs.device}, as outs")


def _expect(good: bool, name: str, got: str, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}: got {got}, expected {expected}")


def refuse_merge(name: str, capabilities: Capabilities, call: MergeCall) -> None:
    """An `Unsupported` if *call* needs a dtype or a number of parts not in *capabilities*."""
    dtype, n = name_of(call.outs.dtype), call.outs.shape[0]
    if dtype not in capabilities.dtypes:
        raise Unsupported(f"{name}: dtype {dtype}; it takes {', '.join(capabilities.dtypes)}")
    if n != 2 and "merge.many" not in capabilities.supports:
        raise Unsupported(f"{name}: {n} part{'s' * (n > 1)}; it merges two")


def rows_of(x: Tensor, library: str) -> Tensor:
    """*x* [B, T, ...] as the rows [B x T, ...] that *library* takes; `Unsupported` for a copy."""
    if not x.is_contiguous():
        raise Unsupported(f"{library}: strides {x.stride()}; parts must be contiguous")
    return x.flatten(0, 1)
