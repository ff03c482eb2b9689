"""`kernelassay mutants` says of no control that it was spared where no law had a case of it."""

from dataclasses import replace

import pytest

from kernelassay.impls.mutants import CONTROLS
from kernelassay.mutants_command import Trial, run_mutants, try_control
from kernelassay.properties.property import select

SPARED = Trial(
    variant="some", control=True, report="", device="cpu", dtype="fp32", seed=0, killed=False,
    judged=3,
)  # fmt: skip


def test_what_is_good() -> None:
    """A mutant that is killed, a control that met cases and kept every law."""
    assert SPARED.good
    assert not replace(SPARED, judged=0).good
    assert not replace(SPARED, killed=True).good
    mutant = replace(SPARED, control=False)
    assert not mutant.good
    assert replace(mutant, killed=True).good


def test_a_control_counts_the_cases_that_it_met() -> None:
    """Some of a law about it, none of a law about something else."""
    (control,) = [c for c in CONTROLS if c.name == "law_in_base_2"]
    for law, judged in (("logits.shift", True), ("attention.value", False)):
        trial = try_control(control, "cpu", select(law), ["fp32"], level="smoke", seed=0)
        assert (trial.judged > 0) == judged
        assert trial.good == judged


def test_a_family_has_the_controls_of_its_operations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Controls that no law of the family is about are left out; the others meet its laws."""
    few = [c for c in CONTROLS if c.name in ("law_in_base_2", "last_tile_first")]
    monkeypatch.setattr("kernelassay.mutants_command.CONTROLS", few)
    monkeypatch.setattr("kernelassay.mutants_command.ProcessPoolExecutor", _Here)
    (trial,) = run_mutants(families=("logits",), only="controls", device="cpu")
    assert trial.variant == "law_in_base_2"
    assert f"{trial.judged:,} cases" in capsys.readouterr().out


class _Here:
    """A pool that works in this process."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> "_Here":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    map = staticmethod(map)
