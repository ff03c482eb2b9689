"""The report of one counterexample: plain ASCII, one screen, every number beside its measure.

Order: verdict -> law -> minimal case and its neighbours -> where -> what was attended -> what the
pattern suggests -> worst seen, repeats, memory -> how to rerun, keep, expect -> environment.
"""

import math
import textwrap
from collections.abc import Iterator
from fractions import Fraction

from kernelassay.properties.case import AttendCase, changed, literal
from kernelassay.properties.diagnosis import Picture
from kernelassay.properties.engine import Search
from kernelassay.properties.failures import Failure, Found, Place
from kernelassay.properties.faults import Reading
from kernelassay.properties.property import Property
from kernelassay.properties.readout import Group, Readout
from kernelassay.properties.records import Record, environment
from kernelassay.properties.subject import Subject

WIDTH = 99
MOST_LINES = 45
AXES = {4: ("b", "h", "q", "d"), 3: ("b", "h", "q")}
RIGHT = "Attended: every weight is right (v = identity): look at how v is read, and at the LSE."


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
    failure, case = found.failure, found.case
    facts = environment()
    blocks = [
        _head(record, facts.get("device")),
        _verdict(record, prop, subject, failure),
        _minimal(case, picture, subject, search, record) if isinstance(case, AttendCase) else [],
        _where(failure.place) if failure.place else [],
        _attended(picture.readout) if picture.readout else [],
        [*_reads_as(picture), *_further(picture, search, failure)],
        _again(record, case, spec or record.kernel),
        _versions(record, facts),
    ]
    return bounded(blocks)


def bounded(blocks: list[list[str]]) -> str:
    """The blocks with a blank line between them, ASCII, within `WIDTH` and `MOST_LINES`."""
    lines: list[str] = []
    for block in blocks:
        if block:
            lines += [*([""] if lines else []), *block]
    plain = [x.encode("ascii", "backslashreplace").decode() for x in lines]
    cut = [x if len(x) <= WIDTH else f"{x[: WIDTH - 4]} ..." for x in plain]
    if len(cut) > MOST_LINES:
        tail = 9  # how to rerun, and the environment
        head = MOST_LINES - tail - 1
        cut = [*cut[:head], f"  ... {len(cut) - head - tail} lines left out", *cut[-tail:]]
    return "\n".join(cut)


def wrapped(text: str, indent: str = "") -> list[str]:
    """*text* as lines of at most `WIDTH` characters, later ones indented."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def joined(sentences: list[str]) -> list[str]:
    """The sentences on as few lines as hold them whole."""
    lines: list[str] = []
    for sentence in sentences:
        if lines and len(lines[-1]) + len(sentence) + 2 <= WIDTH:
            lines[-1] += f"  {sentence}"
        else:
            lines.append(sentence)
    return lines


def times(ratio: float) -> str:
    """A ratio, as in "3,905x"."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x"


def _head(record: Record, device: str | None) -> list[str]:
    where = f"device={record.device}" + (
        f" {device}" if record.device == "cuda" and device else ""
    )
    return wrapped(
        f"FAILED {record.law}  kernel={record.kernel}  dtype={record.dtype}  {where}", "  "
    )


def _verdict(record: Record, prop: Property, subject: Subject, failure: Failure) -> list[str]:
    message = failure.message.rstrip()
    lines = wrapped(f"{failure.title}: {message}{'' if message.endswith('.') else '.'}", "  ")
    if where := failure.facts.get("where"):
        lines += wrapped(f"  raised at {where}", "  ")
    lines += wrapped(f"Law: {prop.sentence}", "  ")
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


def _power(x: float) -> str:
    exponent = math.log2(x)
    return f"2**{exponent:.0f}" if exponent == round(exponent) else f"{x:.1e}"


