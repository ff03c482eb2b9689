"""A case: one input as a small frozen dataclass that prints as valid Python.

Each operation has a class of cases. Tensors are made from a case by a pure function
(`kernelassay.properties.content` for attention); the case itself names shapes, visibility and
recipes. Its id is a hash of every field, so that a case is the same case on every machine.
"""

import ast
import hashlib
import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from typing import Any, ClassVar

from kernelassay.properties.memory import VIEWS

SCHEMA = 3
"""Version of the case format; part of every case id."""


TREES = ("flat", "left", "right", "balanced")
"""How parts are merged: all at once, one after the other from either end, in pairs of pairs."""
PAGINGS = ("shuffled", "ordered", "shared", "reserved")
"""Where pages lie: anywhere; in order; anywhere, equal pages of several requests kept once;
anywhere, with pages for keys past a length, too."""


class CaseError(ValueError):
    """A case line that cannot be read; says what came and what is expected."""


class Case:
    """What the classes of cases share. A subclass is known by its name once it is imported."""

    KINDS: ClassVar[Mapping[str, tuple[type, ...]]] = {}
    """What a field may hold, where its default does not say all."""
    NUMBERS: ClassVar[tuple[str, ...]] = ()
    """Fields that may be whole numbers and mean floats."""
    EXAMPLE: ClassVar[str] = ""
    """A literal, for messages."""

    def checked(self) -> None:
        """A `CaseError`, unless the fields fit together."""
        raise NotImplementedError

    @classmethod
    def known(cls) -> "dict[str, Field[Any]]":
        """Its fields by name."""
        return {f.name: f for f in fields(cls)}  # type: ignore[arg-type]  # a dataclass below

    def __repr__(self) -> str:
        return literal(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class AttendCase(Case):
    """One attention forward. Recipes: see `kernelassay.properties.content`, `content_terms`.

    *page*, *pages*, *splits*: see `kernelassay.properties.pages` and `AttendCall.splits`. *cuts*,
    *tree*, *order*: where the keys are cut into parts and how those are merged, see
    `kernelassay.properties.parts`.
    """

    B: int = 1
    Hq: int = 1
    Hkv: int = 1
    Tq: int = 1
    Tk: int = 1
    D: int = 64
    Dv: int | None = None
    causal: str = "none"
    window: tuple[int | None, int | None] = (None, None)
    sinks: int = 0
    lengths: tuple[int, ...] | None = None
    positions: str | None = None
    mask: str | None = None
    scale: float | None = None
    softcap: float | None = None
    alibi: str | None = None
    bias: str | None = None
    sink_logits: str | None = None
    q: str = "zeros"
    k: str = "zeros"
    v: str = "zeros"
    view: str = "contiguous"
    page: int | None = None
    pages: str = "shuffled:0"
    splits: int | None = None
    cuts: tuple[int, ...] | None = None
    tree: str = "flat"
    order: int = 0
    at: int = 0
    """The law's own parameter: a cut between chunks, the row looked at."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, Hq, Tq, Tk)."""
        return self.B, self.Hq, self.Tq, self.Tk

    @property
    def value_size(self) -> int:
        """Dv, which is D where nothing else is said."""
        return self.D if self.Dv is None else self.Dv

    @property
    def generic(self) -> bool:
        """Whether q, k and v are independent random content, as the sharper budget needs."""
        return all(t.startswith("random:") and ";" not in t for t in (self.q, self.k, self.v))

    KINDS: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("scale", "softcap"), (float, int, type(None))),
        **dict.fromkeys(("Dv", "page", "splits"), (int, type(None))),
        **dict.fromkeys(("lengths", "cuts"), (tuple, list, type(None))),
        **dict.fromkeys(("positions", "mask", "alibi", "bias", "sink_logits"), (str, type(None))),
        "window": (tuple, list),
    }
    NUMBERS = ("scale", "softcap")
    EXAMPLE = "AttendCase(Tq=1, Tk=17)"

    def checked(self) -> None:
        """A `CaseError`, unless the fields fit together."""
        _check_attend(self)


CLASSES = (
    "kernelassay.properties.speculative",
    "kernelassay.properties.logits",
    "kernelassay.properties.caching",
    "kernelassay.properties.decoding",
    "kernelassay.properties.prefixes",
    "kernelassay.properties.recurrent",
)
"""Packages that bring a class of cases; imported when a case is read, as they import this."""


def case_classes() -> dict[str, type[Case]]:
    """The classes of cases by name."""
    for package in CLASSES:
        importlib.import_module(package)
    return {cls.__name__: cls for cls in Case.__subclasses__()}


def literal(case: Case) -> str:
    """The case as Python, fields at their default left out."""
    shown = (f"{name}={value!r}" for name, value in changed(case).items())
    return f"{type(case).__name__}({', '.join(shown)})"


def changed(case: Case) -> dict[str, Any]:
    """Those fields that differ from their default."""
    return {
        f.name: getattr(case, f.name)
        for f in case.known().values()
        if f.default is MISSING or getattr(case, f.name) != f.default
    }


