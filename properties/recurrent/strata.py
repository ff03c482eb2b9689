"""Strata of programs on recurrent states, each built beside the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from kernelassay.oracle.recurrences import State, Step, start, stepped
from kernelassay.properties.domain import lacking
from kernelassay.properties.recurrent.case import RecurrentCase
from kernelassay.properties.recurrent.domain import RecurrentDomain

Strategy = st.SearchStrategy[RecurrentCase]
Stratum = Callable[[RecurrentDomain], Strategy | None]


@dataclass(eq=False)
class Builder:
    """A program in the making."""

    draw: st.DrawFn
    domain: RecurrentDomain
    R: int
    padding: int = 0
    tail: int = 0
    steps: list[Step] = field(default_factory=list)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = start(self.R)

    def number(self, low: int, high: int) -> int:
        """Any of *low*..*high*."""
        return self.draw(st.integers(low, max(low, high)))

    def take(self, *step: Any) -> None:
        """That step."""
        self.state = stepped(self.state, step)
        self.steps.append(step)

    def append(self, low: int, high: int) -> None:
        """*low* to *high* tokens for each request, the same for all where nothing is ragged."""
        self.take("append", self.each([low] * self.R, [high] * self.R))

    def each(self, low: list[int], high: list[int]) -> tuple[int, ...]:
        """A number for each request between these."""
        if not self.domain.has("recurrence.ragged"):
            return (self.number(max(low), min(high)),) * self.R
        return tuple(self.number(a, b) for a, b in zip(low, high, strict=True))

    def keep(self, low: int, less: int) -> None:
        """At least *low* of the new tokens stay, and all but *less*, where there are so many."""
        new = self.state.new or ()
        top = [max(0, n - less) for n in new]
        self.take("rollback", self.each([min(low, n) for n in top], top))

    def anything(self) -> None:
        """Some step."""
        names = ["append"]
        if self.domain.has("recurrence.rollback") and self.state.new is not None:
            names.append("rollback")
        if self.domain.has("recurrence.fork") and self.R > 1:
            names.append("fork")
        if self.domain.has("recurrence.free"):
            names.append("free")
        name = self.draw(st.sampled_from(names))
        if name == "append":
            self.append(0, 4)
        elif name == "rollback":
            self.keep(0, 0)
        elif name == "fork":
            parent, child = self.draw(st.permutations(range(self.R)))[:2]
            self.take("fork", parent, child)
        else:
            self.take("free", self.number(0, self.R - 1))

    def more(self, most: int = 2) -> None:
        """Up to *most* steps of any kind."""
        for _ in range(self.number(0, most)):
            self.anything()


def stratum(*features: str, least: int = 1) -> Callable[[Callable[[Builder], None]], Stratum]:
    """A stratum from a function that builds a program, where all *features* are supported."""

    def decorate(build: Callable[[Builder], None]) -> Stratum:
        @st.composite
        def made(draw: st.DrawFn, domain: RecurrentDomain) -> RecurrentCase:
            b = Builder(draw, domain, draw(st.integers(least, max(least, domain.requests))))
            if domain.has("recurrence.tail"):
                b.tail = draw(st.integers(0, 3))
            build(b)
            return RecurrentCase(
                R=b.R, H=draw(st.integers(1, 2)), D=draw(st.sampled_from(domain.head_sizes)),
                tail=b.tail, padding=b.padding, steps=tuple(b.steps),
            )  # fmt: skip

        def guarded(domain: RecurrentDomain) -> Strategy | None:
            fits = domain.has(*features) and domain.requests >= least
            return made(domain) if fits else None

        return guarded

    return decorate


@stratum()
def program(b: Builder) -> None:
    """Any steps."""
    for _ in range(b.number(2, 6)):
        b.anything()


@stratum()
def append_held(b: Builder) -> None:
    """Tokens follow tokens."""
    b.append(1, 4)
    b.append(1, 4)
    b.more()


@stratum("recurrence.requests", "recurrence.ragged", least=2)
def unequal_appends(b: Builder) -> None:
    """Requests get different numbers of tokens, some none."""
    first = b.number(0, 3)
    b.take("append", (first, *(first + b.number(1, 2) for _ in range(b.R - 1))))
    b.append(0, 3)
    b.more()


@stratum("recurrence.tail")
def with_tail(b: Builder) -> None:
    """The last rows are read, too, fewer of them than there are tokens, or more."""
    b.tail = b.number(1, 3)
    b.append(1, 4)
    b.append(1, 2)


@stratum("recurrence.rollback")
def all_rejected(b: Builder) -> None:
    """No draft stays."""
    b.append(1, 3)
    b.append(1, 3)
    b.take("rollback", (0,) * b.R)
    b.append(1, 2)


@stratum("recurrence.rollback")
def some_rejected(b: Builder) -> None:
    """The first drafts stay, the last ones do not; round after round."""
    b.append(1, 3)
    for _ in range(b.number(1, 2)):
        b.append(2, 4)
        b.keep(1, 1)
        b.append(1, 1)


@stratum("recurrence.rollback")
def none_rejected(b: Builder) -> None:
    """All drafts stay; the next round is rejected."""
    b.append(1, 3)
    b.take("rollback", b.state.new)
    b.append(1, 3)
    b.take("rollback", (0,) * b.R)


@stratum("recurrence.rollback", "recurrence.ragged", "recurrence.requests", least=2)
def unequally_rejected(b: Builder) -> None:
    """Requests lose different numbers of drafts."""
    b.append(1, 2)
    b.append(2, 4)
    new = b.state.new or ()
    lost = b.draw(st.permutations([0, 1, 2][: b.R]))
    b.take("rollback", tuple(n - d for n, d in zip(new, lost, strict=True)))
    b.append(0, 2)


@stratum("recurrence.rollback", "recurrence.ragged")
def nothing_drafted(b: Builder) -> None:
    """After a round with drafts one without them, for one request or for all."""
    b.append(2, 3)
    b.keep(1, 1)
    counts = [b.number(0, 1) for _ in range(b.R)]
    counts[b.number(0, b.R - 1)] = 0
    b.take("append", tuple(counts))
    b.take("rollback", (0,) * b.R)
    b.append(1, 2)


@stratum("recurrence.fork", "recurrence.requests", least=2)
def append_after_fork(b: Builder) -> None:
    """Child and parent go on, each alone."""
    b.append(1, 4)
    parent, child = b.draw(st.permutations(range(b.R)))[:2]
    b.take("fork", parent, child)
    b.append(1, 3)
    if b.domain.has("recurrence.rollback"):
        b.keep(0, 1)


@stratum("recurrence.free")
def append_after_free(b: Builder) -> None:
    """A request ends, and another one begins in its place."""
    b.append(1, 4)
    b.take("free", b.number(0, b.R - 1))
    b.append(1, 3)


@stratum("recurrence.padding")
def padded_rows(b: Builder) -> None:
    """Appends bring rows that belong to nobody."""
    b.padding = b.number(1, 3)
    b.append(1, 3)
    b.append(0, 2)
    b.more(1)


@stratum("recurrence.requests", least=2)
def several_requests(b: Builder) -> None:
    """Two requests or more."""
    b.append(1, 3)
    b.more(3)


FOLDED: Mapping[str, Stratum] = {
    "program": program,
    "append_held": append_held,
    "unequal_appends": unequal_appends,
    "with_tail": with_tail,
    "several_requests": several_requests,
}
REJECTED: Mapping[str, Stratum] = {
    "all_rejected": all_rejected,
    "some_rejected": some_rejected,
    "none_rejected": none_rejected,
    "unequally_rejected": unequally_rejected,
    "nothing_drafted": nothing_drafted,
}
NEEDING = (
    "recurrence.requests", "recurrence.ragged", "recurrence.tail", "recurrence.rollback",
    "recurrence.fork", "recurrence.free", "recurrence.padding",
)  # fmt: skip
"""Features that a program can need."""


def declined(domain: RecurrentDomain) -> Strategy | None:
    """Programs that need a declined feature."""
    if not domain.declines & {*NEEDING}:
        return None
    more = 3 if "recurrence.requests" in domain.declines else domain.requests
    wider = replace(domain, supports=domain.supports | domain.declines, requests=more)
    kinds = [
        *FOLDED.values(),
        *REJECTED.values(),
        append_after_fork,
        append_after_free,
        padded_rows,
    ]
    some = [made for kind in kinds if (made := kind(wider)) is not None]
    return st.one_of(some).filter(lambda case: bool({*lacking(case, domain)} & domain.declines))


@stratum()
def malformed(b: Builder) -> None:
    """A program, for malformed calls to follow."""
    b.append(1, 3)
