"""Laws of prefix caches: what a request begins with is what it would have computed itself."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import BlockUse, Prefixed, Scope, Unsupported
from kernelassay.oracle.prefixes import State
from kernelassay.properties.failures import Different, WrongState
from kernelassay.properties.laws.refusing import all_refused, took_what_it_declines, validating
from kernelassay.properties.memory import Watch
from kernelassay.properties.prefixes import strata as s
from kernelassay.properties.prefixes.case import PrefixCase
from kernelassay.properties.prefixes.run import Run, opened, played, refused
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


def _stepwise(subject: Subject, case: PrefixCase) -> None:
    """Every hit is judged, and after every step all entries of all running requests are read."""
    played(subject, case)


_RIGHT: dict[str, tuple[str, dict[str, s.Stratum]]] = {
    "cold_run": (
        "A request that begins with cached blocks reads the entries that it would have computed.",
        {"program": s.program, **s.PLAIN},
    ),
    "collision": (
        "Where hashes of blocks collide a request gets the entries of its own tokens, or none.",
        {**s.COLLIDING},
    ),
    "scope": (
        "Requests of another salt or adapter hit nothing; a salt is not an adapter.",
        {**s.SCOPED},
    ),
    "eviction": (
        "What was evicted is not hit, or was there again; nothing stale is read.",
        {**s.EVICTED, "written_over": s.written_over},
    ),
    "pinned": (
        "Blocks that a running request holds stay as they are, whoever needs room or ends.",
        {**s.HELD},
    ),
    "uncommitted": (
        "What was rejected, or is not yet emitted or computed, is not hit.",
        {**s.REJECTED},
    ),
    "whole_blocks": (
        "Whole committed blocks are hit, as many as the prompt allows, and no part of one.",
        {**s.WHOLE},
    ),
    "capacity": (
        "Requests may need the whole pool, again and again: nothing of it is lost.",
        {**s.POOLED},
    ),
    "reset": (
        "After a reset nothing is hit that was committed before.",
        {"after_reset": s.after_reset},
    ),
    "match": (
        "What a look says is what was committed, as for a request that begins.",
        {"look": s.look},
    ),
}
for _name, (_sentence, _strata) in _RIGHT.items():
    law(
        f"transactions.prefix_{_name}",
        _sentence,
        operation="prefix",
        strata=_strata,
        weight=0.5 if len(_strata) == 1 else 1.0,
    )(_stepwise)


@law(
    "transactions.prefix_found",
    "What was committed is hit, whole block for whole block, while the pool has room for all.",
    operation="prefix",
    rests_on=lambda c: (
        None
        if (c.prefixing or Prefixed()).hits == "all"
        else "rests on Prefixed.hits, which says that anything may be forgotten"
    ),
    strata={**s.PLAIN, **s.WHOLE, "hit_after_truncate": s.hit_after_truncate},
)
def found(subject: Subject, case: PrefixCase) -> None:
    taken = max(state.taken for state in case.states())
    played(subject, replace(case, blocks=max(1, taken)), found=True)


@law(
    "transactions.prefix_as_matched",
    "A request begins with what a look says right before it.",
    operation="prefix",
    requires=["prefix.match"],
    strata={**s.PLAIN, **s.EVICTED},
    weight=0.5,
)
def as_matched(subject: Subject, case: PrefixCase) -> None:
    run = opened(subject, case)
    try:
        for step in case.steps:
            begins = step[0] == "begin"
            said = run.method("match", [*step[2]], Scope(*step[3:])) if begins else None
            run.take(step)
            if begins and said != run.answers[-1]:
                raise Different(
                    f"at step {len(run.steps)} match says that {said} tokens are there, begin "
                    f"right after it says {run.answers[-1]}; expected the same",
                    lines=run.program(broke=True),
                )
    except Unsupported as why:
        raise refused(subject, why) from why


@law(
    "transactions.prefix_one_by_one",
    "Entries that are appended one by one are read and hit as those appended together.",
    operation="prefix",
    strata=s.ANY,
    weight=0.5,
)
def one_by_one(subject: Subject, case: PrefixCase) -> None:
    played(subject, case, single=True)


@law(
    "transactions.prefix_accounting",
    "A request holds the blocks that its tokens need; two share one where they begin alike.",
    operation="prefix",
    requires=["prefix.accounting"],
    strata={**s.PLAIN, **s.HELD, **s.POOLED},
)
def accounting(subject: Subject, case: PrefixCase) -> None:
    def check(run: Run) -> None:
        use = run.use()
        if why := wrong_use(run, use):
            raise WrongState(
                f"after step {len(run.steps)} {why}",
                lines=[
                    *run.program(broke=True),
                    "Blocks",
                    *(f"  request {r}: {' '.join(map(str, h)) or '-'}"
                      for r, h in enumerate(use.held)),
                ],
            )  # fmt: skip

    played(subject, case, check=check)


def wrong_use(run: Run, use: BlockUse) -> str:
    """Why the blocks cannot be held like that; empty where they can."""
    state, P, pool = run.state, run.case.block, run.case.pool
    if len(use.held) != len(state.requests):
        return f"blocks() names {len(use.held)} requests; expected {len(state.requests)}"
    for r, blocks in enumerate(use.held):
        L = _length(run, state, r)
        if len(blocks) != -(-L // P):
            return f"request {r} holds {len(blocks)} blocks for {L} tokens; expected {-(-L // P)}"
        if len({*blocks}) < len(blocks):
            return f"request {r} holds a block twice: {[*blocks]}"
        if beyond := [n for n in blocks if not 0 <= n < pool]:
            return f"request {r} holds block {beyond[0]}; expected one of 0 to {pool - 1}"
    holders: dict[int, tuple[int, Any]] = {}
    for r, blocks in enumerate(use.held):
        request = state.requests[r]
        for j, block in enumerate(blocks):
            assert request is not None
            what = (request.scope, request.tokens[: (j + 1) * P])
            whole = len(what[1]) == (j + 1) * P
            if block in holders and (holders[block][1] != what or not whole):
                return (
                    f"block {block} is held by requests {holders[block][0]} and {r}, whose tokens "
                    f"up to its end differ"
                )
            holders[block] = r, what
    return ""


def _length(run: Run, state: State, r: int) -> int:
    """How many entries request r has."""
    request = state.requests[r]
    if request is None:
        return 0
    return len(request.tokens) if request.filled else run.hits[r]


@law(
    "transactions.prefix_memory",
    "Inputs are unchanged, and nothing is written beside what is allocated.",
    operation="prefix",
    rests_on=lambda c: "rests on PyTorch's own operators, not on compiled ones" if c.compiled
    else None,
    strata=s.ANY,
    weight=0.5,
)  # fmt: skip
def memory(subject: Subject, case: PrefixCase) -> None:
    watches: list[Watch] = []

    def guarded(run: Callable[[], Any]) -> Any:
        with Watch() as watch:
            came = run()
        watches.append(watch)
        for each in watches:
            each.check()
        if isinstance(came, tuple) and came and all(isinstance(x, Tensor) for x in came):
            subject.watched.add("allocations")
        return came

    played(subject, case, guard=guarded)


@law(
    "transactions.prefix_declines",
    "A cache or a step that needs a declined feature is refused with Unsupported.",
    operation="prefix",
    rests_on=lambda c: (
        None if c.declines & {*s.NEEDING} else "declines nothing that a program could need"
    ),
    strata={"declined": s.declined},
    weight=0.5,
)
def declines(subject: Subject, case: PrefixCase) -> None:
    run = Run(subject, case)
    try:
        run.open(case.pool, max(1, case.states()[-1].longest))
        for step in case.steps:
            run.take(step)
    except Unsupported:
        return
    raise took_what_it_declines(subject, case)


@law(
    "transactions.prefix_validates",
    "Malformed calls raise, and change nothing.",
    operation="prefix",
    rests_on=validating,
    strata={"malformed": s.malformed},
    weight=0.5,
)
def validates(subject: Subject, case: PrefixCase) -> None:
    run = played(subject, case)
    all_refused(subject, malformed_calls(run), run.judge)


MALFORMED: Mapping[str, Mapping[str, Any]] = {
    "no request": {"R": 0},
    "no KV head": {"Hkv": 0},
    "keys of no channel": {"D": 0},
    "values of no channel": {"Dv": 0},
    "blocks of no token": {"block": 0},
    "blocks of -1 tokens": {"block": -1},
    "no block": {"blocks": 0},
    "-1 blocks": {"blocks": -1},
    "requests without room": {"most": 0},
}
"""Specs that no prefix cache can be opened with."""


def malformed_calls(run: Run) -> dict[str, Callable[[], Any]]:
    """What is wrong with a call, and the call."""
    case, most = run.case, max(1, run.case.states()[-1].longest)
    (r,) = [r for r, request in enumerate(run.state.requests) if request]
    request = run.state.requests[r]
    assert request is not None
    L, committed = len(request.tokens), request.committed

    def append(n: int, rows: int, heads: int = case.Hkv, request: int = r) -> Any:
        k, v = (run.placed(torch.ones(rows, heads, x)) for x in (case.D, case.value_size))
        return run.method("append", request, [0] * n, k, v)

    ways: dict[str, Callable[[], Any]] = {
        "a request begins that runs": lambda: run.method("begin", r, [0], Scope()),
        "a request begins past the last one": lambda: run.method("begin", case.R, [0], Scope()),
        "an entry is missing": lambda: append(2, 1),
        "there is a KV head too many": lambda: append(1, 1, case.Hkv + 1),
        "more tokens than a request may have": lambda: append(most + 1, most + 1),
        "more is committed than is there": lambda: run.method("commit", r, L + 1),
        "less is committed than was before": lambda: run.method("commit", r, committed - 1),
        "a request ends past the last one": lambda: run.method("end", case.R),
        "request -1 ends": lambda: run.method("end", -1),
        "request -1 gets a token": lambda: append(1, 1, request=-1),
        "request -1 is committed": lambda: run.method("commit", -1, committed),
    }
    if case.R > 1:
        other = next(q for q in range(case.R) if q != r)
        ways["a request ends that does not run"] = lambda: run.method("end", other)
        ways["request -1 begins"] = lambda: run.method("begin", -1, [0], Scope())
        ways["a prompt without tokens"] = lambda: run.method("begin", other, [], Scope())
    if run.subject.has("prefix.truncate"):
        ways["request -1 is truncated"] = lambda: run.method("truncate", -1, committed)
        ways["truncate to more than is there"] = lambda: run.method("truncate", r, L + 1)
        ways["truncate what is committed"] = lambda: run.method("truncate", r, committed - 1)
    if run.subject.has("prefix.reset"):
        ways["a reset while a request runs"] = lambda: run.method("reset")
    return ways | {f"a cache with {what}": run.opening(**x) for what, x in MALFORMED.items()}
