"""`kernelassay mutants`: every planted fault is killed, every kernel that only looks wrong passes.

A mutant first meets the law that it names, then the other laws until one kills it. A control meets
all laws with every dtype that it declares. Variants run side by side in worker processes.
"""

import json
import os
import statistics
import time
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from kernelassay.cli import Unusable
from kernelassay.impls.mutants import CONTROLS, MUTANTS
from kernelassay.impls.variants import Variant, build
from kernelassay.properties.engine import LEVELS, Options, check
from kernelassay.properties.failures import DeviceLost, TimedOut
from kernelassay.properties.property import Property, select
from kernelassay.properties.records import WRONG, Record
from kernelassay.properties.subject import Subject

__all__ = ["Trial", "main", "run_mutants", "try_control", "try_mutant"]

TRITON = "kernelassay.impls.triton"
"""How the modules of Triton kernels begin."""


@dataclass(frozen=True)
class Trial:
    """What became of one variant under one run seed."""

    variant: str
    control: bool
    report: str
    device: str
    dtype: str
    seed: int
    killed: bool
    """whether a law failed; for a control that is a false alarm."""
    law: str = ""
    named: bool = False
    """whether it was the law that the mutant names."""
    kind: str | None = None
    cases: int | None = None
    """cases of that law up to the first that failed."""
    judged: int = 0
    """of a control: the cases that it met."""
    seconds: float = 0.0
    reason: str = ""

    @property
    def good(self) -> bool:
        """A mutant is killed; a control is spared by laws that had a case of it."""
        return self.judged > 0 and not self.killed if self.control else self.killed


@dataclass(frozen=True)
class _Job:
    variant: str
    device: str
    level: str
    seed: int
    families: tuple[str, ...]


def main(args: Namespace) -> int:
    """Exit code 0 when every mutant is killed and every control spared.

    *args*: family (names, maybe none), level, seed, json, workers and, if given, seeds, device,
    only. `Unusable` for a family that there is none of.
    """
    try:
        select(*(args.family or ()))
    except LookupError as error:
        raise Unusable(str(error.args[0])) from None
    first = args.seed or 0
    trials = run_mutants(
        families=tuple(args.family or ()),
        level=args.level,
        seeds=range(first, first + getattr(args, "seeds", 1)),
        device=getattr(args, "device", None),
        workers=args.workers or min(8, os.cpu_count() or 1),
        only=getattr(args, "only", None),
    )
    if args.json:
        Path(args.json).write_text(
            json.dumps([asdict(t) for t in trials], indent=1) + "\n", encoding="utf-8"
        )
    return 0 if trials and all(t.good for t in trials) else 1


def run_mutants(
    *,
    families: tuple[str, ...] = (),
    level: str = "smoke",
    seeds: range = range(1),
    device: str | None = None,
    workers: int = 2,
    only: str | None = None,
) -> list[Trial]:
    """A trial of each variant under each seed, printed as it ends.

    *families*: only mutants whose law is of one, controls that have a law there, and only laws of
    these families. *device*: only variants that run there; by default PyTorch's run on the CPU,
    Triton's on a GPU or else in the interpreter. *only*: "mutants" or "controls".
    """
    jobs = [
        _Job(v.name, where, level, seed, families)
        for v in (*MUTANTS, *CONTROLS)
        if (where := _device(v, device))
        and only in (None, "mutants" if v.law else "controls")
        and _concerned(v, families)
        for seed in seeds
    ]
    trials = []
    with _environment(jobs), ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for trial in pool.map(_run, jobs):
            trials.append(trial)
            print(_line(trial), flush=True)
    print(_summary(trials))
    return trials


def _concerned(variant: Variant, families: tuple[str, ...]) -> bool:
    """Whether a law of these families has something to say of *variant*; no families are all."""
    if not families or variant.law:
        return not families or variant.law.split(".")[0] in families
    operations = build(variant).capabilities.operations
    return any(law.operation in operations for law in select(*families))


def _device(variant: Variant, wanted: str | None) -> str | None:
    """Where *variant* runs, or None if it cannot run where it is *wanted*."""
    if variant.base.startswith(TRITON):
        choices = ["cuda"] if torch.cuda.is_available() else ["interpreter"]
        choices = [wanted] if wanted in ("cuda", "interpreter") else [] if wanted else choices
    else:
        choices = [wanted] if wanted in ("cpu", "cuda") else [] if wanted else ["cpu"]
    return choices[0] if choices else None


