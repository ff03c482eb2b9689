"""Every planted fault is killed by the law that it names; kernels that look wrong are spared."""

from functools import cache
from pathlib import Path

import pytest
import torch
from attention_calls import make_call
from interpreted import lighter

from kernelassay.impls.interpreter import interpreting
from kernelassay.impls.mutants import CONTROLS, MUTANTS
from kernelassay.impls.variants import Variant, build, changed_source
from kernelassay.mutants_command import TRITON, try_control, try_mutant
from kernelassay.properties.engine import Options, check
from kernelassay.properties.property import Property, select
from kernelassay.properties.subject import Subject

METAMORPHIC = (
    "attention.unseen_content",
    "attention.grouped_heads",
    "attention.batch_independence",
    "attention.row_independence",
    "attention.views",
    "attention.head_independence",
    "attention.key_permutation",
    "attention.padding",
    "attention.bias_is_mask",
    "attention.score_shift",
    "attention.sink_relation",
    "attention.hull",
    "attention.second_call",
    "alignment.corner_is_mask",
    "alignment.window_truncation",
    "alignment.decode_is_last_row",
    "alignment.chunked_is_whole",
    "alignment.no_future",
)
INTERPRETED = (
    "attention.value",
    "alignment",
    "merging.value",
    "speculative.decisions",
    "speculative.greedy",
    "speculative.memory",
    "logits.value",
    "logits.top_k",
    "logits.top_p",
    "logits.vocabulary",
)
"""Laws that a Triton control meets here: those of its operation that are quick interpreted."""
DECODED = (
    "transactions.greedy",
    "transactions.trace",
    "transactions.logprobs",
    "transactions.sequence",
)
"""Laws that a decode loop meets here, of which `kernelassay mutants` runs all."""


def item(variant: Variant, *more: str) -> object:
    """A parameter; Triton's variants are skipped where Triton does not interpret."""
    needs = pytest.mark.skipif(
        variant.base.startswith(TRITON) and not interpreting(),
        reason="a Triton kernel on a CPU: set TRITON_INTERPRET=1 before Triton is imported",
    )
    return pytest.param(variant, *more, id="-".join((variant.name, *more)), marks=needs)


def device(variant: Variant) -> str:
    """Where the variant runs here."""
    return "interpreter" if variant.base.startswith(TRITON) else "cpu"


@pytest.mark.parametrize("mutant", [item(m) for m in MUTANTS])
def test_a_mutant_is_killed_by_its_law(mutant: Variant) -> None:
    """Twenty cases of the law that the mutant names are enough."""
    trial = try_mutant(mutant, device(mutant), [], level="smoke", seed=0)
    assert trial.killed
    assert trial.law == mutant.law


def dtypes(control: Variant) -> tuple[str, ...]:
    """fp32 and fp16; of Triton's, and where fractions decide, one of them, turn by turn."""
    both = ("fp32", "fp16")
    turn = (both[CONTROLS.index(control) % 2],)
    if control.base.startswith(TRITON):
        return turn
    operations = build(control).capabilities.operations
    if "decode" in operations:
        return ("fp32",)
    return turn if {"verify", "law", "cache", "prefix", "recurrence"} & operations else both


def laws_of(control: Variant, dtype: str) -> list[Property]:
    """The laws that *control* meets in *dtype*.

    Where it runs in two dtypes each law takes one of them, the other one with the next control,
    so that every law meets both; values, which numerics decide, are compared in both each time.
    """
    if control.base.startswith(TRITON):
        return [lighter(law) for law in select(*INTERPRETED)]
    if "decode" in build(control).capabilities.operations:
        return select(*DECODED)
    laws, both = select(), dtypes(control)
    turn = CONTROLS.index(control) + both.index(dtype)
    return [
        law
        for n, law in enumerate(laws)
        if (n + turn) % len(both) == 0 or law.name.endswith(".value")
    ]


@pytest.mark.parametrize(("control", "dtype"), [item(c, d) for c in CONTROLS for d in dtypes(c)])
def test_a_control_is_spared(control: Variant, dtype: str) -> None:
    """No law fails on a kernel that does what it declares, however odd it looks."""
    laws = laws_of(control, dtype)
    trial = try_control(control, device(control), laws, [dtype], level="smoke", seed=0)
    assert trial.good, f"{trial.law} {trial.kind}: {trial.reason}"


@pytest.mark.parametrize("variant", [*MUTANTS, *CONTROLS], ids=lambda v: v.name)
def test_a_variant_changes_its_base(variant: Variant) -> None:
    """Each old text occurs once in the base, and one to three lines differ."""
    assert changed_source(variant)
    lines = max((len(new.strip("\n").split("\n")) for _, new in variant.edits), default=0)
    assert len(variant.edits) <= 3
    assert lines <= 3
    assert variant.report
    if variant.report.startswith("docs/"):
        assert (Path(__file__).parent.parent / variant.report).exists()
    assert variant.hides


def test_names_are_apart() -> None:
    """No two variants share a name."""
    names = [v.name for v in (*MUTANTS, *CONTROLS)]
    assert len(set(names)) == len(names)


def test_every_law_has_a_mutant() -> None:
    """A law that kills nothing would not be missed; a mutant's law exists."""
    assert {m.law for m in MUTANTS} == {p.name for p in select()}


def test_every_metamorphic_law_has_a_mutant_of_its_own() -> None:
    """Each metamorphic law sees a fault that comparing values misses."""
    apart = {m.law for m in MUTANTS if "attention.value" in m.missed_by}
    assert set(METAMORPHIC) <= apart


@pytest.mark.parametrize(("mutant", "law"), [item(m, law) for m in MUTANTS for law in m.missed_by])
def test_a_mutant_is_missed_by_other_laws(mutant: Variant, law: str) -> None:
    """What a mutant says of the laws that miss it is so, under one of two seeds in turn."""
    kernel = build(mutant)
    dtype = mutant.dtype or kernel.capabilities.dtypes[0]
    (prop,) = select(law)
    seed = MUTANTS.index(mutant) % 2
    subject = Subject(kernel, dtype, device(mutant))
    outcome = check(prop, subject, Options(level="smoke", seed=seed, shrink=False))
    assert outcome.record.status == "passed", f"seed {seed}: {outcome.record.reason}"


@cache
def easy_bank() -> tuple[list[str], int]:
    """The mutants that pass a customary test, and how many were tried.

    One N(0, 1) input of B2 H4 128x128x64, causal, fp32, compared with atol = rtol = 1e-2.
    """
    passing, tried = [], 0
    for mutant in MUTANTS:
        if mutant.base.startswith(TRITON) and not interpreting():
            continue
        kernel = build(mutant)
        if kernel.capabilities.pages or "attend" not in kernel.capabilities.supports:
            continue
        call = make_call(
            B=2, Hq=4, Hkv=4, Tq=128, Tk=128, D=64, causal="bottom_right", dtype="fp32"
        )
        expected = torch.nn.functional.scaled_dot_product_attention(
            call.q.double(), call.k.double(), call.v.double(), is_causal=True
        )
        tried += 1
        got = kernel.attend(call).out.double()
        if torch.allclose(got, expected, atol=1e-2, rtol=1e-2):
            passing.append(mutant.name)
    return passing, tried


def test_customary_tests_miss_most_mutants() -> None:
    """At least half of the mutants pass one random input at a tolerance of 1e-2."""
    passing, tried = easy_bank()
    assert 2 * len(passing) >= tried, f"{len(passing)} of {tried} pass: {', '.join(passing)}"
