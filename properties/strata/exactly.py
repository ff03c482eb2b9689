"""Strata for what is exact whatever the scores: hulls, integer weights, the edges of tiles."""

import math
from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain
from kernelassay.properties.schemes import injected, peaky
from kernelassay.properties.shapes import SEEDS, masked, shapes
from kernelassay.properties.strata.base import Strategy, requires, stratum
from kernelassay.properties.strata.relations import reading


@requires("sink_logits")
@stratum
def peaky_sink(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores of some tens, and a sink among them."""
    case = draw(peaky(domain, draw(masked(domain, draw(shapes(domain, long=True))))))
    return replace(case, sink_logits=f"random:{draw(SEEDS)}:20.0")


@stratum
def peaky_equal_values(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores of some tens, and values that are all the same number: so is the output."""
    case = draw(peaky(domain, draw(masked(domain, draw(shapes(domain, long=True))))))
    return replace(case, v=f"level:{draw(st.sampled_from([3.0, -0.7]))}")


@stratum
def hidden_far_below(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores near -60,000 or -20,000, and as many keys hidden as are seen, where that can be.

    No finite number that stands for what is hidden lies below them.
    """
    case = draw(shapes(domain, long=True))
    half = max(1, case.Tk // 2)
    if domain.has("mask"):
        case = replace(case, mask=draw(st.sampled_from([f"suffix:{half}", f"prefix:{half}"])))
    elif domain.has("lengths"):
        case = replace(case, lengths=(half,) * case.B)
    centre = draw(st.sampled_from([-60000.0, -20000.0]))
    return draw(injected(domain, case, st.just(f"around:{draw(SEEDS)}:{centre}:1.5")))


@stratum
def integer_masses(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores that are logarithms of 1..m, the same for every query, and small integer values."""
    case = draw(masked(domain, draw(shapes(domain))))
    s, most = draw(SEEDS), draw(st.sampled_from([3, 2, 8, 16]))
    scale, first = (1.0, 1.0) if domain.has("scale") else (None, math.sqrt(case.D))
    return replace(
        case, q=f"first:{first}", k=f"logs:{s}:{most}", v=f"lattice:{s + 1}:3", scale=scale
    )


@stratum
def _every_edge(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """As many keys as two tiles of the largest size and one more, if a launch may cost that."""
    most = 2 * max(domain.tiles) + 1
    causal = draw(st.sampled_from(domain.corners))
    case = AttendCase(D=max(domain.head_sizes), Tq=draw(st.sampled_from([1, 2, 3])), causal=causal)
    if domain.has("unequal_lengths"):
        Tk = max(domain.min_keys, min(most, domain.most_keys(1, 1, case.Tq)))
        return replace(case, Tk=Tk, Tq=min(case.Tq, Tk))
    Tk = max(domain.min_keys, min(most, domain.most_square(1, 1)))
    return replace(case, Tk=Tk, Tq=Tk)


tile_edges = reading(_every_edge)


@requires("lengths")
def tile_edges_by_length(domain: Domain) -> Strategy | None:
    """The same with slots beyond the length."""
    strategy = tile_edges(domain)
    return None if strategy is None else strategy.map(lambda c: replace(c, lengths=(c.Tk,) * c.B))
