"""What a KV cache holds after any steps, in whole numbers.

A state has, for each request r, its entries e_r = (e_r0, e_r1, ...), each a (token, position,
owner): tokens number all entries that were ever appended, 0, 1, 2, ..., so that no two are alike;
the owner is the request that appended it. Steps, with L = len(e_r):

    append    e_r <- e_r + n_r new entries        truncate  e_r <- e_r[:n_r],  n_r <= L
    compact   e_r <- e_r[:s] + (e_r[s + i] for the kept i, rising)
    fork      e_c <- e_p[:n]                      free      e_r <- ()

Under a window W an entry counts as lost once W + spare later ones have been appended, even if
those were dropped again: a ring has overwritten it.

Pages of P slots: entry j of r lies in page number j div P of r. A fork shares pages; whoever
writes to a page that another request holds, too, takes a new one in its place (copy on write). A
page that nobody holds is free. `held` follows this; `least` is the number below which no storage
in pages can get, since two requests can only share a page where the entries of one begin with
those of the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

__all__ = [
    "Entry", "State", "append", "compact", "fork", "free", "least", "needed", "seen", "start",
    "stepped", "truncate",
]  # fmt: skip

Entry = tuple[int, int, int]
T = TypeVar("T")
Step = tuple[Any, ...]


@dataclass(frozen=True)
class State:
    """What R requests hold. *held*: numbers of the pages of each, never used twice; *peak*: the
    most pages that were held at a time; *longest*: the most entries each request ever had since
    it was empty."""

    entries: tuple[tuple[Entry, ...], ...]
    held: tuple[tuple[int, ...], ...]
    longest: tuple[int, ...]
    page: int | None = None
    window: int | None = None
    spare: int = 0
    tokens: int = 0
    taken: int = 0
    peak: int = 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """L of each request."""
        return tuple(map(len, self.entries))

    def lost(self, r: int) -> int:
        """The positions of request r below this one may be gone."""
        return 0 if self.window is None else max(0, self.longest[r] - self.window - self.spare)


def start(
    requests: int, page: int | None = None, window: int | None = None, spare: int = 0
) -> State:
    """*requests* empty requests."""
    none: tuple[tuple[int, ...], ...] = ((),) * requests
    return State(((),) * requests, none, (0,) * requests, page, window, spare)


def seen(state: State, r: int, position: int) -> tuple[int, ...]:
    """The positions that a query of request r at *position* sees; none below position 0."""
    low = 0 if state.window is None else max(0, position - state.window + 1)
    return tuple(range(low, position + 1))


def append(state: State, counts: tuple[int, ...]) -> State:
    """counts[r] new entries at the end of each request r."""
    _expect(len(counts) == len(state.entries), f"{len(state.entries)} counts, one a request")
    _expect(all(_whole(n) for n in counts), "counts of at least 0")
    for r, n in enumerate(counts):
        L, first = len(state.entries[r]), state.tokens
        new = tuple((first + i, L + i, r) for i in range(n))
        state = _written(state, r, L, L + n) if n else state
        entries = _put(state.entries, r, (*state.entries[r], *new))
        longest = _put(state.longest, r, max(state.longest[r], L + n))
        state = replace(state, entries=entries, longest=longest, tokens=first + n)
    return state


def truncate(state: State, lengths: tuple[int, ...]) -> State:
    """Each request r keeps its first lengths[r] entries."""
    _expect(len(lengths) == len(state.entries), f"{len(state.entries)} lengths, one a request")
    for r, n in enumerate(lengths):
        L = len(state.entries[r])
        _expect(_whole(n) and n <= L, f"a length of 0 to {L} for request {r}")
        _expect(n == L or max(0, n - (state.window or 0)) >= state.lost(r), _WITHIN)
        state = _cut(state, r, n)
    return state


def compact(state: State, r: int, first: int, kept: tuple[int, ...]) -> State:
    """Of the entries of request r from *first* on those at first + kept[i] stay, in order."""
    _request(state, r)
    L = len(state.entries[r])
    _expect(state.window is None, "no window: what moves was seen elsewhere")
    _expect(_whole(first) and first <= L, f"a start of 0 to {L}")
    rising = all(a < b for a, b in pairwise(kept))
    good = all(_whole(i) and first + i < L for i in kept) and rising
    _expect(good, f"kept numbers that rise, below {L - first}")
    end = first + len(kept)
    moved = [first + i for i, source in enumerate(kept) if source != i]
    stays = tuple(state.entries[r][first + i] for i in kept)
    if moved:
        state = _written(state, r, moved[0], end)
    state = replace(state, entries=_put(state.entries, r, (*state.entries[r][:first], *stays)))
    return _cut(state, r, end)


def fork(state: State, parent: int, child: int, length: int) -> State:
    """The child holds the first *length* entries of the parent."""
    _request(state, parent)
    _request(state, child)
    L = len(state.entries[parent])
    _expect(parent != child, "another request as the child")
    _expect(_whole(length) and length <= L, f"a length of 0 to {L}")
    _expect(length == L or max(0, length - (state.window or 0)) >= state.lost(parent), _WITHIN)
    columns = -(-length // state.page) if state.page else 0
    return replace(
        state,
        entries=_put(state.entries, child, state.entries[parent][:length]),
        held=_put(state.held, child, state.held[parent][:columns]),
        longest=_put(state.longest, child, state.longest[parent] if length else 0),
    )


def free(state: State, r: int) -> State:
    """Request r holds nothing."""
    _request(state, r)
    return replace(_cut(state, r, 0), longest=_put(state.longest, r, 0))


def stepped(state: State, step: Step) -> State:
    """The state after a step written as ("append", (2, 0)), ("fork", 0, 1, 2) and so on.

    A `ValueError` says what a step that cannot be taken should be.
    """
    name, *arguments = step
    every = (append, truncate, compact, fork, free)
    steps: dict[str, Callable[..., State]] = {f.__name__: f for f in every}
    _expect(name in steps, f"one of {', '.join(steps)}")
    try:
        return steps[name](state, *arguments)
    except TypeError:
        raise ValueError(f"expected the arguments of {name}") from None


def needed(state: State) -> int:
    """Pages that are held, each counted once."""
    return len({page for held in state.held for page in held})


def least(state: State) -> int:
    """The fewest pages that can hold these entries: blocks that do not begin another one."""
    size = state.page or 1
    blocks = {
        (j, entries[j : j + size])
        for entries in state.entries
        for j in range(0, len(entries), size)
    }
    return sum(
        not any(i == j and a != b and b[: len(a)] == a for i, b in blocks) for j, a in blocks
    )


_WITHIN = "a length from which the window is still there"


def _written(state: State, r: int, low: int, high: int) -> State:
    """Request r owns the pages of the positions low..high - 1, so that it can write there."""
    if state.page is None:
        return state
    held, taken = list(state.held[r]), state.taken
    others = {page for q, pages in enumerate(state.held) if q != r for page in pages}
    for column in range(low // state.page, -(-high // state.page)):
        if column == len(held):
            held.append(taken)
        elif held[column] in others:
            held[column] = taken
        else:
            continue
        taken += 1
    state = replace(state, held=_put(state.held, r, tuple(held)), taken=taken)
    return replace(state, peak=max(state.peak, needed(state)))


def _cut(state: State, r: int, length: int) -> State:
    columns = -(-length // state.page) if state.page else 0
    return replace(
        state,
        entries=_put(state.entries, r, state.entries[r][:length]),
        held=_put(state.held, r, state.held[r][:columns]),
        longest=_put(state.longest, r, state.longest[r] if length else 0),
    )


def _put(of: tuple[T, ...], at: int, new: T) -> tuple[T, ...]:
    return (*of[:at], new, *of[at + 1 :])


def _request(state: State, r: object) -> None:
    R = len(state.entries)
    _expect(_whole(r) and r < R, f"a request below {R}")  # type: ignore[operator]


def _whole(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def _expect(good: bool, expected: str) -> None:
    if not good:
        raise ValueError(f"expected {expected}")
