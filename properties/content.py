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


def _shift(x: Tensor, bits: int) -> Tensor:
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


def _choose(where: Tensor, a: float, b: float) -> Tensor:
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
    return (_shift(hashed(seed, g.b, g.h, g.t, g.d), 33) % (2 * m + 1) - m).double()


def _spike(g: Grid, low: float) -> Tensor:
    at = _steps(g)
    return torch.where(g.t < at, 0.0, torch.where(g.t == at, at.double().log(), low))


def _logs(g: Grid, seed: int, most: int) -> Tensor:
    masses = _shift(hashed(seed, g.b, g.h, g.t), 33) % most + 1
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
    "axis": (lambda g, a: _choose(g.d == g.t % g.D, a, 0.0), (float,), 0),
    "first": (lambda g, a: _choose(g.d == 0, a, 0.0), (float,), 0),
    "level": (lambda g, x: torch.full((), x, dtype=torch.float64), (float,), 0),
    "ramp": (lambda g, a, x: a + x * g.t.double(), (float, float), 0),
    "peak": (lambda g, p, lo, hi: _choose(g.t == p, hi, lo), (int, float, float), 0),
    "spike": (_spike, (float,), 0),
    "step": (lambda g: torch.where(g.t < _steps(g), 1.0, -1.0), (), 0),
    "integers": (
        lambda g, s, m: torch.where(
            g.d == 0, _shift(hashed(s, g.b, g.h, g.t), 33) % (m + 1), 0
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


def mask_content(recipe: str, case: AttendCase) -> Tensor:
    """The boolean mask of *recipe* (True keeps), of size 1 on axes that it does not vary on.

    `keep:s:percent:axes` keeps an element by hash; `rows:s:percent:axes` the same, and query rows
    with hash of their index below a quarter are dropped whole; `prefix:n` keeps keys below n,
    `suffix:n` keys from n on; `nothing` drops everything. *axes* is some of "bhqk".
    """
    name, *arguments = recipe.split(":")
    j = torch.arange(case.Tk).view(1, 1, 1, -1)
    if name == "nothing" and not arguments:
        return torch.zeros(1, 1, 1, case.Tk, dtype=torch.bool)
    if name in ("prefix", "suffix") and len(arguments) == 1 and arguments[0].isdecimal():
        n = int(arguments[0])
        return j < n if name == "prefix" else j >= n
    hashes = name in ("keep", "rows") and len(arguments) == 3
    if hashes and set(arguments[2]) <= set("bhqk") and all(x.isdecimal() for x in arguments[:2]):
        seed, percent, axes = int(arguments[0]), min(int(arguments[1]), 100), arguments[2]
        sizes = [n if a in axes else 1 for a, n in zip("bhqk", case.shape, strict=True)]
        grid = torch.meshgrid(*(torch.arange(n) for n in sizes), indexing="ij")
        kept = _shift(hashed(seed, *grid), 33) % 100 < percent
        if name == "rows" and "q" in axes:
            kept &= (_shift(hashed(seed + 1, grid[2]), 33) % 4 > 0) & (grid[2] > 0)
        return kept
    raise CaseError(
        f"mask recipe: got {recipe!r}, expected keep:seed:percent:axes, rows:seed:percent:axes, "
        f"prefix:n, suffix:n or nothing"
    )


def bias_content(recipe: str, case: AttendCase, dtype: str) -> Tensor:
    """The additive bias of *recipe*, of size 1 on axes that it does not vary on.

    Parts joined by ";" are added: `random:s:a:axes` about N(0, a^2) over some of "bhqk",
    `level:x` a constant, `fill:x:mask recipe` x (which may be -inf) where the mask drops, else 0.
    """
    total = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    for part in recipe.split(";"):
        total = total + _bias_part(recipe, part, case)
    return _rounded(total, dtype)


def _rounded(x: Tensor, dtype: str) -> Tensor:
    """*x* in *dtype*: what is finite stays finite, -inf stays what it is."""
    to = format_of(dtype)
    return torch.where(x.isinf(), x, x.clamp(-to.max, to.max)).to(to.dtype)


def _bias_part(recipe: str, part: str, case: AttendCase) -> Tensor:
    name, _, rest = part.partition(":")
    arguments = rest.split(":")
    try:
        if name == "level" and len(arguments) == 1:
            return torch.full((1, 1, 1, 1), _number(rest), dtype=torch.float64)
        if name == "fill":
            fill, _, mask = rest.partition(":")
            return _choose(mask_content(mask, case), 0.0, _number(fill))
        if name == "random" and len(arguments) == 3 and set(arguments[2]) <= set("bhqk"):
            seed, amplitude, axes = int(arguments[0]), _finite(arguments[1]), arguments[2]
            sizes = [n if a in axes else 1 for a, n in zip("bhqk", case.shape, strict=True)]
            grid = torch.meshgrid(*(torch.arange(n) for n in sizes), indexing="ij")
            return amplitude * normal(seed, *grid)
    except CaseError:  # the mask recipe's own
        raise
    except ValueError:
        pass
    raise CaseError(
        f"bias recipe {recipe!r}: got {part!r}, expected random:seed:amplitude:axes, level:x or "
        f"fill:x:mask recipe, x finite or -inf"
    )


def _finite(text: str) -> float:
    """The finite number that *text* is, or a ValueError."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _number(text: str) -> float:
    """A finite number or, written so, -inf; a ValueError for anything else."""
    return -math.inf if text == "-inf" else _finite(text)


def alibi_content(recipe: str, case: AttendCase, dtype: str) -> Tensor:
    """ALiBi slopes [Hq] of *recipe*, float32 numbers that *dtype* represents.

    `standard`: 2**(-8 (h + 1) / n) for n heads, and for a number of heads that is no power of two
    those of the next smaller one followed by every other one of the next larger; `hashed:s`:
    between 0 and 1, in no order, another one for each of the first 31 heads.
    """
    name, _, argument = recipe.partition(":")
    if recipe == "standard":
        slopes = torch.tensor(_standard_slopes(case.Hq), dtype=torch.float64)
    elif name == "hashed" and argument.isdecimal():
        first = _shift(hashed(int(argument)), 33)
        slopes = ((first + 12 * torch.arange(case.Hq)) % 31 + 1) / 32.0
    else:
        raise CaseError(f"alibi recipe: got {recipe!r}, expected standard or hashed:seed")
    return _rounded(slopes, dtype).float()


def _standard_slopes(heads: int) -> list[float]:
    """Press, Smith, Lewis 2022, appendix: the recursion for numbers that are no powers of two."""
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (h + 1) / below) for h in range(below)]
    return slopes if below == heads else (slopes + _standard_slopes(2 * below)[::2])[:heads]


def sink_content(recipe: str, case: AttendCase, dtype: str) -> Tensor:
    """Sink logits [Hq] of *recipe*, float32 numbers that *dtype* represents.

    `level:x` (which may be -inf: no sink) or `random:s:a`, about N(0, a^2).
    """
    name, *arguments = recipe.split(":")
    logits = None
    try:
        if name == "level" and len(arguments) == 1:
            level = _number(arguments[0])
            logits = torch.full((case.Hq,), level, dtype=torch.float64)
        if name == "random" and len(arguments) == 2:
            logits = _finite(arguments[1]) * normal(int(arguments[0]), torch.arange(case.Hq))
    except ValueError:
        pass
    if logits is None:
        raise CaseError(
            f"sink_logits recipe: got {recipe!r}, expected level:x (x finite or -inf) or "
            f"random:seed:amplitude"
        )
    return _rounded(logits, dtype).float()


def position_content(recipe: str, case: AttendCase) -> tuple[Tensor, Tensor]:
    """q_positions [B, Tq] and k_positions [B, Tk] of *recipe*.

    `offset:n`: keys at 0.., query i of request b at i + n + b (another offset each request);
    `gaps:s`: keys at 0, 2, 4.., queries at hashed places between -1 and 2 Tk;
    `ring:s`: keys at 0.. in a hashed order, another one for each request, as in a ring buffer,
    queries as with offset:0.
    """
    name, _, argument = recipe.partition(":")
    b, i = torch.arange(case.B).view(-1, 1), torch.arange(case.Tq)
    j = torch.arange(case.Tk).expand(case.B, -1)
    if name == "offset" and argument.removeprefix("-").isdecimal():
        return i + int(argument) + b, j.contiguous()
    if name == "gaps" and argument.isdecimal():
        places = _shift(hashed(int(argument), b, i), 33) % (2 * case.Tk + 2) - 1
        return places, 2 * j
    if name == "ring" and argument.isdecimal():
        order = hashed(int(argument), b, torch.arange(case.Tk)).argsort(-1)
        return i + b, order
    raise CaseError(f"positions recipe: got {recipe!r}, expected offset:n, gaps:seed, ring:seed")
