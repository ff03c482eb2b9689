"""Statistical laws of speculative verification: what is emitted follows the target's law."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import TypeVar

import numpy as np

from kernelassay.impls.contract import Capabilities
from kernelassay.oracle.independence import log_matches
from kernelassay.oracle.pooling import exact_p
from kernelassay.oracle.speculative import (
    Law,
    Round,
    autoregressive_law,
    length_law,
    overlap,
    residual,
    round_law,
)
from kernelassay.oracle.statistics import (
    EACH,
    Verdict,
    decide,
    log_average,
    log_evalue,
    plan,
    strength,
    two_stages,
)
from kernelassay.properties.case import CaseError
from kernelassay.properties.failures import WrongDistribution
from kernelassay.properties.property import law
from kernelassay.properties.speculative import strata as s
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.laws_of import draft_chain, law_of_row, target_chain
from kernelassay.properties.speculative.sampling import (
    Sampler,
    completed,
    generator,
    own_generator,
)
from kernelassay.properties.subject import Subject

T = TypeVar("T", bound=Hashable)
Group = tuple[str, Counter[int], Law]
"""What is counted, how often each token came, and their law."""
EFFECT = 0.05
"""The total variation that a case's samples find, all but surely."""
EFFECT_ALONE = 0.2
"""The same for a kernel that takes one request a call: sixteen times fewer samples."""
MOST_LINES = 8
WEIGHT = 0.5


def lossless(c: Capabilities) -> str | None:
    """Why a kernel's tokens need not follow the target's law."""
    if c.sampling is not None and c.sampling.lossy:
        return f"declared lossy: {c.sampling.lossy}"
    if c.sampling is not None and c.sampling.noise == "captured":
        return "what is drawn from captured weights is not the kernel's: they are judged exactly"
    return None


def token_by_token(c: Capabilities) -> str | None:
    """Why its rounds need not follow the law of token-wise verification."""
    if c.sampling is not None and c.sampling.rounds != "token":
        return 'rests on Sampling.rounds="token", which is not declared'
    return lossless(c)


def effect_of(subject: Subject) -> float:
    """The total variation that is looked for."""
    return EFFECT if "requests" in subject.capabilities.supports else EFFECT_ALONE


def follows(
    subject: Subject,
    case: VerifyCase,
    name: str,
    expected: Mapping[T, Fraction],
    counted: Callable[[Sampler, str, int, int], Counter[T]],
) -> None:
    """Counts of the cells follow their law, or it is a `WrongDistribution`."""
    cells = [cell for cell, mass in expected.items() if mass]
    masses = [*(float(expected[cell]) for cell in cells), 0.0]  # the last: what is impossible
    sampler, at = Sampler(subject, case, name), {cell: i for i, cell in enumerate(cells)}
    strange: Counter[T] = Counter()
    seen = Counter[T]()  # of the stage that is under way

    def sample(stage: str, look: int, n: int) -> np.ndarray:
        counts = np.zeros(len(masses), dtype=np.int64)
        if look == 0:
            seen.clear()
        for cell, c in counted(sampler, stage, look, n).items():
            seen[cell] += c
            if cell not in at:
                strange[cell] += c
            counts[at.get(cell, -1)] += c
        return counts

    laws = np.array(masses) / math.fsum(masses)
    verdict = two_stages(sample, laws, plan(len(cells), effect_of(subject)))
    if verdict.rejected:
        strangest = ", ".join(said(cell) for cell, _ in strange.most_common(2)) or "impossible"
        failure = wrong(name, verdict, [*map(said, cells), strangest])
        failure.facts["lines"] += by_branch(seen, expected)
        failure.facts["lines"] += exactly(seen, at, laws)
        raise failure


def said(cell: object) -> str:
    """A cell in words."""
    if isinstance(cell, Round):
        return f"accepts {cell.accepted}, emits {list(cell.tokens)}"
    return str(list(cell)) if isinstance(cell, tuple) else str(cell)


def by_branch(seen: Counter[T], expected: Mapping[T, Fraction]) -> list[str]:
    """Which branch carries the bias: its share of the distance between counts and law."""
    n, off = sum(seen.values()), Counter[str]()
    for cell in {*seen, *expected}:
        if isinstance(cell, Round):
            drawn = len(cell.tokens) > cell.accepted
            end = "then a draw" if drawn else "and the end"
            off[f"{cell.accepted} accepted {end}"] += (  # type: ignore[assignment]  # a float
                abs(seen[cell] / n - float(expected.get(cell, 0))) / 2
            )
    if not off:
        return []
    total = sum(off.values())
    parts = ", ".join(f"{branch}: {share:.3g}" for branch, share in off.most_common(3))
    return [f"  Distance to the law {total:.3g}, of it {parts}"]


