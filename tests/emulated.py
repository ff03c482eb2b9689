"""Attention kernels emulated with explicit rounding, to try error budgets on.

Values are float64 tensors that hold numbers of the emulated formats; every operation of a real
kernel rounds once. Written from what kernels do, sharing nothing with the budgets.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.oracle.formats import format_of
from kernelassay.oracle.numerics import Numerics

LOG2E, LN2 = math.log2(math.e), math.log(2)
EXP_ERROR = 2.0**-22.7  # ex2.approx, measured
DIVISION_ERROR = 2.0**-22.8  # measured


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """In which order a kernel walks over its keys, and which exponential it uses."""

    block: int = 64
    splits: int = 1
    backwards: bool = False
    base2: bool = True


@dataclass(frozen=True)
class State:
    """A partial result: maximum, denominator, numerator."""

    m: Tensor  # [..., R, 1]
    l: Tensor  # noqa: E741 - [..., R, 1]
    u: Tensor  # [..., R, Dv]


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
    """2^y as ex2.approx gives it: exact at integers."""
    return f32(y.exp2() * (1 + EXP_ERROR * wobble(y)))


def operand(x: Tensor, numerics: Numerics) -> Tensor:
    """What the matrix unit makes of an operand."""
    if numerics.dot == "exact":
        return x
    return nearest(x, 11) if numerics.dot == "tf32" else cut(x, 11)


def dot(acc: Tensor, a: Tensor, b: Tensor, x: Numerics) -> Tensor:
    """acc + a @ b in steps of kstep products, settled into the accumulator after each."""
    a, b = operand(a, x), operand(b, x)
    bits = round(-math.log2(x.acc_u))
    for start in range(0, a.shape[-1], x.kstep):
        part = slice(start, start + x.kstep)
        acc = acc + a[..., part] @ b[..., part, :]
        acc = cut(acc, bits + 1) if x.acc_biased else nearest(acc, bits)
    return acc


def tree_sum(x: Tensor) -> Tensor:
    """The sum over the last axis in float32, halves first."""
    while x.shape[-1] > 1:
        half = -(-x.shape[-1] // 2)
        x = f32(x[..., :half] + torch.nn.functional.pad(x[..., half:], (0, x.shape[-1] % 2)))
    return x


class Kernel:
    """A tiled online-softmax kernel of given numerics; `attend` returns (out, natural lse)."""

    def __init__(self, inp: str, numerics: Numerics, schedule: Schedule) -> None:
        self.inp, self.x, self.how = inp, numerics.resolved(inp), schedule

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        """q [B, Hq, Tq, D], k, v [B, Hkv, Tk, ...], visible [B, Hq, Tq, Tk]."""
        q, k, v = q.double(), k.double(), v.double()
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        q, k, self.scale = self.scaled(q, k, scale)
        n = k.shape[-2]
        size = max(n if self.x.p_normalised else -(-n // self.how.splits), 1)
        parts = [
            self.walk(q, *(t[:, :, i : i + size] for t in (k, v)), visible[..., i : i + size])
            for i in range(0, n, size)
        ]
        return self.finish(self.merge(parts))

    def scaled(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, float]:
        """Operands of the dot product, and the factor that is left for its result."""
        x = self.x
        natural = LOG2E if self.how.base2 and x.score == "fp32" else 1.0
        if x.q_prescaled:
            return cast(f32(q * self.constant(scale * natural)), self.inp), k, 1.0
        if x.scale_rounded:
            root = self.constant(math.sqrt(scale))
            return cast(f32(q * root), self.inp), cast(f32(k * root), self.inp), natural
        return q, k, self.constant(scale * natural)

    @staticmethod
    def constant(c: float) -> float:
        """A constant in float32."""
        return float(torch.tensor(c, dtype=torch.float32))

    def scores(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        """Scores in the kernel's base, still unscaled if scale and subtraction are fused."""
        s = dot(q.new_zeros(()), q, k.mT, self.x)
        if not self.x.fma:
            s = f32(s * self.scale) if self.scale != 1.0 else f32(s)
        if self.x.score != "fp32":
            s = cast(s, self.x.score)
            if self.how.base2:
                s = f32(s * self.constant(LOG2E))
        return torch.where(seen, s, -torch.inf)

    def exponential(self, s: Tensor, m: Tensor) -> Tensor:
        """exp(s - m) in the kernel's base."""
        c = self.scale if self.x.fma else 1.0
        y = f32(s * c - f32(m * c)) if self.x.fma else f32(s - m)
        return exp2(y if self.how.base2 else f32(y * self.constant(LOG2E)))

    def rescale(self, old: Tensor, new: Tensor) -> Tensor:
        """exp(old - new) for running maxima, the difference taken before it is scaled."""
        y = f32(old - new)
        y = f32(y * self.scale) if self.x.fma else y
        return exp2(y if self.how.base2 else f32(y * self.constant(LOG2E)))

    def walk(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> State:
        """The partial result of some keys, tile by tile."""
        x, n = self.x, k.shape[-2]
        size = n if x.p_normalised else self.how.block
        m = q.new_full((*q.shape[:-1], 1), -torch.inf)
        state = State(m, torch.zeros_like(m), q.new_zeros((*q.shape[:-1], v.shape[-1])))
        starts = range(0, n, max(size, 1))
        for start in reversed(starts) if self.how.backwards else starts:
            tile = slice(start, start + size)
            state = self.step(state, q, k[:, :, tile], v[:, :, tile], seen[..., tile])
        return state

    def step(self, was: State, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> State:
        """One tile of the online softmax."""
        x = self.x
        s = self.scores(q, k, seen)
        m = torch.maximum(was.m, s.amax(-1, keepdim=True))
        safe = torch.where(m > -torch.inf, m, 0.0)
        p = self.exponential(s, safe)
        if x.p_normalised:
            total = tree_sum(p)
            p = f32(p / torch.where(total > 0, total, 1.0))
        alpha = self.rescale(was.m, safe)
        alpha = torch.where(was.m == m, 1.0, alpha)
        rounded = p if x.p == "fp32" else cast(f32(p * x.p_scale), x.p)
        summed = rounded / x.p_scale if x.l_from_p and x.p != "fp32" else p
        u = f32(was.u * alpha) if x.acc_u < 2.0**-20 else nearest(was.u * alpha, self.bits)
        row_sum = f32(f32(was.l * alpha) + tree_sum(summed))
        if x.p_normalised:
            self.lse = m * (LN2 if self.how.base2 else 1.0) + total.log()
        return State(m, row_sum, dot(u, rounded, v, x))

    @property
    def bits(self) -> int:
        """Significant bits of the accumulator."""
        return round(-math.log2(self.x.acc_u))

    def merge(self, parts: list[State]) -> State:
        """The splits' partial results as one, in float32."""
        if len(parts) == 1:
            return parts[0]
        m = torch.stack([part.m for part in parts]).amax(0)
        safe = torch.where(m > -torch.inf, m, 0.0)
        total, u = torch.zeros_like(m), torch.zeros_like(parts[0].u)
        for part in parts:
            w = self.rescale(part.m, safe)
            total, u = f32(total + f32(w * part.l)), f32(u + f32(w * part.u))
        return State(m, total, u)

    def finish(self, state: State) -> tuple[Tensor, Tensor]:
        """Output and LSE of a partial result; zeros and -inf for a row without keys."""
        some, c = state.l > 0, self.scale if self.x.fma else 1.0
        total = torch.where(some, state.l, 1.0)
        out = state.u / total
        out = f32(out * (1 + DIVISION_ERROR * wobble(out))) / self.x.p_scale
        if self.how.base2:
            lse = f32(f32(f32(state.m * c) + f32(total.log2())) * self.constant(LN2))
        else:
            lse = f32(f32(state.m * c) + f32(total.log()))
        if self.x.p_normalised:
            lse = f32(self.lse)
        lse = torch.where(some, lse, -torch.inf).squeeze(-1)
        return cast(torch.where(some, out, 0.0), self.x.out), cast(lse, self.x.lse)


def kernel(inp: str, numerics: Numerics, *, block: int = 64, **schedule: Any) -> Kernel:
    """A kernel as its author would declare it: numerics.block is its tile."""
    return Kernel(inp, replace(numerics, block=block), Schedule(block=block, **schedule))
