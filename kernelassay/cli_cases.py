"""`kernelassay repro`, `keep` and `expect`: what to do with a case that failed."""

import argparse
import sys
from pathlib import Path
from typing import Any

from kernelassay import store
from kernelassay.cli import NOTHING_WRONG, Unusable
from kernelassay.properties.case import Case, case_from, to_json
from kernelassay.properties.expectations import ExpectationError, Expectations, table
from kernelassay.properties.failures import KINDS
from kernelassay.properties.regressions import RegressionError, Regressions, line


def found(case: str) -> tuple[dict[str, Any], Case]:
    """The newest item that failed on the case of this id."""
    try:
        entries = store.find(case)
    except store.StoreError as error:
        raise Unusable(str(error)) from None
    newest = entries[-1]
    if len(entries) > 1:
        others = ", ".join(f"{e['kernel']}-{e['dtype']}-{e['device']}" for e in entries[:-1])
        print(
            f"kernelassay: {newest['id']} failed on {newest['kernel']}-{newest['dtype']}-"
            f"{newest['device']} last; on {others} before",
            file=sys.stderr,
        )
    return newest, case_from(newest["case"])


def repro(args: argparse.Namespace) -> int:
    """Print the script."""
    from kernelassay.script import repro_script

    entry, _ = found(args.id)
    print(repro_script(entry, entry["spec"]).rstrip("\n"))
    return NOTHING_WRONG


def keep(args: argparse.Namespace) -> int:
    """Append the case to a regression file, once."""
    entry, case = found(args.id)
    path = Path(args.file)
    try:
        known = Regressions.load(path).entries if path.exists() else ()
    except RegressionError as error:
        raise Unusable(f"{error}; mend it first") from None
    if any((k.law, k.kernel, k.case) == (entry["law"], entry["kernel"], case) for k in known):
        print(f"{path}: has case {entry['id']} of {entry['law']} already")
        return NOTHING_WRONG
    note = args.note or f"{entry['kind'] or entry['status']} ({entry['dtype']}, {entry['device']})"
    _append(path, line(entry["law"], entry["kernel"], case, note))
    print(f"{path}: case {entry['id']} of {entry['law']} is kept for {entry['kernel']}")
    return NOTHING_WRONG


def expect(args: argparse.Namespace) -> int:
    """Append a table to an expected-failure file, or prune the file."""
    if args.prune:
        from kernelassay.prune import prune

        return prune(Path(args.file), args.kernel, args.timeout)
    if not args.id or not (args.reason or "").strip():
        raise Unusable(
            "expect: got no "
            + ("case id" if not args.id else "reason")
            + '; write kernelassay expect ID --reason "why it is left as it is", or expect --prune'
        )
    entry, case = found(args.id)
    if entry["kind"] not in KINDS:
        what = entry["kind"] or entry["status"].replace("_", " ")
        raise Unusable(
            f"expect: case {entry['id']} ended as {what}, which cannot be expected: it would end "
            f"every run; decline the feature in capabilities.declines until it is mended"
        )
    _append(Path(args.file), _checked_table(Path(args.file), entry, case, args.reason.strip()))
    print(
        f"{args.file}: {entry['law']} on {entry['kernel']} is expected to fail ({entry['kind']})"
    )
    return NOTHING_WRONG


def _checked_table(path: Path, entry: dict[str, Any], case: Case, reason: str) -> str:
    """The new table; the file as it is must be sound and not have it yet."""
    law, kernel, scope = entry["law"], entry["kernel"], (entry["dtype"], entry["device"])
    try:
        known = Expectations.load(path).entries if path.exists() else ()
    except ExpectationError as error:
        raise Unusable(f"{error}; mend it first") from None
    for e in known:
        if e.matches(law, kernel, *scope) and e.witness == case:
            raise Unusable(f"{e.where}: expects this case already: {e.reason}")
    text = table(
        law, kernel, entry["kind"], to_json(case), reason, dtype=scope[0], device=scope[1]
    )
    return f"\n{text}" if path.exists() and path.read_text().strip() else text


def _append(path: Path, text: str) -> None:
    try:
        before = path.read_text() if path.exists() else ""
        if before and not before.endswith("\n"):
            text = "\n" + text
        with path.open("a") as file:
            file.write(text)
    except OSError as error:
        raise Unusable(f"{path}: cannot be written: {error.strerror}") from None
