"""Laws that relate calls, or are exact whatever the scores: each passes and fails on purpose."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_kernels import INVARIANT, REFERENCE, Attend, hide, only, right, toy

from kernelassay.impls.contract import AttendCall, AttendResult, Conventions, Numerics
from kernelassay.impls.torch_reference import _SIXTEEN_BIT
from kernelassay.oracle.attention import attention
from kernelassay.oracle.dyadic import mass_sums
from kernelassay.oracle.exact import as_tensor, integer_mass_attention
from kernelassay.oracle.hull import hull, hull_allowed
from kernelassay.properties.case import AttendCase
from kernelassay.properties.content import content
from kernelassay.properties.engine import Options, Outcome, check
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.judge import seen_by
from kernelassay.properties.laws.comparing import without_scoring
from kernelassay.properties.laws.edges import edges, largest_norm, up_to
from kernelassay.properties.laws.equivalents import ways_to_hide
from kernelassay.properties.laws.exactly import rational
from kernelassay.properties.laws.relations import kept_share, through_channel
from kernelassay.properties.laws.rewriting import (
    group,
    heads_of,
    keys_in_order,
    more_keys,
    more_queries,
    order_of_keys,
    other_heads_replaced,
)
from kernelassay.properties.laws.sequences import elsewhere, other_content, reseeded
from kernelassay.properties.property import select
from kernelassay.properties.subject import Subject

MINE = (
    "attention.head_independence", "attention.key_permutation", "attention.padding",
    "attention.bias_is_mask", "attention.score_shift", "attention.default_scale",
    "attention.sink_relation", "attention.hull", "attention.integer_masses",
    "attention.second_call", "alignment.last_tile", "alignment.corner_is_mask",
    "alignment.window_truncation",
)  # fmt: skip
LAWS = {p.name: p for p in select(*MINE)}
GENERIC = {"q": "random:1", "k": "random:2", "v": "random:3"}


def run(name: str, subject: Subject, case: AttendCase | None = None, seed: int = 0) -> Outcome:
    """A law at the smoke level, or on one case."""
    return check(LAWS[name], subject, Options(case=case, shrink=False, seed=seed))


# Kernels that are right, each in a way of its own


def in_two_parts(call: AttendCall) -> AttendResult:
    """Split-KV: each half of the keys alone, merged by exp(lse_i - lse)."""
    Tk = call.k.shape[2]
    first = torch.arange(Tk) < Tk // 2
    plain = replace(call, scoring=replace(call.scoring, sink_logits=None))
    parts = [right(hide(plain, keep)) for keep in (first, ~first)]
    lses = torch.stack([x.lse for x in parts if x.lse is not None])
    if (sinks := call.scoring.sink_logits) is not None:
        lses = torch.cat((lses, sinks[None, None, :, None].expand_as(lses[:1])))
    top = lses.amax(0).clamp(min=-1e30)
    lse = top + (lses - top).exp().sum(0).log()
    shares = (lses - lse).exp().nan_to_num(0.0)[..., None]
    out = sum(x.out.float() * share for x, share in zip(parts, shares, strict=False))
    return AttendResult(torch.as_tensor(out).to(call.q.dtype), lse)


def nan_for_empty_rows(call: AttendCall) -> AttendResult:
    answer = right(call)
    assert answer.lse is not None
    empty = torch.isneginf(answer.lse)
    return replace(answer, out=answer.out.masked_fill(empty[..., None], math.nan))


def leaks_nan_under_a_mask(call: AttendCall) -> AttendResult:
    """0 x NaN of masked values, not of those beyond a length."""
    answer, v = right(call), call.v.float()
    if call.visibility.lengths is not None:
        beyond = torch.arange(v.shape[2]) >= call.visibility.lengths[:, None]
        v = torch.where(beyond[:, None, :, None], 0.0, v)
    leak = (0.0 * v).sum(2, keepdim=True).repeat_interleave(call.q.shape[1] // v.shape[1], 1)
    return replace(answer, out=answer.out + leak.to(answer.out.dtype))


def without_lse(call: AttendCall) -> Tensor:
    return right(call).out


def base_2(call: AttendCall) -> AttendResult:
    answer = right(call)
    assert answer.lse is not None
    return replace(answer, lse=answer.lse / math.log(2))


BUFFERS: dict[Any, AttendResult] = {}


def same_memory(call: AttendCall) -> AttendResult:
    """The answer always lies in the same place, for each shape and dtype."""
    answer = right(call)
    held = BUFFERS.setdefault((answer.out.shape, answer.out.dtype), answer)
    assert held.lse is not None
    assert answer.lse is not None
    held.out.copy_(answer.out)
    held.lse.copy_(answer.lse)
    return AttendResult(held.out, held.lse)


def bf16_scores(call: AttendCall) -> AttendResult:
    """Scores are rounded to bf16 before anything is done to them; one softmax over all keys."""
    B, Hq, Tq, _ = call.q.shape
    Hkv, Tk = call.k.shape[1:3]
    q, k, v = (x.float() for x in (call.q, call.k, call.v))
    k, v = (x.repeat_interleave(Hq // Hkv, 1) for x in (k, v))
    z = (call.softmax_scale * (q @ k.mT)).bfloat16().float()
    seen = seen_by(Logical(q, k, v, None, call.visibility)).expand(B, Hq, Tq, Tk)
    z = torch.where(seen, z, -math.inf)
    v = torch.where(seen.any(2)[..., None], v, 0.0)
    p = z.softmax(-1).nan_to_num(0.0)
    return AttendResult((p @ v).to(call.q.dtype), z.logsumexp(-1))


BF16_SCORES = Numerics(
    score="bf16", score_roundings=1, p="fp32", acc_u=2.0**-24, acc_biased=False, kstep=1
)
RIGHT: dict[str, tuple[Attend, dict[str, Any]]] = {
    "plain": (right, {}),
    "in two parts": (in_two_parts, {}),
    "NaN for empty rows": (
        nan_for_empty_rows, {"conventions": replace(REFERENCE.conventions, empty_row="nan")},
    ),
    "NaN leaks under a mask": (
        leaks_nan_under_a_mask,
        {"conventions": replace(REFERENCE.conventions, masked_content="finite_only")},
    ),
    "no LSE": (without_lse, {"supports": REFERENCE.supports - {"lse"}}),
    "LSE in base 2": (
        base_2, {"conventions": replace(REFERENCE.conventions, lse_base="2")},
    ),
    "the same memory": (same_memory, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.parametrize("name", MINE)
def test_right_kernels_of_other_kinds_pass(name: str, kind: str) -> None:
    """No false alarm: split over the keys, other conventions, no LSE, a buffer used again."""
    kernel, declared = RIGHT[kind]
    dtype = "fp16" if kind != "in two parts" else "fp32"
    subject = toy(kernel, dtype=dtype, **{"head_sizes": (64, 16), **declared})
    if kind == "in two parts":  # parts are rounded, and so is the LSE that merges them
        coarser = replace(_SIXTEEN_BIT, block=16, p="fp32", div_u=2.0**-17)
        subject.numerics = coarser.resolved(dtype)
    record = run(name, subject).record
    assert record.status == "passed", record.reason
    assert record.worst is None or record.worst <= 1


@pytest.mark.parametrize("name", MINE)
def test_one_head_size_and_one_tile_are_enough(name: str) -> None:
    """Laws hold for a kernel of few features too, or say why they do not run."""
    for declared in (
        only("lse", "unequal_lengths", "lengths"),
        only("unequal_lengths", "causal.top_left", "mask", min_keys=2, max_tokens=70),
        only("causal.bottom_right", "window", head_sizes=(1,)),
        only("sink_logits", "bias", "scale"),
        only("mask", "bias", "bias.minus_infinity", "gqa", tiles=(16,)),
    ):
        subject = toy(without_lse if "lse" not in declared.supports else right)
        subject.kernel.capabilities = declared
        record = run(name, subject).record
        assert record.status in ("passed", "undeclared"), record.reason


# Kernels that are wrong in one way


def top_of_all_heads(call: AttendCall) -> AttendResult:
    """Scores so far below another head's that they vanish count as nothing."""
    q, k = call.q.float(), call.k.float().repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
    answer = right(call)
    top = (call.softmax_scale * (q @ k.mT)).amax(-1, keepdim=True)
    lost = top < top.amax(1, keepdim=True) - 88
    return replace(answer, out=answer.out.masked_fill(lost, 0.0))


