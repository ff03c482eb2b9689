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
from kernelassay.impls.variants import Variant, build
from kernelassay.oracle.attention import attention as oracle
from kernelassay.properties.case import AttendCase
from kernelassay.properties.diagnosis import Picture, diagnose
from kernelassay.properties.engine import Options, check
from kernelassay.properties.fault_answers import attend, sees, streamed
from kernelassay.properties.fault_setting import Answer, Setting
from kernelassay.properties.faults import FAULTS, Observed, observe, recognise
from kernelassay.properties.faults_scoring import FAULTS as SCORING
from kernelassay.properties.faults_terms import FAULTS as TERMS
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.neighbours import Neighbour, Neighbours, boundary, probe
from kernelassay.properties.property import select
from kernelassay.properties.readout import grouped, read
from kernelassay.properties.subject import Subject

TILES = (16,)
R = {"q": "random:1", "k": "random:2", "v": "random:3"}
SHARP = {**R, "q": "random:1:6.0"}
FAR = {"q": "first:4.0", "k": "around:1:140.0:3.0", "v": "random:3", "scale": 1.0}
NEGATIVE = {**FAR, "k": "around:1:-140.0:3.0"}
LOW = {"q": "first:1.0", "k": "around:0:-70000.0:1.5", "v": "random:3", "scale": 1.0}
HIDING = "random:7:1.5:bhqk;fill:-inf:keep:4:70:bhqk"
PLAIN = {
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
    "low": AttendCase(Tq=3, Tk=37, D=16, causal="bottom_right", **LOW),
    "low_ragged": AttendCase(B=2, Tq=3, Tk=75, D=16, lengths=(21, 38), **LOW),
    "low_scaled": AttendCase(Tq=3, Tk=37, D=16, lengths=(21,), **{**LOW, "scale": 0.1}),
    "inner": AttendCase(Tq=3, Tk=37, D=16, view="inner", **R),
    "padded": AttendCase(Hq=2, Hkv=2, Tq=3, Tk=37, D=16, view="padded", **R),
}
SCORED = {
    "capped": AttendCase(Tq=3, Tk=37, D=16, softcap=1.5, **SHARP),
    "capped_mask": AttendCase(Tq=4, Tk=37, D=16, softcap=1.5, mask="keep:1:50:qk", **SHARP),
    "capped_far": AttendCase(Tq=3, Tk=37, D=16, softcap=1.5, **FAR),
    "capped_negative": AttendCase(Tq=3, Tk=37, D=16, softcap=1.5, **NEGATIVE),
    "capped_ragged": AttendCase(
        B=2, Tq=3, Tk=75, D=16, lengths=(37, 20), softcap=2.5, causal="bottom_right", **SHARP
    ),
    "biased": AttendCase(
        B=2, Hq=4, Hkv=2, Tq=4, Tk=37, D=16, bias="random:7:1.5:bhqk", softcap=2.0,
        scale=0.3, **R,
    ),
    "bias_hides": AttendCase(
        B=2, Hq=4, Hkv=2, Tq=4, Tk=37, D=16, bias=HIDING, **R
    ),
    "bias_of_heads": AttendCase(Hq=4, Hkv=4, Tq=3, Tk=37, D=16, bias="random:9:2.0:hk", **R),
    "bias_steps": AttendCase(Tq=3, Tk=37, D=16, bias="fill:-1.5:keep:4:70:qk", **R),
    "alibi": AttendCase(Hq=4, Hkv=2, Tq=5, Tk=39, D=16, alibi="hashed:1", scale=0.3, **R),
    "alibi_corner": AttendCase(
        Hq=3, Hkv=3, Tq=5, Tk=39, D=16, alibi="hashed:1", causal="bottom_right", **R
    ),
    "alibi_ragged": AttendCase(
        B=3, Hq=2, Hkv=1, Tq=3, Tk=45, D=16, lengths=(21, 45, 38), alibi="hashed:2",
        causal="bottom_right", **R,
    ),
    "ring": AttendCase(
        B=2, Hq=2, Hkv=2, Tq=35, Tk=39, D=16, causal="positions", positions="ring:3", **R
    ),
    "alibi_ring": AttendCase(
        B=2, Hq=2, Hkv=2, Tq=35, Tk=39, D=16, causal="positions", positions="ring:3",
        alibi="hashed:1", **R,
    ),
    "sink": AttendCase(
        Hq=4, Hkv=2, Tq=3, Tk=37, D=16, sink_logits="random:5:2.0", scale=0.3, **R
    ),
    "sink_ragged": AttendCase(
        B=3, Hq=2, Hkv=2, Tq=3, Tk=69, D=16, lengths=(0, 37, 20), sink_logits="random:6:1.0",
        **R,
    ),
    "sink_rows": AttendCase(
        Hq=2, Hkv=2, Tq=18, Tk=37, D=16, mask="rows:3:60:qk", sink_logits="random:6:1.0", **R
    ),
    "sink_steps": AttendCase(
        B=2, Hq=4, Hkv=2, Tq=18, Tk=37, D=16, mask="keep:1:60:bhqk", bias="fill:-1.5:keep:4:70:qk",
        softcap=2.0, sink_logits="random:6:1.0", scale=0.3, **R,
    ),
    "wide_values": AttendCase(Tq=3, Tk=37, D=16, Dv=24, **R),
    "every_term": AttendCase(
        B=2, Hq=4, Hkv=2, Tq=3, Tk=37, D=16, Dv=24, causal="bottom_right", softcap=3.0,
        alibi="hashed:4", bias=HIDING, sink_logits="random:6:1.0", **R,
    ),
}  # fmt: skip
POOL = {**PLAIN, **SCORED}


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
        tensors = Logical(call.q, call.k, call.v, call.scale, call.visibility, call.scoring)
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


