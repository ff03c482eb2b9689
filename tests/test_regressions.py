"""Regressions: kept cases run before anything is generated, on the kernels that can take them."""

from pathlib import Path

import pytest
from toy_kernels import REFERENCE, right, toy, without_tail

from kernelassay.properties.case import AttendCase
from kernelassay.properties.engine import Options, check
from kernelassay.properties.expectations import Expectations
from kernelassay.properties.property import select
from kernelassay.properties.regressions import RegressionError, Regressions, line

VALUE = next(p for p in select("attention.value"))
CASE = AttendCase(Tk=70, q="random:1", k="random:2", v="random:3")
LINE = '{"law": "attention.value", "case": {"Tk": 70}}\n'


def kept(tmp_path: Path, text: str) -> Regressions:
    path = tmp_path / "kept.jsonl"
    path.write_text(text)
    return Regressions.load(path)


def test_a_line_reads_back(tmp_path: Path) -> None:
    """What `line` writes is a kept case of its law and kernel."""
    found = kept(tmp_path, line("attention.value", "toy", CASE, 'tail "tile"') + "\n" + LINE)
    first, second = found.entries
    assert (first.law, first.kernel, first.case) == ("attention.value", "toy", CASE)
    assert first.note == 'tail "tile"'
    assert (second.kernel, second.note, second.case) == (None, "", AttendCase(Tk=70))


def test_kept_cases_run_first(tmp_path: Path) -> None:
    """A kept case that fails is the first case, and nothing is generated after it."""
    regressions = kept(tmp_path, line("attention.value", "toy", CASE, ""))
    outcome = check(VALUE, toy(without_tail), Options(regressions=regressions, level="replay"))
    assert (outcome.record.kind, outcome.record.to_first, outcome.record.cases) == (
        "WrongValue", 1, 1,
    )  # fmt: skip
    assert outcome.found is not None
    assert outcome.found.case == CASE
    outcome = check(VALUE, toy(right), Options(regressions=regressions, level="replay"))
    assert (outcome.record.status, outcome.record.cases) == ("passed", 1)
    outcome = check(VALUE, toy(right), Options(regressions=regressions))
    assert outcome.record.status == "passed"
    assert outcome.record.cases > 20


def test_kept_cases_are_for_who_can_take_them(tmp_path: Path) -> None:
    """Another law, another kernel's case, a missing feature or head size: not run."""
    text = (
        line("attention.value", "toy", CASE, "")
        + line("attention.value", "other", CASE, "")
        + line("attention.lse", "toy", CASE, "")
        + '{"law": "attention.value", "case": {"lengths": [1]}}\n'
        + '{"law": "attention.value", "case": {"D": 128, "Tk": 2}, "kernel": null}\n'
    )
    regressions = kept(tmp_path, text)
    assert regressions.of("attention.value", toy()) == [
        CASE, AttendCase(lengths=(1,)), AttendCase(D=128, Tk=2),
    ]  # fmt: skip
    narrow = toy(supports=REFERENCE.supports - {"lengths"}, head_sizes=(64,))
    assert regressions.of("attention.value", narrow) == [CASE]
    assert regressions.of("attention.memory", toy()) == []


def test_head_sizes_of_the_level_do_not_hide_kept_cases(tmp_path: Path) -> None:
    """Smoke generates two head sizes, and still runs a kept case of any other."""
    sizes = (8, 16, 32, 64, 80, 128, 256)
    regressions = kept(
        tmp_path, "".join(line("attention.value", "toy", AttendCase(D=d), "") for d in sizes)
    )
    assert len(regressions.of("attention.value", toy())) == len(sizes)


def test_what_is_expected_to_fail_is_not_run_as_a_regression(tmp_path: Path) -> None:
    """A kept case inside an expected region is left to its witness."""
    expected = tmp_path / "expected.toml"
    expected.write_text(
        '[[expect]]\nproperty = "attention.value"\nkernel = "toy"\nwhen = "Tk > 16"\n'
        'kind = "WrongValue"\nreason = "known"\n'
        'witness = { Tk = 17, q = "random:1", k = "random:2", v = "random:3" }\n'
    )
    options = Options(
        regressions=kept(tmp_path, line("attention.value", "toy", CASE, "")),
        expectations=Expectations.load(expected),
    )
    assert check(VALUE, toy(without_tail), options).record.status == "expected"


def test_blank_lines_and_several_files(tmp_path: Path) -> None:
    """Blank lines are passed over; files are read in order."""
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    a.write_text("\n" + LINE + "\n  \n")
    b.write_text(LINE.replace("70", "71"))
    assert [r.case.Tk for r in Regressions.load(a, b).entries] == [70, 71]
    assert kept(tmp_path, "") == Regressions()


MALFORMED = {
    "{": "no JSON",
    "[" * 100_000: "no JSON",
    "[1]": 'got .*, expected {"law": ..., "case": ...}',
    "3": 'expected {"law": ..., "case": ...}',
    '{"law": "attention.value"}': 'expected {"law": ..., "case": ...}',
    '{"law": "a", "case": {"Tz": 1}}': "case: got field 'Tz'",
    '{"law": "a", "case": [1]}': "expected a table of fields",
    '{"law": "a", "case": {"lengths": ["x"]}}': "field lengths",
    '{"law": 3, "case": {}}': "law: got 3, expected text",
    '{"law": "a", "case": {}, "kernel": 3}': "kernel: got 3, expected text",
    '{"law": "a", "case": {}, "note": 3}': "note: got 3, expected text",
    '{"law": "a", "case": {}, "kernal": "b"}': "got kernal, expected law, case, kernel and note",
}


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_lines_say_what_is_wrong_where(text: str, tmp_path: Path) -> None:
    """The message names file and line, what came and what is expected."""
    with pytest.raises(RegressionError, match=MALFORMED[text]) as caught:
        kept(tmp_path, LINE + "\n" + text)
    assert str(caught.value).startswith(f"{tmp_path / 'kept.jsonl'}:3: ")
    assert len(str(caught.value)) < 600


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A missing file and one that is no text are errors with the path."""
    with pytest.raises(RegressionError, match=r"none.jsonl: cannot be read: No such file"):
        Regressions.load(tmp_path / "none.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(RegressionError, match=r"bytes.jsonl: not UTF-8"):
        Regressions.load(tmp_path / "bytes.jsonl")