def first_slots(call: AttendCall) -> AttendResult:
    """Only as many slots are visited as the last one's position says."""
    at = call.visibility.k_positions
    if at is None:
        return right(call)
    return right(hide(call, torch.arange(call.k.shape[2]) <= int(at[:, -1].max())))


def reads_the_end(call: AttendCall) -> AttendResult:
    """The last slot is visited whether it is hidden or not."""
    answer = right(call)
    if call.k.shape[2] == 0:
        return answer
    leak = 0.01 * call.v[:, :, -1:].float().nan_to_num(7.0)
    leak = leak.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
    return replace(answer, out=(answer.out + leak).to(answer.out.dtype))


def rounds_by_slots(call: AttendCall) -> AttendResult:
    """An odd number of slots is rounded another way."""
    answer = right(call)
    up = torch.nextafter(answer.out, torch.tensor(math.inf))
    return replace(answer, out=up if call.k.shape[2] % 2 else answer.out)


def bias_ignored(call: AttendCall) -> AttendResult:
    return right(replace(call, scoring=replace(call.scoring, bias=None)))


def clamped(call: AttendCall) -> AttendResult:
    """Scores beyond 60 are 60: only what is shifted that far is wrong."""
    answer, q, k = right(call), call.q.float(), call.k.float()
    k = k.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
    far = (call.softmax_scale * (q @ k.mT)).amax(-1, keepdim=True) > 60
    mean = call.v.float().mean(2, keepdim=True)
    mean = mean.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
    return replace(answer, out=torch.where(far, mean, answer.out).to(answer.out.dtype))


