"""Expected failures: a TOML file kept by the adopter, one table for each known fault.

    [[expect]]
    property = "attention.empty_rows"
    kernel = "my_decode"
    when = "empty_row and Tq > 1"          # optional: region of fields and labels
    witness = { Tq = 2, mask = "nothing" } # fields that differ from their default; "none": None
    kind = "WrongValue"
    reason = "rows without keys return garbage; fixed by #12"
    device = "cuda"                        # optional, like dtype

Cases inside the region are not generated, everything else still is; without a region only the
witness runs. The witness runs every time and must still fail with its kind, so that strictness
never depends on luck.
"""

import ast
import difflib
import json
import operator
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelassay.properties.case import Case, CaseError, case_classes, case_from
from kernelassay.properties.failures import KINDS
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.subject import Subject


class ExpectationError(ValueError):
    """An expected-failure file that cannot be used; names file, entry, got, expected."""


_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _fields() -> set[str]:
    """The fields of all classes of cases."""
    return {name for cls in case_classes().values() for name in cls.known()}


def holds(node: ast.expr, case: Case, found: set[str]) -> Any:
    """Evaluate a region over the case's fields and labels."""
    if isinstance(node, ast.BoolOp):
        results = (bool(holds(v, case, found)) for v in node.values)
        return all(results) if isinstance(node.op, ast.And) else any(results)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not holds(node.operand, case, found)
    if isinstance(node, ast.Compare):
        left, result = holds(node.left, case, found), True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = holds(right_node, case, found)
            result = result and _compared(type(op), left, right)
            left = right
        return result
    if isinstance(node, ast.Name):
        return getattr(case, node.id) if node.id in case.known() else node.id in found
    if isinstance(node, ast.Tuple):
        return tuple(holds(x, case, found) for x in node.elts)
    return ast.literal_eval(node)


def _compared(op: type, left: Any, right: Any) -> bool:
    """A comparison of what has no order, such as a field that is None, does not hold."""
    try:
        return bool(_COMPARE[op](left, right))
    except TypeError:
        return False


def _checked_region(text: str, where: str) -> ast.expr:
    allowed = (
        ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.Name,
        ast.Load, ast.Constant, ast.Tuple, *_COMPARE,
    )  # fmt: skip
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        why = getattr(error, "msg", error)
        raise ExpectationError(f"{where}: when: got {text!r}: {why}") from None
    names = _fields() | LABELS
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id not in names:
            close = difflib.get_close_matches(part.id, names, n=3)
            hint = f"; close: {', '.join(close)}" if close else ""
            raise ExpectationError(
                f"{where}: when: {part.id!r} is no field of a case and no label{hint}"
            )
        sign = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub)
        number = not sign or isinstance(getattr(part, "operand", None), ast.Constant)
        if not isinstance(part, allowed) or not number:
            raise ExpectationError(
                f"{where}: when: got {text!r}, expected comparisons of fields and labels with "
                f"and, or, not; {type(part).__name__} is neither"
            )
    return node


@dataclass(frozen=True)
class Expectation:
    """One known fault."""

    law: str
    kernel: str
    kind: str
    witness: Case
    reason: str
    when: str | None
    region: ast.expr | None
    device: str | None
    dtype: str | None
    where: str

    @property
    def whole(self) -> bool:
        """Whether nothing but the witness runs."""
        return self.region is None

    def covers(self, case: Case, domain: Any) -> bool:
        """Whether *case* lies in the region."""
        if self.region is None:
            return True
        names = {n.id for n in ast.walk(self.region) if isinstance(n, ast.Name)}
        found = labels(case, domain) if names - set(case.known()) else set()
        return bool(holds(self.region, case, found))

    def matches(self, law: str, kernel: str, dtype: str, device: str) -> bool:
        """Whether this entry speaks of that item."""
        return (
            self.law == law
            and self.kernel == kernel
            and self.dtype in (None, dtype)
            and self.device in (None, device)
        )


