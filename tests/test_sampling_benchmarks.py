"""The benchmarks of samplers: right ones are cleared and counted, wrong ones are told apart."""

import importlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelassay.impls import torch_verify
from kernelassay.oracle import statistics
from kernelassay.oracle.speculative import emitted_law, round_law, total_variation
from kernelassay.properties.laws import sampling
from kernelassay.properties.property import select
from kernelassay.properties.speculative.laws_of import draft_chain, target_chain
from kernelassay.properties.subject import Subject

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
FIRST, ROUNDS = "speculative.first_token", "speculative.rounds"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a benchmark by name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def cheap(subject: Subject) -> Subject:
    subject.unwatchable = True
    return subject


@pytest.mark.parametrize(
    ("kernel", "repeats"),
    [(torch_verify.adapter, 1), (torch_verify.seeded, 5)],
    ids=["injected", "seeded, five tests of each case"],
)
def test_a_right_sampler_is_cleared_by_every_law(
    script: Any, kernel: Any, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each law decides, nothing is rejected, and what led to the decisions is noted."""
    monkeypatch.setattr(sampling, "EFFECT", 0.2)
    calibration = script("sampler_calibration")
    monkeypatch.setattr(calibration, "CAPACITY", 20)
    subject = cheap(Subject(kernel, "fp32", "cpu"))
    noted = calibration.calibrated(subject, 61, 1.0, repeats)
    made = calibration.summary(subject, noted)
    assert made["rejected"] == 0
    assert set(calibration.LAWS) <= set(made["decisions"])
    assert made["decisions"]["decision stage by itself"] == math.ceil(40 / calibration.ALONE)
    assert made["e_values"]["screen"]["tests"] == 40
    assert sum(made["p_values"]["screen"]["bins"]) == len(noted.p_values["screen"])
    assert made["p_values"]["screen"]["tests"] >= 20
    assert noted.log_e["averages"]
    assert vars(sampling)["two_stages"] is statistics.two_stages


def test_a_wrong_sampler_is_counted(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that draws from p is rejected by laws and by the decision stage."""
    monkeypatch.setattr(sampling, "EFFECT", 0.2)
    calibration, bias = script("sampler_calibration"), script("acceptance_bias")
    monkeypatch.setattr(calibration, "CAPACITY", 20)
    noted = calibration.calibrated(cheap(Subject(bias.draws_from_p, "fp32", "cpu")), 61, 1.0)
    assert noted.rejected[ROUNDS] > 3
    assert noted.rejected["decision stage by itself"] > 3


def test_tests_of_one_case_have_parts_of_its_samples(script: Any) -> None:
    """Two tests of 40 rounds see the first and the second half of the sampler's 80."""
    calibration, bias = script("sampler_calibration"), script("acceptance_bias")
    subject = cheap(Subject(torch_verify.seeded, "fp32", "cpu"))
    whole = bias.Sampler(subject, bias.CASE, "some law").rounds("screen", 0, 80)
    shared = calibration.Shared(2)
    for shared.test in (0, 1):
        sampler = shared.sampler(subject, replace(bias.CASE, seed=shared.test), "some law")
        part, at = sampler.rounds("screen", 0, 40), slice(40 * shared.test, 40 * shared.test + 40)
        assert np.array_equal(part.tokens, whole.tokens[at])
        assert np.array_equal(part.accepted, whole.accepted[at])
        assert np.array_equal(part.lengths, whole.lengths[at])


def test_cases_differ_in_their_seeds(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = script("sampler_calibration")
    monkeypatch.setattr(calibration, "CAPACITY", 20)
    (law,) = select(ROUNDS)
    supply = calibration.cases(law, Subject(torch_verify.seeded, "fp32", "cpu"))
    some = [next(supply) for _ in range(12)]
    assert [case.seed for case in some] == list(range(12))
    assert len({(case.p, case.q, case.chained) for case in some}) > 6


def test_ratios_of_uniform_p_values_are_one(script: Any) -> None:
    """999 values evenly in (0, 1): P(p <= a) is a within 1/999; halved, it is twice a."""
    calibration = script("sampler_calibration")
    even = ((np.arange(1000) + 0.5) / 1000).tolist()
    found = calibration.of_p_values(even)
    assert found["ratio"] == pytest.approx(dict.fromkeys(found["ratio"], 1.0), abs=0.01)
    assert found["uniform_p"] == pytest.approx(1.0)
    halved = calibration.of_p_values([p / 2 for p in even])
    assert halved["ratio"]["0.2"] == pytest.approx(2.0, abs=0.02)
    assert halved["uniform_p"] < 1e-9
    assert calibration.of_e_values([math.log(20.0), 0.0])["hits"]["0.05"] == 1


def test_distances_are_those_of_the_oracle(script: Any) -> None:
    """A right step is off by nothing; drawing from p is off as the enumerated law says."""
    bias = script("acceptance_bias")
    p, q = target_chain(bias.CASE, 0)(()), draft_chain(bias.CASE, 0)(())
    right, again = bias.step(), bias.faults()["draws again from p"]
    assert right.distance(FIRST) == pytest.approx(0, abs=1e-15)
    assert right.distance(ROUNDS) == pytest.approx(0, abs=1e-15)
    exact = total_variation(emitted_law(p, q, resample=p), p)
    assert again.distance(FIRST) == pytest.approx(float(exact))
    assert bias.biased(0.05).distance(FIRST) == pytest.approx(0.05)
    rounds = round_law(target_chain(bias.CASE, 0), draft_chain(bias.CASE, 0), 1)
    assert bias.cells_of(ROUNDS) == len(rounds)
    assert sum(rounds.values()) == Fraction(1)


@pytest.mark.parametrize("law", [FIRST, ROUNDS])
def test_kernels_emit_what_their_fault_says(script: Any, law: str) -> None:
    """Counts of the first token lie nearer to the fault's law than to the right one."""
    bias = script("acceptance_bias")
    p, q = bias.laws()
    for number, (name, fault) in enumerate(bias.faults().items()):
        subject = bias.subject_of(f"tested_{number}", fault)
        sampler = bias.Sampler(subject, bias.CASE, f"tested {law}")
        emitted = sampler.rounds("confirm", 0, 20_000)
        first = np.bincount(emitted.tokens[:, 0], minlength=4) / 20_000
        faulty = q * fault.accept + (q * (1 - fault.accept)) @ fault.drawn
        assert np.abs(first - faulty).sum() < np.abs(first - p).sum() / 2, name
        kept = float(emitted.accepted.mean())
        assert kept == pytest.approx(float(q @ fault.accept), abs=0.02), name


def test_a_bias_is_found_with_the_promised_samples(script: Any) -> None:
    bias = script("acceptance_bias")
    (line,) = bias.bias_table(3, (0.2,))
    assert line["reached"] == 3
    assert line["median"] <= line["most"] <= line["confirm"]
    assert line["own_plan"] == {FIRST: 3, ROUNDS: 3}
    assert bias.needed(cheap(Subject(torch_verify.seeded, "fp32", "cpu")), 0.2, 0) == math.inf


def test_exact_laws_find_a_bias_that_samples_do_not(script: Any) -> None:
    """2^-18 is found and 2^-24 is not; the kernel without a bias passes."""
    bias = script("acceptance_bias")
    (law,) = select("speculative.decisions")
    plus = bias.BIASES["the same where p > 0"]
    found = {}
    for exponent in (18, 24):
        old, new = plus[1]
        edit = (old, new.format(d=repr(2.0**-exponent)))
        found[exponent] = bias.kills(law, bias.variant(f"t_{exponent}", plus[0], edit).adapter, 1)
    assert found == {18: 1, 24: 0}
    assert bias.kills(law, torch_verify.adapter, 1) == 0


def test_the_page_is_what_its_records_say(script: Any) -> None:
    """docs/sampling.md is what the records in the repository make."""
    tables = script("sampling_tables")
    page = (BENCHMARKS.parent / "docs" / "sampling.md").read_text()
    names = [line[3:-1] for line in page.splitlines() if line.startswith("- `2")]
    made = "\n".join(tables.page([BENCHMARKS / "results" / name for name in names]))
    assert made + "\n" == page


def test_the_least_bias_is_read_from_the_largest_downwards(script: Any) -> None:
    least = script("sampling_tables").least
    kills = {"4": 3, "8": 3, "12": 1, "16": 3, "None": 0}
    assert least(kills, 3) == "2^-8"
    assert least(kills, 1) == "2^-16"
    assert least({"4": 0}, 1) == "none"


def test_a_page_needs_all_its_records(script: Any, tmp_path: Path) -> None:
    record = tmp_path / "calibration.json"
    record.write_text(json.dumps({"lines": []}))
    with pytest.raises(ValueError, match="records of calibration and of bias, and a report"):
        list(script("sampling_tables").page([record]))
