"""Laws of conduct of KV caches: memory, refusals, malformed calls, a pool without room."""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import PageUse, Unsupported
from kernelassay.oracle.transactions import State, append, needed
from kernelassay.properties.caching import strata as s
from kernelassay.properties.caching.case import CacheCase
from kernelassay.properties.caching.run import Run, played, refused, room
from kernelassay.properties.failures import Accepted, Raised, WrongState
from kernelassay.properties.laws.refusing import all_refused, took_what_it_declines, validating
from kernelassay.properties.memory import Watch, check_written
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


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
    raise took_what_it_declines(subject, case)


@law(
    "transactions.validates",
    "Malformed calls raise, and change nothing.",
    operation="cache",
    rests_on=validating,
    strata={"malformed": s.malformed},
    weight=0.25,
)
def validates(subject: Subject, case: CacheCase) -> None:
    run = played(subject, case)
    all_refused(subject, malformed_calls(run), lambda: run.judge("needle", "mean"))


@law(
    "transactions.exhausted",
    "An append that needs more pages than are free raises, and changes nothing.",
    operation="cache",
    requires=["cache.exhausted"],
    rests_on=lambda c: None if c.pages else "rests on pages, which are not declared",
    strata={"exhausted": s.exhausted, "shared_at_the_end": s.shared_at_the_end},
    weight=0.5,
)
def exhausted(subject: Subject, case: CacheCase) -> None:
    most, pages = room(subject, case)
    assert case.page is not None
    assert pages is not None
    run = Run(subject, case)
    try:
        run.open(most + case.page * (pages + 1), pages)
        for step in case.steps:
            run.take(step)
        run.judge("needle")
    except Unsupported as why:
        raise refused(subject, why) from why
    before, free = run.use(), pages - needed(run.state)
    for last in range(case.R):
        counts = too_many(run.state, pages, last)
        try:
            appended(run, counts)
        except (Raised, Unsupported):
            run.judge("needle", "mean")
            _same_use(f"append({counts}) raised", before, run.use())
            continue
        raise Accepted(
            f"{subject.name} took append({counts}) with {free} of {pages} pages of {case.page} "
            f"free; expected an exception, since it declares cache.exhausted"
        )


def too_many(state: State, pages: int, last: int) -> list[int]:
    """The smallest append to request *last* that *pages* have no room for.

    Requests before it, which may find room, get an entry each. A page that is shared has to be
    copied first: a single entry may be too many.
    """

    def counts(n: int) -> list[int]:
        return [1] * last + [n] + [0] * (len(state.entries) - last - 1)

    return next(c for n in count(1) if needed(append(state, tuple(c := counts(n)))) > pages)


def _same_use(what: str, before: PageUse | None, after: PageUse | None) -> None:
    """Pages are held and free as before a call that raised."""
    if before is None or after is None:
        return
    for name, b, a in (
        ("held", before.held, after.held),
        ("free", sorted(before.free), sorted(after.free)),
    ):
        if a != b:
            raise WrongState(f"{what} for want of pages, and pages {name} are {a}; before it: {b}")


def appended(run: Run, counts: list[int], rows: int | None = None, heads: int = 0) -> Any:
    """An append of ones, so many for each request; not of the program."""
    case, N = run.case, sum(counts) if rows is None else rows
    k, v = (torch.ones(N, heads or case.Hkv, n) for n in (case.D, case.value_size))
    offsets = [sum(counts[:r]) for r in range(len(counts) + 1)]
    return run.method("append", run.placed(k), run.placed(v), run.integers(offsets))


MALFORMED: Mapping[str, Mapping[str, Any]] = {
    "no request": {"R": 0},
    "-1 requests": {"R": -1},
    "3 query heads for 2 KV heads": {"Hq": 3, "Hkv": 2},
    "no KV head": {"Hkv": 0},
    "keys of no channel": {"D": 0},
    "values of no channel": {"Dv": 0},
    "requests without room": {"most": 0},
    "a window of no entry": {"window": 0},
    "-1 spare entries": {"spare": -1},
    "pages of no entry": {"page": 0, "pages": 1},
    "-1 pages": {"page": 16, "pages": -1},
}
"""Specs that no cache can be opened with."""


def malformed_calls(run: Run) -> dict[str, Callable[[], Any]]:
    """What is wrong with a call, and the call."""
    case, L = run.case, run.state.lengths
    R, most = case.R, room(run.subject, case)[0]

    one = [1] * R
    ways: dict[str, Callable[[], Any]] = {
        "offsets end past the last row": lambda: appended(run, one, rows=R - 1),
        "offsets count down": lambda: appended(run, [2, -1] if R > 1 else [-1], rows=3),
        "there is a KV head too many": lambda: appended(run, one, heads=case.Hkv + 1),
        "a request gets more than it has room for": lambda: appended(run, [most + 1] * R),
        "offsets of a request too many": lambda: appended(run, [*one, 1]),
    }
    if run.subject.has("cache.truncate"):
        longer, below = run.integers([n + 1 for n in L]), run.integers([-1] * R)
        ways["truncate to more than is held"] = lambda: run.method("truncate", longer)
        ways["truncate to -1"] = lambda: run.method("truncate", below)
    if run.subject.has("cache.compact"):
        ways["compact keeps one that is not there"] = lambda: run.method("compact", 0, 0, [L[0]])
        ways["compact keeps one twice"] = lambda: run.method("compact", 0, 0, [0, 0])
        ways["compact of request -1"] = lambda: run.method("compact", -1, 0, [])
        ways["compact from past the end"] = lambda: run.method("compact", 0, L[0] + 1, [])
    if run.subject.has("cache.fork", "cache.requests"):
        ways["a request is forked to itself"] = lambda: run.method("fork", 0, 0, 1)
        ways["a child past the last request"] = lambda: run.method("fork", 0, R, 1)
        ways["a child of number -1"] = lambda: run.method("fork", 0, -1, 1)
        ways["a parent of number -1"] = lambda: run.method("fork", -1, 0, 1)
        if R > 1:
            ways["a fork of more than is held"] = lambda: run.method("fork", 0, 1, L[0] + 1)
    if run.subject.has("cache.free"):
        ways["a request past the last one is freed"] = lambda: run.method("free", R)
        ways["request -1 is freed"] = lambda: run.method("free", -1)
    return ways | {f"a cache with {what}": run.opening(**x) for what, x in MALFORMED.items()}
