"""Recurrent states: the model, cases and their reports, the bundled stores, the machine."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kernelassay.impls import replay_recurrence, torch_recurrence
from kernelassay.impls.contract import RECURRENCES, StateSpec, Unsupported
from kernelassay.impls.mutants import recurrent as mutants
from kernelassay.impls.variants import build
from kernelassay.oracle.recurrences import Step, fold, start, stepped
from kernelassay.properties.case import CaseError, case_from, case_id, parse_case, to_json
from kernelassay.properties.diagnosis import diagnose
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.engine import Options, check
from kernelassay.properties.failures import Failure, WrongState
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.property import Property, select
from kernelassay.properties.recurrent.case import RecurrentCase
from kernelassay.properties.recurrent.ledger import right, rows
from kernelassay.properties.recurrent.machine import state_machine
from kernelassay.properties.recurrent.run import played
from kernelassay.properties.subject import Subject
from kernelassay.report import render
from kernelassay.script import repro_script

STORES = (torch_recurrence.adapter, replay_recurrence.adapter)
QUICK = settings(
    max_examples=25, stateful_step_count=15, deadline=None, database=None, derandomize=True,
    phases=[Phase.generate], suppress_health_check=[*HealthCheck],
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def subject_of(kernel: object = torch_recurrence.adapter, dtype: str = "fp32") -> Subject:
    """The store on the CPU."""
    return Subject(kernel, dtype, "cpu")


def mutant(name: str) -> Subject:
    """A mutant by name."""
    return subject_of(build(next(v for v in mutants.MUTANTS if v.name == name)))


def test_a_fold_depends_on_order_and_number() -> None:
    """2 (3 0 + 1) + 5, and the other way round."""
    assert fold([]) == 0
    assert fold([(3, 1), (2, 5)]) == 7
    assert fold([(2, 5), (3, 1)]) == 16


def test_the_model_keeps_what_was_emitted() -> None:
    """Tokens are numbered as they came; a rollback drops the last of the last append."""
    state = start(2)
    for step in (("append", (2, 1)), ("append", (3, 0)), ("rollback", (1, 0)), ("fork", 0, 1)):
        state = stepped(state, step)
    assert state.tokens == ((0, 1, 3), (0, 1, 3))
    assert stepped(state, ("free", 0)).tokens == ((), (0, 1, 3))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (("append", (1,)), "2 numbers"),
        (("append", (1, -1)), "at least 0"),
        (("rollback", (2, 0)), r"at most the \[1, 0\]"),
        (("fork", 0, 0), "another request"),
        (("free", 2), "below 2"),
        (("free",), "arguments"),
        (("drop", 1), "one of append"),
    ],
)
def test_steps_that_cannot_be_taken_say_why(step: Step, said: str) -> None:
    """After an append of one token."""
    state = stepped(start(2), ("append", (1, 0)))
    with pytest.raises(ValueError, match=said):
        stepped(state, step)


def test_a_rollback_comes_right_after_an_append() -> None:
    """Not first, and not twice."""
    for state in (start(1), stepped(stepped(start(1), ("append", (2,))), ("rollback", (1,)))):
        with pytest.raises(ValueError, match="an append right before"):
            stepped(state, ("rollback", (0,)))


def test_states_are_folds_of_rows_that_every_format_holds() -> None:
    """By the formula, from the rows; tails are the last rows, zero before the first one."""
    tokens = list(range(20, 84))
    a, b = rows(tokens, 2, 8)
    s = torch.zeros(2, 8, dtype=torch.float64)
    for i in range(64):
        s = a[i] * s + b[i]
    state, tail = right(tokens, 2, 8, 3)
    assert torch.equal(state, s)
    assert torch.equal(tail, b[-3:])
    assert torch.equal(state.bfloat16().double(), state)
    assert torch.equal(right(tokens[:1], 2, 8, 3)[1], torch.cat([torch.zeros_like(b[:2]), b[:1]]))
    assert right(tokens, 2, 8, 0)[1].shape == (0, 2, 8)


def test_rows_show_order_and_number() -> None:
    """A token that is missing, twice or elsewhere changes some channel."""
    state = right([1, 2, 3, 4], 1, 8, 0)[0]
    for other in ([1, 2, 4, 3], [2, 3, 4], [1, 2, 3, 4, 4], [4, 3, 2, 1], [1, 2, 3]):
        assert not torch.equal(state, right(other, 1, 8, 0)[0])


def test_a_case_reads_back() -> None:
    """As text and as JSON, with the same id and its labels."""
    case = RecurrentCase(R=2, tail=2, steps=(("append", (2, 0)), ("rollback", (1, 0))))
    assert parse_case(repr(case)) == case == case_from(to_json(case))
    assert case_id("x", parse_case(repr(case))) == case_id("x", case)
    assert labels(case, domain_of(subject_of())) >= {"some_rejected", "with_tail"}
    assert case.drafts == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("R=0", "R: got 0"),
        ("tail=-1", "tail: got -1"),
        ("steps=(('rollback', (1,)),)", "step 0: got"),
        ("steps=(('append', (65,)),)", "at most 64"),
        ("steps=((),)", "a name and arguments"),
    ],
)
def test_a_case_that_does_not_fit_together_is_refused(fields: str, said: str) -> None:
    """The message names field or step."""
    with pytest.raises(CaseError, match=said):
        parse_case(f"RecurrentCase({fields})")


@pytest.mark.parametrize("kernel", STORES, ids=lambda k: k.name)
@pytest.mark.parametrize("law", select("transactions.state_*"), ids=lambda p: p.name)
def test_bundled_stores_pass(law: Property, kernel: object) -> None:
    """Every law, with its cases dealt over all strata, in the coarsest format."""
    record = check(law, subject_of(kernel, "bf16"), Options(seed=1)).record
    assert record.status in ("passed", "declined", "not_applicable"), record.reason
    assert {*record.labels} <= LABELS


def test_every_feature_is_needed_by_some_program() -> None:
    """A case that needs a feature is lacking where the feature is."""
    steps = (("append", (2, 1)), ("rollback", (1, 1)), ("fork", 0, 1), ("free", 0))
    case = RecurrentCase(R=2, tail=1, padding=1, steps=steps)
    domain = replace(domain_of(subject_of()), supports=frozenset({"recurrence"}))
    assert {*lacking(case, domain)} == set(RECURRENCES) - {"recurrence"}


def test_a_failure_says_which_tokens_explain_it() -> None:
    """A rejected draft that stayed: the state is that of before the rollback."""
    case = RecurrentCase(steps=(("append", (1,)), ("append", (2,)), ("rollback", (1,))))
    with pytest.raises(WrongState) as caught:
        played(mutant("state_keeps_rejected_drafts"), case)
    assert "from its 2 tokens t0 t1, as it would be after t0 t1 t2" in caught.value.message
    assert caught.value.facts["lines"] == [
        "Program",
        "    1  append (1,)              t0",
        "    2  append (2,)              t0 t1 t2",
        "->  3  rollback (1,)            t0 t1",
    ]


def test_a_report_shows_the_program_and_a_script_runs_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The smallest program of a mutant, as a user sees it."""
    subject = mutant("state_of_a_freed_request_stays")
    (law,) = select("transactions.state_freed")
    outcome = check(law, subject, Options())
    assert outcome.found is not None
    picture = diagnose(law, subject, outcome.found, outcome.search)
    shown = render(outcome.record, law, subject, outcome.found, picture, outcome.search)
    assert "->  2  free 0" in shown
    assert "RecurrentCase(" in shown
    script = repro_script(outcome.record.to_json(), "kernelassay.impls.torch_recurrence:adapter")
    exec(compile(script, "repro.py", "exec"), {"__name__": "repro"})  # the base is right
    assert "the law holds" in capsys.readouterr().out


@pytest.mark.parametrize("kernel", STORES, ids=lambda k: k.name)
def test_the_machine_finds_nothing_in_bundled_stores(kernel: object) -> None:
    """Any steps."""
    run_state_machine_as_test(lambda: state_machine(kernel)(), settings=QUICK)


@pytest.mark.parametrize("name", ["state_keeps_rejected_drafts", "state_forked_without_its_tail"])
def test_the_machine_finds_faults(name: str) -> None:
    """The text has the program."""
    kernel = mutant(name).kernel
    with pytest.raises(Failure, match="Program"):
        run_state_machine_as_test(lambda: state_machine(kernel)(), settings=QUICK)


def test_specs_are_checked() -> None:
    """Sizes, and a tail where none is kept."""
    spec = StateSpec(
        R=1, H=1, D=8, tail=1, drafts=1, dtype=torch.float32, device=torch.device("cpu")
    )
    with pytest.raises(Unsupported, match="no tails"):
        replay_recurrence.adapter.recurrence(spec)
    with pytest.raises(ValueError, match="drafts: got -1"):
        torch_recurrence.adapter.recurrence(replace(spec, drafts=-1))
