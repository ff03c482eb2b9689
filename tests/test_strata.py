"""Each stratum generates cheap cases that carry its label and that the kernel supports."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from toy_kernels import Toy, all_but, only, toy

from kernelassay.impls import (
    torch_merge,
    torch_paged,
    torch_reference,
    torch_sdpa,
    torch_split,
)
from kernelassay.impls.calls import check_attend, features_used
from kernelassay.impls.contract import FEATURES, Capabilities
from kernelassay.oracle.scoring import offsets
from kernelassay.oracle.visibility import visible
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase, literal, parse_case
from kernelassay.properties.domain import Domain, domain_of, head_sizes_at, lacking
from kernelassay.properties.engine import Options, check
from kernelassay.properties.failures import WrongValue
from kernelassay.properties.inputs import logical, visibility_of
from kernelassay.properties.judge import seen_by
from kernelassay.properties.labels import labels
from kernelassay.properties.laws.conduct import malformed_call
from kernelassay.properties.memory import VIEWS
from kernelassay.properties.property import Property, offered, select
from kernelassay.properties.subject import Subject

LAWS = {law.name: law for law in select() if offered(law.operation) in ("attend", "merge")}
STRATA = {
    (label, id(build)): (law.name, label, build)
    for law in LAWS.values()
    for label, build in law.strata.items()
}
"""Each stratum once, though several laws share it."""

OPTIONAL = sorted(set(FEATURES) - {"attend"})


def _domain(capabilities: Capabilities, device: str = "cpu", level: str = "nightly") -> Domain:
    subject = Subject(
        Toy(capabilities=capabilities, numerics=None), capabilities.dtypes[0], device
    )
    return domain_of(subject, level)


def _domains() -> Iterator[tuple[str, Domain]]:
    """Bundled kernels, those with a single feature or all but one, odd sizes."""
    sdpa = (torch_sdpa.math, torch_sdpa.flash, torch_sdpa.flash_cpu, torch_sdpa.efficient)
    special = (torch_paged.adapter, torch_split.adapter, torch_merge.adapter, torch_merge.pairs)
    for kernel in (torch_reference.adapter, *sdpa, torch_sdpa.cudnn, *special):
        for device in kernel.capabilities.devices:
            yield f"{kernel.name}-{device}", _domain(kernel.capabilities, device)
    yield "attend alone", _domain(only())
    for feature in OPTIONAL:
        yield f"only {feature}", _domain(only(feature))
        yield f"all but {feature}", _domain(only(*all_but(feature)))
    pair = ("unequal_lengths", "causal.bottom_right")
    yield "a decode kernel", _domain(only(*pair, "lengths"))
    yield "a small kernel", _domain(only(*FEATURES, tiles=(4,), max_tokens=40, head_sizes=(8,)))
    yield "two keys at least", _domain(only(*FEATURES, min_keys=2, tiles=(16,)))
    yield "many keys at least", _domain(only(*FEATURES, min_keys=16, tiles=(16, 128)))
    yield "a large tile", _domain(only(*FEATURES, tiles=(512,), head_sizes=(256, 80)))
    interpreted = only(*FEATURES, devices=("interpreter",), tiles=(32, 64), head_sizes=(16, 80))
    yield "interpreted", _domain(interpreted, "interpreter")
    few = replace(interpreted, work_limit={"interpreter": 4}, tiles=(16,))
    yield "interpreted, few steps", _domain(few, "interpreter")
    sixteen = only(*all_but("causal.positions", "window", "sink_tokens"), tiles=(16,))
    yield (
        "like triton_attention",
        _domain(replace(sixteen, devices=("interpreter",), tiles=(32, 64)), "interpreter"),
    )


DOMAINS = dict(_domains())


def draw(strategy: st.SearchStrategy[AttendCase], count: int, seed: int) -> list[AttendCase]:
    """*count* cases, with every health check on."""
    cases: list[AttendCase] = []

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @hypothesis.seed(seed)
    @given(case=strategy)
    def collect(case: AttendCase) -> None:
        cases.append(case)

    collect()
    return cases


def too_dear(case: AttendCase, domain: Domain) -> bool:
    """Whether a launch of the case costs more than the device may spend on one."""
    return not domain.fits(case.B, case.Hq, case.Tq, case.Tk)


@pytest.mark.parametrize("name", DOMAINS)
def test_each_stratum_keeps_to_label_capabilities_and_cost(name: str) -> None:
    """Every case carries its stratum's label, needs what is supported, and fits the device."""
    domain, wrong = DOMAINS[name], []
    for law, label, build in STRATA.values():
        # A case of these needs what is declined.
        strategy = build(domain) if label not in ("declined", "three_parts") else None
        if strategy is None or LAWS[law].requires - domain.supports:
            continue
        for case in draw(strategy, 4, seed=len(wrong)):
            case.checked()
            lacks = lacking(case, domain)
            dear = too_dear(case, domain)
            if lacks or dear or label not in labels(case, domain):
                wrong.append(f"{law} {label}: {case!r} lacks {lacks}, too dear: {dear}")
                break
    assert not wrong, "\n".join(wrong)


