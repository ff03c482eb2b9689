"""A program of prefix-cache steps as a case: who begins with what, commits, ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from kernelassay.oracle.prefixes import State, start, stepped
from kernelassay.properties.case import Case, CaseError
from kernelassay.properties.prefixes.hashes import HASHES

Step = tuple[Any, ...]
MOST_TOKENS = 128
"""Tokens, positions, salts and adapters are below it: every format holds them as fields."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PrefixCase(Case):
    """Steps of up to R requests at a time, one after the other:

        ("begin", r, tokens, salt, adapter)     ("fill", r): what was not found is appended
        ("append", r, tokens)                   ("truncate", r, length)
        ("commit", r, length)                   ("end", r)
        ("look", tokens, salt, adapter)         ("reset",)

    *block*: tokens of a block; *blocks*: the size of the pool, None for what the running requests
    need at most. *hash*: how blocks are named, see `kernelassay.properties.prefixes.hashes`.
    """

    R: int = 1
    Hkv: int = 1
    D: int = 16
    Dv: int | None = None
    block: int = 2
    blocks: int | None = None
    hash: str = "own"
    steps: tuple[Step, ...] = (("begin", 0, (0, 0), 0, 0),)

    KINDS: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("Dv", "blocks"), (int, type(None))),
        "steps": (tuple, list),
    }
    EXAMPLE = 'PrefixCase(steps=(("begin", 0, (1, 2, 3), 0, 0), ("fill", 0)))'

    @property
    def value_size(self) -> int:
        """Dv, which is D where nothing else is said."""
        return self.D if self.Dv is None else self.Dv

    def states(self) -> list[State]:
        """The state after each step, the state before the first one in front."""
        return [*_states(self.R, self.block, self.steps)]

    @property
    def pool(self) -> int:
        """How many blocks there are."""
        return max(1, self.states()[-1].peak) if self.blocks is None else self.blocks

    def checked(self) -> None:
        """A `CaseError`, unless the fields fit together and every step can be taken."""
        least = {"R": 1, "Hkv": 1, "D": 8, "Dv": 8, "block": 1, "blocks": 1}
        for name, n in least.items():
            if (got := getattr(self, name)) is not None and got < n:
                raise CaseError(f"case: field {name}: got {got}, expected at least {n}")
        if self.hash not in HASHES:
            known = ", ".join(HASHES)
            raise CaseError(f"case: field hash: got {self.hash!r}, expected one of {known}")
        self._check_steps()

    def _check_steps(self) -> None:
        state = start(self.R, self.block)
        for n, step in enumerate(self.steps):
            if not isinstance(step, tuple) or not step:
                raise CaseError(f"case: step {n}: got {step!r}, expected a name and arguments")
            try:
                state = stepped(state, step)
            except ValueError as error:
                raise CaseError(f"case: step {n}: got {step!r}, {error}") from None
            if state.longest > MOST_TOKENS or _largest(step[1:]) >= MOST_TOKENS:
                raise CaseError(
                    f"case: step {n}: got {step!r}, expected at most {MOST_TOKENS} tokens of a "
                    f"request, and numbers below that"
                )
        if self.blocks is not None and self.blocks < state.peak:
            raise CaseError(
                f"case: field blocks: got {self.blocks}, expected at least the {state.peak} that "
                f"the running requests need, or None for that"
            )


@lru_cache(maxsize=64)
def _states(R: int, block: int, steps: tuple[Step, ...]) -> tuple[State, ...]:
    found = [start(R, block)]
    for step in steps:
        found.append(stepped(found[-1], step))
    return tuple(found)


def _largest(given: Any) -> int:
    return max(map(_largest, given), default=0) if isinstance(given, tuple) else int(given)
