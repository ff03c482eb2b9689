"""Diagnosis: what re-runs of a counterexample say about it.

Nothing here decides whether a law holds; that is done. Every part may fail on its own (the kernel
is broken, after all): it is then reported as not available, with the reason.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from kernelassay.impls.contract import Numerics
from kernelassay.oracle.formats import FORMATS, format_of
from kernelassay.properties.case import AttendCase, Case
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.engine import Search
from kernelassay.properties.failures import DeviceLost, Failure, Found, OutOfBounds, TimedOut
from kernelassay.properties.faults import Observed, Reading, observe, recognise
from kernelassay.properties.fewer_steps import without_a_step
from kernelassay.properties.limit import time_limit
from kernelassay.properties.memory import same_bits
from kernelassay.properties.neighbours import Neighbours, probe
from kernelassay.properties.property import Property
from kernelassay.properties.readout import Readout, read
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.neighbours import around
from kernelassay.properties.subject import Subject

T = TypeVar("T")
SECONDS = 30.0
"""Limit of each part; after twice as long no further part is begun."""
REPEATS = 3
VALUES = ("WrongValue", "Imprecise", "NonFinite", "Different")
"""Kinds that say that numbers are wrong."""
OWN_MEMORY = ("attention.far_offsets",)
"""Laws that lay tensors out themselves: a plain call of the case shows nothing of the fault."""


@dataclass(frozen=True)
class Repeat:
    """The counterexample again: how often it failed, and whether the bits were the same."""

    failed: int
    of: int
    same_bits: bool | None = None


@dataclass(frozen=True)
class Picture:
    """Everything that re-runs said. A part that does not apply is empty."""

    neighbours: Neighbours = Neighbours()  # noqa: RUF009 - frozen
    around: tuple[str, ...] = ()
    """lines about neighbours of a case that is no attention's."""
    readout: Readout | None = None
    readings: tuple[Reading, ...] = ()
    coarser: str = ""
    repeat: Repeat | None = None
    memory: str = ""
    unavailable: tuple[str, ...] = ()


class _Parts:
    """Runs one part after another; keeps why one is not available."""

    def __init__(self) -> None:
        self.unavailable: list[str] = []
        self.lost = False
        self.deadline = time.perf_counter() + 2 * SECONDS

    def run(self, name: str, part: Callable[[], T | str], otherwise: T) -> T:
        """What *part* returns; *otherwise* and a note if it crashes or returns a sentence."""
        if self.lost:
            return otherwise
        if time.perf_counter() > self.deadline:
            self.unavailable.append(f"{name} not available: out of time")
            return otherwise
        try:
            with time_limit(SECONDS):
                made = part()
        except DeviceLost as error:
            self.lost = True
            made = f"the device was lost ({_first_line(error)})"
        except TimedOut:
            made = f"it took longer than {SECONDS:g} s"
        except Exception as error:
            made = f"{type(error).__name__}: {_first_line(error)}"
        if isinstance(made, str):
            self.unavailable.append(f"{name} not available: {made}")
            return otherwise
        return made


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def diagnose(
    prop: Property, subject: Subject, found: Found, search: Search, *, neighbours: bool = True
) -> Picture:
    """Look at a counterexample from all sides. *subject* itself is left as it is."""
    case, failure = found.case, found.failure
    if not isinstance(case, Case) or failure.kind == "StillFails":
        return Picture()
    parts, kind = _Parts(), failure.kind

    def fresh() -> Subject:
        return Subject(subject.kernel, subject.dtype, subject.device)

    if not isinstance(case, AttendCase):
        near_by: tuple[str, ...] = ()
        if neighbours and isinstance(case, VerifyCase):
            near_by = parts.run("Neighbours", lambda: around(prop, fresh(), case), near_by)
        if neighbours and hasattr(case, "steps"):
            near_by = parts.run("Neighbours", lambda: without_a_step(prop, fresh(), case), near_by)
        again = parts.run("Repeats", lambda: Repeat(_failures(prop, fresh(), case), REPEATS), None)
        return Picture(around=near_by, repeat=again, unavailable=tuple(parts.unavailable))
    near, readout = Neighbours(), None
    readings: tuple[Reading, ...] = ()
    coarser: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    if neighbours:
        near = parts.run("Neighbours", lambda: probe(prop, fresh(), case, kind), near)
    plain = prop.name not in OWN_MEMORY
    if plain and kind in VALUES and failure.facts.get("measure") != "z_rms":
        readout = parts.run("Readout", lambda: read(fresh(), case, row_of(failure)), readout)
        readings = parts.run("Fault models", lambda: readings_of(fresh(), found, search), readings)
    if plain and (kind == "Imprecise" or (kind == "WrongValue" and not readings)):
        coarser = parts.run(
            "Coarser numerics", lambda: coarser_numerics(prop, subject, found, search), coarser
        )
    repeat = parts.run("Repeats", lambda: repeated(prop, fresh(), case), None)
    memory = parts.run("Memory", lambda: (memory_of(fresh(), case),), memory)
    return Picture(
        neighbours=near,
        readout=readout,
        readings=readings,
        coarser=" or ".join(coarser),
        repeat=repeat,
        memory="".join(memory),
        unavailable=tuple(parts.unavailable),
    )


