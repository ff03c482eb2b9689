"""Text of reports: ASCII lines within a screen, numbers and cases as they are read best."""

import math
import textwrap
from fractions import Fraction

from kernelassay.properties.case import AttendCase, changed

WIDTH = 99
MOST_LINES = 45
KEPT_AT_THE_END = 9
"""Lines that are never left out: how to rerun, and the environment."""


def bounded(blocks: list[list[str]]) -> str:
    """The blocks with a blank line between them, ASCII, within `WIDTH` and `MOST_LINES`."""
    lines: list[str] = []
    for block in blocks:
        if block:
            lines += [*([""] if lines else []), *block]
    plain = [x.encode("ascii", "backslashreplace").decode() for x in lines]
    cut = [x if len(x) <= WIDTH else f"{x[: WIDTH - 4]} ..." for x in plain]
    if len(cut) > MOST_LINES:
        tail = KEPT_AT_THE_END
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


def number(x: float) -> str:
    """*x*, with the simple fraction that it is, if it is one."""
    if not math.isfinite(x):
        return str(x)
    near = Fraction(x).limit_denominator(999)
    text = f"{x:.8g}" if x != int(x) else f"{x:.1f}"
    exact = near.denominator > 1 and abs(float(near) - x) <= 1e-12 * max(1.0, abs(x))
    simple = exact and near.denominator & (near.denominator - 1) and abs(near.numerator) < 1000
    return f"{text} ({near})" if simple else text


OPTIONAL = (
    "lengths", "mask", "window", "sinks", "positions", "softcap", "alibi", "bias", "sink_logits",
    "page", "pages", "splits", "cuts", "tree", "order", "view", "at",
)  # fmt: skip
"""Fields that are shown where they are not at their default."""


def fields_of(case: AttendCase) -> dict[str, object]:
    """The fields that say something, in the order shown."""
    fields: dict[str, object] = {"Tq": case.Tq, "Tk": case.Tk}
    if case.B > 1:
        fields["B"] = case.B
    fields["causal"] = case.causal
    given = changed(case)
    fields |= {n: given[n] for n in OPTIONAL if n in given}
    fields["D"] = case.D
    if case.value_size != case.D:
        fields["Dv"] = case.Dv
    return {**fields, "heads": f"{case.Hq}/{case.Hkv}", "scale": case.scale}


def shown(name: str, value: object) -> str:
    """One field of a case, as "Tq=1"."""
    if name == "heads":
        return f"heads {value}"
    if name == "scale":
        return "scale default" if value is None else f"scale={value:.9g}"
    if name == "softcap":
        return f"softcap={value:.9g}"
    return f"{name}={value}"


def recipe_of(recipe: str) -> str:
    """A recipe in words: "zeros except [0,0,16,0]=1"."""
    pattern, *spots = recipe.split(";")
    return (
        f"{pattern} except " + " ".join(f"[{s.replace('=', ']=')}" for s in spots)
        if spots
        else recipe
    )
