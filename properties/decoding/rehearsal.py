"""How a case's requests run by the oracle: what labels count and greedy laws expect.

Sampled requests run under the uniforms of the case, whatever noise the kernel has: for a kernel
with noise of its own a label says what such a request can do.
"""

from fractions import Fraction

from kernelassay.oracle.decoding import Turn, greedy_turns, runs
from kernelassay.properties.decoding.models import Models
from kernelassay.properties.decoding.noise import exactly, uniforms_of


def rehearsed(
    models: Models, r: int, slack: Fraction = Fraction(0)
) -> frozenset[tuple[Turn, ...]]:
    """The right rounds of request r: one, or more where laws that are off by *slack* decide so.

    Of a greedy request those of a draft model that takes its likeliest tokens.
    """
    case, task = models.case, models.task(r)
    target, draft, lookup = models.target(r), models.draft(r), models.lookup(r)
    if r in case.greedy:
        return frozenset({greedy_turns(task, target, draft, lookup)})
    noise = exactly(uniforms_of(case, [(r, 0)]), 0, models.decoding.shared_draw)
    return runs(task, target, draft, noise, slack, lookup)
