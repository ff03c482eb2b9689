"""Strata for laws that compare several calls, or expect a refusal."""

from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.content import bits_per_column
from kernelassay.properties.domain import Domain, lacking
from kernelassay.properties.memory import VIEWS
from kernelassay.properties.schemes import generic
from kernelassay.properties.shapes import masked, scored, shapes
from kernelassay.properties.strata.base import Strategy, Stratum, requires, stratum


@stratum
def several_requests(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Two or three requests, one of them looked at."""
    several, heads = st.sampled_from([2, 3]), domain.heads()[:4]
    case = draw(shapes(domain, B=several, heads=heads, long=True, fewest=2))
    case = draw(scored(domain, draw(masked(domain, case))))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 2)))))


@stratum
def several_rows(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """At least two query rows, one of them looked at."""
    case = draw(shapes(domain, Tq=st.sampled_from([2, 3, 5, 17, 33])))
    case = draw(scored(domain, draw(masked(domain, case))))
    return draw(generic(domain, replace(case, at=draw(st.integers(0, 32)))))


def view(name: str) -> Stratum:
    """The same content in another layout; the name says which (`memory.VIEWS`)."""

    @requires("strides")
    @stratum
    def build(draw: st.DrawFn, domain: Domain) -> AttendCase:
        case = draw(masked(domain, draw(shapes(domain, long=True))))
        return draw(generic(domain, replace(case, view=name)))

    return build


views = {f"view_{name}": view(name) for name in VIEWS[1:]}
"""Label -> stratum, for each view that is not contiguous."""


def far(axis: int) -> Stratum:
    """Requests (0), heads (1) or tokens (2) that a law lays far apart; `at` says which."""

    @requires("strides")
    @stratum
    def build(draw: st.DrawFn, domain: Domain) -> AttendCase:
        several, tokens = draw(st.sampled_from([2, 3])), draw(st.sampled_from([5, 33]))
        B, H = (several, 1) if axis == 0 else (1, several if axis == 1 else 1)
        T = max(domain.min_keys, min(tokens, domain.most_square(B, H)))
        D = draw(st.sampled_from(domain.head_sizes))
        return draw(generic(domain, AttendCase(B=B, Hq=H, Hkv=H, Tq=T, Tk=T, D=D, at=axis)))

    return build


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
    """The same visibility with equal scores and values that spell the key's number.

    A soft cap leaves equal scores equal; of a bias only what hides is kept.
    """

    def equal(case: AttendCase) -> AttendCase:
        hiding = [x for x in (case.bias or "").split(";") if x.startswith("fill:-inf")]
        return replace(case, q="zeros", k="zeros", scale=None, bias=";".join(hiding) or None)

    def build(domain: Domain) -> Strategy | None:
        strategy = inner(domain)
        width, D = bits_per_column(domain.out), max(domain.head_sizes)  # fewest launches
        if strategy is None:
            return None
        return strategy.map(lambda case: replace(equal(case), D=D, v=f"bits:0:{width}"))

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
    "no_queries": {"Tq": 0},
    "value_size": {"Dv": 7},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi": "standard"},
    "bias": {"bias": "random:4:1.0:qk"},
    "bias.minus_infinity": {"bias": "fill:-inf:suffix:1"},
    "sink_logits": {"sink_logits": "level:0.0"},
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
    return replace(case, v="random:3", at=draw(st.integers(0, 9)))
