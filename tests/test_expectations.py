"""Expected failures: the region alone is not generated, and the witness must still fail."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_kernels import right, toy, without_tail

from kernelassay.impls.contract import AttendCall
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase, CaseError, case_from, to_json
from kernelassay.properties.domain import domain_of
from kernelassay.properties.engine import Options, Outcome, check
from kernelassay.properties.expectations import ExpectationError, Expectations, table
from kernelassay.properties.failures import Imprecise, WrongValue
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.property import Property, select
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.subject import Subject

VALUE = next(p for p in select("attention.value"))
DOMAIN = domain_of(toy(tiles=(16,)))

ENTRY = """
[[expect]]
property = "attention.value"
kernel = "toy"
when = "Tk > 16 and partial_tile"
kind = "WrongValue"
witness = { Tk = 17, q = "random:1", k = "random:2", v = "random:3" }
reason = "the tail tile is not visited"
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Expectations]:
    """Reads the text of an expected-failure file."""

    def load(text: str) -> Expectations:
        path = tmp_path / "expected.toml"
        path.write_text(text)
        return Expectations.load(path)

    return load


def run(
    kernel: Callable[[AttendCall], Any],
    expectations: Expectations,
    prop: Property = VALUE,
    **options: Any,
) -> Outcome:
    subject = toy(kernel, tiles=(16,), head_sizes=(64,))
    return check(prop, subject, Options(expectations=expectations, **options))


Load = Callable[[str], Expectations]


def test_an_entry_holds_what_the_file_says(load: Load) -> None:
    """Every field of an entry, and where it came from."""
    (entry,) = load(ENTRY + 'device = "cpu"\ndtype = "fp32"\nissue = "https://..."\n').entries
    assert (entry.law, entry.kernel, entry.kind) == ("attention.value", "toy", "WrongValue")
    assert entry.witness == AttendCase(Tk=17, q="random:1", k="random:2", v="random:3")
    assert entry.reason == "the tail tile is not visited"
    assert (entry.device, entry.dtype, entry.when) == ("cpu", "fp32", "Tk > 16 and partial_tile")
    assert entry.where.endswith("expected.toml: entry 1")
    assert not entry.whole


def test_a_known_fault_is_expected_and_everything_else_still_runs(load: Load) -> None:
    """The region is not generated, cases outside it are, and the status gives the reason."""
    seen: list[AttendCase] = []

    def body(subject: Subject, case: AttendCase) -> None:
        seen.append(case)
        VALUE.body(subject, case)

    outcome = run(without_tail, load(ENTRY), replace(VALUE, body=body), level="pr")
    assert outcome.record.status == "expected"
    assert outcome.record.reason == "the tail tile is not visited"
    assert outcome.found is None
    witness, *others = seen
    assert witness.Tk == 17
    assert 40 < len(others) <= 110  # some strata lie inside the region
    assert not any(c.Tk > 16 and c.Tk % 16 for c in others)
    assert any(c.Tk > 16 for c in others)
    assert any(c.Tk % 16 for c in others)
    assert outcome.record.worst is not None
    assert outcome.record.worst < 1


def test_a_fault_outside_the_region_still_fails(load: Load) -> None:
    """A region excuses nothing beside itself."""
    narrow = ENTRY.replace("Tk > 16 and partial_tile", "Tk == 17")
    record = run(without_tail, load(narrow), level="pr").record
    assert (record.status, record.kind) == ("failed", "WrongValue")
    assert record.case is not None
    assert record.case["Tk"] not in (1, 16, 17)


def test_a_mended_kernel_makes_its_entry_stale(load: Load) -> None:
    """The witness passes: the entry must go, and the message says which and why it was there."""
    record = run(right, load(ENTRY)).record
    assert (record.status, record.kind) == ("failed", "StillFails")
    assert "entry 1: the witness must fail with WrongValue, not with nothing" in record.reason
    assert "Delete these lines: the tail tile is not visited" in record.reason
    assert record.cases == 1


def test_a_witness_that_fails_otherwise_is_no_longer_the_same_fault(load: Load) -> None:
    """Another kind of failure at the witness is told, not excused."""
    record = run(without_tail, load(ENTRY.replace('"WrongValue"', '"NonFinite"'))).record
    assert (record.status, record.kind) == ("failed", "StillFails")
    assert "must fail with NonFinite, not with WrongValue. Look again." in record.reason


