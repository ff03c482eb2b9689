"""Strata: for each label a strategy whose every case carries it.

A stratum is a function of the domain that returns a strategy, or None where the capabilities do
not allow it. A law lists the strata that it must cover, and a level's cases are dealt over them,
so that every label occurs by construction, at the smoke level too.
"""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.content import bits_per_column
from kernelassay.properties.domain import Domain, lacking
from kernelassay.properties.memory import VIEWS
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
from kernelassay.properties.shapes import SEEDS, mask_recipes, masked, near_tiles, shapes

Strategy = st.SearchStrategy[AttendCase]
Stratum = Callable[[Domain], Strategy | None]


def stratum(build: Callable[..., AttendCase]) -> Stratum:
    """A stratum from a function (draw, domain) -> case."""
    return st.composite(build)


def requires(*features: str) -> Callable[[Stratum], Stratum]:
    """The stratum exists only where all *features* are supported."""

    def decorate(inner: Stratum) -> Stratum:
        def guarded(domain: Domain) -> Strategy | None:
            return inner(domain) if domain.has(*features) else None

        return guarded

    return decorate


def either(*features: str) -> Callable[[Stratum], Stratum]:
    """The stratum exists where any of *features* is supported."""

    def decorate(inner: Stratum) -> Stratum:
        def guarded(domain: Domain) -> Strategy | None:
            return inner(domain) if any(domain.has(f) for f in features) else None

        return guarded

    return decorate


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


