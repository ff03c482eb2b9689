"""Attention kernels emulated with explicit rounding, to try error budgets on.

Values are float64 tensors that hold numbers of the emulated formats; every operation of a real
kernel rounds once. Written from what kernels do, sharing nothing with the budgets.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from emulated_scores import NOTHING, Terms, in_registers, in_units, natural_sink, op_by_op
from emulated_units import (
    LN2,
    LOG2E,
    cast,
    constant,
    dot,
    exp2,
    f32,
    nearest,
    quotient,
    tree_sum,
)
from torch import Tensor

from kernelassay.oracle.numerics import Numerics


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """In which order a kernel walks over its keys, and which exponential it uses."""

    block: int = 64
    splits: int = 1
    backwards: bool = False
    base2: bool = True
    fold: bool = True
    """log2 e is folded into every constant, or multiplies the score at the end."""
    sink: Literal["first", "last", "sum"] = "first"
    """The sink is the first key, the last partial result, or added to the row sum at the end,
    under a maximum that does not know it unless that would overflow."""


@dataclass(frozen=True)
class State:
    """A partial result: maximum, denominator, numerator."""

    m: Tensor  # [..., R, 1]
    l: Tensor  # noqa: E741 - [..., R, 1]
    u: Tensor  # [..., R, Dv]


class Kernel:
    """A tiled online-softmax kernel of given numerics; `attend` returns (out, natural lse)."""

    def __init__(self, inp: str, numerics: Numerics, schedule: Schedule) -> None:
        self.inp, self.x, self.how = inp, numerics.resolved(inp), schedule
        self.base = LOG2E if schedule.base2 else 1.0

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        visible: Tensor,
        terms: Terms = NOTHING,
    ) -> tuple[Tensor, Tensor]:
        """q [B, Hq, Tq, D], k, v [B, Hkv, Tk, ...], visible [B, Hq, Tq, Tk]."""
        q, k, v = q.double(), k.double(), v.double()
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        self.natural, self.cap = scale, terms.softcap
        q, k, self.scale = self.scaled(q, k, scale)
        self.sink = self.own_sink(terms, q).expand(*q.shape[:3], 1)
        n = k.shape[-2]
        size = max(n if self.x.p_normalised else -(-n // self.how.splits), 1)
        parts = [self.walk(q, k, v, visible, terms, range(i, n)[:size]) for i in range(0, n, size)]
        if self.how.sink == "last":
            parts.append(self.sink_alone(parts[0]))
        return self.finish(self.merge(parts))

    def scaled(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor, float]:
        """Operands of the dot product, and the factor that is left for its result."""
        x = self.x
        foldable = self.how.fold and x.score == "fp32" and self.cap is None
        base = self.base if foldable else 1.0
        if x.q_prescaled:
            return cast(f32(q * constant(scale * base)), self.inp), k, 1.0
        if x.scale_rounded:
            root = constant(math.sqrt(scale))
            return cast(f32(q * root), self.inp), cast(f32(k * root), self.inp), base
        return q, k, constant(scale * base)

    @property
    def unit(self) -> float:
        """What one unit of a score means in natural units while it waits for an FMA."""
        return self.natural if self.cap is None else self.cap

    @property
    def c(self) -> float:
        """The factor that an FMA applies to scores before exp2."""
        return constant(self.unit * self.base) if self.x.fma else 1.0

    def own_sink(self, terms: Terms, like: Tensor) -> Tensor:
        """The sink logit in the kernel's units."""
        sink = natural_sink(terms, like)
        return f32(sink * constant(1 / self.unit if self.x.fma else self.base))

    def scores(self, q: Tensor, k: Tensor, seen: Tensor, terms: Terms) -> Tensor:
        """Scores in the kernel's base, still unscaled if scale and subtraction are fused."""
        x = self.x
        s = dot(q.new_zeros(()), q, k.mT, x)
        if x.score != "fp32":
            s = op_by_op(s, self.scale, terms, x)
            s = f32(s * constant(self.base)) if self.how.base2 else s
        elif x.fma:
            s = in_units(s, self.unit, terms, x, self.natural)
        else:
            s = in_registers(s, self.scale, terms, x, base=self.base, fold=self.how.fold)
        return torch.where(seen, s, -torch.inf)

    def exponential(self, s: Tensor, m: Tensor) -> Tensor:
        """exp(s - m) in the kernel's base."""
        y = f32(s * self.c - f32(m * self.c)) if self.x.fma else f32(s - m)
        return exp2(y if self.how.base2 else f32(y * constant(LOG2E)))

    def rescale(self, old: Tensor, new: Tensor) -> Tensor:
        """exp(old - new) for running maxima, the difference taken before it is scaled."""
        y = f32(old - new)
        y = f32(y * self.c) if self.x.fma else y
        return exp2(y if self.how.base2 else f32(y * constant(LOG2E)))

    def walk(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, terms: Terms, keys: range
    ) -> State:
        """The partial result of some keys, tile by tile; the sink may be its beginning."""
        size = max(len(keys) if self.x.p_normalised else self.how.block, 1)
        m = q.new_full((*q.shape[:-1], 1), -torch.inf)
        if keys.start == 0 and self.how.sink == "first":
            m = self.sink
        state = State(m, (m > -torch.inf).double(), q.new_zeros((*q.shape[:-1], v.shape[-1])))
        for start in reversed(keys[::size]) if self.how.backwards else keys[::size]:
            tile = slice(start, min(start + size, keys.stop))
            s = self.scores(q, k[:, :, tile], seen[..., tile], terms.of(tile))
            step = self.whole if self.x.p_normalised else self.step
            state = step(state, s, v[:, :, tile])
        return state

    def step(self, was: State, s: Tensor, v: Tensor) -> State:
        """One tile of the online softmax."""
        x, m, p, alpha = self.x, *self.weights(was, s)
        rounded = p if x.p == "fp32" else cast(f32(p * x.p_scale), x.p)
        summed = rounded / x.p_scale if x.l_from_p and x.p != "fp32" else p
        u = f32(was.u * alpha) if x.acc_u < 2.0**-20 else nearest(was.u * alpha, self.bits)
        return State(m, f32(f32(was.l * alpha) + tree_sum(summed)), dot(u, rounded, v, x))

    def whole(self, was: State, s: Tensor, v: Tensor) -> State:
        """The softmax of a whole row, divided by its sum before the cast."""
        x, m, p, alpha = self.x, *self.weights(was, s)
        total = f32(f32(was.l * alpha) + tree_sum(p))
        self.lse = m * (LN2 if self.how.base2 else 1.0) + total.log()
        p = f32(p / torch.where(total > 0, total, 1.0))
        rounded = p if x.p == "fp32" else cast(f32(p * x.p_scale), x.p)
        return State(m, (total > 0).double(), dot(was.u, rounded, v, x))

    def weights(self, was: State, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The new maximum, the weights relative to it, and the factor for what was before."""
        m = torch.maximum(was.m, s.amax(-1, keepdim=True))
        safe = torch.where(m > -torch.inf, m, 0.0)
        alpha = torch.where(was.m == m, 1.0, self.rescale(was.m, safe))
        return m, self.exponential(s, safe), alpha

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

    def with_sink(self, state: State) -> State:
        """The sink's weight added to the row sum, relative to the maximum of the keys."""
        more = self.exponential(self.sink, state.m)
        merged = self.merge([state, self.sink_alone(state)])
        early = (state.l > 0) & (more < 2.0**120)
        m, u = torch.where(early, state.m, merged.m), torch.where(early, state.u, merged.u)
        return State(m, torch.where(early, f32(state.l + more), merged.l), u)

    def sink_alone(self, like: State) -> State:
        """The partial result of nothing but the sink."""
        return State(self.sink, (self.sink > -torch.inf).double(), 0 * like.u)

    def finish(self, state: State) -> tuple[Tensor, Tensor]:
        """Output and LSE of a partial result; zeros and -inf for a row without keys."""
        if self.how.sink == "sum":
            state = self.with_sink(state)
        some = state.l > 0
        total = torch.where(some, state.l, 1.0)
        out = quotient(state.u, total) / self.x.p_scale
        if self.how.base2:
            lse = f32(f32(f32(state.m * self.c) + f32(total.log2())) * constant(LN2))
        else:
            lse = f32(f32(state.m * self.c) + f32(total.log()))
        if self.x.p_normalised:
            lse = f32(self.lse)
        lse = torch.where(some, lse, -torch.inf).squeeze(-1)
        return cast(torch.where(some, out, 0.0), self.x.out), cast(lse, self.x.lse)


def kernel(inp: str, numerics: Numerics, *, block: int = 64, **schedule: Any) -> Kernel:
    """A kernel as its author would declare it: numerics.block is its tile."""
    return Kernel(inp, replace(numerics, block=block), Schedule(block=block, **schedule))