def same(a: Answer, b: Answer) -> bool:
    """Whether no kernel's answers to this call could tell *a* and *b* apart."""
    alike = torch.allclose(a.out, b.out, atol=1e-3, equal_nan=True)
    if alike and a.lse is not None and b.lse is not None:
        alike = torch.allclose(a.lse, b.lse, atol=1e-3, equal_nan=True)
    return alike


def planted(pool: dict[str, AttendCase]) -> Iterator[tuple[str, str, str]]:
    """(fault, detail, case) for each variant of each fault, with a case that shows it as such."""
    found: dict[tuple[str, str], str] = {}
    for where, case in pool.items():
        tensors = logical(case, "fp32")
        setting = Setting(tensors, TILES, case.view)
        for fault in FAULTS:
            before = [attend(setting)]
            for detail, answer in fault.variants(setting):
                one = fault.name == "key counted twice" and detail != "key 5"
                if not one and not any(same(answer, other) for other in before):
                    found.setdefault((fault.name, detail), where)
                before.append(answer)
    return ((name, detail, where) for (name, detail), where in found.items())


PLANTED = list(planted(POOL))


def test_every_fault_is_planted() -> None:
    """Each fault in the table shows in one of the cases; the test below is not vacuous."""
    assert {f.name for f in FAULTS} - {name for name, _, _ in PLANTED} == set()


def concerns(name: str, case: AttendCase) -> bool:
    """Whether the fault may show on *case*, or it is the plain one."""
    (fault,) = (f for f in FAULTS if f.name == name)
    setting = Setting(logical(case, "fp32"), TILES)
    shows = next(iter(fault.variants(setting)), None) is not None
    return case.view == "contiguous" and (shows or case == PLAIN["plain"])


@pytest.mark.parametrize(("name", "detail", "where"), PLANTED)
def test_a_model_knows_its_own_fault(name: str, detail: str, where: str) -> None:
    """The planted fault is what is read, or one of two that no case tried tells apart."""
    kernel = Planted(name, detail)
    pool = PLAIN if where in PLAIN else {**SCORED, "plain": PLAIN["plain"]}
    others = [case for other, case in pool.items() if other != where and concerns(name, case)]
    seen = [observed(kernel, case) for case in (POOL[where], *others)]
    readings = recognise(seen)
    assert (name, detail) in [(r.name, r.detail) for r in readings], readings
    assert readings[0].fits == len(seen)


