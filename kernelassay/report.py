"""The report of one counterexample: plain ASCII, one screen, every number beside its measure.

Order: verdict -> law -> minimal case and its neighbours -> where -> what was attended -> what the
pattern suggests -> worst seen, repeats, memory -> how to rerun, keep, expect -> environment.
"""

import math
import textwrap
from collections.abc import Iterator

from kernelassay.properties.case import AttendCase, Case, changed, literal
from kernelassay.properties.diagnosis import Picture
from kernelassay.properties.engine import Search
from kernelassay.properties.failures import Failure, Found, Place
from kernelassay.properties.faults import Reading
from kernelassay.properties.property import Property
from kernelassay.properties.readout import Group, Readout
from kernelassay.properties.records import Record, environment
from kernelassay.properties.subject import Subject
from kernelassay.text import (
    WIDTH,
    bounded,
    fields_of,
    joined,
    number,
    recipe_of,
    shown,
    times,
    wrapped,
)

MOST_OF_A_MESSAGE = 6
"""Lines; a compiler can say more."""
RAISED_AT, LAW = "  raised at ", "Law: "
AXES = {4: ("b", "h", "q", "d"), 3: ("b", "h", "q")}


def render(
    record: Record,
    prop: Property,
    subject: Subject,
    found: Found,
    picture: Picture,
    search: Search,
    *,
    spec: str | None = None,
) -> str:
    """The report; *spec* is how the kernel was named ("module:attribute"), for the rerun line."""
    failure, case, place = found.failure, found.case, found.failure.place
    facts = environment()
    blocks = [
        _head(record, facts.get("device")),
        _verdict(record, prop, subject, failure),
        _minimal(case, picture, subject, search, record) if isinstance(case, Case) else [],
        [*failure.facts.get("lines", ())],
        _where(place) if place else [],
        _attended(picture.readout, failure) if picture.readout else [],
        [*_reads_as(picture), *_further(picture, search, failure)],
        _again(record, case, spec or record.kernel),
        _versions(record, facts),
    ]
    return bounded(blocks)


def _head(record: Record, device: str | None) -> list[str]:
    where = f"device={record.device}" + (
        f" {device}" if record.device == "cuda" and device else ""
    )
    return wrapped(
        f"FAILED {record.law}  kernel={record.kernel}  dtype={record.dtype}  {where}", "  "
    )


def _verdict(record: Record, prop: Property, subject: Subject, failure: Failure) -> list[str]:
    message = " ".join(failure.message.split())
    stop = "" if message.endswith(".") else "."
    lines = wrapped(f"{failure.title}: {message}{stop}", "  ")[:MOST_OF_A_MESSAGE]
    if where := failure.facts.get("where"):
        lines += wrapped(f"{RAISED_AT}{where}", "  ")
    lines += wrapped(f"{LAW}{prop.sentence_for(subject, failure)}", "  ")
    if record.also:
        lines += wrapped(f"Other cases fail with {', '.join(record.also)}.", "  ")
    if not subject.declared and failure.kind in ("WrongValue", "Imprecise", "WrongDtype"):
        n = subject.numerics
        lines += wrapped(
            f"The kernel declares no numerics. Assumed for {subject.dtype}: probabilities {n.p}, "
            f"scores {n.score}, out {n.out}, accumulation error {_power(n.acc_u)} a step.",
            "  ",
        )
    return lines


def raised_at(report: str) -> str:
    """The place, file:line, that *report* says an exception was raised at; "" if it says none."""
    _, _, after = report.partition(f"\n{RAISED_AT}")
    return after.partition(f"\n{LAW}")[0]


def _power(x: float) -> str:
    exponent = math.log2(x)
    return f"2**{exponent:.0f}" if exponent == round(exponent) else f"{x:.1e}"


def _minimal(
    case: Case, picture: Picture, subject: Subject, search: Search, record: Record
) -> list[str]:
    if not isinstance(case, AttendCase):
        given = [f"{name}={value!r}" for name, value in changed(case).items()]
        lines = [f"Minimal case ({_origin(case, search, record)})"]
        lines += wrapped("  " + ", ".join([*given, f"dtype={subject.dtype}"]), "  ")
        return [*lines, *picture.around]
    near, fields = picture.neighbours, fields_of(case)
    alike = near.alike()
    tiles = subject.capabilities.tiles
    said = {
        name: "" if alike else near.line(name, case, tiles)
        for name in (*fields, "dtype", "q", "k", "v")
    }
    values = {**{n: shown(n, v) for n, v in fields.items()}, "dtype": f"dtype={subject.dtype}"}
    width = min(max([len(values[n]) for n in values if said[n]] + [11]) + 2, 40)
    lines = [f"Minimal case ({_origin(case, search, record)})"]
    lines += [f"  {values[n]:<{width}}{said[n]}" for n in values if said[n]]
    if quiet := [values[n] for n in fields if not said[n]]:
        lines += wrapped("  " + ", ".join(quiet), "  ")
    lines += wrapped(
        f"  q={recipe_of(case.q)}  k={recipe_of(case.k)}  v={recipe_of(case.v)}", "  "
    )
    if content := [f"{n}={said[n]}" for n in ("q", "k", "v") if said[n]]:
        lines += wrapped("    with " + ";  ".join(content), "      ")
    if alike:
        lines += wrapped(f"  {alike}", "    ")
    if near.unfinished:
        lines.append(f"  (neighbours: {near.unfinished})")
    return lines


