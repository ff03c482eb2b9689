"""The parent of `kernelassay run`: hands items to worker processes and outlives what they do.

A worker that ends in the middle of a case, or says nothing for longer than a case may take, costs
that one item: its record names the case in flight, and a new worker runs the rest. Records are
written to a JSONL file as they finish.
"""

import os
import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelassay import store
from kernelassay.child import INTERPRETER, NATIVE, Child, mode_of
from kernelassay.plan import Item
from kernelassay.properties.case import case_from
from kernelassay.properties.records import Record
from kernelassay.running import leaves_ruins, lost, unusable
from kernelassay.settings import Settings

DIAGNOSIS_LIMIT = 90.0
"""Seconds beyond a case's limit that looking into a counterexample may take."""
LOADING_LIMIT = 900.0
"""Seconds that importing one kernel may take: libraries compile at import."""


class WorkersFailed(Exception):
    """Workers cannot be used at all: a fault of the suite or of the installation."""


@dataclass(frozen=True)
class Request:
    """What to run. Empty *devices*, *dtypes*: what each kernel declares and can be used here."""

    specs: tuple[str, ...]
    laws: tuple[str, ...]
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)
    workers: int = 0


@dataclass(eq=False)
class Run:
    """A run under way, and what has come of it."""

    request: Request
    records_file: Path
    on_change: Callable[["Run", Record | None], None] = lambda run, record: None
    items: list[Item] = field(default_factory=list)
    kernels: dict[str, Any] = field(default_factory=dict)
    broken: dict[str, Record] = field(default_factory=dict)
    done: dict[str, Record] = field(default_factory=dict)
    interrupted: bool = False
    _children: list[Child] = field(default_factory=list)
    _pending: dict[str, deque[Item]] = field(default_factory=dict)
    _inbox: "queue.Queue[tuple[Child, dict[str, Any] | None]]" = field(default_factory=queue.Queue)
    _ever: list[Child] = field(default_factory=list)

    def records(self) -> list[Record]:
        """All records, in the order of the plan; what did not get its turn is `not_run`."""
        missing = {i.id: self._blank(i) for i in self.items if i.id not in self.done}
        for record in missing.values():
            record.ended("not_run", reason="interrupted before it was done")
        return [*self.broken.values(), *({**missing, **self.done}[i.id] for i in self.items)]

    def cases_in_flight(self) -> int:
        """Cases of the items that are running."""
        return sum(c.cases for c in self._children)

    def go(self) -> list[Record]:
        """Run everything; an interruption keeps what is done."""
        try:
            self._load()
            while any(self._pending.values()) or any(c.item for c in self._children):
                self._staff()
                self._hear()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            for child in self._ever:
                child.kill()
                if child.log.stat().st_size == 0:
                    child.log.unlink()
        return self.records()

    def _load(self) -> None:
        """Have one worker load the kernels and make the plan."""
        only_interpreted = self.request.devices == (INTERPRETER,)
        child = self._start(INTERPRETER if only_interpreted else NATIVE)
        while not (child.ready and child in self._children):
            if child not in self._children:  # it went down with a kernel: load the others
                child = self._start(child.mode)
            self._hear()

    def _start(self, mode: str) -> Child:
        folder = store.folder() / "logs"
        folder.mkdir(exist_ok=True)
        log = folder / f"{self.records_file.stem}-worker-{len(self._ever) + 1}.txt"
        child = Child(mode, log, self._inbox)
        self._children.append(child)
        self._ever.append(child)
        request = self.request
        child.ask(
            "load",
            specs=[s for s in request.specs if s not in self.broken],
            laws=request.laws,
            devices=request.devices,
            dtypes=request.dtypes,
            settings=request.settings.to_json(),
        )
        return child

    def _staff(self) -> None:
        """Give idle workers an item, let those go that have none left, start those that pay."""
        for child in list(self._children):
            if child.ready and child.item is None:
                if self._pending.get(child.mode):
                    child.run(self._pending[child.mode].popleft())
                else:
                    child.retire()
                    self._children.remove(child)
        most = self.request.workers or workers_for(self.items)
        for mode, items in self._pending.items():
            here = sum(c.mode == mode for c in self._children)
            while len(items) > 4 * here and len(self._children) < most:
                self._start(mode)
                here += 1

    def _hear(self) -> None:
        """Take one answer, or end a worker that has been silent for too long."""
        try:
            child, answer = self._inbox.get(timeout=0.2)
        except queue.Empty:
            self._watch()
            return
        if child not in self._children:
            return
        child.heard = time.monotonic()
        if answer is None:
            self._ended(child)
        else:
            getattr(self, f"_on_{answer['event']}")(child, answer)
        if self._inbox.empty():
            self._watch()

    def _watch(self) -> None:
        limit = self.request.settings.limit
        for child in list(self._children):
            silent = time.monotonic() - child.heard
            if child.item and silent > limit + (DIAGNOSIS_LIMIT if child.found else grace(limit)):
                child.kill()
                self._give_up(
                    child,
                    "timed_out",
                    f"the case did not come back within {silent:.1f} s (limit {limit:g} s) and "
                    f"could not be interrupted; the process was ended",
                )
            elif not child.ready and silent > LOADING_LIMIT:
                child.kill()
                self._ended(child, f"importing did not come back within {LOADING_LIMIT:g} s")
        self.on_change(self, None)

    def _on_loading(self, child: Child, answer: dict[str, Any]) -> None:
        child.loading = answer["spec"]

    def _on_broken(self, _child: Child, answer: dict[str, Any]) -> None:
        self._break(answer["spec"], answer["kind"], answer["message"])

    def _on_loaded(self, child: Child, answer: dict[str, Any]) -> None:
        child.ready, child.loading = True, None
        if not self._pending:
            self.kernels = answer["kernels"]
            self.items = [Item(**i) for i in answer["items"]]
            for item in self.items:
                self._pending.setdefault(mode_of(item.device), deque()).append(item)

    def _on_case(self, child: Child, answer: dict[str, Any]) -> None:
        child.case, child.cases = case_from(answer["case"]), child.cases + 1

    def _on_found(self, child: Child, answer: dict[str, Any]) -> None:
        child.found = store.record_from(answer["record"])

    def _on_record(self, child: Child, answer: dict[str, Any]) -> None:
        record = store.record_from(answer["record"])
        if leaves_ruins(record):
            self._children.remove(child)
        self._finish(child, record)

    def _on_error(self, child: Child, answer: dict[str, Any]) -> None:
        if child.item is None:
            raise WorkersFailed(f"{answer['reason']}\n{answer['traceback']}")
        record = self._blank(child.item).ended("suite_error", reason=answer["reason"])
        record.traceback = answer["traceback"]
        self._finish(child, record)

    def _ended(self, child: Child, how: str = "") -> None:
        how = how or child.ending()
        if child.item:
            self._give_up(child, "crashed", f"{how} while this case ran")
            return
        self._children.remove(child)
        if child.loading:
            message = f"kernel {child.loading!r}: {how} while it was imported"
            self._break(child.loading, "LoadError", message)
        elif not child.ready:
            raise WorkersFailed(f"a worker cannot start: {how}\n{child.last_words()}")

    def _give_up(self, child: Child, status: str, reason: str) -> None:
        """The item in flight ends with its worker."""
        assert child.item is not None
        self._children.remove(child)
        record = child.found or self._blank(child.item)
        lost(record, status, reason, child.case, child.cases, child.item.spec)
        record.traceback = child.last_words() or None
        store.remember(record, child.item.spec)
        self._finish(child, record)

    def _break(self, spec: str, kind: str, message: str) -> None:
        """A kernel that cannot be loaded: one record, and none of its items runs."""
        record = unusable(spec, kind, message, self.request.settings.level)
        self.broken[spec] = record
        for mode, items in self._pending.items():
            self.items = [i for i in self.items if i.spec != spec or i not in items]
            self._pending[mode] = deque(i for i in items if i.spec != spec)
        self._keep(record)

    def _finish(self, child: Child, record: Record) -> None:
        assert child.item is not None
        self.done[child.item.id] = record
        child.item, child.case, child.cases = None, None, 0
        self._keep(record)

    def _keep(self, record: Record) -> None:
        store.append_line(self.records_file, record.to_json())
        self.on_change(self, record)

    def _blank(self, item: Item) -> Record:
        settings = self.request.settings
        family = item.law.split(".")[0]
        return Record(
            item.law, family, item.kernel, item.dtype, item.device, settings.level, settings.seed
        )


def grace(limit: float) -> float:
    """Seconds beyond a case's limit that a worker may be silent: generation, diagnosis."""
    return max(5.0, limit)


def workers_for(items: list[Item]) -> int:
    """As many workers as there are cores to use, and as the items pay for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if any(i.device == "cuda" for i in items):
        return 1
    return max(1, min(cores or 1, 8, len(items) // 4))
