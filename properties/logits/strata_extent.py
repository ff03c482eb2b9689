"""Strata of rows of logits by their extent: far numbers, many rows, large vocabularies; calls that
must be refused.
"""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from kernelassay.properties.logits.case import LawCase
from kernelassay.properties.logits.domain import LawDomain
from kernelassay.properties.logits.rows import (
    LEVELS,
    NEEDING,
    Row,
    Strategy,
    each,
    heights,
    levels,
    logits,
    mapped,
    stratum,
    tied_at_k,
    widths,
)


@stratum()
def far_above(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Logits about 1e4."""
    return _far(draw, domain, 1)


@stratum()
def far_below(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Logits about -1e4."""
    return _far(draw, domain, -1)


def _far(draw: st.DrawFn, domain: LawDomain, sign: int) -> LawCase:
    """Rows far away as a whole, or with one such logit, with maps or without."""
    case, rows = logits(draw, domain), []
    for n, row in enumerate(case.rows):
        one = n > 0 and draw(st.booleans())
        rows.append((*row[:-1], sign * 10000) if one else tuple(sign * 10000 + x for x in row))
    case = replace(case, rows=tuple(rows), step=1.0)
    return mapped(draw, domain, case) if draw(st.booleans()) else case


@stratum()
def minus_infinity(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Some logits are -inf, with maps or without."""
    case = logits(draw, domain)
    absent = []
    for _ in range(case.height):
        stays = draw(st.integers(0, case.width - 1))
        gone = draw(st.sets(st.integers(0, case.width - 1), min_size=1, max_size=case.width))
        absent.append(tuple(sorted(gone - {stays})))
    if not any(absent):
        absent[0] = tuple(range(1, case.width))
    case = replace(case, absent=tuple(absent))
    return mapped(draw, domain, case) if draw(st.booleans()) else case


@stratum()
def equal_logits(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """All logits of a row are the same, with maps or without."""
    R, W = draw(heights(domain)), draw(widths(domain))
    case = LawCase(rows=tuple((draw(LEVELS),) * W for _ in range(R)))
    return mapped(draw, domain, case) if draw(st.booleans()) else case


@stratum()
def one_token(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """One token is all there is, or all that is not -inf."""
    R, W = draw(heights(domain)), draw(st.sampled_from([1, 2, 5]))
    W = min(W, domain.vocabulary)
    stays = draw(st.integers(0, W - 1))
    absent = (tuple(x for x in range(W) if x != stays),) * R
    case = LawCase(rows=levels(draw, R, W), absent=absent if W > 1 else None)
    return mapped(draw, domain, case) if draw(st.booleans()) else case


def many_copies(domain: LawDomain) -> Strategy | None:
    """A row that is to be looked at alone, among others and in a large batch."""
    return _many_copies(domain) if domain.most_rows > 1 else None


def copies(domain: LawDomain) -> st.SearchStrategy[int]:
    """Sizes of batches, near powers of two."""
    some = [n for n in (8, 2, 9, 17, 33, 64, 128) if n <= domain.most_rows]
    return st.sampled_from(some or [domain.most_rows])


@st.composite
def _many_copies(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    W = draw(st.sampled_from([w for w in (33, 20) if w <= domain.vocabulary] or [3]))
    R = draw(heights(domain))
    at, rows = draw(st.integers(0, R - 1)), list(levels(draw, R, W))
    rows[at] = _faint(draw, W)
    return LawCase(rows=tuple(rows), step=1.0, at=at, copies=draw(copies(domain)))


def _faint(draw: st.DrawFn, W: int) -> Row:
    """A row whose sum shows its order: a weight of 1 and others about a third of its last place.

    Added to it one by one in fp32 each is lost, and some of them together are not.
    """
    row = [draw(st.sampled_from([-17, -16, -18])) for _ in range(W)]
    row[draw(st.integers(0, W - 1))] = 0
    return tuple(row)


def mapped_copies(domain: LawDomain) -> Strategy | None:
    """The same with maps."""
    return _mapped_copies(domain) if domain.most_rows > 1 and domain.offered else None


@st.composite
def _mapped_copies(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    case = mapped(draw, domain, logits(draw, domain))
    return replace(case, at=draw(st.integers(0, case.height - 1)), copies=draw(copies(domain)))


def tied_copies(domain: LawDomain) -> Strategy | None:
    """The same with tokens that tie with the k-th likeliest: how they are treated is the same."""
    wide = domain.most_rows > 7 and domain.has("law.top_k")
    return _tied_copies(domain) if wide else None


@st.composite
def _tied_copies(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    case = tied_at_k(draw, domain)
    some = [n for n in (8, 9, 17, 33, 64, 128) if n <= domain.most_rows]
    at = draw(st.integers(0, case.height - 1))
    return replace(case, at=at, copies=draw(st.sampled_from(some)))


@stratum()
def shifted(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """A number is added to all logits of a row, so large that no exponential could take it."""
    case = logits(draw, domain)
    case = replace(mapped(draw, domain, case), step=1.0)
    return replace(case, shift=draw(st.sampled_from([100, -100, 200, -200])))


def large_vocabulary(domain: LawDomain) -> Strategy | None:
    """A few tokens of a large vocabulary, at tile edges, its first and its last, are likely."""
    return None if domain.vocabulary < 1000 else _large(domain, None)


def tile_edges(domain: LawDomain) -> Strategy | None:
    """The same with a vocabulary of a tile or two, a token more or less."""
    sizes = [n * t + d for t in domain.tiles for n in (1, 2) for d in (-1, 0, 1)]
    sizes = [V for V in sizes if 4 <= V <= domain.vocabulary]
    return _large(domain, sizes) if sizes else None


@st.composite
def _large(draw: st.DrawFn, domain: LawDomain, sizes: list[int] | None) -> LawCase:
    within = [n for n in (1000, 1024, 2049, 4096, 32000, 65537) if n <= domain.vocabulary]
    V = draw(st.sampled_from(sizes or within))
    columns = few_tokens(draw, domain, V)
    R = draw(st.integers(1, max(1, min(2, domain.most_rows, domain.cells // V))))
    rows = tuple(tuple(draw(st.integers(6, 10)) for _ in columns) for _ in range(R))
    fill = draw(st.sampled_from([0, -2, None]))
    case = LawCase(rows=rows, V=V, ids=columns, fill=fill)
    return _cut(draw, domain, case) if draw(st.booleans()) else case


def few_tokens(draw: st.DrawFn, domain: LawDomain, V: int) -> tuple[int, ...]:
    """The last token of a vocabulary of V and a few others, at tile edges or its beginning."""
    edges = {n * t + d for t in domain.tiles for n in (1, 2) for d in (-1, 0, 1)}
    places = sorted({0, 1, V // 2} | {e for e in edges if 0 < e < V - 1})
    ids = draw(st.lists(st.sampled_from(places), min_size=1, max_size=4, unique=True))
    return tuple(sorted({*ids, V - 1}))


def _cut(draw: st.DrawFn, domain: LawDomain, case: LawCase) -> LawCase:
    """Maps that keep a number of tokens of the columns or, now and then, of the others."""
    V, W = case.vocabulary, case.width
    case = mapped(draw, domain, case)
    if case.top_k is None:
        return case
    counts = st.sampled_from([1, W, min(V, W + 1), V // 2, V])
    return replace(case, top_k=each(draw, case, counts))


def declined(domain: LawDomain) -> Strategy | None:
    """A map that the kernel declines."""
    names = [name for name in NEEDING if name in domain.declines]
    return _declined(domain, names) if names else None


@st.composite
def _declined(draw: st.DrawFn, domain: LawDomain, names: list[str]) -> LawCase:
    case = logits(draw, domain)
    values: dict[str, Any] = {
        "temperature": 2.0, "top_k": 1, "top_p": 0.5, "min_p": 0.5, "mask": (),
    }  # fmt: skip
    name = draw(st.sampled_from(names)).removeprefix("law.")
    given: dict[str, Any] = {name: (values[name],) * case.height}
    return replace(case, **given)


@stratum()
def malformed(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """A case whose call is spoilt."""
    case = mapped(draw, domain, logits(draw, domain))
    return replace(case, at=draw(st.integers(0, 99)))
