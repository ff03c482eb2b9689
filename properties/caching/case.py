"""A program of cache steps as a case: what is appended, dropped, moved, forked and freed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelassay.oracle.transactions import State, start, stepped
from kernelassay.properties.case import Case, CaseError

Step = tuple[Any, ...]
MOST_ENTRIES = 64
"""A position has 6 bits of a key."""
MOST_TOKENS = 255
"""A token has 8 bits of a key, and one more than it is a whole number that bf16 holds."""


@dataclass(frozen=True, kw_only=True, repr=False)
class CacheCase(Case):
    """Steps on a cache of R requests, one after the other, each from the state that the last left:

        ("append", (2, 0))       ("truncate", (1, 0))     ("compact", request, start, (0, 2))
        ("fork", parent, child, length)                   ("free", request)

    *page*: entries of a page, None for a cache without pages; *pages*: the size of the pool, None
    for what the steps need. *window*, *spare*: see `CacheSpec`. *padding*: rows of each append
    that belong to nobody.
    """

    R: int = 1
    Hq: int = 1
    Hkv: int = 1
    D: int = 16
    Dv: int | None = None
    page: int | None = None
    pages: int | None = None
    window: int | None = None
    spare: int = 0
    padding: int = 0
    steps: tuple[Step, ...] = (("append", (1,)),)

    KINDS: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("Dv", "page", "pages", "window"), (int, type(None))),
        "steps": (tuple, list),
    }
    EXAMPLE = 'CacheCase(steps=(("append", (2,)), ("truncate", (1,))))'

    @property
    def value_size(self) -> int:
        """Dv, which is D where nothing else is said."""
        return self.D if self.Dv is None else self.Dv

    @property
    def began(self) -> State:
        """The state before the first step."""
        return start(self.R, self.page, self.window, self.spare)

    def states(self) -> list[State]:
        """The state after each step, the state before the first one in front."""
        found = [self.began]
        for step in self.steps:
            found.append(stepped(found[-1], step))
        return found

    def checked(self) -> None:
        """A `CaseError`, unless the fields fit together and every step can be taken."""
        for name in ("R", "Hq", "Hkv"):
            if (n := getattr(self, name)) < 1:
                raise CaseError(f"case: field {name}: got {n}, expected at least 1")
        for name, least in (("D", 8), ("Dv", 8), ("page", 1), ("pages", 0), ("window", 1)):
            if (n := getattr(self, name)) is not None and n < least:
                raise CaseError(f"case: field {name}: got {n}, expected at least {least}")
        for name in ("spare", "padding"):
            if (n := getattr(self, name)) < 0:
                raise CaseError(f"case: field {name}: got {n}, expected at least 0")
        if self.Hq % self.Hkv:
            raise CaseError(f"case: Hq={self.Hq} is not a multiple of Hkv={self.Hkv}")
        if self.pages is not None and self.page is None:
            raise CaseError("case: field pages: got a size of the pool without a page")
        self._check_steps()

    def _check_steps(self) -> None:
        state = self.began
        for n, step in enumerate(self.steps):
            if not isinstance(step, tuple) or not step:
                raise CaseError(f"case: step {n}: got {step!r}, expected a name and arguments")
            try:
                state = stepped(state, step)
            except ValueError as error:
                raise CaseError(f"case: step {n}: got {step!r}, {error}") from None
            if max(state.lengths) > MOST_ENTRIES or state.tokens > MOST_TOKENS:
                raise CaseError(
                    f"case: step {n}: got {step!r}, expected at most {MOST_ENTRIES} entries of a "
                    f"request and {MOST_TOKENS} appended in all"
                )
        if self.pages is not None and self.pages < state.peak:
            raise CaseError(
                f"case: field pages: got {self.pages}, expected at least the {state.peak} that "
                f"the steps need, or None for that"
            )
