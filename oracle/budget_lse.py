"""Where the rounding errors of one row's log-sum-exp come from.

lse^ - lse = log sum_j p_j e^eps_j: the mean of the score errors, and at most half of
sum_j p_j eps_j^2 e^eps_j beyond, or the largest of them. Nothing is centred here: what is common
to all keys, as a constant or the mean of tanh's error, counts in full.
"""

import torch
from torch import Tensor

from kernelassay.oracle.budget_rows import Rows
from kernelassay.oracle.budget_scores import U32, ScoreErrors
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
    term = Term(
        mean(p**2 * errors.exp_variance) + U32**2 * adds, mean(p * errors.exp) + U32 * adds
    )
    term += Term(fixed=mean(p * (errors.tanh + errors.bend)))
    term += Term(fixed=sum((mean(p * c).abs() for c in errors.constants), start=torch.zeros(())))
    term += _lse_fixed(r, errors, count)
    if x.acc_biased:
        term += Term(fixed=mean(p * errors.dot))
    else:
        term += Term(mean((p * errors.dot) ** 2), mean(p * errors.dot_worst))
    if x.l_from_p is not False:
        term += Term(mean(rounds**2), mean(rounds), mean(flushed))
    if errors.q is not None:
        change = r.scale * errors.q * ((p * errors.slope) @ r.k)
        term += Term(mean(change**2), mean(p * errors.q_worst))
    if errors.k is not None:
        term += Term(mean(p**2 * errors.k_variance), mean(p * errors.k_worst))
    return term


def _lse_fixed(r: Rows, errors: ScoreErrors, count: Tensor) -> Term:
    """Rescales, m + log l and its rounding, and what (e^eps - 1) holds beyond eps.

    Maximum and row sum may be those of the keys, without the sink (`Rows.top`): then rescales
    touch the keys' share only. What lies beyond eps is at most the largest eps.
    """
    x, u, e = r.numerics, U32, errors.total
    m, top, lse = r.m.abs(), r.top.abs(), r.lse.nan_to_num(neginf=0.0).abs()
    keys = (r.p * r.is_key).sum(-1, keepdim=True)
    fixed = (count + 1) * x.exp_u + 3 * u * count * torch.maximum(m, keys * top)
    log_l = r.l.log() + r.m - r.top
    fixed = fixed + u * (4 * lse + 2 * log_l + 2 * torch.maximum(m, top)) + LOG_U
    second = (r.p * e**2 * e.clamp_max(50).exp()).sum(-1, keepdim=True) / 2
    most = torch.nn.functional.pad(e * r.seen, (0, 1)).amax(-1, keepdim=True)
    fixed = fixed + torch.minimum(second, most)
    to = format_of(x.lse)
    return Term(fixed=fixed + (to.unit * lse + to.eta if to.unit > u else 0.0))
