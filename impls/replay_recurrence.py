"""Recurrent states that keep the last append: a rollback folds what stays once more.

    before = the states as they were before the last append
    rollback(kept):  states <- fold(before, the first kept[r] new rows of each request r)

Shapes: states, before [R, H, D]; a, b [N, H, D]. Tokens of all requests are folded side by side,
the i-th of each in one step.
"""

import torch
from torch import Tensor

from kernelassay.impls.contract import (
    RECURRENCES,
    Capabilities,
    Conventions,
    StateSpec,
    Unsupported,
)
from kernelassay.impls.recurrence_calls import (
    check_append,
    check_kept,
    check_request,
    check_spec,
)


class ReplayStore:
    """`kernelassay.impls.recurrences.StateStore` says what the methods do."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec
        self.states = torch.zeros((spec.R, spec.H, spec.D), dtype=spec.dtype, device=spec.device)
        self.last: tuple[Tensor, Tensor, Tensor, list[int]] | None = None

    def append(self, a: Tensor, b: Tensor, offsets: Tensor) -> None:
        """Rows are folded, and kept; malformed calls raise ValueError."""
        counts = check_append(self.spec, a, b, offsets)
        self.last = self.states, a.clone(), b.clone(), counts
        self.states = folded(self.states, a, b, starts(counts), counts)

    def rollback(self, kept: Tensor) -> None:
        """From before the append, what stays."""
        check_kept(self.spec, self.last and self.last[3], kept)
        assert self.last is not None
        before, a, b, counts = self.last
        self.states = folded(before, a, b, starts(counts), kept.tolist())
        self.last = None

    def free(self, request: int) -> None:
        """Zero again."""
        check_request(self.spec, request)
        self.states = self.states.clone()
        self.states[request] = 0
        self.last = None

    def read(self) -> Tensor:
        """The states."""
        return self.states.clone()


def starts(counts: list[int]) -> list[int]:
    """The first row of each request."""
    return [sum(counts[:r]) for r in range(len(counts))]


def folded(s: Tensor, a: Tensor, b: Tensor, first: list[int], counts: list[int]) -> Tensor:
    """The states after counts[r] rows of each request, which begin at first[r]."""
    s = s.clone()
    for i in range(max(counts)):
        some = [r for r, n in enumerate(counts) if i < n]
        at = [first[r] + i for r in some]
        s[some] = a[at] * s[some] + b[at]
    return s


class ReplayRecurrence:
    """The store above; it keeps no tails and forks nothing."""

    name = "replay_recurrence"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32", "bf16", "fp16"),
        head_sizes=(16, 8, 32, 64, 80, 128),
        supports=frozenset(RECURRENCES) - {"recurrence.tail", "recurrence.fork"},
        declines=frozenset({"recurrence.tail", "recurrence.fork"}),
        conventions=Conventions(deterministic=True, validates_calls=True),
    )

    def recurrence(self, spec: StateSpec) -> ReplayStore:
        """A store of zero states; malformed specs raise ValueError, a tail `Unsupported`."""
        check_spec(spec)
        if spec.tail:
            raise Unsupported(f"{self.name}: no tails; got one of {spec.tail} rows")
        return ReplayStore(spec)


adapter = ReplayRecurrence()
