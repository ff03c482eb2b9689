"""The engine: levels, shrinking, kinds of failure, statuses, limits, and the host left alone."""

import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from toy_kernels import REFERENCE, Toy, hide, only, right, toy, without_tail

from kernelassay.impls.contract import (
    FEATURES,
    OPERATIONS,
    AttendCall,
    AttendResult,
    Numerics,
    Unsupported,
)
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase, case_from, case_id
from kernelassay.properties.engine import LEVELS, Options, Outcome, check
from kernelassay.properties.expectations import Expectations
from kernelassay.properties.failures import DeviceLost, TimedOut, WrongValue
from kernelassay.properties.property import REGISTRY, Property, law, offered, select
from kernelassay.properties.subject import Subject

LAWS = {p.name: p for p in select()}
VALUE = LAWS["attention.value"]
GENERIC = AttendCase(Tq=2, Tk=20, q="random:1", k="random:2", v="random:3")


def counted(body: Callable[[Subject, AttendCase], None], **changes: Any) -> Property:
    """The value law with another body, over two strata."""
    strata = {"random_content": s.random_content, "plain": s.plain}
    return replace(VALUE, body=body, **{"strata": strata, **changes})


def run(kernel: Callable[[AttendCall], Any], prop: Property = VALUE, **options: Any) -> Outcome:
    """The outcome of a law on a kernel of a few lines, tiles of 16, D = 64."""
    return check(prop, toy(kernel, tiles=(16,), head_sizes=(64,)), Options(**options))


def fails(subject: Subject, case: AttendCase) -> None:
    raise WrongValue("always", ratio=9.0)


def passes(subject: Subject, case: AttendCase) -> None:
    pass


@pytest.mark.parametrize("level", ["smoke", "pr"])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_levels_deal_their_number_of_cases(level: str, weight: float) -> None:
    """20 cases at smoke and 100 at pr, dealt over the strata, fewer for laws of less weight."""
    record = run(right, counted(passes, weight=weight), level=level).record
    assert record.status == "passed"
    assert record.cases == {"smoke": 20, "pr": 100}[level] * weight
    assert record.labels["plain"] == record.cases
    assert record.labels["random_content"] >= record.cases // 2


def test_levels_are_known() -> None:
    """An unknown level is an error that lists the known ones."""
    assert LEVELS == {"smoke": 20, "pr": 100, "nightly": 1000, "replay": 0}
    with pytest.raises(ValueError, match="level: got 'quick', expected one of smoke, pr"):
        Options(level="quick")


def test_each_stratum_gets_a_case_however_many_there_are() -> None:
    """More strata than cases: one case each."""
    prop = counted(passes, weight=0.05)
    assert run(right, prop).record.cases == 2


def test_on_case_hears_of_every_case_before_it_runs() -> None:
    """A watchdog outside knows which case is running."""
    heard: list[AttendCase] = []
    seen: list[AttendCase] = []

    def body(subject: Subject, case: AttendCase) -> None:
        assert heard[-1] is case
        assert subject.current is case
        seen.append(case)

    check(counted(body, weight=1.0), toy(), Options(), on_case=heard.append)
    assert len(seen) == 20


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_dropped_tail_tile_shrinks_to_a_case_of_one_screen(seed: int) -> None:
    """A kernel that leaves out a partial last tile of 16 fails on one row over 17 keys."""
    outcome = run(without_tail, LAWS["attention.value"], seed=seed)
    record = outcome.record
    assert (record.status, record.kind) == ("failed", "WrongValue")
    assert outcome.found is not None
    case = outcome.found.case
    assert (case.B, case.Hq, case.Hkv, case.Tq, case.Tk) == (1, 1, 1, 1, 17)
    assert (case.lengths, case.mask, case.window) == (None, None, (None, None))


