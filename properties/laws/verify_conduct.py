"""Laws of conduct of speculative verification: what is possible, memory, chance, refusals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch

from kernelassay.impls.contract import Unsupported, VerifyCall
from kernelassay.oracle.decisions import GRID
from kernelassay.oracle.speculative import Round, ended, limit_of
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.failures import (
    Accepted,
    InputMutated,
    Raised,
    WrongToken,
)
from kernelassay.properties.laws.refusing import validating
from kernelassay.properties.laws.verifying import as_columns, described, said
from kernelassay.properties.memory import check_written
from kernelassay.properties.property import law
from kernelassay.properties.speculative import strata as s
from kernelassay.properties.speculative.answers import answer, laid_out, verify
from kernelassay.properties.speculative.batches import Given, sampling_of
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.laws_of import target_chain
from kernelassay.properties.speculative.probes import Prober, unjudged
from kernelassay.properties.speculative.requests import Request, batch_of
from kernelassay.properties.speculative.sampling import generator, own_generator
from kernelassay.properties.subject import Subject

REPLICAS = 48
"""Requests of each kind, with noise of their own."""


def requests_of(subject: Subject, case: VerifyCase, replicas: int) -> list[Request]:
    """The case's requests, so often each, with drafts and noise that its seed gives.

    A uniform in eight is 0, another the largest float32 below 1.
    """
    chance = generator("requests", case)
    sampling = sampling_of(subject.capabilities)

    def uniform() -> Fraction:
        ends = {0: Fraction(0), 1: 1 - GRID}
        return ends.get(int(chance.integers(8)), int(chance.integers(2**24)) * GRID)

    made = []
    for _ in range(replicas):
        for r, k in enumerate(case.counts):
            prober = Prober(case, r, sampling, subject.dtype)
            run: tuple[int, ...] = ()
            for _ in range(k):
                can = prober.drafted(tuple(max(x, 0) for x in run))
                x = can[int(chance.integers(len(can)))]
                run = (*run, -1 if prober.skipped(len(run)) else x)
            draw = [uniform() for _ in range(k + 1)]
            bonus = prober.bonuses(tuple(max(x, 0) for x in run))
            given = bonus[int(chance.integers(len(bonus)))]
            race = None
            if sampling.draw == "race":
                race = tuple(Fraction(float(e)) for e in chance.standard_exponential(case.width))
            made.append(
                Request(
                    request=r,
                    drafts=run,
                    accept=tuple(uniform() for _ in range(k)),
                    draw=tuple(draw[:1] * (k + 1) if sampling.shared_draw else draw),
                    race=race,
                    bonus=given if sampling.bonus == "given" else None,
                    seed=int(chance.integers(2**62)),
                )
            )
    return made


def in_calls(subject: Subject, requests: Sequence[Request]) -> list[Sequence[Request]]:
    """All in one call, or one by one where the kernel takes no more."""
    if "requests" in subject.capabilities.supports:
        return [requests]
    return [[one] for one in requests]


@law(
    "speculative.possible",
    "What is emitted is possible: drafts as far as they are accepted, then a token that has a "
    "probability, nothing after a stop token or beyond the budget.",
    operation="verify",
    strata={**s.EXACT, **s.LIMITED},
)
def possible(subject: Subject, case: VerifyCase) -> None:
    every = requests_of(subject, case, REPLICAS)
    with own_generator(subject, generator("possible", case)):
        for some in in_calls(subject, every):
            came = verify(subject, batch_of(case, some))
            for n, one in enumerate(some):
                got = as_columns(case, came.round(n))
                if why := impossible(subject, case, one, got):
                    raise WrongToken(
                        f"request {one.request}, with drafts {tokens_of(case, one)}, emitted "
                        f"{said(case, got)}: {why}",
                        lines=described(
                            case,
                            one,
                            min(got.accepted, len(one.drafts)),
                            sampling_of(subject.capabilities),
                        ),
                    )


def impossible(subject: Subject, case: VerifyCase, one: Request, got: Round) -> str:
    """Why the round cannot come of this request; empty where it can."""
    sampling, k = sampling_of(subject.capabilities), case.counts[one.request]
    if sampling.rounds == "token" and not sampling.lossy:
        right = Prober(case, one.request, sampling, subject.dtype).right_of(one, unjudged)
        return "" if got in right else "no noise makes that of it"
    stop = () if case.stop is None else case.stop[one.request]
    budget = None if case.budget is None else case.budget[one.request]
    target = target_chain(case, one.request)
    limit = limit_of(target, [()] * k, k, budget)
    for i, y in enumerate(got.tokens):
        run = got.tokens[:i]
        if ended(run, stop, limit):
            return f"token {i} comes after the end"
        if not 0 <= y < case.width or not target(run)[y]:
            return f"token {i} has probability 0"
    if not got.tokens and limit:
        return "a round emits one token at least"
    return ""


def tokens_of(case: VerifyCase, one: Request) -> list[int]:
    return [case.columns[x] if x >= 0 else x for x in one.drafts]


@law(
    "speculative.memory",
    "Inputs are unchanged, nothing is written outside the outputs, every element is written.",
    operation="verify",
    strata={
        "distinct_laws": s.distinct_laws,
        "certain_drafts": s.certain_drafts,
        "no_drafts_first": s.no_drafts_first,
        "no_drafts_last": s.no_drafts_last,
        "large_vocabulary": s.large_vocabulary,
        **s.LIMITED,
    },
    weight=0.5,
)
def memory(subject: Subject, case: VerifyCase) -> None:
    for some in in_calls(subject, requests_of(subject, case, 3)):
        given = laid_out(subject, batch_of(case, some))
        with own_generator(subject, generator("memory", case)):
            came = verify(subject, given)
        if changed := given.mutated():
            raise InputMutated(
                f"{', '.join(changed)} changed during the call; expected every input, and the "
                f"guard zones around it, to be left alone"
            )
        came.check_guards()
        if came.watched != "opaque":
            for name in ("tokens", "accepted"):
                if (x := getattr(came.came, name)) is not None:
                    check_written(name, x)


BAD = {"a NaN": torch.nan, "a negative mass": -0.25, "an infinite mass": torch.inf}


@law(
    "speculative.bad_laws",
    "A row that is no law (NaN, negative, infinite or all zero) is refused.",
    operation="verify",
    rests_on=lambda c: (
        None
        if c.sampling and c.sampling.bad_laws == "refused"
        else 'rests on Sampling.bad_laws="refused", which is not declared'
    ),
    strata={"distinct_laws": s.distinct_laws, "no_drafts_first": s.no_drafts_first},
    weight=0.25,
)
def bad_laws(subject: Subject, case: VerifyCase) -> None:
    some = requests_of(subject, case, 1)
    for name in ("p", "q"):
        for what, value in [*BAD.items(), ("all masses 0", 0.0)]:
            given = laid_out(subject, batch_of(case, some))
            x = getattr(given.call, name)
            if x is None or not x.numel():
                continue
            spoilt = x.clone()
            # A row that is in use: the first, in padded packing of a request with drafts.
            first = next((r for r, one in enumerate(some) if one.drafts), 0)
            at = spoilt[first, 0] if x.ndim == 3 else spoilt[0]
            at.fill_(0.0) if value == 0 else at[-1:].fill_(value)
            bad = replace(given.call, **{name: spoilt})
            _refused(subject, replace(given, call=bad), f"{what} in a row of {name}")


def _refused(subject: Subject, given: Given, what: str) -> None:
    try:
        answer(subject, given)
    except (Raised, Unsupported):
        return
    raise Accepted(
        f"{subject.name} answered a call with {what}; expected an exception, "
        f'since it declares Sampling.bad_laws="refused"'
    )


@law(
    "speculative.declines",
    "A call that needs a declined feature is refused with Unsupported, never answered.",
    operation="verify",
    rests_on=lambda c: (
        None if c.declines & set(s.NEEDING) else "declines nothing that a call could need"
    ),
    strata={"declined": s.declined},
    weight=0.5,
)
def declines(subject: Subject, case: VerifyCase) -> None:
    domain = domain_of(subject)
    some = requests_of(subject, case, 1)
    try:
        answer(subject, laid_out(subject, batch_of(case, some)))
    except Unsupported:
        return
    needed = ", ".join(f for f in lacking(case, domain) if f in domain.declines)
    raise Accepted(
        f"{subject.name} answered a call that needs {needed}, which it declines; "
        f"expected Unsupported. Refuse it, or declare it as supported"
    )


@law(
    "speculative.validates",
    "Malformed calls raise.",
    operation="verify",
    rests_on=validating,
    strata={"malformed": s.malformed},
    weight=0.5,
)
def validates(subject: Subject, case: VerifyCase) -> None:
    some = requests_of(subject, case, 1)
    given = laid_out(subject, batch_of(case, some))
    ways = malformed_calls(given.call)
    what = [*ways][case.seed % len(ways)]
    try:
        answer(subject, replace(given, call=replace(given.call, **ways[what]())))
    except (Raised, Unsupported):
        return
    raise Accepted(
        f"{subject.name} answered a malformed call: {what}; expected an exception, since it "
        f"declares Conventions.validates_calls"
    )


def malformed_calls(call: VerifyCall) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is wrong with a call, and the fields that make it so."""
    V = call.p.shape[-1]

    def beyond(x: torch.Tensor, value: int) -> torch.Tensor:
        return torch.full_like(x, value)

    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "p has one row too few": lambda: {"p": call.p[:-1]},
        "offsets do not begin at 0": lambda: {"offsets": call.offsets + 1},
        "offsets count down": lambda: {"offsets": call.offsets.flip(0)},
        f"a draft is {V}, and V = {V}": lambda: {"drafts": beyond(call.drafts, V)},
        "a draft is -2": lambda: {"drafts": beyond(call.drafts, -2)},
        "drafts are floating point": lambda: {"drafts": call.drafts.float()},
    }
    if call.q is not None:
        q = call.q
        ways["q has one token less than p"] = lambda: {"q": q[..., :-1]}
        ways["q has one row too few"] = lambda: {"q": q[:-1]}
    if call.accept is not None:
        accept = call.accept
        ways["there are no acceptance uniforms"] = lambda: {"accept": None}
        ways["a uniform is 1.5"] = lambda: {"accept": torch.full_like(accept, 1.5)}
    if call.seeds is not None:
        seeds = call.seeds
        ways["there is a seed too few"] = lambda: {"seeds": seeds[:-1]}
    return ways