def case_id(law: str, case: Case) -> str:
    """8 hex digits over [schema, law, every field, defaults included]."""
    numbers = {n: getattr(case, n) for n in case.NUMBERS}
    every = asdict(case)  # type: ignore[call-overload]  # every class of cases is a dataclass
    given = every | {n: None if x is None else float(x) for n, x in numbers.items()}
    canonical = json.dumps([SCHEMA, law, given], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def parse_case(text: str) -> Case:
    """The case that *text*, such as "AttendCase(Tq=1, Tk=17)", writes; never evaluated as code."""
    classes = case_classes()

    def bad(why: str) -> CaseError:
        shown = text if len(text) <= 300 else f"{text[:300]}..."
        return CaseError(
            f"case: got {shown!r}: {why}; expected a literal such as {AttendCase.EXAMPLE}"
        )

    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise bad(f"no Python expression ({getattr(error, 'msg', error)})") from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise bad("no call of a case class")
    if node.func.id not in classes:
        raise bad(f"{node.func.id} is no case class (there is {', '.join(classes)})")
    if node.args or any(k.arg is None for k in node.keywords):
        raise bad("fields must be given by name")
    names = [str(k.arg) for k in node.keywords]
    for name in names:
        if names.count(name) > 1:
            raise bad(f"field {name} is given twice")
    try:
        given = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise bad("a field is no literal") from None
    return _made(classes[node.func.id], given)


def case_from(given: dict[str, Any]) -> Case:
    """The case with these fields (as JSON or TOML gives them), the others at their default.

    "type" names its class, `AttendCase` where it is left out.
    """
    if not isinstance(given, dict):
        raise CaseError(f"case: got {given!r}, expected a table of fields such as {{'Tk': 17}}")
    classes, name = case_classes(), given.get("type", AttendCase.__name__)
    if name not in classes:
        raise CaseError(f"case: type: got {name!r}, expected one of {', '.join(classes)}")
    return _made(classes[name], {n: v for n, v in given.items() if n != "type"})


def _made(cls: type[Case], given: dict[str, Any]) -> Case:
    known = cls.known()
    for name, value in given.items():
        if name not in known:
            raise CaseError(f"case: got field {name!r}, expected some of {', '.join(known)}")
        kinds = cls.KINDS.get(name, (type(known[name].default),))
        if value == "none" and type(None) in kinds and str not in kinds:  # TOML has no None
            given = given | {name: None}
        elif not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(k.__name__ for k in kinds)
            raise CaseError(f"case: field {name}: got {value!r}, expected {expected}")
    case = cls(**{n: _frozen(v) for n, v in given.items()})
    case.checked()
    return case


def _frozen(value: Any) -> Any:
    """Lists, as JSON and TOML have them, as tuples, however deep, with None for "none" in them."""
    if isinstance(value, list | tuple):
        return tuple(None if x == "none" else _frozen(x) for x in value)
    return value


def _check_attend(case: AttendCase) -> None:
    """A `CaseError`, unless the fields fit together."""
    for name in ("B", "Hq", "Hkv", "D"):
        if getattr(case, name) < 1:
            raise CaseError(f"case: field {name}: got {getattr(case, name)}, expected at least 1")
    for name, none in (("Dv", "None for D"), ("page", "None"), ("splits", "None")):
        if (n := getattr(case, name)) is not None and n < 1:
            raise CaseError(f"case: field {name}: got {n}, expected at least 1, or {none}")
    if case.cuts is not None and not all(_count(n) for n in case.cuts):
        raise CaseError(f"case: field cuts: got {case.cuts}, expected numbers of at least 0")
    for name, known in (("tree", TREES), ("pages", PAGINGS)):
        if (value := getattr(case, name)).split(":")[0] not in known:
            raise CaseError(f"case: field {name}: got {value!r}, expected {' or '.join(known)}")
    for name in ("Tq", "Tk", "sinks", "order", "at"):
        if getattr(case, name) < 0:
            raise CaseError(f"case: field {name}: got {getattr(case, name)}, expected at least 0")
    if case.Hq % case.Hkv:
        raise CaseError(f"case: Hq={case.Hq} is not a multiple of Hkv={case.Hkv}")
    if case.lengths is not None and (
        len(case.lengths) != case.B or not all(_count(n) and n <= case.Tk for n in case.lengths)
    ):
        raise CaseError(
            f"case: field lengths: got {case.lengths}, expected B={case.B} numbers in 0..{case.Tk}"
        )
    if len(case.window) != 2 or not all(n is None or _count(n) for n in case.window):
        raise CaseError(
            f"case: field window: got {case.window}, expected (left, right), each None or a "
            f"number of at least 0"
        )
    if case.scale is not None and not math.isfinite(case.scale):
        raise CaseError(f"case: field scale: got {case.scale}, expected a finite number or None")
    if case.softcap is not None and not 0 < case.softcap < math.inf:
        raise CaseError(
            f"case: field softcap: got {case.softcap}, expected a finite number above 0, or None"
        )
    if case.view not in VIEWS:
        raise CaseError(f"case: field view: got {case.view!r}, expected one of {', '.join(VIEWS)}")
    if case.causal not in ("none", "bottom_right", "top_left", "positions"):
        raise CaseError(f"case: field causal: got {case.causal!r}, expected a causal corner")
    if (case.causal == "positions") != (case.positions is not None):
        raise CaseError("case: causal='positions' and a positions recipe go together")


def _count(value: Any) -> bool:
    """Whether *value* is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def to_json(case: Case) -> dict[str, Any]:
    """The fields that differ from their default, ready for JSON; the class where it must be."""
    named = {} if isinstance(case, AttendCase) else {"type": type(case).__name__}
    return named | changed(case)