KINDS = ("merge", "merge_pairs", "paged", "split")


def test_strata_exist_where_their_features_do() -> None:
    """A kernel with every feature meets every stratum, one with none the plain ones."""
    full = _domain(only(*FEATURES, declines=(), head_sizes=(64, 80)))
    bare = _domain(only())
    domains = (full, *(DOMAINS[f"torch_{name}-cpu"] for name in KINDS))
    missing = [
        label for _, label, build in STRATA.values() if all(build(d) is None for d in domains)
    ]
    assert not missing
    kept = {label for _, label, build in STRATA.values() if build(bare) is not None}
    assert {"plain", "random_content", "scores_rising", "several_rows", "counting"} <= kept
    assert not kept & {"grouped", "ragged", "boolean_mask", "decode", "windows", "positions"}
    assert not kept & {"softcap", "alibi", "bias", "sink_logits", "value_size", "no_queries"}


def test_generation_is_quick() -> None:
    """A case is drawn in a few milliseconds, so that smoke is a matter of seconds."""
    domain, began, count = DOMAINS["torch_reference-cpu"], time.process_time(), 0
    for _, label, build in list(STRATA.values())[::3]:
        if label != "declined" and (strategy := build(domain)) is not None:
            count += len(draw(strategy, 10, seed=1))
    assert (time.process_time() - began) / count < 0.025


def dealt(law: Property, kernel: Any, seed: int = 0, level: str = "smoke") -> list[AttendCase]:
    """The cases that the engine deals to a law, in order."""
    cases: list[AttendCase] = []
    collecting = replace(law, body=lambda subject, case: cases.append(case))
    outcome = check(collecting, Subject(kernel, "fp32", "cpu"), Options(level=level, seed=seed))
    assert outcome.record.status == "passed", outcome.record.reason
    return cases


@pytest.fixture(scope="module")
def reached() -> dict[str, list[AttendCase]]:
    """What the pr level deals to the laws whose strata are of interest, by law."""
    names = (
        "attention.value", "attention.score_terms", "attention.extreme_scores",
        "attention.empty_rows", "attention.views",
        "attention.memory", "attention.lse", "alignment.visible_set", "alignment.causal_corner",
    )  # fmt: skip
    return {n: dealt(LAWS[n], torch_reference.adapter, level="pr") for n in names}


def _anywhere(reached: dict[str, list[AttendCase]], holds: Callable[[AttendCase], bool]) -> bool:
    return any(holds(case) for cases in reached.values() for case in cases)


