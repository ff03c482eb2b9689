"""A decode loop in plain integers: what is emitted, and what its caches hold after every step.

One request is a text, prompt and emitted tokens, and two caches that hold the keys and values of a
prefix of it. Between rounds the last token is pending: neither cache holds it. A round of k drafts

    draft       the draft model sees the rest of the text, then all drafts but the last
    verify      the target sees the pending token and all k drafts
    commit      the accepted drafts and the token after them are emitted
    roll back   both caches keep the text without its last token, or less where they have less

so that after full acceptance the draft cache has a hole, the last draft, which the next round's
first step fills. Whatever the rounds were, the state is that of the emitted tokens fed one by one.

Emitted texts follow the target's law token by token: `text_law`. Under given uniforms they are a
function of these: `runs`. Laws are tuples of Fractions over the vocabulary, contexts are functions
of what was emitted so far. Sources: Leviathan et al. 2023; Chen et al. 2023, algorithm 2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Literal

from kernelassay.oracle.decisions import Noise, Slack, decided_rounds, draw_pieces, outcomes
from kernelassay.oracle.speculative import (
    Context,
    Law,
    Prefix,
    autoregressive_law,
    ended,
    first_maximum,
    greedy_round,
    normalised,
    one_hot,
    round_law,
)

Lookup = Callable[[Prefix, int], Prefix]
"""(emitted tokens, the most drafts) -> drafts."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a request asks for, and how many drafts its rounds make."""

    prompt: Prefix
    budget: int
    schedule: tuple[int, ...] = (0,)
    stop: frozenset[int] = frozenset()
    minimum: int = 0
    trimmed: bool = False

    def drafts(self, t: int, emitted: int) -> int:
        """The number of drafts of round t; trimmed, no more than the budget leaves beside one."""
        k = self.schedule[t % len(self.schedule)]
        return min(k, self.budget - emitted - 1) if self.trimmed else k

    def ended(self, emitted: Prefix) -> bool:
        """Nothing is emitted any more."""
        return ended(emitted, self.stop, self.budget)


@dataclass(frozen=True)
class State:
    """One request between two steps. target and draft count the tokens of text and then of
    *proposed* that the caches hold."""

    text: Prefix
    target: int
    draft: int
    proposed: Prefix = ()

    @property
    def pending(self) -> Prefix:
        """Tokens of the text that the target has not seen."""
        return self.text[self.target :]


@dataclass(frozen=True)
class Turn:
    """One round: what was proposed, how much of it was accepted, and all that was emitted."""

    drafts: Prefix
    accepted: int
    emitted: Prefix


def prefilled(prompt: Prefix) -> State:
    """Both caches hold the prompt without its last token. An empty prompt is a ValueError."""
    if not prompt:
        raise ValueError("prefilled: got an empty prompt, expected a token or more")
    return State(prompt, len(prompt) - 1, len(prompt) - 1)


def drafted(state: State, drafts: Prefix) -> State:
    """The draft cache holds the text, and all drafts but the last."""
    seen = len(state.text) + max(len(drafts) - 1, 0)
    return replace(state, draft=seen, proposed=drafts)


def verified(state: State) -> State:
    """The target cache holds the text and all drafts."""
    return replace(state, target=len(state.text) + len(state.proposed))


def committed(state: State, turn: Turn) -> State:
    """Emitted tokens are part of the text. A turn that does not begin with the accepted drafts, or
    adds more than one token to them, is a ValueError."""
    a = turn.accepted
    if turn.emitted[:a] != state.proposed[:a] or not 0 <= len(turn.emitted) - a <= 1:
        raise ValueError(f"committed: {turn} after {state.proposed} were proposed")
    return replace(state, text=state.text + turn.emitted)


def rolled_back(before: State, state: State) -> State:
    """What the caches hold of the text but for its last token, and nothing beside it.

    *before* is the state before the commit: its proposed tokens are what the caches hold past the
    old text, of which those that were emitted may stay.
    """
    kept = len(before.text) + _common(state.text[len(before.text) :], before.proposed)
    most = min(kept, len(state.text) - 1)
    return State(state.text, min(state.target, most), min(state.draft, most))


