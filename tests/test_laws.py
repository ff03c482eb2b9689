"""Each law catches a kernel that breaks it, with the right kind of failure, and no right one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_laws_relations import MINE as RELATED
from toy_kernels import INVARIANT, REFERENCE, UNDECLARED, hide, only, right, toy, without_tail

from kernelassay.impls.calls import check_attend, refuse_unsupported
from kernelassay.impls.contract import AttendCall, AttendResult, Conventions, Scoring
from kernelassay.oracle.visibility import visible
from kernelassay.properties.case import AttendCase
from kernelassay.properties.engine import Options, Outcome, check
from kernelassay.properties.laws.alignment import spans
from kernelassay.properties.laws.conduct import malformed_call
from kernelassay.properties.property import select
from kernelassay.properties.subject import Subject

LAWS = {p.name: p for p in select()}
GENERIC = {"q": "random:1", "k": "random:2", "v": "random:3"}


def run(name: str, subject: Subject, case: AttendCase | None = None, seed: int = 0) -> Outcome:
    """A law at the smoke level, or on one case."""
    return check(LAWS[name], subject, Options(case=case, shrink=False, seed=seed))


def checking(call: AttendCall) -> AttendResult:
    check_attend(call)
    return right(call)


@pytest.mark.parametrize("name", [n for n, p in LAWS.items() if p.operation == "attend"])
def test_a_right_kernel_passes(name: str) -> None:
    """Every law holds for the plain kernel, or does not apply to it; in two dtypes in turn."""
    dtype = ("fp32", "bf16")[[*LAWS].index(name) % 2]
    subject = toy(checking, dtype=dtype, head_sizes=(64, 80))
    applies = name != "attention.declines" and LAWS[name].here(subject) is None
    record = run(name, subject).record
    assert record.status == ("passed" if applies else "not_applicable"), record.reason
    assert record.worst is None or record.worst < 1


@pytest.mark.parametrize("name", LAWS)
def test_a_kernel_that_declares_least_passes(name: str) -> None:
    """With nothing but attention declared, laws hold or say why they do not run."""
    subject = toy(head_sizes=(64,))
    subject.kernel.capabilities = only(layouts=("BTHD",))
    status = run(name, subject).record.status
    assert status in ("passed", "undeclared", "not_applicable")


def scaled(factor: float) -> Callable[[AttendCall], AttendResult]:
    def kernel(call: AttendCall) -> AttendResult:
        answer = right(call)
        return replace(answer, out=answer.out * factor)

    return kernel


def no_maximum(call: AttendCall) -> AttendResult:
    """exp of the scores as they are."""
    q, k, v = (x.float() for x in (call.q, call.k, call.v))
    group = call.q.shape[1] // call.k.shape[1]
    z = call.softmax_scale * q @ k.repeat_interleave(group, 1).mT
    shape = (*call.q.shape[:3], call.k.shape[2])
    p = torch.where(visible(call.visibility, shape), z.exp(), 0.0)
    out = p @ v.repeat_interleave(group, 1) / p.sum(-1, keepdim=True)
    return AttendResult(out.to(call.q.dtype), p.sum(-1).log())


def wrong_lse(call: AttendCall) -> AttendResult:
    answer = right(call)
    assert answer.lse is not None
    return replace(answer, lse=answer.lse + 0.01)


def _empty(call: AttendCall) -> torch.Tensor:
    answer = right(call)
    assert answer.lse is not None
    return torch.isneginf(answer.lse)


def empty_rows_are(out: float, lse: float = -math.inf) -> Callable[[AttendCall], AttendResult]:
    """What a row that sees no key gets."""

    def kernel(call: AttendCall) -> AttendResult:
        answer, empty = right(call), _empty(call)
        assert answer.lse is not None
        return AttendResult(
            answer.out.masked_fill(empty[..., None], out), answer.lse.masked_fill(empty, lse)
        )

    return kernel


def reads_unseen(call: AttendCall) -> AttendResult:
    """0 x what is under the mask, which is NaN where that is NaN."""
    answer = right(call)
    leak = (0.0 * call.v.float()).sum(2, keepdim=True)
    leak = leak.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
    return replace(answer, out=answer.out + leak.to(answer.out.dtype))


def other_heads(call: AttendCall) -> AttendResult:
    """Query head h uses KV head h mod Hkv."""
    Hq, Hkv = call.q.shape[1], call.k.shape[1]
    use = torch.arange(Hq) % Hkv
    return right(replace(call, k=call.k[:, use], v=call.v[:, use]))


def without_scoring(call: AttendCall) -> AttendResult:
    return right(replace(call, scoring=Scoring()))


def first_request_for_all(call: AttendCall) -> AttendResult:
    return right(replace(call, v=call.v[:1].expand_as(call.v)))


def mixes_rows(call: AttendCall) -> AttendResult:
    answer = right(call)
    return replace(answer, out=answer.out + 1e-3 * call.q.mean(2, keepdim=True))


def assumes_contiguous(call: AttendCall) -> AttendResult:
    """Reads q as if its rows followed one another."""
    b, h, _, _ = call.q.stride()
    flat = call.q.as_strided(call.q.shape, (b, h, call.q.shape[3], 1))
    return right(replace(call, q=flat))


def writes_inputs(call: AttendCall) -> AttendResult:
    answer = right(call)
    call.k.mul_(2.0)
    return answer


def _allocated(call: AttendCall) -> AttendResult:
    answer = right(call)
    assert answer.lse is not None
    out, lse = torch.empty_like(answer.out), torch.empty_like(answer.lse)
    out.copy_(answer.out)
    lse.copy_(answer.lse)
    return AttendResult(out, lse)


def writes_past_the_end(call: AttendCall) -> AttendResult:
    answer = _allocated(call)
    answer.out.as_strided((1,), (1,), answer.out.storage_offset() + answer.out.numel()).fill_(0)
    return answer


def leaves_rows(call: AttendCall) -> AttendResult:
    answer = right(call)
    out = torch.empty_like(answer.out)
    rows = max(1, answer.out.shape[2] // 2 * 2)  # an odd last row is forgotten
    out[:, :, :rows] = answer.out[:, :, :rows]
    return replace(answer, out=out)


class OneBuffer:
    """Noise, and every answer in the memory of the one before."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, ...], AttendResult] = {}

    def __call__(self, call: AttendCall) -> AttendResult:
        """The held answer, with new content."""
        made = noise(call)
        kept = self.held.setdefault(tuple(call.q.shape), made)
        kept.out.copy_(made.out)
        return kept


