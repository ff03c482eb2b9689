"""Content of tensors: recipes, as pure functions of (recipe, logical coordinates, geometry).

A recipe is `pattern[:argument...]`, followed by up to a few single elements `;b,h,t,d=value`.
Random content is an integer hash of (seed, coordinates), never a generator stream: dropping a
row or a head leaves the others as they were, on every device and every version of every library.

| pattern           | element [b, h, t, d]                                                   |
|-------------------|------------------------------------------------------------------------|
| zeros             | 0                                                                      |
| random:s[:a]      | about N(0, a^2), hash of (s, b, h, t, d); a = 1 by default             |
| around:s:c:a      | c + a N(0, 1): values that do not average out                          |
| lattice:s:m       | an integer in -m..m                                                    |
| signs:s           | -1 or 1                                                                |
| seek:s:o:a        | a * (row of signs:s at the key that query t aims at, own position + o) |
| axis:a            | a at d = t mod D, else 0: query t reads column t mod D of k            |
| first:a           | a at d = 0, else 0: every query reads column 0 of k                    |
| pair:s:a:b:w      | a + w N(0, 1) at d = 0, b + w N(0, 1) at d = 1, else 0                 |
| level:x           | x in every column                                                      |
| ramp:a:x          | a + x t in every column: scores rising (x > 0) or falling with t       |
| peak:p:lo:hi      | hi in row p, lo elsewhere                                              |
| spike:lo          | column d is 0 before row P(d), log P(d) at it, lo after it             |
| step              | column d is 1 before row P(d), -1 from it on                           |
| integers:s:m      | an integer in 0..m in column 0 (0 elsewhere): dyadic scores            |
| logs:s:m          | log n of an integer n in 1..m in column 0, else 0: weights in ratios   |
| onehot            | 1 + h + 4b at d = t mod D, else 0: says which key, head, request       |
| bits:o:w          | 2**((t - o) mod w) at d = (t - o) div w, else 0, for t in o..o + w D   |

P(d) runs over rows 1..T-1 in even steps.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernelassay.oracle.formats import format_of
from kernelassay.properties.case import AttendCase, CaseError

_M64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
Words = np.ndarray[Any, np.dtype[np.uint64]]


def shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Words) -> Words:
    """The 64-bit finaliser of splitmix (Steele, Lea, Flood 2014), elementwise and in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


