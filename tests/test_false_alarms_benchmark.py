"""Long runs in short: what `benchmarks/false_alarms.py` makes of records, and its page."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from kernelassay.properties.records import WRONG

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names of the script."""
    return runpy.run_path(str(ROOT / "benchmarks" / "false_alarms.py"))


def run(seed: int, *statuses: str, cases: int = 10) -> dict[str, Any]:
    """A run of one kernel, an item for each status, as `kernelassay run --json` writes it."""
    records = [
        {
            "kernel": "mine", "device": "cpu", "law": f"attention.{n}", "dtype": "fp16",
            "status": status, "reason": "", "cases": cases, "launches": cases, "seconds": 0.6,
            "worst": 0.25 * n, "z_rms": None,
        }
        for n, status in enumerate(statuses)
    ]  # fmt: skip
    versions = {"device": None, "torch": "2", "triton": "3"}
    return {"level": "nightly", "seed": seed, "environment": versions, "records": records}


def test_a_run_in_short(script: dict[str, Any]) -> None:
    """Statuses are counted, cases summed, the worst item named; a failure is kept with its law."""
    (line,) = script["lines_of"](run(3, "passed", "failed", "passed"))
    assert line["items"] == {"failed": 1, "passed": 2}
    assert (line["cases"], line["worst"], line["worst_law"]) == (30, 0.5, "attention.2 (fp16)")
    assert [x["law"] for x in line["wrong"]] == ["attention.1"]
    (row,) = [x for x in script["page"]([line]) if x.startswith("| mine")]
    assert row == "| mine | CPU | nightly | 3 | 2 | 0 | 0 | 1 | 30 | 0.500 | 0.00 |"


def test_seeds_share_a_line(script: dict[str, Any]) -> None:
    """What passed under several seeds is summed, of the worst the worst; levels stay apart."""
    runs = [run(0, "passed", "passed"), run(2, "passed", "expected", "passed"), run(1, "passed")]
    runs[2]["level"] = "pr"
    lines = script["joined"](line for one in runs for line in script["lines_of"](one))
    rows = [x for x in script["page"](lines) if x.startswith("| mine")]
    assert rows == [
        "| mine | CPU | nightly | 0, 2 | 4 | 1 | 0 | 0 | 50 | 0.500 | 0.00 |",
        "| mine | CPU | pr | 1 | 1 | 0 | 0 | 0 | 10 | 0.000 | 0.00 |",
    ]


def test_where_a_run_was(script: dict[str, Any]) -> None:
    """The chip of a run on one; a run on the CPU says so, whatever chip was beside it."""
    one = run(0, "passed")
    one["environment"]["device"] = "NVIDIA H200 (sm_90)"
    rows = []
    for device in ("cuda", "cpu", "interpreter"):
        one["records"][0]["device"] = device
        rows += [x for x in script["page"]([*script["lines_of"](one)]) if x.startswith("| mine")]
    assert [x.split(" | ")[1] for x in rows] == ["NVIDIA H200", "CPU", "CPU, interpreted"]


@pytest.mark.parametrize("status", [*WRONG, "suite_error"])
def test_no_failure_is_left_out(script: dict[str, Any], status: str) -> None:
    """Whatever a run ended badly with is counted as failed."""
    (line,) = script["lines_of"](run(0, "passed", status))
    assert [x["status"] for x in line["wrong"]] == [status]


def test_the_longer_run_counts(script: dict[str, Any]) -> None:
    """Of two runs of one kernel under one seed the one with more cases stays."""
    runs = [run(1, "passed", cases=n) for n in (5, 7, 6)] + [run(0, "passed")]
    lines = script["joined"](line for one in runs for line in script["lines_of"](one))
    assert [(x["seed"], x["cases"]) for x in lines] == [(0, 10), (1, 7)]


def test_the_page_is_what_its_record_says(script: dict[str, Any]) -> None:
    """docs/false_alarms.md is what the newest record makes."""
    record = max((ROOT / "benchmarks" / "results").glob("*-nightly.json"))
    made = "\n".join(script["page"](json.loads(record.read_text())))
    assert made + "\n" == (ROOT / "docs" / "false_alarms.md").read_text()
