"""What a run came to: counts, a table of laws and kernels, an exit code."""

from collections import Counter
from collections.abc import Iterable, Sequence

from kernelassay.properties.records import WRONG, Record

GLYPHS = {
    "passed": "ok",
    "expected": "known",
    "failed": "FAIL",
    "timed_out": "TIME",
    "crashed": "CRASH",
    "device_lost": "LOST",
    "declined": "declined",
    "undeclared": "UNDECL",
    "not_applicable": "-",
    "no_device": "no dev",
    "unavailable": "absent",
    "not_run": "not run",
    "suite_error": "SUITE",
}
LEGEND = (
    "ok: holds, with the worst error / allowed error.  known: fails as an expected-failure file "
    "says.\ndeclined, UNDECL: a feature that the law needs is declined, or not declared.  "
    "-: rests on a\nconvention not declared."
)
_COUNTED = {
    "expected": "expected failure{s}",
    "declined": "declined",
    "undeclared": "UNDECLARED",
    "not_applicable": "not applicable",
    "no_device": "without a device",
    "not_run": "NOT RUN",
    "suite_error": "FAULTS OF THE SUITE",
}


def is_wrong(record: Record, *, strict: bool = False) -> bool:
    """Whether a record means a fault; with *strict*, an undeclared feature is one."""
    return record.status in WRONG or (strict and record.status == "undeclared")


def exit_code(records: Iterable[Record], *, strict: bool = False) -> int:
    """0 nothing wrong, 1 faults found, 3 the suite itself failed."""
    records = list(records)
    if any(r.status == "suite_error" for r in records):
        return 3
    return int(any(is_wrong(r, strict=strict) for r in records))


def worst_of(records: Iterable[Record]) -> float | None:
    """The largest error / allowed error among laws that held."""
    return max((r.worst for r in records if r.status == "passed" and r.worst), default=None)


def times(ratio: float) -> str:
    """A ratio in a few characters."""
    if ratio == float("inf") or ratio >= 1e6:
        return f"{ratio:.0e}"
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def summary_line(records: Sequence[Record]) -> str:
    """One line that says what was run and what came of it."""
    absent = [r for r in records if r.status == "unavailable"]
    unusable = [r for r in records if r.law == "contract.adapter" and r not in absent]
    records = [r for r in records if r.law != "contract.adapter"]
    count = Counter(r.status for r in records)
    wrong = sum(count[s] for s in WRONG)
    laws, kernels = len({r.law for r in records}), len({r.kernel for r in records})
    cases = sum(r.cases for r in records if r.status == "passed")
    worst = worst_of(records)
    held = f"{cases:,} cases" + (f", worst {worst:.2f} of allowed" if worst else "")
    parts = [f"{count['passed']} passed ({held})"]
    if wrong:
        parts.append(f"{wrong} FAILED")
    parts += [
        f"{count[status]} {what.format(s='s' * (count[status] != 1))}"
        for status, what in _COUNTED.items()
        if count[status]
    ]
    if unusable:
        parts.append(f"{len(unusable)} unusable kernel{'s' * (len(unusable) != 1)}")
    if absent:
        parts.append(f"{len(absent)} kernel{'s' * (len(absent) != 1)} skipped")
    what = f"{laws} law{'s' * (laws != 1)} x {kernels} kernel{'s' * (kernels != 1)}"
    return f"kernelassay: {what}: {', '.join(parts)}"


def device_lines(records: Iterable[Record]) -> list[str]:
    """One line for each reason why items found no device."""
    why = Counter((r.device, r.reason) for r in records if r.status == "no_device")
    names = {"cuda": "gpu"}
    return [
        f"kernelassay: {n} {names.get(device, device)} item{'s' * (n != 1)} skipped: {reason}"
        for (device, reason), n in sorted(why.items())
    ]


def cell(record: Record) -> str:
    """A record in at most nine characters: glyph and worst ratio."""
    glyph = GLYPHS[record.status]
    if record.status == "passed" and record.worst:  # laws of equality have no ratio
        return f"{glyph} {record.worst:.2f}"
    if record.status == "failed" and record.ratio is not None:
        return f"{glyph} {times(record.ratio)}x"
    return glyph


def table(records: Sequence[Record]) -> str:
    """For each kernel: laws down, dtypes and devices across."""
    blocks = []
    for kernel in dict.fromkeys(r.kernel for r in records):
        mine = [r for r in records if r.kernel == kernel]
        columns = list(dict.fromkeys((r.dtype, r.device) for r in mine))
        found = {(r.law, r.dtype, r.device): cell(r) for r in mine}
        rows = list(dict.fromkeys(r.law for r in mine))
        wide = max(len(kernel), *(len(law) for law in rows))
        heads = [f"{dtype} {device}" for dtype, device in columns]
        widths = [
            max(len(h), *(len(found.get((law, *c), "")) for law in rows))
            for h, c in zip(heads, columns, strict=True)
        ]
        lines = ["  ".join([kernel.ljust(wide), *map(str.ljust, heads, widths)])]
        for law in rows:
            cells = map(str.ljust, (found.get((law, *c), "") for c in columns), widths)
            lines.append("  ".join([law.ljust(wide), *cells]))
        blocks.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(blocks)