def noise(call: AttendCall) -> AttendResult:
    answer = right(call)
    return replace(answer, out=answer.out * (1 + 1e-7 * torch.randn_like(answer.out)))


def top_left(call: AttendCall) -> AttendResult:
    see = call.visibility
    if see.causal != "bottom_right":
        return right(call)
    return right(replace(call, visibility=replace(see, causal="top_left")))


def no_corner_when_decoding(call: AttendCall) -> AttendResult:
    """A single query sees one key too few."""
    if call.q.shape[2] > 1 or call.visibility.causal == "none":
        return right(call)
    return right(hide(call, torch.arange(call.k.shape[2]) < call.k.shape[2] - 1))


def no_corner_in_first_chunk(call: AttendCall) -> AttendResult:
    """Causality is forgotten where queries are few, as in a short chunk."""
    if not 1 < call.q.shape[2] < 4:
        return right(call)
    return right(replace(call, visibility=replace(call.visibility, causal="none")))


def sees_the_future(call: AttendCall) -> AttendResult:
    return right(replace(call, visibility=replace(call.visibility, causal="none")))


PLAIN = replace(REFERENCE.conventions, deterministic=False)
BROKEN: dict[str, tuple[str, Callable[[AttendCall], AttendResult], dict[str, Any], str]] = {
    "scaled": ("attention.value", scaled(1.2), {}, "WrongValue"),
    "a little scaled": ("attention.value", scaled(1 + 2.0**-19), {}, "Imprecise"),
    "tail": ("attention.value", without_tail, {"tiles": (16,)}, "WrongValue"),
    "heads": ("attention.value", other_heads, {}, "WrongValue"),
    "no score terms": ("attention.score_terms", without_scoring, {}, "WrongValue"),
    "no maximum": ("attention.extreme_scores", no_maximum, {}, "NonFinite"),
    "lse": ("attention.lse", wrong_lse, {}, "WrongValue"),
    "no maximum, lse": ("attention.lse", no_maximum, {}, "NonFinite"),
    "counting": ("attention.exact_counting", scaled(1 + 2.0**-23), {}, "WrongValue"),
    "dyadic": ("attention.exact_dyadic", scaled(1 + 2.0**-12), {}, "WrongValue"),
    "empty rows": ("attention.empty_rows", empty_rows_are(1.0), {}, "WrongValue"),
    "empty rows of NaN": ("attention.empty_rows", empty_rows_are(math.nan), {}, "NonFinite"),
    "empty LSE": ("attention.empty_rows", empty_rows_are(0.0, math.inf), {}, "WrongValue"),
    "finite empty LSE": ("attention.empty_rows", empty_rows_are(0.0, -1e30), {}, "WrongValue"),
    "NaN empty LSE": ("attention.empty_rows", empty_rows_are(0.0, math.nan), {}, "WrongValue"),
    "unseen": ("attention.unseen_content", reads_unseen, {"conventions": INVARIANT}, "Different"),
    "unseen, by budget": (
        "attention.unseen_content", reads_unseen, {}, "NonFinite",
    ),
    "grouped": ("attention.grouped_heads", other_heads, {}, "WrongValue"),
    "grouped, bitwise": (
        "attention.grouped_heads", other_heads, {"conventions": INVARIANT}, "Different",
    ),
    "batch": ("attention.batch_independence", first_request_for_all, {}, "WrongValue"),
    "batch, bitwise": (
        "attention.batch_independence", first_request_for_all, {"conventions": INVARIANT},
        "Different",
    ),
    "rows": ("attention.row_independence", mixes_rows, {"conventions": INVARIANT}, "Different"),
    "rows, by budget": (
        "attention.row_independence", mixes_rows, {"conventions": PLAIN}, "WrongValue",
    ),
    "views": (
        "attention.views", assumes_contiguous, {"conventions": INVARIANT}, "Different",
    ),
    "inputs": ("attention.memory", writes_inputs, {}, "InputMutated"),
    "guards": ("attention.memory", writes_past_the_end, {}, "OutOfBounds"),
    "unwritten": ("attention.memory", leaves_rows, {}, "NotWritten"),
    "noise": ("attention.deterministic", noise, {}, "NonDeterministic"),
    "noise in one buffer": ("attention.deterministic", OneBuffer(), {}, "NonDeterministic"),
    "declined": ("attention.declines", right, {"declines": {"window"}}, "Accepted"),
    "visible set": ("alignment.visible_set", top_left, {}, "WrongValue"),
    "corner": ("alignment.causal_corner", top_left, {}, "WrongValue"),
    "decode": ("alignment.decode_is_last_row", no_corner_when_decoding, {}, "WrongValue"),
    "chunks": ("alignment.chunked_is_whole", no_corner_in_first_chunk, {}, "WrongValue"),
    "chunks, bitwise": (
        "alignment.chunked_is_whole", no_corner_in_first_chunk, {"conventions": INVARIANT},
        "Different",
    ),
    "future": ("alignment.no_future", sees_the_future, {"conventions": INVARIANT}, "Different"),
    "future, by budget": (
        "alignment.no_future", sees_the_future, {"conventions": PLAIN}, "WrongValue",
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_caught(name: str, seed: int) -> None:
    """At the smoke level, whatever the seed, with the kind that says what is wrong."""
    law, kernel, declared, kind = BROKEN[name]
    if "declines" in declared:
        declared = {**declared, "supports": REFERENCE.supports - declared["declines"]}
    record = run(law, toy(kernel, **{"head_sizes": (64,), **declared}), seed=seed).record
    assert record.status == "failed", record.reason
    assert kind in (record.kind, *record.also), record.reason


def test_every_law_is_broken_by_some_kernel() -> None:
    """The table above leaves out no law but those with tests of their own."""
    elsewhere = {"attention.validates", "attention.far_offsets", *RELATED}
    elsewhere |= {
        p.name for p in select("merging", "paged", "speculative", "logits", "transactions")
    }  # their mutants break them
    assert {law for law, *_ in BROKEN.values()} == set(LAWS) - elsewhere


def test_strides_of_31_bits_are_caught() -> None:
    """A kernel that loses the high bits of a stride finds another request's keys."""

    def narrow(call: AttendCall) -> AttendResult:
        strides = [n % 2**31 for n in call.k.stride()]
        return right(replace(call, k=call.k.as_strided(call.k.shape, strides)))

    subject = toy(narrow, dtype="bf16", head_sizes=(64,))
    if why := LAWS["attention.far_offsets"].here(subject):
        pytest.skip(why)
    record = run("attention.far_offsets", subject).record
    assert (record.status, record.kind) == ("failed", "WrongValue")


@pytest.mark.parametrize("which", range(6))
def test_each_malformed_call_is_noticed_when_answered(which: int) -> None:
    """A kernel that answers a malformed call, whichever, is caught; one that raises passes."""

    def answers(call: AttendCall) -> AttendResult:
        return AttendResult(torch.zeros(1), torch.zeros(1))

    case = AttendCase(Tq=3, Tk=5, at=which, **GENERIC)
    outcome = run("attention.validates", toy(answers), case)
    assert outcome.record.kind == "Accepted"
    assert "answered a malformed call: " in outcome.record.reason
    assert run("attention.validates", toy(checking), case).record.status == "passed"


def test_malformed_calls_differ_and_are_malformed() -> None:
    """Six ways to spoil a call, each told in words, each refused by a kernel that checks."""
    call = toy().prepare(AttendCase(Tq=3, Tk=5, **GENERIC)).call
    check_attend(call)
    told = set()
    for which in range(6):
        what, bad = malformed_call(call, which)
        told.add(what)
        with pytest.raises((ValueError, IndexError)):
            check_attend(bad)
    assert len(told) == 6
    assert malformed_call(call, 6)[0] == malformed_call(call, 0)[0]


def test_a_declined_feature_is_refused_one_by_one() -> None:
    """A kernel that refuses what it declines passes, each of the features asked for in turn."""
    declines = frozenset({"window", "lengths", "mask", "causal.top_left", "gqa"})
    subject = toy(supports=REFERENCE.supports - declines, declines=declines)
    capabilities = subject.capabilities

    def refusing(call: AttendCall) -> AttendResult:
        refuse_unsupported("toy", capabilities, call)
        return right(call)

    subject.kernel.run = refusing
    assert run("attention.declines", subject).record.status == "passed"
    for feature, fields in (
        ("window", {"window": (1, 0)}), ("mask", {"mask": "keep:1:50:k"}), ("gqa", {"Hq": 2}),
    ):  # fmt: skip
        case = AttendCase(Tq=4, Tk=4, **GENERIC, **fields)  # type: ignore[arg-type]
        subject.kernel.run = right
        outcome = run("attention.declines", subject, case)
        assert outcome.record.kind == "Accepted"
        assert f"needs {feature}, which it declines" in outcome.record.reason
        subject.kernel.run = refusing
        assert run("attention.declines", subject, case).record.status == "passed"


def base_2(call: AttendCall) -> AttendResult:
    answer = right(call)
    assert answer.lse is not None
    return replace(answer, lse=answer.lse / math.log(2))


def inverted(call: AttendCall) -> AttendResult:
    """A mask's True drops."""
    see = call.visibility
    if see.mask is None:
        return right(call)
    return right(replace(call, visibility=replace(see, mask=~see.mask)))


CONVENTIONS: dict[str, tuple[Callable[[AttendCall], AttendResult], dict[str, Any], str]] = {
    "LSE in base 2": (base_2, {"lse_base": "2"}, "attention.lse"),
    "LSE in base 2, read off": (base_2, {"lse_base": "2"}, "attention.extreme_scores"),
    "NaN for empty rows": (empty_rows_are(math.nan), {"empty_row": "nan"}, "attention.empty_rows"),
    "LSE of +inf": (empty_rows_are(0.0, math.inf), {"empty_lse": "+inf"}, "attention.empty_rows"),
    "anything": (empty_rows_are(7.0), {"empty_row": "undefined"}, "attention.empty_rows"),
    "any LSE": (empty_rows_are(0.0, 7.0), {"empty_lse": "undefined"}, "attention.empty_rows"),
    "masks that drop": (inverted, {"mask_polarity": "drop"}, "alignment.visible_set"),
    "leaks under a mask": (
        reads_unseen, {"masked_content": "finite_only"}, "attention.unseen_content",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVENTIONS)
def test_conventions_are_right_where_declared_and_faults_elsewhere(name: str) -> None:
    """Each convention passes when declared, and is caught when it is not."""
    kernel, declared, law = CONVENTIONS[name]
    base = {"head_sizes": (64,)}
    if name == "leaks under a mask":  # beyond a length NaN may not leak whatever is declared
        base["supports"] = REFERENCE.supports - {"lengths"}  # type: ignore[assignment]
    conventions = replace(REFERENCE.conventions, **declared)
    record = run(law, toy(kernel, conventions=conventions, **base)).record
    assert record.status == "passed", record.reason
    assert run(law, toy(kernel, **base)).record.status == "failed"


def test_what_is_beyond_a_length_may_never_leak() -> None:
    """NaN beyond a length is a fault also where NaN under a mask is not."""
    conventions = Conventions(masked_content="finite_only")
    case = AttendCase(Tk=5, lengths=(3,), **GENERIC)
    subject = toy(reads_unseen, conventions=conventions)
    assert run("attention.unseen_content", subject, case).record.kind == "NonFinite"
    case = replace(case, lengths=None, mask="prefix:3")
    assert run("attention.unseen_content", subject, case).record.status == "passed"


def test_undeclared_conventions_do_not_ask_for_equal_bits() -> None:
    """A kernel that differs in the last bit from run to run passes the metamorphic laws."""

    def jitters(call: AttendCall) -> AttendResult:
        answer = right(call)
        nudge = torch.nextafter(answer.out, torch.randn_like(answer.out))
        return replace(answer, out=torch.where(answer.out == 0, answer.out, nudge))

    for law in ("attention.grouped_heads", "attention.row_independence", "alignment.no_future"):
        subject = toy(jitters, conventions=UNDECLARED)
        subject.numerics = replace(subject.numerics, div_u=2.0**-22)  # a bit of four
        record = run(law, subject).record
        assert record.status == "passed", record.reason
        if law != "attention.grouped_heads":
            subject = toy(jitters, conventions=INVARIANT)
            assert run(law, subject).record.kind in ("Different", "NonDeterministic")


VISIBLE: dict[str, tuple[Callable[[AttendCall], AttendResult], AttendCase, str]] = {
    "too few": (
        top_left, AttendCase(Tq=2, Tk=9, causal="bottom_right"),
        "request 0, head 0, query 0 must see 8 of 9 keys; it does not see keys 1-7",
    ),
    "too many": (
        sees_the_future, AttendCase(Tq=3, Tk=9, causal="top_left"),
        "query 0 must see 1 of 9 keys; it also sees keys 1-8",
    ),
    "a tail": (
        without_tail, AttendCase(Tk=17), "must see 17 of 17 keys; it does not see key 16",
    ),
    "both": (
        inverted, AttendCase(Tk=4, mask="prefix:1"),
        "must see 1 of 4 keys; it also sees keys 1-3, it does not see key 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VISIBLE)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_keys_wrongly_seen_are_named(name: str, dtype: str) -> None:
    """The message tells row, expected number, and which keys are seen or not seen wrongly."""
    kernel, case, words = VISIBLE[name]
    record = run("alignment.visible_set", toy(kernel, dtype=dtype), case).record
    assert record.kind == "WrongValue"
    assert words in record.reason


def test_keys_are_read_in_parts_where_they_are_many() -> None:
    """More keys than one output row can spell take several launches; each must be right."""

    def loses_one(call: AttendCall) -> AttendResult:
        return right(hide(call, torch.arange(call.k.shape[2]) != 90))

    def forgets_a_value(call: AttendCall) -> AttendResult:
        """Key 90 has its weight, and a value of zero."""
        v = call.v.clone()
        v[:, :, 90] = 0.0
        return right(replace(call, v=v))

    case = AttendCase(Tk=100, D=8)
    subject = toy(loses_one, dtype="fp16")
    record = run("alignment.visible_set", subject, case).record
    assert "must see 100 of 100 keys; its weights are not 1/100 each" in record.reason
    outcome = run("alignment.visible_set", toy(forgets_a_value, dtype="fp16"), case)
    assert "must see 100 of 100 keys; it does not see key 90" in outcome.record.reason
    assert outcome.record.launches == 2
    assert run("alignment.visible_set", toy(dtype="fp16"), case).record.launches == 2


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([3], "key 3"), ([3, 4], "keys 3-4"), ([0, 2, 3, 9], "keys 0, 2-3, 9"),
        (list(range(0, 40, 2)), "keys 0, 2, 4, 6, 8, 10 and 14 more runs"),
    ],
)  # fmt: skip
def test_spans(keys: list[int], text: str) -> None:
    """Runs of keys are shown as ranges, at most six of them."""
    assert spans(keys) == text


def test_the_place_of_a_wrong_value_is_told() -> None:
    """Tensor, index, got, expected, allowed and how many elements are wrong."""

    def one_element(call: AttendCall) -> AttendResult:
        answer = right(call)
        answer.out[0, 0, 1, 3] += 0.5
        return answer

    case = AttendCase(Tq=2, Tk=5, **GENERIC)
    outcome = run("attention.value", toy(one_element), case)
    assert outcome.found is not None
    failure = outcome.found.failure
    place = failure.place
    assert place is not None
    assert (place.tensor, place.index, place.wrong, place.total) == ("out", (0, 0, 1, 3), 1, 128)
    assert place.got - place.expected == pytest.approx(0.5, abs=2**-20)
    assert failure.ratio == pytest.approx(abs(place.got - place.expected) / place.allowed)
    assert "differs from the float64 oracle by" in failure.message


def test_a_bias_too_small_for_any_element_is_seen_on_average() -> None:
    """Every element within its budget, and all of them off to one side: Imprecise."""

    def biased(call: AttendCall) -> AttendResult:
        answer = right(call)
        return replace(answer, out=answer.out + 0.6 * budget_allowed(call, answer))

    case = AttendCase(Tq=32, Tk=64, **GENERIC)
    record = run("attention.value", toy(biased), case).record
    assert record.kind == "Imprecise"
    assert record.worst is not None
    assert record.z_rms is not None
    assert record.z_rms > 1.1
    assert run("attention.value", toy(), case).record.z_rms < 1.0  # type: ignore[operator]


def budget_allowed(call: AttendCall, answer: AttendResult) -> torch.Tensor:
    """The error that the suite allows for each element of this call."""
    from kernelassay.oracle.budget import attention_budget

    shape = (*call.q.shape[:3], call.k.shape[2])
    budget = attention_budget(
        call.q, call.k, call.v, call.softmax_scale, visible(call.visibility, shape),
        toy().numerics, generic=True,
    )  # fmt: skip
    return budget.out_allowed.to(answer.out.dtype)
