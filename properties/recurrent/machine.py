"""A state machine over recurrent states, for a test suite of one's own: any steps, each judged.

from hypothesis.stateful import run_state_machine_as_test
from kernelassay.properties.recurrent.machine import state_machine

def test_my_states():
    run_state_machine_as_test(lambda: state_machine(my_adapter)())
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernelassay.impls.contract import Unsupported
from kernelassay.properties.domain import domain_of
from kernelassay.properties.failures import Failure
from kernelassay.properties.recurrent.case import RecurrentCase
from kernelassay.properties.recurrent.domain import RecurrentDomain
from kernelassay.properties.recurrent.run import Run, program, refused
from kernelassay.properties.recurrent.strata import Builder
from kernelassay.properties.subject import Subject

__all__ = ["state_machine"]

DRAFTS = 4
"""The most tokens of one append, and what a rollback may drop."""


def state_machine(
    adapter: Any, dtype: str | None = None, device: str | None = None
) -> type[RuleBasedStateMachine]:
    """The class of state machines of *adapter*'s recurrent states.

    *dtype*, *device*: by default the first that its capabilities name. A step that leaves
    something wrong raises a `Failure` whose text shows the program.
    """
    c = adapter.capabilities
    subject = Subject(adapter, dtype or c.dtypes[0], device or c.devices[0])
    domain: RecurrentDomain = domain_of(subject)

    class StateMachine(_Machine):
        """Steps on recurrent states."""

        def __init__(self) -> None:
            super().__init__(subject, domain)

    return StateMachine


class _Machine(RuleBasedStateMachine):
    """One rule that takes any step; all states are judged after every one."""

    def __init__(self, subject: Subject, domain: RecurrentDomain) -> None:
        super().__init__()
        self.subject, self.domain = subject, domain
        self.run: Run | None = None

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """States of zero."""
        domain = self.domain
        R = data.draw(st.integers(1, domain.requests), "requests")
        tail = data.draw(st.integers(0, 3), "tail") if domain.has("recurrence.tail") else 0
        padding = (
            data.draw(st.integers(0, 2), "padding") if domain.has("recurrence.padding") else 0
        )
        case = RecurrentCase(R=R, D=domain.head_sizes[0], tail=tail, padding=padding)
        self.run = self.judged(lambda: Run(self.subject, case).open(DRAFTS))

    def judged(self, act: Callable[[], Any]) -> Any:
        """What *act* returns; a failure's text gets the program."""
        try:
            return act()
        except Unsupported as why:
            raise refused(self.subject, why) from why
        except Failure as failure:
            lines = failure.facts.get("lines")
            if lines is None and self.run is not None:
                lines = program(self.run.steps, self.run.states, None)
            failure.args = ("\n".join([failure.message, *(lines or ())]),)
            raise

    @precondition(
        lambda self: (
            self.run is not None
            and max(map(len, self.run.state.tokens)) <= self.domain.tokens - DRAFTS
        )
    )
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Any step that there can be now."""
        run = self.run
        assert run is not None
        b = Builder(cast(st.DrawFn, data.draw), self.domain, run.case.R)
        b.state = run.state
        b.anything()
        for step in b.steps:
            self.judged(partial(run.take, step))

    @invariant()
    def holds_the_fold(self) -> None:
        """All states."""
        if self.run is not None:
            self.judged(self.run.judge)