def test_without_a_region_the_witness_alone_runs(load: Load) -> None:
    """No `when`: nothing is generated, and regressions do not run either."""
    whole = ENTRY.replace('when = "Tk > 16 and partial_tile"\n', "")
    outcome = run(without_tail, load(whole), level="pr")
    assert (outcome.record.status, outcome.search.cases) == ("expected", 1)
    assert run(right, load(whole)).record.kind == "StillFails"


def test_a_region_that_covers_everything_is_no_error(load: Load) -> None:
    """Nothing left to generate: expected, by the witness."""
    everything = ENTRY.replace("Tk > 16 and partial_tile", "plain")
    assert run(without_tail, load(everything)).record.status == "expected"


@pytest.mark.parametrize(
    "line", ['kernel = "other"', 'dtype = "bf16"', 'device = "cuda"', 'property = "attention.lse"']
)
def test_entries_speak_of_their_item_alone(line: str, load: Load) -> None:
    """Another law, kernel, dtype or device is not excused."""
    name = line.split(" ")[0]
    lines = [x for x in ENTRY.splitlines() if not x.startswith(f"{name} ")]
    entries = load("\n".join([*lines, line]))
    assert run(without_tail, entries).record.status == "failed"


def test_two_entries_for_one_item(load: Load) -> None:
    """Each has its own region and witness; both witnesses run and both reasons are told."""

    def body(subject: Subject, case: AttendCase) -> None:
        if case.Tk == 17:
            raise WrongValue("one", ratio=9.0)
        if case.Tq > 20:
            raise Imprecise("two", ratio=2.0)

    second = (
        ENTRY.replace("Tk > 16 and partial_tile", "Tq > 20")
        .replace("Tk = 17", "Tq = 21")
        .replace("WrongValue", "Imprecise")
        .replace("the tail tile is not visited", "long prefills")
    )
    first = ENTRY.replace("Tk > 16 and partial_tile", "Tk == 17")
    prop = replace(VALUE, body=body)
    record = run(right, load(first + second), prop, level="pr").record
    assert record.status == "expected"
    assert record.reason == "the tail tile is not visited; long prefills"
    assert run(right, load(first), prop, level="pr").record.kind == "Imprecise"


REGIONS: dict[str, tuple[str, list[AttendCase], list[AttendCase]]] = {
    "comparison": ("Tk > 16", [AttendCase(Tk=17)], [AttendCase(Tk=16)]),
    "chain": ("1 < Tk <= 4", [AttendCase(Tk=4)], [AttendCase(Tk=1), AttendCase(Tk=5)]),
    "label": ("ragged", [AttendCase(B=2, lengths=(0, 1))], [AttendCase()]),
    "not": ("not ragged", [AttendCase()], [AttendCase(B=2, lengths=(0, 1))]),
    "and": ("Tq == 2 and B == 2", [AttendCase(Tq=2, B=2)], [AttendCase(Tq=2)]),
    "or": ("Tq == 2 or B == 2", [AttendCase(Tq=2), AttendCase(B=2)], [AttendCase()]),
    "text": ("causal == 'top_left'", [AttendCase(causal="top_left")], [AttendCase()]),
    "fields": ("Tq > Tk", [AttendCase(Tq=2)], [AttendCase(), AttendCase(Tk=2)]),
    "tuple": ("window == (1, None)", [AttendCase(window=(1, None))], [AttendCase()]),
    "tuple of fields": ("window == (Tq, None)", [AttendCase(window=(1, None))], [AttendCase()]),
    "none": ("scale != None", [AttendCase(scale=0.5)], [AttendCase()]),
    "unset": ("scale > 0.1", [AttendCase(scale=0.5)], [AttendCase(), AttendCase(scale=0.01)]),
    "negative": ("scale < -0.1", [AttendCase(scale=-0.5)], [AttendCase()]),
    "unlike": ("lengths > 3 or Tq == 2", [AttendCase(Tq=2)], [AttendCase(lengths=(1,))]),
}


@pytest.mark.parametrize("name", REGIONS)
def test_regions(name: str, load: Load) -> None:
    """A region is comparisons of fields and labels with and, or, not."""
    text, inside, outside = REGIONS[name]
    (entry,) = load(ENTRY.replace("Tk > 16 and partial_tile", text)).entries
    assert all(entry.covers(case, DOMAIN) for case in inside)
    assert not any(entry.covers(case, DOMAIN) for case in outside)


