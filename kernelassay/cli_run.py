"""`kernelassay run`: check the arguments, run everything in workers, write what came of it."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelassay import store
from kernelassay.alike import alike, others
from kernelassay.cli import INTERRUPTED, SUITE_FAILED, UNUSABLE, Unusable
from kernelassay.parent import Request, Run, WorkersFailed
from kernelassay.plan import cuda_available, plan, unmatched
from kernelassay.progress import Progress
from kernelassay.properties.property import REGISTRY, select
from kernelassay.properties.records import Record, run_document
from kernelassay.running import report_of
from kernelassay.settings import UNUSABLE as UNUSABLE_INPUT
from kernelassay.settings import Settings
from kernelassay.summary import (
    LEGEND,
    device_lines,
    exit_code,
    is_wrong,
    summary_line,
    table,
)


def main(args: argparse.Namespace) -> int:
    """Run; the exit code."""
    request = checked(args)
    store.folder()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    file = store.FOLDER / f"run-{stamp}-{os.getpid()}.jsonl"
    progress = Progress()
    run = Run(request, file, progress)
    began = time.perf_counter()
    with _terminated_like_interrupted():
        try:
            records = run.go()
        except WorkersFailed as error:
            print(f"kernelassay: the suite failed: {error}", file=sys.stderr)
            return SUITE_FAILED
        finally:
            progress.end()
    if run.broken and not run.kernels:
        raise Unusable(*(r.reason for r in run.broken.values()))
    text = written(run, records, strict=args.strict_features)
    print(text)
    _save(args.text, text + "\n")
    if args.json:
        seconds = round(time.perf_counter() - began, 2)
        made = store.finite(document(run, records, seconds))
        _save(args.json, json.dumps(made, indent=1, allow_nan=False) + "\n")
    return _code(run, records, strict=args.strict_features)


def checked(args: argparse.Namespace) -> Request:
    """The request, if the arguments can be used; `Unusable` says why not."""
    settings = Settings(
        level=args.level,
        seed=args.seed,
        limit=args.timeout,
        case=args.case,
        expect=tuple(args.expect),
        regressions=tuple(args.regressions),
    )
    patterns = [*(f"{family}.*" for family in args.family), *args.law]
    try:
        options = settings.options()
        laws = select(*patterns)
        plan([], laws, args.device, args.dtype)
    except UNUSABLE_INPUT as error:
        raise Unusable(str(error)) from None
    if options.case is not None and len(laws) != 1:
        raise Unusable(
            f"--case: got a case and {len(laws)} laws, expected one law to judge it by; "
            f"add --law NAME"
        )
    if "cuda" in args.device and not cuda_available():
        raise Unusable("--device cuda: there is no CUDA device here (torch finds none)")
    for path in (args.json, args.text):
        if path and not Path(path).resolve().parent.is_dir():
            raise Unusable(f"{path}: its folder is not there; make it, or write elsewhere")
    return Request(
        specs=tuple(dict.fromkeys(args.kernel)),
        laws=tuple(p.name for p in laws),
        devices=tuple(dict.fromkeys(args.device)),
        dtypes=tuple(dict.fromkeys(args.dtype)),
        settings=settings,
        workers=args.workers,
    )


def written(run: Run, records: Sequence[Record], *, strict: bool) -> str:
    """Reports of what is wrong, one for failures that are the same, the table, the counts."""
    specs = {name: kernel["spec"] for name, kernel in run.kernels.items()}
    wrong = [
        r
        for r in records
        if r.status == "suite_error" or (is_wrong(r) and r.law != "contract.adapter")
    ]
    parts = []
    for group in alike(wrong):
        first = group[0]
        parts.append(report_of(first, specs.get(first.kernel, first.kernel)))
        if len(group) > 1:
            parts.append(others(group))
    parts += [report_of(r, spec) for spec, r in run.broken.items()]
    tried = [r for r in records if r.law != "contract.adapter"]
    if tried:
        parts += [table(tried), LEGEND]
    notes = device_lines(records)
    if tried:
        notes += unmatched(run.request.settings.options().expectations, run.items)
    if strict and any(r.status == "undeclared" for r in records):
        notes.append("--strict-features: what is UNDECLARED must be supported or declined")
    if run.interrupted:
        notes.append(f"interrupted; finished records are in {run.records_file}")
    return "\n\n".join([*parts, "\n".join([*notes, summary_line(records)])])


def document(run: Run, records: Sequence[Record], seconds: float) -> dict[str, Any]:
    """The run as JSON."""
    settings = run.request.settings
    return run_document(
        list(records),
        level=settings.level,
        seed=settings.seed,
        seconds=seconds,
        interrupted=run.interrupted,
        laws={name: REGISTRY[name].sentence for name in run.request.laws},
        kernels=run.kernels,
    )


def _code(run: Run, records: Sequence[Record], *, strict: bool) -> int:
    if run.interrupted:
        return INTERRUPTED
    tried = [r for r in records if r.law != "contract.adapter"]
    if not tried:
        message = "no kernel declares these devices and dtypes; nothing was run"
        print(f"kernelassay: {message}", file=sys.stderr)
        return UNUSABLE
    if all(r.status == "no_device" for r in tried):
        print("kernelassay: no item found its device; nothing was run", file=sys.stderr)
        return UNUSABLE
    return exit_code(records, strict=strict)


def _save(path: str | None, text: str) -> None:
    """Write a whole file or none."""
    if not path:
        return
    part = Path(f"{path}.part")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        raise Unusable(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends a run as an interrupt does: what is done is kept."""

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)  # also where the shell had us ignore it
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
