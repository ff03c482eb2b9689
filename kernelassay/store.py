"""The cases that failed, in .kernelassay/cases.jsonl: one JSON object a line, appended.

Each line is the item's record without its report, with "id" and "spec" (what names the kernel on
a command line) added, so that `kernelassay repro ID` works later.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from kernelassay.properties.records import Record

FOLDER = Path(".kernelassay")
LEFT_OUT = ("report", "traceback", "labels", "watched", "backends")


class StoreError(LookupError):
    """A case id that is not in the store; says what is."""


def folder() -> Path:
    """The folder of what runs leave behind, made if need be; git ignores it."""
    if not FOLDER.is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / ".gitignore").write_text("*\n")
    return FOLDER


def finite(value: Any) -> Any:
    """*value* for JSON, which has no infinities and no NaN: they become text."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append one JSON line by a single write, so that processes may write to one file."""
    line = json.dumps(finite(value), allow_nan=False) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def remember(record: Record, spec: str) -> None:
    """Keep the counterexample of *record*, if it has one."""
    if record.case is None or record.case_id is None:
        return
    fields = {k: v for k, v in record.to_json().items() if k not in LEFT_OUT}
    append_line(folder() / "cases.jsonl", {"id": record.case_id, "spec": spec, **fields})


def entries() -> list[dict[str, Any]]:
    """All lines, the oldest first; lines that cannot be read are passed over."""
    path = FOLDER / "cases.jsonl"
    if not path.is_file():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict) and {"id", "spec", "law", "case"} <= set(value):
            found.append(value)
    return found


def find(case: str) -> list[dict[str, Any]]:
    """The newest line of each item whose case id begins with *case*, the newest of all last."""
    lines = entries()
    ids = {line["id"] for line in lines if line["id"].startswith(case)} if case else set()
    if len(ids) > 1:
        raise StoreError(f"case {case!r}: {', '.join(sorted(ids))} begin so; write more of it")
    if not ids:
        newest = list(dict.fromkeys(line["id"] for line in reversed(lines)))[:5]
        known = f"the newest there are {', '.join(newest)}" if newest else "there are none"
        raise StoreError(
            f"case {case!r}: no such id in {FOLDER / 'cases.jsonl'} (of {Path.cwd()}); {known}. "
            f"Run it again here, or give the whole case: kernelassay run --case LITERAL"
        )
    by_item: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        if line["id"] in ids:
            key = (line["law"], line["kernel"], line["dtype"], line["device"])
            by_item.pop(key, None)
            by_item[key] = line
    return list(by_item.values())


def record_from(value: dict[str, Any]) -> Record:
    """What `Record.to_json` made."""
    ratios = {n: float(value[n]) for n in ("ratio", "worst", "z_rms") if value.get(n) is not None}
    return Record(**{**value, **ratios})
