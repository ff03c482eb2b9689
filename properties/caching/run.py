"""A program run on a cache: steps on the store and on the model beside it, reads judged between.

What a cache says of itself is never believed: what it holds is what attention reads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import CacheSpec, Caching, PageUse, Unsupported
from kernelassay.oracle.formats import format_of, name_of
from kernelassay.oracle.transactions import State, stepped
from kernelassay.properties.caching import ledger
from kernelassay.properties.caching.case import CacheCase, Step
from kernelassay.properties.caching.picture import pictured, program
from kernelassay.properties.caching.reads import Read, expected, off, reads
from kernelassay.properties.failures import (
    Refused,
    WrongDtype,
    WrongShape,
    WrongState,
)
from kernelassay.properties.stores import Calls
from kernelassay.properties.subject import Subject

__all__ = ["Run", "opened", "played"]


@dataclass(eq=False)
class Run(Calls, opens="cache"):
    """One open cache with the states that it went through, the last one what it must hold now.

    *exact*: values have full precision, and are read bit for bit.
    """

    subject: Subject
    case: CacheCase
    exact: bool = False
    guard: Callable[[Callable[[], Any]], Any] | None = None
    spec: Any = None
    store: Any = None
    steps: list[Step] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    @property
    def state(self) -> State:
        """What the cache must hold."""
        return self.states[-1]

    @property
    def dtype(self) -> torch.dtype:
        """Of keys, values and queries."""
        return format_of(self.subject.dtype).dtype

    def told(self) -> list[str]:
        """The program up to now."""
        return program(self.steps, self.states, None)

    def open(self, most: int, pages: int | None) -> "Run":
        """Open the store; `Unsupported` passes through."""
        case = self.case
        spec = CacheSpec(
            R=case.R, Hq=case.Hq, Hkv=case.Hkv, D=case.D, Dv=case.value_size, most=most,
            page=case.page, pages=pages, window=case.window, spare=case.spare, dtype=self.dtype,
            device=torch.device(self.subject.home),
        )  # fmt: skip
        self.states = [case.began]
        self.spec, self.store = spec, self.opened(spec)
        return self

    def take(self, step: Step) -> None:
        """One step, on the store and on the model; `Unsupported` is for the caller."""
        after = stepped(self.state, step)
        name, *arguments = step
        if name == "append":
            self._append(after, *arguments)
        elif name == "truncate":
            self.unchanged("truncate", lengths=self.integers(*arguments))
        elif name == "compact":
            self.method(name, *arguments[:2], [*arguments[2]])
        else:
            self.method(name, *arguments)
        self.steps.append(step)
        self.states.append(after)

    def _append(self, after: State, counts: Sequence[int]) -> None:
        """New entries in the order of their tokens: request after request."""
        flat = {e for entries in after.entries for e in entries}
        new = sorted(e for e in flat if e[0] >= self.state.tokens)
        case, make = self.case, ledger.exact_values if self.exact else ledger.values
        k = self.placed(_padded(ledger.keys(new, case.Hkv, case.D), case.padding))
        v = self.placed(_padded(make(new, case.Hkv, case.value_size), case.padding))
        offsets = self.integers([0, *accumulate(counts)])
        self.unchanged("append", k=k, v=v, offsets=offsets)

    def placed(self, x: Tensor) -> Tensor:
        """*x* as the kernel gets it."""
        return x.to(self.dtype).to(self.subject.home)

    def attend(self, q: Tensor) -> Tensor:
        """The answer [R, Hq, T, Dv] as it came, of the form that the contract says."""
        given = self.placed(q)
        out = self.unchanged("attend", q=given)
        shape = (*q.shape[:3], self.case.value_size)
        if not isinstance(out, Tensor) or tuple(out.shape) != shape:
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise WrongShape(f"attend: got {got}, expected a tensor of shape {shape}")
        if out.dtype != self.dtype:
            raise WrongDtype(f"attend: got {name_of(out.dtype)}, expected {self.subject.dtype}")
        return out

    def reads(self, kind: str) -> list[Read]:
        """The calls that read what is held now."""
        many, turn = self.subject.has("cache.queries"), 7 * len(self.steps)
        return [*reads(self.case, self.state, kind, many=many, turn=turn)]

    def judge(self, *kinds: str) -> None:
        """Read what is held now by rows of these kinds; `WrongState` where the model differs."""
        zeros = self.subject.conventions.empty_row == "zeros"
        for kind in kinds:
            for read in self.reads(kind):
                came = self.attend(read.q)
                got = came.to("cpu", torch.float64)
                right = expected(self.case, self.state, read, exact=self.exact)
                if self.exact:
                    right = right.to(self.dtype)
                    some = read.sought.any(-1) | zeros
                    wrong = (came.cpu() != right).any(-1) & some
                    right = right.double()
                else:
                    wrong = off(read, got, right, empty_zeros=zeros)
                self.subject.observe(0.0)
                if bool(wrong.any()):
                    raise self.failure(read, got, right, wrong)

    def failure(self, read: Read, got: Tensor, right: Tensor, wrong: Tensor) -> WrongState:
        """What was read beside what is held, after which step."""
        said, lines = pictured(self, read, got, right, wrong)
        return WrongState(said, lines=lines)

    def use(self) -> PageUse | None:
        """What the store says of its pages, if it does."""
        if self.case.page is None or not self.subject.has("cache.accounting"):
            return None
        use = self.method("pages")
        if not isinstance(use, PageUse):
            raise WrongShape(f"pages() returned {type(use).__name__}; expected a PageUse")
        return use


def _padded(x: Tensor, rows: int) -> Tensor:
    """*x* with rows of NaN after it."""
    return torch.cat([x, x.new_full((rows, *x.shape[1:]), torch.nan)])


def room(subject: Subject, case: CacheCase) -> tuple[int, int | None]:
    """The most entries of a request and the pages of the pool, as the spec says them."""
    states = case.states()
    most = max(1, *(max(state.lengths) for state in states))
    if case.page is None or case.pages is not None:
        return most, case.pages
    if (subject.capabilities.caching or Caching()).pages == "reserve":
        return most, case.R * (-(-most // case.page) + 1)
    return most, states[-1].peak


def opened(subject: Subject, case: CacheCase, *, exact: bool = False) -> Run:
    """An open cache for the case; a refusal is a failure."""
    try:
        return Run(subject, case, exact).open(*room(subject, case))
    except Unsupported as why:
        raise refused(subject, why) from why


def played(
    subject: Subject,
    case: CacheCase,
    *,
    each: Sequence[str] = ("needle",),
    last: Sequence[str] = (),
    exact: bool = False,
) -> Run:
    """The case's steps, with reads of the kinds *each* after every step and *last* at the end."""
    run = opened(subject, case, exact=exact)
    try:
        for step in case.steps:
            run.take(step)
            run.judge(*each)
        run.judge(*last)
    except Unsupported as why:
        raise refused(subject, why) from why
    return run


def refused(subject: Subject, why: Unsupported) -> Refused:
    """The failure of a store that refuses what its adapter supports."""
    return Refused(
        f"{subject.name} refused a call that it declares to support: {why}. "
        f"Answer it, or take the feature out of capabilities.supports"
    )
