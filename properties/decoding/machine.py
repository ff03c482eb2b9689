"""A state machine over a decode loop, for a test suite of one's own: round after round, judged.

    from hypothesis.stateful import run_state_machine_as_test
    from kernelassay.properties.decoding.machine import decode_machine

    def test_my_decoder():
        run_state_machine_as_test(decode_machine(my_adapter))

Each round has numbers of drafts of its own for every request, 0 included. After it the account of
the round must add up, the caches hold what the oracle's transaction says, and greedy requests have
emitted the target's likeliest tokens.
"""

from dataclasses import replace
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kernelassay.impls.decoding import Step
from kernelassay.oracle.decoding import State, Turn, after, prefilled
from kernelassay.oracle.speculative import Prefix
from kernelassay.properties.decoding.answers import call_of, models_of
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.decoding.domain import DecodeDomain
from kernelassay.properties.decoding.shown import listed, run_lines
from kernelassay.properties.decoding.strata import plain
from kernelassay.properties.domain import domain_of
from kernelassay.properties.failures import Failure, WrongState, WrongToken
from kernelassay.properties.laws.decoding import drafts_known, wrong_round
from kernelassay.properties.subject import Subject

__all__ = ["decode_machine"]

NEEDED = ("decode.rounds", "decode.trace")


def decode_machine(
    adapter: Any, dtype: str | None = None, device: str | None = None
) -> type[RuleBasedStateMachine]:
    """The class of state machines of *adapter*'s loop.

    *dtype*, *device*: by default the first that its capabilities name. A round that is wrong
    raises a `Failure` whose text shows the run round by round. A loop that is not taken round by
    round is a ValueError.
    """
    c = adapter.capabilities
    subject = Subject(adapter, dtype or c.dtypes[0], device or c.devices[0])
    if missing := [name for name in NEEDED if not subject.has(name)]:
        raise ValueError(
            f"{adapter.name}: got capabilities without {', '.join(missing)}, expected them: the "
            f"machine takes one round after the other"
        )
    domain: DecodeDomain = domain_of(subject)

    class DecodeMachine(_Machine):
        """Rounds of the loop."""

        def __init__(self) -> None:
            super().__init__(subject, domain)

    # Explaining a failure costs minutes, and the picture says more.
    DecodeMachine.TestCase.settings = settings(
        max_examples=30, stateful_step_count=8, deadline=None, phases=set(Phase) - {Phase.explain}
    )
    return DecodeMachine


@st.composite
def calls(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """Requests with limits of their own, some of them greedy."""
    case = plain(draw, domain)
    R, each = case.requests, range(case.requests)
    changes: dict[str, Any] = {}
    if domain.has("decode.greedy") and len(case.greedy) < R:
        changes["greedy"] = tuple(r for r in each if draw(st.booleans()))
    if domain.has("decode.budget"):
        changes["budget"] = tuple(draw(st.integers(0, 6)) for _ in each)
    if domain.has("decode.stop"):
        changes["stop"] = tuple((draw(st.integers(0, case.V - 1)),) for _ in each)
        if domain.has("decode.minimum"):
            changes["minimum"] = tuple(draw(st.integers(0, 2)) for _ in each)
    return replace(case, **changes)


class _Machine(RuleBasedStateMachine):
    """One rule: a round."""

    def __init__(self, subject: Subject, domain: DecodeDomain) -> None:
        super().__init__()
        self.subject, self.domain = subject, domain
        self.live: set[int] = set()

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Requests with prompts and limits that the loop takes."""
        self.case = data.draw(calls(self.domain), "call")
        self.models = models_of(self.subject, self.case)
        self.run = self.subject.kernel.start(call_of(self.subject, self.case))
        numbers = range(self.case.requests)
        self.tasks = [self.models.task(r) for r in numbers]
        self.states: list[State] = [prefilled(task.prompt) for task in self.tasks]
        self.came: list[list[Step]] = [[] for _ in numbers]
        self.live = {r for r in numbers if not self.tasks[r].ended(())}

    @rule(data=st.data())
    def round(self, data: st.DataObject) -> None:
        """A round with some drafts for each request; those that have ended take no part."""
        K, R = max(self.case.schedule), self.case.requests
        asked = data.draw(st.tuples(*[st.integers(0, K)] * R), "drafts")
        if not self.domain.has("decode.schedule"):
            asked = (K,) * R
        steps = self.run.round(asked)
        for r in range(R):
            self._judge(r, asked[r], steps[r])

    def _text(self, r: int) -> Prefix:
        return self.states[r].text[len(self.tasks[r].prompt) :]

    def _judge(self, r: int, k: int, step: Step | None) -> None:
        text, task = self._text(r), self.tasks[r]
        if step is None or r not in self.live:
            if (step is None) == (r in self.live):
                told = "no round" if step is None else "a round"
                raise self._shown(WrongState(f"request {r}: {told}, after {listed(text)}"), r)
            return
        if task.trimmed:
            k = min(k, task.budget - len(text) - 1)
        self.came[r].append(step)
        lookup = self.models.lookup(r)
        drafts: Prefix | None = None
        if lookup is not None:
            known = drafts_known(self.subject, self.case)
            drafts = lookup(text, k) if known else step.drafts[:k]
        if why := wrong_round(step, k, drafts, ended=False):
            raise self._shown(WrongState(f"request {r}: {why}"), r)
        self.states[r] = after(self.states[r], Turn(step.drafts, step.accepted, step.emitted))
        self._caches(r, step)
        self._likeliest(r, text, step.emitted)
        for n in range(1, len(step.emitted) + 1):
            if task.ended(text + step.emitted[:n]):
                self.live.discard(r)
                if n < len(step.emitted):
                    rest = listed(step.emitted[n:])
                    raise self._shown(WrongToken(f"request {r}: {rest} after its end"), r)

    def _caches(self, r: int, step: Step) -> None:
        state, prefix = self.states[r], self.models.decoding.caches == "prefix"
        for name in ("target", "draft"):
            got, expected = getattr(step, name), getattr(state, name)
            if got is None or got == expected or (prefix and 0 <= got <= expected):
                continue
            why = f"the {name} cache holds {got} tokens, expected {expected}"
            raise self._shown(WrongState(f"request {r}: {why}, of {len(state.text)}"), r)

    def _likeliest(self, r: int, text: Prefix, emitted: Prefix) -> None:
        if r not in self.case.greedy:
            return
        for i, y in enumerate(emitted):
            p = self.models.processed(r)(text + emitted[:i])
            if max(p) - p[y] > 2 * self.models.decoding.slack:
                best = p.index(max(p))
                why = f"emits {y} after {listed(text + emitted[:i])}, where {best} is likeliest"
                raise self._shown(WrongToken(f"request {r} {why}"), r)

    def _shown(self, failure: Failure, r: int) -> Failure:
        """The failure with the run in its text."""
        lines = run_lines(self.case, r, self.came[r])
        failure.args = ("\n".join([failure.message, *lines]),)
        return failure
