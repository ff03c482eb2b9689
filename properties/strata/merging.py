"""Strata of parts, splits and pages: how keys are divided and kept."""

from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain
from kernelassay.properties.schemes import generic, injected
from kernelassay.properties.shapes import SEEDS, masked, shapes
from kernelassay.properties.strata.base import requires, stratum, where

TREES = ("left", "right", "balanced")
merges = where(lambda domain: domain.merge)
paged = where(lambda domain: bool(domain.pages))


@merges
@stratum
def trees(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Three parts or more, merged two at a time in any order."""
    case = draw(masked(domain, draw(shapes(domain, long=True))))
    cuts = tuple(
        draw(st.integers(0, case.Tk)) for _ in range(draw(st.sampled_from([2, 4, 7, 16])))
    )
    order = draw(st.one_of(st.sampled_from([0, 1]), SEEDS))
    tree = draw(st.sampled_from(TREES))
    return draw(generic(domain, replace(case, cuts=cuts, tree=tree, order=order)))


@merges
@requires("merge.many")
@stratum
def many_parts(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Nine parts or more in one call."""
    case = draw(generic(domain, draw(shapes(domain, long=True))))
    n = draw(st.sampled_from([9, 17, 33]))
    return replace(case, cuts=tuple(draw(st.integers(0, case.Tk)) for _ in range(n - 1)))


@merges
@stratum
def empty_part(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """The first part is empty, or the last, or one between two others; the others are not."""
    case = draw(shapes(domain, long=True))
    inside = draw(st.integers(1, case.Tk - 1))
    ways: list[tuple[int, ...]] = [(0,), (case.Tk,)]
    if domain.has("merge.many"):
        ways += [(inside, inside), (0, inside), (inside, case.Tk), (0, 0, inside)]
    return draw(generic(domain, replace(case, cuts=draw(st.sampled_from(ways)))))


@merges
@stratum
def empty_for_some(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A part holds keys, of which some rows see none: a corner, or a mask over queries."""
    case = draw(shapes(domain, Tq=st.sampled_from([5, 3, 17]), long=True))
    ways = [{"causal": "bottom_right"}, {"mask": f"keep:{draw(SEEDS)}:30:qk"}]
    case = replace(case, **draw(st.sampled_from(ways)))  # type: ignore[arg-type]
    near = draw(st.sampled_from([case.Tk - 1, case.Tk - 2, case.Tk // 2, 1]))
    return draw(generic(domain, replace(case, cuts=(max(near, 0),))))


@merges
@stratum
def all_parts_empty(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """No part saw a key: for all rows or, in the second request, for one request."""
    case = draw(shapes(domain, B=2, heads=[(1, 1), (2, 2)], Tq=st.sampled_from([1, 2, 3])))
    lengths = draw(st.sampled_from([(0, 0), (case.Tk, 0), (0, case.Tk)]))
    return draw(generic(domain, replace(case, lengths=lengths)))


@merges
@stratum
def maxima_apart(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Parts whose maxima are 1e2 to 6e4 apart, the larger one first or last."""
    case = draw(shapes(domain, long=True))
    far = draw(st.sampled_from([100.0, 4500.0, 60000.0]))
    at = draw(st.sampled_from([0, case.Tk - 1]))
    base = draw(st.sampled_from([0.0, -far]))
    cut = (1,) if at == 0 else (case.Tk - 1,)
    more = (case.Tk // 2,) if domain.has("merge.many") and draw(st.booleans()) else ()
    keys = st.just(f"peak:{at}:{base}:{base + far}")
    return draw(injected(domain, replace(case, cuts=cut + more), keys))


@merges
@stratum
def rows_apart(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Rows whose log-sum-exps are hundreds apart: each has a maximum of its own."""
    case = draw(shapes(domain, Tq=st.sampled_from([5, 3, 17]), long=True))
    bias = f"random:{draw(SEEDS)}:300.0:bhq"
    return draw(generic(domain, replace(case, bias=bias)))


@merges
@stratum
def equal_maxima(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Equal scores: parts weigh as many keys as they have, and no more."""
    case = draw(shapes(domain, long=True))
    case = replace(case, cuts=(draw(st.integers(1, case.Tk - 1)),))
    return replace(case, k="zeros", v=draw(st.sampled_from(["onehot", f"random:{draw(SEEDS)}"])))


@merges
@stratum
def single_part(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """One part: the result is that part."""
    return draw(generic(domain, replace(draw(shapes(domain)), cuts=())))


@merges
@stratum
def single_empty_part(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """One part, in which one request saw no key."""
    case = draw(shapes(domain, B=2, heads=[(1, 1), (2, 2)]))
    lengths = draw(st.sampled_from([(0, case.Tk), (case.Tk, 0), (0, 0)]))
    return draw(generic(domain, replace(case, cuts=(), lengths=lengths)))


@where(lambda domain: domain.merge and "merge.many" in domain.declines)
@stratum
def three_parts(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Three parts in one call, or one."""
    case = draw(generic(domain, draw(shapes(domain, long=True))))
    return replace(case, cuts=draw(st.sampled_from([(1, 2), ()])))


@stratum
def cut_keys(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Keys cut anywhere, *order* more times after the first cut."""
    case = draw(shapes(domain, long=True))
    at, more = draw(st.integers(0, case.Tk)), draw(st.sampled_from([0, 1, 2, 6]))
    return draw(generic(domain, replace(case, at=at, order=more)))


@requires("causal.bottom_right", "unequal_lengths")
@stratum
def cascade(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """A prefix that every query sees, and a suffix with a causal corner."""
    case = draw(shapes(domain, Tq=st.sampled_from([2, 3, 1, 17]), long=True))
    case = replace(case, Tq=min(case.Tq, case.Tk), causal="bottom_right")
    at = draw(st.integers(0, case.Tk - case.Tq))
    return draw(generic(domain, replace(case, at=at)))


@requires("lengths")
@stratum
def cut_ragged(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Cuts past the end of a request, whose last parts are empty."""
    case = draw(shapes(domain, B=2, heads=[(1, 1), (2, 2)], long=True))
    lengths = draw(st.permutations([draw(st.integers(0, case.Tk // 2)), case.Tk]))
    at = draw(st.integers(1, case.Tk - 1))
    return draw(generic(domain, replace(case, lengths=tuple(lengths), at=at, order=1)))


@where(lambda domain: domain.splits)
@stratum
def more_splits_than_keys(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Splits that get no key."""
    case = draw(shapes(domain, B=1, heads=[(1, 1), (2, 1)]))
    few = draw(st.integers(1, 5))
    Tk = max(few, domain.min_keys) if domain.has("unequal_lengths") else case.Tk
    case = replace(case, Tk=Tk, Tq=min(case.Tq, Tk))
    return draw(generic(domain, replace(case, splits=case.Tk + draw(st.sampled_from([1, 2, 9])))))


@paged
@requires("unequal_lengths")
@stratum
def page_edges(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Lengths at a page boundary, one short of it, one past it."""
    case = draw(shapes(domain, B=st.sampled_from([2, 1]), Tq=st.sampled_from([1, 2, 3])))
    page = draw(st.sampled_from(domain.pages))
    n = page * draw(st.sampled_from([1, 2, 3])) + draw(st.sampled_from([0, 1, -1]))
    n = max(min(n, domain.most_keys(case.B, case.Hq, case.Tq)), 1)
    Tq = min(case.Tq, n)
    case = replace(case, Tq=Tq, Tk=n, page=page, causal=draw(st.sampled_from(domain.corners)))
    return draw(generic(domain, case))


@paged
@stratum
def shared_pages(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Two or three requests with the same keys, longer than a page."""
    case = draw(
        shapes(domain, B=st.sampled_from([2, 3]), heads=[(1, 1), (2, 2)], long=True, fewest=2)
    )
    case = draw(generic(domain, replace(case, causal=draw(st.sampled_from(domain.corners)))))
    return replace(case, view="expanded")


@paged
@requires("lengths")
@stratum
def reserved_pages(draw: st.DrawFn, domain: Domain) -> AttendCase:
    """Pages for more keys than a request has, full of another's content."""
    case = draw(shapes(domain, long=True, Tq=st.sampled_from([1, 2, 3])))
    page = case.page or 1
    edge = max(page * (case.Tk // page), 1)
    lengths = tuple(
        min(case.Tk, max(0, edge + draw(st.sampled_from([-1, 0, 1])))) for _ in range(case.B)
    )
    return draw(generic(domain, replace(case, lengths=lengths)))
