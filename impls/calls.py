"""What a call asks for: malformed ones raise ValueError, unsupported ones `Unsupported`.

Shared by the bundled kernels' launchers. Laws and oracles do not use it.
"""

import math

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendCall, Capabilities, Pages, Unsupported
from kernelassay.oracle.formats import name_of
from kernelassay.oracle.scoring import check_scoring

__all__ = ["check_attend", "features_used", "key_heads", "refuse_unsupported"]

AXES = {
    "": "[B, Hkv, Tk, {}]",
    "NHD": "[pages, size, Hkv, {}]",
    "HND": "[pages, Hkv, size, {}]",
}
"""What k and v are, by the layout of their pages."""


def check_attend(call: AttendCall) -> None:
    """A `ValueError` that names the argument, unless *call* is well formed."""
    if call.pages is not None:
        _check_page_format(call.pages)
    axes = AXES["" if call.pages is None else call.pages.layout]
    for name, x, expected in (
        ("q", call.q, "[B, Hq, Tq, D]"),
        ("k", call.k, axes.format("D")),
        ("v", call.v, axes.format("Dv")),
    ):
        _expect(x.ndim == 4, name, f"{x.ndim} axes", f"4: {expected}")
        _expect(x.dtype == call.q.dtype, name, str(x.dtype), f"{call.q.dtype}, as q")
        _expect(x.device == call.q.device, name, str(x.device), f"{call.q.device}, as q")
    _check_sizes(call)
    scale, splits = call.scale, call.splits
    _expect(scale is None or math.isfinite(scale), "scale", repr(scale), "a finite number or None")
    good = splits is None or _counts(splits)
    _expect(good, "splits", repr(splits), "a whole number above 0, or None")
    if call.pages is not None:
        _check_table_format(call, call.pages)
    _check_visibility(call)
    _check_scoring(call)
    if call.pages is not None:
        _check_table(call, call.pages)


def _check_sizes(call: AttendCall) -> None:
    """q, k and v fit together."""
    B, Hq, _, D = call.q.shape
    Hkv, before = key_heads(call), tuple(call.k.shape[:3])
    _expect(D > 0, "q", "D = 0", "D of 1 or more")
    if (pages := call.pages) is None:
        good, wanted = call.k.shape[0] == B, f"B = {B}"
    else:
        slots = call.k.shape[1 if pages.layout == "NHD" else 2]
        good, wanted = slots == pages.size, f"size = {pages.size}"
    _expect(good and call.k.shape[3] == D, "k", _shape(call.k), f"{wanted} and D = {D}")
    _expect(call.v.shape[:3] == before, "v", _shape(call.v), f"{before} before Dv")
    _expect(Hkv > 0 and Hq % Hkv == 0, "q", f"{Hq} heads", f"a multiple of the {Hkv} of k")


def _check_page_format(pages: Pages) -> None:
    layouts = [name for name in AXES if name]
    good = pages.layout in layouts
    _expect(good, "pages.layout", repr(pages.layout), f"one of {', '.join(layouts)}")
    _expect(_counts(pages.size), "pages.size", repr(pages.size), "a whole number above 0")


def _check_table_format(call: AttendCall, pages: Pages) -> None:
    B, table, device = call.q.shape[0], pages.table, call.q.device
    good = table.ndim == 2 and table.shape[0] == B and table.dtype == torch.int32
    got, wanted = f"{table.dtype} {tuple(table.shape)}", f"torch.int32 ({B}, most pages)"
    _expect(good, "pages.table", got, wanted)
    _expect(table.device == device, "pages.table", str(table.device), f"{device}, as q")
    good = call.visibility.lengths is not None
    _expect(good, "lengths", "None", "a tensor, since keys come in pages")


def _check_table(call: AttendCall, pages: Pages) -> None:
    """Each page that holds a key of a request is one of the pool's."""
    first = torch.arange(pages.table.shape[1], device=call.q.device) * pages.size
    used = first < call.visibility.lengths[:, None]  # type: ignore[index]  # given: looked at
    outside = used & ((pages.table < 0) | (pages.table >= call.k.shape[0]))
    for b, n in outside.nonzero().tolist()[:1]:
        got = f"{int(pages.table[b, n])} as page {n} of request {b}"
        _expect(False, "pages.table", got, f"0 to {call.k.shape[0] - 1}")


