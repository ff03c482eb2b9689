"""Strata of programs, one for each label: what is appended, cut, shared, moved, freed."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from kernelassay.properties.caching.builder import Builder, Strategy, Stratum, stratum
from kernelassay.properties.caching.case import CacheCase
from kernelassay.properties.caching.domain import CacheDomain
from kernelassay.properties.domain import lacking


@stratum()
def append_held(b: Builder) -> None:
    """Entries are appended to entries."""
    b.filled(1, 5)
    b.filled(1, 5)
    b.appends()


@stratum(page=2)
def across_page(b: Builder) -> None:
    """An append begins inside a page and ends in another one."""
    assert b.page is not None
    inside = b.number(1, b.page - 1)
    b.append(*[inside] * b.R)
    b.append(*[b.page - inside + b.number(1, b.page)] * b.R)
    b.appends()


@stratum(page=1)
def several_pages(b: Builder) -> None:
    """An append takes more than two pages."""
    assert b.page is not None
    b.some(2)
    b.append(*[2 * b.page + 1 + b.number(0, 1)] * b.R)
    b.appends(1)


@stratum("cache.ragged", "cache.requests", least=2)
def nothing_first(b: Builder) -> None:
    """The first request gets nothing, others do."""
    if b.draw(st.booleans()):
        b.some()
    b.append(0, *(b.number(1, 5) for _ in range(b.R - 1)))
    b.appends()


@stratum("cache.ragged", "cache.requests", least=2)
def nothing_last(b: Builder) -> None:
    """The last request gets nothing, others do."""
    if b.draw(st.booleans()):
        b.some()
    b.append(*(b.number(1, 5) for _ in range(b.R - 1)), 0)
    b.appends()


@stratum("cache.ragged", "cache.requests", least=2)
def unequal_appends(b: Builder) -> None:
    """Requests get different numbers of entries."""
    first = b.number(1, 4)
    b.append(first, *(first + b.number(1, 3) for _ in range(b.R - 1)))
    b.some()
    b.appends(1)


@stratum()
def nothing_appended(b: Builder) -> None:
    """An append brings nothing, as a step without drafts does, then another brings something."""
    b.filled(1, 4)
    b.append(*[0] * b.R)
    b.filled(1, 2)


@stratum("cache.requests", least=2)
def several_requests(b: Builder) -> None:
    """Two requests or more, any steps."""
    b.filled(1, 4)
    for _ in range(b.number(1, 3)):
        b.anything()


@stratum("cache.requests", "cache.ragged", least=2)
def one_goes_on(b: Builder) -> None:
    """One request loses entries, where that can be, and gets some, while others hold theirs."""
    b.filled(2, 5)
    r = b.request()
    if b.can("truncate"):
        b.truncate({r: b.number(0, 1)})
    b.one(r, b.number(1, 3))
    b.more(1)


@stratum("cache.truncate")
def truncate_all(b: Builder) -> None:
    """A request is cut to nothing, and begins anew."""
    b.filled(1, 5)
    b.truncate({b.request(): 0})
    b.filled(1, 5)


@stratum("cache.truncate", page=2)
def truncate_to_page(b: Builder) -> None:
    """A request is cut to whole pages, and goes on."""
    assert b.page is not None
    b.filled(b.page + 1, b.page + 3)
    b.truncate({b.request(): b.page})
    b.filled(1, 4)
    b.more(1)


@stratum("cache.truncate", page=2)
def truncate_inside_page(b: Builder) -> None:
    """A request is cut inside a page, and goes on."""
    assert b.page is not None
    b.filled(b.page, b.page + 3)
    b.truncate({b.request(): b.number(1, b.page - 1)})
    b.filled(1, 4)
    b.more(1)


@stratum("cache.truncate", page=1)
def truncate_frees_page(b: Builder) -> None:
    """A cut leaves a page without entries; other requests may get it."""
    assert b.page is not None
    r = b.request()
    b.filled(b.page + 1, 2 * b.page + 2)
    b.truncate({r: b.number(0, (b.lengths[r] - 1) // b.page * b.page)})
    b.filled(1, b.page + 1)


@stratum("cache.truncate")
def truncate_nothing(b: Builder) -> None:
    """All drafts were accepted: nothing goes."""
    b.filled(1, 4)
    b.truncate({})
    b.filled(1, 3)
    b.more(1)


@stratum("cache.truncate", "cache.ragged", "cache.requests", least=2)
def truncate_unequal(b: Builder) -> None:
    """Requests lose different numbers of entries, some none."""
    b.filled(2, 5)
    kept = {r: b.number(0, L) for r, L in enumerate(b.lengths)}
    first, second = b.draw(st.sampled_from([(0, 1), (1, 0)]))
    kept[first] = b.lengths[first]
    kept[second] = b.number(0, b.lengths[second] - 1)
    b.truncate(kept)
    b.some(3)


@stratum("cache.truncate")
def append_after_truncate(b: Builder) -> None:
    """Drafts are appended, some of them go, others come: rounds of speculative decoding."""
    b.filled(1, 4)
    for _ in range(b.number(1, 2)):
        b.filled(1, 4)
        r = b.request()
        b.truncate({r: b.number(max(b.least_kept(r), b.lengths[r] - 4), b.lengths[r] - 1)})
        b.filled(1, 3)


@stratum("cache.fork", "cache.requests", "cache.ragged", least=2, page=2)
def fork_inside_page(b: Builder) -> None:
    """A page is shared up to a slot inside; child or parent, or both, go on."""
    assert b.page is not None
    parent = b.request()
    child = b.request(parent)
    b.one(parent, b.page + b.number(1, b.page - 1))
    L = b.lengths[parent]
    b.fork(parent, child, b.number(L // b.page * b.page + 1, L))
    _both_go_on(b, parent, child)


def _both_go_on(b: Builder, parent: int, child: int) -> None:
    """Entries for the child or the parent first, or for both at once, then any steps."""
    first = b.draw(st.sampled_from([child, parent, None]))
    if first is None:
        b.filled(1, 2)
    else:
        b.one(first, b.number(1, 2))
        b.one(parent if first == child else child, b.number(1, 2))
    b.more(1)


@stratum("cache.fork", "cache.requests", "cache.ragged", least=2, page=2)
def copied_on_write(b: Builder) -> None:
    """A page that is shared, whole or in part, is written to."""
    assert b.page is not None
    parent = b.request()
    child = b.request(parent)
    b.one(parent, b.number(1, 2 * b.page))
    L = b.lengths[parent]
    inside = [n for n in range(1, L + 1) if n % b.page]
    b.fork(parent, child, b.draw(st.sampled_from(inside)))
    b.one(child, b.number(1, b.page + 1))
    if b.R > 2 and b.draw(st.booleans()):
        b.fork(child, next(r for r in range(b.R) if r not in (parent, child)), b.lengths[child])
        b.filled(1, 2)
    b.more(1)


@stratum("cache.fork", "cache.requests", least=2)
def forked(b: Builder) -> None:
    """A request begins with the entries of another one; both go on."""
    parent = b.request()
    child = b.request(parent)
    if b.draw(st.booleans()):
        b.filled(1, 5)
    else:
        b.one(parent, b.number(1, 6))
    L = b.lengths[parent]
    b.fork(parent, child, b.number(max(1, b.least_kept(parent)), L))
    b.filled(1, 3)
    b.more(1)


@stratum("cache.fork", "cache.requests", "cache.ragged", least=2)
def fork_over_entries(b: Builder) -> None:
    """The child had entries, which go."""
    b.filled(1, 5)
    parent = b.request()
    b.fork(parent, b.request(parent), b.number(b.least_kept(parent), b.lengths[parent]))
    b.filled(0, 3)
    b.more(1)


@stratum("cache.compact", "cache.ragged")
def scattered(b: Builder) -> None:
    """Accepted nodes of a tree lie apart: they move together, and the request goes on."""
    b.filled(3, 7)
    r = b.request()
    L = b.lengths[r]
    first = b.number(0, L - 3)
    kept = [i for i in range(L - first) if b.draw(st.booleans())]
    if not any(y != x + 1 for x, y in pairwise(kept)):
        kept = [0, 2]
    b.take("compact", r, first, tuple(kept))
    b.filled(1, 3)


@stratum("cache.compact", "cache.ragged")
def several_moved(b: Builder) -> None:
    """Several entries move over one another."""
    b.filled(5, 9)
    r = b.request()
    first, gap = b.number(0, 1), b.number(1, 2)
    b.take("compact", r, first, tuple(range(gap, b.lengths[r] - first)))
    b.filled(0, 2)


@stratum("cache.compact", "cache.ragged", page=2)
def moved_across_pages(b: Builder) -> None:
    """Entries move to another page."""
    assert b.page is not None
    r = b.request()
    b.filled(b.page + 2, 2 * b.page + 2)
    L, first = b.lengths[r], b.number(0, b.page - 1)
    kept = [i for i in range(b.page - first, L - first) if b.draw(st.booleans())]
    b.take("compact", r, first, tuple(kept or [b.page - first]))
    b.filled(1, 3)


@stratum("cache.compact", "cache.fork", "cache.requests", "cache.ragged", least=2, page=1)
def compact_of_shared(b: Builder) -> None:
    """Entries of a request move, and another one holds the pages that they lie in."""
    parent = b.request()
    child = b.request(parent)
    b.one(parent, b.number(3, 7))
    b.fork(parent, child, b.lengths[parent])
    r = b.draw(st.sampled_from([child, parent]))
    first = b.number(0, b.lengths[r] - 2)
    b.take("compact", r, first, tuple(range(1, b.lengths[r] - first)))
    b.filled(0, 2)


@stratum("cache.free", "cache.ragged")
def append_after_free(b: Builder) -> None:
    """A request is freed; what it held, others may get."""
    b.filled(2, 6)
    b.free(b.request())
    b.filled(1, 6)
    b.more(1)


@stratum("cache.free", "cache.fork", "cache.requests", "cache.ragged", least=2)
def freed(b: Builder) -> None:
    """A request is freed whose pages another one holds; a third may begin."""
    parent = b.request()
    child = b.request(parent)
    b.one(parent, b.number(2, 6))
    b.fork(parent, child, b.number(1, b.lengths[parent]))
    b.free(b.draw(st.sampled_from([child, parent])))
    b.filled(1, 5)
    b.more(1)


@stratum("cache.padding")
def padded_rows(b: Builder) -> CacheCase:
    """A batch has rows that belong to nobody."""
    b.some(4)
    b.filled(1, 4)
    return b.case(padding=b.number(1, 3))


@stratum()
def program(b: Builder) -> None:
    """Any steps."""
    b.filled(1, 3)
    for _ in range(b.number(1, 4)):
        b.anything()


@stratum("cache.exhausted", page=1)
def exhausted(b: Builder) -> None:
    """A program of a cache in pages, after which the law asks for more pages than are free."""
    b.filled(1, 5)
    for _ in range(b.number(0, 2)):
        b.anything()


@stratum("cache.exhausted", "cache.fork", "cache.requests", least=2, page=2)
def shared_at_the_end(b: Builder) -> None:
    """A page that is not full is shared in the end: the next entry needs another one."""
    assert b.page is not None
    parent = b.request()
    child = b.request(parent)
    b.filled(1, 3)
    b.one(parent, b.number(0, b.page))
    L = b.lengths[parent]
    b.fork(parent, child, b.draw(st.sampled_from([n for n in range(1, L + 1) if n % b.page])))


@stratum()
def malformed(b: Builder) -> None:
    """A plain program, after which the law makes malformed calls."""
    b.filled(1, 3)


def windowed(build: Callable[[Builder], None]) -> Stratum:
    """A stratum with a window and some spare room."""

    @st.composite
    def made(draw: st.DrawFn, domain: CacheDomain) -> CacheCase:
        W = draw(st.integers(1, min(8, domain.entries // 4)))
        spare = draw(st.integers(0, 3)) if domain.has("cache.truncate") else 0
        R = draw(st.integers(1, domain.requests))
        page = draw(st.sampled_from(domain.pages)) if domain.pages else None
        builder = Builder(draw, domain, R, page, W, spare)
        build(builder)
        return builder.case()

    def guarded(domain: CacheDomain) -> Strategy | None:
        return made(domain) if domain.has("cache.window") else None

    return guarded


def _reach(b: Builder, n: int) -> None:
    """Every request gets n entries, one by one or in pieces."""
    while min(b.lengths) < n:
        left = n - min(b.lengths)
        b.append(*[b.number(1, left)] * b.R)


@windowed
def window_full(b: Builder) -> None:
    """The window is just full; then it moves on."""
    _reach(b, b.window or 1)
    b.filled(1, 3)


@windowed
def window_one_more(b: Builder) -> None:
    """One entry more than the window."""
    _reach(b, (b.window or 1) + 1)
    b.filled(1, 3)


@windowed
def wrapped(b: Builder) -> None:
    """A ring has been written over, once or more; an append may be longer than the window."""
    slots = (b.window or 1) + b.spare
    if b.draw(st.booleans()):
        _reach(b, slots - 1)
    b.filled(slots + 1, slots + 3)
    b.more(2)


@windowed
def wrapped_twice(b: Builder) -> None:
    """More than twice around."""
    slots = (b.window or 1) + b.spare
    for _ in range(3):
        b.filled(slots - slots // 4, slots)


def append_after_trim_in_window(domain: CacheDomain) -> Strategy | None:
    """Drafts are dropped after the ring has wrapped, and others come."""
    if not domain.has("cache.truncate", "cache.window"):
        return None

    @st.composite
    def made(draw: st.DrawFn) -> CacheCase:
        W, spare = draw(st.integers(1, 5)), draw(st.integers(1, 3))
        page = draw(st.sampled_from(domain.pages)) if domain.pages else None
        b = Builder(draw, domain, draw(st.integers(1, domain.requests)), page, W, spare)
        _reach(b, W + draw(st.integers(0, spare + 2)))
        for _ in range(draw(st.integers(1, 2))):
            b.append(*[b.number(1, spare)] * b.R)
            r = b.request()
            b.truncate({r: b.number(max(b.least_kept(r), b.lengths[r] - spare), b.lengths[r] - 1)})
            b.filled(1, 2)
        return b.case()

    return made()


PLAIN: dict[str, Stratum] = {
    "append_held": append_held,
    "across_page": across_page,
    "several_pages": several_pages,
    "nothing_first": nothing_first,
    "nothing_last": nothing_last,
    "unequal_appends": unequal_appends,
    "nothing_appended": nothing_appended,
}
TRUNCATED: dict[str, Stratum] = {
    "truncate_all": truncate_all,
    "truncate_to_page": truncate_to_page,
    "truncate_inside_page": truncate_inside_page,
    "truncate_frees_page": truncate_frees_page,
    "truncate_nothing": truncate_nothing,
    "truncate_unequal": truncate_unequal,
    "append_after_truncate": append_after_truncate,
}
FORKED: dict[str, Stratum] = {
    "forked": forked,
    "fork_inside_page": fork_inside_page,
    "copied_on_write": copied_on_write,
    "fork_over_entries": fork_over_entries,
}
COMPACTED: dict[str, Stratum] = {
    "scattered": scattered,
    "several_moved": several_moved,
    "moved_across_pages": moved_across_pages,
    "compact_of_shared": compact_of_shared,
}
FREED: dict[str, Stratum] = {"append_after_free": append_after_free, "freed": freed}
WINDOWED: dict[str, Stratum] = {
    "window_full": window_full,
    "window_one_more": window_one_more,
    "wrapped": wrapped,
    "wrapped_twice": wrapped_twice,
    "append_after_trim_in_window": append_after_trim_in_window,
}
ANY: dict[str, Stratum] = {
    "program": program,
    "append_held": append_held,
    "append_after_truncate": append_after_truncate,
    "forked": forked,
    "scattered": scattered,
    "append_after_free": append_after_free,
}
"""A stratum of every kind of step."""

NEEDING: dict[str, dict[str, Any]] = {
    "cache.requests": {"R": 2, "steps": (("append", (1, 1)),)},
    "cache.ragged": {"R": 2, "steps": (("append", (1, 0)),)},
    "cache.gqa": {"Hq": 2},
    "cache.truncate": {"steps": (("append", (2,)), ("truncate", (1,)))},
    "cache.compact": {"steps": (("append", (2,)), ("compact", 0, 0, (1,)))},
    "cache.fork": {"R": 2, "steps": (("append", (1, 1)), ("fork", 0, 1, 1))},
    "cache.free": {"steps": (("append", (1,)), ("free", 0))},
    "cache.window": {"window": 2},
    "cache.padding": {"padding": 1},
}
"""What a program needs the feature for."""


def declined(domain: CacheDomain) -> Strategy | None:
    """Programs that need a declined feature, and as few others not supported as can be."""
    page = domain.pages[0] if domain.pages else None
    plain: dict[str, Any] = {"page": page, "D": domain.head_sizes[0]}
    cases = {f: CacheCase(**{**plain, **fields}) for f, fields in NEEDING.items()}
    if other := [n for n in domain.head_sizes if n != plain["D"]]:
        cases["cache.value_size"] = CacheCase(**{**plain, "Dv": other[0]})
    found = [case for feature, case in cases.items() if feature in domain.declines]
    known = domain.supports | domain.declines
    few = [c for c in found if {*lacking(c, domain)} <= known]
    return st.sampled_from(few or found) if found else None
