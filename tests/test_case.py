"""A case is a literal: it prints as Python, parses back, has an id, and is never run as code."""

import contextlib
import json
import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.properties.case import (
    AttendCase,
    CaseError,
    case_from,
    case_id,
    changed,
    literal,
    parse_case,
    to_json,
)
from kernelassay.properties.expectations import table

NUMBERS = st.integers(1, 70)


@st.composite
def cases(draw: st.DrawFn) -> AttendCase:
    """Any well-formed case."""
    B, Tk = draw(st.integers(1, 3)), draw(st.integers(0, 70))
    group, Hkv = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    lengths = st.tuples(*[st.integers(0, Tk)] * B)
    side = st.none() | st.integers(0, 9)
    positions = draw(st.none() | st.sampled_from(["offset:-2", "gaps:7", "ring:3"]))
    corner = st.sampled_from(["none", "bottom_right", "top_left"])
    return AttendCase(
        B=B, Hq=group * Hkv, Hkv=Hkv, Tq=draw(NUMBERS), Tk=Tk, D=draw(NUMBERS),
        causal="positions" if positions else draw(corner),
        window=draw(st.tuples(side, side)), sinks=draw(st.integers(0, 4)),
        lengths=draw(st.none() | lengths), positions=positions,
        mask=draw(st.none() | st.sampled_from(["nothing", "keep:3:50:bhqk", "prefix:2"])),
        scale=draw(st.none() | st.floats(-4, 4)),
        Dv=draw(st.none() | NUMBERS), softcap=draw(st.none() | st.sampled_from([1, 2.5, 1e-9])),
        alibi=draw(st.none() | st.sampled_from(["standard", "hashed:3"])),
        bias=draw(st.none() | st.sampled_from(["level:-1.5", "fill:-inf:rows:1:50:qk;level:2"])),
        sink_logits=draw(st.none() | st.sampled_from(["level:-inf", "random:3:2.0"])),
        q=draw(st.sampled_from(["zeros", "random:5", "random:5:6.0"])),
        v=draw(st.sampled_from(["zeros", "zeros;0,0,16,0=1", "bits:0:10"])),
        view=draw(st.sampled_from(["contiguous", "inner"])), at=draw(st.integers(0, 31)),
    )  # fmt: skip


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(case=cases())
def test_a_case_prints_as_python_and_parses_back(case: AttendCase) -> None:
    """literal, JSON and the plain fields each give the same case back."""
    text = literal(case)
    assert repr(case) == text
    assert eval(text, {"AttendCase": AttendCase}) == case
    for again in (parse_case(text), case_from(json.loads(json.dumps(to_json(case))))):
        assert again == case
        assert case_id("a.law", again) == case_id("a.law", case)


def test_only_changed_fields_are_shown() -> None:
    """Fields at their default are left out of literal and JSON."""
    case = AttendCase(Tq=1, Tk=17, v="zeros;0,0,16,0=1")
    assert literal(AttendCase()) == "AttendCase()"
    assert literal(case) == "AttendCase(Tk=17, v='zeros;0,0,16,0=1')"
    assert changed(case) == to_json(case) == {"Tk": 17, "v": "zeros;0,0,16,0=1"}


def test_ids_are_what_they_were() -> None:
    """Two ids are pinned: kept cases and reports of earlier versions stay findable."""
    assert case_id("attention.value", AttendCase()) == "072acec1"
    case = AttendCase(Tq=2, Tk=17, lengths=(3,), scale=0.3)
    assert case_id("alignment.visible_set", case) == "7520ee97"


OTHER: dict[str, Any] = {
    "B": 2, "Hq": 2, "Hkv": 2, "Tq": 2, "Tk": 2, "D": 32, "causal": "top_left",
    "window": (1, None), "sinks": 1, "lengths": (0,), "positions": "offset:1", "mask": "nothing",
    "scale": 0.5, "q": "random:1", "k": "random:1", "v": "random:1", "view": "inner", "at": 1,
    "page": 4, "pages": "ordered", "splits": 2, "cuts": (1,), "tree": "left", "order": 1,
    "Dv": 64, "softcap": 2.0, "alibi": "standard", "bias": "level:1", "sink_logits": "level:0",
}  # fmt: skip