LENGTHS: dict[str, Callable[[AttendCase], bool]] = {
    **{
        f"Tk = {tile} {off:+d}": lambda c, n=tile + off: c.Tk == n  # type: ignore[misc]
        for tile in (4, 32, 64)
        for off in (-1, 0, 1)
        if tile != 32
    },
    **{f"Tq = {n}": lambda c, n=n: c.Tq == n < c.Tk for n in (1, 2, 3)},  # type: ignore[misc]
    "past 512": lambda c: c.Tk == 513,
    "at 1024 or past it": lambda c: c.Tk in (1024, 1025),
    "fewer keys": lambda c: 0 < c.Tk < c.Tq,
    "no keys": lambda c: c.Tk == 0,
    "two tiles and a rest": lambda c: c.Tk == 129,
}
HEADS: dict[str, Callable[[AttendCase], bool]] = {
    f"heads {q}/{kv}": lambda c, q=q, kv=kv: (c.Hq, c.Hkv) == (q, kv)  # type: ignore[misc]
    for q, kv in ((4, 2), (6, 2), (6, 3), (1, 1))
}
OTHERS: dict[str, Callable[[AttendCase], bool]] = {
    "a scale": lambda c: c.scale not in (None, 1.0, c.D**-0.5),
    "a window of one": lambda c: c.window[0] == 0,
    "a window of two": lambda c: c.window[0] == 1,
    "a window to the right": lambda c: c.window[1] == 1,
    "sinks": lambda c: c.sinks > 0 and c.window[0] is not None and c.Tk > c.sinks + c.window[0],
    "a first tile masked": lambda c: c.mask == "suffix:64",
    **{f"view {v}": lambda c, v=v: c.view == v for v in VIEWS},  # type: ignore[misc]
    "empty member first": lambda c: c.lengths is not None and c.B > 1 and c.lengths[0] == 0,
    "empty member last": lambda c: c.lengths is not None and c.B > 1 and c.lengths[-1] == 0,
    "empty member between": lambda c: (
        c.B == 3 and c.lengths is not None and c.lengths[1] == 0 < min(c.lengths[0], c.lengths[2])
    ),
    "offset positions": lambda c: (c.positions or "").startswith("offset:"),
    "gaps between positions": lambda c: (c.positions or "").startswith("gaps:"),
    "a ring": lambda c: (c.positions or "").startswith("ring:") and c.Tk > 64,
    "no queries": lambda c: c.Tq == 0 < c.Tk,
    "wider values": lambda c: c.value_size > c.D,
    "wider keys": lambda c: c.value_size < c.D,
}
SCORING: dict[str, Callable[[AttendCase], bool]] = {
    **{f"cap {x}": lambda c, x=x: c.softcap == x for x in (1, 2, 5, 50)},  # type: ignore[misc]
    **{
        f"ALiBi, {heads} heads, {name}": lambda c, heads=heads, name=name: (  # type: ignore[misc]
            c.Hq == heads and (c.alibi or "").startswith(name)
        )
        for heads in (3, 6)
        for name in ("standard", "hashed:")
    },
    **{
        f"ALiBi, {causal}": lambda c, causal=causal: (  # type: ignore[misc]
            c.alibi is not None and c.causal == causal and c.Tq < c.Tk
        )
        for causal in ("none", "bottom_right", "top_left", "positions")
    },
    "minus infinity alone": lambda c: _filled(c, "-inf:keep") and c.causal == "none",
    "minus infinity, causal": lambda c: _filled(c, "-inf:keep") and c.causal == "bottom_right",
    "minus infinity for rows": lambda c: _filled(c, "-inf:rows"),
    "the least of fp16": lambda c: _filled(c, "-65504"),
    "-60000": lambda c: _filled(c, "-60000"),
    "a sink near": lambda c: (c.sink_logits or "").startswith("random:"),
    "a sink for no keys": lambda c: c.sink_logits is not None and c.Tk == 0,
    **{
        f"a sink at {x}": lambda c, x=x: c.sink_logits == f"level:{x}"  # type: ignore[misc]
        for x in ("100.0", "4500.0", "-110.0", "-60000.0", "-inf")
    },
}


def _filled(case: AttendCase, what: str) -> bool:
    return (case.bias or "").startswith(f"fill:{what}")


