"""Labels of programs: which of the requests that go wrong elsewhere a program makes."""

from collections.abc import Iterator
from typing import Any

from kernelassay.oracle.prefixes import Request, Scope, State, Tokens, longest, needed
from kernelassay.properties.domain import lacking
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.prefixes.case import PrefixCase

SOUGHT = (
    "hit", "hit_running", "hit_after_truncate", "hit_after_eviction", "other_prefix",
    "other_position", "permuted", "repeated_block", "other_salt", "other_adapter",
    "salt_against_adapter", "whole_prompt", "uncommitted_sought", "unfilled_sought",
    "partial_sought", "after_reset", "slot_again", "written_over",
)  # fmt: skip


@labels.register
def _(case: PrefixCase, domain: Any) -> set[str]:
    found = facts(case)
    if set(lacking(case, domain)) & domain.declines:
        found.add("declined")
    return found


def facts(case: PrefixCase) -> set[str]:
    """Everything that the program does and that is worth counting."""
    states = case.states()
    found = {"program", "malformed", f"hash_{case.hash}"}
    for n, step in enumerate(case.steps):
        if step[0] in ("begin", "look"):
            found |= set(_of_sought(case, n, states, step[-3], step[-2:]))
        elif step[0] == "commit":
            found |= set(_of_commit(states[n], step[1], step[2]))
        elif step[0] == "truncate":
            before = states[n].requests[step[1]]
            assert before is not None
            if -(-step[2] // case.block) < -(-len(before.tokens) // case.block):
                found.add("truncate_frees_block")
        if step[0] == "look":
            found.add("look")
    found |= set(_of_pool(case, states))
    if any(len({*_running_tokens(state)}) < len(_running_tokens(state)) for state in states):
        found.add("twins")
    return found


def _running_tokens(state: State) -> list[tuple[Scope, Tokens]]:
    running = [r for r in state.requests if r and r.filled and r.committed >= state.block]
    return [(r.scope, r.tokens[: state.block]) for r in running]


def _of_sought(
    case: PrefixCase, n: int, states: list[State], tokens: Tokens, scope: Scope
) -> Iterator[str]:
    """What a prompt is to what was computed before."""
    P, state, step = case.block, states[n], case.steps[n]
    whole = len(tokens) // P * P
    hit = longest(state, tokens, scope, len(tokens))
    next_part = tokens[: hit + P] if hit + P <= whole else ()
    if hit and hit < len(tokens):
        yield "hit"
        if any(r and r.scope == scope and r.tokens[:P] == tokens[:P] for r in state.requests):
            yield "hit_running"
        if any(s[0] == "truncate" for s in case.steps[:n]):
            yield "hit_after_truncate"
        if state.taken > case.pool:
            yield "hit_after_eviction"
            if any(r and r.filled and len(r.tokens) - r.committed >= P for r in state.requests):
                yield "written_over"
        if hit >= 2 * P and tokens[:P] == tokens[P : 2 * P]:
            yield "repeated_block"
    if hit and hit == len(tokens):
        yield "whole_prompt"
    if next_part and hit:
        yield from _of_next(state, next_part, scope, hit)
    for other, known in state.cached:
        if len(known) > hit and known == tokens[: len(known)]:
            yield from _of_scopes(other, scope)
    if next_part and any(_held(s, scope, next_part) for s in states[: n + 1]):
        yield "uncommitted_sought"
    if step[0] == "begin" and any(
        r and not r.filled and r.scope == scope and r.tokens[:P] == tokens[:P] and whole
        for r in state.requests
    ):
        yield "unfilled_sought"
    partly = {r.tokens[: r.committed] for s in states[: n + 1] for r in s.requests
              if r and r.scope == scope and r.committed % P}  # fmt: skip
    if hit < len(tokens) and any(t == tokens[: len(t)] for t in partly):
        yield "partial_sought"
    if next_part and any((scope, next_part) in s.cached for s in states[:n]):
        yield "after_reset"
    if step[0] == "begin" and any(
        before.requests[step[1]] and before.cached for before in states[:n]
    ):
        yield "slot_again"


def _of_scopes(there: Scope, here: Scope) -> Iterator[str]:
    """How the scope of what is cached differs from that of a prompt."""
    salts, adapters = there[0] != here[0], there[1] != here[1]
    if salts and not adapters:
        yield "other_salt"
    if adapters and not salts:
        yield "other_adapter"
    if salts and there == here[::-1]:
        yield "salt_against_adapter"


def _of_next(state: State, part: Tokens, scope: Scope, hit: int) -> Iterator[str]:
    """Where the first block that must not be hit, the end of *part*, is cached all the same."""
    P, block = state.block, part[hit:]
    for s, t in state.cached:
        if s == scope and t[-P:] == block:
            yield "other_prefix" if len(t) == len(part) else "other_position"
        if s == scope and sorted(_blocks(t, P)) == sorted(_blocks(part, P)):
            yield "permuted"


def _blocks(tokens: Tokens, P: int) -> list[Tokens]:
    return [tokens[i : i + P] for i in range(0, len(tokens), P)]


def _held(state: State, scope: Scope, part: Tokens) -> bool:
    """Whether some request had entries of *part*."""
    return any(
        r and r.filled and r.scope == scope and r.tokens[: len(part)] == part
        for r in state.requests
    )


def _of_commit(state: State, r: int, length: int) -> Iterator[str]:
    before, P = state.requests[r], state.block
    assert before is not None
    if before.committed % P and length // P > before.committed // P:
        yield "promoted"
    if length < len(before.tokens) and length // P < len(before.tokens) // P:
        yield "drafts_kept_back"


def _of_pool(case: PrefixCase, states: list[State]) -> Iterator[str]:
    """What a program asks of the pool."""
    full, again, pool = False, False, case.pool
    hits: dict[int, int] = {}
    shared = set()
    for n, step in enumerate(case.steps):
        before, after = states[n], states[n + 1]
        if step[0] == "begin":
            hits[step[1]] = longest(before, step[2], step[3:], len(step[2]))
            if any(hits.get(r) and hits[step[1]] and _alike(q, after.requests[step[1]], case.block)
                   for r, q in enumerate(before.requests) if q):  # fmt: skip
                shared.add(step[1])
        if after.taken > max(pool, before.taken) and any(
            hits.get(r) for r, q in enumerate(before.requests) if q
        ):
            yield "eviction_while_held"
            if shared:
                yield "eviction_while_shared"
        if needed(after) == pool:
            again |= full
        if step[0] == "end" and needed(before) == pool:
            full = True
        if step[0] == "end":
            hits.pop(step[1], None)
    if again:
        yield "pool_full_again"
    if max(state.taken for state in states) > pool:
        yield "more_than_the_pool"


def _alike(a: Request | None, b: Request | None, P: int) -> bool:
    return bool(a and b and a.scope == b.scope and a.tokens[:P] == b.tokens[:P])


LABELS.update(
    {
        "program", "malformed", "declined", "hash_own", "hash_constant", "hash_sum",
        "hash_tokens", "hash_scopeless", "truncate_frees_block", "look", "twins", "promoted",
        "drafts_kept_back", "eviction_while_held", "eviction_while_shared", "pool_full_again",
        "more_than_the_pool", *SOUGHT,
    }
)  # fmt: skip