def test_an_id_depends_on_the_law_and_every_field() -> None:
    """Another law or another value of any field is another id, the same in JSON's words too."""
    assert set(OTHER) == {f.name for f in fields(AttendCase)}
    base = AttendCase()
    ids = {case_id("a.law", replace(base, **{name: value})) for name, value in OTHER.items()}
    ids |= {case_id("a.law", base), case_id("another.law", base)}
    assert len(ids) == len(OTHER) + 2


def test_equal_cases_have_equal_ids() -> None:
    """scale=1 and scale=1.0 are one case; a list of lengths is a tuple of lengths."""
    for name in ("scale", "softcap"):
        whole, real = (AttendCase(**{name: n}) for n in (1, 1.0))  # type: ignore[arg-type]
        assert case_id("a.law", whole) == case_id("a.law", real)
    assert case_from({"lengths": [1], "window": [1, None]}) == AttendCase(
        lengths=(1,), window=(1, None)
    )


MALFORMED = {
    "1 + 1": "no call of a case class",
    "AttendCase": "no call of a case class",
    "AttendCase(Tq=": "no Python expression",
    "": "no Python expression",
    "AttendCase(Tq=1); import os": "no Python expression",
    "AttendCase(Tq='\0')": "no Python expression",
    "AttendCase(Tq=" + "-" * 20_000 + "1)": "no Python expression|no literal",
    "a.AttendCase()": "no call of a case class",
    "PagedCase(Tq=1)": "PagedCase is no case class",
    "AttendCase(1)": "fields must be given by name",
    "AttendCase(**{'Tq': 1})": "fields must be given by name",
    "AttendCase(Tq=1, Tq=2)": "field Tq is given twice",
    "AttendCase(Tq=__import__('os').getpid())": "a field is no literal",
    "AttendCase(Tq=Tk)": "a field is no literal",
    "AttendCase(Tq=2 * 2)": "a field is no literal",
    "AttendCase(Tq={[]})": "a field is no literal",
    "AttendCase(Tq=(lambda: 1)())": "a field is no literal",
    "AttendCase(T=1)": "got field 'T', expected some of B, Hq",
    "AttendCase(Tq='1')": "field Tq: got '1', expected int",
    "AttendCase(Tq=1.0)": r"field Tq: got 1\.0, expected int",
    "AttendCase(Tq=True)": "field Tq: got True, expected int",
    "AttendCase(q=1)": "field q: got 1, expected str",
    "AttendCase(scale='1')": "field scale: got '1', expected float or int or NoneType",
    "AttendCase(scale=1e999)": "field scale: got inf, expected a finite number",
    "AttendCase(Dv=0)": "field Dv: got 0, expected at least 1, or None for D",
    "AttendCase(Dv=2.0)": r"field Dv: got 2\.0, expected int or NoneType",
    "AttendCase(softcap='1')": "field softcap: got '1', expected float or int or NoneType",
    "AttendCase(softcap=True)": "field softcap: got True, expected float or int or NoneType",
    "AttendCase(softcap=0.0)": r"field softcap: got 0\.0, expected a finite number above 0",
    "AttendCase(softcap=-2)": "field softcap: got -2, expected a finite number above 0",
    "AttendCase(softcap=1e999)": "field softcap: got inf, expected a finite number above 0",
    "AttendCase(alibi=0.5)": r"field alibi: got 0\.5, expected str or NoneType",
    "AttendCase(bias=1)": "field bias: got 1, expected str or NoneType",
    "AttendCase(sink_logits=(1,))": r"field sink_logits: got \(1,\), expected str or NoneType",
    "AttendCase(B=0)": "field B: got 0, expected at least 1",
    "AttendCase(Tk=-1)": "field Tk: got -1, expected at least 0",
    "AttendCase(sinks=-1)": "field sinks: got -1, expected at least 0",
    "AttendCase(at=-1)": "field at: got -1, expected at least 0",
    "AttendCase(Hq=3, Hkv=2)": "Hq=3 is not a multiple of Hkv=2",
    "AttendCase(B=2, lengths=(1,))": r"field lengths: got \(1,\), expected B=2 numbers in 0..1",
    "AttendCase(lengths=(2,))": r"field lengths: got \(2,\), expected B=1 numbers in 0..1",
    "AttendCase(lengths=('a',))": "field lengths: got .* expected B=1 numbers",
    "AttendCase(lengths=(True,))": "field lengths: got .* expected B=1 numbers",
    "AttendCase(lengths=(0.5,))": "field lengths: got .* expected B=1 numbers",
    "AttendCase(lengths=1)": "field lengths: got 1, expected tuple or list",
    "AttendCase(window=(1,))": "field window: got .* .left, right.",
    "AttendCase(window=('a', None))": "field window: got .* .left, right.",
    "AttendCase(window=(-1, None))": "field window: got .* .left, right.",
    "AttendCase(window=(True, None))": "field window: got .* .left, right.",
    "AttendCase(causal='bottom')": "field causal: got 'bottom', expected a causal corner",
    "AttendCase(causal='positions')": "go together",
    "AttendCase(positions='offset:1')": "go together",
    "AttendCase(view='sideways')": "field view: got 'sideways', expected one of contiguous",
}


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:50].replace("\0", "NUL"))
def test_malformed_literals_say_what_is_wrong(text: str) -> None:
    """Each kind of mistake has its own message, which shows what came."""
    with pytest.raises(CaseError, match=MALFORMED[text]) as caught:
        parse_case(text)
    assert str(caught.value).startswith("case: ")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("given", [[1], None, "Tk=17", 3])