def row_of(failure: Failure) -> tuple[int, int, int] | None:
    """(b, h, i) of the row that failed, if the failure says."""
    if failure.place is not None:
        b, h, i = failure.place.index[:3]
        return b, h, i
    row = failure.facts.get("row")
    return None if row is None else (int(row[0]), int(row[1]), int(row[2]))


def further(subject: Subject, found: Found, search: Search) -> list[AttendCase]:
    """Cases near the counterexample and those it came from: all of them, passing or failing."""
    case, domain = found.case, domain_of(subject)
    tile = min(subject.capabilities.tiles)
    seen = [search.first, search.worst[1] if search.worst else None]
    cases = [c for c in seen if isinstance(c, AttendCase)]
    plain = replace(case, softcap=None, alibi=None, bias=None, sink_logits=None)
    cases += [plain, replace(plain, Dv=None)]  # a fault of a term leaves them right
    if case.lengths is None:
        longer = (case.Tk - 1, case.Tk + 1, case.Tk + 5, (case.Tk // tile + 1) * tile)
        cases += [replace(case, Tk=Tk) for Tk in longer if Tk > 0]
    else:
        cases.append(replace(case, lengths=(max(case.Tk - 1, 0),) * case.B))
        cases.append(replace(case, lengths=tuple(min(n + 2, case.Tk) for n in case.lengths)))
    for Tq in (case.Tq - 1, case.Tq + 1, (case.Tq // tile + 1) * tile):
        cases.append(replace(case, Tq=max(Tq, 1)))
    unique = dict.fromkeys(c for c in cases if c != case)
    return [c for c in unique if not lacking(c, domain) and domain.fits(c.B, c.Hq, c.Tq, c.Tk)]


def readings_of(subject: Subject, found: Found, search: Search) -> tuple[Reading, ...]:
    """Fault models that explain the counterexample."""
    seen: list[Observed] = [observe(subject, found.case)]
    if not seen[0].wrong:
        return ()
    for case in further(subject, found, search):
        try:
            seen.append(observe(subject, case))
        except Failure:
            continue
    return tuple(recognise(seen))


def coarser_numerics(
    prop: Property, subject: Subject, found: Found, search: Search
) -> tuple[str, ...]:
    """The first declaration, coarser in one field, under which all failing cases seen pass."""
    cases = [found.case, search.first, search.worst[1] if search.worst else None]
    for name, value in _coarser(subject.numerics, subject.dtype, found.failure):
        other = Subject(subject.kernel, subject.dtype, subject.device)
        other.numerics = replace(subject.numerics, **{name: value})  # type: ignore[arg-type]
        if all(_holds(prop, other, c) for c in dict.fromkeys(c for c in cases if c is not None)):
            return (f"{name}={value!r}",)
    return ()


def _coarser(declared: Numerics, dtype: str, failure: Failure) -> list[tuple[str, object]]:
    """Declarations to try; for a gross error only those that explain one (fp32 inputs)."""
    if failure.kind == "WrongValue" and dtype != "fp32":
        return []
    unit = format_of(declared.p).unit
    coarser = sorted((f for f in FORMATS.values() if f.unit > unit), key=lambda f: f.unit)
    tried: list[tuple[str, object]] = []
    if dtype == "fp32":
        tried += [("dot", "tf32"), ("dot", "tf32_trunc")]
    if not declared.q_prescaled:
        tried.append(("q_prescaled", True))
    if declared.score == "fp32" and dtype != "fp32":
        tried.append(("score", dtype))
    for name in ("fp16", "bf16"):
        if name in [f.name for f in coarser]:
            tried.append(("p", name))
    if failure.kind == "Imprecise":
        tried += [("acc_u", 2.0**-11), *(("p", f.name) for f in coarser if f.name[0] == "e")]
    return [(n, v) for n, v in tried if getattr(declared, n) != v]


def _failures(prop: Property, subject: Subject, case: Case) -> int:
    """How often the law fails on the case, of `REPEATS` times."""
    return sum(not _holds(prop, subject, case) for _ in range(REPEATS))


def _holds(prop: Property, subject: Subject, case: Case) -> bool:
    subject.current = case
    try:
        prop.body(subject, case)
    except Failure:
        return False
    return True


def repeated(prop: Property, subject: Subject, case: AttendCase) -> Repeat:
    """The law on the counterexample again, and a plain call for its bits."""
    failed = _failures(prop, subject, case)
    try:
        first, *rest = [subject.answer(subject.prepare(case).call) for _ in range(REPEATS)]
    except Exception:
        return Repeat(failed, REPEATS, None)
    return Repeat(failed, REPEATS, all(same_bits(first.out, other.out) for other in rest))


def memory_of(subject: Subject, case: AttendCase) -> str:
    """What a plain call of the case did to memory, as far as it is watched."""
    given = subject.prepare(case)
    try:
        answer = subject.answer(given.call)
    except Exception as error:
        del error
        return ""
    changed = given.mutated()
    inputs = f"Changed: {', '.join(changed)}." if changed else "Inputs unchanged."
    if answer.watched == "opaque":
        return f"{inputs}  Outputs not checked (opaque)."
    try:
        answer.check_guards()
    except OutOfBounds:
        return f"{inputs}  Guard bytes overwritten."
    return f"{inputs}  Guard bytes intact."
