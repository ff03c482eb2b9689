"""Where the rounding errors of one row's log-sum-exp come from."""

import torch
from torch import Tensor

from kernelassay.oracle.budget_rows import Rows
from kernelassay.oracle.budget_scores import U32, UTF, ScoreErrors
from kernelassay.oracle.budget_terms import Term, row_sum_roundings
from kernelassay.oracle.formats import format_of

LOG_U = 2.0**-22
"""Absolute error of log near 1, where its relative error says nothing: 2 ulps of fp32 at 1."""


def lse_term(r: Rows, errors: ScoreErrors, rounds: Tensor, flushed: Tensor, count: Tensor) -> Term:
    """The error of the LSE: the mean score error, the row sum and the logarithm.

    The cast of P enters only if the row sum may add rounded probabilities.
    """
    x, p = r.numerics, r.p

    def mean(e: Tensor) -> Tensor:
        return e.sum(-1, keepdim=True)

    adds = row_sum_roundings(r, count)
    term = Term(mean((p * errors.exp) ** 2) + U32**2 * adds, mean(p * errors.exp) + U32 * adds)
    term += _lse_fixed(r, errors, count)
    if x.acc_biased:
        term += Term(fixed=mean(p * errors.dot))
    else:
        term += Term(mean((p * errors.dot) ** 2), mean(p * errors.dot_worst))
    if x.l_from_p is not False:
        term += Term(mean(rounds**2), mean(rounds), mean(flushed))
    if errors.q is not None:
        change = r.scale * errors.q * (p @ r.k)
        term += Term(mean(change**2), mean(p * errors.q_worst))
    if errors.k is not None:
        term += Term(mean(p**2 * errors.k_variance), mean(p * errors.k_worst))
    return term


def _lse_fixed(r: Rows, errors: ScoreErrors, count: Tensor) -> Term:
    """Constants common to all scores, rescales, m + log l and its rounding, second order."""
    x, u = r.numerics, U32
    m, lse = r.m.abs(), torch.where(r.lse > -torch.inf, r.lse, 0.0).abs()
    constants = (2 + 2 * x.scale_rounded) * u + 2 * UTF * (x.dot == "tf32_trunc")
    fixed = constants * (r.p * r.s).sum(-1, keepdim=True).abs()
    fixed = fixed + (count + 1) * x.exp_u + 3 * u * count * m
    fixed = fixed + u * (4 * lse + 2 * r.l.log() + 2 * m) + LOG_U
    fixed = fixed + (r.p * errors.total**2).sum(-1, keepdim=True) / 2
    to = format_of(x.lse)
    return Term(fixed=fixed + (to.unit * lse + to.eta if to.unit > u else 0.0))