def exactly(seen: Counter[T], at: Mapping[T, int], laws: np.ndarray) -> list[str]:
    """The exact p-value of the counts that were decided on."""
    counts = np.zeros(len(laws), dtype=np.int64)
    for cell, n in seen.items():
        counts[at.get(cell, -1)] += n
    p = exact_p(counts, laws)
    how = "enumerated" if p.enumerated else "from drawn tables"
    return [f"  Exact p-value {'' if p.enumerated else '<= '}{p.upper:.2g} ({how})"]


def wrong(name: str, verdict: Verdict, names: list[str]) -> WrongDistribution:
    """The failure, with the table of cells that are furthest off."""
    far = sorted(verdict.cells, key=lambda c: -abs(c.observed - c.expected))[:MOST_LINES]
    lines = [f"Counts of {verdict.samples} samples    observed    expected"]
    for cell in far:
        shown = " + ".join(names[i] for i in cell.members[:3])
        more = f" + {len(cell.members) - 3} more" * (len(cell.members) > 3)
        lines.append(f"  {shown + more:<26}{cell.observed:>12}{cell.expected:>12.1f}")
    reason = verdict.reason
    if far and verdict.cells[0].expected == 0:
        (i, *_) = verdict.cells[0].members
        reason = reason.replace(f"cell {i} has", f'"{names[i]}" has')
    return WrongDistribution(f"{name}: {reason}", lines=lines, log_e=verdict.log_e)


def _target_rounds(case: VerifyCase) -> Mapping[Round, Fraction]:
    k, stop = case.counts[0], () if case.stop is None else case.stop[0]
    budget = None if case.budget is None else case.budget[0]
    if case.q is None:
        raise CaseError("case: field q: got None, expected laws that drafts can be drawn from")
    return round_law(target_chain(case, 0), draft_chain(case, 0), k, stop, budget)


@law(
    "speculative.rounds",
    "Rounds (how many drafts are accepted, and which tokens are emitted) follow their joint law.",
    operation="verify",
    rests_on=token_by_token,
    strata=s.SAMPLED,
    weight=WEIGHT,
)
def rounds(subject: Subject, case: VerifyCase) -> None:
    follows(
        subject,
        case,
        "rounds (accepted, tokens)",
        _target_rounds(case),
        lambda sampler, stage, look, n: sampler.rounds(stage, look, n).counted(),
    )


@law(
    "speculative.sequence",
    "Tokens of a round, and after them draws from the target, follow the target's law.",
    operation="verify",
    rests_on=lossless,
    strata=s.SAMPLED,
    weight=WEIGHT,
)
def sequence(subject: Subject, case: VerifyCase) -> None:
    stop = () if case.stop is None else case.stop[0]

    def counted(sampler: Sampler, stage: str, look: int, n: int) -> Counter[tuple[int, ...]]:
        emitted = sampler.rounds(stage, look, n)
        return completed(case, emitted, generator("rest", sampler.case, stage, look))

    expected = autoregressive_law(target_chain(case, 0), case.counts[0] + 1, stop)
    follows(subject, case, "tokens, completed by the target", expected, counted)


@law(
    "speculative.first_token",
    "The first token follows the target's law.",
    operation="verify",
    rests_on=lossless,
    strata=s.SAMPLED,
    weight=WEIGHT,
)
def first_token(subject: Subject, case: VerifyCase) -> None:
    p = target_chain(case, 0)(())

    def counted(sampler: Sampler, stage: str, look: int, n: int) -> Counter[int]:
        first = sampler.rounds(stage, look, n).tokens[:, 0]
        return Counter(first.tolist())

    follows(subject, case, "first token", dict(enumerate(p)), counted)


@law(
    "speculative.commit_length",
    "The number of tokens of a round follows the survival products of its acceptance rates.",
    operation="verify",
    rests_on=token_by_token,
    strata=s.SAMPLED,
    weight=WEIGHT,
)
def commit_length(subject: Subject, case: VerifyCase) -> None:
    expected = length_law(_target_rounds(case))

    def counted(sampler: Sampler, stage: str, look: int, n: int) -> Counter[int]:
        return Counter(sampler.rounds(stage, look, n).lengths.tolist())

    follows(subject, case, "tokens of a round", expected, counted)


@law(
    "speculative.positions",
    "The token at each position follows the target's law, given the tokens before it.",
    operation="verify",
    rests_on=token_by_token,
    strata=s.SAMPLED,
    weight=WEIGHT,
)
def positions(subject: Subject, case: VerifyCase) -> None:
    tables: dict[tuple[int, ...], Counter[int]] = {}
    for outcome, n in _one_sample(subject, case, "positions").items():
        for i, y in enumerate(outcome.tokens):
            tables.setdefault(outcome.tokens[:i], Counter())[y] += n
    groups = [
        (f"token after {list(run)}", counts, target_chain(case, 0)(run))
        for run, counts in tables.items()
        if all(0 <= x < case.width for x in run)
    ]
    decided(groups)


