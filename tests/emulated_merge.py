"""Merges of partial results emulated with explicit rounding, to try their budget on.

Written from what kernels do, sharing nothing with the budget. Tensors are float64 and hold numbers
of the emulated formats; parts are stacked, out [S, ..., Dv], lse [S, ...].
"""

from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from emulated_units import LN2, LOG2E, cast, constant, exp2, f32, quotient, wobble
from torch import Tensor

from kernelassay.oracle.numerics import Numerics

LOG_ERROR = 2.0**-22.6  # lg2.approx: absolute up to 2, relative beyond


class Arithmetic:
    """fp32 operations as hardware has them; subnormal results are flushed."""

    def rounded(self, x: Tensor) -> Tensor:
        """*x* as the result of one operation."""
        x = f32(x)
        return torch.where(x.abs() < 2.0**-126, 0.0, x)

    def exp2(self, y: Tensor) -> Tensor:
        return exp2(y)

    def log2(self, x: Tensor) -> Tensor:
        y = x.log2()
        return f32(y + LOG_ERROR * y.abs().clamp_min(1) * wobble(y))

    def quotient(self, a: Tensor, b: Tensor) -> Tensor:
        return self.rounded(quotient(a, b))

    def constant(self, c: float) -> float | Tensor:
        return constant(c)


HARDWARE = Arithmetic()


class Traced(Arithmetic):
    """The same, with a derivative with respect to the relative error of each operation.

    Rows must be independent, with one output each. An operation whose result is an fp32 number
    is exact.
    """

    def __init__(self, rows: int, x: Numerics) -> None:
        self.rows, self.x = rows, x
        self.errors: list[tuple[Tensor, float]] = []
        self.constants: dict[float, Tensor] = {}

    def fresh(self, unit: float) -> Tensor:
        """A new relative error [rows] of at most *unit*; it is 0 here."""
        self.errors.append((torch.zeros(self.rows, dtype=torch.float64, requires_grad=True), unit))
        return self.errors[-1][0]

    def off(self, x: Tensor, unit: float, exact: Tensor | None = None) -> Tensor:
        """*x* rounded, and with an error unless it is exact."""
        near = super().rounded(x.detach())
        exact = near == x.detach() if exact is None else exact
        error = torch.where(exact, 0.0, self.fresh(unit).reshape(-1, *[1] * (x.dim() - 1)))
        flushed = (near == 0) & (x.detach() != 0)
        return torch.where(flushed, 0.0, (x + (near - x.detach())) * (1 + error))

    def rounded(self, x: Tensor) -> Tensor:
        return self.off(x, 2.0**-24)

    def exp2(self, y: Tensor) -> Tensor:
        return self.off(y.exp2(), self.x.exp_u, y.detach() == y.detach().floor())

    def log2(self, x: Tensor) -> Tensor:
        y = x.log2()
        return self.off(y + 2.0**-22 * y.detach().abs().clamp_min(1) * self.fresh(1.0), 2.0**-24)

    def quotient(self, a: Tensor, b: Tensor) -> Tensor:
        return self.off(a / b, self.x.div_u)

    def constant(self, c: float) -> Tensor:
        if c not in self.constants:
            self.constants[c] = constant(c) * (1 + self.fresh(abs(constant(c) / c - 1)))
        return self.constants[c]

    def worst(self, result: Tensor) -> Tensor:
        """At most how far *result*, [rows] or [rows, 1], is off, to first order; [rows]."""
        found = torch.autograd.grad(
            result.sum(), [e for e, _ in self.errors], retain_graph=True, allow_unused=True
        )
        units = [unit for _, unit in self.errors]
        return sum(
            (g.abs() * u for g, u in zip(found, units, strict=True) if g is not None),
            torch.zeros(self.rows, dtype=torch.float64),
        )


@dataclass(frozen=True)
class State:
    """A partial result: maximum and denominator [...], numerator [..., Dv]."""

    m: Tensor
    l: Tensor  # noqa: E741 - the literature's name for the denominator
    u: Tensor
    fresh: bool = False
    """A part as it came, not a result of this kernel."""


