"""Recurrent states in plain PyTorch, with a checkpoint for each draft that may be rejected.

    past[r, j] = the state of request r as it was j tokens ago,   j = 0..drafts

Each token moves the checkpoints of its request on by one, so that a rollback of d tokens goes back
to past[r, d]. Tails move along: rows b of the last W tokens of each checkpoint lie in one run of
drafts + W rows, of which the checkpoint of j tokens ago ends j rows before the last.

Shapes: past [R, drafts + 1, H, D]; rows [R, drafts + W, H, D]; a, b [N, H, D].
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernelassay.impls.contract import RECURRENCES, Capabilities, Conventions, StateSpec
from kernelassay.impls.recurrence_calls import (
    check_append,
    check_kept,
    check_request,
    check_spec,
)


class CheckpointStore:
    """`kernelassay.impls.recurrences.StateStore` says what the methods do."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec
        self.new: Sequence[int] | None = None
        self.past, self.rows = (
            torch.zeros((spec.R, n, spec.H, spec.D), dtype=spec.dtype, device=spec.device)
            for n in (spec.drafts + 1, spec.drafts + spec.tail)
        )

    def append(self, a: Tensor, b: Tensor, offsets: Tensor) -> None:
        """Token after token; malformed calls raise ValueError."""
        counts = check_append(self.spec, a, b, offsets)
        first = 0
        for r, n in enumerate(counts):
            for i in range(first, first + n):
                state = a[i] * self.past[r, 0] + b[i]
                self.past[r, 1:] = self.past[r, :-1].clone()
                self.past[r, 0] = state
                self.rows[r] = torch.cat([self.rows[r], b[i : i + 1]])[1:]
            first += n
        self.new = counts

    def rollback(self, kept: Tensor) -> None:
        """Checkpoints of dropped tokens go; those before them are again the last ones."""
        for r, d in enumerate(check_kept(self.spec, self.new, kept)):
            if d > 0:
                self.past[r, : len(self.past[r]) - d] = self.past[r, d:].clone()
                self.rows[r, d:] = self.rows[r, : len(self.rows[r]) - d].clone()
        self.new = None

    def fork(self, parent: int, child: int) -> None:
        """A copy."""
        check_request(self.spec, parent, child)
        self.past[child] = self.past[parent]
        self.rows[child] = self.rows[parent]
        self.new = None

    def free(self, request: int) -> None:
        """Zero again."""
        check_request(self.spec, request)
        self.past[request] = 0
        self.rows[request] = 0
        self.new = None

    def read(self) -> Tensor | tuple[Tensor, Tensor]:
        """States, and tails if there are any."""
        states = self.past[:, 0].clone()
        return (states, self.rows[:, self.spec.drafts :].clone()) if self.spec.tail else states


class TorchRecurrence:
    """The store above."""

    name = "torch_recurrence"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32", "bf16", "fp16"),
        head_sizes=(16, 8, 32, 64, 80, 128),
        supports=frozenset(RECURRENCES),
        conventions=Conventions(deterministic=True, validates_calls=True),
    )

    def recurrence(self, spec: StateSpec) -> CheckpointStore:
        """A store of zero states; malformed specs raise ValueError."""
        check_spec(spec)
        return CheckpointStore(spec)


adapter = TorchRecurrence()
