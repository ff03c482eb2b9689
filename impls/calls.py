"""What a call asks for: malformed ones raise ValueError, unsupported ones `Unsupported`.

Shared by the bundled kernels' launchers. Laws and oracles do not use it.
"""

import math

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendCall, Capabilities, Unsupported
from kernelassay.oracle.formats import name_of
from kernelassay.oracle.scoring import check_scoring

__all__ = ["check_attend", "features_used", "refuse_unsupported"]


def check_attend(call: AttendCall) -> None:
    """A `ValueError` that names the argument, unless *call* is well formed."""
    for name, x, axes in (
        ("q", call.q, "[B, Hq, Tq, D]"),
        ("k", call.k, "[B, Hkv, Tk, D]"),
        ("v", call.v, "[B, Hkv, Tk, Dv]"),
    ):
        _expect(x.ndim == 4, name, f"{x.ndim} axes", f"4: {axes}")
        _expect(x.dtype == call.q.dtype, name, str(x.dtype), f"{call.q.dtype}, as q")
        _expect(x.device == call.q.device, name, str(x.device), f"{call.q.device}, as q")
    B, Hq, _, D = call.q.shape
    _, Hkv, Tk, _ = call.k.shape
    _expect(D > 0, "q", "D = 0", "D of 1 or more")
    _expect(tuple(call.k.shape) == (B, Hkv, Tk, D), "k", _shape(call.k), f"B = {B} and D = {D}")
    _expect(call.v.shape[:3] == (B, Hkv, Tk), "v", _shape(call.v), f"{(B, Hkv, Tk)} before Dv")
    _expect(Hkv > 0 and Hq % Hkv == 0, "q", f"{Hq} heads", f"a multiple of the {Hkv} of k")
    scale = call.scale
    _expect(scale is None or math.isfinite(scale), "scale", repr(scale), "a finite number or None")
    _check_visibility(call)
    _check_scoring(call)


def _check_visibility(call: AttendCall) -> None:
    see = call.visibility
    B, Hq, Tq, _ = call.q.shape
    Tk = call.k.shape[2]
    good = len(see.window) == 2 and all(n is None or n >= 0 for n in see.window)
    _expect(good, "window", repr(see.window), "(left, right), each None or at least 0")
    _expect(see.sinks >= 0, "sinks", str(see.sinks), "0 or more")
    if (mask := see.mask) is not None:
        _expect(mask.dtype == torch.bool, "mask", str(mask.dtype), "torch.bool")
        _expect(mask.device == call.q.device, "mask", str(mask.device), f"{call.q.device}, as q")
        full = (B, Hq, Tq, Tk)
        axes = tuple(mask.shape)
        fits = len(axes) <= 4 and all(
            n in (1, want) for n, want in zip(axes[::-1], full[::-1], strict=False)
        )
        _expect(fits, "mask", f"shape {axes}", f"one that broadcasts to {full}")
    if (lengths := see.lengths) is not None:
        _check_integers("lengths", lengths, (B,), call.q.device)
        good = bool(((lengths >= 0) & (lengths <= Tk)).all())
        _expect(good, "lengths", str(lengths.tolist()), f"0 to Tk = {Tk}")
    if see.causal == "positions":
        for name, x, length in (
            ("q_positions", see.q_positions, Tq),
            ("k_positions", see.k_positions, Tk),
        ):
            if x is None:
                raise ValueError(f"{name}: got None, expected a tensor with causal='positions'")
            _check_integers(name, x, (B, length), call.q.device)


def _check_scoring(call: AttendCall) -> None:
    shape = (*call.q.shape[:3], call.k.shape[2])
    check_scoring(call.scoring, shape)
    for name in ("alibi", "bias", "sink_logits"):
        if (x := getattr(call.scoring, name)) is not None:
            _expect(x.device == call.q.device, name, str(x.device), f"{call.q.device}, as q")


def _check_integers(name: str, x: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    _expect(tuple(x.shape) == shape, name, _shape(x), str(shape))
    _expect(x.dtype in (torch.int32, torch.int64), name, str(x.dtype), "int64 or int32")
    _expect(x.device == device, name, str(x.device), f"{device}, as q")


def _expect(good: bool, name: str, got: str, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}: got {got}, expected {expected}")


def _shape(x: Tensor) -> str:
    return f"shape {tuple(x.shape)}"


def features_used(call: AttendCall) -> frozenset[str]:
    """The features of the contract that *call* needs; memory layout is not looked at."""
    see, scoring = call.visibility, call.scoring
    Hq, Tq, D = call.q.shape[1:]
    Hkv, Tk = call.k.shape[1:3]
    used = {
        "attend": True,
        f"causal.{see.causal}": see.causal != "none",
        "unequal_lengths": Tq != Tk,
        "more_queries": Tk < Tq,
        "no_keys": Tk == 0,
        "no_queries": Tq == 0,
        "value_size": call.v.shape[-1] != D,
        "window": see.window != (None, None),
        "sink_tokens": see.sinks > 0,
        "lengths": see.lengths is not None,
        "mask": see.mask is not None,
        "gqa": Hq != Hkv,
        "scale": call.scale not in (None, 1.0 / math.sqrt(D)),
        "scale.nonpositive": call.scale is not None and call.scale <= 0,
        "softcap": scoring.softcap is not None,
        "alibi": scoring.alibi is not None,
        "bias": scoring.bias is not None,
        "bias.minus_infinity": _holds_minus_infinity(scoring.bias),
        "sink_logits": scoring.sink_logits is not None,
    }
    return frozenset(name for name, needed in used.items() if needed)


def _holds_minus_infinity(bias: Tensor | None) -> bool:
    return bias is not None and bool((bias == -math.inf).any())


def refuse_unsupported(name: str, capabilities: Capabilities, call: AttendCall) -> None:
    """An `Unsupported` if *call* needs a dtype or a feature that *capabilities* do not list."""
    dtype = name_of(call.q.dtype)
    if dtype not in capabilities.dtypes:
        raise Unsupported(f"{name}: dtype {dtype}; it takes {', '.join(capabilities.dtypes)}")
    if missing := features_used(call) - capabilities.supports:
        raise Unsupported(f"{name}: the call needs {', '.join(sorted(missing))}")
