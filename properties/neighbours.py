"""Neighbours of a counterexample: one field changed at a time, which pass and which fail."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from kernelassay.properties.case import AttendCase, CaseError
from kernelassay.properties.domain import Domain, domain_of, lacking
from kernelassay.properties.failures import DeviceLost, Failure, TimedOut
from kernelassay.properties.limit import time_limit
from kernelassay.properties.property import Property
from kernelassay.properties.subject import Subject

MOST_RUNS = 20
MOST_SECONDS = 20.0

BOUND: dict[str, frozenset[str]] = {
    "attention.exact_counting": frozenset({"q", "k", "v"}),
    "attention.exact_dyadic": frozenset({"q", "k", "v", "scale"}),
    "attention.grouped_heads": frozenset({"heads"}),
    "attention.views": frozenset({"view"}),
    "attention.batch_independence": frozenset({"B"}),
    "attention.head_independence": frozenset({"heads"}),
    "attention.key_permutation": frozenset({"causal", "window", "alibi"}),
    "attention.score_shift": frozenset({"scale", "bias"}),
    "attention.integer_masses": frozenset({"q", "k", "v", "scale"}),
    "attention.sink_relation": frozenset({"sink_logits"}),
    "attention.bias_is_mask": frozenset({"mask"}),
    "alignment.window_truncation": frozenset({"window"}),
    "alignment.last_tile": frozenset({"q", "k", "v", "scale"}),
    "alignment.visible_set": frozenset({"q", "k", "v", "scale"}),
    "alignment.causal_corner": frozenset({"causal"}),
    "alignment.no_future": frozenset({"causal"}),
    "alignment.decode_is_last_row": frozenset({"causal"}),
    "alignment.chunked_is_whole": frozenset({"causal"}),
}
"""Fields that a law's own cases fix: without them its body judges something else."""
NO_NEIGHBOURS = ("attention.declines", "attention.validates", "attention.far_offsets")
"""Laws of refusals: a neighbour inside the capabilities must be answered, not refused. And one
whose every call takes gigabytes."""

Value = tuple[str, AttendCase]


@dataclass(frozen=True)
class Neighbour:
    """One changed field: its new value as text, and what the law said ("passes", "fails", ...)."""

    field: str
    value: str
    case: AttendCase
    verdict: str


@dataclass(frozen=True)
class Neighbours:
    """All that were run; *unfinished* says why some were not."""

    runs: tuple[Neighbour, ...] = ()
    unfinished: str = ""

    def alike(self) -> str:
        """One sentence if every neighbour fails: no field matters, or only what is not varied."""
        if not self.runs or {n.verdict for n in self.runs} != {"fails"}:
            return ""
        fields: dict[str, list[str]] = {}
        for n in self.runs:
            fields.setdefault(n.field, []).append(n.value)
        shown = "; ".join(f"{name}={', '.join(values)}" for name, values in fields.items())
        return f"All {len(self.runs)} neighbours fail as well: {shown}."

    def line(self, field: str, case: AttendCase, tiles: tuple[int, ...]) -> str:
        """What the neighbours in one field say, on one line; "" if none was run."""
        runs = [n for n in self.runs if n.field == field]
        if not runs:
            return ""
        parts = [
            _said([n.value for n in members], verdict)
            for verdict, members in groupby(runs, key=lambda n: n.verdict)
        ]
        if {n.verdict for n in runs} == {"fails"} and field not in ("q", "k", "v"):
            parts[-1] += " as well"
        edge = boundary(case, runs, tiles) if field == "Tk" else None
        return ", ".join(parts) + (f"     <- boundary: tile {edge}" if edge else "")


def _said(values: list[str], verdict: str) -> str:
    """ "3 fails", "1 and 3 fail", "1 fails (NonFinite)"."""
    if len(values) == 1:
        return f"{values[0]} {verdict}"
    what, *kind = verdict.split(" ", 1)
    plural = {"passes": "pass", "fails": "fail", "times": "time"}[what]
    return " ".join([", ".join(values[:-1]), "and", values[-1], plural, *kind])


def boundary(case: AttendCase, runs: list[Neighbour], tiles: tuple[int, ...]) -> int | None:
    """The largest declared tile whose multiples alone pass, or that the case is just past."""
    passing = {n.case.Tk for n in runs if n.verdict == "passes"} - {0}
    failing = {case.Tk} | {n.case.Tk for n in runs if n.verdict.startswith("fails")}
    for tile in sorted(tiles, reverse=True):
        whole = {Tk for Tk in passing if Tk % tile == 0}
        multiples = whole == passing and all(Tk % tile for Tk in failing)
        threshold = case.Tk - 1 in whole and min(failing) == case.Tk
        if whole and (multiples or threshold):
            return tile
    return None


def probe(prop: Property, subject: Subject, case: AttendCase, kind: str) -> Neighbours:
    """Run the law on neighbours of *case*, at most `MOST_RUNS` of them."""
    if prop.name in NO_NEIGHBOURS:
        return Neighbours()
    bound, domain = BOUND.get(prop.name, frozenset()), domain_of(subject)
    deadline = time.perf_counter() + MOST_SECONDS
    runs: list[Neighbour] = []
    for field, value, near in _valid(case, domain):
        if field in bound:
            continue
        if len(runs) == MOST_RUNS or time.perf_counter() > deadline:
            return Neighbours(tuple(runs), f"stopped after {len(runs)} runs")
        verdict = _run(prop, Subject(subject.kernel, subject.dtype, subject.device), near, kind)
        if verdict:
            runs.append(Neighbour(field, value, near, verdict))
    for dtype in subject.capabilities.dtypes:
        if dtype != subject.dtype and len(runs) < MOST_RUNS:
            other = Subject(subject.kernel, dtype, subject.device)
            if verdict := _run(prop, other, case, kind):
                runs.append(Neighbour("dtype", dtype, case, verdict))
    return Neighbours(tuple(runs))


