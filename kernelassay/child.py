"""One worker process as its parent sees it: what it runs, since when, and how it ended."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kernelassay.plan import Item
from kernelassay.properties.case import Case
from kernelassay.properties.records import Record

NATIVE, INTERPRETER = "native", "interpreter"


def mode_of(device: str) -> str:
    """The kind of process in which items of *device* run."""
    return INTERPRETER if device == INTERPRETER else NATIVE


@dataclass(eq=False)
class Child:
    """A worker process; its answers arrive in *inbox* as (child, answer), None at its end."""

    mode: str
    log: Path
    inbox: "queue.Queue[tuple[Child, dict[str, Any] | None]]"
    process: "subprocess.Popen[str]" = field(init=False)
    loading: str | None = None
    ready: bool = False
    item: Item | None = None
    case: Case | None = None
    cases: int = 0
    found: Record | None = None
    heard: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        env.pop("TRITON_INTERPRET", None)
        if self.mode == INTERPRETER:
            env["TRITON_INTERPRET"] = "1"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kernelassay.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # an interrupt from the terminal is the parent's to handle
            )
        assert self.process.stdout is not None
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def _listen(self, answers: IO[str]) -> None:
        with (
            answers,
            contextlib.suppress(ValueError),
        ):  # a line cut short by its end
            for line in answers:
                self.inbox.put((self, json.loads(line)))
        self.inbox.put((self, None))

    def ask(self, do: str, **facts: Any) -> None:
        """Send one request; that a process has ended shows when its answers end."""
        assert self.process.stdin is not None
        self.heard = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": do, **facts}) + "\n")
            self.process.stdin.flush()

    def run(self, item: Item) -> None:
        """Hand out *item*."""
        self.item, self.case, self.cases, self.found = item, None, 0, None
        self.ask("run", item=item.to_json())

    def retire(self) -> None:
        """Let the process end; there is nothing left for it to do."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def kill(self) -> None:
        """End the process and what it started, now."""
        self.retire()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ending(self) -> str:
        """How the process ended, in words."""
        self.retire()
        code = self.process.wait()
        if code < 0:
            return f"the process was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"the process ended with exit code {code}"

    def last_words(self, lines: int = 12) -> str:
        """The end of what it wrote to standard error."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
