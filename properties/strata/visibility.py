"""Strata of visibility: who sees whom."""

from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain
from kernelassay.properties.schemes import generic, needle
from kernelassay.properties.shapes import SEEDS, mask_recipes, near_tiles, shapes
from kernelassay.properties.strata.base import Strategy, Stratum, either, requires, stratum
from kernelassay.properties.strata.values import more_queries


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


@requires("no_keys", "more_queries", "unequal_lengths")
@stratum
def no_keys(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Tk = 0: every row is empty."""
    case = draw(shapes(domain))
    case = replace(case, Tk=0, causal=draw(st.sampled_from(domain.corners)))
    return draw(generic(domain, case))


@requires("causal.bottom_right")
def rows_before_keys(domain: Domain) -> Strategy | None:
    """Bottom-right causality with fewer keys than queries: the first rows see nothing."""
    strategy = more_queries(domain)
    if strategy is None:
        return None
    return strategy.map(lambda case: replace(case, causal="bottom_right"))


@requires("mask")
@stratum
def masked_rows(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Some query rows are masked whole, others are not."""
    case = draw(shapes(domain, Tq=st.sampled_from([2, 3, 5, 17, 33])))
    axes = draw(st.sampled_from(["qk", "bqk", "hqk"]))
    return draw(generic(domain, replace(case, mask=f"rows:{draw(SEEDS)}:70:{axes}")))


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


@requires("causal.positions")
@stratum
def ring(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Keys stored in any order, as in a ring buffer that wrapped; over two key tiles."""
    B, heads, Tq = st.sampled_from([2, 1]), [(1, 1), (2, 2)], st.sampled_from([5, 17, 33])
    case = draw(shapes(domain, B=B, heads=heads, Tq=Tq, long=True))
    if domain.has("unequal_lengths"):
        most = domain.most_keys(case.B, case.Hq, case.Tq)
        case = replace(case, Tk=max(case.Tk, min(2 * min(domain.tiles) - 1, most)))
    recipe = f"ring:{draw(SEEDS)}"
    return draw(generic(domain, replace(case, causal="positions", positions=recipe)))


@requires("causal.positions", "window", "sink_tokens")
def ring_windows(domain: Domain) -> Strategy | None:
    """In such an order a window counts positions, and sink tokens are the first in memory."""
    strategy = ring(domain)
    if strategy is None:
        return None
    return st.builds(
        lambda case, left, sinks: replace(case, window=(left, None), sinks=sinks),
        strategy,
        st.sampled_from([1, 0, 7]),
        st.sampled_from([4, 1]),
    )


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


def unseen_by_mask(domain: Domain) -> Strategy | None:
    """Keys that a mask, or a bias of minus infinity, hides from every query."""
    fields = ["mask"] * domain.has("mask")
    fields += ["bias"] * domain.has("bias", "bias.minus_infinity")
    return _unseen_by_mask(domain, fields) if fields else None


@st.composite
def _unseen_by_mask(draw: st.DrawFn, domain: Domain, fields: list[str]) -> AttendCase:
    case = draw(shapes(domain, long=True))
    cut = draw(st.integers(1, case.Tk - 1))
    mask = draw(st.sampled_from([f"prefix:{cut}", f"suffix:{cut}", f"keep:{draw(SEEDS)}:50:k"]))
    if draw(st.sampled_from(fields)) == "mask":
        return draw(generic(domain, replace(case, mask=mask)))
    return draw(generic(domain, replace(case, bias=f"fill:-inf:{mask}")))


@requires("causal.top_left", "unequal_lengths")
@stratum
def unseen_by_corner(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Top-left causality with more keys than queries: the last keys are seen by no query."""
    case = draw(shapes(domain, long=True, Tq=st.sampled_from([1, 2, 3, 7])))
    return draw(generic(domain, replace(case, causal="top_left", Tk=max(case.Tk, case.Tq + 1))))