def scale_squared(call: AttendCall) -> AttendResult:
    return right(replace(call, scale=None if call.scale is None else call.scale**2))


def sink_ignored(call: AttendCall) -> AttendResult:
    return right(replace(call, scoring=replace(call.scoring, sink_logits=None)))


def one_part_in_100(call: AttendCall) -> AttendResult:
    answer = right(call)
    return replace(answer, out=answer.out * 1.01)


def one_part_in_5(call: AttendCall) -> AttendResult:
    answer = right(call)
    return replace(answer, out=answer.out * 1.2)


def window_ignored_in_the_lse(call: AttendCall) -> AttendResult:
    whole = replace(call.visibility, window=(None, None), sinks=0)
    return replace(right(call), lse=right(replace(call, visibility=whole)).lse)


def no_corner_beside_a_mask(call: AttendCall) -> AttendResult:
    if call.visibility.mask is None:
        return right(call)
    return right(replace(call, visibility=replace(call.visibility, causal="none")))


def loses_the_key_at(length: int) -> Attend:
    """The last key is lost where there are exactly *length* of them."""

    def kernel(call: AttendCall) -> AttendResult:
        lengths, Tk = call.visibility.lengths, call.k.shape[2]
        used = torch.tensor([Tk]) if lengths is None else lengths
        lost = (used[:, None] == length) & (torch.arange(Tk) == length - 1)
        return right(hide(call, ~lost[:, None, None]))

    return kernel


def remembering(key: Callable[[AttendCall], Any], what: str) -> Attend:
    """A kernel that keeps lengths, mask, slopes or all of its answer from its first call."""
    held: dict[Any, Any] = {}

    def kernel(call: AttendCall) -> AttendResult:
        if what in ("lengths", "mask"):
            kept = held.setdefault(key(call), getattr(call.visibility, what))
            return right(replace(call, visibility=replace(call.visibility, **{what: kept})))
        if what == "alibi":
            kept = held.setdefault(key(call), call.scoring.alibi)
            return right(replace(call, scoring=replace(call.scoring, alibi=kept)))
        kept = held.setdefault(key(call), right(call))
        assert isinstance(kept, AttendResult)
        return kept

    return kernel


def shape_of_call(call: AttendCall) -> tuple[Any, ...]:
    return (call.q.shape, call.k.shape, call.visibility.lengths is None)


def drifts() -> Attend:
    """Right within rounding, but not the same from call to call."""
    calls = iter(range(10**6))

    def kernel(call: AttendCall) -> AttendResult:
        answer = right(call)
        return replace(answer, out=answer.out * (1 + 2.0**-23 * (next(calls) % 3)))

    return kernel


