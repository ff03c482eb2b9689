"""Records: one JSON object per item, and what a run is."""

import importlib.metadata
import json
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kernelassay.properties.property import Property
    from kernelassay.properties.subject import Subject

RECORD_SCHEMA = 1

STATUSES = {
    "passed": "the law holds on every case",
    "expected": "fails only as an expected-failure file says",
    "failed": "the law does not hold",
    "timed_out": "a case ran past its limit",
    "crashed": "the process ended while a case ran",
    "device_lost": "the device is in a sticky error state",
    "declined": "the kernel declines a feature that the law needs",
    "undeclared": "the kernel declares nothing of a feature that the law needs",
    "not_applicable": "the law rests on a convention that the kernel does not declare",
    "no_device": "the device is not there",
    "unavailable": "the library that the kernel calls is not installed",
    "not_run": "interrupted before its turn",
    "suite_error": "the suite itself failed",
}

WRONG = ("failed", "timed_out", "crashed", "device_lost")
"""Statuses that mean a fault was found."""


@dataclass
class Record:
    """What became of one item: a law on a kernel with a dtype on a device."""

    law: str
    family: str
    kernel: str
    dtype: str
    device: str
    level: str
    seed: int | None = None
    status: str = "not_run"
    reason: str = ""
    cases: int = 0
    launches: int = 0
    seconds: float = 0.0
    worst: float | None = None
    z_rms: float | None = None
    labels: dict[str, int] = field(default_factory=dict)
    watched: list[str] = field(default_factory=list)
    backends: list[str] = field(default_factory=list)
    numerics_declared: bool = True
    kind: str | None = None
    ratio: float | None = None
    also: list[str] = field(default_factory=list)
    to_first: int | None = None
    case: dict[str, Any] | None = None
    case_id: str | None = None
    report: str | None = None
    traceback: str | None = None

    @classmethod
    def of(cls, prop: "Property", subject: "Subject", level: str, seed: int | None) -> "Record":
        """A record of an item that has not run yet."""
        return cls(
            prop.name,
            prop.family,
            subject.name,
            subject.dtype,
            subject.device,
            level,
            seed,
            numerics_declared=subject.declared,
        )

    @property
    def item(self) -> str:
        """law-kernel-dtype-device, as pytest ids spell it."""
        return f"{self.law}-{self.kernel}-{self.dtype}-{self.device}"

    def ended(self, status: str, *, reason: str = "") -> "Record":
        """The same record with its status set."""
        self.status, self.reason = status, reason
        return self

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON; infinite ratios as text."""
        made = asdict(self)
        for name in ("ratio", "worst"):
            if made[name] is not None and made[name] in (float("inf"),):
                made[name] = "inf"
        return made


def environment() -> dict[str, Any]:
    """The versions and hardware that a run's numbers depend on."""

    def of(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    names = ("kernelassay", "torch", "triton", "hypothesis", "numpy", "scipy", "pytest")
    device = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        device = f"{properties.name} (sm_{properties.major}{properties.minor})"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "device": device,
        "cudnn": torch.backends.cudnn.version() if device else None,  # type: ignore[no-untyped-call]
        **{name: of(name) for name in names},
    }


def run_document(records: list[Record], **facts: Any) -> dict[str, Any]:
    """A whole run: schema, environment, facts of the run, one record per item."""
    return {
        "schema": RECORD_SCHEMA,
        "environment": environment(),
        **facts,
        "records": [r.to_json() for r in records],
    }


def dumps(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, separators=(", ", ": "), allow_nan=False)
