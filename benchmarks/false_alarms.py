"""Long runs of right kernels in short: how many cases, no failure, how near to the budget.

    kernelassay run --kernel NAME --level nightly --seed S --json RUN.json
    python benchmarks/false_alarms.py RUN.json ... --json RECORD.json
    python benchmarks/false_alarms.py --page RECORD.json > docs/false_alarms.md

The record has one line for each kernel, device, seed and level; a longer run of the same replaces
a shorter one.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from kernelassay.properties.records import WRONG

KEY = ("kernel", "device", "level", "seed")

HEAD = """# No false alarm

A right kernel must pass, every night, under every seed. Each line is all runs of one kernel: all
laws of what it does, in every dtype that it declares, under each of the seeds. A law gets about
20 cases at the level `smoke`, 100 at `pr` and 1,000 at `nightly`; kernels in Triton's interpreter,
several times slower, and libraries on a CPU are run at lower levels.

An item is a law with a dtype under a seed; *known faults* fail as the files in
`kernelassay/expect/` say; *not run* says how many items a run that was stopped lacks. *worst* is
the largest error seen, divided by what the declared numerics allow (which is half a unit in the
last place, where only the output is rounded, and such an error is reached), and *z_rms* the root
mean square of errors in units of the expected ones (at most 1 and 1.1).

`benchmarks/false_alarms.py` collects runs and writes this page.
"""


def lines_of(run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A line for each kernel and device of a run."""

    def place(record: dict[str, Any]) -> tuple[str, str]:
        return record["kernel"], record["device"]

    for (kernel, device), group in groupby(sorted(run["records"], key=place), key=place):
        records = list(group)
        status = Counter(r["status"] for r in records)
        worst = max((r for r in records if r["worst"] is not None), key=lambda r: r["worst"])
        yield {
            "kernel": kernel,
            "device": device,
            "level": run["level"],
            "seed": run["seed"],
            "machine": run["environment"]["device"],
            "torch": run["environment"]["torch"],
            "triton": run["environment"]["triton"],
            "dtypes": sorted({r["dtype"] for r in records}),
            "items": dict(sorted(status.items())),
            "wrong": [
                {k: r[k] for k in ("law", "dtype", "status", "reason")}
                for r in records
                if r["status"] in (*WRONG, "suite_error")
            ],
            "cases": sum(r["cases"] for r in records),
            "launches": sum(r["launches"] for r in records),
            "worst": round(worst["worst"], 4),
            "worst_law": f"{worst['law']} ({worst['dtype']})",
            "z_rms": round(max(r["z_rms"] or 0 for r in records), 4),
            "worker_seconds": round(sum(r["seconds"] for r in records)),
        }


def joined(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each key: of several the one with the most cases."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        key = tuple(line[k] for k in KEY)
        if key not in best or line["cases"] > best[key]["cases"]:
            best[key] = line
    return [best[key] for key in sorted(best)]


def page(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The page, paragraph by paragraph."""
    yield HEAD
    whole = [x for x in lines if not x["wrong"]]
    yield (
        f"{len(lines)} runs of {len({(x['kernel'], x['device']) for x in lines})} kernels, "
        f"{sum(x['cases'] for x in lines):,} cases, {sum(x['launches'] for x in lines):,} calls "
        f"of kernels: {len(whole)} without a failure, worst "
        f"{max(x['worst'] for x in lines):.3f}.\n"
    )
    names = ("kernel", "on", "level", "seeds", "passed", "known faults", "not run", "failed")
    yield f"| {' | '.join(names)} | cases | worst | z_rms |"
    yield "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for _, group in groupby(sorted(lines, key=kind), key=kind):
        yield line_of(list(group))


def kind(line: dict[str, Any]) -> tuple[str, ...]:
    """What the seeds of a line of the page have in common."""
    return tuple(line[k] for k in ("kernel", "device", "level"))


def line_of(seeds: list[dict[str, Any]]) -> str:
    """A line of the page: one kernel on one device at one level, under each of these seeds."""
    first = seeds[0]
    chip = (first["machine"] or "").split(" (")[0]  # what there was; a run may not have used it
    where = {"cuda": chip, "cpu": "CPU", "interpreter": "CPU, interpreted"}[first["device"]]
    items: Counter[str] = sum((Counter(x["items"]) for x in seeds), Counter())
    figures = (
        first["kernel"], where, first["level"], ", ".join(str(x["seed"]) for x in seeds),
        *(f"{items[n]:,}" for n in ("passed", "expected", "not_run")),
        sum(len(x["wrong"]) for x in seeds), f"{sum(x['cases'] for x in seeds):,}",
        f"{max(x['worst'] for x in seeds):.3f}", f"{max(x['z_rms'] for x in seeds):.2f}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, figures))} |"


def main() -> None:
    """Collect runs, or print the page of a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--json", type=Path, help="the record, which may exist")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.page:
        print("\n".join(page(json.loads(args.page.read_text()))))
        return
    lines = [line for name in args.runs for line in lines_of(json.loads(name.read_text()))]
    if args.json and args.json.exists():
        lines += json.loads(args.json.read_text())
    lines = joined(lines)
    print("\n".join(page(lines)))
    if args.json:
        args.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
