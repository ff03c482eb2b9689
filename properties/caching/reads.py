"""Reads: queries of which every row is the mean over a known set of entries.

A read is a batch of queries q [R, Hq, T, D] and, for each row, the positions whose entries it
averages: *sought* is their indicator [R, Hq, T, L]. Where a cache takes several queries of a
request at once, row i of T is at position L - T + i; a needle in each row reads every entry. Else,
and within windows, there is a call for each place, seen from the last position.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.oracle.transactions import State, seen
from kernelassay.properties.caching import ledger
from kernelassay.properties.caching.case import CacheCase

__all__ = ["KINDS", "Read", "expected", "off", "reads"]

KINDS = ("needle", "mean", "bit")


@dataclass(frozen=True, eq=False)
class Read:
    """One call of attend: what each row is to see."""

    kind: str
    q: Tensor  # [R, Hq, T, D], float64
    sought: Tensor  # [R, Hq, T, L], bool: L is the longest length

    @property
    def rows(self) -> int:
        """T."""
        return self.q.shape[2]


def reads(
    case: CacheCase, state: State, kind: str, *, many: bool, turn: int = 0
) -> Iterator[Read]:
    """The calls that read *state* by rows of this *kind*; none where nothing is held.

    *many*: whether a call may have several queries of a request; *turn* turns the bits looked at.
    """
    L = max(state.lengths)
    if not L:
        L = 1  # rows that see nothing
    if many and state.window is None:
        yield _read(case, state, kind, L, [*range(-L, 0)], turn)
    elif kind == "needle":
        for back in range(1, min(L, state.window or L) + 1):
            yield _read(case, state, kind, 1, [-back], turn)
    else:
        yield _read(case, state, kind, 1, [-1], turn)
    if many and state.window is not None:
        T = _most_rows(state)
        yield _read(case, state, kind, T, [*range(-T, 0)], turn)


def _most_rows(state: State) -> int:
    """The most queries whose windows are all there, of every request."""
    room = [
        next((T - 1 for T in range(1, L + 1) if _window_start(state, L - T) < state.lost(r)), L)
        for r, L in enumerate(state.lengths)
        if L
    ]
    return max(1, min(room, default=1))


def _window_start(state: State, position: int) -> int:
    return max(0, position - (state.window or 0) + 1)


def _read(case: CacheCase, state: State, kind: str, T: int, aims: list[int], turn: int) -> Read:
    """T rows of each request, row i for the entry at aims[i] from the end."""
    most = max(1, *state.lengths)
    q = torch.zeros((case.R, case.Hq, T, case.D), dtype=torch.float64)
    sought = torch.zeros((case.R, case.Hq, T, most), dtype=torch.bool)
    for r, L in enumerate(state.lengths):
        if not L:
            continue
        k = ledger.keys(state.entries[r], case.Hkv, case.D)  # [L, Hkv, D]
        for i, aim in enumerate(aims):
            at = L - T + i
            if at < 0:
                continue
            visible = [*seen(state, r, at)]
            if kind == "needle":
                place = L + aim if L + aim in visible else at
                q[r, :, i] = ledger.needle(state.entries[r][place], case.Hq, case.Hkv, case.D)
                sought[r, :, i, place] = True
            elif kind == "mean":
                sought[r, :, i, visible] = True
            else:
                for h in range(case.Hq):
                    channel = (turn + 5 * i + 3 * h + r) % case.D
                    sign = 1 if (turn + i + h) % 2 else -1
                    q[r, h, i] = ledger.probe_of(channel, sign, case.D)
                    has = k[visible, h // (case.Hq // case.Hkv), channel] == sign
                    some = torch.tensor(visible)[has] if bool(has.any()) else visible
                    sought[r, h, i, some] = True
    return Read(kind, q, sought)


def expected(case: CacheCase, state: State, read: Read, *, exact: bool = False) -> Tensor:
    """The means [R, Hq, T, Dv], float64; 0 where nothing is sought."""
    make = ledger.exact_values if exact else ledger.values
    shape = (*read.q.shape[:3], case.value_size)
    found = torch.zeros(shape, dtype=torch.float64)
    count = read.sought.sum(-1)
    for r, entries in enumerate(state.entries):
        if entries:
            v = make(entries, case.Hkv, case.value_size)
            v = v.repeat_interleave(case.Hq // case.Hkv, 1).transpose(0, 1)  # [Hq, L, Dv]
            weights = read.sought[r, :, :, : len(entries)].double()
            found[r] = weights @ v / count[r].clamp_min(1)[..., None]
    return found


def off(read: Read, got: Tensor, right: Tensor, *, empty_zeros: bool) -> Tensor:
    """Which rows [R, Hq, T] are wrong: by as much as one entry more or less moves some channel.

    Fields are looked at where a row reads one entry. A row that sees nothing is 0 where that is
    declared.
    """
    count = read.sought.sum(-1)
    error = (got - right).abs()
    allowed = torch.where(count == 1, 0.25, 0.5 / (count + 1))[..., None].expand_as(error).clone()
    fields = torch.arange(error.shape[-1]) < ledger.VALUE
    allowed[(count > 1)[..., None] & fields] = torch.inf
    bad = (~(error <= allowed)).any(-1)  # NaN is wrong
    return bad & (count > 0) | (count == 0) & (got != 0).any(-1) & empty_zeros