def _origin(case: Case, search: Search, record: Record) -> str:
    if search.cases <= 1:
        return "as given"
    cost = f"{search.cases} runs, {record.seconds:.1f} s"
    first = search.first
    if first is None or first == case:
        return f"as found; {cost}"
    if not isinstance(first, AttendCase):
        return f"shrunk; {cost}"
    names = [n for n in ("B", "Hq", "Hkv", "Tq", "Tk", "D") if getattr(first, n) != 1]
    names += ["Dv"] * (first.value_size != first.D)
    return f"from {' '.join(f'{n}={getattr(first, n)}' for n in names)}; {cost}"


def _where(place: Place) -> list[str]:
    axes = zip(AXES.get(len(place.index), ()), place.index, strict=False)
    index = ",".join(f"{a}={i}" for a, i in axes)
    lines = [f"Where: {place.tensor}[{index}]   {place.wrong} of {place.total} elements wrong"]
    said = f"  got {number(place.got)}   expected {number(place.expected)}"
    if math.isfinite(error := abs(place.got - place.expected)):
        said += f"   error {error:.2e}   allowed {place.allowed:.2e}"
    return [*lines, said]


def _attended(readout: Readout, failure: Failure) -> list[str]:
    if readout.right:
        if failure.kind == "Different":
            return []
        lse = failure.place is not None and failure.place.tensor == "lse"
        look = "the LSE alone is wrong" if lse else "look at how v is read, and at the LSE"
        return [f"Attended: every weight is right, read off with v = identity: {look}."]
    b, h, i = readout.row
    title = "Attended" + (f" by b={b},h={h},q={i}" if any(readout.row) else "")
    widths = [max(len(g.keys), len(g.expected), len(g.observed)) + 2 for g in readout.groups]
    first = max(len(title) + 2, 20)

    def row(name: str, texts: Iterator[str]) -> str:
        cells = (f"{t:<{w}}" for t, w in zip(texts, widths, strict=True))
        return (f"{name:<{first}}" + "".join(cells)).rstrip()

    groups: tuple[Group, ...] = readout.groups
    lines = [
        row(title, (g.keys for g in groups)),
        row("  expected", (g.expected for g in groups)),
        row("  observed", (g.observed for g in groups)),
    ]
    if readout.hidden:
        lines.append(f"  (and {readout.hidden} more runs of keys that are off)")
    return lines


def _reads_as(picture: Picture) -> list[str]:
    if not picture.readings:
        return []
    first, *rest = picture.readings
    lines = wrapped(f"Reads as: {first.sentence}.   (a guess)", "  ") + _model(first)
    for other in rest:
        lines += wrapped(f"      or: {other.sentence}.", "  ") + _model(other)
    return lines


def _model(r: Reading) -> list[str]:
    detail = f", {r.detail}" if r.detail else ""
    return wrapped(
        f'  fault model "{r.name}"{detail}: error {r.error:.2g}, allowed {r.allowed:.2g}; '
        f"fits {r.fits} of {r.tried} cases tried",
        "    ",
    )


def _further(picture: Picture, search: Search, failure: Failure) -> list[str]:
    lines = []
    if picture.coarser:
        lines += wrapped(
            f"Would pass with Numerics({picture.coarser}): if that is how the kernel computes, "
            f"declare it.",
            "  ",
        )
    facts = []
    ratio = failure.ratio
    if search.worst and ratio is not None and search.worst[0] > ratio:
        name = "z_rms" if failure.facts.get("measure") == "z_rms" else "allowed"
        facts.append(f"Worst seen: {times(search.worst[0])} {name}.")
    if picture.repeat:
        r = picture.repeat
        same = {True: ", same bits", False: ", bits differ", None: ""}[r.same_bits]
        word = "Repeats" if r.failed == r.of else "Does not repeat"
        facts.append(f"{word}: fails {r.failed} of {r.of} times{same}.")
    if picture.memory:
        facts.append(picture.memory)
    lines += joined(facts)
    for why in picture.unavailable:
        lines += wrapped(why, "  ")[:2]
    return lines


def _again(record: Record, case: object, spec: str) -> list[str]:
    if not isinstance(case, Case):
        return []
    name = record.case_id
    words = [
        f"kernelassay run --kernel {spec}",
        f"--law {record.law}",
        f"--dtype {record.dtype} --device {record.device}",
        f'--case "{literal(case)}"',
    ]
    lines = ["Rerun:  "]
    for word in words:
        if len(lines[-1]) + len(word) + 3 > WIDTH:
            lines[-1] += " \\"
            lines.append(" " * 10)
        lines[-1] += f" {word}"
    if len(lines[-1]) > WIDTH:  # within quotes a line may end anywhere
        own = " " * 11
        lines[-1:] = textwrap.wrap(
            lines[-1].strip(), WIDTH, initial_indent=own, subsequent_indent=own + "  "
        )
    return [
        *lines,
        "         under pytest: --assay-case with the same text",
        f"Script:  kernelassay repro {name} > repro.py",
        f"Keep:    kernelassay keep {name}     Known for now: kernelassay expect {name}",
    ]


def _versions(record: Record, facts: dict[str, object]) -> list[str]:
    names = [f"{n} {facts[n]}" for n in ("kernelassay", "torch", "triton") if facts.get(n)]
    seed = "random" if record.seed is None and record.level == "nightly" else record.seed or 0
    return wrapped("  ".join([*names, f"level={record.level}", f"seed={seed}"]))
