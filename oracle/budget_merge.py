"""The error that merging partial results may add, for every element of output and LSE.

Parts i have outputs o_i and log-sum-exps z_i, weights p_i = exp(z_i - lse). A merge computes its
weights with relative errors at most eps_i: the difference z_i - m, its product with log2 e and
exp2 (3 u |z_i - m| + u_exp), and once more for each time a running maximum is replaced, at most
once for each part. As in attention what is common to all weights cancels:

    |out^ - out| <= e^E [ sum p_i (e^{E_i} - 1) |o_i - out| + S u sum p_i |o_i| + (S u + u_div) |out| ]

plus what the parts' own errors d_i make of it, sum p_i d_i, with E_i = eps_i plus the error of z_i,
E the mean of E_i, S the number of parts that are not empty. Sums are fp32, rounded to nearest.
Then each result is rounded to the dtype that it is kept in: in a tree that happens at every node,
so the error grows with its depth, not with the number of parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.budget_lse import LOG_U
from kernelassay.oracle.budget_scores import U32
from kernelassay.oracle.formats import format_of
from kernelassay.oracle.merging import Tree, finish, fold, merge, state_of
from kernelassay.oracle.numerics import Numerics


@dataclass(frozen=True, eq=False)
class Part:
    """The true (out, lse) of a part or a merge, float64, and how far what is held may be off."""

    out: Tensor  # [..., Dv]
    lse: Tensor  # [...], natural logarithms, -inf for the empty part
    out_allowed: Tensor  # [..., Dv]
    lse_allowed: Tensor  # [...]


def exact_part(out: Tensor, lse: Tensor) -> Part:
    """A part that is given to a merge as it is: its numbers are the truth."""
    return Part(
        *finish(state_of(out, lse)), torch.zeros_like(out.double()), torch.zeros_like(lse.double())
    )


def merged(*parts: Part, numerics: Numerics) -> Part:
    """One merge of some parts, by a kernel of resolved *numerics*."""
    out, lse = finish(merge(*(state_of(x.out, x.lse) for x in parts)))
    top = torch.stack([x.lse for x in parts]).amax(0)
    top = torch.where(top > -torch.inf, top, 0.0)
    some = [x.lse > -torch.inf for x in parts]
    count = torch.stack(some).sum(0).double()  # S, [...]
    spread, kept, noise, sizes, mean = (torch.zeros_like(out) for _ in range(5))
    for x, here in zip(parts, some, strict=True):
        p = torch.where(here, torch.exp(x.lse - torch.where(here, lse, 0.0)), 0.0)
        gap = torch.where(here, (x.lse - top).abs(), 0.0)
        eps = 3 * U32 * gap + count * (numerics.exp_u + 2 * U32)
        error = (p * torch.where(here, eps + x.lse_allowed, 0.0))[..., None]
        each = torch.where(here, eps + x.lse_allowed, 0.0)[..., None]
        p = p[..., None]
        spread = (
            spread + p * torch.expm1(each) * (torch.where(here[..., None], x.out, 0.0) - out).abs()
        )
        noise = noise + p * torch.where(here[..., None], x.out_allowed, 0.0)
        sizes = sizes + p * torch.where(here[..., None], x.out.abs(), 0.0)
        mean = mean + error
    del kept
    steps = count[..., None] * U32
    allowed = spread + steps * sizes + (steps + numerics.div_u) * out.abs() + noise
    to = format_of(numerics.out)
    allowed = mean.exp() * allowed * (1 + to.unit) + to.unit * out.abs() + to.eta
    return Part(out, lse, allowed, _lse_allowed(lse, top, mean[..., 0], count, numerics))


def _lse_allowed(
    lse: Tensor, top: Tensor, mean: Tensor, count: Tensor, numerics: Numerics
) -> Tensor:
    """m + log of the sum of weights: their mean error, the sum's, the logarithm's, roundings."""
    size = torch.where(lse > -torch.inf, lse, 0.0).abs()
    log = torch.where(lse > -torch.inf, lse - top, 0.0).abs()
    to = format_of(numerics.lse)
    last = to.unit * size + to.eta if to.unit > U32 else 0.0
    return mean + count * U32 + LOG_U + U32 * (3 * size + 2 * log + 2 * top.abs()) + last


def merged_along(tree: Tree, parts: Sequence[Part], numerics: Numerics) -> Part:
    """The parts merged along *tree*, each node by `merged`."""
    return fold(tree, parts, lambda *some: merged(*some, numerics=numerics))
