"""What runs in a worker of pytest-xdist, on disk, so that the controller can tell if it dies."""

import json
import os
from typing import Any

from kernelassay import store
from kernelassay.plan import Item
from kernelassay.properties.case import Case, case_from, to_json
from kernelassay.properties.records import Record
from kernelassay.running import lost


class Flight:
    """One item of one worker process: its file is rewritten before each case."""

    def __init__(self, node: str, item: Item, level: str, seed: int | None) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.path = store.folder() / f"running-{worker}-{os.getpid()}.json"
        self.facts = {"node": node, "item": item.to_json(), "level": level, "seed": seed}
        self.cases = 0

    def __call__(self, case: Case) -> None:
        """A case begins."""
        self.cases += 1
        self.write(case=to_json(case), cases=self.cases)

    def write(self, **facts: Any) -> None:
        """Put down what is known now."""
        self.path.write_text(json.dumps({**self.facts, **facts}))

    def crash(self, record: Record) -> None:
        """End this process; the controller reports *record*."""
        self.write(record=record.to_json())
        os._exit(1)

    def land(self) -> None:
        """The item is done."""
        self.path.unlink(missing_ok=True)


def landed(node: str) -> Record | None:
    """The record of the item *node* whose process ended, if it was one of ours."""
    for path in store.FOLDER.glob("running-*.json"):
        try:
            facts = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError):
            continue
        if facts["node"] == node:
            path.unlink(missing_ok=True)
            return _record(facts)
    return None


def _record(facts: dict[str, Any]) -> Record:
    if "record" in facts:
        return store.record_from(facts["record"])
    item = Item(**facts["item"])
    family = item.law.split(".")[0]
    record = Record(item.law, family, item.kernel, item.dtype, item.device, facts["level"])
    record.seed = facts["seed"]
    case = case_from(facts["case"]) if "case" in facts else None
    reason = "the worker process ended while this case ran"
    lost(record, "crashed", reason, case, facts.get("cases", 0), item.spec)
    store.remember(record, item.spec)
    return record
