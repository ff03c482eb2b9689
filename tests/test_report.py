"""Reports of broken kernels, compared whole with text files; and the scripts that repeat them.

KERNELASSAY_UPDATE_SNAPSHOTS=1 rewrites tests/snapshots. What differs from machine to machine is
normalised; cases are given, not searched for, so that no generator enters.
"""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelassay.assay import reported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
    Unsupported,
)
from kernelassay.impls.torch_reference import attention
from kernelassay.impls.variants import Variant, build
from kernelassay.properties import diagnosis
from kernelassay.properties.case import AttendCase, to_json
from kernelassay.properties.engine import Options, Outcome, check
from kernelassay.properties.failures import StillFails
from kernelassay.properties.property import select
from kernelassay.properties.subject import Subject
from kernelassay.script import repro_script
from kernelassay.text import MOST_LINES, WIDTH, bounded, number, times

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = os.environ.get("KERNELASSAY_UPDATE_SNAPSHOTS") == "1"
REFERENCE = "kernelassay.impls.torch_reference"

RANDOM = {"q": "random:1", "k": "random:2", "v": "random:3"}
SHARP = {**RANDOM, "q": "random:1:6.0"}
SPOT = AttendCase(Tq=1, Tk=17, D=64, causal="bottom_right", v="zeros;0,0,16,0=1")


class Broken:
    """The reference with *fault* around it: a function of the call that answers it."""

    def __init__(
        self,
        name: str,
        fault: Callable[[AttendCall], Any],
        **declared: frozenset[str] | Conventions,
    ) -> None:
        self.name = name
        self.attend = fault
        self.numerics = Numerics(l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1)
        self.capabilities = replace(
            Capabilities(
                devices=("cpu",),
                dtypes=("bf16", "fp16"),
                head_sizes=(16, 64),
                tiles=(16,),
                supports=frozenset(FEATURES),
                conventions=Conventions(deterministic=True),
            ),
            **declared,  # type: ignore[arg-type]
        )


def variant(name: str, *edits: tuple[str, str]) -> Any:
    """The reference with some of its text changed, one tile of 16 keys a step."""
    kernel = build(Variant(name=name, base=REFERENCE, edits=(("TILE = 64", "TILE = 16"), *edits)))
    kernel.capabilities = replace(kernel.capabilities, tiles=(16,), head_sizes=(16, 64))
    return kernel


FIRST_HEAD = "z + scoring.bias[:, :1].expand(shape)"
TAIL = ("range(0, end, TILE)", "range(0, end // TILE * TILE, TILE)")


def mutates(call: AttendCall) -> AttendResult:
    """Scales q in place, as a launcher that saves memory would."""
    answer = AttendResult(*attention(call))
    call.q.mul_(2)
    return answer


def writes_past(call: AttendCall) -> AttendResult:
    """Writes one row more than there is."""
    out, lse = attention(call)
    mine = torch.empty(out.shape, dtype=out.dtype)
    mine.copy_(out)
    D = out.shape[-1]
    mine.as_strided((D,), (1,), mine.storage_offset() + mine.numel()).fill_(0)
    return AttendResult(mine, lse)


def leaves_out(call: AttendCall) -> AttendResult:
    """Never writes the last row."""
    out, lse = attention(call)
    mine = torch.empty(out.shape, dtype=out.dtype)
    mine[:, :, :-1] = out[:, :, :-1]
    return AttendResult(mine, lse)


def raises(call: AttendCall) -> AttendResult:
    """Gives up past one tile."""
    if call.k.shape[2] > 16:
        raise ValueError("num_stages must be positive")
    return AttendResult(*attention(call))


def single(call: AttendCall) -> AttendResult:
    """Answers in fp32 whatever it was given."""
    out, lse = attention(call)
    return AttendResult(out.float(), lse)


def refuses(call: AttendCall) -> AttendResult:
    """Refuses a window that it declares to support."""
    if call.visibility.window != (None, None):
        raise Unsupported("sliding windows")
    return AttendResult(*attention(call))


def without_window(call: AttendCall) -> AttendResult:
    """Answers a call with a window as if it had none."""
    return AttendResult(*attention(replace_window(call)))


def replace_window(call: AttendCall) -> AttendCall:
    """The call without its window."""
    return replace(call, visibility=replace(call.visibility, window=(None, None)))


