"""Programs built step by step beside the model, so that every step is valid."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from kernelassay.oracle.transactions import State, start, stepped
from kernelassay.properties.caching.case import MOST_TOKENS, CacheCase, Step
from kernelassay.properties.caching.domain import CacheDomain

Strategy = st.SearchStrategy[CacheCase]
Stratum = Callable[[CacheDomain], Strategy | None]


@dataclass(eq=False)
class Builder:
    """A program in the making: every method takes a step that can be taken, if there is one."""

    draw: st.DrawFn
    domain: CacheDomain
    R: int
    page: int | None
    window: int | None = None
    spare: int = 0
    steps: list[Step] = field(default_factory=list)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = start(self.R, self.page, self.window, self.spare)

    @property
    def lengths(self) -> tuple[int, ...]:
        """What each request holds."""
        return self.state.lengths

    def number(self, low: int, high: int) -> int:
        """Any of *low*..*high*."""
        return self.draw(st.integers(low, max(low, high)))

    def request(self, *but: int) -> int:
        """Any request, but these."""
        return self.draw(st.sampled_from([r for r in range(self.R) if r not in but]))

    def take(self, *step: Any) -> None:
        """That step."""
        self.state = stepped(self.state, step)
        self.steps.append(step)

    def room(self, r: int) -> int:
        """How many entries request r may still get."""
        left = MOST_TOKENS - self.state.tokens
        return max(0, min(self.domain.entries - self.lengths[r], left // self.R))

    def append(self, *counts: int) -> None:
        """So many entries, as far as there is room; the same for all where nothing is ragged."""
        if not self.domain.has("cache.ragged"):
            counts = (counts[0] if len({*counts}) == 1 else max(counts),) * self.R
            counts = (min(counts[0], *map(self.room, range(self.R))),) * self.R
        self.take("append", tuple(min(n, self.room(r)) for r, n in enumerate(counts)))

    def one(self, r: int, n: int) -> None:
        """n entries for request r alone, where lengths may differ."""
        self.append(*(n if q == r else 0 for q in range(self.R)))

    def some(self, most: int = 5) -> None:
        """A few entries for each request."""
        self.append(*(self.number(0, most) for _ in range(self.R)))

    def filled(self, low: int, most: int) -> None:
        """*low* entries at least for each request."""
        self.append(*(self.number(low, most) for _ in range(self.R)))

    def truncate(self, kept: dict[int, int]) -> None:
        """These requests keep so many entries, the others all; all the same if none is ragged."""
        lengths = [kept.get(r, L) for r, L in enumerate(self.lengths)]
        if not self.domain.has("cache.ragged"):
            lengths = [min(lengths)] * self.R
        self.take("truncate", tuple(lengths))

    def least_kept(self, r: int) -> int:
        """The fewest entries that request r may keep, but none."""
        if self.window is None:
            return 0
        return max(0, self.state.longest[r] - self.spare) if self.state.lost(r) else 0

    def fork(self, parent: int, child: int, length: int) -> None:
        """The child holds entries of the parent; all of them where nothing is ragged."""
        if not self.domain.has("cache.ragged"):
            length = self.lengths[parent]
        self.take("fork", parent, child, length)

    def free(self, r: int) -> None:
        """Request r holds nothing."""
        self.take("free", r)

    def anything(self, kind: str | None = None) -> None:
        """A step of this kind, or of any that is supported."""
        kinds = [n for n in ("truncate", "fork", "free", "compact") if self.can(n)]
        kind = kind or self.draw(st.sampled_from(["append", *kinds]))
        if kind == "append":
            self.some(3)
        elif kind == "truncate":
            r = self.request()
            L = self.lengths[r]
            self.truncate({r: self.number(min(L, self.least_kept(r)), L)})
        elif kind == "compact":
            r = self.request()
            self.compact(r, self.number(0, self.lengths[r]))
        elif kind == "fork":
            parent = self.request()
            L = self.lengths[parent]
            self.fork(
                parent, self.request(parent), self.number(min(L, self.least_kept(parent)), L)
            )
        else:
            self.free(self.request())

    def can(self, name: str) -> bool:
        """Whether programs may have such steps."""
        if name == "fork" and self.R < 2:
            return False
        if name == "compact" and (self.window or not self.domain.has("cache.ragged")):
            return False
        ragged = self.domain.has("cache.ragged") or self.R == 1 or name != "free"
        return self.domain.has(f"cache.{name}") and ragged

    def compact(self, r: int, first: int) -> None:
        """Some of the entries of request r from *first* on stay."""
        behind = range(self.lengths[r] - first)
        kept = [i for i in behind if self.draw(st.booleans())]
        self.take("compact", r, first, tuple(kept))

    def more(self, most: int = 2) -> None:
        """Up to *most* steps of any kind."""
        for _ in range(self.number(0, most)):
            self.anything()

    def appends(self, most: int = 2) -> None:
        """Up to *most* appends."""
        for _ in range(self.number(0, most)):
            self.some(3)

    def case(self, **fields: Any) -> CacheCase:
        """The program with heads and sizes."""
        Hq, Hkv = self.draw(st.sampled_from(self.domain.heads))
        sizes = self.domain.head_sizes
        D = self.draw(st.sampled_from(sizes))
        Dv = None
        if self.domain.has("cache.value_size") and self.draw(st.booleans()):
            Dv = next((n for n in sizes if n != D), None)
        return CacheCase(
            R=self.R, Hq=Hq, Hkv=Hkv, D=D, Dv=Dv, page=self.page, window=self.window,
            spare=self.spare, steps=tuple(self.steps), **fields,
        )  # fmt: skip


def stratum(
    *features: str, least: int = 1, page: int | None = None
) -> Callable[[Callable[[Builder], CacheCase | None]], Stratum]:
    """A stratum from a function that builds a program, where all *features* are supported.

    *least*: of requests; *page*: the smallest page size to use, where the stratum is about pages.
    """

    def decorate(build: Callable[[Builder], CacheCase | None]) -> Stratum:
        @st.composite
        def made(draw: st.DrawFn, domain: CacheDomain) -> CacheCase:
            sizes = [n for n in domain.pages if page is None or page <= n <= domain.entries // 3]
            R = draw(st.integers(least, max(least, domain.requests)))
            builder = Builder(draw, domain, R, draw(st.sampled_from(sizes)) if sizes else None)
            return build(builder) or builder.case()

        def guarded(domain: CacheDomain) -> Strategy | None:
            if not domain.has(*features) or domain.requests < least:
                return None
            if page is not None and not any(
                page <= n <= domain.entries // 3 for n in domain.pages
            ):
                return None
            return made(domain)

        return guarded

    return decorate
