"""A worker of `kernelassay run`: a process that loads kernels and runs one item at a time.

It reads requests from its standard input and answers on its standard output, one JSON object a
line. What a kernel prints goes to standard error.

    request   {"do": "load", "specs": [...], "laws": [...], "devices": [...], "dtypes": [...],
               "settings": {...}}; no devices: the usual ones of each kernel
    answers   {"event": "loading", "spec": ...} before each kernel, then
              {"event": "broken", "spec": ..., "kind": ..., "message": ...} where it is no use,
              {"event": "loaded", "items": [...], "kernels": {...}} at the end
    request   {"do": "run", "item": {...}}
    answers   {"event": "case", "case": {...}} before each case,
              {"event": "found", "record": {...}} when the law has failed, before the diagnosis,
              {"event": "record", "record": {...}} at the end
"""

import faulthandler
import json
import os
import queue
import sys
import threading
import traceback
from typing import IO, Any

from kernelassay.loading import Loaded, LoadError, load_kernel


class Worker:
    """Answers requests until its input ends."""

    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self._answers = answers
        self._requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self._kernels: dict[tuple[str, str], Loaded] = {}
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()

    def _listen(self, requests: IO[str]) -> None:
        """Queue the requests; the parent's end is ours, in the middle of a case as well."""
        for line in requests:
            self._requests.put(json.loads(line))
        os._exit(0)

    def say(self, event: str, **facts: Any) -> None:
        """One answer."""
        self._answers.write(json.dumps({"event": event, **facts}) + "\n")
        self._answers.flush()

    def serve(self) -> None:
        """Answer requests, one after the other."""
        while True:
            request = self._requests.get()
            try:
                {"load": self.load, "run": self.run}[request["do"]](request)
            except Exception as error:  # whatever it is, the parent must hear of it
                self.say(
                    "error",
                    reason=f"{type(error).__name__}: {error}",
                    traceback=traceback.format_exc(),
                )

    def load(self, request: dict[str, Any]) -> None:
        """Load kernels and say which items there are for this process."""
        from kernelassay.plan import plan, usual_devices
        from kernelassay.properties.property import select
        from kernelassay.settings import Settings

        self._options = Settings.from_json(request["settings"]).options()
        self._laws = {p.name: p for p in select(*request["laws"])}
        for spec in request["specs"]:
            self.say("loading", spec=spec)
            try:
                found = load_kernel(spec)
                plan([*self._kernels.values(), *found], [])
            except LoadError as error:
                self.say("broken", spec=spec, kind=error.kind, message=str(error))
            else:
                self._kernels.update({(spec, k.name): k for k in found})
        order = {name: n for n, name in enumerate(self._laws)}
        items = [
            item
            for kernel in self._kernels.values()
            for item in plan(
                [kernel],
                list(self._laws.values()),
                request["devices"] or usual_devices(kernel.adapter),
                request["dtypes"],
            )
        ]
        # Items that share inputs and oracles lie side by side.
        items.sort(key=lambda i: (order[i.law], i.device, i.dtype))
        kernels = {k.name: _described(k) for k in self._kernels.values()}
        self.say("loaded", items=[i.to_json() for i in items], kernels=kernels)

    def run(self, request: dict[str, Any]) -> None:
        """Run one item."""
        from kernelassay.plan import Item
        from kernelassay.properties.case import to_json
        from kernelassay.running import leaves_ruins, run_item

        item = Item(**request["item"])
        kernel = self._kernels[item.spec, item.kernel]
        record = run_item(
            self._laws[item.law],
            kernel,
            item,
            self._options,
            lambda case: self.say("case", case=to_json(case)),
            lambda record: self.say("found", record=record.to_json()),
        )
        self.say("record", record=record.to_json())
        if leaves_ruins(record):
            os._exit(0)


def _described(kernel: Loaded) -> dict[str, Any]:
    c = kernel.adapter.capabilities
    return {
        "spec": kernel.spec,
        "devices": list(c.devices),
        "dtypes": list(c.dtypes),
        "supports": sorted(c.supports),
        "declines": sorted(c.declines),
        "undeclared": sorted(c.undeclared),
    }


def main() -> None:
    """Keep the two pipes for the protocol, whatever kernels read or print."""
    faulthandler.enable()
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    Worker(requests, answers).serve()


if __name__ == "__main__":
    main()