def unsteady() -> Callable[[AttendCall], AttendResult]:
    """Adds noise that differs from call to call."""
    calls = iter(range(10**6))

    def answer(call: AttendCall) -> AttendResult:
        out, lse = attention(call)
        return AttendResult(out + next(calls) % 2 * 2.0**-9, lse)

    return answer


def by_batch(call: AttendCall) -> AttendResult:
    """Sums in another order when there are several requests."""
    out, lse = attention(call)
    return AttendResult(out * (1 + 2.0**-7 * (out.shape[0] > 1)), lse)


def short(call: AttendCall) -> AttendResult:
    """Returns the output without its batch axis."""
    out, lse = attention(call)
    return AttendResult(out[0], lse)


WINDOW = frozenset({"window", "sink_tokens"})
SUPPORTED = frozenset(FEATURES) - WINDOW

Made = tuple[Callable[[], Any], str, str, AttendCase]
"""A kernel, and the law, dtype and case that it fails."""
BROKEN: dict[str, Made] = {
    "tail_tile": (lambda: variant("my_decode", TAIL), "alignment.causal_corner", "bf16", SPOT),
    "head_mapping": (
        lambda: variant("my_gqa", ("device=q.device) // group", "device=q.device) % Hkv")),
        "attention.value",
        "fp16",
        AttendCase(Hq=4, Hkv=2, Tk=3, D=16, v="onehot"),
    ),
    "visible_set": (
        lambda: variant("my_corner", ("    offset = used - Tq\n", "    offset = used * 0\n")),
        "alignment.visible_set",
        "bf16",
        AttendCase(Tq=2, Tk=5, D=16, causal="bottom_right", v="bits:0:6"),
    ),
    "lse_base": (
        lambda: variant(
            "my_lse",
            ("    lse = m + torch.log(l_safe)", "    lse = (m + torch.log(l_safe)) / math.log(2)"),
        ),
        "attention.lse",
        "fp16",
        AttendCase(Tk=4, D=16, v="onehot"),
    ),
    "coarse_probabilities": (
        lambda: variant("my_fp16", ("p = p.to(v.dtype)", "p = p.to(torch.bfloat16)")),
        "attention.value",
        "fp16",
        AttendCase(Tq=2, Tk=2, D=16, **RANDOM),
    ),
    "first_tile_masked": (
        lambda: variant("my_mask", ("torch.where(m_new == -math.inf, 0.0, m_new)", "m_new")),
        "attention.extreme_scores",
        "bf16",
        AttendCase(Tk=20, D=16, mask="suffix:16", v="onehot"),
    ),
    "sink_ignored": (
        lambda: variant("my_sink", ("if call.scoring.sink_logits is not None:", "if False:")),
        "attention.value",
        "fp16",
        AttendCase(Tk=3, D=16, sink_logits="level:0.0", v="onehot"),
    ),
    "cap_formula": (
        lambda: variant("my_cap", ("z = scoring.softcap * torch.tanh", "z = z * torch.tanh")),
        "attention.value",
        "fp16",
        AttendCase(Tq=2, Tk=5, D=16, softcap=2.0, alibi="standard", **SHARP),
    ),
    "bias_head": (
        lambda: variant("my_bias", ("z + scoring.bias.expand(shape)", FIRST_HEAD)),
        "attention.value",
        "bf16",
        AttendCase(Hq=2, Hkv=2, Tq=2, Tk=5, D=16, Dv=64, bias="random:4:2.0:hk", **RANDOM),
    ),
    "mutates": (
        lambda: Broken("my_inplace", mutates),
        "attention.memory",
        "bf16",
        AttendCase(Tk=3, D=16, **RANDOM),
    ),
    "writes_past": (
        lambda: Broken("my_store", writes_past),
        "attention.memory",
        "bf16",
        AttendCase(Tk=3, D=16, **RANDOM),
    ),
    "leaves_out": (
        lambda: Broken("my_rows", leaves_out),
        "attention.memory",
        "fp16",
        AttendCase(Tq=3, Tk=3, D=16, **RANDOM),
    ),
    "raises": (
        lambda: Broken("my_stages", raises),
        "attention.value",
        "bf16",
        AttendCase(Tk=17, D=16, **RANDOM),
    ),
    "wrong_dtype": (
        lambda: Broken("my_cast", single),
        "attention.value",
        "bf16",
        AttendCase(Tk=1, D=16),
    ),
    "wrong_shape": (
        lambda: Broken("my_squeeze", short),
        "attention.value",
        "bf16",
        AttendCase(Tk=1, D=16),
    ),
    "refused": (
        lambda: Broken("my_window", refuses),
        "attention.value",
        "bf16",
        AttendCase(Tk=3, D=16, window=(1, 0), **RANDOM),
    ),
    "accepted": (
        lambda: Broken("my_dense", without_window, supports=SUPPORTED, declines=WINDOW),
        "attention.declines",
        "bf16",
        AttendCase(Tq=4, Tk=4, D=16, window=(1, 0), **RANDOM),
    ),
    "batch": (
        lambda: Broken("my_splits", by_batch, conventions=Conventions(batch_invariant=True)),
        "attention.batch_independence",
        "bf16",
        AttendCase(B=2, Tk=3, D=16, **RANDOM),
    ),
    "unsteady": (
        lambda: Broken("my_atomics", unsteady()),
        "attention.deterministic",
        "fp16",
        AttendCase(Tk=2, D=16, **RANDOM),
    ),
}


