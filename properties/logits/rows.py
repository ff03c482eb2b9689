"""What strata of rows of logits are made of: levels and masses are small whole numbers, so that
they shrink and read; parameters are short decimals.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from kernelassay.properties.logits.case import LawCase, Rows
from kernelassay.properties.logits.domain import LawDomain

Strategy = st.SearchStrategy[LawCase]
Stratum = Callable[[LawDomain], Strategy | None]
Row = tuple[int, ...]

LEVELS = st.integers(-4, 4)
STEPS = st.sampled_from([1.0, 0.5, 0.25, 2.0])
MASSES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 0])
APART = (1, 2, 3, 5, 8, 12, 18, 27)
"""Masses of which any two differ by more than a rounding."""
NEEDING = ("law.temperature", "law.top_k", "law.top_p", "law.min_p", "law.mask")
"""Features that a call may need."""
WIDTHS = (2, 3, 4, 5, 8, 13)
HOT = st.sampled_from([3.0, 7.5, 20.0])
COLD = st.sampled_from([0.3, 0.1, 0.45])
SHARES = st.sampled_from([0.9, 0.5, 0.8, 0.95, 0.3, 0.65, 0.1])
RATIOS = st.sampled_from([0.1, 0.3, 0.5, 0.05, 0.02, 0.8])


def stratum(*features: str) -> Callable[[Callable[..., LawCase]], Stratum]:
    """A stratum from a function (draw, domain) -> case, where all *features* are supported."""

    def decorate(build: Callable[..., LawCase]) -> Stratum:
        made: Any = st.composite(build)

        def guarded(domain: LawDomain) -> Strategy | None:
            return made(domain) if domain.has(*features) else None

        return guarded

    return decorate


def widths(domain: LawDomain, least: int = 2) -> st.SearchStrategy[int]:
    """Numbers of columns, the smallest first; the vocabulary where it has no more than *least*."""
    some = [w for w in WIDTHS if least <= w <= domain.vocabulary]
    return st.sampled_from(some or [min(least, domain.vocabulary)])


def heights(domain: LawDomain, most: int = 4, least: int = 1) -> st.SearchStrategy[int]:
    """Numbers of rows."""
    return st.integers(least, min(most, domain.most_rows))


def levels(draw: st.DrawFn, R: int, W: int) -> Rows:
    """Rows of levels, with ties."""
    return tuple(tuple(draw(LEVELS) for _ in range(W)) for _ in range(R))


def masses(draw: st.DrawFn, R: int, W: int) -> Rows:
    """Rows of masses, one of them at least positive in each."""
    rows = [[draw(MASSES) for _ in range(W)] for _ in range(R)]
    return tuple(tuple(row) if any(row) else (1, *row[1:]) for row in rows)


def logits(draw: st.DrawFn, domain: LawDomain, *, most: int = 4, least: int = 2) -> LawCase:
    """Rows without a map."""
    R, W = draw(heights(domain, most)), draw(widths(domain, least))
    return LawCase(rows=levels(draw, R, W), step=draw(STEPS))


def each(draw: st.DrawFn, case: LawCase, values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
    """A value for each row."""
    return tuple(draw(values) for _ in range(case.height))


def masked(draw: st.DrawFn, domain: LawDomain, case: LawCase) -> LawCase:
    """A mask that leaves each row a column: its likeliest, where a map may cut before the mask."""
    mask = []
    for r in range(case.height):
        stay = likeliest(case, r)
        if domain.mask_first:
            stay = {draw(st.sampled_from(case.left(r)))}
        columns = st.sets(st.integers(0, case.width - 1), max_size=max(1, case.width - 1))
        mask.append(tuple(sorted(draw(columns) - stay)))
    return replace(case, mask=tuple(mask))


def likeliest(case: LawCase, r: int) -> set[int]:
    """The columns of row r that tie for the likeliest, in bfloat16 too, where 10001 is 10000.

    A cut to one token may leave any of them.
    """
    left = case.left(r)
    held = torch.tensor([case.rows[r][x] * case.step for x in left]).bfloat16()
    return {x for x, tied in zip(left, (held == held.max()).tolist(), strict=True) if tied}


def mapped(draw: st.DrawFn, domain: LawDomain, case: LawCase) -> LawCase:
    """All maps that the kernel offers, each row with parameters of its own, some of them off."""
    values: dict[str, st.SearchStrategy[Any]] = {
        "temperature": st.one_of(st.just(1.0), COLD, HOT),
        "top_k": st.integers(1, case.width),
        "top_p": st.one_of(SHARES, st.just(1.0)),
        "min_p": st.one_of(RATIOS, st.just(0.0)),
    }
    names = [name for name in domain.offered if name in values]
    given: dict[str, Any] = {name: each(draw, case, values[name]) for name in names}
    case = replace(case, **given)
    return masked(draw, domain, case) if domain.has("law.mask") else case


def tied_at_k(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Rows of plateaus, each k inside one."""
    rows = plateaus(draw, draw(heights(domain)), draw(widths(domain, 3)))
    return LawCase(rows=rows, top_k=tuple(draw(st.integers(1, x.count(3) - 1)) for x in rows))


def plateaus(draw: st.DrawFn, R: int, W: int) -> Rows:
    """Rows whose two or more likeliest tokens tie, wherever they are."""
    rows = []
    for _ in range(R):
        n = draw(st.integers(2, W))
        rows.append(tuple(draw(st.permutations([3] * n + [-x for x in range(W - n)]))))
    return tuple(rows)
