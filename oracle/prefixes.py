"""What a prefix cache may give to a request, in whole numbers.

A request has tokens t_0, t_1, ... and a scope s (a salt and an adapter). Blocks have P tokens. Of
a request that has committed c tokens the prefixes t[:P], t[:2 P], ... up to c are *cached* for s:

    begin    r <- tokens, c = 0             fill      the prompt's entries are all there
    append   r <- r + tokens                truncate  r <- r[:n],  max(c, its prompt) <= n <= L
    commit   c <- n, cached <- cached + {(s, r[:j P]) : j P <= n}
    end      r <- nothing                   reset     cached <- {}
    look     nothing changes

A hit of n tokens is right if P divides n and (s, tokens[:j P]) is cached for all j P <= n: no
fewer blocks than all before it, since an entry depends on every token up to its own.

A request of L tokens needs ceil(L / P) blocks. `needed` is what the running ones need where none
of them shares any; `taken` counts all that were ever needed: with as many nothing need be evicted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "Request", "Scope", "State", "Step", "Tokens", "append", "begin", "commit", "end", "fill",
    "longest", "look", "needed", "reset", "start", "stepped", "truncate",
]  # fmt: skip

Tokens = tuple[int, ...]
Scope = tuple[int, int]
Step = tuple[Any, ...]


@dataclass(frozen=True)
class Request:
    """A running request: its tokens, of which the first *prompt* came with it and *committed* are
    final, and whether all have entries."""

    tokens: Tokens
    scope: Scope
    prompt: int
    committed: int = 0
    filled: bool = False


@dataclass(frozen=True)
class State:
    """Running requests, None where none runs, and what is cached of blocks of *block* tokens.

    *taken*: blocks that were needed since the last reset, each time anew; *peak*: the most that
    running requests ever needed at a time; *longest*: the most tokens that a request ever had.
    """

    requests: tuple[Request | None, ...]
    block: int
    cached: frozenset[tuple[Scope, Tokens]] = frozenset()
    taken: int = 0
    peak: int = 0
    longest: int = 0


def start(requests: int, block: int) -> State:
    """*requests* requests, none of which runs."""
    return State((None,) * requests, block)


def longest(state: State, tokens: Tokens, scope: Scope, limit: int) -> int:
    """The most tokens, at most *limit*, that a request may begin with."""
    n = 0
    while n + state.block <= limit and (scope, tokens[: n + state.block]) in state.cached:
        n += state.block
    return n


def needed(state: State) -> int:
    """Blocks of the running requests, if they share none."""
    return sum(-(-len(request.tokens) // state.block) for request in state.requests if request)


def begin(state: State, r: int, tokens: Tokens, salt: int, adapter: int) -> State:
    """Request r runs, with this prompt."""
    _expect(_whole(r) and r < len(state.requests), f"a request below {len(state.requests)}")
    _expect(state.requests[r] is None, f"request {r} to have ended")
    _tokens(tokens, 1)
    _expect(_whole(salt) and _whole(adapter), "a salt and an adapter of at least 0")
    return _put(state, r, Request(tokens, (salt, adapter), len(tokens)))


def fill(state: State, r: int) -> State:
    """What request r did not find is appended."""
    request = _running(state, r)
    _expect(not request.filled, "a prompt that is not filled")
    return _put(state, r, replace(request, filled=True))


def append(state: State, r: int, tokens: Tokens) -> State:
    """Request r has more tokens."""
    request = _filled(state, r)
    _tokens(tokens, 1)
    return _put(state, r, replace(request, tokens=request.tokens + tokens))


def truncate(state: State, r: int, length: int) -> State:
    """Request r keeps its first *length* tokens."""
    request = _filled(state, r)
    low, high = max(request.committed, request.prompt), len(request.tokens)
    _expect(_whole(length) and low <= length <= high, f"a length of {low} to {high}")
    return _put(state, r, replace(request, tokens=request.tokens[:length]))


def commit(state: State, r: int, length: int) -> State:
    """The first *length* tokens of request r are final."""
    request = _filled(state, r)
    low, high = request.committed, len(request.tokens)
    _expect(_whole(length) and low <= length <= high, f"a length of {low} to {high}")
    whole = range(state.block, length + 1, state.block)
    new = {(request.scope, request.tokens[:n]) for n in whole}
    return replace(_put(state, r, replace(request, committed=length)), cached=state.cached | new)


def end(state: State, r: int) -> State:
    """Request r runs no more."""
    _running(state, r)
    return _put(state, r, None)


def look(state: State, tokens: Tokens, salt: int, adapter: int) -> State:
    """The same state: a look changes nothing."""
    _tokens(tokens, 1)
    _expect(_whole(salt) and _whole(adapter), "a salt and an adapter of at least 0")
    return state


def reset(state: State) -> State:
    """Nothing is cached."""
    _expect(not any(state.requests), "that no request runs")
    return replace(state, cached=frozenset(), taken=0)


def stepped(state: State, step: Step) -> State:
    """The state after a step written as ("begin", 0, (1, 2), 0, 0), ("commit", 0, 2) and so on.

    A `ValueError` says what a step that cannot be taken should be.
    """
    name, *arguments = step
    taken = (begin, fill, append, truncate, commit, end, look, reset)
    steps: dict[str, Callable[..., State]] = {f.__name__: f for f in taken}
    _expect(name in steps, f"one of {', '.join(steps)}")
    try:
        return steps[name](state, *arguments)
    except TypeError:
        raise ValueError(f"expected the arguments of {name}") from None


def _put(state: State, r: int, request: Request | None) -> State:
    """The state with that request, and its blocks counted."""
    before, requests = state.requests[r], state.requests
    have = 0 if before is None else -(-len(before.tokens) // state.block)
    want = 0 if request is None else -(-len(request.tokens) // state.block)
    after = replace(
        state,
        requests=(*requests[:r], request, *requests[r + 1 :]),
        taken=state.taken + max(0, want - have),
        longest=max(state.longest, 0 if request is None else len(request.tokens)),
    )
    return replace(after, peak=max(state.peak, needed(after)))


def _running(state: State, r: int) -> Request:
    R = len(state.requests)
    _expect(_whole(r) and r < R, f"a request below {R}")
    request = state.requests[r]
    if request is None:
        raise ValueError("expected a request that runs")
    return request


def _filled(state: State, r: int) -> Request:
    request = _running(state, r)
    _expect(request.filled, "a request whose prompt is filled")
    return request


def _tokens(tokens: object, least: int) -> None:
    good = isinstance(tokens, tuple) and len(tokens) >= least and all(map(_whole, tokens))
    _expect(good, f"a tuple of {least} or more tokens of at least 0")


def _whole(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def _expect(good: bool, expected: str) -> None:
    if not good:
        raise ValueError(f"expected {expected}")
