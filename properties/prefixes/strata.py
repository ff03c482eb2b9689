"""Strata of programs: each is built step by step beside the model, so that every step is valid."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from kernelassay.oracle.prefixes import Request, Scope, State, Step, Tokens, needed, start, stepped
from kernelassay.properties.domain import lacking
from kernelassay.properties.prefixes.case import PrefixCase
from kernelassay.properties.prefixes.domain import PrefixDomain

Strategy = st.SearchStrategy[PrefixCase]
Stratum = Callable[[PrefixDomain], Strategy | None]
NONE: Scope = (0, 0)
TOKENS = 4
"""Tokens are below it, so that prompts begin alike."""


@dataclass(eq=False)
class Builder:
    """A program in the making: every method takes a step that can be taken."""

    draw: st.DrawFn
    domain: PrefixDomain
    R: int
    block: int
    blocks: int | None = None
    steps: list[Step] = field(default_factory=list)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = start(self.R, self.block)

    def number(self, low: int, high: int) -> int:
        """Any of *low*..*high*."""
        return self.draw(st.integers(low, max(low, high)))

    def tokens(self, low: int, high: int) -> Tokens:
        """*low* to *high* tokens."""
        n = self.number(low, high)
        return tuple(self.draw(st.lists(st.integers(0, TOKENS - 1), min_size=n, max_size=n)))

    def parts(self, n: int) -> list[Tokens]:
        """n blocks, no two alike, of which the first has a token that no other block has."""
        one = st.tuples(*[st.integers(0, TOKENS - 1)] * self.block)
        return self.draw(st.lists(one, min_size=n, max_size=n, unique=True))

    def whole(self, n: int) -> Tokens:
        """n blocks of any tokens."""
        return self.tokens(n * self.block, n * self.block)

    def rest(self) -> Tokens:
        """A token or more, no more than a block."""
        return self.tokens(1, self.block)

    def slot(self) -> int:
        """A request that does not run."""
        return next(r for r, request in enumerate(self.state.requests) if request is None)

    def running(self) -> list[int]:
        """Requests that run."""
        return [r for r, request in enumerate(self.state.requests) if request]

    def of(self, r: int) -> Request:
        """A request that runs."""
        request = self.state.requests[r]
        assert request is not None
        return request

    def take(self, *step: Any) -> None:
        """That step."""
        self.state = stepped(self.state, step)
        self.steps.append(step)

    def begin(self, tokens: Tokens, scope: Scope = NONE, r: int | None = None) -> int:
        """A request begins."""
        r = self.slot() if r is None else r
        self.take("begin", r, tokens, *scope)
        return r

    def run(self, tokens: Tokens, scope: Scope = NONE, r: int | None = None) -> int:
        """A request begins, and has all entries of its prompt."""
        r = self.begin(tokens, scope, r)
        self.take("fill", r)
        return r

    def commit(self, r: int, length: int | None = None) -> None:
        """Its tokens are final; all, unless it is said how many."""
        self.take("commit", r, len(self.of(r).tokens) if length is None else length)

    def serve(self, tokens: Tokens, scope: Scope = NONE, r: int | None = None) -> int:
        """A request runs, commits and ends."""
        r = self.run(tokens, scope, r)
        self.commit(r)
        self.take("end", r)
        return r

    def room(self, r: int) -> int:
        """How many tokens request r may still get."""
        return self.domain.tokens - len(self.of(r).tokens)

    def more(self, most: int = 2) -> None:
        """Up to *most* steps of any kind."""
        for _ in range(self.number(0, most)):
            self.anything()

    def can(self, name: str) -> bool:
        """Whether there can be such a step now."""
        running = self.running()
        filled = [r for r in running if self.of(r).filled]
        idle = len(running) < self.R
        return {
            "begin": idle,
            "fill": len(filled) < len(running),
            "append": any(self.room(r) > self.block for r in filled),
            "truncate": bool(filled) and self.domain.has("prefix.truncate"),
            "commit": bool(filled),
            "end": bool(running),
            "look": self.domain.has("prefix.match"),
            "reset": not running and self.domain.has("prefix.reset"),
        }[name]

    def anything(self, kind: str | None = None) -> None:
        """A step of this kind, or of any that there can be."""
        names = ("begin", "fill", "append", "truncate", "commit", "end", "look", "reset")
        kind = kind or self.draw(st.sampled_from([name for name in names if self.can(name)]))
        if kind == "begin":
            self.begin(self.sought(), self.scope())
        elif kind == "look":
            self.take("look", self.sought(), *self.scope())
        elif kind == "reset":
            self.take("reset")
        elif kind == "fill":
            self.take("fill", self.one(lambda request: not request.filled))
        elif kind == "end":
            self.take("end", self.one())
        else:
            r = self.one(lambda request: request.filled)
            low, high = self.of(r).committed, len(self.of(r).tokens)
            low = max(low, self.of(r).prompt) if kind == "truncate" else low
            if kind == "append" and self.room(r) > self.block:
                self.take("append", r, self.rest())
            elif kind != "append":
                self.take(kind, r, self.number(low, high))

    def one(self, which: Callable[[Request], bool] = lambda request: True) -> int:
        """A running request such as these."""
        some = [r for r in self.running() if which(self.of(r))]
        return self.draw(st.sampled_from(some))

    def sought(self) -> Tokens:
        """A prompt that begins as an earlier one, or not."""
        known = [s[-3] for s in self.steps if s[0] in ("begin", "look")]
        begun: list[Tokens] = [t for t in known if isinstance(t, tuple)]
        first = self.draw(st.sampled_from([(), *begun]))
        first = first[: self.number(0, len(first))]
        return (*first, *self.tokens(1, 2 * self.block))[: self.domain.tokens // 2]

    def scope(self) -> Scope:
        """A salt and an adapter, mostly none."""
        salt = self.draw(st.sampled_from((0, 0, 1))) if self.domain.has("prefix.salt") else 0
        adapter = self.draw(st.sampled_from((0, 0, 1))) if self.domain.has("prefix.adapter") else 0
        return salt, adapter

    def case(self) -> PrefixCase:
        """The program with heads and sizes, in the smallest pool unless it is said how large."""
        sizes = self.domain.head_sizes
        D, Dv = self.draw(st.sampled_from(sizes)), None
        if self.domain.has("prefix.value_size") and self.draw(st.booleans()):
            Dv = next((n for n in sizes if n != D), None)
        return PrefixCase(
            R=self.R, Hkv=self.number(1, 2), D=D, Dv=Dv, block=self.block,
            blocks=None if self.blocks is None else max(self.blocks, self.state.peak, 1),
            steps=tuple(self.steps),
        )  # fmt: skip

    def roomy(self) -> None:
        """The pool has room for everything that was there."""
        self.blocks = self.state.taken


Build = Callable[[Builder], None]


def stratum(*features: str, least: int = 1, block: int = 1) -> Callable[[Build], Stratum]:
    """A stratum from a function that builds a program, where all *features* are supported.

    *least*: of requests at a time; *block*: the smallest block size to use.
    """

    def decorate(build: Build) -> Stratum:
        @st.composite
        def made(draw: st.DrawFn, domain: PrefixDomain) -> PrefixCase:
            sizes = [n for n in domain.blocks if n >= block]
            R = draw(st.integers(least, max(least, domain.requests)))
            builder = Builder(draw, domain, R, draw(st.sampled_from(sizes)))
            build(builder)
            return builder.case()

        def guarded(domain: PrefixDomain) -> Strategy | None:
            if not domain.has(*features) or domain.requests < least:
                return None
            return made(domain) if any(n >= block for n in domain.blocks) else None

        return guarded

    return decorate


@stratum()
def program(b: Builder) -> None:
    """Any steps."""
    b.serve(b.tokens(1, 3 * b.block))
    for _ in range(b.number(3, 8)):
        b.anything()
    if b.draw(st.booleans()):
        b.roomy()


@stratum()
def hit(b: Builder) -> None:
    """A prompt begins as one that was served."""
    first = b.whole(b.number(1, 3))
    b.serve(first + b.tokens(0, b.block))
    b.run(first + b.rest())
    b.more()


@stratum("prefix.requests", least=2)
def hit_running(b: Builder) -> None:
    """A prompt begins as that of a request which still runs."""
    first = b.whole(b.number(1, 3))
    b.commit(b.run(first + b.tokens(0, b.block)))
    b.run(first + b.rest())
    b.more()


@stratum("prefix.requests", least=2)
def twins(b: Builder) -> None:
    """Two requests compute the same prompt side by side; later ones hit what both committed."""
    first = b.whole(b.number(1, 3))
    one, other = b.begin(first + b.rest()), b.begin(first + b.rest())
    for r in (one, other):
        b.take("fill", r)
    b.commit(one)
    b.commit(other)
    b.take("end", b.draw(st.sampled_from((one, other))))
    b.run(first + b.whole(1) + b.rest())


@stratum()
def other_prefix(b: Builder) -> None:
    """A block follows another one than where it was committed."""
    A, B, C, D = b.parts(4)
    b.serve(A + B + b.tokens(0, 1))
    b.serve(C + D)
    b.run(C + B + b.rest())
    b.roomy()


@stratum()
def other_position(b: Builder) -> None:
    """A block is at another index than where it was committed."""
    A, B, C = b.parts(3)
    b.serve(A + B + C)
    b.run(A + b.draw(st.sampled_from((C, A))) + b.rest())
    b.roomy()


@stratum()
def permuted(b: Builder) -> None:
    """The blocks of a committed prefix come in another order, the first of them known, too."""
    A, B, C = b.parts(3)
    b.serve(A + B)
    b.serve(B + C)
    b.run(B + A + b.rest())
    b.roomy()


@stratum()
def repeated_block(b: Builder) -> None:
    """A prefix has the same block twice, or more."""
    (A,) = b.parts(1)
    n = b.number(2, 3)
    b.serve(A * n + b.tokens(0, 1))
    b.run(A * n + b.rest())
    b.roomy()


PLAIN: Mapping[str, Stratum] = {
    "hit": hit,
    "hit_running": hit_running,
    "twins": twins,
    "other_prefix": other_prefix,
    "other_position": other_position,
    "permuted": permuted,
    "repeated_block": repeated_block,
}


def _scoped(one: Scope, other: Scope, *features: str) -> Stratum:
    """A prompt that was served in a scope comes in another one, or the other way round."""

    @stratum(*features)
    def made(b: Builder) -> None:
        first = b.whole(b.number(1, 2))
        there, here = b.draw(st.permutations((one, other)))
        b.serve(first + b.rest(), there)
        b.run(first + b.rest(), here)
        b.roomy()

    return made


SCOPED: Mapping[str, Stratum] = {
    "other_salt": _scoped((1, 0), (2, 0), "prefix.salt"),
    "other_adapter": _scoped((0, 1), (0, 2), "prefix.adapter"),
    "salt_against_adapter": _scoped((1, 0), (0, 1), "prefix.salt", "prefix.adapter"),
}
_UNSCOPED: Mapping[str, Stratum] = {
    "other_salt": _scoped((1, 0), NONE, "prefix.salt"),
    "other_adapter": _scoped((0, 1), NONE, "prefix.adapter"),
}


def _colliding(name: str) -> Stratum:
    """Programs of the strata that tell prefixes apart, with a hash that does not."""
    kinds = (other_prefix, other_position, permuted, *SCOPED.values(), *_UNSCOPED.values())

    def guarded(domain: PrefixDomain) -> Strategy | None:
        some = [made for kind in kinds if (made := kind(domain)) is not None]
        if not some or not domain.has("prefix.hash"):
            return None
        return st.one_of(some).map(lambda case: replace(case, hash=name))

    return guarded


COLLIDING: Mapping[str, Stratum] = {
    f"hash_{name}": _colliding(name) for name in ("constant", "sum", "tokens", "scopeless")
}


@stratum()
def hit_after_eviction(b: Builder) -> None:
    """More was served than there is room for; earlier prompts come again."""
    size = b.number(1, 3)
    prompts = [b.whole(size) + b.rest() for _ in range(b.number(2, 3))]
    for prompt in prompts:
        b.serve(prompt)
    b.blocks = b.state.peak + b.number(0, 1)
    for prompt in b.draw(st.permutations(prompts))[:2]:
        b.serve(prompt)
    b.run(prompts[0])


@stratum()
def evicted_in_part(b: Builder) -> None:
    """Some blocks of a prefix made room for others, and the prefix comes again, twice."""
    n = b.number(2, 4)
    A = b.whole(n) + b.rest()
    b.serve(A)
    for _ in range(b.number(1, 2)):
        b.serve((*b.whole(1)[: b.block - 1], TOKENS))
    b.blocks = n + 1
    b.serve(A)
    b.run(A)


@stratum("prefix.requests", least=2)
def written_over(b: Builder) -> None:
    """Blocks are taken from a prefix and written to, not yet committed: the prefix comes again."""
    A = b.whole(b.number(1, 2))
    n = len(A) // b.block + 1
    b.serve(A + b.rest())
    for token in range(1, 3):
        b.serve((TOKENS + token,) * (n * b.block))
    b.run((TOKENS,) * (n * b.block))
    b.begin(A + b.rest())


@stratum("prefix.requests", least=2)
def eviction_while_held(b: Builder) -> None:
    """A request runs on blocks that it hit while others need room."""
    n = b.number(1, 3)
    first = b.whole(n)
    b.serve(first + b.rest())
    b.run(first + b.rest()) if b.draw(st.booleans()) else b.begin(first + b.rest())
    for token in range(b.number(1, 2)):
        b.serve((TOKENS + token,) * (b.block * b.number(1, 2) + 1))
    b.more()


@stratum("prefix.requests", least=3)
def eviction_while_shared(b: Builder) -> None:
    """Two requests run on the same blocks, one of them ends, others need room."""
    first = b.whole(b.number(1, 2))
    b.serve(first + b.rest())
    requests = [b.run(first + b.rest()) for _ in range(2)]
    b.take("end", b.draw(st.sampled_from(requests)))
    for token in range(b.number(2, 3)):
        b.serve((TOKENS + token,) * (len(first) + 1))
    b.blocks = needed(b.state) * 2


@stratum()
def slot_again(b: Builder) -> None:
    """A request number serves one prompt, then another, then the first comes again."""
    A, B = b.parts(2)
    n = b.number(1, 2)
    b.serve(A * n + b.rest(), r=0)
    b.serve(B * n + b.rest(), r=0)
    b.run(A * n + b.rest(), r=0)
    b.roomy()


@stratum("prefix.truncate")
def uncommitted_sought(b: Builder) -> None:
    """Drafts are rejected, others come in their place; a prompt begins with what was rejected."""
    first, drafts = b.whole(b.number(0, 2)), b.whole(1)
    b.blocks = 16
    r = b.run(first or b.tokens(1, 1))
    b.commit(r)
    L = len(b.of(r).tokens)
    drafted = b.of(r).tokens + drafts
    b.take("append", r, drafts)
    if b.draw(st.booleans()):
        b.commit(r, L)
    kept = b.number(0, b.block - 1)
    b.take("truncate", r, L + kept)
    b.take("append", r, ((drafts[kept] + 1) % TOKENS, *b.tokens(0, b.block)))
    b.commit(r)
    b.take("end", r)
    b.run((*drafted[: len(drafted) // b.block * b.block], TOKENS))


@stratum("prefix.truncate")
def hit_after_truncate(b: Builder) -> None:
    """Rounds of drafts, some rejected; a prompt begins with what was emitted."""
    r = b.run(b.tokens(1, b.block))
    b.commit(r)
    for _ in range(b.number(1, 3)):
        L = len(b.of(r).tokens)
        b.take("append", r, b.tokens(1, b.block + 1))
        b.take("truncate", r, b.number(L, len(b.of(r).tokens)))
        b.take("append", r, b.tokens(1, 1))
        b.commit(r)
    more = b.block - len(b.of(r).tokens)
    if more > 0:
        b.take("append", r, b.tokens(more, more))
        b.commit(r)
    emitted = b.of(r).tokens
    b.take("end", r)
    b.roomy()
    b.run((*emitted, TOKENS))
    b.roomy()


@stratum(block=2)
def drafts_kept_back(b: Builder) -> None:
    """A block is full, of which only some tokens are emitted when a prompt asks for all of it."""
    first = b.whole(b.number(1, 2))
    r = b.run(first + b.whole(1))
    b.commit(r, len(first) + b.number(1, b.block - 1))
    tokens = b.of(r).tokens
    if b.R < 2:
        b.take("end", r)
    b.run((*tokens, TOKENS))
    b.roomy()


@stratum("prefix.requests", least=2)
def unfilled_sought(b: Builder) -> None:
    """A prompt comes again before the first that had it has computed it."""
    first = b.whole(b.number(1, 2))
    one = b.begin(first + b.rest())
    other = b.begin(first + b.rest())
    b.roomy()
    for r in b.draw(st.permutations((one, other))):
        b.take("fill", r)
    b.roomy()


@stratum(block=2)
def partial_sought(b: Builder) -> None:
    """A prompt begins with tokens that fill a committed block in part only."""
    first = b.whole(b.number(0, 2)) + b.tokens(1, b.block - 1)
    b.serve(first)
    b.run(first + b.tokens(0, b.block))
    b.roomy()


@stratum(block=2)
def promoted(b: Builder) -> None:
    """A block is committed in part, then in full; prompts ask for both."""
    r = b.run(b.whole(b.number(0, 1)) + b.tokens(1, b.block - 1))
    b.commit(r)
    part = b.of(r).tokens
    b.take("append", r, b.whole(1))
    b.commit(r)
    full = b.of(r).tokens
    b.take("end", r)
    b.serve(part + (TOKENS,) * b.block)
    b.run((*full, TOKENS))
    b.roomy()


@stratum()
def whole_prompt(b: Builder) -> None:
    """A prompt of whole blocks comes again."""
    first = b.whole(b.number(1, 3))
    b.serve(first)
    b.run(first)
    b.roomy()


@stratum()
def pool_full_again(b: Builder) -> None:
    """Requests need the whole pool, again and again, with hits between."""
    first = b.whole(b.number(1, 2))
    for _ in range(b.number(2, 4)):
        b.serve(first + b.tokens(b.block, b.block))
    b.serve((TOKENS,) * (len(first) + b.block))


@stratum("prefix.truncate")
def truncate_frees_block(b: Builder) -> None:
    """Rejected drafts leave blocks empty, which are needed at once."""
    r = b.run(b.tokens(1, b.block))
    b.commit(r)
    L = len(b.of(r).tokens)
    for _ in range(b.number(2, 3)):
        b.take("append", r, b.whole(b.number(1, 2)))
        b.take("truncate", r, L)
    b.take("append", r, b.tokens(1, 2 * b.block))


@stratum("prefix.reset")
def after_reset(b: Builder) -> None:
    """What was served before a reset comes again after it."""
    first = b.whole(b.number(1, 2))
    b.serve(first + b.rest())
    b.take("reset")
    b.run(first + b.rest())
    b.roomy()


@stratum("prefix.match")
def look(b: Builder) -> None:
    """It is asked what a prompt would begin with."""
    first = b.whole(b.number(1, 2))
    b.serve(first + b.rest())
    for _ in range(b.number(1, 2)):
        b.take("look", first + b.rest(), *NONE)
    b.run(first + b.rest())
    b.more(1)
    b.roomy()


EVICTED: Mapping[str, Stratum] = {
    "hit_after_eviction": hit_after_eviction,
    "more_than_the_pool": evicted_in_part,
}
HELD: Mapping[str, Stratum] = {
    "eviction_while_held": eviction_while_held,
    "eviction_while_shared": eviction_while_shared,
    "slot_again": slot_again,
}
REJECTED: Mapping[str, Stratum] = {
    "uncommitted_sought": uncommitted_sought,
    "drafts_kept_back": drafts_kept_back,
    "unfilled_sought": unfilled_sought,
    "hit_after_truncate": hit_after_truncate,
}
WHOLE: Mapping[str, Stratum] = {
    "partial_sought": partial_sought,
    "promoted": promoted,
    "whole_prompt": whole_prompt,
}
POOLED: Mapping[str, Stratum] = {
    "pool_full_again": pool_full_again,
    "truncate_frees_block": truncate_frees_block,
}
ANY: Mapping[str, Stratum] = {"program": program, "hit": hit, "promoted": promoted}


@st.composite
def _declined(draw: st.DrawFn, domain: PrefixDomain, wider: PrefixDomain) -> PrefixCase:
    kinds = [program, *PLAIN.values(), *SCOPED.values(), hit_after_truncate, after_reset, look]
    some = [made for kind in (*kinds, *COLLIDING.values()) if (made := kind(wider)) is not None]
    return draw(
        st.one_of(some).filter(lambda case: bool({*lacking(case, domain)} & domain.declines))
    )


def declined(domain: PrefixDomain) -> Strategy | None:
    """Programs that need a declined feature."""
    if not domain.declines & {*NEEDING}:
        return None
    more = 3 if "prefix.requests" in domain.declines else domain.requests
    wider = replace(
        domain, supports=domain.supports | domain.declines, requests=max(more, domain.requests)
    )
    return _declined(domain, wider)


NEEDING = (
    "prefix.requests", "prefix.salt", "prefix.adapter", "prefix.truncate", "prefix.match",
    "prefix.reset", "prefix.hash",
)  # fmt: skip
"""Features that a program can need."""


@stratum()
def malformed(b: Builder) -> None:
    """A program that leaves a request running, for malformed calls to follow."""
    b.serve(b.tokens(1, 2 * b.block))
    b.commit(b.run(b.tokens(2, 3 * b.block)), 1)
