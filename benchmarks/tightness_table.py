"""Writes docs/tightness.md from records of tightness.py.

python benchmarks/tightness_table.py benchmarks/results/*-tightness.json > docs/tightness.md
"""

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from tightness import row

HEAD = """# How tight the budgets are

The largest error of a call, divided by what the budget allows there: median and worst over the
calls of a mode. At 1 a kernel is at its limit; a kernel that stays far below could be faulty in
its last bits and pass. Inputs are N(0, 1), from 33 x 33 to 64 x 1000 queries and keys, head sizes
64 and 128. z_rms is the root mean square of error / expected error, limited to 1.1.

Aims: a median of at least 1/4 for 16 bit, where one rounding of the output takes nearly all of
the budget, and of 1/15 for fp32, where many small errors rarely add up as they might. No kernel
may exceed 1. The LSE has worst-case terms alone and so lies lower, except where a kernel rounds
it to 16 bit. So do fp32 merges: many parts hardly ever add up to the worst, and the same bound
serves kernels that divide at the end and kernels that make each weight anew.

`python benchmarks/tightness.py` measures, `benchmarks/tightness_table.py` writes this page.
"""


def page(records: list[dict[str, Any]]) -> Iterator[str]:
    """The page, paragraph by paragraph."""
    yield HEAD
    for record in records:
        lines = sorted(record["lines"], key=lambda x: (x["dtype"] == "fp32", x["kernel"]))
        yield f"\n## {record['device']}, torch {record['torch']}\n\n{summary(lines)}\n"
        names = ("kernel", "dtype", "mode", "calls", "out median", "worst", "LSE median", "worst")
        yield f"| {' | '.join(names)} | z_rms |"
        yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
        yield from map(row, lines)


def summary(lines: list[dict[str, Any]]) -> str:
    """The range of medians of each kind of dtype, the worst of all."""
    text = []
    for fp32, group in groupby(lines, key=lambda x: x["dtype"] == "fp32"):
        some = list(group)
        medians = sorted((x["out"]["median"], x["kernel"]) for x in some)
        z = max(x["z_rms"]["worst"] for x in some if "z_rms" in x)
        text.append(
            f"{'fp32' if fp32 else '16 bit'}: medians from {medians[0][0]:.2f} ({medians[0][1]}) "
            f"to {medians[-1][0]:.2f} ({medians[-1][1]}), worst "
            f"{max(x['out']['worst'] for x in some):.2f}, z_rms at most {z:.2f}."
        )
    return "\n".join(text)


if __name__ == "__main__":
    print("\n".join(page([json.loads(Path(name).read_text()) for name in sys.argv[1:]])))
