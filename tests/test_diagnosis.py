"""The diagnosis: fault models know their own fault, readouts and neighbours say what is so."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
)
from kernelassay.impls.torch_reference import adapter as reference
from kernelassay.impls.torch_reference import attention
from kernelassay.properties.case import AttendCase
from kernelassay.properties.diagnosis import Picture, diagnose
from kernelassay.properties.engine import Options, check
from kernelassay.properties.fault_setting import Setting, attend, sees, streamed
from kernelassay.properties.faults import FAULTS, Observed, observe, recognise
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.neighbours import Neighbour, Neighbours, boundary, probe
from kernelassay.properties.property import select
from kernelassay.properties.readout import grouped, read
from kernelassay.properties.subject import Subject

TILES = (16,)
R = {"q": "random:1", "k": "random:2", "v": "random:3"}
SHARP = {**R, "q": "random:1:6.0"}
FAR = {"q": "first:4.0", "k": "around:1:140.0:3.0", "v": "random:3", "scale": 1.0}
POOL = {
    "plain": AttendCase(Tq=3, Tk=37, D=16, **R),
    "long": AttendCase(Tq=19, Tk=69, D=16, **SHARP),
    "grouped": AttendCase(B=2, Hq=6, Hkv=3, Tq=3, Tk=37, D=16, **R),
    "bottom_right": AttendCase(Tq=5, Tk=39, D=16, causal="bottom_right", **R),
    "top_left": AttendCase(Tq=21, Tk=39, D=16, causal="top_left", **R),
    "positions": AttendCase(Tq=5, Tk=39, D=16, causal="positions", positions="offset:20", **R),
    "ragged": AttendCase(B=3, Tq=3, Tk=75, D=16, lengths=(21, 75, 38), causal="bottom_right", **R),
    "ragged_dense": AttendCase(B=3, Tq=3, Tk=75, D=16, lengths=(21, 75, 38), **R),
    "masked": AttendCase(B=2, Hq=2, Hkv=2, Tq=4, Tk=37, D=16, mask="keep:1:60:bhqk", **R),
    "first_tile": AttendCase(Tq=3, Tk=37, D=16, mask="suffix:18", **R),
    "rows": AttendCase(Tq=6, Tk=37, D=16, mask="rows:3:60:qk", **R),
    "ragged_rows": AttendCase(B=2, Tq=6, Tk=37, D=16, lengths=(20, 37), mask="rows:3:60:qk", **R),
    "window": AttendCase(Tq=9, Tk=37, D=16, window=(5, 2), sinks=2, **R),
    "scaled": AttendCase(Tq=3, Tk=37, D=80, **{**SHARP, "scale": 0.3}),
    "turned": AttendCase(Tq=3, Tk=37, D=16, causal="bottom_right", **{**R, "scale": -0.3}),
    "far": AttendCase(Tq=3, Tk=37, D=16, **FAR),
    "inner": AttendCase(Tq=3, Tk=37, D=16, view="inner", **R),
    "padded": AttendCase(Hq=2, Hkv=2, Tq=3, Tk=37, D=16, view="padded", **R),
}


class Planted:
    """A kernel that answers what a function of the setting says; right where it says nothing."""

    name = "planted"
    capabilities = Capabilities(
        devices=("cpu",),
        dtypes=("fp32", "bf16"),
        head_sizes=(16, 64, 80),
        tiles=TILES,
        supports=frozenset(FEATURES),
        conventions=Conventions(),
    )
    numerics = Numerics(p="fp32", acc_u=2.0**-24, acc_biased=False, kstep=1)

    def __init__(self, name: str, detail: str, view: str = "contiguous") -> None:
        self.fault = next(f for f in FAULTS if f.name == name)
        self.detail, self.view = detail, view

    def attend(self, call: AttendCall) -> AttendResult:
        """The model's answer, in the dtype of the inputs."""
        tensors = Logical(call.q, call.k, call.v, call.scale, call.visibility)
        setting = Setting(tensors, TILES, self.view)
        right = attend(setting)
        answer = dict(self.fault.variants(setting)).get(self.detail, right)
        lse = right.lse if answer.lse is None else answer.lse
        assert lse is not None
        return AttendResult(answer.out.to(call.q.dtype), lse.float())


def observed(kernel: Any, case: AttendCase) -> Observed:
    """What *kernel* answers in fp32."""
    if isinstance(kernel, Planted):
        kernel.view = case.view
    return observe(Subject(kernel, "fp32", "cpu"), case)


def planted() -> Iterator[tuple[str, str, str]]:
    """(fault, detail, case) for each variant of each fault, with a case that shows it."""
    found: dict[tuple[str, str], str] = {}
    for where, case in POOL.items():
        tensors = logical(case, "fp32")
        setting = Setting(tensors, TILES, case.view)
        right = attend(setting)
        for fault in FAULTS:
            for detail, answer in fault.variants(setting):
                same = torch.allclose(answer.out, right.out, atol=1e-3, equal_nan=True)
                if same and answer.lse is not None and right.lse is not None:
                    same = torch.allclose(answer.lse, right.lse, atol=1e-3, equal_nan=True)
                if not same and (detail.startswith("key ") is False or detail == "key 5"):
                    found.setdefault((fault.name, detail), where)
    return ((name, detail, where) for (name, detail), where in found.items())


