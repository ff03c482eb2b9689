"""Prefix caches: the model of hits, cases and their reports, the bundled caches, the machine."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kernelassay.impls import radix_prefix, torch_prefix
from kernelassay.impls.contract import PREFIXES, Prefixed, PrefixSpec, Scope, Unsupported
from kernelassay.impls.mutants import prefixes as mutants
from kernelassay.impls.variants import build
from kernelassay.oracle.prefixes import Step, longest, needed, start, stepped
from kernelassay.properties.case import CaseError, case_from, case_id, parse_case, to_json
from kernelassay.properties.diagnosis import diagnose
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.engine import Options, check
from kernelassay.properties.failures import Failure, Found, WrongState
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.prefixes.case import PrefixCase
from kernelassay.properties.prefixes.hashes import HASHES
from kernelassay.properties.prefixes.ledger import rows, said
from kernelassay.properties.prefixes.machine import prefix_machine
from kernelassay.properties.prefixes.run import Run, played
from kernelassay.properties.property import select
from kernelassay.properties.subject import Subject
from kernelassay.report import render
from kernelassay.script import repro_script

NONE = (0, 0)
SERVED: tuple[Step, ...] = (
    ("begin", 0, (1, 2, 3, 4, 5), 0, 0), ("fill", 0), ("commit", 0, 5), ("end", 0),
)  # fmt: skip
AGAIN = PrefixCase(steps=(*SERVED, ("begin", 0, (1, 2, 3, 4, 6), 0, 0), ("fill", 0)))
QUICK = settings(
    max_examples=25, stateful_step_count=20, deadline=None, database=None, derandomize=True,
    phases=[Phase.generate], suppress_health_check=[*HealthCheck],
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def subject_of(kernel: object = torch_prefix.adapter, dtype: str = "fp32") -> Subject:
    """The kernel on the CPU."""
    return Subject(kernel, dtype, "cpu")


def mutant(name: str) -> Subject:
    """A mutant by name."""
    return subject_of(build(next(v for v in mutants.MUTANTS if v.name == name)))


def test_only_whole_committed_blocks_of_one_scope_may_be_hit() -> None:
    """Three tokens of two blocks are one block; another scope, and what follows, is not there."""
    state = start(1, 2)
    for step in (
        ("begin", 0, (1, 2, 3), 1, 0),
        ("fill", 0),
        ("append", 0, (4,)),
        ("commit", 0, 3),
    ):
        state = stepped(state, step)
    assert state.cached == {((1, 0), (1, 2))}
    assert longest(state, (1, 2, 3, 4), (1, 0), 4) == 2
    assert longest(state, (1, 2, 3, 4), (1, 0), 1) == 0
    assert longest(state, (1, 2), (0, 1), 2) == 0
    state = stepped(state, ("commit", 0, 4))
    assert longest(state, (1, 2, 3, 4), (1, 0), 4) == 4
    assert stepped(stepped(state, ("end", 0)), ("reset",)).cached == frozenset()


def test_blocks_are_counted_from_the_prompt_on() -> None:
    """Each request alone; what a truncation leaves empty is needed no more, but was taken."""
    state = stepped(start(2, 2), ("begin", 0, (1, 2, 3), 0, 0))
    assert needed(state) == state.taken == 2
    for step in (("fill", 0), ("append", 0, (4, 5)), ("truncate", 0, 4), ("append", 0, (6,))):
        state = stepped(state, step)
    assert (needed(state), state.taken, state.peak) == (3, 4, 3)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (("fill", 0), "not filled"),
        (("begin", 0, (1,), 0, 0), "to have ended"),
        (("truncate", 0, 2), "3 to 3"),
        (("commit", 0, 4), "0 to 3"),
        (("end", 1), "below 1"),
        (("reset",), "no request runs"),
        (("append", 0, ()), "1 or more tokens"),
        (("append", 0), "arguments"),
        (("drop", 0), "one of begin"),
    ],
)
def test_steps_that_cannot_be_taken_say_why(step: Step, said: str) -> None:
    """After a prompt of three tokens."""
    state = stepped(stepped(start(1, 2), ("begin", 0, (1, 2, 3), 0, 0)), ("fill", 0))
    with pytest.raises(ValueError, match=said):
        stepped(state, step)


def test_entries_tell_prefixes_scopes_and_positions_apart() -> None:
    """One token at one position, after other tokens or in another scope: another entry."""
    k, v = rows(NONE, (1, 2, 3), 2, 8, 16)
    assert k.shape == (3, 2, 8)
    assert said(v[2, 0]) == "t3 at 2"
    for other in (rows(NONE, (2, 1, 3), 2, 8, 16), rows((1, 0), (1, 2, 3), 2, 8, 16)):
        assert not torch.equal(k[2], other[0][2])
        assert not torch.equal(v[2], other[1][2])
    longer = rows(NONE, (1, 2, 3, 4), 2, 8, 16)
    assert torch.equal(k, longer[0][:3])
    assert said(torch.full((16,), torch.nan)).startswith("no entry")
    assert said(rows((0, 3), (7,), 1, 8, 8)[1][0, 0]) == "t7 at 0, adapter 3"


def test_a_case_reads_back() -> None:
    """As text and as JSON, with the same id."""
    case = replace(AGAIN, blocks=8, hash="sum", D=8, Dv=16)
    assert parse_case(repr(case)) == case == case_from(to_json(case))
    assert case_id("x", parse_case(repr(case))) == case_id("x", case)
    assert labels(case, domain_of(subject_of())) >= {"hit", "hash_sum"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("block=0", "block: got 0"),
        ("hash='md5'", "hash: got 'md5'"),
        ("blocks=1, steps=(('begin', 0, (1, 2, 3), 0, 0),)", "at least the 2"),
        ("steps=(('end', 0),)", "step 0: got"),
        ("steps=(('begin', 0, (200,), 0, 0),)", "numbers below"),
        ("steps=((),)", "a name and arguments"),
    ],
)
def test_a_case_that_does_not_fit_together_is_refused(fields: str, said: str) -> None:
    """The message names field or step."""
    with pytest.raises(CaseError, match=said):
        parse_case(f"PrefixCase({fields})")


@pytest.mark.parametrize("name", [name for name in HASHES if name != "own"])
def test_hashes_collide(name: str) -> None:
    """Each gives one number to two blocks that are apart."""
    make = HASHES[name]
    assert make is not None
    first = [make(None, block, Scope()) for block in ((1, 2), (2, 1))]
    seen = [
        *(make(h, (3, 4), Scope(*s)) for h in first for s in (NONE, (1, 0), (0, 1))),
    ]
    assert len({*seen}) < len(seen)


@pytest.mark.parametrize(
    "kernel", [torch_prefix.adapter, radix_prefix.adapter], ids=lambda k: k.name
)
@pytest.mark.parametrize("prop", select("transactions.prefix_*"), ids=lambda p: p.name)
def test_bundled_caches_pass(prop: object, kernel: object) -> None:
    """Every law, with its cases dealt over all strata."""
    record = check(prop, subject_of(kernel, "bf16"), Options(seed=1)).record  # type: ignore[arg-type]
    assert record.status in ("passed", "declined", "undeclared", "not_applicable"), record.reason
    assert {*record.labels} <= LABELS


def test_every_feature_is_needed_by_some_program() -> None:
    """A case that needs a feature is lacking where the feature is."""
    steps = (*SERVED, ("begin", 0, (1, 2, 3), 1, 2), ("fill", 0), ("truncate", 0, 3))
    more = (("look", (1,), 0, 0), ("begin", 1, (1,), 0, 0), ("end", 0), ("end", 1), ("reset",))
    case = PrefixCase(R=2, Dv=8, hash="sum", steps=(*steps, *more))
    domain = replace(domain_of(subject_of()), supports=frozenset({"prefix"}))
    assert {*lacking(case, domain)} == set(PREFIXES) - {"prefix", "prefix.accounting"}


def test_the_last_token_is_hit_where_that_is_declared() -> None:
    """A prompt of two blocks: one of them is hit, or both."""
    case = PrefixCase(steps=(*SERVED, ("begin", 0, (1, 2, 3, 4), 0, 0)))
    assert played(subject_of(), case).answers[-1] == 2
    assert played(subject_of(radix_prefix.adapter), case).answers[-1] == 4


def test_a_wrong_hit_is_shown_step_by_step() -> None:
    """The program, what was found, what was committed."""
    subject = mutant("prefix_hash_without_salt")
    case = PrefixCase(steps=(*SERVED, ("begin", 0, (1, 2, 3), 1, 0)))
    with pytest.raises(WrongState, match="never committed for salt 1, adapter 0") as caught:
        played(subject, case)
    assert caught.value.facts["lines"] == [
        "Program",
        "    1  begin request 0 with 1 2 3 4 5  found 0",
        "    2  fill request 0",
        "    3  commit request 0 up to 5",
        "    4  end request 0",
        "->  5  begin request 0 with 1 2 3, salt 1  found 2",
        "Committed (salt, adapter): 1 2 3 4",
    ]


def test_a_wrong_entry_is_shown_beside_the_right_one() -> None:
    """What was written over is named with its token and position."""
    subject = mutant("prefix_single_entries_go_to_the_block_before")
    steps = (("begin", 0, (1, 2), 0, 0), ("fill", 0), ("append", 0, (3,)))
    with pytest.raises(
        WrongState, match="reads t3 at 2 at position 1, expected t2 at 1"
    ) as caught:
        played(subject, PrefixCase(steps=steps))
    assert caught.value.facts["lines"][-2].split() == [
        *("1", "t2", "at", "1"),
        *("t3", "at", "2", "<-", "differs"),
    ]


def test_a_report_shows_the_program_and_a_script_runs_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The smallest program of a mutant, as a user sees it."""
    subject = mutant("prefix_reset_keeps_the_table")
    (law,) = select("transactions.prefix_reset")
    outcome = check(law, subject, Options())
    assert isinstance(outcome.found, Found)
    text = "\n".join(outcome.found.failure.facts["lines"])
    assert "reset" in text
    found = outcome.found
    picture = diagnose(law, subject, found, outcome.search)
    shown = render(outcome.record, law, subject, found, picture, outcome.search)
    assert text in shown
    assert "PrefixCase(" in shown
    script = repro_script(outcome.record.to_json(), "kernelassay.impls.torch_prefix:adapter")
    exec(compile(script, "repro.py", "exec"), {"__name__": "repro"})  # the base is right
    assert "the law holds" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kernel", [torch_prefix.adapter, radix_prefix.adapter], ids=lambda k: k.name
)
def test_the_machine_finds_nothing_in_bundled_caches(kernel: object) -> None:
    """Any steps."""
    run_state_machine_as_test(lambda: prefix_machine(kernel)(), settings=QUICK)


