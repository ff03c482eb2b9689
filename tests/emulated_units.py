"""Arithmetic of emulated kernels: each operation rounds once, in the format that it is done in.

Values are float64 tensors that hold numbers of the emulated formats.
"""

import math

import torch
from torch import Tensor

from kernelassay.oracle.formats import format_of
from kernelassay.oracle.numerics import Numerics

LOG2E, LN2 = math.log2(math.e), math.log(2)
EXP_ERROR = 2.0**-22.7  # ex2.approx, measured
DIVISION_ERROR = 2.0**-22.8  # measured
TANH_ERROR = 2.0**-11  # tanh.approx, of the value


def f32(x: Tensor) -> Tensor:
    """*x* rounded to float32."""
    return x.float().double()


def cut(x: Tensor, bits: int) -> Tensor:
    """*x* truncated to *bits* significant bits."""
    return (x.contiguous().view(torch.int64) & -(1 << (53 - bits))).view(torch.float64)


def nearest(x: Tensor, bits: int) -> Tensor:
    """*x* rounded to *bits* significant bits, ties away from zero."""
    whole = x.contiguous().view(torch.int64) + (1 << (52 - bits))
    return (whole & -(1 << (53 - bits))).view(torch.float64)


def cast(x: Tensor, name: str) -> Tensor:
    """*x*, a float32 number, rounded to a format."""
    if name == "tf32":
        return nearest(x, 11)
    return x.float().to(format_of(name).dtype).double()


def wobble(y: Tensor) -> Tensor:
    """A number in [-1, 1] that depends on *y* only, as a hardware function's error does."""
    return torch.where(y == y.floor(), 0.0, (y * 1e6).sin())


def exp2(y: Tensor) -> Tensor:
    """2^y as ex2.approx gives it: exact at integers, 0 below the normal range."""
    exact = y.exp2()
    return torch.where(exact < 2.0**-126, 0.0, f32(exact * (1 + EXP_ERROR * wobble(y))))


def operand(x: Tensor, numerics: Numerics) -> Tensor:
    """What the matrix unit makes of an operand."""
    if numerics.dot == "exact":
        return x
    return nearest(x, 11) if numerics.dot == "tf32" else cut(x, 11)


def dot(acc: Tensor, a: Tensor, b: Tensor, x: Numerics) -> Tensor:
    """acc + a @ b in steps of kstep products, settled into the accumulator after each."""
    if x.dot == "3xtf32":
        (a, a_low), (b, b_low) = split(a), split(b)
        pairs = [(a_low, b), (a, b_low), (a, b)]
    else:
        pairs = [(operand(a, x), operand(b, x))]
    bits = round(-math.log2(x.acc_u))
    for start in range(0, a.shape[-1], x.kstep):
        part = slice(start, start + x.kstep)
        acc = acc + sum(left[..., part] @ right[..., part, :] for left, right in pairs)
        acc = cut(acc, bits + 1) if x.acc_biased else nearest(acc, bits)
    return acc


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two truncated tf32 numbers whose sum is nearly *x*."""
    high = cut(x, 11)
    return high, cut(x - high, 11)


def tree_sum(x: Tensor) -> Tensor:
    """The sum over the last axis in float32, halves first."""
    while x.shape[-1] > 1:
        half = -(-x.shape[-1] // 2)
        x = f32(x[..., :half] + torch.nn.functional.pad(x[..., half:], (0, x.shape[-1] % 2)))
    return x


def constant(c: float) -> float:
    """A constant in float32."""
    return float(torch.tensor(c, dtype=torch.float32))


def quotient(a: Tensor | float, b: Tensor) -> Tensor:
    """a / b as the hardware gives it: within two units in the last place."""
    exact = a / b
    return f32(exact * (1 + DIVISION_ERROR * wobble(exact)))


def tanh(y: Tensor) -> Tensor:
    """tanh y of one exponential and one quotient: 1 - 2 / (e^2y + 1)."""
    return f32(1 - quotient(2.0, f32(exp2(f32(y * constant(2 * LOG2E))) + 1)))


def tanh_approx(y: Tensor) -> Tensor:
    """tanh y by a smooth approximation, wrong in the same way wherever y is about the same."""
    return f32((y.tanh() * (1 + TANH_ERROR * (y / 2).cos())).clamp(-1, 1))