PLANTED = list(planted())


def test_every_fault_is_planted() -> None:
    """Each fault in the table shows in one of the cases; the test below is not vacuous."""
    assert {f.name for f in FAULTS} - {name for name, _, _ in PLANTED} == set()


@pytest.mark.parametrize(("name", "detail", "where"), PLANTED)
def test_a_model_knows_its_own_fault(name: str, detail: str, where: str) -> None:
    """The planted fault is what is read, or one of two that no case tried tells apart."""
    kernel = Planted(name, detail)
    others = [case for other, case in POOL.items() if other != where and case.view == "contiguous"]
    seen = [observed(kernel, case) for case in (POOL[where], *others)]
    readings = recognise(seen)
    assert (name, detail) in [(r.name, r.detail) for r in readings], readings
    assert readings[0].fits == len(seen)


@pytest.mark.parametrize("where", POOL)
def test_a_right_kernel_matches_no_model(where: str) -> None:
    """Nothing is read into an answer that is right."""
    seen = observed(reference, POOL[where])
    assert not seen.wrong
    assert recognise([seen]) == []


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("Tq", [0, 1])
@pytest.mark.parametrize("Tk", [0, 1])
def test_models_take_degenerate_calls(dtype: str, Tq: int, Tk: int) -> None:
    """No key, no query: every model still answers in the right shape."""
    for causal in ("none", "bottom_right"):
        case = AttendCase(
            B=2, Hq=2, Hkv=2, Tq=Tq, Tk=Tk, D=16, causal=causal, lengths=(0, Tk), **R
        )
        setting = Setting(logical(case, dtype), TILES)
        for fault in FAULTS:
            for detail, answer in fault.variants(setting):
                assert answer.out.shape == (2, 2, Tq, 16), (fault.name, detail)


@pytest.mark.parametrize("where", POOL)
def test_the_models_without_a_twist_are_the_truth(where: str) -> None:
    """`sees` and `streamed` give the oracle's answer when nothing is changed."""
    setting = Setting(logical(POOL[where], "fp32"), TILES)
    right, stream = attend(setting), streamed(setting, 16)
    assert torch.equal(sees(setting), setting.seen)
    assert torch.allclose(right.out, stream.out, atol=1e-12)
    assert right.lse is not None
    assert stream.lse is not None
    assert torch.allclose(right.lse, stream.lse, atol=1e-12)


def test_a_coarse_kernel_is_not_taken_for_a_fault() -> None:
    """bf16 probabilities under an fp32 declaration: no model, but the declaration that fits."""

    class Coarse(Planted):
        def attend(self, call: AttendCall) -> AttendResult:
            out, lse = attention(replace_dtype(call))
            return AttendResult(out.float(), lse)

    kernel = Coarse("zeros", "none such")
    kernel.numerics = replace(kernel.numerics, l_from_p=False)
    picture = picture_of(kernel, "attention.value", AttendCase(Tk=5, D=16, **R), "fp32")
    assert picture.readings == ()
    assert "bf16" in picture.coarser


def replace_dtype(call: AttendCall) -> AttendCall:
    """The call with q, k, v in bf16."""
    q, k, v = (x.to(torch.bfloat16) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v)


def picture_of(kernel: Any, law: str, case: AttendCase, dtype: str = "bf16") -> Picture:
    """The picture of *kernel* on one case."""
    (prop,), subject = select(law), Subject(kernel, dtype, "cpu")
    outcome = check(prop, subject, Options(case=case))
    assert outcome.found is not None
    before = (subject.launches, subject.worst, subject.current)
    picture = diagnose(prop, subject, outcome.found, outcome.search)
    assert (subject.launches, subject.worst, subject.current) == before
    return picture


TAIL = ("tail tile dropped", "tile 16")
SPOT = AttendCase(Tk=17, D=64, v="zeros;0,0,16,0=1")


def test_the_picture_of_a_dropped_tile() -> None:
    """Readout, reading, neighbours, repeats and memory of the standard example."""
    picture = picture_of(Planted(*TAIL), "attention.value", SPOT)
    assert picture.unavailable == ()
    assert picture.readout is not None
    groups = [(g.keys, g.expected, g.observed) for g in picture.readout.groups]
    assert groups == [("keys 0-15", "1/17 each", "1/16 each"), ("key 16", "1/17", "0")]
    assert [(r.name, r.detail) for r in picture.readings] == [TAIL]
    line = picture.neighbours.line("Tk", SPOT, TILES)
    assert line == "16 passes, 18 fails, 32 passes     <- boundary: tile 16"
    assert picture.repeat is not None
    assert (picture.repeat.failed, picture.repeat.of, picture.repeat.same_bits) == (3, 3, True)
    assert picture.memory == "Inputs unchanged.  Outputs not checked (opaque)."


