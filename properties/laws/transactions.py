"""Laws of KV caches: after any steps a cache holds what the model says, as attention reads it."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from kernelassay.impls.contract import Unsupported
from kernelassay.oracle.transactions import State
from kernelassay.properties.caching import strata as s
from kernelassay.properties.caching.builder import Stratum
from kernelassay.properties.caching.case import CacheCase, Step
from kernelassay.properties.caching.picture import described, program
from kernelassay.properties.caching.run import Run, opened, played, refused
from kernelassay.properties.failures import (
    Different,
)
from kernelassay.properties.memory import same_bits
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


def _stepwise(subject: Subject, case: CacheCase) -> None:
    """Every entry of every request is read after every step, and what is seen beside them."""
    played(subject, case, each=("needle", "mean"), last=("bit",))


_HELD: dict[str, tuple[str, dict[str, Stratum]]] = {
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