@law(
    "speculative.branches",
    "An accepted first token follows min(p, q), one drawn after a rejection [p - q]+, each "
    "divided by its sum.",
    operation="verify",
    rests_on=token_by_token,
    strata=s.SAMPLED,
    weight=WEIGHT,
)
def branches(subject: Subject, case: VerifyCase) -> None:
    p, q = target_chain(case, 0)(()), draft_chain(case, 0)(())
    both = overlap(p, q)
    accepted, drawn, kept = Counter[int](), Counter[int](), Counter[int]()
    for outcome, n in _one_sample(subject, case, "branches").items():
        if outcome.tokens:
            (accepted if outcome.accepted else drawn)[outcome.tokens[0]] += n
            kept[int(outcome.accepted > 0)] += n
    groups: list[Group] = [("first draft accepted", kept, (1 - both, both))]
    if both:
        shared = tuple(min(a, b) / both for a, b in zip(p, q, strict=True))
        groups.append(("first token, accepted", accepted, shared))
    if (rest := residual(p, q)) is not None:
        groups.append(("first token, drawn after a rejection", drawn, rest))
    decided(groups)


def _one_sample(subject: Subject, case: VerifyCase, name: str) -> Counter[Round]:
    """As many rounds as the joint law's decision takes."""
    cells = sum(1 for mass in _target_rounds(case).values() if mass)
    n = plan(min(cells, 16), effect_of(subject)).confirm
    return Sampler(subject, case, name).rounds("confirm", 0, n).counted()


def decided(groups: list[Group]) -> None:
    """Every group follows its law: the mean of their e-values stays below 1 / level.

    A group's size depends on earlier tokens alone, so each is an e-value given those, and the mean
    of e-values is one. The failure shows the group that is furthest off.
    """
    found = []
    for name, counts, law_ in groups:
        masses = [*map(float, law_), 0.0]
        table = np.zeros(len(masses), dtype=np.int64)
        for y, n in counts.items():
            table[y if 0 <= y < len(law_) else -1] += n
        total = int(table.sum())
        if total:
            laws = np.array(masses) / math.fsum(masses)
            prior = strength(sum(1 for m in masses if m), EACH) * total
            found.append((float(log_evalue(table, laws, prior)), name, table, laws))
    if found and log_average([e for e, *_ in found]) >= -math.log(EACH):
        _, name, table, laws = max(found, key=lambda x: x[0])
        names = [f"token {y}" for y in range(len(laws) - 1)] + ["no column"]
        raise wrong(name, decide(table, laws), names)


ROWS, CALLS = 32, 24


@law(
    "speculative.independent",
    "What requests draw is independent, within a call and between calls.",
    operation="verify",
    rests_on=lossless,
    strata={"apart": s.apart},
    weight=0.2,
)
def independent(subject: Subject, case: VerifyCase) -> None:
    rows = ROWS if "requests" in subject.capabilities.supports else 1
    calls = CALLS if rows > 1 else 2 * ROWS * CALLS // 4
    sampler, k = Sampler(subject, case, "independent"), case.counts[0]
    chance = generator("independent", case)
    # The token that is drawn: the last one of a round.
    drawn = np.zeros((calls, rows), dtype=np.int64)
    with own_generator(subject, chance):
        for t in range(calls):
            tokens, _, lengths = sampler.call(chance, rows)
            drawn[t] = tokens[np.arange(rows), lengths - 1]
    p = [float(w) for w in law_of_row(case.p[0 if case.p[0] != (case.q or ())[0] else k])]
    if (drawn < 0).any():  # impossible tokens have no law; `speculative.possible` sees them
        return
    found = [log_matches(drawn, p, shift=0)] if rows > 1 else []
    found += [log_matches(drawn, p, shift=d) for d in (1, 2)]
    if (e := log_average(found)) >= -math.log(EACH):
        same = float((drawn[:, :1] == drawn[:, 1:]).mean()) if rows > 1 else math.nan
        again = float((drawn[1:] == drawn[:-1]).mean())
        raise WrongDistribution(
            f"tokens of different requests or calls are equal too often or too rarely: log E = "
            f"{e:.2f} >= {-math.log(EACH):.2f}",
            lines=[
                f"Share of equal tokens, expected {sum(x * x for x in p):.4f}",
                f"  request 0 and the others of its call: {same:.4f}",
                f"  a request and itself in the next call: {again:.4f}",
            ],
            log_e=e,
        )