def _check_visibility(call: AttendCall) -> None:
    see = call.visibility
    B, Hq, Tq, _ = call.q.shape
    good = len(see.window) == 2 and all(n is None or n >= 0 for n in see.window)
    _expect(good, "window", repr(see.window), "(left, right), each None or at least 0")
    _expect(see.sinks >= 0, "sinks", str(see.sinks), "0 or more")
    if (mask := see.mask) is not None:
        _expect(mask.dtype == torch.bool, "mask", str(mask.dtype), "torch.bool")
        _expect(mask.device == call.q.device, "mask", str(mask.device), f"{call.q.device}, as q")
        full = (B, Hq, Tq, _keys_of(call, mask))
        axes = tuple(mask.shape)
        fits = len(axes) <= 4 and all(
            n in (1, want) for n, want in zip(axes[::-1], full[::-1], strict=False)
        )
        _expect(fits, "mask", f"shape {axes}", f"one that broadcasts to {full}")
    if (lengths := see.lengths) is not None:
        _check_integers("lengths", lengths, (B,), call.q.device)
        most, name = call.k.shape[2], "Tk"
        if call.pages is not None:
            most, name = call.pages.table.shape[1] * call.pages.size, "slots"
        good = bool(((lengths >= 0) & (lengths <= most)).all())
        _expect(good, "lengths", str(lengths.tolist()), f"0 to {name} = {most}")
    if see.causal == "positions":
        for name, x in (("q_positions", see.q_positions), ("k_positions", see.k_positions)):
            if x is None:
                raise ValueError(f"{name}: got None, expected a tensor with causal='positions'")
            length = Tq if name == "q_positions" else _keys_of(call, x)
            _check_integers(name, x, (B, length), call.q.device)


def _check_scoring(call: AttendCall) -> None:
    bias = call.scoring.bias
    Tk = call.k.shape[2] if bias is None else _keys_of(call, bias)
    check_scoring(call.scoring, (*call.q.shape[:3], Tk))
    for name in ("alibi", "bias", "sink_logits"):
        if (x := getattr(call.scoring, name)) is not None:
            _expect(x.device == call.q.device, name, str(x.device), f"{call.q.device}, as q")


def _check_integers(name: str, x: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    _expect(tuple(x.shape) == shape, name, _shape(x), str(shape))
    _expect(x.dtype in (torch.int32, torch.int64), name, str(x.dtype), "int64 or int32")
    _expect(x.device == device, name, str(x.device), f"{device}, as q")


def _counts(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0


def _expect(good: bool, name: str, got: str, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}: got {got}, expected {expected}")


def _shape(x: Tensor) -> str:
    return f"shape {tuple(x.shape)}"


def key_heads(call: AttendCall) -> int:
    """Hkv, of tensors or pools."""
    return call.k.shape[2 if call.pages is not None and call.pages.layout == "NHD" else 1]


def _keys_of(call: AttendCall, x: Tensor) -> int:
    """What the last axis of *x* should be: Tk, which a call with pages does not say."""
    if call.pages is None:
        return call.k.shape[2]
    return x.shape[-1] if x.ndim else 1


def _most_keys(call: AttendCall) -> int:
    """Tk; with pages, the number of keys of the longest request."""
    lengths = call.visibility.lengths
    if call.pages is None or lengths is None:
        return call.k.shape[2]
    return int(lengths.max()) if lengths.numel() else 0


def features_used(call: AttendCall) -> frozenset[str]:
    """The features of the contract that *call* needs; memory layout is not looked at."""
    see, scoring = call.visibility, call.scoring
    Hq, Tq, D = call.q.shape[1:]
    Hkv, Tk = key_heads(call), _most_keys(call)
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
    """An `Unsupported` if *call* needs what *capabilities* do not list.

    That is a dtype, a form of the keys (pages, splits) or a feature.
    """
    dtype = name_of(call.q.dtype)
    if dtype not in capabilities.dtypes:
        raise Unsupported(f"{name}: dtype {dtype}; it takes {', '.join(capabilities.dtypes)}")
    came = "no pages" if call.pages is None else f"{call.pages.layout} pages"
    takes = f"{capabilities.page_layout} pages" if capabilities.pages else "no pages"
    if came != takes:
        raise Unsupported(f"{name}: keys come in {came}; it takes {takes}")
    if call.splits is not None and not capabilities.splits:
        raise Unsupported(f"{name}: splits = {call.splits}; it has no splits")
    if missing := features_used(call) - capabilities.supports:
        raise Unsupported(f"{name}: the call needs {', '.join(sorted(missing))}")