def _run(prop: Property, subject: Subject, case: AttendCase, kind: str) -> str:
    """ "passes", "fails", "fails (another kind)", "times out"; "" if the law cannot judge it."""
    subject.current = case
    try:
        with time_limit(MOST_SECONDS):
            prop.body(subject, case)
    except Failure as failure:
        gross = {"WrongValue", "Imprecise"}
        same = failure.kind == kind or {failure.kind, kind} <= gross
        return "fails" if same else f"fails ({failure.kind})"
    except TimedOut:
        return "times out"
    except DeviceLost:
        raise
    except Exception:
        return ""
    return "passes"


def _valid(case: AttendCase, domain: Domain) -> Iterator[tuple[str, str, AttendCase]]:
    """Neighbours that make sense and lie within the capabilities."""
    tried = {case}
    for field, value, near in _proposed(case, domain):
        try:
            near.checked()
        except CaseError:
            continue
        fits = domain.fits(near.B, near.Hq, near.Tq, near.Tk)
        if near not in tried and fits and not lacking(near, domain):
            tried.add(near)
            yield field, value, near


def _proposed(case: AttendCase, domain: Domain) -> Iterator[tuple[str, str, AttendCase]]:
    for Tk in _lengths(case.Tk, domain.tiles):
        yield "Tk", str(Tk), _resized(case, Tk=Tk)
    for Tq in sorted({case.Tq - 1, case.Tq + 1, 8} - {0, -1}):
        yield "Tq", str(Tq), _resized(case, Tq=Tq)
    for corner in ("none", "bottom_right", "top_left"):
        yield "causal", corner, replace(case, causal=corner, positions=None)
    yield "lengths", "none", replace(case, lengths=None)
    yield "mask", "none", replace(case, mask=None)
    yield "sinks", "0", replace(case, sinks=0)
    yield "scale", "default", replace(case, scale=None)
    yield "window", "none", replace(case, window=(None, None), sinks=0)
    yield from _other_terms(case)
    yield from _other_plans(case, domain)
    yield "view", "contiguous", replace(case, view="contiguous")
    if case.B > 1:
        for B in sorted({1, case.B - 1}):
            yield "B", str(B), _resized(case, B=B)
    for Hq, Hkv in ((case.Hq, case.Hq), (case.Hq, 1), (1, 1)):
        if case.Hq > 1:
            yield "heads", f"{Hq}/{Hkv}", replace(case, Hq=Hq, Hkv=Hkv)
    sizes = sorted(domain.head_sizes, key=lambda D: (abs(D - case.D), D))
    for D in sorted(sizes[1:3]):
        yield "D", str(D), replace(case, D=D)
    for field in ("q", "k", "v"):
        for recipe in ("zeros", "onehot") if field == "v" else ("zeros",):
            if not (recipe == "onehot" and case.v.startswith("zeros")):
                yield field, recipe, _with(case, field, recipe)


def _other_plans(case: AttendCase, domain: Domain) -> Iterator[tuple[str, str, AttendCase]]:
    """Keys divided or kept in another way: other cuts, trees, splits, page sizes."""
    if case.cuts is not None:
        middle, edges = case.Tk // 2, {"first part empty": (0,), "last part empty": (case.Tk,)}
        for name, cuts in {"in the middle": (middle,), **edges, "none": ()}.items():
            yield "cuts", name, replace(case, cuts=cuts, tree="flat", order=0)
        yield "tree", "flat", replace(case, tree="flat")
        yield "order", "0", replace(case, order=0)
    if case.splits is not None:
        for n in sorted({1, 2, case.splits + 1, case.Tk + 1} - {case.splits}):
            yield "splits", str(n), replace(case, splits=n)
    if case.page is not None:
        for page in domain.pages:
            yield "page", str(page), replace(case, page=page)
        yield "pages", "ordered", replace(case, pages="ordered")


def _other_terms(case: AttendCase) -> Iterator[tuple[str, str, AttendCase]]:
    """The scoring terms and Dv left out one at a time, and another soft cap."""
    for field in ("softcap", "alibi", "bias", "sink_logits"):
        yield field, "none", _with(case, field, None)
    if case.softcap is not None:
        yield "softcap", f"{2 * case.softcap:g}", replace(case, softcap=2 * case.softcap)
    yield "Dv", str(case.D), replace(case, Dv=None)


def _with(case: AttendCase, field: str, value: Any) -> AttendCase:
    return replace(case, **{field: value})


def _lengths(Tk: int, tiles: tuple[int, ...]) -> list[int]:
    """One key less, one more, and the next multiples of the two smallest tiles."""
    multiples = [(Tk // tile + 1) * tile for tile in sorted(tiles)[:2]]
    return [n for n in sorted({Tk - 1, Tk + 1, *multiples}) if n >= 0]


def _resized(case: AttendCase, **sizes: int) -> AttendCase:
    """*case* with another size; lengths stay within it."""
    near = replace(case, **sizes)  # type: ignore[arg-type]
    if near.lengths is not None:
        kept = (*near.lengths, *(near.lengths[-1:] * near.B))[: near.B]
        # A request that used every key still does.
        grown = tuple(near.Tk if n == case.Tk else min(n, near.Tk) for n in kept)
        near = replace(near, lengths=grown)
    return near