def _common(one: Prefix, other: Prefix) -> int:
    """The length of the longest prefix that both have."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(one), len(other)))


def after(state: State, turn: Turn) -> State:
    """The state after a whole round."""
    seen = verified(drafted(state, turn.drafts))
    return rolled_back(seen, committed(seen, turn))


def states(prompt: Prefix, turns: Sequence[Turn]) -> list[State]:
    """The states after prefill and after each round."""
    found = [prefilled(prompt)]
    for turn in turns:
        found.append(after(found[-1], turn))
    return found


def looked_up(
    text: Prefix, k: int, longest: int, which: Literal["latest", "earliest"] = "latest"
) -> Prefix:
    """At most k tokens that followed the last n of *text* where they occurred before.

    n is the largest of longest ... 1 for which they did, with a token after them; none: no drafts.
    """
    for n in range(min(longest, len(text) - 1), 0, -1):
        starts = [j for j in range(len(text) - n) if text[j : j + n] == text[-n:]]
        if starts:
            j = starts[-1 if which == "latest" else 0]
            return text[j + n : j + n + k]
    return ()


def without_stop(law: Law, task: Task, emitted: int) -> Law:
    """The law of the token after *emitted* ones: before the minimum no stop token has a share."""
    if emitted >= task.minimum or not task.stop:
        return law
    return normalised([Fraction(0) if y in task.stop else w for y, w in enumerate(law)])


def processed(task: Task, target: Context) -> Context:
    """The target's law with the minimum in force."""
    return lambda run: without_stop(target(run), task, len(run))


def text_law(task: Task, target: Context) -> dict[Prefix, Fraction]:
    """The law of all that is emitted: what any decode loop must follow."""
    return autoregressive_law(processed(task, target), task.budget, task.stop)


def greedy_text(task: Task, target: Context) -> tuple[Prefix, Fraction]:
    """The likeliest tokens one after the other, and the least lead of one over the next likely."""
    run, lead, law = Prefix(), Fraction(1), processed(task, target)
    while not task.ended(run):
        p = law(run)
        first, second = sorted(p, reverse=True)[:2]
        run, lead = (*run, p.index(first)), min(lead, first - second)
    return run, lead


def greedy_turns(
    task: Task, target: Context, draft: Context | None, lookup: Lookup | None = None
) -> tuple[Turn, ...]:
    """The rounds of a greedy request whose draft model takes its likeliest tokens."""
    law, text, turns = processed(task, target), Prefix(), list[Turn]()
    while not task.ended(text):
        k, drafts = task.drafts(len(turns), len(text)), Prefix()
        if lookup is not None:
            drafts = lookup(text, k)
        else:
            assert draft is not None, "drafts that are not looked up have a law"
            for _ in range(k):
                drafts = (*drafts, first_maximum(draft(text + drafts)))
        rest, left = partial(_after, law, text), task.budget - len(text)
        outcome = greedy_round(rest, drafts, task.stop, left)
        turns.append(Turn(drafts, outcome.accepted, outcome.tokens))
        text += outcome.tokens
    return tuple(turns)


def _after(law: Context, text: Prefix, run: Prefix) -> Law:
    """The law after *text* and the tokens of the round."""
    return law(text + run)


def lengths_law(
    task: Task, target: Context, draft: Context | None, lookup: Lookup | None = None
) -> dict[Prefix, Fraction]:
    """The law of the numbers of tokens that the rounds commit, one after the other.

    A sampled request: round t accepts draft i with sum min(p, q), so that the survival products
    of its rows are the law of its length, given the text before it.
    """
    law: dict[Prefix, Fraction] = {}
    # Texts that were reached by rounds of the same lengths go on alike.
    reached: dict[tuple[Prefix, Prefix], Fraction] = {((), ()): Fraction(1)}
    while reached:
        further: dict[tuple[Prefix, Prefix], Fraction] = {}
        for (text, lengths), mass in reached.items():
            if task.ended(text):
                law[lengths] = law.get(lengths, Fraction(0)) + mass
                continue
            for tokens, w in _round(task, target, draft, lookup, text, len(lengths)):
                key = text + tokens, (*lengths, len(tokens))
                further[key] = further.get(key, Fraction(0)) + mass * w
        reached = further
    return law


