"""A failed case as a script of its own: the call, the float64 answer, got beside expected.

The script needs torch, the kernel and the classes of the contract that a kernel is called with;
the suite's content module only where content is hashed. A law that compares several calls, or
watches memory, is run as it stands.
"""

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import PurePath
from typing import Any, TypeGuard

from kernelassay.oracle.formats import format_of
from kernelassay.properties.case import AttendCase, Case, case_from, literal
from kernelassay.properties.property import select
from kernelassay.script_scoring import (
    has_scoring,
    lse_lines,
    scored_lines,
    scoring_lines,
    terms,
    weight_lines,
)
from kernelassay.script_visibility import seen_lines, visibility_lines

PLAIN = frozenset(
    {
        "attention.value",
        "attention.extreme_scores",
        "attention.lse",
        "attention.exact_counting",
        "attention.exact_dyadic",
        "attention.empty_rows",
        "attention.hull",
        "attention.integer_masses",
        "alignment.causal_corner",
        "alignment.visible_set",
    }
)
"""Laws that judge the outputs of one plain call."""
COMPARED = ("WrongValue", "Imprecise", "NonFinite")
CALLED = ("Raised", "Refused", "WrongShape", "WrongDtype", "InputMutated")
"""Kinds that a plain call shows."""


def repro_script(record: dict[str, Any], spec: str) -> str:
    """The script for a record with a case; *spec* names the kernel as on the command line."""
    case, kind = case_from(record["case"]), str(record["kind"])
    if _is_plain(case, record["law"], kind):
        body, plain = [*_plain(record, case, kind)], True
    else:
        body, plain = [*_law(record, case)], False
    return "\n".join([*_head(record, case, spec, plain, body), *body]) + "\n"


def _is_plain(case: Case, law: str, kind: str) -> TypeGuard[AttendCase]:
    """Whether one call of dense attention shows the fault; else the law is run as it stands.

    Pages, splits, parts and batches of drafts are the suite's to lay out.
    """
    dense = isinstance(case, AttendCase) and {case.page, case.splits, case.cuts} == {None}
    one_call = law in (*PLAIN, "attention.memory")
    return dense and one_call and kind in (*COMPARED, *CALLED)


def _head(
    record: dict[str, Any], case: Case, spec: str, plain: bool, body: list[str]
) -> Iterator[str]:
    (prop,) = select(record["law"])
    yield f'"""{record["kernel"]} fails {record["law"]} with {record["kind"]}.'
    yield ""
    yield f"Law: {prop.sentence}"
    yield f"Case {record['case_id']}: {literal(case)}"
    yield '"""'
    yield ""
    if record["device"] == "interpreter":
        yield "import os"
        yield ""
        yield 'os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported'
        yield ""
    if ".py:" in spec or "/" in spec:
        yield "import sys"
        yield ""
    if plain:
        yield "import torch"
        yield ""
        scoring = "Scoring, " if isinstance(case, AttendCase) and has_scoring(case) else ""
        yield f"from kernelassay.impls.contract import AttendCall, {scoring}Visibility"
    makers = sorted(set(re.findall(r"\b(?:\w+_)?content(?=\()", "\n".join(body))))
    if not plain or makers:
        yield f"from {type(case).__module__} import {type(case).__name__}"
    if "content" in makers:
        yield "from kernelassay.properties.content import content"
    if beside := [name for name in makers if name != "content"]:
        yield f"from kernelassay.properties.content_terms import {', '.join(beside)}"
    yield from _kernel(spec, str(record["kernel"]))
    yield ""


def _kernel(spec: str, name: str) -> Iterator[str]:
    target, colon, attribute = spec.rpartition(":")
    if not colon:
        values = {e.name: e.value for e in entry_points(group="kernelassay.kernels")}
        target, _, attribute = values.get(spec, f"{spec}:adapter").partition(":")
    if target.endswith(".py") or "/" in target:
        path = PurePath(target)
        yield ""
        yield f"sys.path.insert(0, {str(path.parent)!r})"
        target = path.stem
    first, *rest = attribute.split(".")
    yield f"from {target} import {first} as kernel"
    if rest:
        yield f"kernel = kernel.{'.'.join(rest)}"
    yield "if isinstance(kernel, (list, tuple)):"
    yield f"    kernel = next(k for k in kernel if k.name == {name!r})"


def _literal(recipe: str) -> tuple[str, list[str]] | None:
    """A recipe as torch operations on a tensor x: (its fill, further assignments)."""
    pattern, *spots = recipe.split(";")
    name, *arguments = pattern.split(":")
    after = ["x[{}] = {}".format(*spot.replace(",", ", ").split("=")) for spot in spots]
    if name == "zeros":
        return "0.0", after
    if name == "level":
        return arguments[0], after
    if name == "first":
        return "0.0", [f"x[..., 0] = {arguments[0]}", *after]
    return None


def _law(record: dict[str, Any], case: Case) -> Iterator[str]:
    yield "from kernelassay.properties.property import select"
    yield "from kernelassay.properties.subject import Subject"
    yield ""
    yield f"(law,) = select({record['law']!r})"
    yield f"case = {literal(case)}"
    yield f"law.body(Subject(kernel, {record['dtype']!r}, {record['device']!r}), case)"
    yield 'print("the law holds on this case")'


