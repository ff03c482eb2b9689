"""Attention of one head in ball arithmetic: intervals that hold the true values for certain.

Needs python-flint, the extra `kernelassay[enclosure]`. It certifies the float64 oracle on small
shapes; a head of 512 x 512 x 64 takes seconds.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BITS = 128


@dataclass(frozen=True, eq=False)
class Enclosure:
    """|out - true out| <= out_radius and |lse - true lse| <= lse_radius, element by element.

    The midpoints are float64, and the radii hold their rounding: about 1e-16 of the value.
    """

    out: Tensor  # [Tq, Dv] float64
    out_radius: Tensor  # [Tq, Dv] float64
    lse: Tensor  # [Tq] float64
    lse_radius: Tensor  # [Tq] float64


def attention_enclosure(
    q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor
) -> Enclosure:
    """out = sum_j e^z_j v_j / sum_j e^z_j, lse = log sum_j e^z_j, z_j = scale q.k_j, as intervals.

    q [Tq, D], k [Tk, D], v [Tk, Dv] and scale are taken exactly; visible [Tq, Tk] bool. No maximum
    is subtracted: the exponents of this arithmetic are unbounded. A row that sees no key has out 0
    and lse -inf. What no query sees may hold anything.
    """
    flint = _flint()
    if visible.shape != (len(q), len(k)):
        raise ValueError(
            f"visible: got shape {tuple(visible.shape)}, expected shape {(len(q), len(k))}"
        )
    some = visible.any(0)[:, None]
    with _precision(flint, BITS):
        keys, values = (_matrix(flint, torch.where(some, x.double(), 0.0)) for x in (k, v))
        masses = _masses(flint, _matrix(flint, q) * keys.transpose(), scale, visible)
        sums = [sum(row, flint.arb(0)) for row in masses]
        numerators = flint.arb_mat(*visible.shape, [w for row in masses for w in row]) * values
        out, out_radius = _floats(
            x if total == 0 else x / total
            for row, total in zip(numerators.tolist(), sums, strict=True)
            for x in row
        ).reshape(2, len(q), v.shape[1])
        lse, lse_radius = _floats(
            flint.arb.neg_inf() if total == 0 else total.log() for total in sums
        )
    return Enclosure(out=out, out_radius=out_radius, lse=lse, lse_radius=lse_radius)


def _masses(flint: Any, dots: Any, scale: float, visible: Tensor) -> list[list[Any]]:
    """e^(scale q.k), 0 where invisible."""
    return [
        [(scale * z).exp() if sees else flint.arb(0) for z, sees in zip(row, seen, strict=True)]
        for row, seen in zip(dots.tolist(), visible.tolist(), strict=True)
    ]


def _matrix(flint: Any, x: Tensor) -> Any:
    """The numbers of x as balls of radius 0."""
    return flint.arb_mat(*x.shape, x.double().flatten().tolist())


def _floats(balls: Iterable[Any]) -> Tensor:
    """Midpoints and radii as float64 [2, n]: each radius reaches from the rounded midpoint."""
    pairs = [(float(ball.mid()), ball) for ball in balls]
    reach = [
        0.0 if math.isinf(mid) else math.nextafter(float((ball - mid).abs_upper()), math.inf)
        for mid, ball in pairs
    ]
    return torch.tensor([[mid for mid, _ in pairs], reach], dtype=torch.float64)


@contextmanager
def _precision(flint: Any, bits: int) -> Iterator[None]:
    """Balls of *bits* bits inside the block; flint's precision is a global variable."""
    before = flint.ctx.prec
    flint.ctx.prec = bits
    try:
        yield
    finally:
        flint.ctx.prec = before


def _flint() -> Any:
    try:
        import flint
    except ImportError as missing:
        raise ImportError(
            "attention_enclosure needs python-flint, which is not installed; "
            "try: pip install 'kernelassay[enclosure]'"
        ) from missing
    return flint
