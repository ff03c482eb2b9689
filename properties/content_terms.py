"""Content beside q, k and v: masks, biases, ALiBi slopes, sink logits, positions.

Pure functions of (recipe, logical coordinates, geometry), as those of `content`: an element does
not depend on how many requests, heads, rows or keys there are.
"""

import math

import torch
from torch import Tensor

from kernelassay.oracle.formats import format_of
from kernelassay.properties.case import AttendCase, CaseError
from kernelassay.properties.content import choose, hashed, normal, shift


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
        kept = shift(hashed(seed, *grid), 33) % 100 < percent
        if name == "rows" and "q" in axes:
            kept &= (shift(hashed(seed + 1, grid[2]), 33) % 4 > 0) & (grid[2] > 0)
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
            return choose(mask_content(mask, case), 0.0, _number(fill))
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
        first = shift(hashed(int(argument)), 33)
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
        places = shift(hashed(int(argument), b, i), 33) % (2 * case.Tk + 2) - 1
        return places, 2 * j
    if name == "ring" and argument.isdecimal():
        order = hashed(int(argument), b, torch.arange(case.Tk)).argsort(-1)
        return i + b, order
    raise CaseError(f"positions recipe: got {recipe!r}, expected offset:n, gaps:seed, ring:seed")
