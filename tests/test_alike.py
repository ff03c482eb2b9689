"""Failures that are one and the same get one report; nothing else about them changes."""

import json
from pathlib import Path

import pytest
from tiny_kernels import source

from kernelassay import cli
from kernelassay.alike import alike, others
from kernelassay.properties.records import Record
from kernelassay.running import lost

CASES = [{"D": 16, "Tk": 17}, {"D": 16}, {"B": 2, "D": 16, "Tk": 17}]
LAWS = ("attention.value", "attention.lse", "attention.memory")
SHAPE = "my.py raised RuntimeError: shape '[2, 3, 17]' is invalid"
OTHER = "my.py raised RuntimeError: shape '[1, 16]' is invalid"


def records(status: str, *reasons: str, kind: str | None = None, at: str = "") -> list[Record]:
    """A record of each law, with its reason and case."""
    made: list[Record] = []
    for law, case, reason in zip(LAWS, CASES, reasons, strict=True):
        r = Record(law, "attention", "mine", "fp32", "cpu", "smoke").ended(status, reason=reason)
        r.kind, r.case, r.case_id = kind, case, f"id{len(made)}"
        r.report = f"FAILED\n\nRAISED: {reason}.\n  raised at {at}\nLaw: holds." if at else None
        made.append(r)
    return made


def sizes(made: list[Record]) -> list[int]:
    """How many records each group holds."""
    return [len(group) for group in alike(made)]


@pytest.mark.parametrize("kind", ["Refused", "WrongShape", "WrongDtype"])
def test_the_same_message_is_one_failure(kind: str) -> None:
    """The case that takes the fewest words stands for all; another message is another failure."""
    (group,) = alike(records("failed", "no", "no", "no", kind=kind))
    assert [r.law for r in group] == ["attention.lse", "attention.value", "attention.memory"]
    assert sizes(records("failed", "no", "no 2", "no", kind=kind)) == [2, 1]


def test_a_lost_device_is_one_failure() -> None:
    """By its message to the letter."""
    assert sizes(records("device_lost", "gone", "gone", "gone")) == [3]
    assert sizes(records("device_lost", "gone", "gone 2", "gone")) == [2, 1]


def test_one_statement_raises_one_failure() -> None:
    """Its numbers may differ, its words and its place may not."""
    made = records("failed", SHAPE, OTHER, SHAPE, kind="Raised", at="my.py:7")
    assert sizes(made) == [3]
    assert "but for numbers in the message" in others(alike(made)[0])
    elsewhere = records("failed", SHAPE, SHAPE, SHAPE, kind="Raised", at="my.py:8")
    assert sizes([made[0], *elsewhere[1:]]) == [1, 2]
    words = SHAPE.replace("invalid", "unknown")
    assert sizes(records("failed", SHAPE, words, SHAPE, kind="Raised", at="my.py:7")) == [2, 1]
    assert sizes(records("failed", SHAPE, SHAPE, SHAPE, kind="Raised")) == [1, 1, 1]


@pytest.mark.parametrize("status", ["timed_out", "crashed", "suite_error"])
def test_what_has_no_cause_to_compare_stands_alone(status: str) -> None:
    """A time limit and a signal have one message for every cause."""
    assert sizes(records(status, "same", "same", "same")) == [1, 1, 1]


@pytest.mark.parametrize("kind", ["WrongValue", "NonFinite", "Imprecise", "Different"])
def test_wrong_values_are_never_alike(kind: str) -> None:
    """What is wrong with them is not in the message."""
    assert sizes(records("failed", "same", "same", "same", kind=kind)) == [1, 1, 1]


def test_records_that_say_more_stand_alone() -> None:
    """Other kinds that a law found, another kernel, another device."""
    made = records("failed", "no", "no", "no", kind="Refused")
    made[1].also = ["WrongValue"]
    assert sizes(made) == [2, 1]
    made[1].also, made[1].kernel, made[2].device = [], "yours", "interpreter"
    assert sizes(made) == [1, 1, 1]
    made = records("failed", "no", "no", "no", kind="Refused")
    lost(made[0], "crashed", "signal 11", None, 3, "my.py:mine")
    assert "signal 11" in str(made[0].report)
    assert sizes(made) == [1, 2]


def test_other_laws_and_dtypes_are_named() -> None:
    """Each with its case; a law once, whatever its dtypes."""
    made = records("failed", "no", "no", "no", kind="Refused")
    made += records("failed", "no", "no", "no", kind="Refused")
    for r in made[3:]:
        r.dtype = "bf16"
    said = " ".join(others(alike(made)[0]).split())
    assert said.startswith("The very same happened in 2 other laws and 1 other dtype: ")
    assert "attention.lse id1 (bf16)" in said
    assert "attention.value id0 (fp32, bf16), attention.memory id2 (fp32, bf16), " in said


@pytest.mark.parametrize(
    ("body", "title"),
    [
        ("raise RuntimeError('CUDA error: invalid configuration argument')", "DEVICE LOST"),
        ("raise ValueError(f'shape mismatch: {tuple(out.shape)}')", "RAISED"),
    ],
)
def test_a_kernel_that_always_raises_has_one_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    body: str,
    title: str,
) -> None:
    """The JSON has all of them, the table and the counts as well."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(source(mine=body))
    laws = ("attention.value", "attention.exact_counting", "attention.memory")
    args = ("run", "--kernel", "mine.py:mine", "--device", "cpu", "--law", *laws)
    code = cli.main((*args, "--json", "run.json", "--workers", "1"))
    out = capsys.readouterr().out
    made = json.loads(Path("run.json").read_text())["records"]
    assert code == cli.FAULTS
    assert len(made) == 3
    assert all(title in r["report"] and r["case"] for r in made)
    assert out.count(f"\n{title}: ") == 1
    assert sum(r["report"] in out for r in made) == 1
    assert "in 2 other laws" in out
    assert all(r["case_id"] in out for r in made)
    assert "3 FAILED" in out
    assert all(out.count(f"\n{law} ") == 1 for law in laws)