@pytest.mark.parametrize("what", [*LENGTHS, *HEADS, *OTHERS, *SCORING])
def test_the_generator_reaches(what: str, reached: dict[str, list[AttendCase]]) -> None:
    """The pr level deals a case of each kind at which kernels have been wrong."""
    assert _anywhere(reached, {**LENGTHS, **HEADS, **OTHERS, **SCORING}[what])


def _scores(case: AttendCase) -> Any:
    tensors = logical(case, "fp32")
    k = tensors.k.double().repeat_interleave(case.Hq // case.Hkv, 1)
    scores = tensors.softmax_scale * tensors.q.double() @ k.transpose(-1, -2)
    return scores.masked_fill(~visible(visibility_of(case), case.shape), -float("inf"))


def test_scores_lie_everywhere(reached: dict[str, list[AttendCase]]) -> None:
    """Row maxima lie far above and far below zero, in the first, a middle and the last tile."""
    tops, tiles = set(), set()
    for case in reached["attention.extreme_scores"]:
        if case.Tk < 3:
            continue
        top, at = _scores(case).max(-1)
        tops |= {float(top.max()), float(top.min())}
        last = (case.Tk - 1) // 64
        tiles |= {"first" if t == 0 else "last" if t == last else "middle"
                  for t in (at // 64).unique().tolist() if last >= 2}  # fmt: skip
    assert max(tops) > 50_000
    assert any(4000 < t < 5000 for t in tops)
    assert any(90 < t < 300 for t in tops)
    assert any(-200 < t < -90 for t in tops)
    assert any(-62_000 < t < -58_000 for t in tops)
    assert tiles == {"first", "middle", "last"}


def test_large_products_overflow_fp16_and_their_sums_do_not() -> None:
    """Each visible score is a sum of two products past 65504 that nearly cancel."""
    for case in of("large_products"):
        tensors = logical(case, "fp16")
        q, k = tensors.q.double(), tensors.k.double().repeat_interleave(case.Hq // case.Hkv, 1)
        assert torch.isfinite(q).all()
        assert torch.isfinite(k).all()
        products = q[:, :, :, None, :2] * k[:, :, None, :, :2]
        assert products.abs().min() > 65504
        assert (q @ k.mT).abs().max() < 65504


def of(name: str, count: int = 12) -> list[AttendCase]:
    """Cases of a stratum, for a kernel with every feature."""
    strategy = getattr(s, name)(DOMAINS["torch_reference-cpu"])
    return draw(strategy, count, seed=0)


def seen(case: AttendCase) -> Any:
    return seen_by(logical(case, "fp32")).expand(case.shape)


def added(case: AttendCase) -> Any:
    """ALiBi and bias of a case, [B, Hq, Tq, Tk]."""
    tensors = logical(case, "fp32")
    found = offsets(tensors.scoring, tensors.visibility, case.shape)
    assert found is not None
    return found.expand(case.shape)


def test_soft_caps_bite() -> None:
    """Some scores are far beyond the cap and some below it; far ones overflow as exponents."""
    for case in of("softcap"):
        ratio = _scores(case)[seen(case)].abs() / case.softcap
        assert float(ratio.max()) > 2, case
        assert float(ratio.min()) < 1, case
    for case in of("softcap_far"):
        assert float(_scores(case).abs().max() / case.softcap) > math.log(torch.finfo().max)


def test_a_masked_key_under_a_cap_is_there_to_come_back() -> None:
    """Some row sees some keys and not all of them."""
    for case in of("softcap_and_mask"):
        count = seen(case).sum(-1)
        assert bool(((count > 0) & (count < case.Tk)).any()), case


def test_alibi_meets_keys_on_both_sides() -> None:
    """Without a causal corner visible keys lie before a query and after it; slopes differ."""
    cases = [c for c in of("alibi", 30) if c.causal == "none"]
    assert cases
    for case in cases:
        assert case.Tk > case.Tq
        far = added(case)[0, :, 0]  # of query 0, the nearest key scores 0
        at = int(far[0].argmax())
        assert 0 < at < case.Tk - 1
        assert len(set(far[:, 0].tolist())) == case.Hq, case


def test_a_bias_far_below_is_a_row_s_only_one() -> None:
    """Query 0 has it for every key, others for some."""
    low = [added(case) < -50_000 for case in of("bias_far_below")]
    assert all(bool(x[:, :, 0].all()) for x in low)
    assert any(bool(x[:, :, 1:].any()) and not bool(x[:, :, 1:].all()) for x in low)


def test_a_bias_is_broadcast_over_every_subset_of_its_axes() -> None:
    """All sixteen, the one that varies on all axes first."""
    met = [(case.bias or "").split(":")[-1] for case in of("bias", 300)]
    assert met[0] == "bhqk"
    assert set(met) == {"".join(x) for n in range(5) for x in combinations("bhqk", n)}


def test_rows_are_hidden_by_a_bias() -> None:
    """Query 0 sees no key, and no boolean mask says so."""
    for case in of("bias_hides_rows"):
        assert case.mask is None
        assert not bool(seen(case)[:, :, 0].any()), case


def test_a_sink_meets_rows_without_keys() -> None:
    """Some rows see nothing, whichever way; some sinks are minus infinity."""
    cases = of("sink_of_empty_rows", 30)
    assert all(not bool(seen(c).any(-1).all()) for c in cases)
    assert {c.sink_logits == "level:-inf" for c in cases} == {True, False}


def test_a_ring_is_out_of_order_over_two_tiles() -> None:
    """A key of the second tile is seen though its number is past every query's position."""
    for case in of("ring"):
        at = visibility_of(case)
        assert at.q_positions is not None
        last = int(at.q_positions.max())
        if case.Tk > 64 > last:
            assert bool(seen(case)[..., max(64, last + 1) :].any()), case


def test_a_window_in_a_ring_has_its_sinks_in_memory() -> None:
    """Some sink token is seen outside the window, by its place and not by its position."""
    assert any(
        bool((~inside & seen(case))[..., : case.sinks].any())
        for case in of("ring_windows", 30)
        for inside in [seen(replace(case, sinks=0))]
    )


def test_what_a_reading_adds_leaves_scores_equal() -> None:
    """Of a bias only what hides is kept, and nothing else is added to the equal scores."""
    reading = s.reading(s.bias_and_minus_infinity)(DOMAINS["torch_reference-cpu"])
    assert reading is not None
    for case in draw(reading, 12, seed=0):
        finite = added(case)
        assert set(finite[finite > -math.inf].tolist()) == {0.0}
        assert bool((finite == -math.inf).any())


def test_values_tell_heads_apart(reached: dict[str, list[AttendCase]]) -> None:
    """Where heads are grouped, no two KV heads hold the same values."""
    grouped = [c for c in reached["attention.value"] if 1 < c.Hkv < c.Hq and c.Tk > 0]
    telling = [c for c in grouped if c.generic or c.v == "onehot"]
    assert len(telling) > len(grouped) // 2
    for case in telling:
        v = logical(case, "fp32").v
        assert not any(bool((v[:, 0] == v[:, h]).all()) for h in range(1, case.Hkv)), case


def smallest(
    stratum: s.Stratum, holds: Callable[[AttendCase], bool], seed: int = 0, **declared: Any
) -> AttendCase:
    """What the engine shrinks a failure to, were every case with *holds* one."""

    def body(subject: Subject, case: AttendCase) -> None:
        if holds(case):
            raise WrongValue("a case of the kind", ratio=None)

    law = replace(LAWS["attention.value"], body=body, strata={"stratum": stratum})
    outcome = check(law, toy(head_sizes=(64,), **declared), Options(seed=seed))
    assert outcome.found is not None, outcome.record.reason
    found: AttendCase = outcome.found.case
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_partial_tile_shrinks_to_the_smallest(seed: int) -> None:
    """The smallest case past a tile of 16 has one row, one head, 17 keys and simple content."""
    found = smallest(s.partial_tile, lambda c: c.Tk > 16 and c.Tk % 16 != 0, seed, tiles=(16,))
    assert found == AttendCase(Tk=17, v="zeros;0,0,0,0=1")


RANDOM: dict[str, Any] = {"q": "random:0", "k": "random:1", "v": "random:2"}
SMALLEST = {
    "grouped": AttendCase(Hq=4, Hkv=2, Tk=17, v="onehot"),
    "decode": AttendCase(Tk=17, causal="top_left", q="random:0", k="random:1", v="random:2"),
    "windows": AttendCase(window=(0, 0), q="random:0", k="random:1", v="random:2"),
    "several_rows": AttendCase(Tq=2, q="random:0", k="random:1", v="random:2"),
    "plain": AttendCase(v="zeros;0,0,0,0=1"),
    "spike_rows": AttendCase(Tk=17, scale=1.0, q="axis:1.0", k="spike:-24.0", v="step"),
    "softcap_far": AttendCase(
        softcap=50.0, scale=1.0, q="first:1.0", k="around:0:4500.0:1.5", v="around:0:0.0:1.0"
    ),
    "softcap_and_mask": AttendCase(Tq=3, Tk=17, mask="keep:0:50:k", softcap=3.0, **RANDOM),
    "alibi": AttendCase(Hq=3, Tq=3, Tk=17, alibi="standard", **RANDOM),
    "bias": AttendCase(B=2, Hq=2, Tq=2, Tk=17, bias="random:0:2.0:bhqk", **RANDOM),
    "bias_hides_rows": AttendCase(Tq=2, bias="fill:-inf:rows:0:70:qk", **RANDOM),
    "sink_logits": AttendCase(Hq=3, Tk=17, sink_logits="random:0:4.0", **RANDOM),
    "no_queries": AttendCase(Tq=0, **RANDOM),
    "ring": AttendCase(B=2, Tq=5, Tk=31, causal="positions", positions="ring:0", **RANDOM),
}


@pytest.mark.parametrize("name", SMALLEST)
def test_strata_shrink_to_small_shapes(name: str) -> None:
    """Whatever fails in a stratum shrinks to the smallest case that the stratum holds."""
    assert smallest(getattr(s, name), lambda c: True, tiles=(16,)) == SMALLEST[name]


def test_ragged_batches_shrink_to_two_short_requests() -> None:
    """No more than three requests of at most two keys are left."""
    found = smallest(s.ragged, lambda c: True, tiles=(16,))
    assert (found.Hq, found.Tq, found.Tk) == (1, 1, 2)


def test_equal_capabilities_see_equal_cases() -> None:
    """One law and seed deal the same cases to two kernels, and again to the first."""
    law, other = LAWS["attention.value"], Toy(name="another")
    first = dealt(law, torch_reference.adapter)
    assert first == dealt(law, other)
    assert first == dealt(law, torch_reference.adapter)


def test_seeds_and_laws_see_cases_of_their_own() -> None:
    """Another seed deals other cases; two laws that share a stratum see different ones."""
    law, stratum = LAWS["attention.value"], {"random_content": s.random_content}
    first, second = (replace(law, name=n, strata=stratum) for n in ("a.one", "a.two"))
    cases = dealt(first, torch_reference.adapter)
    for others in (
        dealt(first, torch_reference.adapter, seed=1),
        dealt(second, torch_reference.adapter),
    ):
        assert len(set(cases) & set(others)) <= len(cases) // 4  # the simplest ones recur


def test_an_undrawable_stratum_is_none_not_an_error() -> None:
    """No pair of features makes a stratum raise while it is built or drawn from."""
    for a, b in zip(OPTIONAL, OPTIONAL[1:] + OPTIONAL[:1], strict=True):
        domain = _domain(only(a, b))
        for _, label, build in STRATA.values():
            strategy = build(domain) if label != "declined" else None
            if strategy is not None:
                draw(strategy, 1, seed=3)


def test_declined_cases_need_what_is_declined_and_nothing_undeclared() -> None:
    """Each declined feature is asked for alone, as far as one can be."""
    capabilities = replace(only("unequal_lengths"), declines=all_but("unequal_lengths", "attend"))
    domain = _domain(capabilities)
    strategy = s.declined(domain)
    assert strategy is not None
    asked = {f for c in draw(strategy, 200, seed=0) for f in lacking(c, domain)}
    assert asked == set(s.NEEDING) - {"unequal_lengths"}


def test_malformed_cases_spoil_calls_in_every_way() -> None:
    """Each way is asked for that the features allow, those of scoring among them."""
    kernel = torch_reference.adapter
    subject, few = Subject(kernel, "fp32", "cpu"), kernel.capabilities.supports - {"bias"}
    cases = draw(s.malformed(DOMAINS["torch_reference-cpu"]), 100, seed=0)
    told = set()
    for case in cases:
        call = subject.prepare(case).call
        what, bad = malformed_call(call, case.at, kernel.capabilities.supports)
        told.add(what)
        with pytest.raises((ValueError, IndexError)):
            check_attend(bad)
    assert len(told) == 10
    names = {malformed_call(call, at, few)[0] for at in range(10)}
    assert len(names) == 9
    assert not any("bias" in name for name in names)


def test_every_feature_that_a_call_can_need_may_be_declined() -> None:
    """A case is known for each feature that is a call's; kernels read the need off its call."""
    assert set(s.NEEDING) == set(OPTIONAL) - {"lse"}
    for feature in set(s.NEEDING) - {"strides"}:  # what a call needs leaves out its layout
        case = replace(AttendCase(Tq=4, Tk=4, B=1), **s.NEEDING[feature])  # type: ignore[arg-type]
        assert feature in features_used(toy().prepare(case).call)


def test_every_case_prints_and_parses(reached: dict[str, list[AttendCase]]) -> None:
    """Whatever is generated is a literal that parses back."""
    for cases in reached.values():
        for case in cases[::7]:
            assert parse_case(literal(case)) == case


def test_levels_take_head_sizes_in_turn() -> None:
    """Smoke takes two head sizes, pr four, one half no powers of two; seeds take other ones."""
    sizes = (16, 32, 64, 80, 96, 128, 112)
    smoke = [head_sizes_at(sizes, "smoke", seed) for seed in range(4)]
    assert all(len(x) == 2 and any(n & (n - 1) for n in x) for x in smoke)
    assert {n for x in smoke for n in x} == set(sizes)
    assert len(head_sizes_at(sizes, "pr", 0)) == 4
    assert head_sizes_at(sizes, "nightly", 0) == tuple(sorted(sizes))
    assert head_sizes_at((64,), "smoke", 5) == (64,)
    assert head_sizes_at((16, 64), "smoke", 1) == (16, 64)


def test_the_cost_limit_of_an_interpreted_launch() -> None:
    """A launch of 16 tile steps fits, one of 17 does not, and most_keys is the last that does."""
    domain = DOMAINS["interpreted"]
    for B, Hq, Tq in ((1, 1, 1), (1, 6, 1), (2, 2, 65), (1, 1, 64)):
        most = domain.most_keys(B, Hq, Tq)
        assert domain.fits(B, Hq, Tq, most)
        assert not domain.fits(B, Hq, Tq, most + 1)
    square = domain.most_square(1, 2)
    assert domain.fits(1, 2, square, square)
    assert not domain.fits(1, 2, square + 1, square + 1)


@pytest.mark.parametrize(
    "name",
    ["several_requests", "ragged", "ragged_corner", "full_mask", "bias", "row_bias",
     "bias_minus_infinity", "alibi_ragged"],
)  # fmt: skip
def test_batches_stay_batches_where_work_is_scarce(name: str) -> None:
    """A stratum about several requests keeps two of them, whatever a launch may cost."""
    strategy = getattr(s, name)(replace(DOMAINS["interpreted"], steps=2))
    assert min(case.B for case in draw(strategy, 20, seed=0)) == 2
