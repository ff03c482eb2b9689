"""The law that a kernel implies, read off its decisions without any sampling.

With uniforms given, a draft x is accepted below some threshold t_x, and after a rejection token y
is drawn between two breakpoints. Bisection finds each to 2^-24, the spacing of float32 below 1; so

    implied(y) = sum_x q(x) [ t_x 1(y = x) + (1 - t_x) (C_xy - C_x,y-1) ]

which must be p, within what the kernel's rounding can move the breakpoints.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from kernelassay.impls.contract import Capabilities
from kernelassay.oracle.decisions import GRID
from kernelassay.oracle.speculative import Round, residual
from kernelassay.properties.failures import WrongDistribution
from kernelassay.properties.laws.verifying import as_columns
from kernelassay.properties.property import law
from kernelassay.properties.speculative import strata as s
from kernelassay.properties.speculative.answers import verify
from kernelassay.properties.speculative.batches import sampling_of
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.probes import Prober, slack_errors
from kernelassay.properties.speculative.requests import Request, batch_of
from kernelassay.properties.subject import Subject

STEPS = 24


def _reads(c: Capabilities) -> str | None:
    sampling = c.sampling
    if sampling is None or sampling.noise != "injected" or sampling.draw != "inverse_cdf":
        return "rests on injected uniforms and draws by inverse CDF, which are not declared"
    if sampling.lossy:
        return f"declared lossy: {sampling.lossy}"
    return None if sampling.rounds == "token" else 'rests on Sampling.rounds="token"'


@law(
    "speculative.implied_law",
    "The law of the first token that thresholds and breakpoints imply, read off by bisection, is "
    "the target's.",
    operation="verify",
    requires=["requests", "draft_law"],
    rests_on=_reads,
    strata=s.SAMPLED,
    weight=0.25,
)
def implied_law(subject: Subject, case: VerifyCase) -> None:
    sampling = sampling_of(subject.capabilities)
    prober = Prober(case, 0, sampling, subject.dtype)
    p, drafted = prober.p(()), list(prober.drafted(()))
    W = case.width

    def first(xs: list[int], us: np.ndarray, ws: np.ndarray) -> list[Round]:
        """Rounds of first drafts xs under uniforms us, the draws under ws, both on the grid."""
        asked = []
        for x, u, w in zip(xs, us, ws, strict=True):
            plain = prober.made(0, (x,), int(u) * GRID, int(w) * GRID)
            asked.append(
                Request(request=0, drafts=plain.drafts, accept=plain.accept, draw=plain.draw)
            )
        came = verify(subject, batch_of(case, asked))
        return [as_columns(case, came.round(n)) for n in range(len(xs))]

    middle = np.full(len(drafted), 2**22)
    edges = _bisected(len(drafted), lambda u: [r.accepted == 0 for r in first(drafted, u, middle)])
    thresholds = dict(zip(drafted, edges / 2**STEPS, strict=True))
    rejected = [x for x in drafted if thresholds[x] < 1]
    pairs = [(x, y) for x in rejected for y in range(W - 1)]
    last = np.full(len(pairs), 2**STEPS - 1)
    ends = _bisected(
        len(pairs),
        lambda w: [
            r.tokens[0] > y
            for r, (_, y) in zip(first([x for x, _ in pairs], last, w), pairs, strict=True)
        ],
    )
    cumulated = {x: [0.0] * W + [1.0] for x in rejected}
    for (x, y), end in zip(pairs, ends, strict=True):
        cumulated[x][y + 1] = end / 2**STEPS

    implied, allowed = np.zeros(W), 0.0
    for x in drafted:
        q = prober.q((), x)
        share, t = float(q[x]), thresholds[x]
        implied[x] += share * t
        accept, draw = slack_errors(p, q, sampling, subject.dtype)
        allowed += share * float(accept + GRID)
        if x in cumulated:
            implied += share * (1 - t) * np.diff(cumulated[x])
            lost = 1 - min(Fraction(1), p[x] / q[x])
            if residual(p, q) is not None:
                allowed += share * float(lost * (W - 1) * (draw + GRID))
    off = float(np.abs(implied - np.array([float(w) for w in p])).sum() / 2)
    subject.observe(off / allowed)
    if not off <= allowed:
        raise WrongDistribution(
            f"the implied law of the first token is off by {off:.3g} in total variation; allowed "
            f"{allowed:.2g}, what the kernel's rounding can move",
            ratio=off / allowed,
            lines=[
                "Token      implied          target",
                *(f"  {y:<6}{implied[y]:>12.9f}{float(p[y]):>16.9f}" for y in range(W)),
            ],
        )


def _bisected(n: int, beyond: Callable[[np.ndarray], list[bool]]) -> np.ndarray:
    """For each of n monotone questions the least number of the grid that lies beyond.

    2^24 where none does.
    """
    low, high = np.zeros(n, dtype=np.int64), np.full(n, 2**STEPS, dtype=np.int64)
    for _ in range(STEPS if n else 0):
        middle = (low + high) // 2
        yes = np.array(beyond(middle))
        low, high = np.where(yes, low, middle + 1), np.where(yes, middle, high)
    return np.where(low < high, high, low)