def _round(
    task: Task,
    target: Context,
    draft: Context | None,
    lookup: Lookup | None,
    text: Prefix,
    t: int,
) -> Iterator[tuple[Prefix, Fraction]]:
    """What round t can emit after *text*."""
    k, law = task.drafts(t, len(text)), processed(task, target)

    def q(run: Prefix) -> Law:
        if lookup is None:
            assert draft is not None, "drafts that are not looked up have a law"
            return draft(text + run)
        return one_hot(drafts[len(run)], len(target(text)))

    drafts = () if lookup is None else lookup(text, k)
    k = k if lookup is None else len(drafts)
    left = task.budget - len(text)
    for outcome, w in round_law(partial(_after, law, text), q, k, task.stop, left).items():
        yield outcome.tokens, w


@dataclass(frozen=True)
class Uniforms:
    """A request's noise: draft and accept [T][K], draw [T][K + 1]."""

    draft: Sequence[Sequence[Fraction]]
    accept: Sequence[Sequence[Fraction]]
    draw: Sequence[Sequence[Fraction]]


def runs(
    task: Task,
    target: Context,
    draft: Context | None,
    noise: Uniforms,
    slack: Fraction = Fraction(0),
    lookup: Lookup | None = None,
) -> frozenset[tuple[Turn, ...]]:
    """The right rounds of a sampled request under this noise: one, or more where a uniform is so
    near to a breakpoint that laws which are off by *slack* decide otherwise."""
    law = processed(task, target)

    def proposals(text: Prefix, t: int, k: int) -> list[Prefix]:
        if lookup is not None:
            return [lookup(text, k)]
        assert draft is not None, "drafts that are not looked up have a law"
        some: list[Prefix] = [()]
        for i in range(k):
            laws, u = {run: draft(text + run) for run in some}, noise.draft[t][i]
            near = {run: slack * len(q) for run, q in laws.items()}
            some = [
                (*run, x)
                for run, q in laws.items()
                for x in outcomes(draw_pieces(q), u, slack=near[run])
            ]
        return some

    def walk(text: Prefix, turns: tuple[Turn, ...]) -> Iterator[tuple[Turn, ...]]:
        if task.ended(text):
            yield turns
            return
        t = len(turns)
        for drafts in proposals(text, t, task.drafts(t, len(text))):
            k, left = len(drafts), task.budget - len(text)
            if lookup is None:
                assert draft is not None, "drafts that are not looked up have a law"
                rows = [draft(text + drafts[:i]) for i in range(k)]
            else:
                rows = [one_hot(x, len(target(text))) for x in drafts]
            chance = Noise(noise.accept[t][:k], noise.draw[t][: k + 1])
            near = nearness(drafts, slack)
            rest = partial(_after, law, text)
            for outcome in decided_rounds(
                rest, rows, drafts, chance, task.stop, left, near, slack
            ):
                turn = Turn(drafts, outcome.accepted, outcome.tokens)
                yield from walk(text + outcome.tokens, (*turns, turn))

    return frozenset(walk((), ()))


def nearness(drafts: Prefix, slack: Fraction) -> Slack:
    """How far breakpoints move if no probability is off by more than *slack*: p(x) / q(x) by
    2 slack / q(x), a cumulated residual by 4 V slack / Z, a cumulated law by V slack."""

    def near(i: int, p: Law, q: Law | None) -> tuple[Fraction, Fraction]:
        if q is None:
            return Fraction(0), slack * len(p)
        lost = sum((max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)), Fraction(0))
        return 2 * slack / q[drafts[i]], 4 * len(p) * slack / lost if lost else Fraction(1)

    return near
