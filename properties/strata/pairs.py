"""Strata for laws that relate two calls: heads, orders, padding, shifts, masks."""

from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain
from kernelassay.properties.schemes import generic, injected
from kernelassay.properties.shapes import (
    SEEDS,
    alibi_recipes,
    caps,
    masked,
    scored,
    shapes,
)
from kernelassay.properties.strata.base import Strategy, Stratum, either, requires, stratum
from kernelassay.properties.strata.visibility import positions

HEADS = [(2, 2), (4, 2), (6, 2), (3, 3), (6, 3)]
FEW = st.sampled_from([2, 3, 5, 17])
CORNERS = ("bottom_right", "top_left")


@stratum
def several_heads(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Two KV heads or more, one of them looked at; several key tiles."""
    case = draw(masked(domain, draw(shapes(domain, heads=HEADS, long=True))))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 5)))))


@requires("gqa")
@stratum
def grouped_heads(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """1 < Hkv < Hq: a whole group is looked at."""
    case = draw(shapes(domain, heads=[(4, 2), (6, 2), (6, 3)], B=st.sampled_from([1, 2]), Tq=FEW))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 5)))))


@either("softcap", "alibi", "bias", "sink_logits")
@stratum
def scored_heads(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Slopes, logits or biases that belong to heads."""
    case = draw(shapes(domain, heads=[(2, 2), (3, 3)], Tq=FEW, long=True))
    case = draw(scored(domain, case, always=True))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 5)))))


