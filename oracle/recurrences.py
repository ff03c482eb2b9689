"""What recurrent states hold, in whole numbers: a fold over the tokens that were emitted.

A state of a request is that of its tokens t_0, t_1, ..., numbered as they were ever appended, so
that no two are alike:

    s_0 = 0,   s_{i+1} = a(t_i) s_i + b(t_i)

Steps: append  r <- r + n_r new tokens      rollback  of these n_r the first k_r stay
       fork    c <- the tokens of p         free      r <- ()

A rollback comes right after an append.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["State", "append", "fold", "fork", "free", "rollback", "start", "stepped"]

Step = tuple[Any, ...]


@dataclass(frozen=True)
class State:
    """The tokens of each request; *new*: how many of each the last step appended, None if it was
    no append."""

    tokens: tuple[tuple[int, ...], ...]
    new: tuple[int, ...] | None = None
    taken: int = 0


def fold(rows: Sequence[tuple[int, int]]) -> int:
    """s after the rows (a, b) of one channel."""
    s = 0
    for a, b in rows:
        s = a * s + b
    return s


def start(requests: int) -> State:
    """*requests* requests without tokens."""
    return State(((),) * requests)


def append(state: State, counts: tuple[int, ...]) -> State:
    """counts[r] new tokens for each request r."""
    _each(state, counts)
    tokens, taken = [], state.taken
    for own, n in zip(state.tokens, counts, strict=True):
        tokens.append((*own, *range(taken, taken + n)))
        taken += n
    return State(tuple(tokens), counts, taken)


def rollback(state: State, kept: tuple[int, ...]) -> State:
    """Of the tokens that the last step appended kept[r] stay."""
    if state.new is None:
        raise ValueError("expected an append right before")
    _each(state, kept)
    for n, k in zip(state.new, kept, strict=True):
        _expect(k <= n, f"at most the {[*state.new]} that were appended")
    cut = zip(state.tokens, state.new, kept, strict=True)
    return replace(state, tokens=tuple(own[: len(own) - n + k] for own, n, k in cut), new=None)


def fork(state: State, parent: int, child: int) -> State:
    """The child has the tokens of the parent."""
    _request(state, parent)
    _request(state, child)
    _expect(parent != child, "another request as the child")
    return _put(state, child, state.tokens[parent])


def free(state: State, r: int) -> State:
    """Request r has no tokens."""
    _request(state, r)
    return _put(state, r, ())


def stepped(state: State, step: Step) -> State:
    """The state after a step written as ("append", (2, 0)), ("rollback", (1, 0)) and so on.

    A `ValueError` says what a step that cannot be taken should be.
    """
    name, *arguments = step
    taken = (append, rollback, fork, free)
    steps: dict[str, Callable[..., State]] = {f.__name__: f for f in taken}
    _expect(name in steps, f"one of {', '.join(steps)}")
    try:
        return steps[name](state, *arguments)
    except TypeError:
        raise ValueError(f"expected the arguments of {name}") from None


def _put(state: State, r: int, tokens: tuple[int, ...]) -> State:
    every = (*state.tokens[:r], tokens, *state.tokens[r + 1 :])
    return replace(state, tokens=every, new=None)


def _each(state: State, counts: tuple[int, ...]) -> None:
    R = len(state.tokens)
    good = isinstance(counts, tuple) and len(counts) == R and all(map(_whole, counts))
    _expect(good, f"{R} numbers of at least 0, one a request")


def _request(state: State, r: int) -> None:
    _expect(_whole(r) and r < len(state.tokens), f"a request below {len(state.tokens)}")


def _whole(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def _expect(good: bool, expected: str) -> None:
    if not good:
        raise ValueError(f"expected {expected}")