def failed(name: str) -> tuple[Subject, Outcome]:
    """The outcome of a broken kernel on its case."""
    make, law, dtype, case = BROKEN[name]
    subject = Subject(make(), dtype, "cpu")
    outcome = check(select(law)[0], subject, Options(case=case))
    assert outcome.found is not None, f"{name} does not fail"
    return subject, outcome


def report_of(name: str) -> str:
    """The report of a broken kernel, as if its case had been found in a larger one."""
    subject, outcome = failed(name)
    if name == "tail_tile":
        first = replace(SPOT, B=2, Tq=19, Tk=37, q="random:1", k="random:2", v="random:3")
        outcome.search.first, outcome.search.cases = first, 41
        outcome.search.worst = (3905.0, first)
        outcome.record.seconds = 9.8
    (prop,) = select(outcome.record.law)
    return reported(prop, subject, outcome, "my_module:adapter")


def normalised(text: str) -> str:
    """*text* without what differs from machine to machine."""
    text = re.sub(r"^kernelassay \d.*$", "<versions>", text, flags=re.MULTILINE)
    text = re.sub(r"raised at \S+:\d+", "raised at <file>:<line>", text)
    return re.sub(r"error (0|\d\.?\d*e-(0[6-9]|1\d)),", "error ~0,", text)


@pytest.mark.parametrize("name", BROKEN)
def test_the_report_is_what_its_snapshot_shows(name: str) -> None:
    """The whole report of each kind of failure is as it was read and found good."""
    text = normalised(report_of(name)) + "\n"
    path = SNAPSHOTS / f"{name}.txt"
    if UPDATE:
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", BROKEN)
def test_a_report_fits_a_screen(name: str) -> None:
    """ASCII, at most 45 lines of at most 99 columns, and it is no fallback."""
    text = report_of(name)
    assert text.isascii()
    assert len(text.splitlines()) <= MOST_LINES
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "no full report" not in text
    assert "not available" not in text


def test_a_long_report_is_cut_in_the_middle() -> None:
    """What is too long loses lines before the rerun block, never after it."""
    text = bounded([["head"], [f"line {n}" for n in range(60)], ["Rerun:"], ["versions"]])
    lines = text.splitlines()
    assert len(lines) == MOST_LINES
    assert lines[0] == "head"
    assert lines[-1] == "versions"
    assert any("lines left out" in x for x in lines)


def test_other_characters_are_escaped() -> None:
    """A kernel's name or message in other scripts comes out as ASCII."""
    assert bounded([["kernel=caf\u00e9"]]) == "kernel=caf\\xe9"


def test_a_crash_of_the_diagnosis_leaves_a_short_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours costs the picture, not the finding."""

    def crash(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("kernelassay.assay.diagnose", crash)
    text = report_of("wrong_dtype")
    assert "WRONG DTYPE" in text
    assert "(no full report: ZeroDivisionError: ours)" in text


def test_a_crash_of_one_part_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other parts are still there."""

    def crash(*args: object) -> None:
        raise IndexError("ours")

    monkeypatch.setattr(diagnosis, "read", crash)
    text = report_of("tail_tile")
    assert "Readout not available: IndexError: ours" in text
    assert "Reads as: the last partial key tile is not visited." in text


