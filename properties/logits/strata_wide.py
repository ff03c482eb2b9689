"""Strata of rows of many tokens whose logits lie far apart.

Kernels that neither sort a row nor find its maximum first guess both from its mean and deviation,
or search between its ends: low temperatures move the one, a finite logit that stands for a token
that must never come, as -1e9 or the least number of a dtype, the other.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from hypothesis import strategies as st

from kernelassay.oracle.formats import format_of
from kernelassay.properties.logits.case import LawCase
from kernelassay.properties.logits.domain import LawDomain
from kernelassay.properties.logits.rows import SHARES, Strategy, Stratum, each, mapped
from kernelassay.properties.logits.strata_extent import few_tokens

SIZES = (300, 1000, 2049, 4097)
"""Vocabularies: more tokens than one tile of most kernels has, at a cost of milliseconds."""

Build = Callable[[st.DrawFn, LawDomain], LawCase]


def many_tokens(build: Build, *features: str) -> Stratum:
    """A stratum of *build* where the kernel takes many tokens and supports *features*."""
    made = st.composite(build)

    def guarded(domain: LawDomain) -> Strategy | None:
        fits = domain.vocabulary >= SIZES[0] and domain.has(*features)
        return made(domain) if fits else None

    return guarded


def _spread(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Logits all over some hundreds, as a low temperature leaves them."""
    V, R, columns = _shape(draw, domain)
    rows = tuple(tuple(draw(st.integers(-2, 3)) for _ in columns) for _ in range(R))
    spread = draw(st.sampled_from([24, 40]))
    step = draw(st.sampled_from([8.0, 4.0]))
    return LawCase(rows=rows, step=step, V=V, ids=columns, fill=0, spread=spread)


def _never(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """A finite logit that stands for "never", one or two in a row, the others within some tens."""
    V, R, columns = _shape(draw, domain)
    rows = []
    for _ in range(R):
        row = [draw(st.integers(0, 10)) for _ in columns]
        some = st.sets(st.integers(0, len(row) - 1), min_size=1, max_size=min(2, len(row) - 1))
        for x in draw(some):
            row[x] = draw(st.sampled_from(nevers(domain.dtype)))
        rows.append(tuple(row))
    fill = draw(st.sampled_from([0, -2]))
    return LawCase(
        rows=tuple(rows), V=V, ids=columns, fill=fill, spread=draw(st.sampled_from([0, 9]))
    )


def _shape(draw: st.DrawFn, domain: LawDomain) -> tuple[int, int, tuple[int, ...]]:
    """A vocabulary, a number of rows, and the tokens that get a level of their own."""
    V = draw(st.sampled_from([n for n in SIZES if n <= domain.vocabulary]))
    R = draw(st.integers(1, max(1, min(2, domain.most_rows, domain.cells // V))))
    return V, R, few_tokens(draw, domain, V)


def nevers(dtype: str) -> tuple[int, ...]:
    """Finite logits that stand for "never": -1e4, a round number, the least of the dtype."""
    least = int(torch.finfo(format_of(dtype).dtype).min)
    return (-(10**9) if least < -(10**9) else -60000, least, -10000)


def _top_k(rows: Build) -> Build:
    """These rows with a k that cuts among the likely tokens, or further down."""

    def build(draw: st.DrawFn, domain: LawDomain) -> LawCase:
        case = rows(draw, domain)
        V, W = case.vocabulary, case.width
        return replace(case, top_k=each(draw, case, st.sampled_from([W, 1, V // 60, V // 4])))

    return build


def _top_p(rows: Build) -> Build:
    """These rows with a share, alone or, as another path of a kernel may want, with k = V."""

    def build(draw: st.DrawFn, domain: LawDomain) -> LawCase:
        case = rows(draw, domain)
        case = replace(case, top_p=each(draw, case, SHARES))
        if domain.has("law.top_k") and draw(st.booleans()):
            return replace(case, top_k=(case.vocabulary,) * case.height)
        return case

    return build


def _any_maps(rows: Build, *, tempered: bool = True) -> Build:
    """These rows with all maps or none; a temperature only where it leaves all logits finite."""

    def build(draw: st.DrawFn, domain: LawDomain) -> LawCase:
        case = rows(draw, domain)
        if not draw(st.booleans()):
            return case
        case = mapped(draw, domain, case)
        return case if tempered else replace(case, temperature=None)

    return build


spread_rows = many_tokens(_any_maps(_spread))
spread_top_k = many_tokens(_top_k(_spread), "law.top_k")
spread_top_p = many_tokens(_top_p(_spread), "law.top_p")
never_rows = many_tokens(_any_maps(_never, tempered=False))
never_top_k = many_tokens(_top_k(_never), "law.top_k")
never_top_p = many_tokens(_top_p(_never), "law.top_p")


def spread_copies(domain: LawDomain) -> Strategy | None:
    """Spread rows that are cut, alone and in batches of many rows, which may take another path."""
    few = replace(domain, vocabulary=min(domain.vocabulary, SIZES[0]))
    cuts = [made for made in (spread_top_p(few), spread_top_k(few)) if made is not None]
    some = [n for n in (65, 8, 128) if n <= domain.most_rows]
    if not cuts or not some:
        return None
    return st.builds(
        lambda case, n, at: replace(case, copies=n, at=at % case.height),
        st.one_of(cuts),
        st.sampled_from(some),
        st.integers(0, 1),
    )