def test_an_error_that_a_model_may_be_off_by_is_not_read() -> None:
    """Where models may be off by more than the error, one that explains it does so by chance."""
    name, detail, where = PLANTED[0]
    seen = observed(Planted(name, detail), POOL[where])
    assert (name, detail) in [(r.name, r.detail) for r in recognise([seen])]
    error = float((seen.out.got - seen.out.truth).abs().max())
    vague = replace(seen, out=replace(seen.out, near=seen.out.near + error), lse=None)
    assert vague.wrong
    assert recognise([vague]) == []


SEVERAL = {n: SCORED[n] for n in ("every_term", "alibi_ragged", "sink_steps", "sink_ragged")}
"""Cases with scoring terms beside what older models are about."""
OLDER = [
    (name, detail, where)
    for name, detail, where in planted(SEVERAL)
    if name not in {f.name for f in (*SCORING, *TERMS)}
]


def test_older_models_show_under_scoring_terms() -> None:
    """The test below is about nearly all of them."""
    needing_more = {
        "masked before scaled", "window ignored", "window off by one", "sinks ignored",
        "strides ignored", "positions taken as slots", "first tile masked", "empty row 0/0",
        "no maximum subtracted", "masked scores are finite",
    }  # fmt: skip
    older = {f.name for f in FAULTS} - {f.name for f in (*SCORING, *TERMS)}
    assert older - {name for name, _, _ in OLDER} == needing_more


@pytest.mark.parametrize(("name", "detail", "where"), OLDER)
def test_older_models_know_their_fault_under_scoring_terms(
    name: str, detail: str, where: str
) -> None:
    """Soft cap, ALiBi, bias, sinks and Dv are in the models that are not about them as well."""
    kernel = Planted(name, detail)
    cases = (SEVERAL[where], *(c for n, c in SEVERAL.items() if n != where))
    readings = recognise([observed(kernel, case) for case in cases])
    assert (name, detail) in [(r.name, r.detail) for r in readings], readings
    assert readings[0].fits == len(cases)


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
    sizes: dict[str, Any] = {"B": 2, "Hq": 2, "Hkv": 2, "Tq": Tq, "Tk": Tk, "D": 16}
    plain = AttendCase(**sizes, lengths=(0, Tk), **R)
    several = replace(plain, Dv=24, softcap=2.0, alibi="standard", bias=HIDING)
    several = replace(several, sink_logits="level:1.0")
    cornered = [replace(case, causal="bottom_right") for case in (plain, several)]
    for case in (plain, several, *cornered):
        setting = Setting(logical(case, dtype), TILES)
        for fault in FAULTS:
            for detail, answer in fault.variants(setting):
                told = (fault.name, detail)
                assert answer.out.shape == (2, 2, Tq, case.value_size), told
                assert answer.lse is None or answer.lse.shape == (2, 2, Tq), told


@pytest.mark.parametrize("where", POOL)
def test_the_models_without_a_twist_are_the_truth(where: str) -> None:
    """`attend`, `sees` and `streamed` give the oracle's answer when nothing is changed."""
    t = logical(POOL[where], "fp32")
    setting = Setting(t, TILES)
    out, lse = oracle(t.q, t.k, t.v, t.softmax_scale, t.visibility, t.scoring)
    assert torch.equal(sees(setting), setting.seen)
    last = streamed(setting, 16, sink_last=True)
    for answer in (attend(setting), streamed(setting, 16), last):
        assert answer.lse is not None
        assert torch.allclose(answer.out, out, atol=1e-12)
        assert torch.allclose(answer.lse, lse, atol=1e-12)