@dataclass(frozen=True, kw_only=True)
class Merge:
    """A merge kernel; calling it gives (out, natural lse) kept in its dtypes."""

    order: Literal["at once", "online", "pairs"] = "at once"
    """All maxima first, a running maximum, or states merged two at a time, halves first."""
    ending: Literal["quotient", "shares", "logsum"] = "quotient"
    """u / l, or a second pass of weights exp(z - m) / l, or one of exp(z - lse)."""
    base: Literal["e", "libm", "2", "converted", "fused"] = "e"
    """exp is exp2 of a product, or right to half a unit in the last place; LSEs come in base 2, or
    are converted to it first; or exp2 of a fused multiply-add."""
    out: str = "fp32"
    lse: str = "fp32"
    by: Arithmetic = HARDWARE

    def __call__(
        self, out: Tensor, lse: Tensor, sums: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Of outputs and LSEs, or of states: numerators, maxima and row sums."""
        some = lse > -torch.inf
        out = torch.where(some[..., None], out, 0.0)
        z = list(f32(lse * LOG2E if self.base == "2" else lse))  # in base 2 as the caller has it
        if self.base == "converted":
            z = [self.by.rounded(x * self.by.constant(LOG2E)) for x in z]
        sums = torch.where(some, 1.0 if sums is None else sums, 0.0)
        state = self.reduced([State(z[i], sums[i], out[i], True) for i in range(len(z))])
        total = torch.where(state.l > 0, state.l, 1.0)
        own = torch.where(state.l > 0, self.by.rounded(state.m + self.log(total)), -torch.inf)
        if self.ending == "quotient":
            result = self.by.quotient(state.u, total[..., None])
        else:
            result = self.second_pass(out, z, state.m, total, own)
        return self.kept(result, self.out), self.kept(self.natural(own), self.lse)

    def kept(self, x: Tensor, to: str) -> Tensor:
        """A result in the dtype it is kept in."""
        return x if to == "fp32" else cast(x, to)

    def exp(self, z: Tensor, m: Tensor) -> Tensor:
        """exp(z - m) in the kernel's base; 0 where z is -inf."""
        some, m = z > -torch.inf, torch.where(m > -torch.inf, m, 0.0)
        return torch.where(some, self.exp_of(torch.where(some, z, m), m), 0.0)

    def exp_of(self, z: Tensor, m: Tensor) -> Tensor:
        """The same of finite numbers."""
        by, c = self.by, self.by.constant(LOG2E)
        if self.base == "fused":
            return by.exp2(f32(z * c - f32(m * c)))
        y = by.rounded(z - m)
        if self.base == "libm":
            return by.rounded(y.exp())
        return by.exp2(y if self.base in ("2", "converted") else by.rounded(y * c))

    def log(self, total: Tensor) -> Tensor:
        """log of a sum of weights in the kernel's base."""
        if self.base == "libm":
            return self.by.rounded(total.log())
        log2 = self.by.log2(total)
        if self.base in ("2", "converted"):
            return log2
        return self.by.rounded(log2 * self.by.constant(LN2))

    def natural(self, lse: Tensor) -> Tensor:
        """The kernel's LSE in natural logarithms; one in base 2 is the caller's to convert."""
        if self.base == "converted":
            return self.by.rounded(lse * self.by.constant(LN2))
        return lse * LN2 if self.base == "2" else lse

    def reduced(self, states: list[State]) -> State:
        """All states as one."""
        if self.order == "at once":
            return self.together(states)
        if self.order == "online":
            m, u = states[0].m, states[0].u
            state = State(torch.full_like(m, -torch.inf), torch.zeros_like(m), torch.zeros_like(u))
            for other in states:
                state = self.together([state, other])
            return state
        while len(states) > 1:
            half = -(-len(states) // 2)
            twos = [[states[i], *states[i + half : i + half + 1]] for i in range(half)]
            states = [self.together(two) for two in twos]
        return states[0]

    def together(self, states: list[State]) -> State:
        """Some states as one, relative to their maximum; what had it already is not rescaled."""
        m = torch.stack([s.m for s in states]).amax(0)
        total, u = torch.zeros_like(m), torch.zeros_like(states[0].u)
        for s in states:
            w = self.exp(s.m, m)
            if self.base == "fused" and not s.fresh:
                w = torch.where(s.m == m, 1.0, w)
            total = self.by.rounded(total + self.by.rounded(w * s.l))
            u = self.by.rounded(u + self.product(w, s))
        return State(m, total, u)

    def product(self, w: Tensor, state: State) -> Tensor:
        """What a state of weight *w* adds to the numerator."""
        return self.by.rounded(w[..., None] * state.u)

    def second_pass(
        self, out: Tensor, z: list[Tensor], m: Tensor, total: Tensor, lse: Tensor
    ) -> Tensor:
        """sum p_i o_i with weights that are computed anew."""
        result = torch.zeros_like(out[0])
        for o, score in zip(out, z, strict=True):
            if self.ending == "logsum":
                p = self.exp(score, lse)
            else:
                p = self.by.quotient(self.exp(score, m), total)
            result = self.by.rounded(result + self.by.rounded(p[..., None] * o))
        return result


KERNELS = {
    f"{order}, {ending}, {base}": Merge(order=order, ending=ending, base=base)
    for order, ending, base in product(
        ("at once", "online", "pairs"),
        ("quotient", "shares", "logsum"),
        ("e", "libm", "2", "converted", "fused"),
    )
}
