"""The contract of recurrent states, as linear attention and state-space layers keep them.

A request has a state s [H, D], zero at first, into which each token folds its rows a and b [H, D]:

    s <- a s + b

and, where it is asked for, a tail: the rows b of its last W tokens, as a short convolution keeps.
A state cannot be cut as a cache of keys can: what a rejected draft did to it must be undone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["RECURRENCES", "StateSpec", "StateStore", "States"]

RECURRENCES: Mapping[str, str] = {
    "recurrence": "recurrent states: recurrence(spec) -> store, which has append and read",
    "recurrence.requests": "more than one request",
    "recurrence.ragged": "appends of different lengths, and such that bring some requests nothing",
    "recurrence.tail": "the last rows b of each request are kept, too",
    "recurrence.rollback": "rollback(kept): tokens of the last append go, as rejected drafts do",
    "recurrence.fork": "fork(parent, child): the child begins with the state of the parent",
    "recurrence.free": "free(request): its state is zero, and it may begin anew",
    "recurrence.padding": "rows of an append past the last offset, which belong to nobody",
}
"""What a store of recurrent states may support or decline, with what each name means."""


@dataclass(frozen=True, kw_only=True)
class StateSpec:
    """What a store is opened with: R requests, all of state zero, of H heads and D channels.

    *tail*: W, the rows b that are kept, 0 for none. *drafts*: the most tokens of a request that a
    rollback drops.
    """

    R: int
    H: int
    D: int
    tail: int
    drafts: int
    dtype: torch.dtype
    device: torch.device


class StateStore(Protocol):
    """An open store. Rollback, fork and free are there where supported. Integers come as int32
    tensors on the store's device, requests as numbers."""

    def append(self, a: Tensor, b: Tensor, offsets: Tensor) -> None:
        """Rows offsets[r]..offsets[r + 1] - 1 of a and b [N, H, D] are folded into the state of
        request r, in order; offsets [R + 1] begin with 0. Rows from offsets[R] on are nobody's.
        The caller reuses a and b."""

    def rollback(self, kept: Tensor) -> None:
        """Of its tokens of the last append request r keeps the first kept[r], and drops *drafts*
        or fewer; kept [R]. It comes right after that append, once."""

    def fork(self, parent: int, child: int) -> None:
        """The child has the parent's state and tail, and nothing it had before."""

    def free(self, request: int) -> None:
        """The request has no tokens: its state and tail are zero."""

    def read(self) -> Tensor | tuple[Tensor, Tensor]:
        """The states [R, H, D]; with a tail also the tails [R, W, H, D], the last token last, zero
        before the first one."""


@runtime_checkable
class States(Protocol):
    """An adapter that offers recurrent states."""

    name: str

    def recurrence(self, spec: StateSpec) -> StateStore:
        """A store of zero states; `Unsupported` refuses the spec."""