def _plain(record: dict[str, Any], case: AttendCase, kind: str) -> Iterator[str]:
    made = [*_tensors(record, case), *visibility_lines(case)]
    made += scoring_lines(case, record["dtype"])
    if any("case." in line for line in made):
        yield f"case = {literal(case)}"
    yield from made
    scoring = ", scoring=scoring" if has_scoring(case) else ""
    yield f"call = AttendCall(q=q, k=k, v=v, scale={case.scale!r}, visibility=visibility{scoring})"
    if kind == "InputMutated":
        held = ", ".join(f'"{name}": {name}' for name in ("q", "k", "v", *terms(case)))
        yield f"held = {{{held}}}"
        yield "before = {name: x.clone() for name, x in held.items()}"
    yield "answer = kernel.attend(call)"
    if kind in CALLED:
        yield 'print("answered", type(answer).__name__)'
        yield "out = answer[0] if isinstance(answer, tuple) else getattr(answer, 'out', answer)"
        yield "shape = (B, Hq, Tq, v.shape[-1])"
        yield 'print("got", tuple(out.shape), out.dtype, "  expected", shape, dtype)'
    if kind == "InputMutated":
        yield "for name, x in held.items():"
        yield '    print(name, "unchanged" if torch.equal(x, before[name]) else "CHANGED")'
    if kind in COMPARED:
        yield from _compared(record, case)


def _tensors(record: dict[str, Any], case: AttendCase) -> Iterator[str]:
    place = "cuda" if record["device"] == "cuda" else "cpu"
    yield f'dtype, device = {format_of(record["dtype"]).dtype}, "{place}"'
    sizes = (case.B, case.Hq, case.Hkv, case.Tq, case.Tk, case.D)
    yield f"B, Hq, Hkv, Tq, Tk, D = {', '.join(map(str, sizes))}"
    Dv = "D" if case.value_size == case.D else str(case.value_size)
    shapes = {"q": "B, Hq, Tq, D", "k": "B, Hkv, Tk, D", "v": f"B, Hkv, Tk, {Dv}"}
    for name, shape in shapes.items():
        made = _literal(getattr(case, name))
        if made is None:
            yield f"{name} = content(case.{name}, ({shape}), case, {record['dtype']!r})"
        else:
            fill = "zeros" if made[0] == "0.0" else "full"
            value = "" if made[0] == "0.0" else f", {made[0]}"
            yield f"{name} = torch.{fill}(({shape}){value})"
            yield from (line.replace("x[", f"{name}[", 1) for line in made[1])
    yield "q, k, v = (x.to(device, dtype, copy=True) for x in (q, k, v))"
    turn = case.B + case.Hq + case.Tq + case.D  # as `layout_of` chooses
    yield f'if (kernel.capabilities.layouts * {turn + 1})[{turn}] == "BTHD":'
    yield "    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))"
    laid = {
        "offset": "torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)",
        "padded": "torch.nn.functional.pad(x, (0, 8))[..., :-8]",
        "interleaved": "torch.cat([x, x], -1)[..., : x.shape[-1]]",
        "inner": "x.mT.contiguous().mT",
        "expanded": "x[:1].expand_as(x)",
    }
    if case.view in laid:
        yield f"q, k, v = ({laid[case.view]} for x in (q, k, v))  # {case.view}"


def _compared(record: dict[str, Any], case: AttendCase) -> Iterator[str]:
    tensor, index, allowed = _place(record)
    yield ""
    yield "i = torch.arange(Tq, device=device)[:, None]"
    yield "j = torch.arange(Tk, device=device)"
    yield "seen = torch.ones(B, Hq, Tq, Tk, dtype=torch.bool, device=device)"
    yield from seen_lines(case)
    yield "scale = D**-0.5" if case.scale is None else f"scale = {case.scale!r}"
    yield "k64, v64 = (x.double().repeat_interleave(Hq // Hkv, 1) for x in (k, v))"
    yield from scored_lines(case)
    if tensor == "lse":
        yield "got = answer[1] if isinstance(answer, tuple) else answer.lse"
        yield from lse_lines(case)
        yield 'base_2 = kernel.capabilities.conventions.lse_base == "2"'
        yield "expected = lse / torch.log(torch.tensor(2.0).double()) if base_2 else lse"
    else:
        yield 'got = answer[0] if isinstance(answer, tuple) else getattr(answer, "out", answer)'
        yield from weight_lines(case)
        yield "expected = p @ v64"
    if index is None:
        yield "at = int((got.double() - expected).abs().nan_to_num(torch.inf).argmax())"
        yield "index = tuple(int(n) for n in torch.unravel_index(torch.tensor(at), got.shape))"
    else:
        yield f"index = {index}"
    yield f'print("{tensor}", list(index))'
    yield 'print("got     ", float(got[index]))'
    yield 'print("expected", float(expected[index]))'
    if allowed is not None:
        yield f'print("allowed ", {allowed})'


def _place(record: dict[str, Any]) -> tuple[str, tuple[int, ...] | None, str | None]:
    """Tensor, index and allowance of the element that the report shows."""
    report = record.get("report") or ""
    found = re.search(r"^Where: (\w+)\[([^\]]*)\]", report, re.MULTILINE)
    if not found:
        return ("lse" if record["law"] == "attention.lse" else "out"), None, None
    index = tuple(int(axis.split("=")[1]) for axis in found[2].split(","))
    allowed = re.search(r"   allowed ([0-9.e+-]+)$", report, re.MULTILINE)
    return found[1], index, allowed[1] if allowed else None
