"""Triton's CPU interpreter computes as a GPU would, once `mend` has run.

Triton keeps bfloat16 as its bits in uint16 arrays. Its interpreter forgets that in places (found
in 3.6 and 3.9): a dot, a sum or a comparison works on the bits as integers, casts from float32
truncate, casts from other types convert the number and not the format. The mend wraps the four
methods of the interpreter's builder that numbers pass through, for every kernel of the process,
so that a kernel needs no branch of its own and a CPU runs the text that a GPU runs.

It also spends a third of its time on what never changes: every call of a device function patches
`triton.language` anew, every tensor looks its numpy type up in a table built for the occasion.
The mend does the first once for each module and launch, and remembers the second.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernelassay.impls.contract import Unsupported

__all__ = ["interpreting", "launching", "mend", "refuse_elsewhere"]


def interpreting() -> bool:
    """True if Triton's kernels run in its interpreter: TRITON_INTERPRET=1 when it was imported."""
    try:
        import triton.language as tl
        from triton.runtime.jit import JITFunction
    except ImportError:
        return False
    return not isinstance(tl.cdiv, JITFunction)  # its own functions were decorated at import


def refuse_elsewhere(name: str, place: torch.device) -> None:
    """Raise `Unsupported` where Triton cannot run on *place*, where the call's tensors are."""
    if place.type != "cuda" and not interpreting():
        raise Unsupported(
            f"{name}: it does not run on {place}, where Triton needs its interpreter; "
            f"set TRITON_INTERPRET=1 before Triton is imported"
        )


@contextmanager
def launching(tensor: Tensor) -> Iterator[None]:
    """Around a launch: *tensor*'s device is current; numpy is silent, log2(0) is meant.

    Where warnings are errors, a maximum over a row of NaN would raise otherwise.
    """
    if interpreting():
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    else:
        with torch.cuda.device(tensor.device):
            yield


def mend() -> None:
    """Wrap the interpreter's arithmetic where it is wrong; once, and only if it interprets."""
    if not interpreting():
        return
    from triton.runtime import interpreter

    for name in ("create_dot", *faults()):
        _wrap(interpreter.InterpreterBuilder, name, _WRAPS[name])
    _wrap(interpreter, "_patch_lang_tensor", _index)
    _wrap(interpreter, "_get_np_dtype", _remembered)
    if hasattr(interpreter, "_LangPatchScope"):  # a launch undoes what it patched, and no more
        _wrap(interpreter.GridExecutor, "__call__", _launch)
        _wrap(interpreter, "_patch_lang", _once_a_launch)


def _wrap(owner: Any, name: str, wrap: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    if not hasattr(original, "mended"):
        wrapped = wrap(original)
        wrapped.mended = original
        setattr(owner, name, wrapped)


def faults() -> tuple[str, ...]:
    """Methods of the interpreter's builder that get bfloat16 wrong; none once it is mended."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder()
    three = interpreter.TensorHandle(narrow(np.full((1, 1), 3.0)), tl.bfloat16)
    zero = interpreter.TensorHandle(np.zeros((1, 1), np.float32), tl.float32)
    above_tie = interpreter.TensorHandle(np.full((1, 1), 1 + 2**-8 + 2**-12, "f4"), tl.float32)
    tried: dict[str, tuple[Callable[[], Any], float]] = {
        "create_dot": (lambda: builder.create_dot(three, three, zero, None, 0).data, 9.0),
        "cast_impl": (lambda: widen(builder.cast_impl(above_tie, tl.bfloat16).data), 1 + 2**-7),
        "binary_op": (lambda: widen(builder.binary_op(three, three, np.add).data), 6.0),
        "unary_op": (lambda: widen(builder.unary_op(three, np.negative).data), -3.0),
    }
    return tuple(name for name, (got, expected) in tried.items() if got().item() != expected)


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits as float32; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(numbers: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16 bits, to nearest and ties to even; NaN stays NaN."""
    numbers = np.ascontiguousarray(numbers, dtype=np.float32).reshape(np.shape(numbers))
    bits = numbers.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits.astype(np.uint64) + np.uint64(0x7FFF) + odd) >> np.uint64(16)
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype(np.uint16)


