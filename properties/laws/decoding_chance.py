"""Statistical laws of decode loops: emitted texts follow the target's own autoregressive law."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import TypeVar

import numpy as np
import torch

from kernelassay.impls.decoding import DecodeResult, Uniforms
from kernelassay.oracle.decoding import lengths_law, text_law
from kernelassay.oracle.speculative import Prefix
from kernelassay.oracle.statistics import plan, two_stages
from kernelassay.properties.case import literal
from kernelassay.properties.decoding import strata as s
from kernelassay.properties.decoding.answers import call_of, decode, decoding_of, models_of
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.decoding.shown import heading
from kernelassay.properties.laws.decoding import drafts_known, token_by_token
from kernelassay.properties.laws.sampling import exactly, wrong
from kernelassay.properties.property import law
from kernelassay.properties.speculative.sampling import generator, own_generator
from kernelassay.properties.subject import Subject

T = TypeVar("T", bound=Hashable)
EFFECT, EFFECT_ALONE = 0.1, 0.3
"""The total variation that a case's samples find, all but surely; the second for a kernel that
takes one request a call."""
MOST_REQUESTS = 4096
GRID = 2**24


def sampled(subject: Subject, case: DecodeCase, purpose: str, n: int) -> list[DecodeResult]:
    """n runs of the case's first request, in as many calls as the kernel needs; all chance comes
    from the case and *purpose*."""
    c, chance = subject.capabilities, generator(purpose, literal(case))
    most = min(MOST_REQUESTS, c.max_requests) if "decode.requests" in c.supports else 1
    T, K = max(case.budget), max(case.schedule)
    found = []
    with own_generator(subject, chance):
        for start in range(0, n, most):
            R = min(most, n - start)
            sizes = {"draft": K, "accept": K, "draw": K + 1}
            noise = {
                name: torch.as_tensor(chance.integers(GRID, size=(R, T, size)) / GRID)
                for name, size in sizes.items()
            }
            # One after the other, as requests are mostly numbered: streams must not overlap.
            first = int(chance.integers(2**61))
            kind = decoding_of(subject).noise
            call = call_of(
                subject,
                case,
                [0] * R,
                noise=Uniforms(**noise) if kind == "injected" else None,
                seeds=range(first, first + R) if kind == "seeded" else None,
            )
            found.append(decode(subject, call))
    return found


def follows(
    subject: Subject,
    case: DecodeCase,
    name: str,
    expected: Mapping[T, Fraction],
    counted: Callable[[DecodeResult], list[T]],
) -> None:
    """What is counted follows its law, or it is a `WrongDistribution`."""
    cells = [cell for cell, mass in expected.items() if mass]
    at, strange, seen = {cell: i for i, cell in enumerate(cells)}, Counter[T](), Counter[T]()
    laws = np.array([*(float(expected[cell]) for cell in cells), 0.0])  # the last: impossible
    laws /= laws.sum()

    def sample(stage: str, look: int, n: int) -> np.ndarray:
        if look == 0:
            seen.clear()
        counts = np.zeros(len(laws), dtype=np.int64)
        for result in sampled(subject, case, f"{name} {stage} {look}", n):
            for cell in counted(result):
                seen[cell] += 1
                counts[at.get(cell, -1)] += 1
                if cell not in at:
                    strange[cell] += 1
        return counts

    alone = "decode.requests" not in subject.capabilities.supports
    verdict = two_stages(sample, laws, plan(len(cells), EFFECT_ALONE if alone else EFFECT))
    if verdict.rejected:
        strangest = ", ".join(str(list(c)) for c, _ in strange.most_common(2)) or "impossible"  # type: ignore[call-overload]
        names = [str(list(cell)) for cell in cells]  # type: ignore[call-overload]
        failure = wrong(name, verdict, [*names, strangest])
        failure.facts["lines"] = [
            heading(case, 0),
            *failure.facts["lines"],
            *exactly(seen, at, laws),
        ]
        raise failure


def compiled(subject: Subject) -> str | None:
    """Why samples are not taken here."""
    slow = subject.device == "interpreter"
    return "thousands of samples, interpreted, take minutes" if slow else None


@law(
    "transactions.sequence",
    "Emitted texts follow the target's autoregressive law, with its stop tokens and limits.",
    operation="decode",
    requires=("decode.sampled",),
    strata=s.SAMPLED,
    weight=0.3,
    here=compiled,
)
def sequence(subject: Subject, case: DecodeCase) -> None:
    models = models_of(subject, case)
    expected = text_law(models.task(0), models.target(0))
    follows(subject, case, "emitted texts", expected, lambda x: [tuple(t) for t in x.tokens])


@law(
    "transactions.commit_length",
    "The numbers of tokens that rounds commit follow the survival products of the drafts' laws.",
    operation="decode",
    requires=("decode.sampled", "decode.trace"),
    rests_on=token_by_token,
    strata=s.SAMPLED,
    weight=0.3,
    here=compiled,
)
def commit_length(subject: Subject, case: DecodeCase) -> None:
    if not drafts_known(subject, case):
        return
    models = models_of(subject, case)
    task, target = models.task(0), models.target(0)
    expected = lengths_law(task, target, models.draft(0), models.lookup(0))

    def lengths(result: DecodeResult) -> list[Prefix]:
        return [tuple(len(step.emitted) for step in rounds) for rounds in result.trace or ()]

    follows(subject, case, "tokens of the rounds", expected, lengths)
