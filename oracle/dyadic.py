"""Attention with weights that are powers of two, or any integers, exactly, for whole tensors.

Numerators and denominators are integers below 2**53, which float64 holds exactly, sums and matrix
products of them included; only the last division rounds, correctly.
"""

import torch
from torch import Tensor


def dyadic_quotients(exponents: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """out[b, h, i] = sum_j 2**exponents[b, h, j] v[b, h, j] / sum_j 2**exponents[b, h, j].

    Sums run over the visible keys. *exponents* int64 [B, H, Tk], *v* int64 [B, H, Tk, Dv],
    *visible* bool [B, H, Tq, Tk]. Returns float64 [B, H, Tq, Dv], each element the correctly
    rounded quotient; rows without a visible key are 0. ValueError where an integer would reach
    2**53.
    """
    least = int(exponents.min()) if exponents.shape[-1] else 0
    span = int(exponents.max()) - least if exponents.shape[-1] else 0
    if span > 52:
        raise ValueError(f"integers up to 2**{span}: got too wide a range, expected below 2**53")
    numerators, masses = mass_sums(torch.exp2((exponents - least).double()), v, visible)
    return numerators / masses.clamp(min=1.0)


def mass_sums(masses: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j masses[b, h, j] v[b, h, j] and sum_j masses[b, h, j] over the visible keys, exactly.

    *masses* [B, H, Tk] non-negative integers (as int64 or float64), *v* [B, H, Tk, Dv] integers,
    *visible* bool [B, H, Tq, Tk]. Returns integers in float64: [B, H, Tq, Dv] and [B, H, Tq, 1].
    ValueError where one would reach 2**53.
    """
    if masses.shape[-1] == 0:
        out = torch.zeros(*visible.shape[:3], v.shape[-1], dtype=torch.float64, device=v.device)
        return out, out.new_zeros((*visible.shape[:3], 1))
    largest = masses.shape[-1] * max(1, int(v.abs().max())) * int(masses.max())
    if largest >= 2**53:
        raise ValueError(f"integers up to {largest}: got too wide a range, expected below 2**53")
    weights = masses.double()[:, :, None, :] * visible
    return weights @ v.double(), weights.sum(-1, keepdim=True)
