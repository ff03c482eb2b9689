"""The hull of the visible values: where an output lies whatever the scores.

The weights of a row are positive and sum to 1, so each output element lies between the least and
the largest visible value of its channel; with a sink, whose value is 0, between these and 0.
Errors of scores only change the weights. What else is rounded moves an output out of the hull by

    A (e^x - 1)(1 + u_out) + u_out A + eta_out,   A = max_j |v_jc|,
    x = u_P + n eta_P + u_a N_a + u n_l + u_div + u_exp + 2 u |lse|       (terms as in `budget`)

A weight off by a factor 1 + d moves the numerator by at most d A. The last two summands are for
weights that do not sum to 1 by construction: exp(z - lse), or partial results merged by their LSE.
"""

import torch
from torch import Tensor

from kernelassay.oracle.budget_scores import U32, operand_bias, operand_format
from kernelassay.oracle.formats import format_of
from kernelassay.oracle.numerics import Numerics

HELD = 2**24
"""About how many float64 numbers one array of a step may hold: 128 MiB."""


def hull(
    v: Tensor, visible: Tensor, sink_logits: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Least, largest and absolutely largest visible value, [B, Hq, Tq, Dv] each, float64.

    *v* [B, Hkv, Tk, Dv], *visible* bool [B, Hq, Tq, Tk]. Rows that see no key have inf, -inf, 0.
    """
    B, Hq, Tq, Tk = visible.shape
    values = v.double().repeat_interleave(Hq // v.shape[1], 1)[:, :, None]  # [B, Hq, 1, Tk, Dv]
    step = max(1, HELD // max(1, B * Hq * Tk * v.shape[-1]))
    low, high = [], []
    for start in range(0, Tq, step):
        seen = visible[:, :, start : start + step, :, None]
        low.append(_least(torch.where(seen, values, torch.inf), torch.inf))
        high.append(-_least(torch.where(seen, -values, torch.inf), torch.inf))
    least, largest = (
        torch.cat(x, 2) if x else v.new_zeros((B, Hq, 0, v.shape[-1]), dtype=torch.float64)
        for x in (low, high)
    )
    far = torch.where(least <= largest, torch.maximum(least.abs(), largest.abs()), 0.0)
    if sink_logits is not None:
        sunk = (sink_logits > -torch.inf).to(v.device)[:, None, None] & (least <= largest)
        least = torch.where(sunk, least.clamp(max=0.0), least)
        largest = torch.where(sunk, largest.clamp(min=0.0), largest)
    return least, largest, far


def _least(x: Tensor, otherwise: float) -> Tensor:
    """The minimum over keys; *otherwise* where there are none."""
    if x.shape[-2]:
        return x.amin(-2)
    return x.new_full((*x.shape[:-2], x.shape[-1]), otherwise)


def hull_allowed(far: Tensor, count: Tensor, keys: int, lse: Tensor, numerics: Numerics) -> Tensor:
    """How far outside its hull *numerics* (resolved) allow each output element to lie.

    *far* [..., Dv] is A above, *count* [...] how many of the *keys* are visible, *lse* [...] in
    natural logarithms.
    """
    x, n = numerics, count.double()[..., None]
    tiles = n.clamp(max=-(-keys // x.block))  # also how often a row can be rescaled
    adds = x.acc_u * (n.clamp(max=-(-keys // x.kstep)) + tiles)
    sums = U32 * (2 * tiles + 16)
    merged = x.exp_u + 2 * U32 * torch.where(lse.isfinite(), lse, 0.0).abs()[..., None]
    relative = adds + sums + x.div_u + merged + _casts(numerics, n)
    to = format_of(x.out)
    return far * (torch.expm1(relative) * (1 + to.unit) + to.unit) + to.eta


def _casts(x: Numerics, n: Tensor) -> Tensor | float:
    """Roundings of P and, in tf32 units, of v, relative to the largest value."""
    p, operands = format_of(x.p), 0.0
    if (to := operand_format(x)) is not None:
        operands = to.unit * (4 if operand_bias(x) else 1)
        p = to if p.unit < to.unit else p
    if p.unit <= U32 or (x.l_from_p and x.dot == "exact"):  # a row sum of the same weights
        return operands
    return operands + p.unit + n * (p.eta / x.p_scale)