@contextmanager
def _environment(jobs: list[_Job]) -> Iterator[None]:
    """Workers started inside interpret Triton if a job needs that, and do not otherwise."""
    names = {"TRITON_INTERPRET": "1" if any(j.device == "interpreter" for j in jobs) else None}
    before = {name: os.environ.get(name) for name in names}
    _export(names)
    try:
        yield
    finally:
        _export(before)


def _export(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _run(job: _Job) -> Trial:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(1)
    variant = next(v for v in (*MUTANTS, *CONTROLS) if v.name == job.variant)
    laws = select(*job.families)
    if variant.law:
        return try_mutant(variant, job.device, laws, level=job.level, seed=job.seed)
    dtypes = build(variant).capabilities.dtypes
    return try_control(variant, job.device, laws, dtypes, level=job.level, seed=job.seed)


def try_mutant(
    variant: Variant, device: str, laws: list[Property], *, level: str, seed: int
) -> Trial:
    """The mutant meets its own law, then the others until one kills it.

    Its cases are as many as *level* has, or as the mutant says that it needs.
    """
    kernel = build(variant)
    level = max(level, variant.level, key=LEVELS.__getitem__)
    dtype = variant.dtype or kernel.capabilities.dtypes[0]
    began = time.perf_counter()
    first = select(variant.law)
    for law in (*first, *(p for p in laws if p not in first)):
        record = _check(law, kernel, dtype, device, level, seed)
        if record.status in WRONG:
            break
    return _trial(variant, record, time.perf_counter() - began)


def try_control(
    variant: Variant,
    device: str,
    laws: list[Property],
    dtypes: Iterable[str],
    *,
    level: str,
    seed: int,
) -> Trial:
    """The control meets every law with every dtype; the first that fails is a false alarm."""
    kernel = build(variant)
    began = time.perf_counter()
    judged = 0
    for dtype in dtypes:
        for law in laws:
            record = _check(law, kernel, dtype, device, level, seed)
            judged += record.cases
            if record.status in (*WRONG, "suite_error"):
                return _trial(variant, record, time.perf_counter() - began, judged)
    return _trial(variant, record, time.perf_counter() - began, judged)


def _check(law: Property, kernel: Any, dtype: str, device: str, level: str, seed: int) -> Record:
    subject = Subject(kernel, dtype, device)
    try:
        return check(law, subject, Options(level=level, seed=seed, shrink=False)).record
    except (TimedOut, DeviceLost) as end:
        record = Record.of(law, subject, level, seed)
        record.kind = type(end).__name__
        return record.ended(
            "timed_out" if isinstance(end, TimedOut) else "device_lost", reason=str(end)
        )


def _trial(variant: Variant, record: Record, seconds: float, judged: int = 0) -> Trial:
    failed = record.status in WRONG or (not variant.law and record.status == "suite_error")
    return Trial(
        variant=variant.name,
        control=not variant.law,
        report=variant.report,
        device=record.device,
        dtype=record.dtype,
        seed=record.seed or 0,
        killed=failed,
        law=record.law if failed else "",
        named=failed and record.law == variant.law,
        kind=record.kind if failed else None,
        cases=record.to_first if failed else None,
        judged=judged,
        seconds=round(seconds, 3),
        reason=record.reason if failed or record.status == "suite_error" else "",
    )


def _line(trial: Trial) -> str:
    if trial.control:
        fate = "spared" if trial.good else "FALSE ALARM" if trial.killed else "NOT JUDGED"
    else:
        fate = "killed" if trial.good else "SURVIVED"
    by = f"{trial.law} ({trial.dtype})" if trial.killed else ""
    if trial.killed and not trial.control and not trial.named:
        by += ", not its own law"
    cases = "" if trial.cases is None else f"case {trial.cases}"
    if trial.control and trial.good:
        cases = f"{trial.judged:,} cases"
    return (
        f"{fate:11} {trial.variant:36} seed {trial.seed}  {trial.seconds:6.1f} s"
        f"  {trial.kind or '':16} {cases:12} {by:40} {trial.report}"
    ).rstrip()


def _summary(trials: list[Trial]) -> str:
    mutants = [t for t in trials if not t.control]
    controls = [t for t in trials if t.control]
    text = (
        f"killed {sum(t.good for t in mutants)} of {len(mutants)}, "
        f"spared {sum(t.good for t in controls)} of {len(controls)} controls"
    )
    cases = [t.cases for t in mutants if t.cases is not None]
    return text + (f"; cases to kill: median {statistics.median(cases):g}" if cases else "")
