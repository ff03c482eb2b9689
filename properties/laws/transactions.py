"""Laws of KV caches: after any steps a cache holds what the model says, as attention reads it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import Caching, Capabilities, PageUse, Unsupported
from kernelassay.oracle.transactions import State, least, needed
from kernelassay.properties.caching import strata as s
from kernelassay.properties.caching.case import CacheCase, Step
from kernelassay.properties.caching.picture import described, program
from kernelassay.properties.caching.run import Run, opened, played, refused, room
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.failures import (
    Accepted,
    Different,
    Raised,
    WrongShape,
    WrongState,
)
from kernelassay.properties.memory import Watch, check_written, same_bits
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


def _stepwise(subject: Subject, case: CacheCase) -> None:
    """Every entry of every request is read after every step, and what is seen beside them."""
    played(subject, case, each=("needle", "mean"), last=("bit",))


_HELD: dict[str, tuple[str, dict[str, s.Stratum]]] = {
    "contents": (
        "Every request holds the entries that were appended to it, in order.",
        s.PLAIN,
    ),
    "truncated": (
        "Nothing of what was cut off is read again, nor is anything else lost; requests are cut "
        "to lengths of their own.",
        s.TRUNCATED,
    ),
    "copy_on_write": (
        "A forked request holds what its parent held; what either gets later the other does not.",
        s.FORKED,
    ),
    "compacted": (
        "Entries that stay move together in order, and nothing else moves.",
        s.COMPACTED,
    ),
    "freed": (
        "A freed request holds nothing; whoever gets its room reads entries of its own.",
        s.FREED,
    ),
    "window": (
        "Within a window of W queries see the last W entries, wherever a ring begins anew.",
        s.WINDOWED,
    ),
    "padding": (
        "Rows that belong to nobody are not written.",
        {"padded_rows": s.padded_rows},
    ),
}
for _name, (_sentence, _strata) in _HELD.items():
    law(
        f"transactions.{_name}",
        _sentence,
        operation="cache",
        strata=_strata,
        weight=0.5 if len(_strata) == 1 else 1.0,
    )(_stepwise)


@law(
    "transactions.visible",
    "A query sees each entry that is held up to its position once, and nothing else.",
    operation="cache",
    strata=s.ANY,
)
def visible(subject: Subject, case: CacheCase) -> None:
    played(subject, case, each=("mean",), last=("bit",))


@law(
    "transactions.bits",
    "Values are held as they were appended, bit for bit.",
    operation="cache",
    strata=s.ANY,
    weight=0.5,
)
def bits(subject: Subject, case: CacheCase) -> None:
    played(subject, case, each=(), last=("needle",), exact=True)


@law(
    "transactions.entry_by_entry",
    "A run of entries holds what its entries hold that are appended one by one.",
    operation="cache",
    strata=s.ANY,
    weight=0.5,
)
def entry_by_entry(subject: Subject, case: CacheCase) -> None:
    steps = tuple(single for step in case.steps for single in _singles(step))
    played(subject, replace(case, steps=steps, pages=None), each=(), last=("needle", "mean"))


def _singles(step: Step) -> Iterator[Step]:
    """The step, an append as one of an entry for each request, and again, until all are there."""
    if step[0] != "append":
        yield step
        return
    for i in range(max(step[1])):
        yield "append", tuple(int(i < n) for n in step[1])


def _named(step: Step, before: State) -> set[int]:
    """The requests that a step changes."""
    if step[0] == "append":
        return {r for r, n in enumerate(step[1]) if n}
    if step[0] == "truncate":
        return {r for r, n in enumerate(step[1]) if n != before.lengths[r]}
    return {step[2] if step[0] == "fork" else step[1]}


@law(
    "transactions.untouched",
    "Requests that a step does not name read the same bits before and after it.",
    operation="cache",
    requires=["cache.requests", "cache.ragged"],
    strata={"several_requests": s.several_requests, "one_goes_on": s.one_goes_on},
)
def untouched(subject: Subject, case: CacheCase) -> None:
    run = opened(subject, case, exact=True)
    try:
        for step in case.steps:
            named = _named(step, run.state)
            before = _rows_of(run)
            run.take(step)
            after = _rows_of(run)
            for r in set(range(case.R)) - named:
                if not all(map(same_bits, before[r], after[r])):
                    raise Different(
                        f"request {r} read other bits after step {len(run.steps)}, "
                        f"{described(step)}, which does not name it",
                        lines=program(run.steps, run.states, len(run.steps) - 1),
                    )
    except Unsupported as why:
        raise refused(subject, why) from why


def _rows_of(run: Run) -> list[list[Tensor]]:
    """Of each request its entries as needles read them, one after the other."""
    found: list[list[Tensor]] = [[] for _ in range(run.case.R)]
    for read in run.reads("needle"):
        out = run.attend(read.q).cpu()
        for r, sought in enumerate(read.sought.any(-1)[:, 0]):
            found[r].extend(out[r][:, sought].unbind(1))
    return found


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


@law(
    "transactions.memory",
    "Inputs are unchanged, nothing is written beside what is allocated, outputs are written.",
    operation="cache",
    rests_on=lambda c: (
        "rests on PyTorch's own operators, not on compiled ones" if c.compiled else None
    ),
    strata={**s.PLAIN, "several_moved": s.several_moved, "copied_on_write": s.copied_on_write},
    weight=0.5,
)
def memory(subject: Subject, case: CacheCase) -> None:
    watches: list[Watch] = []

    def guarded(run: Callable[[], Any]) -> Any:
        with Watch() as watch:
            came = run()
        watches.append(watch)
        for each in watches:
            each.check()
        if isinstance(came, Tensor) and watch.owns(came):
            subject.watched.add("allocations")
            if subject.conventions.empty_row == "zeros":
                check_written("out", came)
        return came

    run = Run(subject, case, guard=guarded)
    try:
        run.open(*room(subject, case))
        for step in case.steps:
            run.take(step)
            run.judge("mean")
    except Unsupported as why:
        raise refused(subject, why) from why


@law(
    "transactions.declines",
    "A cache or a step that needs a declined feature is refused with Unsupported.",
    operation="cache",
    rests_on=lambda c: (
        None
        if c.declines & {*s.NEEDING, "cache.value_size"}
        else "declines nothing that a program could need"
    ),
    strata={"declined": s.declined},
    weight=0.5,
)
def declines(subject: Subject, case: CacheCase) -> None:
    run = Run(subject, case)
    try:
        run.open(*room(subject, case))
        for step in case.steps:
            run.take(step)
        for read in run.reads("mean"):
            run.attend(read.q)
    except Unsupported:
        return
    domain = domain_of(subject)
    wanted = ", ".join(f for f in lacking(case, domain) if f in domain.declines)
    raise Accepted(
        f"{subject.name} took a program that needs {wanted}, which it declines; expected "
        f"Unsupported. Refuse it, or declare it as supported"
    )


@law(
    "transactions.validates",
    "Malformed calls raise, and change nothing.",
    operation="cache",
    rests_on=lambda c: (
        None
        if c.conventions.validates_calls
        else "rests on Conventions.validates_calls, which is not declared"
    ),
    strata={"malformed": s.malformed},
    weight=0.25,
)
def validates(subject: Subject, case: CacheCase) -> None:
    run = played(subject, case)
    for what, call in malformed_calls(run).items():
        try:
            call()
        except (Raised, Unsupported):
            run.judge("needle", "mean")
            continue
        raise Accepted(
            f"{subject.name} took a malformed call: {what}; expected an exception, since it "
            f"declares Conventions.validates_calls"
        )


def malformed_calls(run: Run) -> dict[str, Callable[[], Any]]:
    """What is wrong with a call, and the call."""
    case, L = run.case, run.state.lengths
    R, most = case.R, room(run.subject, case)[0]

    def append(counts: list[int], rows: int | None = None, heads: int = case.Hkv) -> Any:
        N = sum(counts) if rows is None else rows
        k, v = (torch.ones(N, heads, n) for n in (case.D, case.value_size))
        offsets = [sum(counts[:r]) for r in range(len(counts) + 1)]
        return run.method("append", run.placed(k), run.placed(v), run.integers(offsets))

    one = [1] * R
    ways: dict[str, Callable[[], Any]] = {
        "offsets end past the last row": lambda: append(one, rows=R - 1),
        "offsets count down": lambda: append([2, -1] if R > 1 else [-1], rows=3),
        "there is a KV head too many": lambda: append(one, heads=case.Hkv + 1),
        "a request gets more than it has room for": lambda: append([most + 1] * R),
        "offsets of a request too many": lambda: append([*one, 1]),
    }
    if run.subject.has("cache.truncate"):
        longer, below = run.integers([n + 1 for n in L]), run.integers([-1] * R)
        ways["truncate to more than is held"] = lambda: run.method("truncate", longer)
        ways["truncate to -1"] = lambda: run.method("truncate", below)
    if run.subject.has("cache.compact"):
        ways["compact keeps one that is not there"] = lambda: run.method("compact", 0, 0, [L[0]])
        ways["compact keeps one twice"] = lambda: run.method("compact", 0, 0, [0, 0])
        ways["compact from past the end"] = lambda: run.method("compact", 0, L[0] + 1, [])
    if run.subject.has("cache.fork", "cache.requests"):
        ways["a request is forked to itself"] = lambda: run.method("fork", 0, 0, 1)
        ways["a child past the last request"] = lambda: run.method("fork", 0, R, 1)
        if R > 1:
            ways["a fork of more than is held"] = lambda: run.method("fork", 0, 1, L[0] + 1)
    if run.subject.has("cache.free"):
        ways["a request that is not there is freed"] = lambda: run.method("free", R)
    return ways
