"""A program run on recurrent states: steps on the store and on the model, states read between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import StateSpec, Unsupported
from kernelassay.oracle.formats import format_of, name_of
from kernelassay.oracle.recurrences import State, start, stepped
from kernelassay.properties.failures import (
    Refused,
    WrongDtype,
    WrongShape,
    WrongState,
)
from kernelassay.properties.recurrent import ledger
from kernelassay.properties.recurrent.case import RecurrentCase, Step
from kernelassay.properties.stores import Calls
from kernelassay.properties.subject import Subject

__all__ = ["Run", "opened", "played", "program", "refused"]

MOST_STEPS = 12
WIDTH = 96


@dataclass(eq=False)
class Run(Calls, opens="recurrence"):
    """One open store with the states that it went through."""

    subject: Subject
    case: RecurrentCase
    guard: Callable[[Callable[[], Any]], Any] | None = None
    spec: Any = None
    store: Any = None
    steps: list[Step] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    @property
    def state(self) -> State:
        """The tokens of each request."""
        return self.states[-1]

    @property
    def dtype(self) -> torch.dtype:
        """Of rows and states."""
        return format_of(self.subject.dtype).dtype

    def told(self) -> list[str]:
        """The program up to now."""
        return program(self.steps, self.states, None)

    def open(self, drafts: int) -> "Run":
        """Open the store, for rollbacks of so many; `Unsupported` passes through."""
        case = self.case
        spec = StateSpec(
            R=case.R, H=case.H, D=case.D, tail=case.tail, drafts=drafts, dtype=self.dtype,
            device=torch.device(self.subject.home),
        )  # fmt: skip
        self.states = [start(case.R)]
        self.spec, self.store = spec, self.opened(spec)
        return self

    def take(self, step: Step) -> None:
        """One step, on the store and on the model; a refusal is for the caller."""
        after = stepped(self.state, step)
        if step[0] == "append":
            self._append(after, step[1])
        elif step[0] == "rollback":
            self.unchanged("rollback", kept=self.integers(step[1]))
        else:
            self.method(*step)
        self.steps.append(step)
        self.states.append(after)

    def _append(self, after: State, counts: Sequence[int]) -> None:
        """New rows, those of nobody behind them; their memory is used again."""
        case = self.case
        new = range(self.state.taken, after.taken)
        a, b = (self.placed(_padded(x, case.padding)) for x in ledger.rows(new, case.H, case.D))
        offsets = self.integers([0, *torch.tensor([*counts]).cumsum(0).tolist()])
        self.unchanged("append", a=a, b=b, offsets=offsets)
        for x in (a, b):
            x.fill_(torch.nan)

    def placed(self, x: Tensor) -> Tensor:
        """*x* as the kernel gets it."""
        return x.to(self.dtype).to(self.subject.home)

    def read(self) -> tuple[Tensor, Tensor]:
        """States [R, H, D] and tails [R, W, H, D] as they came, of the form that is agreed."""
        case, came = self.case, self.method("read")
        both = came if isinstance(came, tuple) else (came,)
        shapes = [(case.R, case.H, case.D), (case.R, case.tail, case.H, case.D)]
        wanted = shapes if case.tail else shapes[:1]
        if len(both) != len(wanted) or not all(isinstance(x, Tensor) for x in both):
            raise WrongShape(
                f"read returned {type(came).__name__}; expected {len(wanted)} tensors"
            )
        for x, shape in zip(both, wanted, strict=True):
            if tuple(x.shape) != shape:
                raise WrongShape(f"read: got shape {tuple(x.shape)}, expected {shape}")
            if x.dtype != self.dtype:
                raise WrongDtype(f"read: got {name_of(x.dtype)}, expected {self.subject.dtype}")
        states = both[0].to("cpu", torch.float64)
        tails = both[1].to("cpu", torch.float64) if case.tail else torch.zeros(shapes[1]).double()
        return states, tails

    def judge(self) -> None:
        """Read everything; `WrongState` where a state is not the fold of the tokens."""
        case, (states, tails) = self.case, self.read()
        self.subject.observe(0.0)
        for r, tokens in enumerate(self.state.tokens):
            state, tail = ledger.right(tokens, case.H, case.D, case.tail)
            for what, got, wanted in (("state", states[r], state), ("tail", tails[r], tail)):
                if bool((wrong := got != wanted).any()):  # NaN is wrong, too
                    raise self._failure(r, what, got, wanted, wrong)

    def _failure(
        self, r: int, what: str, got: Tensor, wanted: Tensor, wrong: Tensor
    ) -> WrongState:
        at = tuple(int(i) for i in wrong.nonzero()[0])
        after = f"after step {len(self.steps)}" if self.steps else "before any step"
        tokens = self.state.tokens[r]
        said = (
            f"{after} the {what} of request {r} is {got[at]:g} at {[*at]}, one of "
            f"{int(wrong.sum())} wrong of {wrong.numel()}; expected {wanted[at]:g}, from its "
            f"{len(tokens)} tokens{self._guess(r, what, got)}"
        )
        last = len(self.steps) - 1
        return WrongState(said, lines=program(self.steps, self.states, last))

    def _guess(self, r: int, what: str, got: Tensor) -> str:
        """Which other tokens of the program explain what was read, if some do."""
        case, own = self.case, self.state.tokens[r]
        seen = {
            tokens: n for n, s in enumerate(self.states) for tokens in s.tokens if tokens != own
        }
        others = {**seen, own[::-1]: None, (): None, **{own[:n]: None for n in range(len(own))}}
        for tokens in others:
            state, tail = ledger.right(tokens, case.H, case.D, case.tail)
            if torch.equal(got, state if what == "state" else tail):
                return f" {_listed(own)}, as it would be after {_listed(tokens)}"
        return f" {_listed(own)}"


def _listed(tokens: Sequence[int]) -> str:
    return " ".join(f"t{t}" for t in tokens) or "nothing"


def _padded(x: Tensor, n: int) -> Tensor:
    """*x* with rows of NaN after it."""
    return torch.cat([x, x.new_full((n, *x.shape[1:]), torch.nan)])


def program(steps: Sequence[Step], states: Sequence[State], broke: int | None) -> list[str]:
    """The steps, one a line, each with the tokens after it; an arrow at the one that broke."""
    shown = range(max(0, len(steps) - MOST_STEPS), len(steps))
    lines = ["Program" + (f" (its last {len(shown)} steps)" if shown.start else "")]
    for n in shown:
        arrow, (name, *given) = "->" if n == broke else "  ", steps[n]
        tokens = " | ".join(_listed(own[-5:]) for own in states[n + 1].tokens)
        said = f"{name} {', '.join(map(str, given))}"
        lines.append(f"{arrow}{n + 1:3}  {said:<24} {tokens}"[:WIDTH])
    return lines


def opened(subject: Subject, case: RecurrentCase, **how: Any) -> Run:
    """An open store for the case; a refusal is a failure."""
    try:
        return Run(subject, case, **how).open(case.drafts)
    except Unsupported as why:
        raise refused(subject, why) from why


def played(
    subject: Subject, case: RecurrentCase, *, check: Callable[[Run], None] = Run.judge, **how: Any
) -> Run:
    """The case's steps, with *check* before the first and after each."""
    run = opened(subject, case, **how)
    try:
        check(run)
        for step in case.steps:
            run.take(step)
            check(run)
    except Unsupported as why:
        raise refused(subject, why) from why
    return run


def refused(subject: Subject, why: Unsupported) -> Refused:
    """The failure of a store that refuses what its adapter supports."""
    return Refused(
        f"{subject.name} refused a call that it declares to support: {why}. "
        f"Answer it, or take the feature out of capabilities.supports"
    )
