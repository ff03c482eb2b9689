"""Exact laws of decode loops: what is emitted, where it ends, what the caches hold."""

from collections.abc import Callable, Sequence
from fractions import Fraction

from kernelassay.impls.contract import Capabilities
from kernelassay.impls.decoding import DecodeResult, Step
from kernelassay.oracle.decoding import Turn, greedy_text, states
from kernelassay.oracle.speculative import Prefix
from kernelassay.properties.decoding import strata as s
from kernelassay.properties.decoding.answers import (
    call_of,
    decode,
    decoding_of,
    models_of,
)
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.decoding.labels import clear
from kernelassay.properties.decoding.rehearsal import rehearsed
from kernelassay.properties.decoding.shown import listed, run_lines, texts
from kernelassay.properties.failures import (
    Different,
    WrongState,
    WrongToken,
)
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject

REPLICAS = 12
"""Runs of a case, each with noise of its own, where only the form of the text is judged."""


def injected(c: Capabilities) -> str | None:
    """Why a law of given uniforms does not apply."""
    if c.decoding is not None and c.decoding.noise != "injected":
        return 'rests on Decoding.noise="injected", which is not declared'
    return token_by_token(c)


def token_by_token(c: Capabilities) -> str | None:
    """Why rounds need not be those of drafts judged one by one."""
    given = c.decoding is not None and c.decoding.rounds == "token"
    return None if given else 'rests on Decoding.rounds="token", which is not declared'


def drafts_known(subject: Subject, case: DecodeCase) -> bool:
    """Whether the oracle knows how the drafts of the case are made."""
    return case.drafts != "lookup" or decoding_of(subject).lookup != "other"


def trace_of(result: DecodeResult, r: int) -> tuple[Step, ...] | None:
    """The rounds of request r, if they are told."""
    return None if result.trace is None else result.trace[r]


def turns_of(trace: Sequence[Step]) -> tuple[Turn, ...]:
    """The rounds without their caches."""
    return tuple(Turn(step.drafts, step.accepted, step.emitted) for step in trace)


@law(
    "transactions.greedy",
    "A greedy request emits the target's likeliest tokens, whatever is drafted.",
    operation="decode",
    requires=("decode.greedy",),
    strata=s.GREEDY,
)
def greedy(subject: Subject, case: DecodeCase) -> None:
    result, models = decode(subject, call_of(subject, case)), models_of(subject, case)
    for r in case.greedy:
        if not clear(models, r):
            continue
        expected, _ = greedy_text(models.task(r), models.target(r))
        _same_text(case, r, result, expected, "the target's likeliest tokens are others")


def _same_text(case: DecodeCase, r: int, result: DecodeResult, expected: Prefix, why: str) -> None:
    got = tuple(result.tokens[r])
    if got == expected:
        return
    trace, at, done = trace_of(result, r), _first_difference(got, expected), 0
    wrong = None
    for t, step in enumerate(trace or ()):
        done += len(step.emitted)
        if done > at or t == len(trace or ()) - 1:
            wrong = t
            break
    lines = run_lines(case, r, trace, wrong=wrong) + texts(got, expected)
    raise WrongToken(f"request {r} emits {listed(got)}: {why}", lines=lines)


def _first_difference(one: Prefix, other: Prefix) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@law(
    "transactions.injected",
    "Under given uniforms the rounds are the ones that these uniforms decide.",
    operation="decode",
    rests_on=injected,
    requires=("decode.sampled",),
    strata=s.RUNS | s.LIMITED,
    weight=1.5,
)
def given_uniforms(subject: Subject, case: DecodeCase) -> None:
    if not drafts_known(subject, case):
        return
    result, models = decode(subject, call_of(subject, case)), models_of(subject, case)
    slack = Fraction(models.decoding.slack)
    for r in range(case.requests):
        if r in case.greedy:
            continue
        right, trace = rehearsed(models, r, slack), trace_of(result, r)
        got = tuple(result.tokens[r])
        if trace is None:
            if got not in {_text(turns) for turns in right}:
                _same_text(case, r, result, _text(min(right, key=repr)), "the uniforms say else")
        elif (came := turns_of(trace)) not in right or got != _text(came):
            nearest = max(right, key=lambda turns: _shared(came, turns))
            wrong = _shared(came, nearest)
            raise WrongToken(
                f"request {r} emits {listed(got)}; its uniforms decide "
                f"{listed(_text(nearest))}, and round {wrong} is another",
                lines=run_lines(case, r, trace, nearest, wrong),
            )


