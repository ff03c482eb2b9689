"""Laws of decode loops beside what a run emits: going on, log-probabilities, refusals."""

import math
from dataclasses import replace
from typing import Any

from kernelassay.impls.contract import Unsupported
from kernelassay.impls.decoding import DecodeCall
from kernelassay.properties.decoding import strata as s
from kernelassay.properties.decoding.answers import (
    answer,
    call_of,
    decode,
    decoding_of,
    models_of,
)
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.decoding.labels import clear
from kernelassay.properties.decoding.shown import listed, run_lines, texts
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.failures import (
    Accepted,
    Different,
    Raised,
    WrongToken,
    WrongValue,
)
from kernelassay.properties.laws.decoding import trace_of
from kernelassay.properties.laws.refusing import validating
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


@law(
    "transactions.one_by_one",
    "A run goes on as one that begins with the prompt and what it emitted up to there.",
    operation="decode",
    requires=("decode.greedy",),
    strata=s.GREEDY,
)
def one_by_one(subject: Subject, case: DecodeCase) -> None:
    whole, models = decode(subject, call_of(subject, case)), models_of(subject, case)
    for r in case.greedy:
        if not clear(models, r):
            continue
        text = tuple(whole.tokens[r])
        for n in range(1, len(text)):
            rest = DecodeCase(
                model=case.model,
                V=case.V,
                prompts=(case.prompts[r] + text[:n],),
                drafts=case.drafts,
                schedule=case.schedule,
                budget=(max(0, case.budget[r] - n),),
                stop=None if case.stop is None else (case.stop[r],),
                minimum=None if case.minimum is None else (max(0, case.least(r) - n),),
                greedy=(0,),
            )
            again = tuple(decode(subject, call_of(subject, rest)).tokens[0])
            if again != text[n:]:
                raise Different(
                    f"request {r} emits {listed(text)}; begun again after its first {n} tokens "
                    f"it emits {listed(again)}",
                    lines=run_lines(case, r, trace_of(whole, r)) + texts(text[n:], again),
                )


@law(
    "transactions.logprobs",
    "The log-probability of each token is that of the target's law, given all before it.",
    operation="decode",
    requires=("decode.logprobs",),
    strata={
        "near_drafts": s.RUNS["near_drafts"],
        "rolled_back": s.RUNS["rolled_back"],
        "lookup_match": s.RUNS["lookup_match"],
        "ragged_prompts": s.ragged_prompts,
        "minimum": s.minimum,
        "ends_apart": s.ends_apart,
        "stop_accepted": s.LIMITED["stop_accepted"],
    },
    weight=0.7,
)
def logprobs(subject: Subject, case: DecodeCase) -> None:
    result, models = decode(subject, call_of(subject, case)), models_of(subject, case)
    declared = decoding_of(subject)
    assert result.logprobs is not None  # the form was checked
    for r, text in enumerate(result.tokens):
        target = models.target(r) if declared.logprobs == "raw" else models.processed(r)
        for i, (y, got) in enumerate(zip(text, result.logprobs[r], strict=True)):
            p = target(tuple(text[:i]))
            if not p[y]:
                raise WrongToken(
                    f"request {r}: token {i} is {y}, which has probability 0",
                    lines=run_lines(case, r, trace_of(result, r)),
                )
            expected = math.log(p[y])
            allowed = declared.slack / float(p[y]) + 2.0**-22 * (1 - expected)
            ratio = abs(got - expected) / allowed
            subject.observe(ratio, case)
            if not ratio <= 1:
                raise WrongValue(
                    f"request {r}: log-probability of token {i}, {y}, is {got:.6f}, expected "
                    f"{expected:.6f}, allowed error {allowed:.1e}",
                    ratio=ratio,
                    lines=run_lines(case, r, trace_of(result, r)),
                )


@law(
    "transactions.decode_declines",
    "A call that needs a declined feature is refused with Unsupported, never answered.",
    operation="decode",
    rests_on=lambda c: (
        None if c.declines & set(s.NEEDING) else "declines nothing that a call could need"
    ),
    strata={"declined": s.declined},
    weight=0.5,
)
def declines(subject: Subject, case: DecodeCase) -> None:
    try:
        answer(subject, call_of(subject, case))
    except Unsupported:
        return
    domain = domain_of(subject)
    needed = ", ".join(f for f in lacking(case, domain) if f in domain.declines)
    raise Accepted(
        f"{subject.name} answered a call that needs {needed}, which it declines; "
        f"expected Unsupported. Refuse it, or declare it as supported"
    )


@law(
    "transactions.decode_validates",
    "Malformed calls raise.",
    operation="decode",
    rests_on=validating,
    strata={"malformed": s.malformed},
    weight=0.1,
)
def validates(subject: Subject, case: DecodeCase) -> None:
    call = call_of(subject, case)
    for what, fields in malformed_calls(call).items():
        try:
            answer(subject, replace(call, **fields))
        except (Raised, Unsupported):
            continue
        raise Accepted(
            f"{subject.name} answered a malformed call: {what}; expected an exception, since it "
            f"declares Conventions.validates_calls"
        )


def malformed_calls(call: DecodeCall) -> dict[str, dict[str, Any]]:
    """What is wrong with a call, and the fields that make it so."""
    V, first, *rest = call.vocabulary, *call.prompts
    return {
        "an empty prompt": {"prompts": ((), *rest)},
        f"a token of a prompt is {V}, and V = {V}": {"prompts": ((*first, V), *rest)},
        "a token of a prompt is -1": {"prompts": ((-1, *first), *rest)},
        "a budget is missing": {"budget": call.budget[1:]},
        "a budget is -1": {"budget": (-1, *call.budget[1:])},
        "stop tokens of a request are missing": {"stop": call.stop[1:]},
        "a number of drafts is -1": {"schedule": (-1, *call.schedule)},
        "there is no schedule": {"schedule": ()},
        "a request's greedy flag is missing": {"greedy": call.greedy[1:]},
    }