def test_a_failing_record_is_complete() -> None:
    """The record of a failure names kind, ratio, case, id, and how long it took to find."""
    outcome = run(without_tail, seed=0)
    record, search = outcome.record, outcome.search
    assert (record.law, record.family) == ("attention.value", "attention")
    assert (record.kernel, record.dtype, record.device) == ("toy", "fp32", "cpu")
    assert (record.level, record.seed) == ("smoke", 0)
    assert record.case is not None
    assert outcome.found is not None
    assert case_from(record.case) == outcome.found.case
    assert record.case_id == case_id("attention.value", outcome.found.case)
    assert record.ratio == outcome.found.failure.ratio
    assert record.ratio is not None
    assert record.ratio > 8
    assert outcome.found.failure.facts["case"] == outcome.found.case
    assert record.to_first is not None
    assert 1 <= record.to_first <= record.cases
    assert record.cases == search.cases == record.launches
    assert search.first is not None
    assert search.worst is not None
    assert search.worst[0] >= record.ratio
    assert search.failing_runs > 1
    assert record.worst == search.worst[0]
    assert record.watched == ["opaque"]
    assert record.seconds > 0
    assert record.labels["partial_tile"] > 0
    assert record.numerics_declared
    assert record.item == "attention.value-toy-fp32-cpu"


def test_a_passing_record_tells_how_close_it_was() -> None:
    """The worst error over allowed error of a right kernel is between 0 and 1."""
    record = run(right).record
    assert record.status == "passed"
    assert record.worst is not None
    assert 0 < record.worst < 1
    assert record.kind is None
    assert record.case is None
    assert record.traceback is None


def test_without_shrinking_the_first_failure_is_kept() -> None:
    """Mutants run without the shrink phase: few executions, the case as it was found."""
    outcome = run(without_tail, shrink=False)
    assert outcome.found is not None
    assert outcome.search.failing_runs <= 3
    assert outcome.found.case == outcome.search.first
    assert outcome.record.to_first is not None


def test_two_faults_are_told_apart() -> None:
    """NaN in one place, imprecision in another: the grosser is the kind, the other is listed."""

    def both(call: AttendCall) -> AttendResult:
        answer = right(call)
        if call.q.shape[2] > 1:
            answer.out[..., 0] = torch.nan
            return answer
        return replace(answer, out=answer.out * (1 + 2.0**-18))

    prop = replace(VALUE, strata={"plain": s.plain})
    record = run(both, prop, level="pr", seed=3).record
    assert (record.kind, record.also) == ("NonFinite", ["Imprecise"])


def flipping(call: AttendCall, state: list[int]) -> AttendResult:
    """Wrong on the third call alone."""
    state[0] += 1
    answer = right(call)
    return replace(answer, out=answer.out * 2) if state[0] == 3 else answer


@pytest.mark.parametrize("shrink", [True, False])
def test_a_kernel_that_fails_at_random_is_not_deterministic(shrink: bool) -> None:
    """Never an error of Hypothesis': the kind says what is wrong, and a case is named."""
    state = [0]
    prop = replace(VALUE, strata={"random_content": s.random_content})
    outcome = run(lambda call: flipping(call, state), prop, shrink=shrink)
    assert (outcome.record.status, outcome.record.kind) == ("failed", "NonDeterministic")
    assert outcome.record.case is not None
    assert "failed and then held" in outcome.record.reason


@pytest.mark.parametrize("seed", range(6))
def test_kernels_of_random_noise_end_in_a_verdict(seed: int) -> None:
    """Whatever a random kernel does, the outcome is a failure of the kernel, not of the suite."""
    generator = torch.Generator().manual_seed(seed)

    def noisy(call: AttendCall) -> AttendResult:
        answer = right(call)
        kind = int(torch.randint(0, 5, (), generator=generator))
        if kind == 0:
            answer.out.fill_(torch.nan)
        if kind == 1:
            return replace(answer, out=answer.out + 1)
        if kind == 2:
            raise RuntimeError("no luck")
        return answer

    record = run(noisy, seed=seed).record
    assert record.status == "failed"
    assert record.kind in ("NonDeterministic", "NonFinite", "WrongValue", "Raised")


def refuses(call: AttendCall) -> AttendResult:
    raise Unsupported("not today")


def raises(call: AttendCall) -> AttendResult:
    raise ZeroDivisionError("by zero\nand more")


