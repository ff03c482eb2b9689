"""A program of steps on recurrent states as a case: what is folded, undone, forked and freed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelassay.oracle.recurrences import State, start, stepped
from kernelassay.properties.case import Case, CaseError

Step = tuple[Any, ...]
MOST_TOKENS = 64
"""Of one request: its state stays below 3 x 64, which every format holds."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RecurrentCase(Case):
    """Steps on the states of R requests, one after the other, each from what the last left:

        ("append", (2, 0))      ("rollback", (1, 0)): so many of the last append stay
        ("fork", parent, child) ("free", request)

    *tail*: rows that are kept beside the state. *padding*: rows of each append that are nobody's.
    """

    R: int = 1
    H: int = 1
    D: int = 8
    tail: int = 0
    padding: int = 0
    steps: tuple[Step, ...] = (("append", (1,)),)

    KINDS: ClassVar[Mapping[str, tuple[type, ...]]] = {"steps": (tuple, list)}
    EXAMPLE = 'RecurrentCase(steps=(("append", (2,)), ("rollback", (1,))))'

    def states(self) -> list[State]:
        """The state after each step, the state before the first one in front."""
        found = [start(self.R)]
        for step in self.steps:
            found.append(stepped(found[-1], step))
        return found

    @property
    def drafts(self) -> int:
        """The most tokens of a request that a rollback drops."""
        most, before = 0, self.states()
        for n, step in enumerate(self.steps):
            if step[0] == "rollback":
                new = before[n].new or ()
                most = max(most, *(a - b for a, b in zip(new, step[1], strict=True)))
        return most

    def checked(self) -> None:
        """A `CaseError`, unless the fields fit together and every step can be taken."""
        for name, least in {"R": 1, "H": 1, "D": 1, "tail": 0, "padding": 0}.items():
            if (got := getattr(self, name)) < least:
                raise CaseError(f"case: field {name}: got {got}, expected at least {least}")
        state = start(self.R)
        for n, step in enumerate(self.steps):
            if not isinstance(step, tuple) or not step:
                raise CaseError(f"case: step {n}: got {step!r}, expected a name and arguments")
            try:
                state = stepped(state, step)
            except ValueError as error:
                raise CaseError(f"case: step {n}: got {step!r}, {error}") from None
            if max(map(len, state.tokens)) > MOST_TOKENS:
                raise CaseError(
                    f"case: step {n}: got {step!r}, expected at most {MOST_TOKENS} tokens of a "
                    f"request"
                )