BY_SHAPE = partial(remembering, shape_of_call)
BROKEN: dict[str, tuple[str, Attend, dict[str, Any], str]] = {
    "heads": ("attention.head_independence", top_of_all_heads, {}, "WrongValue"),
    "heads, bitwise": (
        "attention.head_independence", top_of_all_heads, {"conventions": INVARIANT}, "Different",
    ),
    "order": ("attention.key_permutation", first_slots, {}, "WrongValue"),
    "padding": ("attention.padding", reads_the_end, {}, "WrongValue"),
    "padding, bitwise": (
        "attention.padding", rounds_by_slots, {"conventions": INVARIANT}, "Different",
    ),
    "bias": ("attention.bias_is_mask", bias_ignored, {}, "WrongValue"),
    "shift": ("attention.score_shift", clamped, {}, "WrongValue"),
    "scale": ("attention.default_scale", scale_squared, {}, "WrongValue"),
    "sink": ("attention.sink_relation", sink_ignored, {}, "WrongValue"),
    "hull": ("attention.hull", one_part_in_100, {}, "WrongValue"),
    "masses": ("attention.integer_masses", one_part_in_100, {}, "WrongValue"),
    "window": ("alignment.window_truncation", window_ignored_in_the_lse, {}, "WrongValue"),
    "corner": ("alignment.corner_is_mask", no_corner_beside_a_mask, {}, "WrongValue"),
    "last tile": ("alignment.last_tile", loses_the_key_at(32), {"tiles": (16,)}, "WrongValue"),
    "one tile": ("alignment.last_tile", loses_the_key_at(17), {"tiles": (16,)}, "WrongValue"),
    "lengths": ("attention.second_call", BY_SHAPE("lengths"), {}, "WrongValue"),
    "answer": ("attention.second_call", BY_SHAPE("answer"), {}, "WrongValue"),
    "slopes": (
        "attention.second_call", remembering(lambda call: call.q.shape[1], "alibi"), {},
        "WrongValue",
    ),
    "drift": ("attention.second_call", drifts(), {}, "NonDeterministic"),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_caught(name: str, seed: int) -> None:
    """At the smoke level, whatever the seed, with the kind that says what is wrong."""
    law, kernel, declared, kind = BROKEN[name]
    record = run(law, toy(kernel, **{"head_sizes": (64,), **declared}), seed=seed).record
    assert record.status == "failed", record.reason
    assert kind in (record.kind, *record.also), record.reason


def test_every_law_is_broken_by_some_kernel() -> None:
    """The table above leaves out none of the laws that are tested here."""
    assert {law for law, *_ in BROKEN.values()} == set(MINE)


MESSAGES: dict[str, tuple[str, Attend, dict[str, Any], str]] = {
    "order": (
        "attention.key_permutation", first_slots,
        {"Tq": 2, "Tk": 20, "causal": "positions", "positions": "offset:19"},
        "out changed when the keys were stored in another order, which must not matter: ",
    ),
    "slots": (
        "attention.padding", reads_the_end, {"Tk": 5, "at": 2},
        "out differs from the float64 oracle by ",
    ),
    "bias": (
        "attention.bias_is_mask", bias_ignored, {"Tk": 5, "mask": "prefix:3"},
        "out changed when the mask came as a bias of 0 and -inf, which must not matter: ",
    ),
    "shift": (
        "attention.score_shift", clamped, {"Tk": 5, "at": 0},
        "out changed when a number was added to all scores of its row, which must not matter: ",
    ),
    "shift of the LSE": (
        "attention.score_shift", without_lse, {"Tk": 5},
        "returned no LSE",
    ),
    "scale": (
        "attention.default_scale", scale_squared, {"Tk": 5},
        "out changed when its default scale was given, 1 / sqrt(64), which must not matter: ",
    ),
    "sink": (
        "attention.sink_relation", sink_ignored, {"Tk": 5, "sink_logits": "level:0.5"},
        "out with the sink is not out without it times l / (l + exp(sink)): ",
    ),
    "hull": (
        "attention.hull", one_part_in_100, {"Tk": 5, "v": "level:3.0"},
        "out lies outside the hull of the visible values, where no error of scores can bring it: ",
    ),
    "masses": (
        "attention.integer_masses", one_part_in_5,
        {"Tk": 2, "q": "first:8.0", "k": "logs:1:3", "v": "level:3.0"},
        "the sum of the visible weights, is ",
    ),
    "window": (
        "alignment.window_truncation", window_ignored_in_the_lse, {"Tk": 9, "window": (2, 0)},
        "out moved further by a window than twice the dropped mass times the largest value: ",
    ),
    "last tile": (
        "alignment.last_tile", loses_the_key_at(64), {"Tk": 65, "q": "zeros", "k": "zeros"},
        "must see 64 of 64 keys; it does not see key 63",
    ),
    "drift": (
        "attention.second_call", drifts(), {"Tk": 5},
        "out of a call changed after calls of another kind: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_say_what_differs(name: str) -> None:
    """In terms of the law: what was changed, and what must not have."""
    law, kernel, fields, words = MESSAGES[name]
    case = AttendCase(**{**GENERIC, **fields})
    outcome = run(law, toy(kernel), case)
    assert words in outcome.record.reason
    if words.endswith(": ") and name != "drift":
        assert outcome.found is not None
        place = outcome.found.failure.place
        assert place is not None
        assert abs(place.got - place.expected) > place.allowed


@pytest.mark.parametrize("name", ["attention.hull", "attention.second_call"])
def test_what_is_nan_is_told(name: str) -> None:
    """A NaN is in no hull, and in no budget."""

    def spoilt(call: AttendCall) -> AttendResult:
        answer = right(call)
        answer.out[..., 0] = math.nan
        return answer

    assert run(name, toy(spoilt), AttendCase(Tk=5, **GENERIC)).record.kind == "NonFinite"


# The hull is sharp where declared arithmetic is coarse


def test_coarse_scores_stay_in_the_hull() -> None:
    """Weights that are off by any factor are weights; what is larger than every value is not."""
    case = AttendCase(Tk=40, k="around:1:4500.0:9.0", q="first:8.0", v="around:2:3.0:1.0")
    for kernel, ends in ((bf16_scores, "passed"), (_too_large, "failed")):
        subject = toy(kernel, supports=REFERENCE.supports - {"lse"})
        subject.numerics = BF16_SCORES.resolved("fp32")
        assert run("attention.hull", subject, case).record.status == ends
        record = check(select("attention.value")[0], subject, Options(case=case)).record
        assert record.status == "passed", "the budget of such scores is too wide to see either"


def _too_large(call: AttendCall) -> AttendResult:
    answer = bf16_scores(call)
    return replace(answer, out=call.v.amax(2, keepdim=True) * 1.01)


def test_the_hull_of_visible_values() -> None:
    """Least and largest over the visible keys of each row; a sink adds 0, no key is no hull."""
    v = torch.tensor([[[[1.0], [5.0], [-2.0], [math.nan]]]])
    seen = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]).bool()[None, None]
    low, high, far = (x.flatten().tolist() for x in hull(v, seen))
    assert (low, high, far) == ([1.0, -2.0, math.inf], [5.0, 5.0, -math.inf], [5.0, 5.0, 0.0])
    for logit, least in ((0.3, 0.0), (-math.inf, 1.0)):
        low, high, _ = hull(v, seen, torch.tensor([logit]))
        assert low.flatten().tolist() == [least, -2.0, math.inf]
        assert high.flatten().tolist() == [5.0, 5.0, -math.inf]
    none = hull(v[:, :, :0], seen[..., :0])
    assert none[0].shape == (1, 1, 3, 1)
    assert bool((none[0] > none[1]).all())


@pytest.mark.parametrize("p", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_rounded_besides_scores_stays_within_the_hull_budget(p: str, seed: int) -> None:
    """Any weights, P cast, sums rounded at every step, output rounded: never further outside."""
    g = torch.Generator().manual_seed(seed)
    n, kinds = 200, {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    e = torch.rand(n, generator=g) ** (1 + 9 * (seed % 4))
    e = e / e.max()
    v = torch.full((n, 3), 1.0) * torch.tensor([1.0, -3.0, 700.0])
    if seed % 2:
        v = v + 0.1 * torch.rand(n, 3, generator=g)
    u, l = torch.zeros(3), torch.zeros(())  # noqa: E741
    for weight, value in zip(e, v, strict=True):
        u = u + weight.to(kinds[p]).float() * value
        l = l + weight  # noqa: E741
    out = (u / l).to(kinds[p]).double()
    numerics = Numerics(
        p=p, out=p, l_from_p=False, acc_u=2.0**-24, kstep=1, acc_biased=False, block=16
    )
    low, high, far = hull(v[None, None], torch.ones(1, 1, 1, n, dtype=torch.bool))
    outside = torch.maximum(low - out, out - high).clamp(min=0.0)
    allowed = hull_allowed(far, torch.tensor([[[n]]]), n, torch.zeros(1, 1, 1), numerics)
    assert bool((outside <= allowed).all())
    assert float((allowed / far).max()) < {"fp16": 2**-9, "bf16": 2**-6, "fp32": 2**-13}[p]


# Calls put in another way


def truth(tensors: Logical) -> tuple[Tensor, Tensor]:
    """out and lse in float64."""
    t = tensors
    return attention(t.q, t.k, t.v, t.softmax_scale, t.visibility, t.scoring)


VARIED = {
    "heads": AttendCase(B=2, Hq=4, Hkv=2, Tq=3, Tk=7, D=8, mask="keep:1:60:hk", **GENERIC),
    "terms": AttendCase(
        Hq=3, Hkv=3, Tq=3, Tk=7, D=8, causal="bottom_right", alibi="hashed:3",
        bias="random:1:1.0:hqk;fill:-inf:keep:2:70:hk", sink_logits="random:4:1.0", **GENERIC,
    ),
    "positions": AttendCase(
        B=2, Tq=3, Tk=7, D=8, causal="positions", positions="offset:5", window=(3, None),
        alibi="standard", **GENERIC,
    ),
    "lengths": AttendCase(
        B=2, Tq=3, Tk=7, D=8, lengths=(4, 7), mask="keep:1:70:bqk", bias="random:1:1.0:k",
        **GENERIC,
    ),
    "top left": AttendCase(Tq=3, Tk=7, D=8, causal="top_left", bias="random:1:1.0:qk", **GENERIC),
    "bottom right": AttendCase(
        B=2, Tq=3, Tk=7, D=8, causal="bottom_right", lengths=(5, 7), window=(3, None), **GENERIC
    ),
    "window": AttendCase(Tq=3, Tk=7, D=8, window=(2, 1), softcap=2.0, **GENERIC),
}  # fmt: skip


@pytest.mark.parametrize("name", ["heads", "terms"])
def test_heads_replaced_are_the_others(name: str) -> None:
    """A KV head's group has its truth alone, and with every other head replaced."""
    tensors = logical(VARIED[name], "fp32")
    for g in range(tensors.k.shape[1]):
        own, changed = group(tensors, g), other_heads_replaced(tensors, g)
        alone = truth(heads_of(tensors, g))
        for a, b, c in zip(truth(tensors), truth(changed), alone, strict=True):
            assert torch.equal(a[:, own], b[:, own])
            torch.testing.assert_close(a[:, own], c, rtol=1e-12, atol=1e-12)
        others = [h for h in range(tensors.q.shape[1]) if not own.start <= h < own.stop]
        assert not bool((truth(tensors)[0][:, others] == truth(changed)[0][:, others]).any())


@pytest.mark.parametrize("name", ["heads", "positions", "lengths"])
@pytest.mark.parametrize("kind", [0, 1, 2, 4])
def test_reordered_keys_have_the_same_truth(name: str, kind: int) -> None:
    """Reversed, rotated or hashed, with all that belongs to a key; what is unused stays."""
    tensors = logical(VARIED[name], "fp32")
    order = order_of_keys(tensors, kind)
    assert bool((order.sort(-1).values == torch.arange(7)).all())
    assert not bool((order == torch.arange(7)).all())
    if tensors.visibility.lengths is not None:
        assert order[0, 4:].tolist() == [4, 5, 6]
    for a, b in zip(truth(tensors), truth(keys_in_order(tensors, order)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", VARIED)
def test_added_slots_and_queries_leave_the_truth(name: str) -> None:
    """Whatever hides the slots; queries are added where they move no other."""
    tensors = logical(VARIED[name], "fp32")
    ways = ways_to_hide(toy(), tensors)
    assert ways[0] == "lengths"
    assert ("mask" in ways) == (name in ("heads", "positions", "top left"))
    for by in ways:
        longer = more_keys(tensors, 3, by=by, harmless=True)
        assert longer.k.shape[2] == 10
        assert bool(longer.k[:, :, 7:].isnan().all())
        for a, b in zip(truth(tensors), truth(longer), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    taller, start = more_queries(tensors, 2)
    assert start == (0 if name == "top left" else 2)
    for a, b in zip(truth(tensors), truth(taller), strict=True):
        assert b.shape[2] == 5
        torch.testing.assert_close(a, b[:, :, start : start + 3], rtol=1e-12, atol=1e-12)


def test_garbage_is_a_number_where_nan_is_not_harmless() -> None:
    """1000, or what the dtype holds."""
    for dtype, worst in (("fp16", 1000.0), ("e4m3", 448.0)):
        longer = more_keys(logical(AttendCase(Tk=3), dtype), 2, by="mask", harmless=False)
        assert longer.k[..., 3:, :].double().unique().tolist() == [worst]
        assert longer.v[..., 3:, :].double().unique().tolist() == [-worst]


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_channel_shifts_scores_by_known_numbers(scale: float | None) -> None:
    """The two calls' truth: the same output, an LSE that is larger by the number of its row."""
    tensors = logical(AttendCase(B=2, Hq=2, Tq=4, Tk=7, D=8, scale=scale, **GENERIC), "fp16")
    plain, moved, shift = through_channel(tensors, 95.0)
    (out, lse), (same, higher) = truth(plain), truth(moved)
    torch.testing.assert_close(out, same, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(lse + shift, higher, rtol=1e-9, atol=1e-9)
    assert 94 < float(shift.max()) < 96
    assert shift.unique().numel() == 3


def test_the_share_that_a_sink_leaves() -> None:
    """l / (l + e^s), and at most how far an LSE that is a little off moves it."""
    lse, sink = torch.linspace(-5, 5, 41, dtype=torch.float64), torch.tensor(1.0).double()
    spare = torch.full_like(lse, 0.01)
    share, off = (x[..., 0] for x in kept_share(lse, spare, sink))
    torch.testing.assert_close(share, lse.exp() / (lse.exp() + sink.exp()))
    for error in (-0.01, 0.01):
        moved = kept_share(lse + error, spare, sink)[0][..., 0]
        assert bool(((moved - share).abs() <= off).all())
        assert float(((moved - share).abs() / off).min()) > 0.9
    assert float(kept_share(torch.zeros(1), torch.zeros(1), torch.tensor(-math.inf))[0]) == 1.0


def test_the_largest_visible_value() -> None:
    """By its 2-norm, in each row; 0 where nothing is visible."""
    tensors = logical(AttendCase(Tq=2, Tk=3, D=4, causal="top_left", v="level:2.0"), "fp32")
    tensors.v[0, 0, 1] *= 3
    assert largest_norm(tensors).tolist() == [[[4.0, 12.0]]]
    nothing = logical(AttendCase(Tq=2, Tk=0, D=4), "fp32")
    assert largest_norm(nothing).tolist() == [[[0.0, 0.0]]]


# Integers


@pytest.mark.parametrize("seed", range(5))
def test_integer_masses_are_the_exact_ones(seed: int) -> None:
    """Sums agree with rational arithmetic; their quotient is correctly rounded."""
    g = torch.Generator().manual_seed(seed)
    masses = torch.randint(1, 17, (1, 1, 9), generator=g)
    v = torch.randint(-9, 10, (1, 1, 9, 3), generator=g)
    seen = torch.randint(0, 3, (1, 1, 4, 9), generator=g) > 0
    seen[0, 0, 0] = False
    sums, total = mass_sums(masses, v, seen)
    rows, exact = integer_mass_attention(masses[0, 0].expand(4, 9), v[0, 0], seen[0, 0])
    assert [int(x) for x in total.flatten()] == [int(x) for x in exact]
    assert torch.equal((sums / total.clamp(min=1.0))[0, 0], as_tensor(rows))
    with pytest.raises(ValueError, match="too wide a range"):
        mass_sums(masses * 2**50, v, seen)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "e4m3"])
def test_scores_that_are_logarithms_of_integers(dtype: str) -> None:
    """The integers are read back, and what the scores' rounding does is known."""
    case = AttendCase(Hq=2, Tq=3, Tk=12, D=4, q="first:2.0", k="logs:5:8", v="lattice:2:3")
    tensors = logical(case, dtype)
    assert not bool(tensors.k[..., 1:].double().any())
    masses = tensors.k[..., 0].double().exp()
    if dtype != "e4m3":
        assert set(masses.round().flatten().tolist()) <= set(range(1, 9))
        torch.testing.assert_close(masses, masses.round(), rtol=0.01, atol=0.01)
    seen = torch.ones(1, 2, 3, 12, dtype=torch.bool)
    sums, total, moved = rational(tensors, seen)
    out, _ = truth(replace(tensors, **{n: getattr(tensors, n).double() for n in "qkv"}))
    torch.testing.assert_close((out - sums / total).abs(), moved, rtol=1e-6, atol=1e-12)
    assert float(moved.max()) < {"fp32": 1e-6, "fp16": 2e-3, "bf16": 2e-2, "e4m3": 0.3}[dtype]


def test_logs_are_a_recipe() -> None:
    """log n in column 0, for n in 1..m; other seeds give other integers."""
    shape = (1, 1, 200, 3)
    k = content("logs:1:5", shape, AttendCase(), "fp32")
    assert sorted(k[..., 0].double().exp().round().unique().tolist()) == [1, 2, 3, 4, 5]
    assert not bool(k[..., 1:].any())
    assert not torch.equal(k, content("logs:2:5", shape, AttendCase(), "fp32"))


# Edges, and calls between


def test_the_edges_of_tiles() -> None:
    """One and two tiles of each size, one less and one more, and the longest there is."""
    assert list(edges((16,), 1, 40)) == [15, 16, 17, 31, 32, 33, 40]
    assert list(edges((4, 16), 5, 20)) == [5, 7, 8, 9, 15, 16, 17, 20]
    assert list(edges((1,), 1, 3)) == [1, 2, 3]
    square, flat = AttendCase(Tq=9, Tk=9), AttendCase(Tq=3, Tk=9)
    assert up_to(square, 5) == AttendCase(Tq=5, Tk=5)
    assert up_to(flat, 2) == AttendCase(Tq=2, Tk=2)
    ragged = replace(flat, lengths=(9, 9), B=2)
    assert up_to(ragged, 5) == replace(ragged, lengths=(5, 5))


def test_the_calls_between_change_everything_but_the_shape() -> None:
    """Every recipe has another seed, every length is another; no feature is lost or gained."""
    case = AttendCase(
        B=2, Hq=2, Tq=3, Tk=7, lengths=(4, 7), mask="keep:1:50:qk", alibi="standard",
        bias="random:1:2.0:k", sink_logits="random:2:1.5", **GENERIC,
    )  # fmt: skip
    other = other_content(case)
    assert other.shape == case.shape
    assert other.lengths == (5, 0)
    assert (other.mask, other.alibi, other.q) == ("keep:1001:50:qk", "hashed:1", "random:1001")
    assert (other.bias, other.sink_logits) == ("random:1001:2.0:k", "random:1002:1.5")
    assert reseeded("zeros") == "zeros"
    first, second = (logical(c, "fp32") for c in (case, other))
    for a, b in ((first.q, second.q), (first.v, second.v)):
        assert not bool((a == b).all())


def test_every_declared_dtype_is_called_between() -> None:
    """The second dtype's answer is judged in its own budget, and a wrong one is told."""
    seen: list[torch.dtype] = []

    def kernel(call: AttendCall) -> AttendResult:
        seen.append(call.q.dtype)
        answer = right(call)
        return replace(answer, out=answer.out * (1.1 if call.q.dtype == torch.bfloat16 else 1.0))

    case = AttendCase(Tk=5, **GENERIC)
    subject = toy(kernel, dtype="fp16")
    outcome = run("attention.second_call", subject, case)
    assert outcome.record.kind == "WrongValue"
    assert seen == [torch.float16] * 3 + [torch.bfloat16]
    assert outcome.record.launches == 3
    alone = toy(kernel, dtype="fp16", dtypes=("fp16",))
    assert run("attention.second_call", alone, case).record.status == "passed"
    assert alone.launches == 4


def test_another_stream_waits_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the calls between run on a stream of their own, in order with all around them."""
    told: list[str] = []

    class Stream:
        def __init__(self, name: str = "another") -> None:
            self.name = name

        def wait_stream(self, other: "Stream") -> None:
            told.append(f"{self.name} waits for {other.name}")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("the first"))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext(told.append("in it")))
    subject = toy()
    with elsewhere(subject):
        pass
    assert not told
    subject.device = "cuda"
    with elsewhere(subject):
        told.append("the call")
    before, after = "another waits for the first", "the first waits for another"
    assert told == [before, "in it", "the call", after]


def test_without_scoring() -> None:
    """The parts named are left out, the others stay."""
    tensors = logical(AttendCase(Tk=3, softcap=2.0, bias="level:1.0"), "fp32")
    scoring = without_scoring(tensors, "bias").scoring
    assert (scoring.bias, scoring.softcap) == (None, 2.0)


DIFFER = ("Different", "NonDeterministic")


def test_conventions_of_bits_are_asked_for_where_declared() -> None:
    """A kernel that differs in the last bit passes unless it declares that no bit differs."""

    def jitters(call: AttendCall) -> AttendResult:
        answer = right(call)
        nudge = torch.nextafter(answer.out, torch.randn_like(answer.out))
        return replace(answer, out=torch.where(answer.out == 0, answer.out, nudge))

    for law in ("attention.head_independence", "attention.padding", "alignment.corner_is_mask"):
        subject = toy(jitters, conventions=Conventions())
        assert run(law, subject).record.status == "passed"
        record = run(law, toy(jitters, conventions=INVARIANT)).record
        if law == "alignment.corner_is_mask":  # a mask is another feature, and may be another path
            assert record.status == "passed"
        else:
            assert record.kind in DIFFER
