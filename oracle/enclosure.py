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
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    visible: Tensor,
    *,
    softcap: float | None = None,
    offset: Tensor | None = None,
    sink: float | None = None,
) -> Enclosure:
    """out = sum_j e^z_j v_j / (S + sum_j e^z_j), lse = log (S + sum_j e^z_j), as intervals.

    z_j = cap tanh(scale q.k_j / cap) + offset_j and S = e^sink; what is None is left out. q
    [Tq, D], k [Tk, D], v [Tk, Dv], offset [Tq, Tk] and all numbers are taken exactly; visible
    [Tq, Tk] bool, and an offset of -inf hides. No maximum is subtracted: the exponents of this
    arithmetic are unbounded. A row that sees no key has out 0 and lse -inf, or the sink's logit.
    What no query sees may hold anything.
    """
    flint = _flint()
    offset = torch.zeros(len(q), len(k)) if offset is None else offset.double()
    for name, x in (("visible", visible), ("offset", offset)):
        _check_shape(name, x, (len(q), len(k)))
    visible = visible & (offset != -math.inf)
    some = visible.any(0)[:, None]
    with _precision(flint, BITS):
        keys, values = (_matrix(flint, torch.where(some, x.double(), 0.0)) for x in (k, v))
        scores = _scores(flint, _matrix(flint, q) * keys.transpose(), scale, softcap)
        masses = _masses(flint, scores, offset, visible)
        extra = flint.arb(0) if sink in (None, -math.inf) else flint.arb(sink).exp()
        totals = [sum(row, extra) for row in masses]
        numerators = flint.arb_mat(*visible.shape, [w for row in masses for w in row]) * values
        out, out_radius = _floats(
            x if total == 0 else x / total
            for row, total in zip(numerators.tolist(), totals, strict=True)
            for x in row
        ).reshape(2, len(q), v.shape[1])
        lse, lse_radius = _floats(
            flint.arb.neg_inf() if total == 0 else total.log() for total in totals
        )
    return Enclosure(out=out, out_radius=out_radius, lse=lse, lse_radius=lse_radius)


def _check_shape(name: str, x: Tensor, shape: tuple[int, int]) -> None:
    if x.shape != shape:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}, expected shape {shape}")


def _scores(flint: Any, dots: Any, scale: float, softcap: float | None) -> list[list[Any]]:
    """cap tanh(scale q.k / cap), or scale q.k."""
    if softcap is None:
        return [[scale * x for x in row] for row in dots.tolist()]
    cap = flint.arb(softcap)
    return [[cap * (scale * x / cap).tanh() for x in row] for row in dots.tolist()]


def _masses(
    flint: Any, scores: list[list[Any]], offset: Tensor, visible: Tensor
) -> list[list[Any]]:
    """e^(score + offset), 0 where invisible."""
    return [
        [
            (z + more).exp() if sees else flint.arb(0)
            for z, more, sees in zip(*columns, strict=True)
        ]
        for columns in zip(scores, offset.tolist(), visible.tolist(), strict=True)
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
