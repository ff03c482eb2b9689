"""Strata of rounds. Laws are small integer masses, so that they shrink and read as fractions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from kernelassay.properties.domain import lacking
from kernelassay.properties.speculative.case import Rows, VerifyCase
from kernelassay.properties.speculative.domain import VerifyDomain
from kernelassay.properties.speculative.laws_of import law_of_row

Row = tuple[int, ...]
Strategy = st.SearchStrategy[VerifyCase]
Stratum = Callable[[VerifyDomain], Strategy | None]

MASSES = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8])
MOST_DRAFTS = 3
SEEDS = st.integers(0, 99)


def stratum(*features: str) -> Callable[[Callable[..., VerifyCase]], Stratum]:
    """A stratum from a function (draw, domain) -> case, where all *features* are supported."""

    def decorate(build: Callable[..., VerifyCase]) -> Stratum:
        made: Any = st.composite(build)

        def guarded(domain: VerifyDomain) -> Strategy | None:
            return made(domain) if domain.has(*features) else None

        return guarded

    return decorate


def row(draw: st.DrawFn, domain: VerifyDomain, width: int, low: int = 0) -> Row:
    """Masses that are not all 0; in 16-bit formats they add up to a power of two, at most 128."""
    masses = [draw(MASSES) for _ in range(width)]
    masses = [max(m, low) for m in masses]
    if not any(masses):
        masses[draw(st.integers(0, width - 1))] = 1
    if domain.dyadic:
        total, at = sum(masses), max(range(width), key=masses.__getitem__)
        masses[at] += (1 << (total - 1).bit_length()) - total
    return tuple(masses)


def widths(domain: VerifyDomain) -> st.SearchStrategy[int]:
    """Numbers of tokens, the smallest first."""
    return st.sampled_from([w for w in (2, 3, 4, 5, 8) if w <= domain.vocabulary])


def counts_of(draw: st.DrawFn, domain: VerifyDomain, most: int = 3) -> tuple[int, ...]:
    """Numbers of drafts of one to *most* requests, one of them positive."""
    R = draw(st.integers(1, min(most, domain.most_requests)))
    K = min(MOST_DRAFTS, domain.most_drafts)
    top = draw(st.integers(1, K))
    if not domain.has("drafts.ragged"):
        return (top,) * R
    counts = [draw(st.integers(0, top)) for _ in range(R)]
    counts[draw(st.integers(0, R - 1))] = top
    return tuple(counts)


def laws(draw: st.DrawFn, domain: VerifyDomain, counts: tuple[int, ...], width: int) -> VerifyCase:
    """Independent rows for these requests; q where drafts may have a law, else none."""
    N, R = sum(counts), len(counts)
    p = tuple(row(draw, domain, width) for _ in range(N + R))
    q: Rows | None = None
    if domain.has("draft_law"):
        q = tuple(row(draw, domain, width) for _ in range(N))
    chained = draw(st.booleans()) if max(counts) else False
    return VerifyCase(counts=counts, p=p, q=q, chained=chained)


@stratum("draft_law")
def distinct_laws(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """p and q differ."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    return _differing(case)


def _differing(case: VerifyCase) -> VerifyCase:
    """The rows of the first draft differ: where they came out alike q's masses move on by one."""
    assert case.q is not None
    i, n = _pairs(case)[0]
    p, q = case.p[i], case.q[n]
    if law_of_row(p) != law_of_row(q):
        return case
    turned = (*q[1:], q[0])
    if turned == q:  # equal masses
        turned = (1, *[0] * (case.width - 1))
    return replace(case, q=_put(case.q, n, turned))


def _put(rows: Rows, at: int, new: Row) -> Rows:
    return (*rows[:at], new, *rows[at + 1 :])


