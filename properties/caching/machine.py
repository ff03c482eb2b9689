"""A state machine over a cache, for a test suite of one's own: any steps, judged one by one.

    from hypothesis.stateful import run_state_machine_as_test
    from kernelassay.properties.caching.machine import cache_machine

    def test_my_cache():
        run_state_machine_as_test(cache_machine(my_adapter))

Where the laws of the family take programs apart by what they show, the machine takes any steps
that the adapter supports, as long as Hypothesis likes, and shrinks what fails to few of them.
"""

from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernelassay.impls.contract import Unsupported
from kernelassay.properties.caching.builder import Builder
from kernelassay.properties.caching.case import MOST_TOKENS, CacheCase
from kernelassay.properties.caching.domain import CacheDomain
from kernelassay.properties.caching.picture import program
from kernelassay.properties.caching.reads import KINDS
from kernelassay.properties.caching.run import Run, refused
from kernelassay.properties.domain import domain_of
from kernelassay.properties.failures import Failure
from kernelassay.properties.subject import Subject

__all__ = ["cache_machine"]


def cache_machine(
    adapter: Any, dtype: str | None = None, device: str | None = None
) -> type[RuleBasedStateMachine]:
    """The class of state machines of *adapter*'s cache.

    *dtype*, *device*: by default the first that its capabilities name. A step that leaves
    something wrong raises a `Failure` whose text shows the program and the cache.
    """
    c = adapter.capabilities
    subject = Subject(adapter, dtype or c.dtypes[0], device or c.devices[0])
    domain: CacheDomain = domain_of(subject)

    class CacheMachine(_Machine):
        """Steps of the cache."""

        def __init__(self) -> None:
            super().__init__(subject, domain)

    # Explaining a failure costs minutes, and the picture says more.
    CacheMachine.TestCase.settings = settings(
        max_examples=50, stateful_step_count=15, deadline=None, phases=set(Phase) - {Phase.explain}
    )
    return CacheMachine


class _Machine(RuleBasedStateMachine):
    """Rules for every step; the reads between them are steps, too."""

    def __init__(self, subject: Subject, domain: CacheDomain) -> None:
        super().__init__()
        self.subject, self.domain = subject, domain
        self.run: Run | None = None

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """An empty cache, with heads and pages that the adapter takes."""
        domain = self.domain
        page = data.draw(st.sampled_from(domain.pages or (None,)), "page")
        R = data.draw(st.integers(1, domain.requests), "requests")
        Hq, Hkv = data.draw(st.sampled_from(domain.heads), "heads")
        window = None
        if domain.has("cache.window") and data.draw(st.booleans(), "a window"):
            window = data.draw(st.integers(1, 8), "window")
        spare = data.draw(st.integers(0, 3), "spare") if window else 0
        case = CacheCase(
            R=R, Hq=Hq, Hkv=Hkv, D=domain.head_sizes[0], page=page, window=window, spare=spare
        )
        pages = None if page is None else R * (-(-domain.entries // page) + 1)
        self.run = self._judged(lambda: Run(self.subject, case).open(domain.entries, pages))
        self._step(data, "append")

    def _judged(self, act: Any) -> Any:
        """What *act* returns; a failure's text gets the program and the picture."""
        try:
            return act()
        except Unsupported as why:
            raise refused(self.subject, why) from why
        except Failure as failure:
            run = self.run
            lines = failure.facts.get("lines")
            if lines is None and run is not None:
                lines = program(run.steps, run.states, None)
            failure.args = ("\n".join([failure.message, *(lines or ())]),)
            raise

    def _step(self, data: st.DataObject, kind: str) -> None:
        """A step of this kind that can be taken now."""
        run = self.run
        assert run is not None
        case, state = run.case, run.state
        draw: Any = data.draw
        b = Builder(draw, self.domain, case.R, case.page, case.window, case.spare)
        b.state = state
        b.anything(kind)
        if kind != "append":  # a run may have no rule but this: something comes in between
            b.some(2)
        for step in b.steps:
            self._judged(lambda step=step: run.take(step))

    def _can(self, kind: str) -> bool:
        if self.run is None or not any(self.run.state.lengths):
            return False
        case = self.run.case
        b = Builder(None, self.domain, case.R, case.page, case.window)  # type: ignore[arg-type]
        return b.can(kind)

    @precondition(lambda self: self.run is not None and self.run.state.tokens < MOST_TOKENS - 40)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        """Entries come, some requests may get none."""
        self._step(data, "append")

    @precondition(lambda self: self._can("truncate"))
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """The last entries of a request go."""
        self._step(data, "truncate")

    @precondition(lambda self: self._can("compact"))
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        """Scattered entries move together."""
        self._step(data, "compact")

    @precondition(lambda self: self._can("fork"))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """A request begins with entries of another one."""
        self._step(data, "fork")

    @precondition(lambda self: self._can("free"))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """A request holds nothing any more."""
        self._step(data, "free")

    @precondition(lambda self: self.run is not None)
    @rule(kind=st.sampled_from(KINDS))
    def attend(self, kind: str) -> None:
        """Everything is read, in one of three ways."""
        assert self.run is not None
        self._judged(lambda: self.run.judge(kind))

    @invariant()
    def holds_what_it_should(self) -> None:
        """Needles find every entry."""
        if self.run is not None:
            self._judged(lambda: self.run.judge("needle"))