def test_undeclared_numerics_are_named() -> None:
    """A kernel that declares nothing is told what was assumed of it."""
    kernel = variant("my_silent", TAIL)
    kernel.numerics = None
    prop, subject = select("attention.value")[0], Subject(kernel, "bf16", "cpu")
    text = reported(prop, subject, check(prop, subject, Options(case=SPOT)), None)
    assert "declares no numerics. Assumed for bf16: probabilities bf16" in text


def test_numbers_come_with_the_fraction_they_are() -> None:
    """Only fractions that are not written out by the decimal anyway."""
    assert number(1 / 17) == "0.058823529 (1/17)"
    assert number(0.25) == "0.25"
    assert number(2.0) == "2.0"
    assert number(0.123456789) == "0.12345679"
    assert number(float("nan")) == "nan"
    assert [times(x) for x in (3905.2, 12.345, 1e9)] == ["3,905x", "12.3x", "1,000,000,000x"]


SCRIPT_CASES = {
    "spot": ("attention.value", SPOT),
    "spot_lse": ("attention.lse", SPOT),
    "hashed": ("attention.value", AttendCase(B=2, Hq=4, Hkv=2, Tq=3, Tk=21, D=16, **RANDOM)),
    "lengths": (
        "attention.value",
        AttendCase(B=2, Tq=2, Tk=23, D=16, lengths=(19, 23), causal="bottom_right", **RANDOM),
    ),
    "window": (
        "attention.value",
        AttendCase(Tq=4, Tk=22, D=16, window=(20, 1), sinks=1, causal="bottom_right", **RANDOM),
    ),
    "mask": (
        "attention.value",
        AttendCase(Tq=2, Tk=18, D=16, mask="keep:1:80:bhqk", **RANDOM),
    ),
    "prefix": (
        "attention.value",
        AttendCase(Tk=18, D=16, mask="prefix:17", q="first:2.0", v="zeros;0,0,16,3=2"),
    ),
    "positions": (
        "attention.value",
        AttendCase(Tq=2, Tk=18, D=16, causal="positions", positions="offset:16", **RANDOM),
    ),
    "view": ("attention.value", AttendCase(Tq=2, Tk=18, D=16, view="inner", **RANDOM)),
    "read": ("alignment.visible_set", AttendCase(Tk=17, D=16, v="bits:0:6")),
    "value_size": ("attention.value", AttendCase(Tq=2, Tk=18, D=16, Dv=7, **RANDOM)),
    "value_size_padded": (
        "attention.value",
        AttendCase(Tk=17, D=64, Dv=16, view="padded", v="zeros;0,0,16,0=1"),
    ),
    "value_size_interleaved": (
        "attention.value",
        AttendCase(Tk=17, D=16, Dv=64, view="interleaved", v="zeros;0,0,16,40=1"),
    ),
    "softcap": ("attention.value", AttendCase(Tq=2, Tk=18, D=16, softcap=3, **SHARP)),
    "softcap_lse": ("attention.lse", AttendCase(Tq=2, Tk=18, D=16, softcap=0.7, **SHARP)),
    "alibi": ("attention.value", AttendCase(Hq=3, Tq=2, Tk=18, D=16, alibi="standard", **RANDOM)),
    "alibi_lengths": (
        "attention.lse",
        AttendCase(
            B=2, Hq=2, Tq=2, Tk=23, D=16, lengths=(19, 23), causal="bottom_right",
            alibi="hashed:1", **RANDOM,
        ),
    ),
    "alibi_top_left": (
        "attention.value",
        AttendCase(Hq=2, Tq=18, Tk=21, D=16, causal="top_left", alibi="hashed:1", **RANDOM),
    ),
    "alibi_positions": (
        "attention.value",
        AttendCase(
            B=2, Hq=2, Tq=20, Tk=18, D=16, causal="positions", positions="ring:4",
            alibi="hashed:2", **RANDOM,
        ),
    ),
    "bias": (
        "attention.value",
        AttendCase(Tk=18, D=16, bias="fill:2:prefix:14", q="first:2.0", v="zeros;0,0,16,3=2"),
    ),
    "bias_level": (
        "attention.lse", AttendCase(Tk=18, D=16, bias="level:-1.25", v="zeros;0,0,16,3=2")
    ),
    "bias_beyond": (
        "attention.value",
        AttendCase(Tk=18, D=16, bias="fill:-1e39:suffix:3", v="zeros;0,0,16,3=2"),
    ),
    "bias_minus_infinity": (
        "attention.value",
        AttendCase(Tk=19, D=16, bias="fill:-inf:suffix:3", q="first:2.0", v="zeros;0,0,16,3=2"),
    ),
    "bias_hashed": (
        "attention.value",
        AttendCase(
            B=2, Hq=2, Tq=2, Tk=18, D=16, bias="random:3:2.0:bhqk;fill:-inf:keep:5:70:qk",
            **RANDOM,
        ),
    ),
    "sink": (
        "attention.value",
        AttendCase(Hq=4, Hkv=2, Tq=2, Tk=18, D=16, sink_logits="random:5:2.0", **RANDOM),
    ),
    "sink_lse": (
        "attention.lse",
        AttendCase(Tk=18, D=16, sink_logits="level:1.5", v="zeros;0,0,16,3=2"),
    ),
    "sink_none": (
        "attention.value",
        AttendCase(Tk=18, D=16, sink_logits="level:-inf", v="zeros;0,0,16,3=2"),
    ),
    "all_terms": (
        "attention.value",
        AttendCase(
            B=2, Hq=4, Hkv=2, Tq=3, Tk=21, D=16, Dv=64, causal="bottom_right", lengths=(21, 19),
            softcap=2.5, alibi="standard", bias="random:3:2.0:hk", sink_logits="random:5:2.0",
            **SHARP,
        ),
    ),
}  # fmt: skip

