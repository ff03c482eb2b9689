"""A state machine over a prefix cache, for a test suite of one's own: any steps, each judged.

    from hypothesis.stateful import run_state_machine_as_test
    from kernelassay.properties.prefixes.machine import prefix_machine

    def test_my_prefix_cache():
        run_state_machine_as_test(lambda: prefix_machine(my_adapter)())

Where the laws of the family take programs apart by what they show, the machine takes any steps
that the adapter supports, as long as Hypothesis likes, and shrinks what fails to few of them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernelassay.impls.contract import Unsupported
from kernelassay.properties.domain import domain_of
from kernelassay.properties.failures import Failure
from kernelassay.properties.prefixes.case import PrefixCase
from kernelassay.properties.prefixes.domain import PrefixDomain
from kernelassay.properties.prefixes.hashes import HASHES
from kernelassay.properties.prefixes.run import Run, refused
from kernelassay.properties.prefixes.strata import Builder
from kernelassay.properties.subject import Subject

__all__ = ["prefix_machine"]

BLOCKS = 6
"""The most blocks of a request: few, so that others need them soon."""


def prefix_machine(
    adapter: Any, dtype: str | None = None, device: str | None = None
) -> type[RuleBasedStateMachine]:
    """The class of state machines of *adapter*'s prefix cache.

    *dtype*, *device*: by default the first that its capabilities name. A step that leaves
    something wrong raises a `Failure` whose text shows the program.
    """
    c = adapter.capabilities
    subject = Subject(adapter, dtype or c.dtypes[0], device or c.devices[0])
    domain: PrefixDomain = domain_of(subject)

    class PrefixMachine(_Machine):
        """Steps of the prefix cache."""

        def __init__(self) -> None:
            super().__init__(subject, domain)

    return PrefixMachine


def _rule(kind: str) -> Callable[["_Machine", st.DataObject], None]:
    """A rule that takes a step of this kind."""

    def step(self: "_Machine", data: st.DataObject) -> None:
        self.step(data, kind)

    step.__name__ = kind
    return precondition(lambda self: self.can(kind))(rule(data=st.data())(step))


class _Machine(RuleBasedStateMachine):
    """A rule for each kind of step; what requests read is judged after every one."""

    def __init__(self, subject: Subject, domain: PrefixDomain) -> None:
        super().__init__()
        self.subject, self.domain = subject, domain
        self.run: Run | None = None

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """An empty cache of blocks that the adapter takes, with room for some requests or many."""
        domain = self.domain
        block = data.draw(st.sampled_from(domain.blocks[:4]), "block")
        self.domain = domain = replace(domain, tokens=min(domain.tokens, BLOCKS * block))
        R = data.draw(st.integers(1, domain.requests), "requests")
        names = [*HASHES] if domain.has("prefix.hash") else ["own"]
        name = data.draw(st.sampled_from(names), "hash")
        blocks = R * -(-domain.tokens // block) + data.draw(st.integers(0, 4), "more blocks")
        case = PrefixCase(R=R, D=domain.head_sizes[0], block=block, blocks=blocks, hash=name)
        self.run = self.judged(lambda: Run(self.subject, case).open(blocks, domain.tokens))

    def judged(self, act: Callable[[], Any]) -> Any:
        """What *act* returns; a failure's text gets the program."""
        try:
            return act()
        except Unsupported as why:
            raise refused(self.subject, why) from why
        except Failure as failure:
            lines = failure.facts.get("lines") or (self.run.program() if self.run else ())
            failure.args = ("\n".join([failure.message, *lines]),)
            raise

    def builder(self, draw: Any) -> Builder | None:
        """A builder that goes on from the state that the run has."""
        if self.run is None:
            return None
        b = Builder(draw, self.domain, self.run.case.R, self.run.case.block)
        b.state, b.steps = self.run.state, [*self.run.steps]
        return b

    def can(self, kind: str) -> bool:
        """Whether there can be such a step now."""
        b = self.builder(None)
        return b is not None and b.can(kind)

    def step(self, data: st.DataObject, kind: str) -> None:
        """A step of this kind, on the cache and on the model."""
        b = self.builder(data.draw)
        assert b is not None
        b.anything(kind)
        self.follow(b)

    def follow(self, b: Builder) -> None:
        """The steps that were built, on the cache."""
        run = self.run
        assert run is not None
        for step in b.steps[len(run.steps) :]:
            self.judged(partial(run.take, step))

    begin, fill, append, truncate, commit, end, look, reset = map(
        _rule, ("begin", "fill", "append", "truncate", "commit", "end", "look", "reset")
    )

    @precondition(lambda self: self.can("begin"))
    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        """A request begins, commits all and ends: what others may hit."""
        b = self.builder(data.draw)
        assert b is not None
        b.serve(b.sought(), b.scope())
        self.follow(b)

    @invariant()
    def reads_what_a_cold_run_has(self) -> None:
        """All entries of all running requests."""
        if self.run is not None:
            self.judged(self.run.judge)
