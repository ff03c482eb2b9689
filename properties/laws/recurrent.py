"""Laws of recurrent states: each is the fold of the tokens that were emitted, and of no more."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernelassay.impls.contract import Unsupported
from kernelassay.properties.laws.refusing import all_refused, took_what_it_declines, validating
from kernelassay.properties.memory import Watch
from kernelassay.properties.property import law
from kernelassay.properties.recurrent import strata as s
from kernelassay.properties.recurrent.case import RecurrentCase, Step
from kernelassay.properties.recurrent.run import Run, played
from kernelassay.properties.subject import Subject


def _stepwise(subject: Subject, case: RecurrentCase) -> None:
    """All states are read after every step."""
    played(subject, case)


_RIGHT: dict[str, tuple[str, dict[str, s.Stratum]]] = {
    "fold": (
        "A state is zero, and then the fold of its request's tokens in order, each once.",
        {**s.FOLDED},
    ),
    "rolled_back": (
        "After drafts were rejected a state, with its tail, is that of the tokens that stay.",
        {**s.REJECTED},
    ),
    "fork": (
        "A forked request has its parent's state; neither sees what the other gets later.",
        {"append_after_fork": s.append_after_fork},
    ),
    "freed": (
        "A request that begins anew begins with a state of zero.",
        {"append_after_free": s.append_after_free},
    ),
    "padding": (
        "Rows that belong to nobody are folded into nothing.",
        {"padded_rows": s.padded_rows},
    ),
}
for _name, (_sentence, _strata) in _RIGHT.items():
    law(
        f"transactions.state_{_name}",
        _sentence,
        operation="recurrence",
        strata=_strata,
        weight=0.5 if len(_strata) == 1 else 1.0,
    )(_stepwise)


@law(
    "transactions.state_one_by_one",
    "A run of tokens is folded as those are that come one by one.",
    operation="recurrence",
    requires=["recurrence.ragged"],
    strata=s.FOLDED,
    weight=0.5,
)
def one_by_one(subject: Subject, case: RecurrentCase) -> None:
    """Rollbacks are left out: they belong to one append."""
    steps = tuple(single for step in case.steps for single in _singles(step))
    played(subject, replace(case, steps=steps))


def _singles(step: Step) -> Iterator[Step]:
    if step[0] != "append":
        yield from () if step[0] == "rollback" else (step,)
        return
    for i in range(max(step[1])):
        yield "append", tuple(int(i < n) for n in step[1])


@law(
    "transactions.state_memory",
    "Inputs are unchanged, and nothing is written beside what is allocated.",
    operation="recurrence",
    rests_on=lambda c: "rests on PyTorch's own operators, not on compiled ones" if c.compiled
    else None,
    strata={"program": s.program, "append_held": s.append_held},
    weight=0.5,
)  # fmt: skip
def memory(subject: Subject, case: RecurrentCase) -> None:
    watches: list[Watch] = []

    def guarded(run: Callable[[], Any]) -> Any:
        with Watch() as watch:
            came = run()
        watches.append(watch)
        for each in watches:
            each.check()
        subject.watched.add("allocations")
        return came

    played(subject, case, guard=guarded)


@law(
    "transactions.state_declines",
    "A store or a step that needs a declined feature is refused with Unsupported.",
    operation="recurrence",
    rests_on=lambda c: (
        None if c.declines & {*s.NEEDING} else "declines nothing that a program could need"
    ),
    strata={"declined": s.declined},
    weight=0.5,
)
def declines(subject: Subject, case: RecurrentCase) -> None:
    run = Run(subject, case)
    try:
        run.open(case.drafts)
        for step in case.steps:
            run.take(step)
    except Unsupported:
        return
    raise took_what_it_declines(subject, case)


@law(
    "transactions.state_validates",
    "Malformed calls raise, and change nothing.",
    operation="recurrence",
    rests_on=validating,
    strata={"malformed": s.malformed},
    weight=0.5,
)
def validates(subject: Subject, case: RecurrentCase) -> None:
    run = played(subject, case)
    all_refused(subject, malformed_calls(run), run.judge)


MALFORMED: Mapping[str, Mapping[str, Any]] = {
    "no request": {"R": 0},
    "no head": {"H": 0},
    "no channel": {"D": 0},
    "a tail of -1 rows": {"tail": -1},
    "-1 drafts": {"drafts": -1},
}
"""Specs that no store of states can be opened with."""


def malformed_calls(run: Run) -> dict[str, Callable[[], Any]]:
    """What is wrong with a call, and the call."""
    case, new = run.case, run.state.new or ()

    def append(counts: list[int], rows: int, heads: int = case.H) -> Any:
        a, b = (run.placed(torch.ones(rows, heads, case.D)) for _ in range(2))
        offsets = [sum(counts[:r]) for r in range(len(counts) + 1)]
        return run.method("append", a, b, run.integers(offsets))

    one = [1] * case.R
    ways: dict[str, Callable[[], Any]] = {
        "offsets end past the last row": lambda: append(one, case.R - 1),
        "offsets count down": lambda: append([2, *one[1:-1], -1] if case.R > 1 else [-1], 9),
        "there is a head too many": lambda: append(one, case.R, case.H + 1),
        "offsets of a request too many": lambda: append([*one, 1], case.R + 1),
    }
    if run.subject.has("recurrence.rollback"):
        more, below = run.integers([n + 1 for n in new]), run.integers([-1] * case.R)
        ways["more stays than was appended"] = lambda: run.method("rollback", more)
        ways["-1 tokens stay"] = lambda: run.method("rollback", below)
    if run.subject.has("recurrence.fork", "recurrence.requests"):
        ways["a request is forked to itself"] = lambda: run.method("fork", 0, 0)
        ways["a child past the last request"] = lambda: run.method("fork", 0, case.R)
        ways["a child of number -1"] = lambda: run.method("fork", 0, -1)
        ways["a parent of number -1"] = lambda: run.method("fork", -1, 0)
    if run.subject.has("recurrence.free"):
        ways["a request past the last one is freed"] = lambda: run.method("free", case.R)
        ways["request -1 is freed"] = lambda: run.method("free", -1)
    return ways | {f"states with {what}": run.opening(**x) for what, x in MALFORMED.items()}
