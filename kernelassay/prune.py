"""`kernelassay expect --prune`: reruns each witness and drops the entries that no longer fail."""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernelassay import store
from kernelassay.cli import FAULTS, NOTHING_WRONG, Unusable
from kernelassay.loading import Loaded, LoadError, load_kernel, published
from kernelassay.plan import plan
from kernelassay.properties.expectations import Expectation, ExpectationError, Expectations
from kernelassay.properties.property import REGISTRY
from kernelassay.properties.records import Record
from kernelassay.running import run_item
from kernelassay.settings import Settings

HEADER = "[[expect]]"


def prune(path: Path, specs: Sequence[str], limit: float) -> int:
    """Print what becomes of each entry and rewrite the file; 1 if a witness fails otherwise."""
    try:
        options = Settings(level="replay", limit=limit, expect=(str(path),)).options()
        entries = Expectations.load(path).entries
    except ExpectationError as error:
        raise Unusable(str(error)) from None
    kernels = _kernels(entries, specs)
    verdicts = []
    for entry in entries:
        kernel = kernels.get(entry.kernel)
        verdict, detail = ("NOT RUN", "no kernel of this name is known; add --kernel SPEC")
        if kernel is not None:
            alone = replace(options, case=entry.witness, expectations=Expectations(), shrink=False)
            items = plan([kernel], [REGISTRY[entry.law]], _one(entry.device), _one(entry.dtype))
            records = [run_item(REGISTRY[entry.law], kernel, i, alone) for i in items]
            verdict, detail = _verdict(entry, records)
        verdicts.append(verdict)
        print(f"{verdict:<13} {entry.law} on {entry.kernel}: {detail}")
    fixed = {n for n, verdict in enumerate(verdicts) if verdict == "FIXED"}
    if fixed:
        path.write_text(without(path.read_text(), fixed))
    print(f"{path}: {len(fixed)} of {len(verdicts)} entries dropped")
    return FAULTS if "FAILS ANEW" in verdicts else NOTHING_WRONG


def _one(value: str | None) -> tuple[str, ...]:
    return () if value is None else (value,)


def _kernels(entries: Sequence[Expectation], specs: Sequence[str]) -> dict[str, Loaded]:
    """Kernels by name: those given, else those that earlier runs or packages name."""
    found: dict[str, Loaded] = {}
    for spec in specs:
        try:
            found.update({k.name: k for k in load_kernel(spec)})
        except LoadError as error:
            raise Unusable(str(error)) from None
    seen = {line["kernel"]: line["spec"] for line in store.entries()}
    for name in {e.kernel for e in entries} - set(found):
        if name in seen or name in published():
            try:
                loaded = load_kernel(seen.get(name, name))
            except LoadError as error:
                print(f"kernelassay: {error}")
            else:
                found.update({k.name: k for k in loaded if k.name == name})
    return found


def _verdict(entry: Expectation, records: Sequence[Record]) -> tuple[str, str]:
    ran = [r for r in records if r.status in ("passed", "failed", "timed_out", "device_lost")]
    wrong = [r for r in ran if r.status != "passed"]
    if not ran:
        why = records[0].reason if records else "it declares no such device or dtype"
        return "NOT RUN", why
    if not wrong:
        missed = len(records) - len(ran)
        if missed:
            return "NOT RUN", f"the witness passes here; {missed} items could not run"
        return "FIXED", entry.reason
    if any(r.kind == entry.kind for r in wrong):
        return "still fails", entry.reason
    kinds = ", ".join(sorted({r.kind or r.status for r in wrong}))
    return "FAILS ANEW", f"with {kinds}, expected {entry.kind}; look again"


def without(text: str, dropped: set[int]) -> str:
    """The file without those entries; comments right above an entry go with it, others stay."""
    lines = text.splitlines(keepends=True)
    heads = [n for n, line in enumerate(lines) if line.split("#")[0].strip() == HEADER]
    starts = [_lead(lines, head) for head in heads]
    ends = [*starts[1:], len(lines)]
    gone = {n for entry in dropped for n in range(starts[entry], ends[entry])}
    kept = "".join(line for n, line in enumerate(lines) if n not in gone)
    try:
        before, after = (tomllib.loads(t).get("expect", []) for t in (text, kept))
    except tomllib.TOMLDecodeError:
        before, after = [], [{}]
    if after != [e for n, e in enumerate(before) if n not in dropped]:
        raise Unusable("expect --prune: the file's layout is not understood; drop them by hand")
    return kept.strip("\n") + "\n" if kept.strip() else ""


def _lead(lines: Sequence[str], head: int) -> int:
    """The first of the comment lines right above line *head*."""
    while head and lines[head - 1].lstrip().startswith("#"):
        head -= 1
    return head