MALFORMED_ANSWERS: dict[str, tuple[Callable[[AttendCall], Any], str, str]] = {
    "refused": (refuses, "Refused", "refused a call that it declares to support: not today"),
    "raised": (raises, "Raised", "toy raised ZeroDivisionError: by zero"),
    "shape": (
        lambda c: replace(right(c), out=right(c).out[:, :, :0]),
        "WrongShape", r"out: got shape \(1, 1, 0, 64\), expected \(1, 1, 1, 64\)",
    ),
    "lse shape": (
        lambda c: replace(right(c), lse=right(c).out), "WrongShape", "lse: got shape",
    ),
    "no lse": (lambda c: right(c).out, "WrongShape", "returned no LSE"),
    "dtype": (
        lambda c: replace(right(c), out=right(c).out.double()),
        "WrongDtype", "out: got dtype fp64, expected fp32",
    ),
    "lse dtype": (
        lambda c: replace(right(c), lse=right(c).out[..., 0].half()),
        "WrongDtype", "lse: got dtype fp16, expected fp32",
    ),
    "nothing": (lambda c: None, "WrongShape", "returned NoneType as out; expected a tensor"),
    "a list": (lambda c: [right(c).out], "WrongShape", "returned list as out"),
    "lse is no tensor": (lambda c: (right(c).out, 3), "WrongShape", "returned int as lse"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED_ANSWERS)
def test_malformed_answers_have_kinds_of_their_own(name: str) -> None:
    """Refusals, exceptions and malformed answers fail with their kind and what came."""
    kernel, kind, words = MALFORMED_ANSWERS[name]
    record = run(kernel).record
    assert (record.status, record.kind) == ("failed", kind)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(record.reason)


def test_tensors_and_tuples_are_answers() -> None:
    """A kernel without LSE may return a tensor, one with it a tuple."""
    subject = Subject(
        Toy(lambda c: right(c).out, capabilities=only("unequal_lengths"), numerics=None),
        "fp32", "cpu",
    )  # fmt: skip
    assert check(VALUE, subject).record.status == "passed"
    assert not subject.declared
    assert run(lambda c: (right(c).out, right(c).lse)).record.status == "passed"


def test_a_kernel_that_writes_into_outputs_is_watched_in_full() -> None:
    """Destination passing: poisoned, guarded outputs of the suite's own."""

    class Writes(Toy):
        def attend_into(self, call: AttendCall, out: torch.Tensor, lse: Any) -> None:
            answer = right(call)
            out.copy_(answer.out)
            lse.copy_(answer.lse)

    subject = Subject(Writes(), "fp32", "cpu")
    assert check(LAWS["attention.memory"], subject).record.status == "passed"
    assert subject.watched == {"destination"}


def test_a_case_past_its_limit_passes_through_with_its_case() -> None:
    """TimedOut is raised within the limit, is never shrunk, and carries the case."""
    runs: list[AttendCase] = []

    def body(subject: Subject, case: AttendCase) -> None:
        runs.append(case)
        until = time.perf_counter() + 20
        while time.perf_counter() < until:
            pass

    began = time.perf_counter()
    with pytest.raises(TimedOut, match=r"ran past its limit of 0\.2 s") as caught:
        run(right, counted(body), limit=0.2)
    assert time.perf_counter() - began < 5
    assert len(runs) == 1
    assert caught.value.args[-1] == runs[0]


def test_the_limit_is_taken_back() -> None:
    """No alarm is left behind, the host's handler is back, and a limit of 0 is none."""
    before = signal.getsignal(signal.SIGALRM)
    assert run(right, counted(passes), limit=0.0).record.status == "passed"
    assert run(right, counted(passes), limit=0.3).record.status == "passed"
    time.sleep(0.4)
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_lost_device_passes_through() -> None:
    """A sticky error of the device is no failure of one case."""

    def lost(call: AttendCall) -> AttendResult:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(DeviceLost, match="illegal memory access"):
        run(lost)


def test_a_fault_of_a_law_is_the_suites() -> None:
    """An exception in a law's body is a suite error with its traceback, not a failing kernel."""

    def body(subject: Subject, case: AttendCase) -> None:
        raise KeyError("the law's own mistake")

    record = run(right, counted(body)).record
    assert record.status == "suite_error"
    assert record.reason == 'KeyError: "the law\'s own mistake"'
    assert record.traceback is not None
    assert "in body" in record.traceback
    assert record.kind is None


def test_a_budget_that_is_no_number_is_the_suites_fault() -> None:
    """NaN allowed cannot be compared with: a suite error, never a pass."""
    from kernelassay.properties.judge import compare

    def body(subject: Subject, case: AttendCase) -> None:
        one = torch.ones(1, dtype=torch.float64)
        compare(subject, "out", one, one + 1, one * torch.nan, one > 0)

    assert run(right, counted(body)).record.status == "suite_error"


def test_a_stratum_without_its_label_is_the_suites_fault() -> None:
    """A label that should occur by construction and does not is an error."""
    prop = counted(passes, strata={"spike_rows": s.random_content})
    record = run(right, prop).record
    assert record.status == "suite_error"
    assert "no case of attention.value carries the label 'spike_rows'" in record.reason


def test_statuses_of_laws_that_do_not_run() -> None:
    """Declined, undeclared and not applicable are told apart, with the reason; nothing runs."""
    lse = LAWS["attention.lse"]
    supports = REFERENCE.supports - {"lse"}
    for declines, status, reason in (
        ({"lse"}, "declined", "declines lse"),
        ((), "undeclared", "declares nothing of lse"),
    ):
        subject = toy(supports=supports, declines=declines)
        record = check(lse, subject).record
        assert (record.status, record.reason, record.cases) == (status, reason, 0)
        assert subject.launches == 0
    bare = replace(REFERENCE.conventions, deterministic=False)
    record = check(LAWS["attention.deterministic"], toy(conventions=bare)).record
    assert record.status == "not_applicable"
    assert "Conventions.deterministic, which is not declared" in record.reason


@pytest.mark.parametrize(
    "name", ["attention.empty_rows", "alignment.no_future", "attention.unseen_content"]
)
def test_a_law_with_nothing_to_run_on_has_not_passed(name: str) -> None:
    """Where no stratum fits what is declared, that is said: 0 cases prove nothing."""
    every = frozenset(FEATURES) - {"attend"}
    for declines, status in ((frozenset[str](), "undeclared"), (every, "declined")):
        subject = Subject(Toy(capabilities=only(declines=declines), numerics=None), "fp32", "cpu")
        record = check(LAWS[name], subject).record
        assert (record.status, record.cases) == (status, 0)


def test_one_case_on_request() -> None:
    """With a case given, that case alone runs."""
    outcome = run(without_tail, case=replace(GENERIC, Tk=17))
    assert outcome.search.cases == 1
    assert (outcome.record.kind, outcome.record.to_first) == ("WrongValue", 1)
    outcome = run(without_tail, case=replace(GENERIC, Tk=32))
    assert (outcome.record.status, outcome.record.cases) == ("passed", 1)


def test_the_hosts_profile_is_left_alone() -> None:
    """No setting of the host's Hypothesis changes, and none of its settings changes a run."""
    before = (settings.get_current_profile_name(), repr(settings()))
    expected = run(without_tail).record
    settings.register_profile(
        "odd host", settings(max_examples=1, phases=[Phase.explicit], derandomize=True)
    )
    settings.load_profile("odd host")
    try:
        again = run(without_tail).record
    finally:
        settings.load_profile(before[0])
    assert (again.status, again.cases, again.case) == (
        expected.status, expected.cases, expected.case,
    )  # fmt: skip
    assert (settings.get_current_profile_name(), repr(settings())) == before


def test_the_global_random_state_is_left_alone() -> None:
    """A run draws nothing from torch's generator and leaves it where it was."""
    before = torch.random.get_rng_state()
    run(right)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_warnings_as_errors_do_no_harm(tmp_path: Path) -> None:
    """Neither a passing, a failing nor a nightly run warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(right).record.status == "passed"
        assert run(without_tail).record.status == "failed"
        record = run(fails, counted(fails), level="nightly", database=str(tmp_path)).record
        assert record.status == "failed"


def nightly(prop: Property, kernel: Any, path: Path, **options: Any) -> Outcome:
    return run(kernel, prop, level="nightly", database=str(path / "examples"), **options)


def late(subject: Subject, case: AttendCase) -> None:
    """Fails in the second stratum alone, on cases that take luck to meet."""
    if ";" in case.v and case.Tk > 20:
        raise WrongValue("found", ratio=9.0)


def test_nightly_replays_a_failure_at_once(tmp_path: Path) -> None:
    """What failed last night fails within two executions, whichever stratum it is from."""
    prop = counted(late)
    first = nightly(prop, right, tmp_path)
    assert first.record.status == "failed"
    assert first.search.cases > 500  # the first stratum's share passed
    again = nightly(prop, right, tmp_path)
    assert again.record.case == first.record.case
    assert again.search.cases <= 2
    assert (tmp_path / "examples").is_dir()


def test_nightly_forgets_what_has_been_mended(tmp_path: Path) -> None:
    """A kept case that holds now is no failure, and is not kept for ever."""
    prop = counted(late, weight=0.1)
    assert nightly(counted(late), right, tmp_path).record.status == "failed"
    assert nightly(counted(passes, weight=0.1), right, tmp_path).record.status == "passed"
    assert nightly(counted(passes, weight=0.1), right, tmp_path).record.cases == 100
    assert prop.weight == 0.1


def test_the_database_is_one_for_each_item(tmp_path: Path) -> None:
    """Another law or another kernel replays nothing of this one's."""
    assert nightly(counted(late), right, tmp_path).record.status == "failed"
    count = 0

    def counting(subject: Subject, case: AttendCase) -> None:
        nonlocal count
        count += 1

    other = counted(counting, name="another.law", weight=0.02)
    assert nightly(other, right, tmp_path).record.status == "passed"
    assert count == 20


def test_a_seed_at_nightly_is_reproducible_and_keeps_nothing(tmp_path: Path) -> None:
    """With a seed, two nightly runs are the same, and no database is made."""
    prop = counted(passes, weight=0.05)
    seen: list[list[AttendCase]] = []
    for seed in (7, 7, 8):
        seen.append([])
        prop = counted(lambda subject, case: seen[-1].append(case), weight=0.05)
        nightly(prop, right, tmp_path, seed=seed)
    assert seen[0] == seen[1] != seen[2]
    assert len(seen[0]) == 50
    assert not (tmp_path / "examples").exists()


def test_quick_levels_keep_nothing(tmp_path: Path) -> None:
    """smoke and pr write no database, whatever fails."""
    run(without_tail, database=str(tmp_path / "examples"))
    assert list(tmp_path.iterdir()) == []


def test_laws_are_registered_by_name() -> None:
    """`law` registers, `select` finds by pattern and family, and an unknown pattern says so."""
    body = law("toy.registered", "A law of this test.", strata={"plain": s.plain})(passes)
    try:
        assert REGISTRY["toy.registered"] is body
        assert select("toy") == [body] == select("toy.*") == select("toy.reg*")
        assert body.requires == {"attend"}
        assert body.family == "toy"
    finally:
        del REGISTRY["toy.registered"]
    names = [p.name for p in select("attention")]
    assert names
    assert all(n.startswith("attention.") for n in names)
    assert len(select("attention.value", "attention")) == len(names)
    assert {p.name for p in select()} == set(REGISTRY)
    with pytest.raises(LookupError, match=r"law 'toys': matches none of .* a family: .*attention"):
        select("toys")


def test_every_law_has_a_sentence_and_known_needs() -> None:
    """A law says in a sentence what holds, needs known features, and is dealt to strata."""
    for prop in select():
        assert prop.sentence.endswith(".")
        assert prop.requires <= set(OPERATIONS[offered(prop.operation)])
        assert prop.strata
        assert 0 < prop.weight <= 2


def test_numerics_of_the_subject_are_declared_or_assumed() -> None:
    """What an author did not declare is assumed, and the record says so."""
    subject = Subject(Toy(numerics=None), "fp32", "cpu")
    assert not subject.declared
    assert not check(counted(passes), subject).record.numerics_declared
    coarse = Subject(Toy(numerics=Numerics(p="bf16")), "fp32", "cpu")
    assert coarse.declared
    assert (coarse.numerics.p, coarse.numerics.out) == ("bf16", "fp32")


def test_a_filtered_stratum_may_be_empty() -> None:
    """A region that covers everything leaves the witness alone, without an error."""
    entry = Expectations()
    assert entry.of("attention.value", toy()) == []
    prop = counted(passes, strata={"plain": lambda domain: st.just(AttendCase())})
    assert check(prop, toy(), Options(expectations=entry)).record.cases >= 1


def test_a_hidden_row_is_found() -> None:
    """A kernel that hides one key of many from one head is caught and named by its case."""

    def one_head(call: AttendCall) -> AttendResult:
        keep = torch.ones(call.q.shape[1], call.q.shape[2], call.k.shape[2], dtype=torch.bool)
        keep[-1, :, -1:] = call.q.shape[1] < 3
        return right(hide(call, keep))

    outcome = run(one_head)
    assert outcome.found is not None
    assert outcome.found.case.Hq in (3, 4)


def test_hypothesis_is_recent_enough() -> None:
    """The version that the engine was written for, or a newer one."""
    assert hypothesis.__version_info__ >= (6, 130)


def _noting(under: list[bool]) -> Any:
    """A kernel that notes whether it runs under a dispatch mode."""

    def kernel(call: AttendCall) -> AttendResult:
        under.append(is_in_torch_dispatch_mode())
        return right(call)

    return kernel


@pytest.mark.parametrize("compiled", [True, False])
def test_a_compiled_kernel_is_not_run_under_the_watch(compiled: bool) -> None:
    """Under a dispatch mode PyTorch compiles nothing: what says that it compiles is left alone."""
    under: list[bool] = []
    record = check(select("attention.memory")[0], toy(_noting(under), compiled=compiled)).record
    assert record.status == "passed"
    assert set(under) == {not compiled}


def test_a_kernel_that_cannot_run_under_the_watch_runs_without_it() -> None:
    """FlexAttention compiles inside, which raises under a dispatch mode: no fault of it."""

    def kernel(call: AttendCall) -> AttendResult:
        if is_in_torch_dispatch_mode():
            raise RuntimeError("not supported today")
        return right(call)

    subject = toy(kernel)
    assert check(VALUE, subject).record.status == "passed"
    assert subject.watched == {"opaque"}


def test_what_compiles_under_the_watch_is_told_what_to_declare() -> None:
    """PyTorch's own complaint about dispatch modes says nothing of the way out."""

    def kernel(call: AttendCall) -> AttendResult:
        raise RuntimeError("non-infra torch dispatch mode present, this is not supported today")

    record = check(VALUE, toy(kernel)).record
    assert record.kind == "Raised"
    assert "declare Capabilities(compiled=True)" in record.reason


def test_an_exception_now_and_then_is_not_blamed_on_the_watch() -> None:
    """Raised once and then not: the second call, without the watch, must not excuse the first."""
    calls: list[int] = []

    def kernel(call: AttendCall) -> AttendResult:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("now and then")
        return right(call)

    subject = toy(kernel)
    found = check(VALUE, subject, Options(shrink=False))
    assert found.record.status == "failed"
    assert not subject.unwatchable


def test_the_lse_of_equal_calls_is_compared_too() -> None:
    """An LSE that jitters is no less random than an output that does."""

    calls = count()

    def kernel(call: AttendCall) -> AttendResult:
        answer = right(call)
        assert answer.lse is not None
        return replace(answer, lse=answer.lse + 1e-3 * next(calls))

    record = check(select("attention.deterministic")[0], toy(kernel)).record
    assert record.kind == "NonDeterministic"
    assert record.reason.startswith("lse of two equal calls")


def test_metamorphic_laws_judge_the_lse_where_no_bits_are_promised() -> None:
    """A row's LSE that counts the other rows is caught without `batch_invariant`."""

    def kernel(call: AttendCall) -> AttendResult:
        answer = right(call)
        assert answer.lse is not None
        return replace(answer, lse=answer.lse + 1e-3 * call.q[..., :1, 0].abs())

    record = check(select("attention.row_independence")[0], toy(kernel)).record
    assert record.kind in ("WrongValue", "Imprecise")
    assert "lse" in record.reason


def test_what_runs_with_room_is_as_without() -> None:
    """Its value, its exception, calls of its own; its frame is larger than a chunk of 16 KiB."""
    from kernelassay.properties import room

    def depth(n: int) -> int:
        return room.with_room(lambda: depth(n - 1)) + 1 if n else 0

    assert depth(50) == 50
    with pytest.raises(ZeroDivisionError):
        room.with_room(lambda: 1 // 0)
    assert room._large.__code__.co_stacksize == room.SLOTS > (1 << 14) // 8