@dataclass(frozen=True)
class Expectations:
    """All entries of the files given."""

    entries: tuple[Expectation, ...] = ()

    def of(self, law: str, subject: Subject) -> list[Expectation]:
        """Entries that speak of *law* on *subject*."""
        return [
            e for e in self.entries if e.matches(law, subject.name, subject.dtype, subject.device)
        ]

    def unmatched(self, laws: Iterable[str], kernels: Iterable[str]) -> list[str]:
        """A line for each entry whose law or kernel is not among those that run."""
        laws, kernels, found = list(laws), list(kernels), []
        for e in self.entries:
            for what, got, known in (("law", e.law, laws), ("kernel", e.kernel, kernels)):
                if got not in known:
                    close = difflib.get_close_matches(got, known, n=3)
                    hint = f"; close: {', '.join(close)}" if close else ""
                    found.append(f"{e.where}: {what} {got!r} is not among those that run{hint}")
                    break
        return found

    @classmethod
    def load(cls, *paths: str | Path) -> "Expectations":
        """Read expected-failure files; `ExpectationError` says what is wrong in which."""
        return cls(tuple(e for path in paths for e in _load(Path(path))))


def _load(path: Path) -> list[Expectation]:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ExpectationError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ExpectationError(f"{path}: not UTF-8: {error.reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise ExpectationError(f"{path}: no TOML: {error}") from None
    extra = set(document) - {"expect"}
    entries = document.get("expect", [])
    if extra or not isinstance(entries, list):
        raise ExpectationError(
            f"{path}: got {', '.join(sorted(extra)) or 'a single table'}, expected [[expect]]"
        )
    return [_entry(entry, f"{path}: entry {n}") for n, entry in enumerate(entries, 1)]


def _entry(entry: dict[str, Any], where: str) -> Expectation:
    required = ("property", "kernel", "kind", "witness", "reason")
    optional = ("when", "device", "dtype", "issue")
    if not isinstance(entry, dict):
        raise ExpectationError(f"{where}: got {entry!r}, expected a table")
    for name in required:
        if not entry.get(name) and entry.get(name) != {}:
            raise ExpectationError(f"{where}: {name} is missing; required: {', '.join(required)}")
    for name in entry:
        if name not in required + optional:
            close = difflib.get_close_matches(name, required + optional, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ExpectationError(f"{where}: got {name!r}, expected a known field{hint}")
        if name != "witness" and not isinstance(entry[name], str):
            raise ExpectationError(f"{where}: {name}: got {entry[name]!r}, expected text")
    if entry["kind"] not in KINDS:
        raise ExpectationError(
            f"{where}: kind: got {entry['kind']!r}, expected one of {', '.join(KINDS)}"
        )
    try:
        witness = case_from(entry["witness"])
    except CaseError as error:
        raise ExpectationError(f"{where}: witness: {error}") from None
    when = entry.get("when")
    return Expectation(
        law=entry["property"],
        kernel=entry["kernel"],
        kind=entry["kind"],
        witness=witness,
        reason=entry["reason"],
        when=when,
        region=None if when is None else _checked_region(when, where),
        device=entry.get("device"),
        dtype=entry.get("dtype"),
        where=where,
    )


def table(
    law: str, kernel: str, kind: str, witness: dict[str, Any], reason: str, **scope: str
) -> str:
    """The TOML table of one expected failure."""

    def value(x: Any) -> str:
        if isinstance(x, str):
            return json.dumps(x, ensure_ascii=False).replace("\x7f", "\\u007F")
        if x is None:
            return '"none"'
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(value(y) for y in x) + "]"
        return str(x).lower() if isinstance(x, bool) else repr(x)

    inline = ", ".join(f"{n} = {value(v)}" for n, v in witness.items())
    lines = [
        "[[expect]]",
        f"property = {value(law)}",
        f"kernel = {value(kernel)}",
        *(f"{n} = {value(v)}" for n, v in scope.items()),
        f"kind = {value(kind)}",
        f"witness = {{ {inline} }}",
        f"reason = {value(reason)}",
    ]
    return "\n".join(lines) + "\n"
