"""Checking a kernel from Python, without pytest."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelassay.loading import Loaded, load_kernel, present
from kernelassay.plan import Item, plan, usual_devices
from kernelassay.properties.engine import Options
from kernelassay.properties.property import Property, select
from kernelassay.properties.records import WRONG, Record
from kernelassay.properties.subject import Subject
from kernelassay.running import device_is_lost, run_item
from kernelassay.settings import Settings


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
    limit: float = 120.0,
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
    return [present(Loaded(spec_of(kernel, *modules), checked_adapter(kernel)))]


def spec_of(adapter: Any, *modules: ModuleType) -> str:
    """What names *adapter* on a command line, if its class's module or one of *modules* does."""
    home = sys.modules.get(type(adapter).__module__)
    for module in (*([home] if home else []), *modules):
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