@requires("lengths")
@stratum
def ragged(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Two or three requests of other lengths, in any order: one in part, one whole, one empty."""
    case = draw(shapes(domain, B=st.sampled_from([3, 2]), heads=[(1, 1), (2, 2)], fewest=2))
    if case.Tk == 1:
        case = replace(case, Tk=2, Tq=case.Tq if domain.has("unequal_lengths") else 2)
    part = draw(near_tiles(domain, case.Tk - 1))
    lengths = draw(st.permutations([part, case.Tk, 0][: case.B]))
    if case.B == 2 and draw(st.booleans()):
        lengths = [0 if n == case.Tk else n for n in lengths]
    case = replace(case, lengths=tuple(lengths), causal=draw(st.sampled_from(domain.corners)))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 2)))))


@requires("lengths", "causal.bottom_right", "unequal_lengths")
@stratum
def ragged_corner(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Each request has a causal corner of its own, at its own length."""
    case = draw(shapes(domain, B=2, heads=[(1, 1), (2, 1)], Tq=st.sampled_from([2, 1, 3])))
    Tk = max(case.Tk, domain.min_keys, case.Tq + 1)
    lengths = (draw(st.integers(case.Tq, Tk - 1)), Tk)
    if draw(st.booleans()):
        lengths = lengths[::-1]
    case = replace(case, B=2, Tk=Tk, lengths=lengths, causal="bottom_right")
    return draw(generic(domain, case))


@requires("mask")
@stratum
def full_mask(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A mask that differs between requests, heads, queries and keys, over several key tiles."""
    few = st.sampled_from([2, 3, 5])
    case = draw(shapes(domain, B=2, heads=[(2, 2), (2, 1)], Tq=few, long=True))
    mask = f"keep:{draw(SEEDS)}:50:bhqk"
    return draw(generic(domain, replace(case, mask=mask)))


@requires("mask")
@stratum
def boolean_mask(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A boolean mask of any broadcast shape, alone or together with a causal corner."""
    case = draw(shapes(domain))
    causal = draw(st.sampled_from(domain.corners))
    case = replace(case, mask=draw(mask_recipes(case)), causal=causal)
    return draw(generic(domain, case))


@requires("mask")
@stratum
def first_tile_masked(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Every key of the first tile is masked: the running maximum starts at minus infinity."""
    case = draw(shapes(domain, long=True))
    first = min(min(domain.tiles), case.Tk - 1)
    return draw(generic(domain, replace(case, mask=f"suffix:{first}")))


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


@requires("no_keys", "more_queries", "unequal_lengths")
@stratum
def no_keys(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Tk = 0: every row is empty."""
    case = draw(shapes(domain))
    case = replace(case, Tk=0, causal=draw(st.sampled_from(domain.corners)))
    return draw(generic(domain, case))


@requires("mask")
@stratum
def masked_rows(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Some query rows are masked whole, others are not."""
    case = draw(shapes(domain, Tq=st.sampled_from([2, 3, 5, 17, 33])))
    axes = draw(st.sampled_from(["qk", "bqk", "hqk"]))
    return draw(generic(domain, replace(case, mask=f"rows:{draw(SEEDS)}:70:{axes}")))


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
    case = draw(shapes(domain))
    case = replace(case, causal=draw(st.sampled_from(domain.corners[::-1])))
    return replace(draw(generic(domain, case)), scale=draw(st.sampled_from([-0.3, 0.0, -1.0])))


@requires("window")
@stratum
def windows(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A sliding window, most often of one or two keys, with sink tokens where supported."""
    case = draw(shapes(domain))
    left = draw(st.sampled_from([0, 1, 2, 7, None]))
    right = draw(st.sampled_from([0, 1, None] if left is not None else [0, 1]))
    sinks = draw(st.sampled_from([0, 0, 1, 4])) if domain.has("sink_tokens") else 0
    causal = draw(st.sampled_from(domain.corners))
    case = replace(case, window=(left, right), sinks=sinks, causal=causal)
    return draw(generic(domain, case))


@either("causal.bottom_right", "causal.top_left")
@requires("window", "unequal_lengths")
@stratum
def causal_windows(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A window on the left of a causal corner, shorter than the cached keys."""
    case = draw(shapes(domain, Tq=st.sampled_from([2, 3, 5]), long=True))
    left = draw(st.sampled_from([1, 2, 7]))
    causal = draw(st.sampled_from(domain.corners[1:]))
    return draw(generic(domain, replace(case, window=(left, None), causal=causal)))


@requires("window", "sink_tokens", "unequal_lengths")
@stratum
def sink_tokens(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The first keys stay visible far outside a window."""
    case = draw(shapes(domain, Tq=st.sampled_from([1, 2, 5]), long=True))
    window = (draw(st.sampled_from([1, 0, 7])), draw(st.sampled_from([None, 0])))
    return draw(generic(domain, replace(case, window=window, sinks=draw(st.sampled_from([1, 4])))))


@requires("window", "more_queries", "unequal_lengths")
@stratum
def wide_windows(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A window wider than all there is, over fewer keys than queries: it hides nothing."""
    case = draw(shapes(domain, Tq=st.sampled_from([5, 17, 33])))
    Tk = max(domain.min_keys, draw(st.sampled_from([2, 3])))
    case = replace(case, Tq=max(case.Tq, Tk + 2), Tk=Tk)
    wide = draw(st.sampled_from([100, 1000, case.Tq]))
    return draw(generic(domain, replace(case, window=(draw(st.sampled_from([None, wide])), wide))))


@requires("causal.positions")
@stratum
def positions(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Explicit positions, another offset in each request."""
    case = draw(shapes(domain, B=st.sampled_from([2, 1, 3]), long=True))
    recipe = draw(
        st.one_of(SEEDS.map("gaps:{}".format), st.integers(-2, 40).map("offset:{}".format))
    )
    return draw(generic(domain, replace(case, causal="positions", positions=recipe)))


def corner(name: str) -> Stratum:
    """A causal corner with Tq and Tk apart; the content tells keys apart."""

    @requires(f"causal.{name}", "unequal_lengths")
    @stratum
    def build(draw: st.DrawFn, domain: Domain) -> AttendCase:
        case = draw(shapes(domain))
        if case.Tq == case.Tk:
            more = domain.fits(case.B, case.Hq, case.Tq, case.Tk + 1)
            case = replace(case, Tk=case.Tk + 1) if more else replace(case, Tq=case.Tq - 1)
        return draw(needle(domain, replace(case, causal=name)))

    return build


def nothing_visible(domain: Domain) -> Strategy | None:
    """No query sees any key: masked whole, or all lengths 0, or no keys at all."""
    no_keys = domain.has("no_keys", "more_queries", "unequal_lengths")
    if not (no_keys or domain.has("mask") or domain.has("lengths")):
        return None
    return _nothing_visible(domain, no_keys)


@st.composite
def _nothing_visible(draw: st.DrawFn, domain: Domain, no_keys: bool) -> AttendCase:
    case = draw(shapes(domain))
    ways: list[dict[str, object]] = []
    if domain.has("mask"):
        ways += [{"mask": "nothing"}, {"mask": "prefix:0"}]
    if domain.has("lengths"):
        ways.append({"lengths": (0,) * case.B})
    if no_keys:
        ways.append({"Tk": 0})
    way = draw(st.sampled_from(ways))
    return draw(generic(domain, replace(case, **way)))  # type: ignore[arg-type]


@requires("lengths")
@stratum
def unseen_by_length(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Slots beyond a request's length, in the same tile as used ones and in tiles of their own."""
    case = draw(shapes(domain, long=True, B=st.sampled_from([2, 1, 3])))
    lengths = [draw(st.integers(0, case.Tk - 1)) for _ in range(case.B)]
    causal = draw(st.sampled_from(domain.corners))
    return draw(generic(domain, replace(case, lengths=tuple(lengths), causal=causal)))


@requires("mask")
@stratum
def unseen_by_mask(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Keys that a mask hides from every query."""
    case = draw(shapes(domain, long=True))
    cut = draw(st.integers(1, case.Tk - 1))
    mask = draw(st.sampled_from([f"prefix:{cut}", f"suffix:{cut}", f"keep:{draw(SEEDS)}:50:k"]))
    return draw(generic(domain, replace(case, mask=mask)))


@requires("causal.top_left", "unequal_lengths")
@stratum
def unseen_by_corner(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Top-left causality with more keys than queries: the last keys are seen by no query."""
    case = draw(shapes(domain, long=True, Tq=st.sampled_from([1, 2, 3, 7])))
    return draw(generic(domain, replace(case, causal="top_left", Tk=max(case.Tk, case.Tq + 1))))


@stratum
def several_requests(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Two or three requests, one of them looked at."""
    several, heads = st.sampled_from([2, 3]), domain.heads()[:4]
    case = draw(shapes(domain, B=several, heads=heads, long=True, fewest=2))
    case = draw(masked(domain, case))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 2)))))


@stratum
def several_rows(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """At least two query rows, one of them looked at."""
    case = draw(shapes(domain, Tq=st.sampled_from([2, 3, 5, 17, 33])))
    case = draw(masked(domain, case))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 32)))))


@requires("strides")
@stratum
def views(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A view that is not contiguous."""
    case = draw(masked(domain, draw(shapes(domain, long=True))))
    return draw(generic(domain, replace(case, view=draw(st.sampled_from(VIEWS[1:])))))


@requires("causal.bottom_right", "unequal_lengths")
@stratum
def prefill(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A causal prefill over cached context: at least two queries, no more than keys."""
    case = draw(shapes(domain, Tq=st.sampled_from([2, 3, 5, 17, 33]), long=True))
    cut = draw(st.integers(0, 31))
    Tk = max(case.Tk, domain.min_keys + 1)
    Tq = min(case.Tq, Tk - domain.min_keys + 1)  # so many keys are left for a chunk of one query
    case = replace(case, causal="bottom_right", Tq=Tq, Tk=Tk, at=cut)
    return draw(generic(domain, case))


def reading(inner: Stratum) -> Stratum:
    """The same visibility with equal scores and values that spell the key's number."""

    def build(domain: Domain) -> Strategy | None:
        strategy = inner(domain)
        width, D = bits_per_column(domain.out), max(domain.head_sizes)  # fewest launches
        if strategy is None:
            return None
        return strategy.map(
            lambda c: replace(c, D=D, q="zeros", k="zeros", v=f"bits:0:{width}", scale=None)
        )

    return build


def with_future(inner: Stratum) -> Stratum:
    """The same with a row to look at that has later tokens."""

    def build(domain: Domain) -> Strategy | None:
        strategy = inner(domain)
        if strategy is None:
            return None
        return st.builds(
            lambda c, at: replace(c, at=at, Tq=max(min(c.Tq, c.Tk), 2), Tk=max(c.Tk, 2)),
            strategy,
            st.integers(0, 7),
        )

    return build


NEEDING: dict[str, dict[str, object]] = {
    "causal.bottom_right": {"causal": "bottom_right"},
    "causal.top_left": {"causal": "top_left"},
    "causal.positions": {"causal": "positions", "positions": "offset:1"},
    "window": {"window": (1, 0)},
    "sink_tokens": {"window": (1, 0), "sinks": 1},
    "lengths": {"lengths": (2,)},
    "mask": {"mask": "keep:1:50:k"},
    "gqa": {"Hq": 2},
    "no_keys": {"Tk": 0},
    "more_queries": {"Tq": 7},
    "unequal_lengths": {"Tq": 3},
    "scale": {"scale": 0.3},
    "scale.nonpositive": {"scale": -0.3},
    "strides": {"view": "inner"},
}
"""Feature -> the fields of a case that needs it."""


@stratum
def declined(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A case that needs a feature which the kernel declines, and nothing undeclared."""
    base = AttendCase(Tq=4, Tk=4, D=domain.head_sizes[0], q="random:1", k="random:2", v="random:3")
    cases = [replace(base, **NEEDING[f]) for f in sorted(domain.declines & set(NEEDING))]  # type: ignore[arg-type]
    known = domain.supports | domain.declines
    return draw(st.sampled_from([c for c in cases if set(lacking(c, domain)) <= known] or cases))


@stratum
def malformed(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A good case, and which way to spoil it."""
    Tk = max(5, domain.min_keys)
    Tq = 3 if domain.has("unequal_lengths") else Tk
    case = AttendCase(Tq=Tq, Tk=Tk, D=domain.head_sizes[0], q="random:1", k="random:2")
    return replace(case, v="random:3", at=draw(st.integers(0, 5)))
