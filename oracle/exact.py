"""Attention in rational arithmetic, for scores whose exponentials are rational.

A row's weights are masses w_j > 0 over its visible keys: out = sum_j w_j v_j / sum_j w_j and
lse = log sum_j w_j. The masses are powers of two when scale = ln 2 and scores q.k are integers
(dyadic), all 1 when q = 0 (counting), and any integers when scores are logs of integers.

Matrices are nested sequences or tensors; each entry, an int, Fraction or float, is taken exactly.
A row that sees no key has mass 0 and an output row of None.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

Rows = list[list[Fraction | None]]
Matrix = Sequence[Sequence[Any]] | Tensor


def weighted_mean(
    masses: Sequence[Fraction | int], values: Sequence[Sequence[Fraction | int]]
) -> list[Fraction]:
    """sum_j masses[j] values[j] / sum_j masses[j], column by column. The masses must not sum to 0.

    This is both attention over keys (values are v rows) and the merge of partial results (masses
    are exp(lse) of the parts, values their outputs).
    """
    total = Fraction(sum(masses))
    return [
        sum((Fraction(w) * x for w, x in zip(masses, column, strict=True)), Fraction(0)) / total
        for column in zip(*values, strict=True)
    ]


def integer_mass_attention(
    masses: Matrix, v: Matrix, visible: Matrix
) -> tuple[Rows, list[Fraction]]:
    """Scores z[i][j] = log masses[i][j]: out rows [Tq][Dv] and mass sums exp(lse) [Tq].

    masses [Tq, Tk] positive, v [Tk, Dv], visible bool [Tq, Tk].
    """
    values, weights = _nested(v), _nested(masses)
    width = len(values[0]) if values else 0
    out: Rows = []
    sums: list[Fraction] = []
    for row, seen in zip(weights, _nested(visible), strict=True):
        keys = [j for j, sees in enumerate(seen) if sees]
        own = [Fraction(row[j]) for j in keys]
        chosen = [[Fraction(x) for x in values[j]] for j in keys]
        out.append([*weighted_mean(own, chosen)] if keys else [None] * width)
        sums.append(sum(own, Fraction(0)))
    return out, sums


def dyadic_attention(
    q: Matrix, k: Matrix, v: Matrix, visible: Matrix
) -> tuple[Rows, list[Fraction]]:
    """scale = ln 2 and integer scores: key j has mass 2**(q.k) exactly. Out rows and mass sums.

    q [Tq, D], k [Tk, D], v [Tk, Dv], visible bool [Tq, Tk]. A visible score that is no integer is
    a ValueError; invisible keys may hold anything.
    """
    queries, keys, see = _nested(q), _nested(k), _nested(visible)
    masses = [
        [_power(a, b) if sees else Fraction(0) for b, sees in zip(keys, row, strict=True)]
        for a, row in zip(queries, see, strict=True)
    ]
    return integer_mass_attention(masses, v, see)


def counting_attention(v: Matrix, visible: Matrix) -> tuple[Rows, list[Fraction]]:
    """q = 0: each of a row's n visible keys has weight 1/n. Out rows and the counts n."""
    see = _nested(visible)
    return integer_mass_attention([[1] * len(row) for row in see], v, see)


def log_fraction(x: Fraction) -> float:
    """log x within 4 units in the last place, however large or close to 1; log 0 = -inf."""
    if x < 0:
        raise ValueError(f"log_fraction: got {x}, expected at least 0")
    if x == 0:
        return -math.inf
    # x = y 2**e with 2/3 <= y <= 4/3: the two summands below cannot cancel
    e = x.numerator.bit_length() - x.denominator.bit_length()
    y = x / Fraction(2) ** e
    while y > Fraction(4, 3):
        y, e = y / 2, e + 1
    while y < Fraction(2, 3):
        y, e = y * 2, e - 1
    return math.fsum((e * math.log(2), math.log1p(as_float(y - 1))))


def as_float(x: Fraction) -> float:
    """The float64 nearest to x, ties to even; infinite where x rounds beyond the largest."""
    try:
        return x.numerator / x.denominator  # Python rounds the quotient of integers correctly
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def as_tensor(rows: Iterable[Iterable[Fraction | None]], empty: float = 0.0) -> Tensor:
    """Rows of fractions as float64, each correctly rounded; None becomes *empty*."""
    return torch.tensor(
        [[empty if x is None else as_float(x) for x in row] for row in rows], dtype=torch.float64
    )


def _power(a: Sequence[Any], b: Sequence[Any]) -> Fraction:
    """2**(a.b)."""
    z = sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0))
    if z.denominator != 1:
        raise ValueError(f"dyadic_attention: got the score {z}, expected an integer q.k")
    return Fraction(2) ** z.numerator


def _nested(matrix: Matrix) -> list[Any]:
    return list(matrix.tolist() if isinstance(matrix, Tensor) else matrix)