def _words(seed: int, *coordinates: Tensor) -> Words:
    """One 64-bit hash for each combination of coordinates (int64 tensors that broadcast)."""
    state = _mix(np.array([(seed * _GOLDEN + 1) & _M64], dtype=np.uint64))
    for c in coordinates:
        c = c if c.ndim else c[None]  # of scalars numpy tells when they overflow, as they must
        state = _mix(state + (c.numpy().view(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
    return state


def hashed(seed: int, *coordinates: Tensor) -> Tensor:
    """The same as int64."""
    return torch.from_numpy(_words(seed, *coordinates).view(np.int64))


def normal(seed: int, *coordinates: Tensor) -> Tensor:
    """About N(0, 1), float64: the sum of eight 16-bit uniforms; integer arithmetic throughout."""
    lanes, low = np.uint64(0x0000FFFF0000FFFF), np.uint64(0xFFFFFFFF)
    total: Words = np.zeros((), dtype=np.uint64)
    for half in (0, 1):
        h = _words(2 * seed + half, *coordinates)  # four uniforms, summed in two lanes
        total = total + (h & lanes)
        h >>= np.uint64(16)
        total += h & lanes
    total = (total & low) + (total >> np.uint64(32))
    # Eight uniforms on 0..65535: mean 4 * 65535, variance 8 (2**32 - 1) / 12.
    centred = torch.from_numpy(total.view(np.int64)).double().sub_(4 * 65535)
    return centred.mul_(math.sqrt(12 / 8 / (2**32 - 1)))


def bits_per_column(out: str) -> int:
    """How many keys one output element of format *out* tells apart.

    The number n out is an integer below 2**bits; the rounding of the output and that of the
    probabilities move it by 2**(bits - precision) each, together a quarter: it can be read.
    """
    return min(10, format_of(out).precision - 3)


class Grid(NamedTuple):
    """The logical coordinates of a tensor and the geometry of its case."""

    b: Tensor
    h: Tensor
    t: Tensor
    d: Tensor
    T: int
    D: int
    case: AttendCase


def choose(where: Tensor, a: float, b: float) -> Tensor:
    """*a* where true, else *b*, in float64: torch.where would make float32 of two numbers."""
    pair = torch.tensor([b, a], dtype=torch.float64)
    return pair[where.long()]


def _steps(g: Grid) -> Tensor:
    """P(d): rows 1..T-1, spread evenly over the columns."""
    return 1 + g.d * max(g.T - 1, 1) // g.D


def _seek(g: Grid, seed: int, offset: int, amplitude: float) -> Tensor:
    own = g.t + (0 if g.case.causal == "top_left" else g.case.Tk - g.case.Tq)
    aim = (own + offset).clamp(0, max(g.case.Tk - 1, 0))
    group = g.case.Hq // g.case.Hkv
    return amplitude * _signs(g._replace(t=aim, h=g.h // group), seed)


def _signs(g: Grid, seed: int) -> Tensor:
    return ((hashed(seed, g.b, g.h, g.t, g.d) & 1) * 2 - 1).double()


def _lattice(g: Grid, seed: int, m: int) -> Tensor:
    return (shift(hashed(seed, g.b, g.h, g.t, g.d), 33) % (2 * m + 1) - m).double()


def _pair(g: Grid, seed: int, a: float, b: float, width: float) -> Tensor:
    near = choose(g.d == 0, a, b) + width * normal(seed, g.b, g.h, g.t, g.d)
    return torch.where(g.d < 2, near, 0.0)


def _spike(g: Grid, low: float) -> Tensor:
    at = _steps(g)
    return torch.where(g.t < at, 0.0, torch.where(g.t == at, at.double().log(), low))


def _logs(g: Grid, seed: int, most: int) -> Tensor:
    masses = shift(hashed(seed, g.b, g.h, g.t), 33) % most + 1
    return torch.where(g.d == 0, masses.double().log(), 0.0)


def _bits(g: Grid, origin: int, width: int) -> Tensor:
    r = g.t - origin
    here = (r >= 0) & (r < width * g.D) & (g.d == r // width)
    return torch.where(here, torch.exp2((r % width).double()), 0.0)


_PATTERNS: dict[str, tuple[Callable[..., Tensor], tuple[type, ...], int]] = {
    # name: (function of the grid and the arguments, their types, how many may be left out)
    "zeros": (lambda g: torch.zeros(()), (), 0),
    "random": (lambda g, s, a=1.0: a * normal(s, g.b, g.h, g.t, g.d), (int, float), 1),
    "around": (lambda g, s, c, a: c + a * normal(s, g.b, g.h, g.t, g.d), (int, float, float), 0),
    "lattice": (_lattice, (int, int), 0),
    "signs": (_signs, (int,), 0),
    "seek": (_seek, (int, int, float), 0),
    "axis": (lambda g, a: choose(g.d == g.t % g.D, a, 0.0), (float,), 0),
    "first": (lambda g, a: choose(g.d == 0, a, 0.0), (float,), 0),
    "pair": (_pair, (int, float, float, float), 0),
    "level": (lambda g, x: torch.full((), x, dtype=torch.float64), (float,), 0),
    "ramp": (lambda g, a, x: a + x * g.t.double(), (float, float), 0),
    "peak": (lambda g, p, lo, hi: choose(g.t == p, hi, lo), (int, float, float), 0),
    "spike": (_spike, (float,), 0),
    "step": (lambda g: torch.where(g.t < _steps(g), 1.0, -1.0), (), 0),
    "integers": (
        lambda g, s, m: torch.where(
            g.d == 0, shift(hashed(s, g.b, g.h, g.t), 33) % (m + 1), 0
        ).double(),
        (int, int),
        0,
    ),
    "logs": (_logs, (int, int), 0),
    "onehot": (lambda g: torch.where(g.d == g.t % g.D, 1.0 + g.h + 4 * g.b, 0.0), (), 0),
    "bits": (_bits, (int, int), 0),
}


_COUNTED = ("lattice", "integers", "logs", "bits")
"""Patterns whose last argument is a size."""


def _arguments(recipe: str, pattern: str) -> tuple[Callable[..., Tensor], list[float]]:
    name, *given = pattern.split(":")
    if name not in _PATTERNS:
        raise CaseError(
            f"recipe {recipe!r}: got pattern {name!r}, expected one of {', '.join(_PATTERNS)}"
        )
    function, kinds, optional = _PATTERNS[name]
    if not len(kinds) - optional <= len(given) <= len(kinds):
        raise CaseError(
            f"recipe {recipe!r}: {name} takes {len(kinds)} arguments, got {len(given)}"
        )
    try:
        numbers = [kind(text) for kind, text in zip(kinds, given, strict=False)]
    except ValueError:
        wanted = ", ".join(k.__name__ for k in kinds)
        raise CaseError(f"recipe {recipe!r}: {name} takes ({wanted}), got {given}") from None
    if not all(math.isfinite(n) for n in numbers):
        raise CaseError(f"recipe {recipe!r}: {name} takes finite numbers, got {given}")
    if name in _COUNTED and numbers[-1] < 1:
        raise CaseError(
            f"recipe {recipe!r}: {name} takes a last number of at least 1, got {numbers[-1]}"
        )
    return function, numbers


def _spot(recipe: str, text: str) -> tuple[tuple[int, ...], float]:
    where, _, value = text.partition("=")
    try:
        place = tuple(int(x) for x in where.split(","))
        number = float(value)
    except ValueError:
        place, number = (), 0.0
    if len(place) != 4 or min(place) < 0 or not math.isfinite(number):
        raise CaseError(f"recipe {recipe!r}: got element {text!r}, expected b,h,t,d=value")
    return place, number


@lru_cache(maxsize=96)
def content(recipe: str, shape: tuple[int, int, int, int], case: AttendCase, dtype: str) -> Tensor:
    """The logical tensor [B, H, T, D] of *recipe*, rounded to *dtype*, on the CPU. Read only."""
    pattern, *spots = recipe.split(";")
    function, arguments = _arguments(recipe, pattern)
    B, H, T, D = shape
    grid = Grid(
        torch.arange(B).view(-1, 1, 1, 1),
        torch.arange(H).view(-1, 1, 1),
        torch.arange(T).view(-1, 1),
        torch.arange(D),
        T,
        D,
        case,
    )
    full = function(grid, *arguments).double().expand(shape).contiguous()
    for text in spots:
        place, value = _spot(recipe, text)
        if all(i < n for i, n in zip(place, shape, strict=True)):
            full[place] = value
    limit = format_of(dtype).max
    return full.clamp(-limit, limit).to(format_of(dtype).dtype)
