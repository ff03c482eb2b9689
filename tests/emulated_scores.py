"""From q.k to the score as kernels do it: soft cap, ALiBi and bias, each result rounded."""

import math
from dataclasses import dataclass, replace

import torch
from emulated_units import LOG2E, cast, constant, f32, quotient, tanh, tanh_approx
from torch import Tensor

from kernelassay.oracle.numerics import Numerics


@dataclass(frozen=True, eq=False)
class Terms:
    """What a call does to its scores, as a kernel gets it; None: left out."""

    softcap: float | None = None
    slopes: Tensor | None = None  # [Hq]
    distance: Tensor | None = None  # broadcastable to [B, Hq, Tq, Tk]: between query and key
    bias: Tensor | None = None  # broadcastable to [B, Hq, Tq, Tk]
    sink: Tensor | None = None  # [Hq]

    def of(self, keys: slice) -> "Terms":
        """The same for a run of keys."""

        def part(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[-1] == 1 else x[..., keys]

        return replace(self, distance=part(self.distance), bias=part(self.bias))

    def steps(self, factor: float) -> list[tuple[Tensor, Tensor | float]]:
        """What is added, as products of float32 numbers: with slopes and biases times *factor*."""
        made: list[tuple[Tensor, Tensor | float]] = []
        if self.slopes is not None:
            assert self.distance is not None
            slopes = self.slopes.double()[:, None, None]
            made.append((-self.distance.double(), f32(slopes * factor) if factor != 1 else slopes))
        if self.bias is not None:
            made.append((self.bias.double(), constant(factor)))
        return made


NOTHING = Terms()


def tanh_of(y: Tensor, x: Numerics) -> Tensor:
    """tanh as a kernel of these numerics has it."""
    return tanh(y) if x.tanh_u < 2.0**-20 else tanh_approx(y)


def op_by_op(s: Tensor, scale: float, t: Terms, x: Numerics) -> Tensor:
    """Natural scores of an unfused kernel, each operation's result kept in the score dtype.

    One that declares a single rounding keeps scores in it before and after the cap.
    """

    def kept(y: Tensor, *, always: bool = True) -> Tensor:
        return cast(f32(y), x.score) if always or x.score_roundings > 1 else f32(y)

    s = kept(s, always=scale == 1.0)
    s = s if scale == 1.0 else kept(s * scale)
    if t.softcap is not None:
        s = kept(s / t.softcap, always=False)
        s = kept(tanh_of(s, x), always=False)
        s = kept(s * t.softcap)
    for a, b in t.steps(1.0):
        s = kept(s + kept(a * b))
    return s


def in_registers(
    s: Tensor, scale: float, t: Terms, x: Numerics, *, base: float, fold: bool
) -> Tensor:
    """Float32 scores times *base* (log2 e or 1), which is folded into each constant or comes last.

    *scale* holds the factor already if it can be folded into it.
    """
    s = f32(s * scale) if scale != 1.0 else f32(s)
    factor = base if fold else 1.0
    if t.softcap is not None:
        y = f32(s * constant(1 / t.softcap)) if fold else quotient(s, torch.tensor(t.softcap))
        s = f32(tanh_of(y, x) * constant(t.softcap * factor))
    for a, b in t.steps(factor):
        s = f32(s + f32(a * b))
    return s if fold or base == 1.0 else f32(s * constant(base))


def in_units(s: Tensor, unit: float, t: Terms, x: Numerics, scale: float) -> Tensor:
    """Scores in units of the scale, or of the cap: the factor is left to the exponential's FMA."""
    if t.softcap is not None:
        s = tanh_of(f32(s * constant(scale / t.softcap)), x)
    for a, b in t.steps(1 / unit):
        s = f32(s + a * b)
    return s


def natural_sink(t: Terms, like: Tensor) -> Tensor:
    """The sink logit of each head, [Hq, 1, 1]; -inf is none."""
    if t.sink is None:
        return like.new_full((1, 1, 1), -math.inf)
    return t.sink.double()[:, None, None]


def exponent(s: Tensor, *, base2: bool) -> Tensor:
    """What goes into exp2 for a difference of scores in the kernel's base."""
    return s if base2 else f32(s * constant(LOG2E))
