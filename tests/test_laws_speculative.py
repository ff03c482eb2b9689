"""The mutants of verification: what kills them beside customary tests, and what may not."""

from dataclasses import replace
from functools import cache

import pytest

from kernelassay import mutants_command
from kernelassay.impls.mutants import (
    CONTROLS,
    MUTANTS,
    speculative,
    speculative_block,
    speculative_chance,
    speculative_limits,
)
from kernelassay.impls.mutants.speculative_triton import MUTANTS as TRITON
from kernelassay.impls.variants import Variant, build
from kernelassay.mutants_command import try_mutant
from kernelassay.properties.engine import Options, check
from kernelassay.properties.failures import Failure
from kernelassay.properties.property import Property, select
from kernelassay.properties.records import Record
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.sampling import Sampler
from kernelassay.properties.subject import Subject

PLAIN = (
    *speculative.MUTANTS,
    *speculative_limits.MUTANTS,
    *speculative_chance.MUTANTS,
    *speculative_block.MUTANTS,
)
NAMED = {v.name: v for v in (*MUTANTS, *CONTROLS)}
TYPICAL = NAMED["verify_typical_acceptance_as_declared"]
BEYOND_DECISIONS = {
    f"speculative.{name}"
    for name in (
        "certain", "skipped", "stop", "budget", "greedy", "memory", "bad_laws", "declines",
        "validates",
    )
}  # fmt: skip
"""Laws with a mutant that drafts with a law, sampled and unlimited, do not show."""
BEYOND_FIRST_TOKENS = {
    f"speculative.{name}"
    for name in ("decisions", "implied_law", "rounds", "positions", "sequence")
}
"""Laws with a mutant whose first tokens are right, or too nearly so for samples."""


def test_there_are_mutants_of_both_kernels() -> None:
    """Faults of each kind are planted in PyTorch, a dozen of them and more in Triton."""
    assert len(PLAIN) >= 45
    assert len(TRITON) >= 12
    assert {m.law.split(".")[0] for m in (*PLAIN, *TRITON)} == {"speculative"}


@pytest.mark.parametrize(
    ("law", "beyond"),
    [
        ("speculative.decisions", BEYOND_DECISIONS),
        ("speculative.first_token", BEYOND_FIRST_TOKENS),
    ],
)
def test_laws_have_mutants_that_another_law_misses(law: str, beyond: set[str]) -> None:
    """Each of these laws sees a fault that *law* does not."""
    assert beyond <= {m.law for m in (*PLAIN, *TRITON) if law in m.missed_by}


def test_a_mutant_gets_the_cases_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger of the level that is run and of the mutant's own counts."""
    levels = []

    def noted(
        law: Property, kernel: object, dtype: str, device: str, level: str, seed: int
    ) -> Record:
        levels.append(level)
        return Record.of(law, Subject(kernel, dtype, device), level, seed).ended("failed")

    monkeypatch.setattr(mutants_command, "_check", noted)
    easy, hard = NAMED["verify_resamples_from_p"], NAMED["verify_seeded_uniforms_of_3_bits"]
    for mutant, level in ((easy, "smoke"), (easy, "pr"), (hard, "smoke"), (hard, "nightly")):
        try_mutant(mutant, "cpu", [], level=level, seed=0)
    assert levels == ["smoke", "pr", "pr", "nightly"]


def record_of(variant: Variant, law: str) -> Record:
    """What becomes of the variant under one law."""
    (prop,) = select(law)
    subject = Subject(build(variant), "fp32", "cpu")
    return check(prop, subject, Options(level="smoke", seed=0, shrink=False)).record


@pytest.mark.parametrize("law", ["decisions", "implied_law", "sequence", "rounds", "independent"])
def test_a_sampler_that_is_declared_lossy_meets_no_lossless_law(law: str) -> None:
    """The record says why."""
    record = record_of(TYPICAL, f"speculative.{law}")
    assert record.status == "not_applicable"
    assert "lossy: typical acceptance" in record.reason


@pytest.mark.parametrize("law", ["decisions", "implied_law", "sequence", "first_token"])
def test_the_same_sampler_fails_where_it_is_not_declared_lossy(law: str) -> None:
    """Typical acceptance does not follow the target's law."""
    silent = replace(TYPICAL, name="verify_typical_acceptance", capabilities=None)
    assert record_of(silent, f"speculative.{law}").status == "failed"


def test_blocks_accept_more_drafts_than_tokens_do() -> None:
    """Block verification that is declared token-wise fails: its rounds follow another law."""
    token_wise = NAMED["verify_by_blocks"]
    blocks = replace(
        token_wise,
        name="verify_by_blocks_undeclared",
        capabilities=lambda base: speculative.drawing(base, rounds="token"),
    )
    assert record_of(blocks, "speculative.rounds").status == "failed"
    assert record_of(token_wise, "speculative.sequence").status == "passed"


CUSTOMARY = VerifyCase(
    p=((5, 1, 3, 2, 7, 1, 4, 2), (2, 6, 1, 1, 3, 5, 2, 4)), q=((3, 2, 4, 1, 5, 2, 6, 1),)
)
"""One draft over eight tokens, as a sampler's own tests have it."""


@cache
def passing() -> list[str]:
    """The mutants whose first tokens are within 0.02 of p each, in 20000 rounds."""
    found = []
    for mutant in PLAIN:
        sampler = Sampler(Subject(build(mutant), "fp32", "cpu"), CUSTOMARY, "customary")
        try:
            first = sampler.rounds("screen", 0, 20_000).tokens[:, 0]
        except Failure:
            continue
        total = sum(CUSTOMARY.p[0])
        off = [abs((first == y).mean() - m / total) for y, m in enumerate(CUSTOMARY.p[0])]
        if max(off) < 0.02:
            found.append(mutant.name)
    return found


def test_customary_tests_miss_most_mutants() -> None:
    """First tokens of one random pair of laws are right for at least half of the mutants."""
    names = passing()
    assert 2 * len(names) >= len(PLAIN), f"{len(names)} of {len(PLAIN)}: {', '.join(names)}"
