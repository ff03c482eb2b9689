"""The model of cache transactions against a trace backwards and pages that are counted by hand."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.oracle import transactions as t

Steps = list[tuple[Any, ...]]


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, int, Steps]:
    """(requests, page, steps), each step valid after those before it."""
    R, page = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    state, steps = t.start(R, page), list[tuple[Any, ...]]()
    for _ in range(draw(st.integers(1, 7))):
        r = draw(st.integers(0, R - 1))
        L = state.lengths
        kinds = ["append", "truncate", "compact", "free", *(["fork"] if R > 1 else [])]
        kind = draw(st.sampled_from(kinds))
        step: tuple[Any, ...]
        if kind == "append":
            step = (kind, tuple(draw(st.integers(0, 4)) for _ in range(R)))
        elif kind == "truncate":
            step = (kind, tuple(draw(st.integers(0, n)) for n in L))
        elif kind == "compact":
            first = draw(st.integers(0, L[r]))
            kept = [i for i in range(L[r] - first) if draw(st.booleans())]
            step = (kind, r, first, tuple(kept))
        elif kind == "fork":
            child = (r + draw(st.integers(1, R - 1))) % R
            step = (kind, r, child, draw(st.integers(0, L[r])))
        else:
            step = (kind, r)
        steps.append(step)
        state = t.stepped(state, step)
    return R, page, steps


def states_of(R: int, page: int, steps: Steps) -> list[t.State]:
    """The states from the beginning on."""
    found = [t.start(R, page)]
    for step in steps:
        found.append(t.stepped(found[-1], step))
    return found


def length_at(steps: Steps, r: int, n: int) -> int:
    """How many entries request r has after n steps, asked from the last step backwards."""
    if n == 0:
        return 0
    kind, *a = steps[n - 1]
    if kind == "append":
        return length_at(steps, r, n - 1) + int(a[0][r])
    if kind == "truncate":
        return int(a[0][r])
    if kind == "compact" and a[0] == r:
        return int(a[1]) + len(a[2])
    if kind == "fork" and a[1] == r:
        return int(a[2])
    if kind == "free" and a[0] == r:
        return 0
    return length_at(steps, r, n - 1)


def origin(steps: Steps, r: int, j: int, n: int) -> tuple[int, int, int]:
    """(step, request, position) of the append that made entry j of r, found backwards."""
    kind, *a = steps[n - 1]
    if kind == "append" and j >= (L := length_at(steps, r, n - 1)):
        assert j < L + a[0][r]
        return n - 1, r, j
    if kind == "compact" and a[0] == r and j >= a[1]:
        return origin(steps, r, a[1] + a[2][j - a[1]], n - 1)
    if kind == "fork" and a[1] == r:
        return origin(steps, a[0], j, n - 1)
    return origin(steps, r, j, n - 1)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(programs())
def test_entries_are_those_that_a_trace_backwards_finds(given: tuple[int, int, Steps]) -> None:
    """Each entry is the one that its own history names; no two appends make the same."""
    R, page, steps = given
    state = states_of(R, page, steps)[-1]
    token_of: dict[tuple[int, int, int], int] = {}
    for r in range(R):
        assert len(state.entries[r]) == length_at(steps, r, len(steps))
        for j, (token, position, owner) in enumerate(state.entries[r]):
            step, request, at = origin(steps, r, j, len(steps))
            assert (position, owner) == (at, request)
            assert token_of.setdefault((step, request, at), token) == token
    assert len(set(token_of.values())) == len(token_of)


def simulated(R: int, page: int, steps: Steps) -> list[int]:
    """Pages in use after each step: blocks with sets of holders, changed in place."""
    tables: list[list[set[int]]] = [[] for _ in range(R)]
    used, lengths = [], [0] * R

    def drop(r: int, columns: int) -> None:
        while len(tables[r]) > columns:
            tables[r].pop().discard(r)

    def own(r: int, low: int, high: int) -> None:
        for c in range(low // page, -(-high // page)):
            if c == len(tables[r]):
                tables[r].append({r})
            elif len(tables[r][c]) > 1:
                tables[r][c].discard(r)
                tables[r][c] = {r}

    for kind, *a in steps:
        if kind == "append":
            for r, n in enumerate(a[0]):
                if n:
                    own(r, lengths[r], lengths[r] + n)
                lengths[r] += n
        elif kind == "truncate":
            for r, n in enumerate(a[0]):
                drop(r, -(-n // page))
                lengths[r] = n
        elif kind == "compact":
            r, first, kept = a
            moved = [first + i for i, k in enumerate(kept) if k != i]
            if moved:
                own(r, moved[0], first + len(kept))
            drop(r, -(-(first + len(kept)) // page))
            lengths[r] = first + len(kept)
        elif kind == "fork":
            parent, child, n = a
            drop(child, 0)
            for block in tables[parent][: -(-n // page)]:
                block.add(child)
                tables[child].append(block)
            lengths[child] = n
        else:
            drop(a[0], 0)
            lengths[a[0]] = 0
        used.append(len({id(block) for table in tables for block in table}))
    return used


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(programs())
def test_pages_are_those_of_blocks_with_holders(given: tuple[int, int, Steps]) -> None:
    """Copy on write takes as many pages as a simulation with sets of holders, never too few."""
    R, page, steps = given
    states = states_of(R, page, steps)
    assert [t.needed(state) for state in states[1:]] == simulated(R, page, steps)
    for state in states:
        assert t.least(state) <= t.needed(state) <= state.peak
        assert [len(held) for held in state.held] == [-(-L // page) for L in state.lengths]


def test_a_page_is_shared_until_it_is_written_to() -> None:
    """Five entries in pages of four: the fork takes no page, the first append to it one."""
    state = t.fork(t.append(t.start(2, 4), (5, 0)), 0, 1, 5)
    assert (t.needed(state), t.least(state)) == (2, 2)
    state = t.append(state, (0, 1))
    assert (t.needed(state), t.least(state)) == (3, 2)  # page 1 of the parent begins the child's
    state = t.append(state, (1, 0))
    assert (t.needed(state), t.least(state), state.peak) == (3, 3, 3)


def test_a_window_loses_what_a_ring_has_written_over() -> None:
    """W = 2 and one spare: of five entries the first two are gone, even once one is dropped."""
    state = t.append(t.start(1, window=2, spare=1), (5,))
    assert state.lost(0) == 2
    assert t.seen(state, 0, 4) == (3, 4)
    state = t.truncate(state, (4,))
    assert state.lost(0) == 2
    with pytest.raises(ValueError, match="window is still there"):
        t.truncate(state, (3,))
    assert t.free(state, 0).lost(0) == 0


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (("append", (1,)), "2 counts"),
        (("append", (1, -1)), "counts of at least 0"),
        (("truncate", (4, 0)), "a length of 0 to 3 for request 0"),
        (("compact", 0, 4, ()), "a start of 0 to 3"),
        (("compact", 0, 1, (1, 0)), "kept numbers that rise, below 2"),
        (("compact", 0, 1, (2,)), "kept numbers that rise, below 2"),
        (("fork", 0, 0, 1), "another request"),
        (("fork", 0, 1, 4), "a length of 0 to 3"),
        (("free", 2), "a request below 2"),
        (("attend",), "one of append, truncate, compact, fork, free"),
        (("free",), "the arguments of free"),
    ],
)
def test_steps_that_cannot_be_taken_say_so(step: tuple[Any, ...], expected: str) -> None:
    """What is expected instead."""
    state = t.append(t.start(2, 2), (3, 0))
    with pytest.raises(ValueError, match=expected):
        t.stepped(state, step)