BIAS = "scoring.bias.expand(shape)[..., start:stop].float()"
SINK = "call.scoring.sink_logits[None, :, None]"
ONCE_MORE = f"(0 if call.scoring.sink_logits is None else torch.exp({SINK} - m_safe))"
LAST = f"if call.scoring.sink_logits is not None:\n        l = l + torch.exp({SINK})\n"
K_POSITION = "k_position = see.k_positions[:, None, start:stop]"
NO_SINK = ("if call.scoring.sink_logits is not None:", "if False:")
CAP = "scoring.softcap"
TANH = f"torch.tanh(z / {CAP})"
ARANGE = "torch.arange({}, device=z"
HIDES = ("bias[..., start:stop] > -math.inf", "bias[..., start:stop] >= -math.inf")
DISTANCE = "(q_positions(call)[:, :, None] - k_position).abs()"


def every_bias(part: str) -> tuple[tuple[str, str], ...]:
    """A part of the bias wherever it is read: where it is added, and where it hides."""
    return tuple((f"bias.expand({x}", f"bias{part}.expand({x}") for x in ("shape", "B"))


Mutant = tuple[str, str, tuple[tuple[str, str], ...]]
"""The fault that must be recognised, a case that shows it, and the changes of the text."""
MUTANTS: dict[str, Mutant] = {
    "no_cap": ("soft cap ignored", "capped", (("scoring.softcap is not None", "False"),)),
    "cap_times_score": ("soft cap formula", "capped", ((f"{CAP} * {TANH}", f"z * {TANH}"),)),
    "cap_without_factor": ("soft cap formula", "biased", ((f"{CAP} * {TANH}", TANH),)),
    "cap_overflows": (
        "soft cap formula",
        "capped_far",
        ((TANH, f"((e := torch.exp(2 * z / {CAP})) - 1) / (e + 1)"),),
    ),
    "cap_around_bias": (
        "soft cap formula",
        "biased",
        (
            ("scoring.softcap is not None", "False"),
            (
                "        z = scored(call, z, start, stop)\n",
                "        z = scored(call, z, start, stop)\n"
                "        if (cap := call.scoring.softcap) is not None:\n"
                "            z = cap * torch.tanh(z / cap)\n",
            ),
        ),
    ),
    "cap_after_mask": (
        "soft cap after the mask",
        "capped_mask",
        (
            ("        z = scored(call, z, start, stop)\n", ""),
            (
                "        z = torch.where(keep, z, -math.inf)\n",
                "        z = torch.where(keep, z, -math.inf)\n"
                "        z = scored(call, z, start, stop)\n",
            ),
        ),
    ),
    "no_bias": ("bias ignored", "biased", ((f"z + {BIAS}", "z"),)),
    "no_bias_at_all": ("bias ignored", "bias_hides", ((f"z + {BIAS}", "z"), HIDES)),
    "bias_subtracted": ("bias of the wrong sign", "biased", ((f"z + {BIAS}", f"z - {BIAS}"),)),
    "bias_of_head_0": (
        "bias of another index", "bias_of_heads", every_bias("[:, :1]")
    ),
    "bias_of_request_0": (
        "bias of another index", "biased", every_bias("[:1]")
    ),
    "bias_of_row_0": (
        "bias of another index", "biased", every_bias("[:, :, :1]")
    ),
    "bias_hides_nothing": (
        "-inf of the bias ignored",
        "bias_hides",
        ((BIAS, f"{BIAS}.nan_to_num(neginf=0.0)"), HIDES),
    ),
    "bias_scaled": ("bias scaled", "biased", ((BIAS, f"call.softmax_scale * {BIAS}"),)),
    "bias_as_mask": (
        "bias read as a mask",
        "bias_steps",
        ((f"z + {BIAS}", f"z.masked_fill({BIAS} != 0, -math.inf)"),),
    ),
    "no_alibi": ("ALiBi ignored", "alibi", (("scoring.alibi is not None", "False"),)),
    "next_slope": (
        "ALiBi slope of another head", "alibi", (("scoring.alibi[:", "scoring.alibi.roll(-1)[:"),)
    ),
    "alibi_added": ("ALiBi of the wrong sign", "alibi", (("z - scoring.a", "z + scoring.a"),)),
    "alibi_from_row": (
        "ALiBi distance",
        "alibi",
        ((DISTANCE, "(torch.arange(z.shape[2])[None, :, None] - k_position).abs()"),),
    ),
    "alibi_signed": ("ALiBi distance", "alibi", ((DISTANCE, DISTANCE.removesuffix(".abs()")),)),
    "alibi_of_tile": (
        "ALiBi distance",
        "alibi",
        ((ARANGE.format("start, stop"), ARANGE.format("stop - start")),),
    ),
    "alibi_to_slots": (
        "ALiBi distance", "alibi_ring", ((f"{K_POSITION}\n        dis", "pass\n        dis"),)
    ),
    "alibi_in_log2": ("ALiBi scaled", "alibi", (("* distance", "* distance * math.log(2)"),)),
    "no_sink": ("sink logit ignored", "sink", (NO_SINK,)),
    "sink_scaled": ("sink logit scaled", "sink", ((f"m = {SINK}", f"m = scale * {SINK}"),)),
    "sink_each_tile": (
        "sink counted more than once",
        "sink",
        (("l * rescale + p.sum(dim=-1)", f"l * rescale + p.sum(dim=-1) + {ONCE_MORE}"),),
    ),
    "sink_unshifted": (
        "sink without the maximum",
        "sink",
        (NO_SINK, ("empty = l == 0", f"{LAST}    empty = l == 0")),
    ),
    "next_sink": (
        "sink logit of another head", "sink", (("sink_logits[None", "sink_logits.roll(-1)[None"),)
    ),
    "lse_without_sink": (
        "sink in one output alone",
        "sink",
        (
            (
                "    lse = m + torch.log(l_safe)\n",
                "    lse = m + torch.log(l_safe)\n"
                "    if call.scoring.sink_logits is not None:\n"
                f"        lse = m + torch.log(l_safe - torch.exp({SINK} - m))\n",
            ),
        ),
    ),
    "slots": (
        "positions taken as slots",
        "alibi_ring",
        (
            (f"{K_POSITION}\n    keep", "pass\n    keep"),
            (f"{K_POSITION}\n        dis", "pass\n        dis"),
        ),
    ),
    "mask_of_slots": (
        "positions taken as slots", "ring", ((f"{K_POSITION}\n    keep", "pass\n    keep"),)
    ),
    "corner_of_rows": (
        "causal corner swapped", "alibi_corner", (("offset = used - Tq", "offset = used * 0"),)
    ),
    "first_channels": (
        "value channels past D",
        "wide_values",
        (("    return out.to", "    out[..., D:] = 0\n    return out.to"),),
    ),
}  # fmt: skip