def _text(turns: Sequence[Turn]) -> Prefix:
    return tuple(y for turn in turns for y in turn.emitted)


def _shared(one: Sequence[Turn], other: Sequence[Turn]) -> int:
    """How many rounds both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((t for t, (a, b) in pairs if a != b), min(len(one), len(other)))


def _texts(
    subject: Subject,
    case: DecodeCase,
    wrong: Callable[[int, Prefix], tuple[int, str] | None],
) -> None:
    """No text of REPLICAS runs is *wrong*: a function that says from which token on, and why."""
    together = "decode.requests" in subject.capabilities.supports
    for runs in [range(REPLICAS)] if together else [[i] for i in range(REPLICAS)]:
        result = decode(subject, call_of(subject, case, runs=runs))
        for at_call, text in enumerate(result.tokens):
            r = at_call % case.requests
            if (found := wrong(r, tuple(text))) is None:
                continue
            at, why = found
            trace, done, broke = trace_of(result, at_call), 0, None
            for t, step in enumerate(trace or ()):
                if broke is None and done + len(step.emitted) > at:
                    broke = t
                done += len(step.emitted)
            last = None if trace is None else len(trace) - 1
            lines = run_lines(case, r, trace, wrong=last if broke is None else broke)
            lines.append(f"  emitted: {listed(text)}")
            raise WrongToken(f"request {r} emits {listed(text)}: {why}", lines=lines)


@law(
    "transactions.stop",
    "A stop token, accepted or drawn, is the last token; without one the budget is used up.",
    operation="decode",
    requires=("decode.stop",),
    strata={
        name: s.LIMITED[name]
        for name in ("stop_accepted", "stop_before_drafts_end", "stop_corrected", "stop_bonus")
    },
    weight=0.5,
)
def stop(subject: Subject, case: DecodeCase) -> None:
    def wrong(r: int, text: Prefix) -> tuple[int, str] | None:
        at = next((i for i, y in enumerate(text) if y in case.stops(r)), None)
        if at is None and len(text) < case.budget[r]:
            return len(text), f"{len(text)} tokens of {case.budget[r]}, and no stop token"
        if at is not None and at + 1 < len(text):
            return at + 1, f"{listed(text[at + 1 :])} follows the stop token {text[at]}"
        return None

    _texts(subject, case, wrong)


@law(
    "transactions.budget",
    "No more tokens are emitted than the budget allows, and no fewer without a stop token.",
    operation="decode",
    strata={
        "budget_inside": s.LIMITED["budget_inside"],
        "budget_at_end": s.LIMITED["budget_at_end"],
        "budget_of_one": s.LIMITED["budget_of_one"],
        "no_budget": s.LIMITED["no_budget"],
        "budgets_differ": s.budgets_differ,
        "ends_apart": s.ends_apart,
    },
    weight=1.0,
)
def budget(subject: Subject, case: DecodeCase) -> None:
    def wrong(r: int, text: Prefix) -> tuple[int, str] | None:
        if len(text) > case.budget[r]:
            return case.budget[r], f"{len(text)} tokens, where the budget is {case.budget[r]}"
        ended = bool(text) and text[-1] in case.stops(r)
        if len(text) < case.budget[r] and not ended:
            return len(
                text
            ), f"{len(text)} tokens of {case.budget[r]}, and no stop token at the end"
        return None

    _texts(subject, case, wrong)


@law(
    "transactions.minimum",
    "No stop token is emitted before the minimum, accepted, drawn or as a bonus.",
    operation="decode",
    requires=("decode.minimum",),
    strata={"minimum": s.minimum},
    weight=0.5,
)
def minimum(subject: Subject, case: DecodeCase) -> None:
    def wrong(r: int, text: Prefix) -> tuple[int, str] | None:
        early = text[: case.least(r)]
        at = next((i for i, y in enumerate(early) if y in case.stops(r)), None)
        if at is None:
            return None
        return at, f"token {at} is the stop token {text[at]}, before {case.least(r)} tokens"

    _texts(subject, case, wrong)


def requests_seeded(c: Capabilities) -> str | None:
    """Why neighbours may matter."""
    if c.decoding is not None and c.decoding.noise == "global":
        return 'rests on noise of each request\'s own, and Decoding.noise="global" is declared'
    if c.decoding is not None and not c.decoding.seeded_requests:
        return "rests on Decoding.seeded_requests, which is not declared"
    return None


@law(
    "transactions.requests_apart",
    "A request emits what it emits alone, whatever its neighbours are and when they end.",
    operation="decode",
    requires=("decode.requests",),
    rests_on=requests_seeded,
    strata={
        "several_requests": s.several_requests,
        "ragged_prompts": s.ragged_prompts,
        "greedy_and_sampled": s.greedy_and_sampled,
        "ends_apart": s.ends_apart,
        "budgets_differ": s.budgets_differ,
    },
)
def requests_apart(subject: Subject, case: DecodeCase) -> None:
    together = decode(subject, call_of(subject, case))
    for r in range(case.requests):
        alone = decode(subject, call_of(subject, case, [r]))
        got, expected = tuple(together.tokens[r]), tuple(alone.tokens[0])
        if got != expected:
            lines = run_lines(case, r, trace_of(together, r)) + texts(got, expected)
            raise Different(
                f"request {r} emits {listed(got)} beside the others and {listed(expected)} alone",
                lines=lines,
            )


@law(
    "transactions.trace",
    "After each round the caches hold the text but for its last token, and nothing rejected.",
    operation="decode",
    requires=("decode.trace",),
    strata=s.RUNS | s.LIMITED,
)
def trace(subject: Subject, case: DecodeCase) -> None:
    result, models = decode(subject, call_of(subject, case)), models_of(subject, case)
    for r in range(case.requests):
        came = trace_of(result, r) or ()
        lookup, task, text = models.lookup(r), models.task(r), Prefix()
        for t, step in enumerate(came):
            k = task.drafts(t, len(text))
            drafts: Prefix | None = None
            if lookup is not None:
                drafts = lookup(text, k) if drafts_known(subject, case) else step.drafts[:k]
            if why := wrong_round(step, k, drafts, task.ended(text)):
                right = turns_of(came[:t])
                raise WrongState(
                    f"request {r}, round {t}: {why}", lines=run_lines(case, r, came, right, t)
                )
            text += step.emitted
        if text != tuple(result.tokens[r]):
            raise WrongState(
                f"request {r}: its rounds emit {listed(text)}, its text is "
                f"{listed(result.tokens[r])}",
                lines=run_lines(case, r, came),
            )
        _caches_hold(case, r, came, models.decoding.caches)


def wrong_round(step: Step, k: int, drafts: Prefix | None, ended: bool) -> str:
    """What is wrong with the account of a round for which k drafts are due, or ""."""
    a, emitted = step.accepted, step.emitted
    if ended:
        return "the request had ended"
    if drafts is not None and step.drafts != drafts:
        return f"drafts {listed(step.drafts)}; looked up, they are {listed(drafts)}"
    if drafts is None and len(step.drafts) != k:
        return f"{len(step.drafts)} drafts, where {k} are due"
    if emitted[:a] != step.drafts[:a] or not 0 <= len(emitted) - a <= 1 or not emitted:
        return (
            f"{listed(emitted)} is emitted with {a} of the drafts {listed(step.drafts)}; "
            f"expected these and at most one token more"
        )
    return ""


def _caches_hold(case: DecodeCase, r: int, came: Sequence[Step], declared: str) -> None:
    """The lengths that the trace tells are those that its own rounds lead to."""
    turns = turns_of(came)
    for t, (step, state) in enumerate(zip(came, states(case.prompts[r], turns)[1:], strict=True)):
        pairs = {"target": (step.target, state.target), "draft": (step.draft, state.draft)}
        for name, (got, expected) in pairs.items():
            if got is None or got == expected:
                continue
            if declared == "prefix" and 0 <= got <= expected:
                continue
            more = got - expected
            why = (
                f"{more} too many: they are no part of the text"
                if more > 0
                else (f"{-more} too few: the text has a hole for the {name} model")
            )
            raise WrongState(
                f"request {r}: after round {t} the {name} cache holds {got} tokens, expected "
                f"{expected}, of a text of {len(state.text)}; {why}",
                lines=run_lines(case, r, came, turns, t),
            )
