"""Attention with weights that are powers of two, exactly, for whole tensors at once.

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
    if exponents.shape[-1] == 0:
        return torch.zeros(*visible.shape[:3], v.shape[-1], dtype=torch.float64, device=v.device)
    span = int(exponents.max() - exponents.min())
    largest = exponents.shape[-1] * max(1, int(v.abs().max())) * 2**span
    if largest >= 2**53:
        raise ValueError(f"integers up to {largest}: got too wide a range, expected below 2**53")
    weights = torch.exp2((exponents - exponents.min()).double())[:, :, None, :] * visible
    numerators, masses = weights @ v.double(), weights.sum(-1, keepdim=True)
    return numerators / masses.clamp(min=1.0)
