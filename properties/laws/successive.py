"""A statistical law of rounds that follow each other: what one used up, the next does not use.

A kernel's own noise is a stream that requests and calls take their parts of. Where parts overlap
by a single uniform each round still follows its law, and so do the tokens that are drawn; what
depends on the round before is whether the next draft is accepted.
"""

from collections import Counter
from fractions import Fraction

import numpy as np

from kernelassay.impls.contract import Capabilities
from kernelassay.oracle.speculative import Law, length_law, round_law
from kernelassay.properties.laws.sampling import Group, decided, lossless, token_by_token
from kernelassay.properties.property import law
from kernelassay.properties.speculative import strata as s
from kernelassay.properties.speculative.batches import sampling_of
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.laws_of import draft_chain, target_chain
from kernelassay.properties.speculative.sampling import Sampler, generator, own_generator
from kernelassay.properties.subject import Subject

ROUNDS = 384


def own_noise(c: Capabilities) -> str | None:
    """Why a kernel has no stream that rounds could share."""
    if c.sampling is not None and c.sampling.noise == "injected":
        return 'rests on noise of its own, and noise="injected" is declared'
    return lossless(c)


@law(
    "speculative.calls_apart",
    "A round follows its law whatever the round before it was, of the call or of its neighbour.",
    operation="verify",
    rests_on=own_noise,
    strata={"even_odds": s.even_odds},
    weight=0.1,
)
def calls_apart(subject: Subject, case: VerifyCase) -> None:
    c = subject.capabilities
    sampler, chance = Sampler(subject, case, "calls_apart"), generator("calls_apart", case)
    chains = []
    with own_generator(subject, chance):
        if "requests" in c.supports:
            chains.append(("request", [sampler.call(chance, n) for n in sampler.sizes(ROUNDS)]))
        if sampling_of(c).noise == "global":
            chains.append(("call", [sampler.call(chance, 1) for _ in range(ROUNDS)]))
    decided([group for what, parts in chains for group in after(subject, case, what, parts)])


def after(
    subject: Subject, case: VerifyCase, what: str, parts: list[tuple[np.ndarray, ...]]
) -> list[Group]:
    """Accepted drafts and first tokens of rounds, by what the round before ended with."""
    tokens, accepted, lengths = (np.concatenate(x) for x in zip(*parts, strict=True))
    last = tokens[np.arange(len(tokens)), lengths - 1]
    ends = list(zip(accepted.tolist(), last.tolist(), strict=True))
    target, draft = target_chain(case, 0), draft_chain(case, 0)
    counted: dict[str, tuple[np.ndarray, Law]] = {"first token": (tokens[:, 0], target(()))}
    if token_by_token(subject.capabilities) is None:
        k = case.counts[0]
        lengths_law = length_law(round_law(target, draft, k))
        kept = tuple(lengths_law.get(a + 1, Fraction(0)) for a in range(k + 1))
        counted["drafts accepted"] = (accepted, kept)
    groups = []
    for name, (values, expected) in counted.items():
        by_end: dict[tuple[int, int], Counter[int]] = {}
        for end, value in zip(ends, values[1:].tolist(), strict=False):
            by_end.setdefault(end, Counter())[value] += 1
        groups += [
            (f"{name} after the {what} that accepted {a} and ended with {y}", counts, expected)
            for (a, y), counts in sorted(by_end.items())
        ]
    return groups
