"""Laws of a verification's noise: it repeats, is each request's own, moves no other generator."""

from fractions import Fraction

import torch

from kernelassay.impls.contract import Capabilities
from kernelassay.properties.failures import Different, NonDeterministic
from kernelassay.properties.laws.verify_conduct import in_calls, requests_of, tokens_of
from kernelassay.properties.laws.verifying import as_columns, said
from kernelassay.properties.property import law
from kernelassay.properties.speculative import strata as s
from kernelassay.properties.speculative.answers import laid_out, verify
from kernelassay.properties.speculative.batches import sampling_of
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.laws_of import draft_chain, support, target_chain
from kernelassay.properties.speculative.requests import Request, batch_of
from kernelassay.properties.subject import Subject


def _brings_noise(c: Capabilities) -> str | None:
    """Why not all of the kernel's noise comes with the call."""
    if c.sampling is None or c.sampling.noise in ("global", "captured"):
        return "rests on noise that comes with the call, draws included; this is not declared"
    return None


def _repeats(c: Capabilities) -> str | None:
    if why := _brings_noise(c):
        return why
    return None if c.conventions.deterministic else "deterministic is not declared"


@law(
    "speculative.deterministic",
    "The same call, seeds and uniforms included, gives the same tokens.",
    operation="verify",
    rests_on=_repeats,
    strata={"distinct_laws": s.distinct_laws, "certain_drafts": s.certain_drafts},
    weight=0.5,
)
def deterministic(subject: Subject, case: VerifyCase) -> None:
    for some in in_calls(subject, requests_of(subject, case, 8)):
        first, *others = [verify(subject, batch_of(case, some)) for _ in range(4)]
        for again in others:
            if not torch.equal(first.tokens, again.tokens):
                n = int((first.tokens != again.tokens).any(1).nonzero()[0])
                raise NonDeterministic(
                    f"two equal calls emitted {said(case, as_columns(case, first.round(n)))} and "
                    f"{said(case, as_columns(case, again.round(n)))} for request {n}; the kernel "
                    f"declares Conventions.deterministic"
                )


def _seeds_its_requests(c: Capabilities) -> str | None:
    if why := _brings_noise(c):
        return why
    if c.sampling and c.sampling.noise == "seeded" and not c.sampling.seeded_requests:
        return "rests on Sampling.seeded_requests, which is not declared"
    return None


@law(
    "speculative.requests_apart",
    "A request emits the same alone, among others and in another place.",
    operation="verify",
    requires=["requests"],
    rests_on=_seeds_its_requests,
    strata={
        "several_requests": s.several_requests,
        "no_drafts_first": s.no_drafts_first,
        "no_drafts_last": s.no_drafts_last,
        "greedy_and_sampled": s.greedy_and_sampled,
        "skipped_drafts": s.skipped_drafts,
        **s.LIMITED,
    },
)
def requests_apart(subject: Subject, case: VerifyCase) -> None:
    every = requests_of(subject, case, 4)
    together = verify(subject, batch_of(case, every))
    behind = verify(subject, batch_of(case, every[::-1]))
    for n, one in enumerate(every):
        kinds = {"in another place": behind.round(len(every) - 1 - n)}
        alone = len(one.drafts) > 0 or "drafts.none" in subject.capabilities.supports
        if n < len(case.counts) and alone:
            kinds["alone"] = verify(subject, batch_of(case, [one])).round(0)
        for what, other in kinds.items():
            if other != together.round(n):
                first, second = (as_columns(case, x) for x in (together.round(n), other))
                raise Different(
                    f"request {n} of {len(every)}, with drafts {tokens_of(case, one)}, emitted "
                    f"{said(case, first)}, and {what} {said(case, second)}"
                )


@law(
    "speculative.default_generator",
    "A kernel whose noise comes with the call leaves torch's default generators alone.",
    operation="verify",
    rests_on=_brings_noise,
    strata={"distinct_laws": s.distinct_laws, "certain_drafts": s.certain_drafts},
    weight=0.25,
)
def default_generator(subject: Subject, case: VerifyCase) -> None:
    def states() -> list[torch.Tensor]:
        found = [torch.random.get_rng_state()]
        return found + ([torch.cuda.get_rng_state()] if subject.home == "cuda" else [])

    for some in in_calls(subject, requests_of(subject, case, 2)):
        before = states()
        verify(subject, batch_of(case, some))
        if any(not torch.equal(a, b) for a, b in zip(before, states(), strict=True)):
            raise Different(
                f"torch's default generator moved during the call; {subject.name} declares that "
                f"its noise is {sampling_of(subject.capabilities).noise}"
            )


def _has_generators(c: Capabilities) -> str | None:
    if c.sampling is not None and c.sampling.noise == "generators":
        return None
    return 'rests on Sampling.noise="generators", which is not declared'


@law(
    "speculative.own_generators",
    "A call moves on the generators of the requests that draw, and no other.",
    operation="verify",
    rests_on=_has_generators,
    strata={
        "distinct_laws": s.distinct_laws,
        "greedy_and_sampled": s.greedy_and_sampled,
        **s.LIMITED,
    },
    weight=0.5,
)
def own_generators(subject: Subject, case: VerifyCase) -> None:
    for some in in_calls(subject, requests_of(subject, case, 2)):
        given = laid_out(subject, batch_of(case, some))
        generators = given.call.generators or ()
        before = [g.get_state() for g in generators]
        verify(subject, given)
        for n, (one, state, g) in enumerate(zip(some, before, generators, strict=True)):
            r, moved = one.request, not torch.equal(state, g.get_state())
            silent = r in case.greedy or (case.budget is not None and case.budget[r] == 0)
            if silent and moved:
                why = "greedy" if r in case.greedy else "without a budget"
                raise Different(f"the generator of request {n}, which is {why}, moved")
            if _takes_chance(case, one) and not (silent or moved):
                raise Different(
                    f"the generator of request {n} did not move, and its next round has the same "
                    f"noise; drafts {tokens_of(case, one)}"
                )


def _takes_chance(case: VerifyCase, one: Request) -> bool:
    """Whether the first decision of a request is one of chance, whatever is drawn when."""
    p = target_chain(case, one.request)(())
    if not one.drafts or one.drafts[0] < 0:
        return len(support(p)) > 1
    x = one.drafts[0]
    q = Fraction(1) if case.q is None else draft_chain(case, one.request)(())[x]
    return 0 < p[x] < q
