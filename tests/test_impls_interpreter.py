"""Triton's interpreter computes bfloat16 as a GPU would, once it is mended."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from kernelassay.impls import interpreter

if not interpreter.interpreting():
    pytest.skip("needs TRITON_INTERPRET=1 before Triton is imported", allow_module_level=True)

import triton
import triton.language as tl

interpreter.mend()


@triton.jit
def cast_kernel(X, Y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Y + at, tl.load(X + at).to(Y.dtype.element_ty))


@triton.jit
def dot_kernel(A, B, C, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    c = tl.dot(tl.load(A + m * K + k[None, :]), tl.load(B + k[:, None] * N + n[None, :]))
    tl.store(C + m * N + n[None, :], c)


@triton.jit
def arithmetic_kernel(X, Y, OUT, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(X + at)
    y = tl.load(Y + at)
    tl.store(OUT + at, x * y + x)
    tl.store(OUT + N + at, -x)
    tl.store(OUT + 2 * N + at, tl.where(x < y, x, y))


def in_new_process(code: str, interpreted: bool = True) -> str:
    """What *code* prints in a process of its own."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpreted:
        env["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    y = torch.empty_like(x, dtype=dtype)
    with interpreter.launching(x):
        cast_kernel[(1,)](x, y, N=x.numel())
    return y


@pytest.fixture(scope="module")
def unmended() -> list[str]:
    """What a fresh interpreter gets wrong."""
    code = "from kernelassay.impls.interpreter import faults; print(*faults())"
    return in_new_process(code).split()


@pytest.mark.parametrize("name", ["create_dot", "cast_impl", "binary_op", "unary_op"])
def test_the_mend_is_still_needed(name: str, unmended: list[str]) -> None:
    """An unmended interpreter gets each wrapped method wrong; once it does not, a wrap can go."""
    assert name in unmended, (
        f"Triton {triton.__version__} computes bfloat16 {name} rightly, unmended: its wrap in "
        f"impls/interpreter.py can go once no supported version needs it"
    )


def test_nothing_is_wrong_after_the_mend() -> None:
    """The mended methods pass the probes that found them."""
    assert interpreter.faults() == ()


def test_mending_twice_wraps_once() -> None:
    """A second mend leaves every method as the first one left it."""
    from triton.runtime.interpreter import InterpreterBuilder

    before = InterpreterBuilder.create_dot
    interpreter.mend()
    assert InterpreterBuilder.create_dot is before
    assert not hasattr(before.mended, "mended")


def test_a_compiling_process_is_left_alone() -> None:
    """Without TRITON_INTERPRET nothing interprets and nothing is wrapped."""
    code = (
        "from kernelassay.impls.interpreter import interpreting, mend\n"
        "from triton.runtime.interpreter import InterpreterBuilder\n"
        "mend(); print(interpreting(), hasattr(InterpreterBuilder.create_dot, 'mended'))"
    )
    assert in_new_process(code, interpreted=False).split() == ["False", "False"]


def test_float32_rounds_to_nearest_bfloat16() -> None:
    """float32 becomes the bfloat16 that PyTorch makes of it, ties, infinities and NaN included."""
    plain = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20])
    edges = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.4e38, 1e-40, -1e-45])
    x = torch.cat([plain, ties, edges, torch.zeros(12)])
    got, expected = cast(x, torch.bfloat16), x.to(torch.bfloat16)
    assert torch.equal(got.isnan(), expected.isnan())
    kept = ~expected.isnan()
    assert torch.equal(got.view(torch.int16)[kept], expected.view(torch.int16)[kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.float64])
def test_casts_to_and_from_bfloat16_convert_the_number(dtype: torch.dtype) -> None:
    """A cast between bfloat16 and another type gives what PyTorch gives, both ways."""
    numbers = torch.tensor([0, 1, -3, 100, 255, -1000, 7, 64]).to(dtype)
    assert torch.equal(cast(numbers, torch.bfloat16), numbers.to(torch.bfloat16))
    bf16 = numbers.to(torch.bfloat16)
    assert torch.equal(cast(bf16, dtype), bf16.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_dots_are_sums_of_products(dtype: torch.dtype) -> None:
    """A dot of 16-bit operands is the exact sum of products, rounded to float32 once."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(16, 64, generator=generator).to(dtype)
    b = torch.randn(64, 32, generator=generator).to(dtype)
    c = torch.empty(16, 32)
    with interpreter.launching(a):
        dot_kernel[(1,)](a, b, c, M=16, N=32, K=64)
    torch.testing.assert_close(c, (a.double() @ b.double()).float(), rtol=2**-23, atol=0)


def test_bfloat16_arithmetic_is_that_of_its_numbers() -> None:
    """Products, sums, negations and comparisons of bfloat16 agree with PyTorch bit for bit."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, generator=generator).to(torch.bfloat16) for _ in range(2))
    out = torch.empty(3, 64, dtype=torch.bfloat16)
    with interpreter.launching(x):
        arithmetic_kernel[(1,)](x, y, out, N=64)
    assert torch.equal(out, torch.stack([x * y + x, -x, torch.minimum(x, y)]))


def test_launches_do_not_warn() -> None:
    """log2(0) and the like are silent inside a launch and as before outside."""
    with interpreter.launching(torch.zeros(1)):
        np.log2(np.zeros(1))
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        np.log2(np.zeros(1))


def test_interpreting_says_what_triton_did_at_import(monkeypatch: Any) -> None:
    """A change of the environment after the import of Triton changes nothing."""
    monkeypatch.delenv("TRITON_INTERPRET")
    assert interpreter.interpreting()


@triton.jit
def doubled(x):
    return x + x


@triton.jit
def calling_kernel(X, Y, N: tl.constexpr, STEPS: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(X + at)
    for _ in range(STEPS):
        x = doubled(x)
    tl.store(Y + at, x)


@triton.jit
def failing_kernel(X, N: tl.constexpr):
    tl.store(X + tl.arange(0, N), doubled(tl.load(X + tl.arange(0, N)))[None])


def language() -> list[object]:
    """What the interpreter puts its own functions in place of."""
    return [tl.load, tl.sum, tl.dot, tl.tensor.__add__, tl.core.load, tl.math.exp]


def test_device_functions_patch_the_language_once_and_leave_it_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A launch with many calls of a device function, then one that fails, then the first again."""
    from triton.runtime import interpreter as theirs

    patched = []
    tensors = theirs._patch_lang_tensor
    monkeypatch.setattr(
        theirs, "_patch_lang_tensor", lambda *args: patched.append(args) or tensors(*args)
    )
    before, x = language(), torch.arange(4.0)
    for _ in range(2):
        patched.clear()
        y = torch.empty_like(x)
        calling_kernel[(1,)](x, y, N=4, STEPS=3)
        assert torch.equal(y, 8 * x)
        assert len(patched) == 1
        assert language() == before
        with pytest.raises(theirs.InterpreterError):
            failing_kernel[(1,)](x.clone(), N=4)
        assert language() == before


def test_numpy_types_are_those_of_triton() -> None:
    """Remembered by name, and for pointers the type of an address."""
    from triton.runtime import interpreter as theirs

    for _ in range(2):
        assert theirs._get_np_dtype(tl.float16) == np.float16
        assert theirs._get_np_dtype(tl.bfloat16) == np.uint16
        assert theirs._get_np_dtype(tl.int1) == np.bool_
        assert theirs._get_np_dtype(tl.block_type(tl.int64, [2])) == np.int64
        assert theirs._get_np_dtype(tl.pointer_type(tl.float32)) == np.uint64
