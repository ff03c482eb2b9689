"""Laws of what a KV cache says of itself, its lengths and pages, held against what is needed."""

from collections.abc import Callable
from typing import Any

import torch

from kernelassay.impls.contract import Caching, Capabilities, PageUse, Unsupported
from kernelassay.oracle.transactions import State, least, needed
from kernelassay.properties.caching import strata as s
from kernelassay.properties.caching.case import CacheCase
from kernelassay.properties.caching.picture import program
from kernelassay.properties.caching.run import Run, opened, refused, room
from kernelassay.properties.failures import (
    WrongShape,
    WrongState,
)
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


@law(
    "transactions.lengths",
    "A cache says how many entries each request holds.",
    operation="cache",
    requires=["cache.lengths"],
    strata={"program": s.program, **s.TRUNCATED, "nothing_appended": s.nothing_appended},
    weight=0.5,
)
def lengths(subject: Subject, case: CacheCase) -> None:
    def check(run: Run) -> None:
        said = run.method("lengths")
        if (came := [int(n) for n in said]) != [*run.state.lengths]:
            raise WrongState(
                f"after step {len(run.steps)} lengths() says {came}; expected "
                f"{[*run.state.lengths]}",
                lines=program(run.steps, run.states, len(run.steps) - 1),
            )

    _after_each(subject, case, check)


def _after_each(subject: Subject, case: CacheCase, check: Callable[[Run], None]) -> Run:
    """The program, *check* after the beginning and after every step."""
    run = opened(subject, case)
    try:
        check(run)
        for step in case.steps:
            run.take(step)
            check(run)
    except Unsupported as why:
        raise refused(subject, why) from why
    return run


@law(
    "transactions.accounting",
    "Requests hold the pages that their entries need, share those of a fork until they are "
    "written to, and every other page is free.",
    operation="cache",
    requires=["cache.accounting"],
    rests_on=lambda c: None if c.pages else "rests on pages, which are not declared",
    strata={**s.TRUNCATED, **s.FORKED, **s.COMPACTED, **s.FREED, "program": s.program},
)
def accounting(subject: Subject, case: CacheCase) -> None:
    def check(run: Run) -> None:
        _checked_use(run, room(subject, case)[1] or 0)

    run = _after_each(subject, case, check)
    if subject.has("cache.free"):
        for r in range(case.R):
            run.take(("free", r))
            check(run)


def _checked_use(run: Run, pool: int) -> PageUse:
    """What the store says of its pages; `WrongState` where it cannot be."""
    use = run.use()
    assert use is not None
    if why := wrong_use(run.state, use, pool, _caching(run.subject.capabilities)):
        after = f"after step {len(run.steps)}" if run.steps else "before any step"
        held = [f"  request {r}: {' '.join(map(str, h)) or '-'}" for r, h in enumerate(use.held)]
        free = f"  free: {' '.join(map(str, use.free)) or '-'}"
        lines = [*program(run.steps, run.states, len(run.steps) - 1), "Pages", *held, free]
        raise WrongState(f"{after} {why}", lines=lines)
    return use


def _caching(c: Capabilities) -> Caching:
    return c.caching or Caching()


def wrong_use(state: State, use: PageUse, pool: int, caching: Caching) -> str:
    """Why the pages cannot be held like that; empty where they can."""
    size = state.page or 1
    if len(use.held) != len(state.entries):
        return f"pages() names {len(use.held)} requests; expected {len(state.entries)}"
    for r, pages in enumerate(use.held):
        L = len(state.entries[r])
        few, exact = -(-L // size), caching.pages == "exact"
        if len(pages) < few or (exact and len(pages) > few):
            more = "" if exact else " or more"
            return f"request {r} holds {len(pages)} pages for {L} entries; expected {few}{more}"
        if len({*pages}) < len(pages):
            return f"request {r} holds a page twice: {[*pages]}"
    held = {page for pages in use.held for page in pages}
    if len({*use.free}) < len(use.free):
        return f"a page is free twice: {[*use.free]}"
    if both := held & {*use.free}:
        return f"page {min(both)} is free and held"
    if held | {*use.free} != {*range(pool)}:
        lost = {*range(pool)} ^ (held | {*use.free})
        return f"pages {sorted(lost)} are neither held nor free, of a pool of {pool}"
    if clash := _shared_apart(state, use, size):
        return clash
    low, high = least(state), needed(state)
    if len(held) < low or (caching.pages == "exact" and len(held) > high):
        return f"{len(held)} pages are held; expected {low if low == high else f'{low} to {high}'}"
    return ""


def _shared_apart(state: State, use: PageUse, size: int) -> str:
    """Whether two requests hold one page, though their entries in it differ."""
    blocks: dict[int, list[tuple[int, int, tuple[Any, ...]]]] = {}
    for r, pages in enumerate(use.held):
        for column, page in enumerate(pages):
            block = state.entries[r][column * size : (column + 1) * size]
            blocks.setdefault(page, []).append((r, column, block))
    for page, holders in blocks.items():
        for q, i, a in holders:
            for r, j, b in holders:
                n = min(len(a), len(b))
                if n and (i, a[:n]) != (j, b[:n]):
                    return f"page {page} is held by requests {q} and {r}, whose entries differ"
    return ""


def _pooled(c: Capabilities) -> str | None:
    return None if c.pages else "rests on pages, which are not declared"


@law(
    "transactions.poison",
    "What lies in slots that nobody holds is never read.",
    operation="cache",
    requires=["cache.accounting", "cache.pools"],
    rests_on=_pooled,
    strata={**s.ANY, "truncate_inside_page": s.truncate_inside_page},
    weight=0.5,
)
def poison(subject: Subject, case: CacheCase) -> None:
    harmless = subject.conventions.masked_content != "finite_only"
    fill = float("nan") if harmless else 1000.0

    def check(run: Run) -> None:
        _poisoned(run, _checked_use(run, room(subject, case)[1] or 0), fill)
        run.judge("needle", "mean")

    _after_each(subject, case, check)


def _poisoned(run: Run, use: PageUse, fill: float) -> None:
    """Every slot that no entry lies in is filled."""
    case, pools, size = run.case, run.method("pools"), run.case.page or 1
    pages = len(use.free) + len({page for held in use.held for page in held})
    for name, width in (("k", case.D), ("v", case.value_size)):
        shape = (pages, size, case.Hkv, width)
        if tuple(getattr(pools, name).shape) != shape:
            got = tuple(getattr(pools, name).shape)
            raise WrongShape(f"pools().{name}: got shape {got}, expected {shape}")
    idle = torch.ones(pools.k.shape[:2], dtype=torch.bool, device=pools.k.device)
    for r, entries in enumerate(run.state.entries):
        for j in range(len(entries)):
            idle[use.held[r][j // size], j % size] = False
    pools.k[idle] = fill
    pools.v[idle] = fill
