"""Strata of shapes and content: what the numbers are."""

from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain
from kernelassay.properties.schemes import (
    LN2,
    far,
    generic,
    injected,
    lattice,
    needle,
    peaky,
    ramps,
    spiked,
    spots,
)
from kernelassay.properties.shapes import SEEDS, masked, shapes
from kernelassay.properties.strata.base import Strategy, requires, stratum


@stratum
def plain(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Any shape, any visibility, simple or random content."""
    case = draw(shapes(domain))
    case = draw(masked(domain, case))
    return draw(st.one_of(spots(case), lattice(domain, case), generic(domain, case)))


@stratum
def random_content(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Independent random content in shapes of some size."""
    case = draw(masked(domain, draw(shapes(domain))))
    return draw(generic(domain, case))


@requires("unequal_lengths")
@stratum
def partial_tile(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The keys end in a partial tile, after at least one whole one."""
    case = draw(shapes(domain, long=True))
    case = replace(case, causal=draw(st.sampled_from(domain.corners)))
    return draw(st.one_of(spots(case), generic(domain, case)))


@stratum
def padded_head(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A head size that kernels pad to a power of two, if there is one; the default scale."""
    case = draw(shapes(domain, long=True))
    sizes = [n for n in domain.head_sizes if n & (n - 1)] or [max(domain.head_sizes)]
    made = draw(generic(domain, replace(case, D=draw(st.sampled_from(sizes)))))
    return replace(made, scale=None)


@requires("value_size")
def value_size(domain: Domain) -> Strategy | None:
    """Values of another size than keys, either way round, where there are two; default scale."""
    return None if len(domain.head_sizes) < 2 else _value_size(domain)


@st.composite
def _value_size(draw: st.DrawFn, domain: Domain) -> AttendCase:
    case = draw(shapes(domain, long=True))
    sizes = draw(st.permutations(domain.head_sizes))
    case = draw(generic(domain, replace(case, causal=draw(st.sampled_from(domain.corners)))))
    return replace(case, D=sizes[0], Dv=sizes[1], scale=None)


@requires("no_queries", "unequal_lengths")
@stratum
def no_queries(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Tq = 0: there is nothing to compute, and an output of that shape."""
    case = draw(shapes(domain))
    case = replace(case, Tq=0, causal=draw(st.sampled_from(domain.corners)))
    return draw(generic(domain, case))


@stratum
def equal_values(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Every value is the same number, and so is the output: only the weights' sum can be wrong."""
    case = draw(generic(domain, draw(masked(domain, draw(shapes(domain, long=True))))))
    return replace(case, v=f"level:{draw(st.sampled_from([1.5, -3.0, 300.0]))}")


@requires("unequal_lengths")
@stratum
def decode(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """One to three queries over more keys, causal where there is a corner."""
    case = draw(shapes(domain, Tq=st.sampled_from([1, 2, 3]), long=True))
    case = replace(case, causal=draw(st.sampled_from(domain.corners[::-1])))
    return draw(generic(domain, case))


@requires("more_queries", "unequal_lengths")
@stratum
def more_queries(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Fewer keys than queries; under bottom-right causality the first rows see nothing."""
    case = draw(shapes(domain, Tq=st.sampled_from([2, 3, 5, 17, 33])))
    Tq = max(case.Tq, domain.min_keys + 1)
    Tk = draw(st.integers(domain.min_keys, Tq - 1))
    case = replace(case, Tq=Tq, Tk=Tk, causal=draw(st.sampled_from(domain.corners[::-1])))
    return draw(generic(domain, case))


@requires("gqa")
@stratum
def grouped(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """1 < Hkv < Hq, groups that are no power of two among them; every head's content differs."""
    heads, B = [(4, 2), (6, 2), (6, 3)], st.sampled_from([1, 2])
    case = draw(shapes(domain, heads=heads, B=B, long=True))
    case = draw(masked(domain, case))
    return draw(st.one_of(generic(domain, case), st.just(replace(case, v="onehot"))))


@requires("causal.bottom_right", "unequal_lengths")
@stratum
def whole_tiles(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The keys end with a tile, and causality cuts into it."""
    case = draw(shapes(domain, B=1, heads=[(1, 1), (2, 2)], Tq=st.sampled_from([3, 2, 17])))
    tile = draw(st.sampled_from(domain.tiles))
    Tk = tile * draw(st.sampled_from([1, 2]))
    if not domain.fits(1, case.Hq, case.Tq, Tk):
        case, Tk = replace(case, Hq=1, Hkv=1), tile
    Tq = min(case.Tq, Tk)
    return draw(needle(domain, replace(case, Tq=Tq, Tk=Tk, causal="bottom_right")))


def stretched(domain: Domain, case: AttendCase, Tk: int) -> AttendCase:
    """*case* with *Tk* keys, or as many as one launch may cost."""
    if domain.has("unequal_lengths"):
        return replace(case, Tk=max(case.Tk, min(Tk, domain.most_keys(1, case.Hq, case.Tq))))
    most = max(case.Tk, min(Tk, domain.most_square(1, case.Hq)))
    return replace(case, Tq=most, Tk=most)


@stratum
def long_context(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """More keys than where kernels change their algorithm: 1025, or what a launch may cost."""
    case = draw(shapes(domain, B=1, heads=[(1, 1)], Tq=st.sampled_from([1, 2]), long=True))
    case = stretched(domain, case, draw(st.sampled_from([1025, 513, 1024])))
    case = replace(case, D=max(domain.head_sizes))
    mask = f"keep:{draw(SEEDS)}:50:k" if domain.has("mask") else None
    return draw(generic(domain, replace(case, mask=mask)))


@stratum
def long_sums(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Equal weights over many tiles, values that add up: to 68,000, past the largest of fp16."""
    case = draw(shapes(domain, B=1, heads=[(1, 1)], Tq=st.sampled_from([1, 2]), long=True))
    case = stretched(domain, case, draw(st.sampled_from([1700, 600])))
    return replace(case, k=f"random:{draw(SEEDS)}", v=f"around:{draw(SEEDS)}:40.0:1.0")


@stratum
def scores_far_above(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores near 99, 4500 or 6e4: exp of any of them overflows."""
    return draw(injected(domain, draw(shapes(domain)), far(False, domain.dtype)))


@stratum
def scores_far_below(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores near -6e4 or -110: exp of any of them vanishes, finite fills are not below them."""
    case = draw(shapes(domain, long=True))
    hidden = draw(st.integers(1, max(1, case.Tk - 1)))
    if domain.has("mask"):
        case = replace(case, mask=f"suffix:{min(hidden, case.Tk - 1)}")
    elif domain.has("lengths"):
        case = replace(case, lengths=(hidden,) * case.B)
    return draw(injected(domain, case, far(True, domain.dtype)))


@stratum
def scores_rising(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The maximum moves in every tile."""
    return draw(injected(domain, draw(shapes(domain, long=True)), ramps(True)))


@stratum
def scores_leap(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The last key scores 200 above all others: it alone counts, and comes in the last tile."""
    case = draw(shapes(domain, long=True))
    return draw(injected(domain, case, st.just(f"peak:{case.Tk - 1}:0.0:200.0")))


@stratum
def scores_falling(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The maximum is in the first tile."""
    return draw(injected(domain, draw(shapes(domain, long=True)), ramps(False)))


@stratum
def spike_rows(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A missed rescale at any tile is visible."""
    case = draw(shapes(domain, long=True, B=1, heads=[(1, 1)]))
    return spiked(domain, case)


def large_products(domain: Domain) -> Strategy | None:
    """Products of q and k of 9e4 or 1e6, past the largest of fp16, that cancel in each score.

    Sums in fp32 hold them, and the sum is moderate before any scale; a product that is rounded on
    its own overflows in fp16, and in bf16 is off by hundreds. A declared fp16 accumulator may
    overflow.
    """
    fits = max(domain.head_sizes) > 1 and not domain.fp16_sums
    return _large_products(domain) if fits else None


@st.composite
def _large_products(draw: st.DrawFn, domain: Domain) -> AttendCase:
    case = draw(shapes(domain, heads=[(1, 1), (2, 2)]))
    a, scale = draw(st.sampled_from([(300.0, 0.002), (1000.0, 0.0002)]))
    return replace(
        case,
        D=max(domain.head_sizes),
        q=f"pair:0:{a}:{a}:0.0",
        k=f"pair:{draw(SEEDS)}:{a}:{-a}:{a / 200}",
        v=f"random:{draw(SEEDS)}",
        scale=scale if domain.has("scale") else None,
    )


@stratum
def needles(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Each query seeks one key near its own position, causal where there is a corner."""
    case = draw(shapes(domain))
    case = replace(case, causal=draw(st.sampled_from(domain.corners[::-1])))
    return draw(needle(domain, case))


@stratum
def one_hot_softmax(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores of some tens: nearly all the weight on one key."""
    return draw(peaky(domain, draw(masked(domain, draw(shapes(domain))))))


@stratum
def counting(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """q = 0: every visible key has the same weight."""
    case = draw(masked(domain, draw(shapes(domain))))
    return replace(case, k=draw(st.sampled_from(["zeros", "random:1"])), v="onehot")


@requires("scale")
@stratum
def dyadic(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """scale = ln 2 and integer scores: every weight is a power of two."""
    case = draw(masked(domain, draw(shapes(domain))))
    s = draw(SEEDS)
    most = draw(st.sampled_from([1, 3, 6]))
    return replace(
        case, q="first:1.0", k=f"integers:{s}:{most}", v=f"lattice:{s + 1}:3", scale=LN2
    )


@requires("scale", "scale.nonpositive")
@stratum
def nonpositive_scale(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A scale of zero or below, causal where there is a corner: hidden scores stay hidden."""
    return _scaled(draw, domain, draw(st.sampled_from([-0.3, 0.0, -1.0])))


@requires("scale", "scale.nonpositive")
@stratum
def zero_scale(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A scale of zero, which is not none given: all that is visible weighs the same."""
    return _scaled(draw, domain, 0.0)


def _scaled(draw: st.DrawFn, domain: Domain, scale: float) -> AttendCase:
    case = draw(shapes(domain))
    case = replace(case, causal=draw(st.sampled_from(domain.corners[::-1])))
    return replace(draw(generic(domain, case)), scale=scale)