@stratum("draft_law")
def wide_residual(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """After a rejection two tokens or more can come: q has its mass on the others."""
    width = draw(st.sampled_from([w for w in (3, 4, 5, 8) if w <= domain.vocabulary]))
    case = laws(draw, domain, counts_of(draw, domain), width)
    assert case.q is not None
    heavy = draw(st.integers(0, width - 1))
    q = tuple(8 if y == heavy else 0 for y in range(width))
    p_rows = [i for i, _ in _pairs(case)]
    p = case.p
    for i in p_rows:
        p = _put(p, i, row(draw, domain, width, low=1))
    some = draw(st.integers(0, len(case.q) - 1))
    return replace(case, p=p, q=_put(case.q, some, q))


def _pairs(case: VerifyCase) -> list[tuple[int, int]]:
    """(row of p, row of q) of each draft."""
    return [
        (case.first_draft(r) + r + i, case.first_draft(r) + i)
        for r, k in enumerate(case.counts)
        for i in range(k)
    ]


@stratum("draft_law")
def target_zeros(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """A token that can be drafted has target probability 0; another one has it all, or a share."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    assert case.q is not None
    i, n = draw(st.sampled_from(_pairs(case)))
    x = draw(st.integers(0, case.width - 1))
    p = _without(case.p[i], x)
    q = case.q[n] if case.q[n][x] else tuple(int(y == x) for y in range(case.width))
    return replace(case, p=_put(case.p, i, p), q=_put(case.q, n, q))


@stratum("draft_law")
def draft_zeros(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """A token of the target is never drafted."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    assert case.q is not None
    i, n = draw(st.sampled_from(_pairs(case)))
    x = draw(st.integers(0, case.width - 1))
    q = _without(case.q[n], x)
    p = case.p[i] if case.p[i][x] else tuple(int(y == x) for y in range(case.width))
    return replace(case, p=_put(case.p, i, p), q=_put(case.q, n, q))


def _without(masses: Row, x: int) -> Row:
    """The row with mass 0 at x, its total kept by the next token."""
    made = list(masses)
    made[(x + 1) % len(made)] += made[x]
    made[x] = 0
    return tuple(made)


@stratum("draft_law")
def equal_laws(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """p = q at every draft: nothing is rejected, but by rounding.

    One row has a token of probability 1/16: in logarithms, where log(1/16) + log u rounds to
    log(1/16) for the largest u below 1, it is rejected.
    """
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    assert case.q is not None
    rare, step = draw(st.integers(0, case.width - 1)), draw(st.integers(1, case.width - 1))
    often = (rare + step) % case.width
    masses = {rare: 1, often: 15}
    at, _ = draw(st.sampled_from(_pairs(case)))
    p, q = _put(case.p, at, tuple(masses.get(y, 0) for y in range(case.width))), case.q
    for i, n in _pairs(case):
        q = _put(q, n, p[i])
    return replace(case, p=p, q=q, chained=False)


def q_just_above(domain: VerifyDomain) -> Strategy | None:
    """p = q, and q is given a unit in the last place larger: a uniform next to 1 rejects a draft.

    [p - q]+ is 0 then, and the likeliest token, in the middle, is drawn from p: neither the draft,
    nor the first token or the last one, which have probability 1/16 or none.
    """
    return _just_above(domain) if domain.vocabulary > 2 and domain.has("draft_law") else None


@st.composite
def _just_above(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    W = draw(st.sampled_from([w for w in (3, 4, 5, 8) if w <= domain.vocabulary]))
    case = laws(draw, domain, counts_of(draw, domain), W)
    rare, often = draw(st.sampled_from([0, W - 1])), draw(st.integers(1, W - 2))
    masses = {rare: 1, often: 15}
    peaked = tuple(masses.get(y, 0) for y in range(W))
    p = tuple(peaked for _ in case.p)
    return replace(case, p=p, q=p[: sum(case.counts)], chained=False, q_above=1)


@stratum("draft_law")
def disjoint_laws(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """p and q have no token in common: everything is rejected."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    assert case.q is not None
    p, q = case.p, case.q
    for i, n in _pairs(case):
        split = draw(st.integers(1, case.width - 1))
        low = (*row(draw, domain, split), *[0] * (case.width - split))
        high = (*[0] * split, *row(draw, domain, case.width - split))
        a, b = (low, high) if draw(st.booleans()) else (high, low)
        p, q = _put(p, i, a), _put(q, n, b)
    return replace(case, p=p, q=q, chained=False)


@stratum("draft_certain")
def certain_drafts(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Drafts are certain, as those of n-grams or of a greedy draft model are."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    return replace(case, q=None)


@stratum("drafts.many")
def chained_laws(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Laws depend on the token before: a row that is read at another place is another law."""
    counts = counts_of(draw, domain, 2)
    if max(counts) < 2:
        counts = (2,) * len(counts)
    return replace(laws(draw, domain, counts, draw(widths(domain))), chained=True)


@stratum("requests", "drafts.ragged")
def no_drafts_first(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """The first request has no draft, another has one."""
    counts = (0, *counts_of(draw, domain, 2))
    return laws(draw, domain, counts, draw(widths(domain)))


@stratum("requests", "drafts.ragged")
def no_drafts_last(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """The last request has no draft, another has one."""
    counts = (*counts_of(draw, domain, 2), 0)
    return laws(draw, domain, counts, draw(widths(domain)))


@stratum("drafts.none")
def no_drafts(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """No request has a draft: every token is a bonus token."""
    R = draw(st.integers(1, min(3, domain.most_requests)))
    return laws(draw, domain, (0,) * R, draw(widths(domain)))


@stratum("drafts.skipped")
def skipped_drafts(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """A draft is -1: see `Sampling.skipped`."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    return replace(case, skipped=(draw(st.integers(0, sum(case.counts) - 1)),))


@stratum("greedy")
def all_greedy(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """All requests are greedy; ties occur."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    return replace(case, greedy=tuple(range(case.requests)))


@stratum("greedy", "requests")
def greedy_and_sampled(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Greedy requests beside sampled ones."""
    counts = counts_of(draw, domain, 2)
    counts = (*counts, counts[-1])
    case = laws(draw, domain, counts, draw(widths(domain)))
    return replace(case, greedy=(draw(st.integers(0, len(counts) - 1)),))


@stratum("stop")
def stop_tokens(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Each request has stop tokens of its own, one of them some."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    columns = st.lists(st.integers(0, case.width - 1), max_size=2, unique=True)
    stop = [tuple(draw(columns)) for _ in case.counts]
    if not any(stop):
        stop[-1] = (draw(st.integers(0, case.width - 1)),)
    return replace(case, stop=tuple(stop))


@stratum("budget")
def budget_cuts(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """A request may emit no more than its drafts, others more."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    budget = [draw(st.integers(1, k + 2)) for k in case.counts]
    at = max(range(case.requests), key=case.counts.__getitem__)
    budget[at] = draw(st.integers(1, case.counts[at]))
    return replace(case, budget=tuple(budget))


@stratum("budget")
def no_budget_left(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """A request may emit nothing."""
    case = laws(draw, domain, counts_of(draw, domain), draw(widths(domain)))
    budget = [draw(st.integers(0, k + 1)) for k in case.counts]
    budget[draw(st.integers(0, case.requests - 1))] = 0
    return replace(case, budget=tuple(budget))


def large_vocabulary(domain: VerifyDomain) -> Strategy | None:
    """A few tokens of a large vocabulary, at tile edges, its first and its last, have mass."""
    return None if domain.vocabulary < 1024 else _large(domain)


@st.composite
def _large(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    most = min(domain.vocabulary, 4096)
    V = draw(st.sampled_from([v for v in (1000, 1024, 2049, 4096) if v <= most]))
    edges = {n * t + d for t in domain.tiles for n in (1, 2) for d in (-1, 0, 1)}
    places = sorted({0, 1, V // 2} | {e for e in edges if 0 < e < V - 1})
    ids = draw(st.lists(st.sampled_from(places), min_size=1, max_size=4, unique=True))
    ids = [*sorted(ids), V - 1]
    case = laws(draw, domain, counts_of(draw, domain, 2), len(ids))
    p = tuple(row(draw, domain, len(ids), low=1) for _ in case.p)
    return replace(case, p=p, V=V, ids=tuple(ids))


def many_weights(domain: VerifyDomain) -> Strategy | None:
    """Hundreds of unequal weights, and after them tokens of probability 0, perhaps before them.

    Sums of so many floats differ by the order of their terms: for a uniform next to 1 none may
    exceed u C, and the last token, or one past the end, is no way out.
    """
    fits = domain.vocabulary >= 1000 and domain.has("draft_law")
    return _many(domain) if fits else None


@st.composite
def _many(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    width, spread = draw(st.sampled_from([3, 4])), draw(st.sampled_from([100, 250]))
    case = laws(draw, domain, counts_of(draw, domain, 2), width)
    assert case.q is not None

    def target() -> Row:
        before = draw(st.integers(0, 1))
        return (*[0] * before, *row(draw, domain, width - 1 - before, low=1), 0)

    p = tuple(target() for _ in case.p)
    q = tuple(row(draw, domain, width, low=1) for _ in case.q)
    return replace(case, p=p, q=q, chained=False, spread=spread, seed=draw(SEEDS))


def greedy_ties(domain: VerifyDomain) -> Strategy | None:
    """The likeliest tokens tie, and lie far apart where the vocabulary is large."""
    return _greedy_ties(domain) if domain.has("greedy") else None


@st.composite
def _greedy_ties(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    large = large_vocabulary(domain)
    if large is None:
        case = laws(draw, domain, counts_of(draw, domain, 2), draw(widths(domain)))
    else:
        case = draw(large)
    W = case.width
    p = tuple((1,) * W if W & (W - 1) == 0 or not domain.dyadic else r for r in case.p)
    first = case.greedy or (0,)
    even = tuple(4 if y in (0, W - 1) else 0 for y in range(W))
    return replace(case, p=(even, *p[1:]), greedy=first)


EXACT = {
    "distinct_laws": distinct_laws,
    "wide_residual": wide_residual,
    "target_zeros": target_zeros,
    "draft_zeros": draft_zeros,
    "equal_laws": equal_laws,
    "q_just_above": q_just_above,
    "disjoint_laws": disjoint_laws,
    "chained_laws": chained_laws,
    "no_drafts_first": no_drafts_first,
    "no_drafts_last": no_drafts_last,
    "large_vocabulary": large_vocabulary,
    "many_weights": many_weights,
}


LIMITED = {
    "stop_tokens": stop_tokens,
    "budget_cuts": budget_cuts,
    "no_budget_left": no_budget_left,
    "all_greedy": all_greedy,
    "skipped_drafts": skipped_drafts,
}


@stratum("requests")
def several_requests(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Two requests or three."""
    counts = counts_of(draw, domain, 2)
    return laws(draw, domain, (*counts, max(counts)), draw(widths(domain)))


NEEDING = {
    "drafts.many": VerifyCase(counts=(2,), p=((1, 1),) * 3, q=((1, 1),) * 2),
    "requests": VerifyCase(counts=(1, 1), p=((1, 1),) * 4, q=((1, 1),) * 2),
    "drafts.ragged": VerifyCase(counts=(1, 0), p=((1, 1),) * 3),
    "drafts.none": VerifyCase(counts=(0,), p=((1, 1),), q=()),
    "drafts.skipped": VerifyCase(skipped=(0,)),
    "draft_law": VerifyCase(),
    "draft_certain": VerifyCase(q=None),
    "greedy": VerifyCase(greedy=(0,)),
    "stop": VerifyCase(stop=((0,),)),
    "budget": VerifyCase(budget=(1,)),
}
"""A case that needs the feature."""


def declined(domain: VerifyDomain) -> Strategy | None:
    """Cases that need a declined feature, and as few others that are not supported as can be."""
    found = [case for feature, case in NEEDING.items() if feature in domain.declines]
    known = domain.supports | domain.declines
    return st.sampled_from([c for c in found if {*lacking(c, domain)} <= known] or found)


@stratum()
def malformed(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """A plain case, of which the law makes a malformed call that the seed chooses."""
    plain = VerifyCase() if domain.has("draft_law") else VerifyCase(q=None)
    return replace(plain, seed=draw(SEEDS))


def sampled(build: Callable[..., VerifyCase], *features: str) -> Stratum:
    """A stratum of one request, few tokens and drafts, of which samples are taken."""
    return stratum("draft_law", *features)(build)


def _one(draw: st.DrawFn, domain: VerifyDomain, most: int = 2) -> VerifyCase:
    """One request of one draft or two over two to four tokens."""
    k = draw(st.integers(1, min(most, domain.most_drafts)))
    width = draw(st.sampled_from([w for w in (2, 3, 4) if w <= domain.vocabulary]))
    return laws(draw, domain, (k,), width)


def _sampled_laws(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Any laws of one request."""
    return _one(draw, domain)


def _sampled_residual(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Most drafts are rejected, and two tokens or more can come instead."""
    case = _one(draw, domain)
    width = draw(st.sampled_from([w for w in (3, 4) if w <= domain.vocabulary]))
    case = laws(draw, domain, case.counts, width)
    heavy = draw(st.integers(0, width - 1))
    q = tuple(8 if y == heavy else 0 for y in range(width))
    assert case.q is not None
    p = row(draw, domain, width, low=1)
    return replace(case, p=_put(case.p, 0, p), q=_put(case.q, 0, q))


def _sampled_chain(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Two drafts, laws that depend on the token before."""
    width = draw(st.sampled_from([w for w in (2, 3, 4) if w <= domain.vocabulary]))
    return replace(laws(draw, domain, (2,), width), chained=True)


SAMPLED: dict[str, Stratum] = {
    "round": sampled(_sampled_laws),
    "wide_residual": sampled(_sampled_residual),
    "chained_laws": sampled(_sampled_chain, "drafts.many"),
}


@stratum("draft_law")
def apart(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Equally likely tokens, drawn after a rejection that is certain, or as the bonus."""
    W = min(64, domain.vocabulary)
    if draw(st.booleans()):  # always accepted
        return VerifyCase(p=((1,) * W, (1,) * W), q=((1,) * W,), seed=draw(SEEDS))
    last = tuple(int(y == W - 1) for y in range(W))
    others = tuple(1 - x for x in last)
    return VerifyCase(p=(others, others), q=(last,), seed=draw(SEEDS))


@stratum("draft_law")
def even_odds(draw: st.DrawFn, domain: VerifyDomain) -> VerifyCase:
    """Drafts that are accepted half of the time; after a rejection half of the rest comes."""
    turn = draw(st.permutations(range(3)))
    p, q = (tuple(row[y] for y in turn) for row in ((2, 1, 1), (1, 0, 0)))
    # Streams that move on by fours have uniforms to spare at some numbers of drafts, and there
    # hide that they move on too little; they have none at three.
    k = draw(st.sampled_from([k for k in (3, 1, 2, 4, 7) if k <= domain.most_drafts]))
    return VerifyCase(counts=(k,), p=(p,) * (k + 1), q=(q,) * k, seed=draw(SEEDS))
