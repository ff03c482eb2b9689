"""The report of a case that ran out of time says what ran and what to try."""

import pytest

from kernelassay.properties.case import AttendCase, Case
from kernelassay.properties.records import Record
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.running import lost

TIMEOUT, LEVEL, LIMIT, CUDA = "--timeout", "--level", "work_limit", "--device cuda"


@pytest.mark.parametrize(
    ("device", "level", "case", "ways"),
    [
        ("cpu", "smoke", AttendCase(Tk=17), {TIMEOUT}),
        ("cpu", "pr", AttendCase(Tk=17), {TIMEOUT, LEVEL}),
        ("interpreter", "nightly", AttendCase(Tk=17), {TIMEOUT, LEVEL, LIMIT, CUDA}),
        ("interpreter", "smoke", VerifyCase(), {TIMEOUT, CUDA}),
        ("interpreter", "replay", None, {TIMEOUT, CUDA}),
    ],
)
def test_what_to_try(device: str, level: str, case: Case | None, ways: set[str]) -> None:
    """Only what helps there: levels below, and limits that the case's sizes depend on."""
    record = Record("attention.value", "attention", "mine", "fp32", device, level)
    report = lost(record, "timed_out", "too late", case, 3, "my.py:mine").report
    assert report is not None
    said = report.partition("Case in flight")[0]
    (sentence,) = " ".join(said.partition("too late")[2].split()).split(". ")
    assert {way for way in (TIMEOUT, LEVEL, LIMIT, CUDA) if way in sentence} == ways
    assert ("Case in flight (number 3" in report) == (case is not None)


@pytest.mark.parametrize("status", ["crashed", "device_lost"])
def test_other_ends_have_no_such_advice(status: str) -> None:
    """More time mends neither."""
    record = Record("attention.value", "attention", "mine", "fp32", "cpu", "pr")
    assert TIMEOUT not in str(lost(record, status, "gone", AttendCase(), 3, "my.py:mine").report)
