"""Running items in this process: one law on one kernel, whatever becomes of it."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from kernelassay import store
from kernelassay.assay import reported
from kernelassay.loading import UNAVAILABLE, Loaded
from kernelassay.messages import paragraph
from kernelassay.plan import (
    Item,
    device_problem,
    is_triton,
)
from kernelassay.properties.case import (
    AttendCase,
    Case,
    case_id,
    literal,
    to_json,
)
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.engine import Options
from kernelassay.properties.engine import check as run_law
from kernelassay.properties.failures import DeviceLost, TimedOut
from kernelassay.properties.memory import Watch
from kernelassay.properties.property import Property
from kernelassay.properties.records import WRONG, Record
from kernelassay.properties.subject import Subject


def nobody(seen: Any) -> None:
    """Nobody watches."""


@dataclass(eq=False)
class _Watch:
    """Passes cases on; remembers how many there were and which one is running."""

    on_case: Callable[[Case], None]
    cases: int = 0
    current: Case | None = field(default=None)

    def __call__(self, case: Case) -> None:
        self.cases += 1
        self.current = case
        self.on_case(case)


def run_item(
    prop: Property,
    kernel: Loaded,
    item: Item,
    options: Options,
    on_case: Callable[[Case], None] = nobody,
    on_found: Callable[[Record], None] = nobody,
) -> Record:
    """The record of *item*; nothing but an interruption gets out. A counterexample is kept.

    *on_case* is called before each case, *on_found* with the record of a law that failed, before
    the counterexample is looked into.
    """
    subject = Subject(kernel.adapter, item.dtype, item.device)
    record = Record.of(prop, subject, options.level, options.seed)
    if why := device_problem(item.device, triton=is_triton(kernel.adapter)):
        return record.ended("no_device", reason=why)
    if options.case and (missing := lacking(options.case, domain_of(subject))):
        return record.ended("not_applicable", reason=f"the case needs {', '.join(missing)}")
    watch = _Watch(on_case)
    _warm_up()
    try:
        outcome = run_law(prop, subject, options, watch)
        record = outcome.record
        if outcome.found and options.shrink:
            on_found(record)
            record.report = reported(prop, subject, outcome, kernel.spec)
    except TimedOut as late:
        lost(record, "timed_out", str(late.args[0]), watch.current, watch.cases, kernel.spec)
    except DeviceLost as gone:
        lost(record, "device_lost", str(gone), watch.current, watch.cases, kernel.spec)
    except Exception as error:  # the suite's own fault is not the kernel's
        record.ended("suite_error", reason=f"{type(error).__name__}: {error}")
        record.traceback = "".join(traceback.format_exception(error))
    if record.status in WRONG:
        store.remember(record, kernel.spec)
    return record


@cache
def _warm_up() -> None:
    """What torch imports with the first dispatch mode takes seconds: no case's fault."""
    with Watch():
        torch.empty(1)


TITLES = {
    "timed_out": "TIMED OUT",
    "crashed": "CRASHED",
    "device_lost": "DEVICE LOST",
    "failed": "FAILED",
}
"""The verdicts of records that have no counterexample of a law."""
LOOKED_INTO = "While the counterexample was looked into: "


def lost(
    record: Record, status: str, reason: str, case: Case | None, cases: int, spec: str
) -> Record:
    """*record* of an item whose case never came back, with a report of it."""
    if record.status == "failed":  # the law had failed before: that is the finding
        record.report = plain_report(record, spec, None if record.case is None else case)
        if status == "device_lost":
            record.also.append("DeviceLost")
        record.report += f"\n{LOOKED_INTO}{reason}"
        return record
    record.ended(status, reason=reason)
    record.cases = max(cases, record.cases)
    if case is not None:
        record.case, record.case_id = to_json(case), case_id(record.law, case)
    record.report = record.report or plain_report(record, spec, case)
    return record


def unusable(spec: str, kind: str, message: str, level: str) -> Record:
    """The one record of a kernel that cannot be loaded; without its library it is no fault."""
    record = Record("contract.adapter", "contract", spec, "-", "-", level)
    record.ended("unavailable" if kind == UNAVAILABLE else "failed", reason=message).kind = kind
    record.report = plain_report(record, spec)
    return record


def plain_report(record: Record, spec: str, case: Case | None = None) -> str:
    """What is known where nothing could be compared: verdict, case in flight, how to rerun it."""
    if record.law == "contract.adapter":
        kind = "" if record.status == "unavailable" else f"{record.kind}: "
        return paragraph(f"kernelassay: {kind}{record.reason}")
    head = f"FAILED {record.law}  kernel={record.kernel}  dtype={record.dtype}"
    title = (record.kind or TITLES.get(record.status, record.status)).upper()
    lines = [f"{head}  device={record.device}", "", paragraph(f"{title}: {record.reason}")]
    if record.status == "timed_out":
        lines.append(paragraph(advice(record, case)))
    if case is not None:
        rerun = f"kernelassay run --kernel {spec} --law {record.law} --dtype {record.dtype}"
        lines += [
            f"Case in flight (number {record.cases}, not shrunk): {case!r}",
            "",
            f"Rerun:    {rerun} --device {record.device} \\",
            f'            --case "{literal(case)}"',
            f"Script:   kernelassay repro {record.case_id} > repro.py",
        ]
    return "\n".join(lines)


def advice(record: Record, case: Case | None) -> str:
    """What to try where a case ran out of time: one sentence."""
    ways = ["a longer --timeout (under pytest --assay-timeout)"]
    if record.level in ("pr", "nightly"):
        ways.append(f"a lower --level than {record.level}, which has fewer cases")
    if record.device == "interpreter":
        if isinstance(case, AttendCase):  # the sizes of other cases do not depend on it
            limit = 'Capabilities(work_limit={"interpreter": n})'
            ways.append(f"{limit}, which allows a launch n tile steps")
        ways.append("--device cuda")
    return f"If the kernel is slow and does not hang, try {', or '.join(ways)}."


def leaves_ruins(record: Record) -> bool:
    """Whether the process should run nothing more: whatever was interrupted may be half done."""
    return record.status == "timed_out" or device_is_lost(record)


def device_is_lost(record: Record) -> bool:
    """Whether this process can do nothing more on the device of *record*."""
    return record.status == "device_lost" or "DeviceLost" in record.also


def report_of(record: Record, spec: str) -> str:
    """The report of a record that is wrong, whoever rendered it."""
    return record.report or record.traceback or plain_report(record, spec)