def test_fields_must_be_a_table(given: Any) -> None:
    """JSON that is no object is refused with what came."""
    with pytest.raises(CaseError, match=r"got .*, expected a table of fields"):
        case_from(given)


def test_a_literal_is_never_run(tmp_path: Path) -> None:
    """Code in place of a literal is refused, not executed."""
    touched = tmp_path / "touched"
    code = f"open({str(touched)!r}, 'w')"
    for text in (f"AttendCase(Tq={code})", f"{code}(Tq=1)", f"AttendCase(q=f'{{{code}}}')"):
        with pytest.raises(CaseError):
            parse_case(text)
    assert not touched.exists()


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(text=st.text(max_size=30) | st.text("AttendCase()=,0'k[]{}-\\", max_size=20))
def test_any_text_is_a_case_or_a_case_error(text: str) -> None:
    """Nothing but `CaseError` comes out of the parser, whatever goes in."""
    for candidate in (text, f"AttendCase({text})", f"AttendCase(lengths={text})"):
        with contextlib.suppress(CaseError):
            parse_case(candidate).checked()


@pytest.mark.parametrize(
    ("q", "k", "v", "generic"),
    [
        ("random:1", "random:2", "random:3", True),
        ("random:1:6.0", "random:2", "random:3", True),
        ("zeros", "random:2", "random:3", False),
        ("random:1", "random:2", "random:3;0,0,0,0=5", False),
    ],
)
def test_generic_content(q: str, k: str, v: str, generic: bool) -> None:
    """Content is generic where all three tensors are random and no element is set by hand."""
    assert AttendCase(q=q, k=k, v=v).generic is generic


SCORED = AttendCase(
    Hq=2, Hkv=2, Dv=48, softcap=2.5, alibi="standard", bias="level:-1.5;fill:-inf:prefix:2",
    sink_logits="random:3:2.0",
)  # fmt: skip


def test_toml_gives_the_same_case() -> None:
    """The witness in a table of an expectations file reads as the case it was written from."""
    text = table("a.law", "mine", "WrongValue", to_json(SCORED), "why not")
    (entry,) = tomllib.loads(text)["expect"]
    assert case_from(entry["witness"]) == SCORED


def test_what_is_none_is_left_out() -> None:
    """A case without scoring terms prints, and is stored, as before there were any."""
    assert literal(SCORED) == (
        "AttendCase(Hq=2, Hkv=2, Dv=48, softcap=2.5, alibi='standard', "
        "bias='level:-1.5;fill:-inf:prefix:2', sink_logits='random:3:2.0')"
    )
    plain = replace(SCORED, Dv=None, softcap=None, alibi=None, bias=None, sink_logits=None)
    assert literal(plain) == "AttendCase(Hq=2, Hkv=2)"
    assert (SCORED.value_size, plain.value_size) == (48, 64)


def test_shape_and_fields() -> None:
    """shape is (B, Hq, Tq, Tk), and a case is frozen data."""
    assert AttendCase(B=2, Hq=4, Hkv=2, Tq=3, Tk=5).shape == (2, 4, 3, 5)
    assert asdict(AttendCase())["D"] == 64
    with pytest.raises(AttributeError):
        AttendCase().B = 2  # type: ignore[misc]