@pytest.mark.parametrize("name", ["prefix_believes_a_hash", "prefix_hash_without_salt"])
def test_the_machine_finds_faults(name: str) -> None:
    """The text has the program."""
    kernel = mutant(name).kernel
    with pytest.raises(Failure, match="Program"):
        run_state_machine_as_test(lambda: prefix_machine(kernel)(), settings=QUICK)


def test_what_is_held_is_not_evicted_and_a_full_pool_is_refused() -> None:
    """Two blocks, both held: a third is not to be had, and nothing is lost."""
    case = PrefixCase(steps=(("begin", 0, (1, 2, 3), 0, 0), ("fill", 0)))
    run = Run(subject_of(), case).open(2, 8)
    for step in case.steps:
        run.take(step)
    k = torch.ones(2, 1, 16)
    with pytest.raises(ValueError, match="pool"):
        run.store.append(0, [4, 5], k, k)
    run.judge()


def test_conventions_are_checked() -> None:
    """Words that there are not, and a hash where nothing is hashed."""
    with pytest.raises(ValueError, match=r"Prefixed\.last: got 'first'"):
        Prefixed(last="first")  # type: ignore[arg-type]
    spec = PrefixSpec(
        R=1, Hkv=1, D=8, Dv=8, block=1, blocks=1, most=1, dtype=torch.float32,
        device=torch.device("cpu"), hash=HASHES["sum"],
    )  # fmt: skip
    with pytest.raises(Unsupported):
        radix_prefix.adapter.prefix(spec)
    with pytest.raises(ValueError, match="blocks: got 0"):
        torch_prefix.adapter.prefix(replace(spec, blocks=0))