def _minimal(
    case: AttendCase, picture: Picture, subject: Subject, search: Search, record: Record
) -> list[str]:
    lines = [f"Minimal case ({_origin(case, search, record)})"]
    fields = _fields(case)
    said = {
        name: picture.neighbours.line(name, case, subject.capabilities.tiles)
        for name in (*fields, "dtype", "q", "k", "v")
    }
    values = {**{n: _shown(n, v) for n, v in fields.items()}, "dtype": f"dtype={subject.dtype}"}
    width = max((len(values[n]) for n in values if said[n]), default=0) + 2
    width = min(max(width, 13), 40)
    lines += [f"  {values[n]:<{width}}{said[n]}" for n in values if said[n]]
    if quiet := [values[n] for n in fields if not said[n]]:
        lines += wrapped("  " + ", ".join(quiet), "  ")
    lines += wrapped(f"  q={_recipe(case.q)}  k={_recipe(case.k)}  v={_recipe(case.v)}", "  ")
    if content := [f"{n}={said[n]}" for n in ("q", "k", "v") if said[n]]:
        lines += wrapped("    with " + ";  ".join(content), "      ")
    if picture.neighbours.unfinished:
        lines.append(f"  (neighbours: {picture.neighbours.unfinished})")
    return lines


def _origin(case: AttendCase, search: Search, record: Record) -> str:
    cost = f"{search.cases} runs, {record.seconds:.1f} s"
    first = search.first
    if first is None or first == case:
        return f"as found; {cost}"
    names = [n for n in ("B", "Hq", "Hkv", "Tq", "Tk", "D") if getattr(first, n) != 1]
    return f"from {' '.join(f'{n}={getattr(first, n)}' for n in names)}; {cost}"


def _fields(case: AttendCase) -> dict[str, object]:
    """The fields that say something, in the order shown."""
    fields: dict[str, object] = {"Tq": case.Tq, "Tk": case.Tk}
    if case.B > 1:
        fields["B"] = case.B
    fields["causal"] = case.causal
    for name in ("lengths", "mask", "window", "sinks", "positions", "view", "at"):
        if name in changed(case):
            fields[name] = getattr(case, name)
    return {**fields, "D": case.D, "heads": f"{case.Hq}/{case.Hkv}", "scale": case.scale}


def _shown(name: str, value: object) -> str:
    if name == "heads":
        return f"heads {value}"
    if name == "scale":
        return "scale default" if value is None else f"scale={value:.9g}"
    return f"{name}={value}"


def _recipe(recipe: str) -> str:
    pattern, *spots = recipe.split(";")
    return (
        f"{pattern} except " + " ".join(f"[{s.replace('=', ']=')}" for s in spots)
        if spots
        else recipe
    )


def _where(place: Place) -> list[str]:
    axes = zip(AXES.get(len(place.index), ()), place.index, strict=False)
    index = ",".join(f"{a}={i}" for a, i in axes)
    lines = [f"Where: {place.tensor}[{index}]   {place.wrong} of {place.total} elements wrong"]
    error = abs(place.got - place.expected)
    lines.append(
        f"  got {number(place.got)}   expected {number(place.expected)}   "
        f"error {error:.2e}   allowed {place.allowed:.2e}"
    )
    return lines


def number(x: float) -> str:
    """*x*, with the simple fraction that it is, if it is one."""
    if not math.isfinite(x):
        return str(x)
    near = Fraction(x).limit_denominator(999)
    text = f"{x:.8g}" if x != int(x) else f"{x:.1f}"
    exact = near.denominator > 1 and abs(float(near) - x) <= 1e-12 * max(1.0, abs(x))
    simple = exact and near.denominator & (near.denominator - 1) and abs(near.numerator) < 1000
    return f"{text} ({near})" if simple else text


def _attended(readout: Readout) -> list[str]:
    if readout.right:
        return [
            "Attended: with v = identity every weight is right; look at values, row sum or LSE."
        ]
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
        lines += wrapped(f"  or: {other.sentence}.", "  ") + _model(other)
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
    if not isinstance(case, AttendCase):
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


__all__ = ["bounded", "number", "render", "wrapped"]