def test_probes_survive_a_kernel_that_breaks_under_them() -> None:
    """A kernel that answers once and then raises costs the parts that need it, nothing more."""

    class Dying(Planted):
        calls = 0

        def attend(self, call: AttendCall) -> AttendResult:
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("out of resource: shared memory")
            return super().attend(call)

    picture = picture_of(Dying(*TAIL), "attention.value", SPOT)
    assert picture.readout is None
    assert any(
        x.startswith("Readout not available: Raised: planted raised") for x in picture.unavailable
    )
    assert picture.repeat is not None
    assert picture.repeat.same_bits is None


def test_few_runs_are_made() -> None:
    """A diagnosis costs some tens of launches, not hundreds."""

    class Counting(Planted):
        calls = 0

        def attend(self, call: AttendCall) -> AttendResult:
            self.calls += 1
            return super().attend(call)

    kernel = Counting(*TAIL)
    picture_of(kernel, "attention.value", SPOT)
    assert kernel.calls <= 50


def test_the_readout_names_the_row_that_is_off() -> None:
    """Where the row asked for is right, the worst row is shown."""
    case = AttendCase(Tq=3, Tk=20, D=16, causal="bottom_right", **R)
    readout = read(Subject(Planted("causal ignored", ""), "fp32", "cpu"), case, (0, 0, 2))
    assert not isinstance(readout, str)
    assert readout.row[2] < 2
    assert readout.calls == 2
    assert readout.groups[-1].expected.startswith("0")


def test_the_readout_is_not_made_where_it_costs_too_much() -> None:
    """A sentence says why."""
    case = AttendCase(Tk=70 * 16, D=16)
    assert read(Subject(reference, "fp32", "cpu"), case, None) == (
        "reading 1120 weights takes 70 calls; at most 64 are made"
    )


def test_groups_keep_the_gravest_runs() -> None:
    """Alternating keys make many runs: three are kept, one is context, the rest is counted."""
    expected = torch.full((20,), 1 / 20, dtype=torch.float64)
    odd = torch.arange(20) % 2 == 1
    observed = torch.where(odd, 0.0, expected)
    groups, hidden = grouped(expected, observed, torch.full_like(expected, 1e-6))
    assert len(groups) == 4
    assert hidden == 7
    assert {(g.expected, g.observed) for g in groups} == {("1/20", "0"), ("1/20", "1/20")}


@pytest.mark.parametrize(
    ("Tk", "verdicts", "edge"),
    [
        (17, {16: "passes", 18: "fails", 32: "passes"}, 16),
        (15, {14: "fails", 16: "passes", 32: "passes"}, 32),
        (33, {32: "passes", 34: "fails", 48: "fails"}, 32),
        (5, {4: "passes", 6: "fails", 16: "fails"}, None),
        (5, {4: "fails", 6: "fails", 16: "fails"}, None),
        (1, {0: "passes", 2: "fails", 16: "fails"}, None),
    ],
)
def test_a_boundary_is_a_tile(Tk: int, verdicts: dict[int, str], edge: int | None) -> None:
    """The multiples of a tile alone pass, or the case is just past one."""
    runs = [Neighbour("Tk", str(n), AttendCase(Tk=n), verdict) for n, verdict in verdicts.items()]
    if Tk == 15:  # 16 passes, so it is the smaller tile's multiples
        edge = 16
    assert boundary(AttendCase(Tk=Tk), runs, (16, 32)) == edge


def test_neighbours_in_words() -> None:
    """Equal verdicts are joined; other kinds are named."""
    case = AttendCase(Tk=3)
    runs = tuple(
        Neighbour("Tq", str(n), case, verdict)
        for n, verdict in ((2, "fails"), (3, "fails"), (8, "passes"), (9, "fails (Raised)"))
    )
    said = Neighbours(runs).line("Tq", case, TILES)
    assert said == "2 and 3 fail, 8 passes, 9 fails (Raised)"
    assert Neighbours(runs[:2]).line("Tq", case, TILES) == "2 and 3 fail as well"
    assert Neighbours(runs[:2]).alike() == "All 2 neighbours fail as well: Tq=2, 3."
    assert Neighbours(runs).alike() == ""


def test_no_neighbour_lies_outside_the_capabilities() -> None:
    """A kernel is never given what it declines, nor a law what its cases exclude."""

    class Narrow(Planted):
        capabilities = replace(
            Planted.capabilities,
            supports=frozenset(FEATURES) - {"mask", "more_queries", "causal.top_left", "no_keys"},
            declines=frozenset({"causal.top_left", "no_keys"}),
            head_sizes=(64,),
        )

    found = probe(
        select("attention.value")[0],
        Subject(Narrow("zeros", ""), "bf16", "cpu"),
        replace(SPOT, Tk=1),
        "WrongValue",
    )
    fields = {n.field for n in found.runs}
    assert fields.isdisjoint({"D", "mask"})
    assert all(n.case.Tk >= n.case.Tq and n.case.causal != "top_left" for n in found.runs)
    refusals = probe(
        select("attention.declines")[0], Subject(Narrow("zeros", ""), "bf16", "cpu"), SPOT, ""
    )
    assert refusals.runs == ()