def _dot(original: Callable[..., Any]) -> Any:
    """Dots of 16-bit operands are summed in float64 and rounded once.

    The interpreter adds float16 products one by one in float32, which for long equal-signed sums
    is worse than matrix units are; so both 16-bit formats are done here.
    """

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if not all(_is(x, "bf16", "fp16") for x in (a, b)):
            return original(self, a, b, d, *rest)
        total = np.matmul(*(_numbers(x).astype(np.float64) for x in (a, b))) + _numbers(d)
        return type(d)(_like(d, total.astype(np.float32)), d.dtype.scalar)

    return create_dot


def _cast(original: Callable[..., Any]) -> Any:
    """Casts to and from bfloat16 convert through float32."""

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        dst = dst_type.scalar
        if _is(src, "bf16") and not dst.is_bf16():
            return original(self, type(src)(widen(src.data), _float32()), dst)
        if dst.is_bf16() and not _is(src, "bf16"):
            return type(src)(narrow(src.data.astype(np.float32)), dst)
        return original(self, src, dst_type)

    return cast_impl


def _elementwise(original: Callable[..., Any]) -> Any:
    """Sums, products, negations and comparisons of bfloat16 are those of its numbers."""

    def operate(self: Any, first: Any, *rest: Any) -> Any:
        *others, op = rest
        if not _is(first, "bf16"):
            return original(self, first, *rest)
        result = op(*(_numbers(x) for x in (first, *others)))
        return type(first)(_like(first, result), first.dtype.scalar)

    return operate


def _index(original: Callable[..., Any]) -> Any:
    """A scalar is an index: Triton 3.6 asks int() of an array with an axis; numpy 2.4 refuses."""

    def patch(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    return patch


_patched: set[int] = set()
"""Modules for whose functions the running launch has patched the language, by their globals."""


def _launch(original: Callable[..., Any]) -> Any:
    """A launch, which undoes its first patch when it ends, finds nothing patched."""

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        _patched.clear()
        try:
            original(self, *args, **kwargs)
        finally:
            _patched.clear()

    return call


def _once_a_launch(original: Callable[..., Any]) -> Any:
    """Within a launch the language is patched once for all functions of one module."""

    def patch(fn: Any) -> Any:
        from triton.runtime import interpreter

        module = id(fn.__globals__)
        if module in _patched:
            return interpreter._LangPatchScope()
        _patched.add(module)
        return original(fn)

    return patch


def _remembered(original: Callable[..., Any]) -> Any:
    """The numpy type of a Triton type, looked up once for each scalar that is no pointer."""
    known: dict[str, Any] = {}

    def get_np_dtype(tt_dtype: Any) -> Any:
        scalar = tt_dtype.scalar
        if scalar.is_ptr():
            return original(scalar)
        if scalar.name not in known:
            known[scalar.name] = original(scalar)
        return known[scalar.name]

    return get_np_dtype


_WRAPS = {
    "create_dot": _dot,
    "cast_impl": _cast,
    "binary_op": _elementwise,
    "unary_op": _elementwise,
}


def _is(handle: Any, *names: str) -> bool:
    return handle.dtype.scalar.name in names


def _numbers(handle: Any) -> np.ndarray:
    return widen(handle.data) if _is(handle, "bf16") else handle.data


def _like(handle: Any, numbers: np.ndarray) -> np.ndarray:
    """*numbers* as *handle* stores them; truth values stay so."""
    if numbers.dtype == np.bool_:
        return numbers
    return narrow(numbers) if _is(handle, "bf16") else numbers.astype(handle.data.dtype)


def _float32() -> Any:
    import triton.language as tl

    return tl.float32
