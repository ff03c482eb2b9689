"""Strata of scoring: what is done to a score between q.k and the softmax, and the sink."""

from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain
from kernelassay.properties.schemes import generic, injected, peaky
from kernelassay.properties.shapes import (
    SEEDS,
    alibi_recipes,
    bias_recipes,
    caps,
    scored,
    shapes,
    sink_recipes,
)
from kernelassay.properties.strata.base import Strategy, Stratum, either, requires, stratum
from kernelassay.properties.strata.visibility import (
    masked_rows,
    nothing_visible,
    rows_before_keys,
)

ODD_HEADS = [(3, 1), (6, 2), (3, 3), (6, 3)]
"""Heads whose number is no power of two, as slopes and logits of each of them need."""
FEW = st.sampled_from([2, 3, 5])


@st.composite
def _tens(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores of some tens in every row: in a small head those of a small query are small."""
    case = replace(draw(shapes(domain, long=True)), D=max(domain.head_sizes))
    return draw(peaky(domain, replace(case, causal=draw(st.sampled_from(domain.corners)))))


@requires("softcap")
@stratum
def softcap(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores of some tens under a cap of 1 to 5: it bites, and still tells scores apart."""
    return replace(draw(_tens(domain)), softcap=draw(caps))


@requires("softcap")
@stratum
def softcap_far(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores near 4500 or -4500 under a cap of 30 or 50: exp(score / cap) overflows."""
    centre = st.sampled_from([4500.0, -4500.0])
    keys = st.builds("around:{}:{}:1.5".format, SEEDS, centre)
    case = draw(injected(domain, draw(shapes(domain)), keys))
    return replace(case, softcap=draw(st.sampled_from([50.0, 30.0])))


@either("mask", "lengths", "causal.bottom_right", "causal.top_left")
@requires("softcap")
@stratum
def softcap_and_mask(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A cap, and keys that are hidden: they must not come back with the weight of -cap."""
    case = draw(shapes(domain, Tq=st.sampled_from([3, 2, 17]), long=True))
    ways: list[dict[str, object]] = [{"causal": corner} for corner in domain.corners[1:]]
    if domain.has("mask"):
        ways.insert(0, {"mask": f"keep:{draw(SEEDS)}:50:k"})
    if domain.has("lengths"):
        ways.append({"lengths": tuple(draw(st.integers(1, case.Tk - 1)) for _ in range(case.B))})
    case = replace(case, **draw(st.sampled_from(ways)))  # type: ignore[arg-type]
    return replace(draw(generic(domain, case)), softcap=draw(caps))


@requires("softcap", "bias")
@stratum
def softcap_and_bias(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Scores of some tens and a bias: the cap comes first."""
    bias = f"random:{draw(SEEDS)}:3.0:bhqk"
    return replace(draw(_tens(domain)), softcap=draw(caps), bias=bias)


@requires("alibi")
@stratum
def alibi(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Another slope for each head, more keys than queries, keys on both sides of a query."""
    B, Tq = st.sampled_from([1, 2]), st.sampled_from([3, 2, 17])
    case = draw(shapes(domain, B=B, heads=ODD_HEADS, Tq=Tq, long=True))
    case = replace(case, causal=draw(st.sampled_from(domain.corners)), alibi=draw(alibi_recipes))
    return draw(generic(domain, case))


@requires("alibi", "lengths")
@stratum
def alibi_ragged(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The last query of each request is at the end of that request's keys."""
    case = draw(shapes(domain, B=2, heads=[(2, 1), (2, 2), (1, 1)], Tq=FEW, long=True))
    lengths = draw(st.permutations([draw(st.integers(1, case.Tk - 1)), case.Tk]))
    case = replace(case, lengths=tuple(lengths), alibi=draw(alibi_recipes))
    return draw(generic(domain, replace(case, causal=draw(st.sampled_from(domain.corners)))))


@requires("alibi", "causal.positions")
@stratum
def alibi_positions(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Distances between given positions, not between places in memory."""
    case = draw(shapes(domain, heads=ODD_HEADS, Tq=st.sampled_from([5, 3, 17]), long=True))
    recipe = draw(st.sampled_from(["ring", "gaps", "offset"]))
    case = replace(case, causal="positions", positions=f"{recipe}:{draw(SEEDS)}")
    return draw(generic(domain, replace(case, alibi=draw(alibi_recipes))))


@requires("bias")
@stratum
def bias(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A bias that varies over all axes, or is broadcast over any of them; several key tiles."""
    case = draw(shapes(domain, B=2, heads=[(2, 1), (2, 2)], Tq=FEW, long=True))
    causal = draw(st.sampled_from(domain.corners))
    return draw(generic(domain, replace(case, bias=draw(bias_recipes), causal=causal)))


@requires("bias")
@stratum
def row_bias(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The same bias for every key of a row: it moves the LSE alone."""
    case = draw(shapes(domain, B=2, heads=[(2, 1), (2, 2)], Tq=FEW))
    axes = draw(st.sampled_from(["bhq", "h", "", "b", "q", "bh", "bq", "hq"]))
    return draw(generic(domain, replace(case, bias=f"random:{draw(SEEDS)}:2.0:{axes}")))


@requires("bias", "bias.minus_infinity")
@stratum
def bias_minus_infinity(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A bias of minus infinity hides keys, alone or under a causal corner; whole rows, too."""
    case = draw(shapes(domain, B=2, heads=[(2, 1), (2, 2)], Tq=FEW, long=True))
    recipe = draw(st.sampled_from(["keep:{}:50:bhqk", "rows:{}:70:qk", "keep:{}:50:k"]))
    causal = draw(st.sampled_from(domain.corners))
    case = replace(case, bias=f"fill:-inf:{recipe.format(draw(SEEDS))}", causal=causal)
    return draw(generic(domain, case))


@requires("bias", "bias.minus_infinity")
@stratum
def bias_and_minus_infinity(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A bias that hides some keys and moves the others: it is no mask."""
    case = draw(shapes(domain, Tq=FEW, long=True))
    axes = draw(st.sampled_from(["bhqk", "k", "qk"]))
    seed = draw(SEEDS)
    moved, hidden = f"random:{seed}:2.0:{axes}", f"fill:-inf:keep:{seed + 1}:60:{axes}"
    return draw(generic(domain, replace(case, bias=f"{moved};{hidden}")))


@requires("bias", "bias.minus_infinity")
@stratum
def bias_hides_rows(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A bias of minus infinity for every key of some rows, the first among them."""
    case = draw(shapes(domain, Tq=st.sampled_from([2, 3, 5, 17, 33])))
    axes = draw(st.sampled_from(["qk", "bqk", "hqk"]))
    return draw(generic(domain, replace(case, bias=f"fill:-inf:rows:{draw(SEEDS)}:70:{axes}")))


@requires("bias")
@stratum
def bias_far_below(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """About the least number of fp16, for some keys and for all keys of a row: not minus infinity.

    A row that has it everywhere is a softmax like any other, and what a corner hides stays hidden.
    """
    case = draw(shapes(domain, Tq=FEW, long=True))
    fill = draw(st.sampled_from([-65504.0, -60000.0]))
    causal = draw(st.sampled_from(domain.corners[::-1]))
    case = replace(case, causal=causal, bias=f"fill:{fill}:rows:{draw(SEEDS)}:70:qk")
    return draw(generic(domain, case))


@requires("bias")
@stratum
def bias_far_above(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A bias of 200 or more for some keys: it counts in the maximum that is subtracted."""
    case = draw(shapes(domain, Tq=FEW, long=True))
    high = draw(st.sampled_from([200.0, 4500.0]))
    return draw(generic(domain, replace(case, bias=f"fill:{high}:keep:{draw(SEEDS)}:50:qk")))


@requires("sink_logits")
@stratum
def sink_logits(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A sink near the scores, another one for each head; several key tiles."""
    case = draw(shapes(domain, heads=ODD_HEADS, long=True))
    case = replace(case, causal=draw(st.sampled_from(domain.corners)))
    return draw(generic(domain, replace(case, sink_logits=draw(sink_recipes))))


@requires("sink_logits")
@stratum
def sink_far(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A sink far above all scores, far below, or of minus infinity, which is none."""
    case = draw(generic(domain, draw(shapes(domain, long=True))))
    level = draw(st.sampled_from(["100.0", "-inf", "4500.0", "-110.0", "-60000.0"]))
    return replace(case, sink_logits=f"level:{level}")


@requires("sink_logits")
def sink_of_empty_rows(domain: Domain) -> Strategy | None:
    """Rows that see no key have an LSE if there is a sink, and none if it is minus infinity."""
    built = [build(domain) for build in (masked_rows, rows_before_keys, nothing_visible)]
    some = [strategy for strategy in built if strategy is not None]
    if not some:
        return None
    logits = st.one_of(sink_recipes, st.just("level:-inf"))
    return st.builds(lambda case, s: replace(case, sink_logits=s), st.one_of(some), logits)


def with_scoring(inner: Stratum) -> Stratum:
    """The same with a soft cap, ALiBi, a bias or a sink."""

    @either("softcap", "alibi", "bias", "sink_logits")
    def build(domain: Domain) -> Strategy | None:
        strategy = inner(domain)
        if strategy is None:
            return None
        return strategy.flatmap(lambda case: scored(domain, case, always=True))

    return build