REFUSED = {
    "__import__('os').system('true')": "Call is neither",
    "len(q) > 1": "Call is neither",
    "q.startswith('random')": "Call is neither|Attribute is neither",
    "q.count": "Attribute is neither",
    "lengths[0] == 0": "Subscript is neither",
    "Tq + 1 > Tk": "BinOp is neither",
    "Tq in (1, 2)": "In is neither",
    "[x for x in q]": "ListComp is neither|'x' is no field",
    "lambda: 1": "Lambda is neither",
    "(Tq := 3)": "NamedExpr is neither",
    "Tq > ": "invalid syntax",
    "": "invalid syntax",
    "-Tq < 0": "UnaryOp is neither",
    "~Tq": "Invert is neither|UnaryOp is neither",
    "emtpy_row": r"'emtpy_row' is no field of a case and no label; close: empty_row",
    "Tz > 1": "'Tz' is no field of a case and no label",
    "Tq > 1\0": "null bytes",
}


@pytest.mark.parametrize("text", REFUSED)
def test_regions_are_no_code(text: str, tmp_path: Path) -> None:
    """Calls, attributes, arithmetic and unknown names are refused; the message names the entry."""
    path = tmp_path / "expected.toml"
    quoted = '"' + text.replace('"', '\\"').replace("\0", "\\u0000") + '"'
    path.write_text(ENTRY.replace('"Tk > 16 and partial_tile"', quoted))
    with pytest.raises(ExpectationError, match=REFUSED[text]) as caught:
        Expectations.load(path)
    assert f"{path}: entry 1: when: " in str(caught.value)


def test_labels_of_any_case_are_known() -> None:
    """Whatever labels a case carries may be named in a region."""
    for case in (AttendCase(), AttendCase(B=2, lengths=(0, 1), k="ramp:1.0:2.0", mask="nothing")):
        assert {x for x in labels(case, DOMAIN) if "=" not in x} <= LABELS
    assert {label for p in select() for label in p.strata} <= LABELS