def mutant(name: str) -> Any:
    """The reference with a fault written into its text, one tile of 16 keys a step."""
    edits = (("TILE = 64", "TILE = 16"), *MUTANTS[name][2])
    kernel = build(Variant(name=name, base="kernelassay.impls.torch_reference", edits=edits))
    kernel.capabilities = replace(kernel.capabilities, tiles=TILES)
    return kernel


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_of_a_term_is_recognised(name: str) -> None:
    """The fault in the text is the only one that is read off the answers."""
    fault, where, _ = MUTANTS[name]
    others = [case for other, case in SCORED.items() if other != where]
    kernel = mutant(name)
    seen = [observed(kernel, case) for case in (SCORED[where], *others, PLAIN["plain"])]
    readings = recognise(seen)
    assert {r.name for r in readings} == {fault}, readings
    # A corner that is wrong moves distances where nothing is causal, too; no model says so.
    assert readings[0].fits >= len(seen) - (name == "corner_of_rows")


def test_every_fault_of_a_term_has_a_mutant() -> None:
    """The models that speak of a scoring term are those of the table above."""
    spoken = {f.name for f in (*SCORING, *TERMS)}
    assert spoken <= {fault for fault, _, _ in MUTANTS.values()}


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


@pytest.mark.parametrize("where", SCORED)
def test_the_readout_of_a_right_kernel_is_right(where: str) -> None:
    """Cap, ALiBi, bias and sinks are in the weights that are expected; Dv is the width of v."""
    case = SCORED[where]
    readout = read(Subject(reference, "fp32", "cpu"), case, None)
    assert not isinstance(readout, str)
    assert readout.right, readout
    assert readout.calls == -(-case.Tk // case.value_size)


def groups_of(name: str, case: AttendCase) -> list[tuple[str, str, str]]:
    """What the readout of a mutant shows of the first row."""
    readout = read(Subject(mutant(name), "fp32", "cpu"), case, (0, 0, 0))
    assert not isinstance(readout, str)
    return [(g.keys, g.expected, g.observed) for g in readout.groups]


def test_the_readout_has_a_column_for_the_sink() -> None:
    """What the weights lack of 1 is the sink's; a kernel that ignores it has nothing left."""
    case = AttendCase(Tk=3, D=16, sink_logits="level:0.0")
    assert groups_of("no_sink", case) == [
        ("keys 0-2", "1/4 each", "1/3 each"),
        ("sink", "1/4", "0"),
    ]
    case = AttendCase(Tk=3, D=16, bias="fill:-inf:suffix:1", sink_logits="level:0.0")
    assert groups_of("bias_hides_nothing", case) == [
        ("key 0", "0", "1/4"), ("keys 1-2", "1/3 each", "1/4 each"), ("sink", "1/3", "1/4"),
    ]  # fmt: skip


def test_a_row_with_a_sink_alone_is_read() -> None:
    """A row that sees no key, but has a sink, must weigh nothing: it is no empty row."""
    kernel = Planted("masked scores are 0", "")
    kernel.capabilities = replace(
        kernel.capabilities, conventions=Conventions(empty_row="undefined")
    )
    for sink, right in (("level:1.0", False), ("level:-inf", True)):
        case = AttendCase(Tk=3, D=16, mask="nothing", sink_logits=sink)
        readout = read(Subject(kernel, "fp32", "cpu"), case, None)
        assert not isinstance(readout, str)
        assert readout.right is right


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


def test_neighbours_leave_out_one_term_at_a_time() -> None:
    """Without the soft cap, with another one, without ALiBi, bias or sink, with Dv = D."""
    case = AttendCase(
        Tk=3,
        D=16,
        Dv=24,
        softcap=2.0,
        alibi="standard",
        bias="level:1",
        sink_logits="level:0",
        **R,
    )
    law = select("attention.value")[0]
    found = probe(law, Subject(mutant("no_sink"), "fp32", "cpu"), case, "WrongValue")
    said = {name: found.line(name, case, TILES) for name in ("alibi", "bias", "softcap", "Dv")}
    assert said == {
        "softcap": "none and 4 fail as well", "alibi": "none fails as well",
        "bias": "none fails as well", "Dv": "16 fails as well",
    }  # fmt: skip
    assert found.line("sink_logits", case, TILES) == "none passes"
    assert not found.unfinished


def test_neighbours_of_a_plain_case_have_no_terms() -> None:
    """Nothing is added that was not there."""
    law = select("attention.value")[0]
    found = probe(law, Subject(Planted(*TAIL), "fp32", "cpu"), SPOT, "WrongValue")
    for n in found.runs:
        case = n.case
        assert (case.softcap, case.alibi, case.bias, case.sink_logits, case.Dv) == (None,) * 5


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


def test_a_reading_that_says_every_number_comes_first() -> None:
    """A dropped tile leaves open what a row that sees nothing gets; a finite fill does not."""
    case = AttendCase(Tk=37, D=16, lengths=(5,), **LOW)
    readings = recognise([observed(Planted("masked scores are finite", "-50000, tile 16"), case)])
    assert readings[0].name == "masked scores are finite"
