"""Whether two sequences of tokens are independent, with e-values as in `statistics`.

Without declared marginals a table is judged by universal inference; copies of tokens between rows
or calls are found sooner by counting matches.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from kernelassay.oracle.pooling import Cell, Floats, Ints, cells, counts_of, law_of
from kernelassay.oracle.statistics import (
    EACH,
    Verdict,
    in_unit,
    log_average,
    log_evalue,
    strength,
)


def log_independence(table: npt.ArrayLike) -> Floats:
    """log E [...] of tables [..., a, b] against "y is independent of x", whatever their laws.

    Every x has a law of y of its own (prior Dirichlet 1/2), over the best single law of y: E is
    at most the ratio to the true one (universal inference, Wasserman et al., PNAS 2020). It pays
    (b - 1)/2 log n per x. So use declared laws p, q where there are any: with a tenth of 64
    uniform tokens copied this needs 31,300 pairs at level 1e-11, `decide` on the a b cells of
    np.outer(p, q) 1,400, and `log_matches` 300.
    """
    shape = np.shape(table)[-2:]
    if len(shape) < 2 or 0 in shape:
        raise ValueError(f"table: shape [..., a, b] expected, got {list(np.shape(table))}")
    c = counts_of(table, shape, "table").astype(np.float64)
    b, n, column = shape[1], c.sum((-2, -1)), c.sum(-2)
    rows = special.gammaln(b / 2) - special.gammaln(b / 2 + c.sum(-1))
    rows = rows + (special.gammaln(c + 0.5) - special.gammaln(0.5)).sum(-1)
    single = special.xlogy(column, column).sum(-1) - special.xlogy(n, n)
    return np.asarray(rows.sum(-1) - single)


def decide_independence(table: npt.ArrayLike, level: float = EACH) -> Verdict:
    """Rejected iff E >= 1 / level: with independent sequences of any laws, with p <= level.

    table [a, b]. Shown: Cressie-Read of the non-empty rows and columns, and pooled cells of the
    product of the two margins.
    """
    in_unit(level=level)
    log_e = log_independence(table)
    c = np.asarray(table, dtype=np.int64)
    if c.ndim != 2:
        raise ValueError(f"table: shape [a, b] expected, got {list(c.shape)}")
    n, needed = int(c.sum()), -math.log(level)
    full = c[c.any(1)][:, c.any(0)]
    p_value, statistic, degrees = 1.0, 0.0, 0
    shown: tuple[Cell, ...] = ()
    if n:
        margins = np.outer(c.sum(1), c.sum(0)).ravel() / n**2
        shown = cells(c.ravel(), margins)
        found = stats.chi2_contingency(full, correction=False, lambda_="cressie-read")
        p_value, statistic, degrees = float(found.pvalue), float(found.statistic), int(found.dof)
    rejected = bool(log_e >= needed)
    sign = ">=" if rejected else "<"
    reason = f"independence: log E = {log_e:.2f} {sign} {needed:.2f} after {n} pairs"
    return Verdict(float(log_e), p_value, statistic, degrees, shown, n, rejected, reason)


def log_matches(
    tokens: npt.ArrayLike, law: npt.ArrayLike, level: float = EACH, shift: int = 0
) -> float:
    """log E against "all tokens [calls, rows] are independent draws from the law".

    For every pair of rows (with a shift: of row i at call t and row j at call t + shift), equal
    tokens have probability sum p^2; the pairs' e-values are averaged. Sees shared random numbers,
    which leave every marginal right.
    """
    p, x = law_of(law), np.asarray(tokens)
    if x.ndim != 2 or x.dtype.kind not in "iu" or ((x < 0) | (x >= p.size)).any():
        raise ValueError(f"tokens: [calls, rows] of numbers from 0 to {p.size - 1} expected")
    calls, rows = x.shape
    if not 0 <= shift < calls or (shift == 0 and rows < 2):
        raise ValueError(f"shift: two rows, or a shift below {calls} calls, expected, got {shift}")
    same = x[: calls - shift, :, None] == x[shift:, None, :]  # [calls, rows, rows]
    # A row beside itself: t, t + s and t + 2s would share a token, and their matches depend.
    apart = same[np.arange(calls - shift) // max(shift, 1) % 2 == 0]
    pairs = np.triu(np.ones((rows, rows), dtype=bool), 1)
    if shift:
        pairs = pairs | pairs.T

    def evidence(hits: Ints, n: int) -> Floats:
        table, equal = np.stack([hits, n - hits], -1), float(p @ p)
        return log_evalue(table, [equal, 1 - equal], strength(2, level) * n)

    found = evidence(same.sum(0)[pairs], len(same))
    if shift:
        found = np.append(found, evidence(np.diag(apart.sum(0)), len(apart)))
    return log_average(found)
