"""Running items in this process: one law on one kernel, whatever becomes of it."""

import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelassay import store
from kernelassay.assay import reported
from kernelassay.loading import Loaded, load_kernel
from kernelassay.plan import (
    Item,
    PlanError,
    check_expectations,
    device_problem,
    is_triton,
    plan,
    usual_devices,
)
from kernelassay.properties.case import (
    AttendCase,
    CaseError,
    case_from,
    case_id,
    literal,
    parse_case,
    to_json,
)
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.engine import Options
from kernelassay.properties.engine import check as run_law
from kernelassay.properties.expectations import ExpectationError, Expectations
from kernelassay.properties.failures import DeviceLost, TimedOut
from kernelassay.properties.property import Property, select
from kernelassay.properties.records import WRONG, Record
from kernelassay.properties.regressions import RegressionError, Regressions
from kernelassay.properties.subject import Subject

UNUSABLE = (PlanError, CaseError, ExpectationError, RegressionError, LookupError)
"""What unusable arguments raise; the message says all. (`LoadError` is a kernel's own affair.)"""


@dataclass(frozen=True)
class Settings:
    """How to run, as plain values that can be sent to another process."""

    level: str = "smoke"
    seed: int | None = None
    limit: float = 60.0
    case: str | None = None
    expect: tuple[str, ...] = ()
    regressions: tuple[str, ...] = ()

    def options(self) -> Options:
        """The engine's options; files and literals are read and checked here."""
        select()
        try:
            expectations = Expectations.load(*self.expect)
            regressions = Regressions.load(*self.regressions)
        except UnicodeDecodeError as error:
            files = ", ".join((*self.expect, *self.regressions))
            raise ExpectationError(f"{files}: not UTF-8 text: {error}") from None
        check_expectations(expectations)
        return Options(
            level=self.level,
            seed=self.seed,
            limit=self.limit,
            case=None if self.case is None else case_of(self.case),
            expectations=expectations,
            regressions=regressions,
        )

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Settings":
        """What `to_json` made."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in value.items()
        }
        return cls(**fields)


def case_of(text: str) -> AttendCase:
    """The case that *text* is: a literal, or the id of one that failed here before."""
    if re.fullmatch(r"[0-9a-f]{4,8}", text.strip()):
        return case_from(store.find(text.strip())[-1]["case"])
    return parse_case(text)


def nobody(seen: Any) -> None:
    """Nobody watches."""


@dataclass(eq=False)
class _Watch:
    """Passes cases on; remembers how many there were and which one is running."""

    on_case: Callable[[AttendCase], None]
    cases: int = 0
    current: AttendCase | None = field(default=None)

    def __call__(self, case: AttendCase) -> None:
        self.cases += 1
        self.current = case
        self.on_case(case)


def run_item(
    prop: Property,
    kernel: Loaded,
    item: Item,
    options: Options,
    on_case: Callable[[AttendCase], None] = nobody,
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
    try:
        with _interpreter(item.device):
            outcome = run_law(prop, subject, options, watch)
            record = outcome.record
            if outcome.found:
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


@contextmanager
def _interpreter(device: str) -> Iterator[None]:
    """Around interpreted launches: the interpreter mended, numpy silent (log2(0) is meant)."""
    if device != "interpreter":
        yield
        return
    import numpy as np

    from kernelassay.impls.interpreter import mend

    mend()
    with np.errstate(all="ignore"):
        yield


TITLES = {
    "timed_out": "TIMED OUT",
    "crashed": "CRASHED",
    "device_lost": "DEVICE LOST",
    "failed": "FAILED",
}
"""The verdicts of records that have no counterexample of a law."""


def lost(
    record: Record, status: str, reason: str, case: AttendCase | None, cases: int, spec: str
) -> Record:
    """*record* of an item whose case never came back, with a report of it."""
    if record.status == "failed":  # the law had failed before: that is the finding
        record.report = plain_report(record, spec, None if record.case is None else case)
        if status == "device_lost":
            record.also.append("DeviceLost")
        record.report += f"\nWhile the counterexample was looked into: {reason}"
        return record
    record.ended(status, reason=reason)
    record.cases = max(cases, record.cases)
    if case is not None:
        record.case, record.case_id = to_json(case), case_id(record.law, case)
    record.report = record.report or plain_report(record, spec, case)
    return record


def plain_report(record: Record, spec: str, case: AttendCase | None = None) -> str:
    """What is known where nothing could be compared: verdict, case in flight, how to rerun it."""
    head = f"FAILED {record.law}  kernel={record.kernel}  dtype={record.dtype}"
    title = (record.kind or TITLES.get(record.status, record.status)).upper()
    lines = [f"{head}  device={record.device}", "", f"{title}: {record.reason}"]
    if case is not None:
        rerun = f"kernelassay run --kernel {spec} --law {record.law} --dtype {record.dtype}"
        lines += [
            f"Case in flight (number {record.cases}, not shrunk): {case!r}",
            "",
            f'Rerun:    {rerun} --device {record.device} --case "{literal(case)}"',
            f"Script:   kernelassay repro {record.case_id} > repro.py",
        ]
    return "\n".join(lines)


def device_is_lost(record: Record) -> bool:
    """Whether this process can do nothing more on the device of *record*."""
    return record.status == "device_lost" or "DeviceLost" in record.also


def report_of(record: Record, spec: str) -> str:
    """The report of a record that is wrong, whoever rendered it."""
    return record.report or record.traceback or plain_report(record, spec)


class KernelFailed(AssertionError):
    """A kernel breaks laws; its message is their reports, *records* are all of the run."""

    def __init__(self, records: list[Record]) -> None:
        reports = [r.report or f"{r.item}: {r.reason}" for r in records if r.status in WRONG]
        super().__init__("\n\n".join(reports))
        self.records = records


def check(
    kernel: Any,
    *patterns: str,
    level: str = "smoke",
    seed: int | None = 0,
    device: str | None = None,
    dtype: str | None = None,
    expect: str | Path | Iterable[str | Path] = (),
    limit: float = 60.0,
    raise_on_failure: bool = False,
) -> list[Record]:
    """Run laws on *kernel*, an adapter or the text that names one, and hand back their records.

    *patterns* select laws by name ("attention.*") or family ("alignment"); without one all run.
    Without *device*: those that the kernel declares and this process can use.
    """
    several = [expect] if isinstance(expect, (str, Path)) else expect
    options = Settings(level, seed, limit, expect=tuple(map(str, several))).options()
    laws = {p.name: p for p in select(*patterns)}
    records: list[Record] = []
    for loaded in as_loaded(kernel):
        devices = (device,) if device else usual_devices(loaded.adapter)
        for item in plan([loaded], list(laws.values()), devices, (dtype,) if dtype else ()):
            records.append(_next(records, laws[item.law], loaded, item, options))
    if raise_on_failure and any(r.status in WRONG for r in records):
        raise KernelFailed(records)
    return records


def _next(
    before: list[Record], prop: Property, loaded: Loaded, item: Item, options: Options
) -> Record:
    """The next record; once the device is lost nothing runs on it any more."""
    if any(device_is_lost(r) and r.device == item.device for r in before):
        subject = Subject(loaded.adapter, item.dtype, item.device)
        record = Record.of(prop, subject, options.level, options.seed)
        return record.ended("not_run", reason="the device was lost before")
    return run_item(prop, loaded, item, options)


def as_loaded(kernel: Any, *modules: ModuleType) -> list[Loaded]:
    """Adapters given as text, as an object (that *modules* may name), or several of either."""
    from kernelassay.impls.contract import checked_adapter

    if isinstance(kernel, str):
        return load_kernel(kernel)
    if isinstance(kernel, Loaded):
        return [kernel]
    if isinstance(kernel, (list, tuple)):
        return [loaded for each in kernel for loaded in as_loaded(each, *modules)]
    return [Loaded(spec_of(kernel, *modules), checked_adapter(kernel))]


def spec_of(adapter: Any, *modules: ModuleType) -> str:
    """What names *adapter* on a command line, if the module of its class or one of these does."""
    home = sys.modules.get(type(adapter).__module__)
    for module in (*modules, *([home] if home else [])):
        for name, value in list(vars(module).items()):
            if value is adapter:
                return f"{_importable(module)}:{name}"
    return str(getattr(adapter, "name", type(adapter).__name__))


def _importable(module: ModuleType) -> str:
    """A single file under the current folder by its path, anything else by its name."""
    file = Path(module.__file__ or "/")
    if "." not in module.__name__ and file.is_relative_to(Path.cwd()):
        return str(file.relative_to(Path.cwd()))
    return module.__name__