KERNEL_FILE = """
from dataclasses import replace
from kernelassay.impls.variants import Variant, build
adapter = build(Variant(name="my_decode", base="kernelassay.impls.torch_reference", edits=(
    ("TILE = 64", "TILE = 16"), ("range(0, end, TILE)", "range(0, end // TILE * TILE, TILE)"))))
"""


def ran(script: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the script prints, its exception included; run in this process, to be quick."""
    path = folder / "repro.py"
    path.write_text(script)
    assert len(script.splitlines()) <= 60
    try:
        runpy.run_path(str(path))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    return capsys.readouterr().out


def written(folder: Path, name: str, text: str) -> str:
    """How a kernel in a file of its own is named."""
    (folder / f"kernel_{name}.py").write_text(text)
    return f"{folder}/kernel_{name}.py:adapter"


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts may extend sys.path; it is put back."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize("name", SCRIPT_CASES)
def test_a_script_shows_the_numbers_of_the_report(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """got, expected and allowed are those of the failure."""
    law, case = SCRIPT_CASES[name]
    subject = Subject(variant("my_decode", TAIL), "bf16", "cpu")
    outcome = check(select(law)[0], subject, Options(case=case))
    assert outcome.found is not None
    outcome.record.report = reported(select(law)[0], subject, outcome, None)
    spec = written(tmp_path, name, KERNEL_FILE)
    printed = ran(repro_script(outcome.record.to_json(), spec), tmp_path, capsys)
    shown = dict(x.rsplit(None, 1) for x in printed.splitlines()[1:])
    assert float(shown["got"]) != pytest.approx(float(shown["expected"]), rel=1e-3)
    if (place := outcome.found.failure.place) is not None:
        assert float(shown["got"]) == pytest.approx(place.got, abs=1e-6)
        assert float(shown["expected"]) == pytest.approx(place.expected, abs=1e-9)
        assert float(shown["allowed"]) == pytest.approx(place.allowed, rel=0.01)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mutates", "q CHANGED"),
        ("raises", "ValueError: num_stages must be positive"),
        ("wrong_dtype", "torch.float32"),
        ("accepted", "Accepted: my_dense answered a call"),
        ("writes_past", "OutOfBounds: 16 elements"),
        ("batch", "Different: out changed"),
    ],
)
def test_a_script_repeats_other_kinds(
    name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure itself, or the exception, is what the script ends with."""
    _, outcome = failed(name)
    here = str(Path(__file__).parent)
    text = f"import sys\nsys.path.insert(0, {here!r})\nimport test_report\n"
    spec = written(tmp_path, name, f"{text}adapter = [test_report.BROKEN[{name!r}][0]()]\n")
    assert expected in ran(repro_script(outcome.record.to_json(), spec), tmp_path, capsys)


@pytest.mark.parametrize("name", ["sink_ignored", "cap_formula"])
def test_a_script_shows_a_fault_of_a_term(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mutant's number and the one that is right with the term are printed side by side."""
    _, outcome = failed(name)
    here = str(Path(__file__).parent)
    text = f"import sys\nsys.path.insert(0, {here!r})\nimport test_report\n"
    spec = written(tmp_path, name, f"{text}adapter = [test_report.BROKEN[{name!r}][0]()]\n")
    printed = ran(repro_script(outcome.record.to_json(), spec), tmp_path, capsys)
    shown = dict(x.rsplit(None, 1) for x in printed.splitlines()[1:])
    assert outcome.found is not None
    place = outcome.found.failure.place
    assert place is not None
    assert abs(float(shown["got"]) - float(shown["expected"])) > 8 * place.allowed


WRITES = """
from kernelassay.impls.variants import Variant, build
adapter = build(Variant(name="my_scorer", base="kernelassay.impls.torch_reference", edits=((
    "        z = z + scoring.bias.expand(shape)[..., start:stop].float()",
    "        z = z + scoring.bias.mul_(2).expand(shape)[..., start:stop].float()"),)))
"""


def test_a_script_says_which_term_was_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scoring terms are watched like q, k and v."""
    spec = written(tmp_path, "writes", WRITES)
    case = AttendCase(Tk=3, D=16, bias="level:1", sink_logits="level:0")
    fields = {"law": "attention.memory", "kind": "InputMutated", "case": to_json(case)}
    record = {**fields, "case_id": "0", "kernel": "my_scorer", "dtype": "bf16", "device": "cpu"}
    printed = ran(repro_script(record, spec), tmp_path, capsys)
    assert printed.splitlines()[2:] == [
        "q unchanged", "k unchanged", "v unchanged", "bias CHANGED", "sink_logits unchanged",
    ]  # fmt: skip


def test_scripts_of_scoring_terms_stand_alone() -> None:
    """Simple terms need torch and the contract; the content module only what is hashed."""
    terms = {"softcap": 2.0, "alibi": "hashed:3", "sink_logits": "random:1:1.0", "Dv": 7}
    needs = {
        "level:1.5": [],
        "fill:-inf:prefix:3": [],
        "level:1;level:2": ["bias_content"],
        "level:1e39": ["bias_content"],
        "random:1:1.0:k": ["bias_content"],
    }
    for recipe, makers in needs.items():
        case = AttendCase(Hq=3, Hkv=3, Tk=5, D=16, bias=recipe, **terms)  # type: ignore[arg-type]
        record = {
            "law": "attention.value", "kind": "WrongValue", "case": to_json(case), "case_id": "0",
            "kernel": "k", "dtype": "fp16", "device": "cpu",
        }  # fmt: skip
        script = repro_script(record, "kernelassay.impls.torch_reference:adapter")
        lines = [x for x in script.splitlines() if "kernelassay.properties" in x]
        wanted = (
            [f"from kernelassay.properties.content_terms import {', '.join(makers)}"]
            if makers
            else []
        )
        case_too = ["from kernelassay.properties.case import AttendCase"] if makers else []
        assert lines == case_too + wanted


def test_a_script_stands_alone(tmp_path: Path) -> None:
    """A simple case needs torch, the kernel and the contract; it runs as a program."""
    _, outcome = failed("tail_tile")
    script = repro_script(outcome.record.to_json(), written(tmp_path, "alone", KERNEL_FILE))
    assert "kernelassay.properties" not in script
    assert len(script.splitlines()) <= 45
    (tmp_path / "repro.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "got      0.0\nexpected 0.0588" in done.stdout, done.stderr


def test_a_stale_expectation_has_a_short_report() -> None:
    """Nothing is looked into: the file is wrong, not the kernel."""
    subject, outcome = failed("tail_tile")
    assert outcome.found is not None
    gone = StillFails("expect.toml: entry 1: the witness must fail with NonFinite; it passes.")
    outcome = replace(outcome, found=replace(outcome.found, failure=gone))
    text = reported(select(outcome.record.law)[0], subject, outcome, None)
    assert text.splitlines()[2].startswith("EXPECTED FAILURE GONE: expect.toml: entry 1")
    assert "Reads as" not in text
