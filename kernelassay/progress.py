"""Progress on standard error: one line rewritten on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from kernelassay.parent import Run
from kernelassay.properties.records import WRONG, Record
from kernelassay.summary import worst_of


@dataclass(eq=False)
class Progress:
    """Called whenever a run changes; says how far it is, and each failure as it comes."""

    stream: IO[str] = field(default_factory=lambda: sys.stderr)
    every: float = 10.0
    clock: Callable[[], float] = time.monotonic
    _shown: float = field(default=0.0)
    _width: int = 0

    def __post_init__(self) -> None:
        self._terminal = self.stream.isatty()
        self._began = self.clock()
        self._shown = self._began if not self._terminal else 0.0

    def __call__(self, run: Run, record: Record | None) -> None:
        if record is not None and record.status in (*WRONG, "suite_error"):
            self._line(verdict(record))
        now = self.clock()
        if now - self._shown >= (0.1 if self._terminal else self.every):
            self._shown = now
            self._show(f"{status(run)}, {now - self._began:.0f} s")

    def end(self) -> None:
        """Leave the terminal clean."""
        if self._terminal and self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self.stream.flush()

    def _line(self, text: str) -> None:
        self.end()
        self.stream.write(text + "\n")
        self.stream.flush()

    def _show(self, text: str) -> None:
        if not self._terminal:
            self._line(text)
            return
        self.stream.write("\r" + text.ljust(self._width))
        self.stream.flush()
        self._width = len(text)


def verdict(record: Record) -> str:
    """A record that is wrong, on one line."""
    what = record.kind or record.status.replace("_", " ")
    if record.law == "contract.adapter":
        return f"kernelassay: {record.kernel} cannot be used ({what})"
    first, _, _ = record.reason.partition("\n")
    return f"FAILED {record.item}: {what}: {first[:160]}"


def status(run: Run) -> str:
    """How far a run is: items, cases, worst ratio, failures."""
    records = [*run.broken.values(), *run.done.values()]
    wrong = sum(r.status in WRONG for r in records)
    cases = sum(r.cases for r in records) + run.cases_in_flight()
    if not run.items and not records:
        return "kernelassay: loading kernels"
    worst = worst_of(records)
    parts = [f"{len(run.done)}/{len(run.items)} items", f"{cases:,} cases"]
    parts += [f"worst {worst:.2f} of allowed"] if worst else []
    return f"kernelassay: {', '.join(parts)}, {wrong or 'no'} failure{'s' * (wrong != 1)} so far"
