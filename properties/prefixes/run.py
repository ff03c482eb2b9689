"""A program run on a prefix cache: steps on the store and on the model, reads judged between.

What a cache says of a hit is believed as far as the model allows it; what lies there is what
`read` shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import BlockUse, Prefixed, PrefixSpec, Scope, Unsupported
from kernelassay.oracle.formats import format_of, name_of
from kernelassay.oracle.prefixes import State, Tokens, longest, start, stepped
from kernelassay.properties.failures import (
    InputMutated,
    Refused,
    WrongDtype,
    WrongShape,
    WrongState,
)
from kernelassay.properties.memory import same_bits
from kernelassay.properties.prefixes import ledger
from kernelassay.properties.prefixes.case import PrefixCase, Step
from kernelassay.properties.prefixes.hashes import HASHES
from kernelassay.properties.prefixes.picture import program, rows_beside
from kernelassay.properties.stores import Calls
from kernelassay.properties.subject import Subject

__all__ = ["Run", "opened", "played", "refused"]


@dataclass(eq=False)
class Run(Calls, opens="prefix"):
    """One open prefix cache with the states that it went through.

    *hits*: what each running request began with. *single*: entries are appended one by one.
    *found*: everything that was committed must be hit.
    """

    subject: Subject
    case: PrefixCase
    single: bool = False
    found: bool = False
    guard: Callable[[Callable[[], Any]], Any] | None = None
    spec: Any = None
    store: Any = None
    steps: list[Step] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    hits: dict[int, int] = field(default_factory=dict)
    answers: list[int | None] = field(default_factory=list)

    @property
    def state(self) -> State:
        """What was committed, and who runs."""
        return self.states[-1]

    @property
    def convention(self) -> Prefixed:
        """What its author declared."""
        return self.subject.capabilities.prefixing or Prefixed()

    def told(self) -> list[str]:
        """The program up to now."""
        return self.program()

    def open(self, blocks: int, most: int) -> "Run":
        """Open the store; `Unsupported` passes through."""
        case = self.case
        spec = PrefixSpec(
            R=case.R, Hkv=case.Hkv, D=case.D, Dv=case.value_size, block=case.block, blocks=blocks,
            most=most, dtype=format_of(self.subject.dtype).dtype, hash=HASHES[case.hash],
            device=torch.device(self.subject.home),
        )  # fmt: skip
        self.states = [start(case.R, case.block)]
        self.spec, self.store = spec, self.opened(spec)
        return self

    def take(self, step: Step) -> None:
        """One step, on the store and on the model; a refusal is for the caller."""
        after = stepped(self.state, step)
        came = getattr(self, f"_{step[0]}")(*step[1:])
        self.steps.append(step)
        self.states.append(after)
        self.answers.append(came)
        if came is not None:
            self._judge_hit(came, step[-3], step[-2:], step[0])

    def _begin(self, r: int, tokens: Tokens, salt: int, adapter: int) -> int:
        n = self._count("begin", self.method("begin", r, [*tokens], Scope(salt, adapter)))
        self.hits[r] = n
        return n

    def _look(self, tokens: Tokens, salt: int, adapter: int) -> int:
        return self._count("match", self.method("match", [*tokens], Scope(salt, adapter)))

    def _count(self, name: str, came: Any) -> int:
        if isinstance(came, bool) or not isinstance(came, int):
            raise WrongShape(f"{name} returned {type(came).__name__}; expected a number")
        return came

    def _fill(self, r: int) -> None:
        request = self.state.requests[r]
        assert request is not None
        self._entries(r, request.tokens, self.hits[r])

    def _append(self, r: int, tokens: Tokens) -> None:
        request = self.state.requests[r]
        assert request is not None
        self._entries(r, request.tokens + tokens, len(request.tokens))

    def _entries(self, r: int, tokens: Tokens, first: int) -> None:
        """Entries of *tokens* from *first* on are appended; then their memory is used again."""
        request, case = self.state.requests[r], self.case
        assert request is not None
        k, v = ledger.rows(request.scope, tokens, case.Hkv, case.D, case.value_size)
        ends = range(first + 1, len(tokens) + 1) if self.single else [len(tokens)]
        low = first
        for high in ends:
            if high > low:
                given = {"k": self.placed(k[low:high]), "v": self.placed(v[low:high])}
                before = {n: x.clone() for n, x in given.items()}
                self.method("append", r, [*tokens[low:high]], *given.values())
                if changed := [n for n, x in given.items() if not same_bits(x, before[n])]:
                    raise InputMutated(
                        f"{', '.join(changed)} changed during append; expected every input as it "
                        f"was"
                    )
                for x in given.values():
                    x.fill_(torch.nan)
            low = high

    def _truncate(self, r: int, length: int) -> None:
        self.method("truncate", r, length)

    def _commit(self, r: int, length: int) -> None:
        self.method("commit", r, length)

    def _end(self, r: int) -> None:
        self.method("end", r)
        self.hits.pop(r)

    def _reset(self) -> None:
        self.method("reset")

    def placed(self, x: Tensor) -> Tensor:
        """*x* as the kernel gets it."""
        return x.to(format_of(self.subject.dtype).dtype).to(self.subject.home)

    def _judge_hit(self, came: int, tokens: Tokens, scope: tuple[int, int], name: str) -> None:
        """A `WrongState` unless a request may begin with so many tokens."""
        before, P = self.states[-2], self.case.block
        limit = len(tokens) - (self.convention.last == "computed")
        most = longest(before, tokens, scope, limit)
        said = f"after step {len(self.steps)} {'begin' if name == 'begin' else 'match'} says "
        if came < 0 or came % P:
            why = f"{came} tokens are there; expected a multiple of the block size, {P}"
        elif came > limit:
            why = f"{came} of {len(tokens)} tokens are there; expected at most {limit}"
        elif came > most:
            why = (
                f"{came} tokens are there; expected at most {most}: {tokens[:came]} was never "
                f"committed for salt {scope[0]}, adapter {scope[1]}"
            )
        elif self.found and came < most:
            why = (
                f"{came} tokens are there; expected {most}, which were committed, since the pool "
                f"has room for everything"
            )
        else:
            return
        raise WrongState(said + why, lines=self.program(broke=True))

    def program(self, *, broke: bool = False) -> list[str]:
        """The steps so far."""
        last = len(self.steps) - 1 if broke else None
        return program(self.steps, self.states, self.answers, last)

    def judge(self) -> None:
        """Read every running request; `WrongState` where a cold run has other entries."""
        for r, request in enumerate(self.state.requests):
            if request is None:
                continue
            tokens = request.tokens if request.filled else request.tokens[: self.hits[r]]
            self._judge_rows(r, tokens, request.scope)
        self.subject.observe(0.0)

    def _judge_rows(self, r: int, tokens: Tokens, scope: tuple[int, int]) -> None:
        case = self.case
        right = ledger.rows(scope, tokens, case.Hkv, case.D, case.value_size)
        came = self.method("read", r)
        if not isinstance(came, tuple) or len(came) != 2:
            raise WrongShape(f"read returned {type(came).__name__}; expected a pair (k, v)")
        bad = torch.zeros(len(tokens), dtype=torch.bool)
        for name, x, wanted in zip(("k", "v"), came, right, strict=True):
            if not isinstance(x, Tensor) or tuple(x.shape) != tuple(wanted.shape):
                got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise WrongShape(f"read: {name}: got {got}, expected {tuple(wanted.shape)}")
            if x.dtype != format_of(self.subject.dtype).dtype:
                raise WrongDtype(
                    f"read: {name}: got {name_of(x.dtype)}, expected {self.subject.dtype}"
                )
            bad |= (x.to("cpu", torch.float64) != wanted).flatten(1).any(1)
        if bool(bad.any()):
            raise self._wrong_rows(r, tokens, came[1].to("cpu", torch.float64), right[1], bad)

    def _wrong_rows(
        self, r: int, tokens: Tokens, got: Tensor, right: Tensor, bad: Tensor
    ) -> WrongState:
        at = int(bad.nonzero()[0])
        seen, wanted = ledger.said(got[at, 0]), ledger.said(right[at, 0])
        beside = " of other tokens before it" if seen == wanted else ""
        hit = " which it began with," if at < self.hits[r] else ""
        return WrongState(
            f"after step {len(self.steps)} request {r} reads {seen}{beside} at position {at},"
            f"{hit} expected {wanted} of a cold run of {tokens[: at + 1]}",
            lines=[
                *self.program(broke=True),
                f"Entries of request {r}, expected and read",
                *rows_beside(right, got, bad),
            ],
        )

    def use(self) -> BlockUse:
        """What the store says of its blocks."""
        use = self.method("blocks")
        if not isinstance(use, BlockUse):
            raise WrongShape(f"blocks() returned {type(use).__name__}; expected a BlockUse")
        return use


def opened(subject: Subject, case: PrefixCase, **how: Any) -> Run:
    """An open cache for the case; a refusal is a failure."""
    try:
        return Run(subject, case, **how).open(case.pool, max(1, case.states()[-1].longest))
    except Unsupported as why:
        raise refused(subject, why) from why


def played(
    subject: Subject,
    case: PrefixCase,
    *,
    check: Callable[[Run], None] = Run.judge,
    steps: Sequence[Step] | None = None,
    **how: Any,
) -> Run:
    """The case's steps, with *check* after each."""
    run = opened(subject, case, **how)
    try:
        for step in case.steps if steps is None else steps:
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