MALFORMED = {
    "[[expect]": "no TOML: ",
    "[expect]\nkernel = 'a'": r"got a single table, expected \[\[expect\]\]",
    "[[expects]]\nkernel = 'a'": r"got expects, expected \[\[expect\]\]",
    "expect = 3": r"got a single table, expected \[\[expect\]\]",
    "expect = [3]": "entry 1: got 3, expected a table",
    ENTRY.replace('reason = "the tail tile is not visited"', ""): "entry 1: reason is missing",
    ENTRY.replace("the tail tile is not visited", ""): "entry 1: reason is missing",
    ENTRY.replace('kind = "WrongValue"', ""): "entry 1: kind is missing; required: property",
    ENTRY.replace("kernel =", "kernal ="): "entry 1: kernel is missing",
    ENTRY + "dtpye = 'fp32'": "entry 1: got 'dtpye', expected a known field; did you mean 'dtype'",
    ENTRY.replace("WrongValue", "WrongVlaue"): "kind: got 'WrongVlaue', expected one of Wrong",
    ENTRY.replace("Tk = 17", "Tz = 17"): "entry 1: witness: case: got field 'Tz'",
    ENTRY.replace("Tk = 17", "Tk = 'x'"): "entry 1: witness: case: field Tk: got 'x'",
    ENTRY.replace("{ Tk = 17, q = ", "'AttendCase()' # "): "witness: case: got 'AttendCase",
    ENTRY.replace('"toy"', "3"): "entry 1: kernel: got 3, expected text",
    ENTRY.replace('"Tk > 16 and partial_tile"', "3"): "entry 1: when: got 3, expected text",
    ENTRY.replace('"WrongValue"', "['WrongValue']"): "entry 1: kind: got .*, expected text",
    ENTRY + "dtype = 3": "entry 1: dtype: got 3, expected text",
    ENTRY + ENTRY.replace("WrongValue", "X"): "entry 2: kind: got 'X'",
}


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_files_say_what_is_wrong_where(text: str, tmp_path: Path) -> None:
    """The message names the file and the entry, what came and what is expected."""
    path = tmp_path / "expected.toml"
    path.write_text(text)
    with pytest.raises(ExpectationError, match=MALFORMED[text]) as caught:
        Expectations.load(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that cannot be read is named, with the reason."""
    path = tmp_path / "nowhere.toml"
    with pytest.raises(ExpectationError, match=r"nowhere.toml: cannot be read: No such file"):
        Expectations.load(path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Bytes that are no text are named as what they are."""
    path = tmp_path / "expected.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ExpectationError, match=r"expected.toml: not UTF-8"):
        Expectations.load(path)


def test_an_empty_file_expects_nothing(load: Load) -> None:
    """No entries: nothing is excused."""
    assert load("") == Expectations()
    assert run(right, load("")).record.status == "passed"


def test_several_files_are_one_list(tmp_path: Path) -> None:
    """Entries keep the name of their file."""
    a, b = tmp_path / "a.toml", tmp_path / "b.toml"
    a.write_text(ENTRY)
    b.write_text(ENTRY + ENTRY)
    where = [e.where.split("/")[-1] for e in Expectations.load(a, b).entries]
    assert where == ["a.toml: entry 1", "b.toml: entry 1", "b.toml: entry 2"]


def test_unmatched_entries_are_listed_with_close_names(load: Load) -> None:
    """A misspelt law or kernel is an error that shows what is close."""
    entries = load(
        ENTRY
        + ENTRY.replace("attention.value", "attention.valeu")
        + ENTRY.replace('"toy"', '"toi"')
        + ENTRY.replace('"toy"', '"zzz"')
    )
    lines = entries.unmatched(["attention.value", "attention.lse"], ["toy", "other"])
    assert [x.split(": ", 1)[1] for x in lines] == [
        "entry 2: law 'attention.valeu' is not among those that run; close: attention.value, "
        "attention.lse",
        "entry 3: kernel 'toi' is not among those that run; close: toy",
        "entry 4: kernel 'zzz' is not among those that run",
    ]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(kernel=TEXT, reason=TEXT)
def test_tables_parse_back(kernel: str, reason: str) -> None:
    """What `table` writes is TOML that says the same, whatever the texts hold."""
    case = AttendCase(
        B=2, Tk=17, lengths=(0, 3), window=(1, None), scale=0.125, v="zeros;0,0,16,0=1",
    )  # fmt: skip
    text = table("attention.value", kernel, "WrongValue", to_json(case), reason, dtype="fp32")
    (entry,) = tomllib.loads(text)["expect"]
    assert (entry["kernel"], entry["reason"], entry["dtype"]) == (kernel, reason, "fp32")
    assert entry["property"] == "attention.value"


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(case=s.windows(DOMAIN))
def test_witnesses_parse_back(case: AttendCase) -> None:
    """Every field of a case survives the way through a file, None inside a window included."""
    text = table("attention.value", "toy", "WrongValue", to_json(case), "known")
    (entry,) = tomllib.loads(text)["expect"]
    assert case_from(entry["witness"]) == case


ROUND = VerifyCase(
    counts=(1, 1), p=((1, 1),) * 4, q=None, V=9, ids=(3, 7), stop=((0,), ()), budget=(1, 2)
)


@pytest.mark.parametrize("case", [VerifyCase(), VerifyCase(q=None), ROUND], ids=repr)
def test_witnesses_of_rounds_parse_back(case: VerifyCase) -> None:
    """A field that is None where its default is not, and rows within rows, survive as well."""
    text = table("speculative.certain", "toy", "WrongToken", to_json(case), "known")
    (entry,) = tomllib.loads(text)["expect"]
    assert case_from(entry["witness"]) == case


def test_none_is_none_where_text_is_not_meant() -> None:
    """It is text in a field that may be text, and no row of masses."""
    assert case_from({"mask": "none", "Dv": "none"}) == AttendCase(mask="none", Dv=None)
    with pytest.raises(CaseError, match="field p: got 'none', expected tuple or list"):
        case_from({"type": "VerifyCase", "p": "none"})
    with pytest.raises(CaseError, match="field q: got 'some', expected tuple or list or NoneType"):
        case_from({"type": "VerifyCase", "q": "some"})


def test_a_written_table_is_read_as_an_entry(load: Load) -> None:
    """Law, kernel, kind, scope and witness come back as they were; there is no region."""
    case = AttendCase(Tk=17, window=(1, None), lengths=(3,))
    text = table(
        "attention.value", "toy", "WrongValue", to_json(case), 'a "quoted" one', device="cpu"
    )
    (entry,) = load(text).entries
    assert (entry.law, entry.kernel, entry.kind) == ("attention.value", "toy", "WrongValue")
    assert (entry.witness, entry.reason, entry.device) == (case, 'a "quoted" one', "cpu")
    assert entry.whole
