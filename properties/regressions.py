"""Regressions: cases once found, one JSON object a line, run before anything is generated.

    {"law": "attention.value", "kernel": "my_decode", "case": {"Tk": 17}, "note": "tail tile"}

Without "kernel" a case is run on every kernel that can take it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelassay.properties.case import Case, CaseError, case_from, to_json
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.subject import Subject


class RegressionError(ValueError):
    """A regression file that cannot be used; names file, line, got, expected."""


@dataclass(frozen=True)
class Regression:
    """One kept case."""

    law: str
    case: Case
    kernel: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Regressions:
    """All kept cases."""

    entries: tuple[Regression, ...] = ()

    def of(self, law: str, subject: Subject) -> list[Case]:
        """Kept cases of *law* that *subject* can take."""
        return [
            r.case
            for r in self.entries
            if r.law == law
            and r.kernel in (None, subject.name)
            and not lacking(r.case, domain_of(subject))
        ]

    @classmethod
    def load(cls, *paths: str | Path) -> "Regressions":
        """Read regression files; `RegressionError` says what is wrong where."""
        return cls(tuple(r for path in paths for r in _load(Path(path))))


def _load(path: Path) -> list[Regression]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise RegressionError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RegressionError(f"{path}: not UTF-8: {error.reason}") from None
    return [_line(text, f"{path}:{n}") for n, text in enumerate(lines, 1) if text.strip()]


def _line(text: str, where: str) -> Regression:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise RegressionError(f"{where}: no JSON: {error}") from None
    if not isinstance(found, dict) or not {"law", "case"} <= set(found):
        raise RegressionError(f'{where}: got {text[:60]!r}, expected {{"law": ..., "case": ...}}')
    for name in ("law", "kernel", "note"):
        value = found.get(name, "")
        if not isinstance(value, str) and not (name == "kernel" and value is None):
            raise RegressionError(f"{where}: {name}: got {value!r}, expected text")
    if unknown := sorted(set(found) - {"law", "kernel", "case", "note"}):
        raise RegressionError(
            f"{where}: got {', '.join(unknown)}, expected law, case, kernel and note alone"
        )
    try:
        case = case_from(found["case"])
    except CaseError as error:
        raise RegressionError(f"{where}: {error}") from None
    return Regression(found["law"], case, found.get("kernel"), found.get("note", ""))


def line(law: str, kernel: str, case: Case, note: str) -> str:
    """One line of a regression file."""
    found: dict[str, Any] = {"law": law, "kernel": kernel, "case": to_json(case), "note": note}
    return json.dumps(found) + "\n"