@requires("alibi")
@stratum
def sloped_heads(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A slope for each of two or three heads, over distances that tell them apart."""
    case = draw(shapes(domain, heads=[(2, 2), (3, 3)], Tq=FEW, long=True))
    case = replace(case, alibi=draw(alibi_recipes), causal=draw(st.sampled_from(domain.corners)))
    return draw(generic(domain, case))


@stratum
def any_order(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """No position counts; there may be a mask, a bias, a soft cap or a sink."""
    case = draw(shapes(domain, long=True))
    if domain.has("mask") and draw(st.booleans()):
        axes = draw(st.sampled_from(["k", "bhqk", "qk", "bk", "hk"]))
        case = replace(case, mask=f"keep:{draw(SEEDS)}:60:{axes}")
    case = replace(draw(scored(domain, case)), alibi=None)
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 99)))))


@requires("causal.positions")
@stratum
def reordered_positions(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Explicit positions, over several key tiles: they move with the keys, and with slopes."""
    case = draw(shapes(domain, Tq=FEW, long=True))
    recipe = draw(st.sampled_from([f"offset:{case.Tk - 1}", f"gaps:{draw(SEEDS)}", "ring:1"]))
    case = replace(case, causal="positions", positions=recipe, at=draw(st.integers(0, 99)))
    if domain.has("alibi") and draw(st.booleans()):
        case = replace(case, alibi=draw(alibi_recipes))
    return draw(generic(domain, case))


@requires("causal.positions", "window")
@stratum
def reordered_window(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A window over the last positions, which after that lie in any slots."""
    case = draw(shapes(domain, Tq=FEW, long=True))
    case = replace(case, causal="positions", positions=f"offset:{case.Tk - 1}")
    case = replace(case, window=(draw(st.sampled_from([30, 7])), None))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 99)))))


@requires("lengths")
@stratum
def reordered_ragged(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Each request's own keys in another order, within its length."""
    case = draw(shapes(domain, B=2, heads=[(1, 1), (2, 2)], long=True))
    lengths = draw(st.permutations([draw(st.integers(1, case.Tk - 1)), case.Tk]))
    case = replace(case, lengths=tuple(lengths), at=draw(st.integers(0, 99)))
    return draw(generic(domain, case))


@stratum
def any_corner(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Random content in any shape under any causal corner."""
    case = draw(shapes(domain, long=True))
    return draw(generic(domain, replace(case, causal=draw(st.sampled_from(domain.corners)))))


@requires("lengths")
@stratum
def two_lengths(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Two requests over several key tiles, one a little shorter than the other."""
    case = draw(shapes(domain, B=2, heads=[(1, 1), (2, 2)], long=True))
    short = draw(st.integers(case.Tk // 2, max(1, case.Tk - 2)))
    causal = draw(st.sampled_from(domain.corners))
    case = replace(case, lengths=tuple(draw(st.permutations([short, case.Tk]))), causal=causal)
    return draw(generic(domain, case))


def padded(inner: Stratum) -> Stratum:
    """The same with room for slots after the keys; `at` and one more is their number."""

    @either("lengths", "mask")
    def build(domain: Domain) -> Strategy | None:
        strategy = inner(domain)
        if strategy is None:
            return None
        extra = st.sampled_from([0, 6, 30, 64, 126])
        return st.builds(lambda case, at: _with_room(domain, case, at), strategy, extra)

    return build


def _with_room(domain: Domain, case: AttendCase, at: int) -> AttendCase:
    """*case* with *at* or fewer slots for which there is room, or a key less than it had."""
    while at and not domain.fits(case.B, case.Hq, case.Tq, case.Tk + 1 + at):
        at = at // 4 * 2  # an odd number of slots
    if not domain.fits(case.B, case.Hq, case.Tq, case.Tk + 1 + at) and case.Tk > domain.min_keys:
        Tk = case.Tk - 1
        lengths = None if case.lengths is None else tuple(min(n, Tk) for n in case.lengths)
        case = replace(case, Tk=Tk, Tq=min(case.Tq, Tk), lengths=lengths)
    return replace(case, at=at)


padded_corner = padded(any_corner)
padded_positions = padded(positions)
padded_ragged = padded(two_lengths)


@either(*(f"causal.{name}" for name in CORNERS))
@requires("mask")
@stratum
def masked_corner(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A causal corner and a mask at once, and lengths where there are such."""
    case = draw(shapes(domain, Tq=st.sampled_from([5, 3, 17]), long=True))
    case = replace(case, causal=draw(st.sampled_from(domain.corners[1:])))
    if domain.has("lengths") and draw(st.booleans()):
        lengths = tuple(draw(st.integers(1, case.Tk)) for _ in range(case.B))
        case = replace(case, lengths=lengths)
    axes = draw(st.sampled_from(["qk", "k", "bhqk", "hk"]))
    return draw(generic(domain, replace(case, mask=f"keep:{draw(SEEDS)}:80:{axes}")))


@requires("mask", "window")
@stratum
def masked_window(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A window and a mask at once, the window shorter than what there is."""
    case = draw(shapes(domain, long=True))
    case = replace(case, window=(draw(st.sampled_from([2, 7])), None))
    case = replace(case, causal=draw(st.sampled_from(domain.corners)))
    return draw(generic(domain, replace(case, mask=f"keep:{draw(SEEDS)}:80:qk")))


@requires("mask")
@stratum
def hidden_peak(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The score that is hidden lies 20,000 above all that are seen."""
    case = draw(shapes(domain, long=True))
    key = draw(st.integers(0, case.Tk - 1))
    hide = f"prefix:{key}" if 2 * key > case.Tk else f"suffix:{key + 1}"
    peak = st.just(f"peak:{key}:0.0:20000.0")
    return draw(injected(domain, replace(case, mask=hide), peak))


@requires("bias")
@stratum
def shifted_by_bias(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A bias of some tens, the same for every key of a row; perhaps a soft cap before it."""
    case = draw(shapes(domain, heads=[(1, 1), (2, 1), (2, 2)], Tq=FEW))
    axes = draw(st.sampled_from(["bhq", "hq", "q", "bq", "h", ""]))
    case = replace(case, bias=f"random:{draw(SEEDS)}:25.0:{axes}")
    if domain.has("softcap") and draw(st.booleans()):
        case = replace(case, softcap=draw(caps))
    return draw(generic(domain, case))


@stratum
def shifted_by_channel(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Any shape and visibility; `at` picks the constant that a channel adds to the scores."""
    case = draw(masked(domain, draw(shapes(domain, long=True))))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 3)))))


@stratum
def default_scale(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Random content without a scale, in a head size for which the default is not 1."""
    case = draw(masked(domain, draw(shapes(domain, long=True))))
    sizes = [n for n in domain.head_sizes if n > 1] or [max(domain.head_sizes)]
    made = draw(generic(domain, replace(case, D=draw(st.sampled_from(sizes)))))
    return replace(made, scale=None)


@requires("sink_logits")
@stratum
def no_sink(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A sink of minus infinity, which is none."""
    case = draw(masked(domain, draw(shapes(domain, long=True))))
    return draw(generic(domain, replace(case, sink_logits="level:-inf")))


@requires("sink_logits")
@stratum
def sink_in_one_tile(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A sink over so few keys that one tile holds them."""
    case = draw(shapes(domain, Tq=FEW))
    Tk = max(domain.min_keys, min(case.Tk, min(domain.tiles)))
    case = replace(case, Tk=Tk, Tq=min(case.Tq, Tk), sink_logits=f"random:{draw(SEEDS)}:1.5")
    return draw(generic(domain, case))
