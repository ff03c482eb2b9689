"""One call of a decode loop as a case: small integers that name models, texts and limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, get_args

from kernelassay.impls.decoding import Drafts
from kernelassay.properties.case import Case, CaseError

Rows = tuple[tuple[int, ...], ...]
MOST_TOKENS = 48
"""The longest prompt and budget together; what a tiny model takes."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DecodeCase(Case):
    """R requests, one for each prompt, over a vocabulary of V tokens.

    model: seed of the target; drafts, schedule: as in `DecodeCall`. budget, stop, minimum: of each
    request; greedy: requests that are greedy; noise: seed of uniforms and seeds.
    """

    model: int = 0
    V: int = 3
    prompts: Rows = ((0,),)
    drafts: str = "near"
    schedule: tuple[int, ...] = (2,)
    budget: tuple[int, ...] = (3,)
    stop: Rows | None = None
    minimum: tuple[int, ...] | None = None
    greedy: tuple[int, ...] = ()
    noise: int = 0

    KINDS: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("prompts", "schedule", "budget", "greedy"), (tuple, list)),
        **dict.fromkeys(("stop", "minimum"), (tuple, list, type(None))),
    }
    EXAMPLE = "DecodeCase(prompts=((0, 1),), budget=(3,))"

    @property
    def requests(self) -> int:
        """R."""
        return len(self.prompts)

    def stops(self, r: int) -> tuple[int, ...]:
        """The stop tokens of request r."""
        return () if self.stop is None else self.stop[r]

    def least(self, r: int) -> int:
        """The tokens of request r before which no stop token may come."""
        return 0 if self.minimum is None else self.minimum[r]

    def checked(self) -> None:
        """A `CaseError`, unless the fields fit together."""

        def wrong(name: str, expected: str) -> CaseError:
            return CaseError(f"case: field {name}: got {getattr(self, name)}, expected {expected}")

        R, V = self.requests, self.V
        for name, least in (("model", 0), ("V", 2), ("noise", 0)):
            if getattr(self, name) < least:
                raise wrong(name, f"at least {least}")
        if self.drafts not in get_args(Drafts):
            raise wrong("drafts", f"one of {', '.join(get_args(Drafts))}")
        if not self.prompts or not all(_tokens(p, V) and p for p in self.prompts):
            raise wrong("prompts", f"a request, and of each a token or more below {V}")
        if not self.schedule or not all(_whole(k) and k <= MOST_TOKENS for k in self.schedule):
            raise wrong("schedule", f"numbers of 0 to {MOST_TOKENS}, one at least")
        for name in ("budget", "minimum"):
            given = getattr(self, name)
            if given is not None and (len(given) != R or not all(map(_whole, given))):
                raise wrong(name, f"for each of {R} requests a number of at least 0")
        if max(map(len, self.prompts)) + max(self.budget) > MOST_TOKENS:
            raise wrong("budget", f"no more than {MOST_TOKENS} tokens with the longest prompt")
        if self.stop is not None and (
            len(self.stop) != R or not all(_tokens(s, V) for s in self.stop)
        ):
            raise wrong("stop", f"for each of {R} requests tokens below {V}")
        if any(self.least(r) and {*self.stops(r)} >= {*range(V)} for r in range(R)):
            raise wrong("minimum", "0 where every token is a stop token")
        if not all(_whole(r) and r < R for r in self.greedy):
            raise wrong("greedy", f"numbers below {R}")


def _whole(x: object) -> bool:
    """Whether *x* is a whole number of at least 0."""
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _tokens(row: object, V: int) -> bool:
    """Whether *row* is a tuple of tokens."""
    return isinstance(row, tuple) and all(_whole(x) and x < V for x in row)
