"""The laws of decode loops: the bundled decoders keep them, and failures read well."""

import importlib.util
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis.stateful import run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

from kernelassay.impls import speculative_decoder, speculative_decoder_paged
from kernelassay.impls.decoding import DecodeCall, DecodeResult, Step
from kernelassay.impls.mutants.decoding import MUTANTS
from kernelassay.impls.variants import build
from kernelassay.oracle.decoding import Turn
from kernelassay.properties.case import CaseError, case_from, case_id, parse_case, to_json
from kernelassay.properties.decoding import strata as s
from kernelassay.properties.decoding.answers import call_of, decode
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.decoding.labels import EVENTS
from kernelassay.properties.decoding.machine import decode_machine
from kernelassay.properties.decoding.noise import uniforms_of
from kernelassay.properties.decoding.shown import run_lines, texts
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.engine import Options, check
from kernelassay.properties.failures import Failure, WrongShape, WrongState, WrongValue
from kernelassay.properties.labels import labels
from kernelassay.properties.property import select
from kernelassay.properties.subject import Subject

LAWS = {p.name: p for p in select("transactions") if p.operation == "decode"}
CASE = DecodeCase(prompts=((0, 1), (2,)), budget=(3, 4), stop=((), (1,)), greedy=(0,), noise=3)

CASE_ALONE = DecodeCase(prompts=((0, 1, 0),), budget=(5,))


def subject(kernel: Any = speculative_decoder.adapter) -> Subject:
    """The kernel on the CPU."""
    return Subject(kernel, kernel.capabilities.dtypes[0], "cpu")


def simplest(strategy: SearchStrategy[DecodeCase]) -> DecodeCase:
    """The first case that Hypothesis tries."""
    made = []

    @settings(max_examples=1, database=None, deadline=None)
    @given(strategy)
    def take(case: DecodeCase) -> None:
        made.append(case)

    take()
    return made[0]


@pytest.mark.parametrize("name", LAWS)
def test_the_bundled_decoder_keeps_the_law(name: str) -> None:
    """Under injected uniforms, and no law of those that apply is left out."""
    record = check(LAWS[name], subject(), Options(level="smoke")).record
    expected = "not_applicable" if name.endswith("declines") else "passed"
    assert record.status == expected, record.reason


@pytest.mark.parametrize("name", ["transactions.sequence", "transactions.requests_apart"])
def test_the_seeded_decoder_keeps_the_law(name: str) -> None:
    """With a seed for each request."""
    record = check(LAWS[name], subject(speculative_decoder.seeded), Options(seed=1)).record
    assert record.status == "passed", record.reason


@pytest.mark.parametrize("name", ["transactions.greedy", "transactions.trace"])
def test_the_paged_decoder_keeps_the_law(name: str) -> None:
    """Over pages, in fp32."""
    kernel = speculative_decoder_paged.adapter
    record = check(LAWS[name], subject(kernel), Options()).record
    assert record.status == "passed", record.reason


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
@pytest.mark.parametrize("name", ["assisted", "prompt_lookup"])
def test_transformers_keeps_the_laws_on_some_cases(name: str) -> None:
    """Stop token, length limit, minimum, an assistant and drafts looked up."""
    from kernelassay.impls import transformers_decoder

    kernel = getattr(transformers_decoder, name)
    drafts = ("near", "same") if name == "assisted" else ("lookup",)
    cases = [
        DecodeCase(
            model=m, prompts=((0, 1, 0),), drafts=d, budget=(5,), stop=((x,),), minimum=(n,)
        )
        for m, (d, x, n) in enumerate(itertools.product(drafts, (1, 2), (0, 2)))
    ]
    laws = ["stop", "budget", "injected"] if name == "assisted" else ["stop", "budget"]
    for case in cases:
        for law in laws:
            LAWS[f"transactions.{law}"].body(subject(kernel), case)
        LAWS["transactions.greedy"].body(subject(kernel), replace(case, greedy=(0,)))


def test_a_case_is_its_text() -> None:
    """It is read from Python, from JSON, and keeps its id."""
    assert parse_case(repr(CASE)) == CASE
    assert case_from(to_json(CASE)) == CASE
    assert case_id("a", CASE) == case_id("a", parse_case(repr(CASE)))
    assert case_id("a", CASE) != case_id("a", replace(CASE, noise=4))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"V": 1}, "V"),
        ({"drafts": "other"}, "drafts"),
        ({"prompts": ((),)}, "prompts"),
        ({"prompts": ((3,),)}, "prompts"),
        ({"schedule": ()}, "schedule"),
        ({"budget": (1, 1)}, "budget"),
        ({"budget": (99,)}, "budget"),
        ({"stop": ((0,), (0,))}, "stop"),
        ({"stop": ((0, 1, 2),), "minimum": (1,)}, "minimum"),
        ({"greedy": (1,)}, "greedy"),
        ({"noise": -1}, "noise"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, object], name: str) -> None:
    """With the field's name."""
    with pytest.raises(CaseError, match=f"field {name}"):
        case_from({"type": "DecodeCase", **fields})


@pytest.mark.parametrize("strata", [s.RUNS, s.LIMITED, s.GREEDY, s.SAMPLED])
def test_strata_carry_their_labels(strata: dict[str, Any]) -> None:
    """Simplest cases do, for a kernel that makes all drafts and for one that makes fewer."""
    domain = domain_of(subject())
    for trimmed in (False, True):
        here = replace(domain, decoding=replace(domain.decoding, trimmed=trimmed))
        for label, stratum in strata.items():
            strategy = stratum(here)
            if strategy is None:
                assert trimmed
                assert label == "budget_inside"
                continue
            case = simplest(strategy)
            assert label in labels(case, here)
            assert not lacking(case, here)


def test_a_request_s_noise_is_its_own() -> None:
    """Neither its neighbours nor a longer budget change it."""
    alone = uniforms_of(CASE, [(1, 0)])
    both = uniforms_of(replace(CASE, budget=(3, 9)), [(0, 0), (1, 0)])
    for name in ("draft", "accept", "draw"):
        a, b = getattr(alone, name), getattr(both, name)
        assert a[0].equal(b[1, : a.shape[1]])
        assert not a[0].equal(b[0, : a.shape[1]])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "expected a DecodeResult"),
        (DecodeResult(((),)), "one for each of 2 requests"),
        (DecodeResult(((3,), ())), "integers of 0 to 2"),
        (DecodeResult(((1,), ())), "trace: got none"),
        (DecodeResult(((1,), ()), ((), ()), ((), ())), "logprobs: got rows of lengths"),
    ],
)
def test_malformed_results_are_named(result: object, message: str) -> None:
    """With what came and what is expected."""
    kernel = replace(speculative_decoder.adapter)
    kernel.decode = lambda call: result  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(WrongShape, match=message):
        decode(subject(kernel), call_of(subject(kernel), CASE))


def test_a_model_that_gives_no_law_is_named() -> None:
    """Not the decode loop is to blame, nor the suite."""
    kernel = replace(speculative_decoder.adapter)
    whole = kernel.target_law
    kernel.target_law = lambda call, text: whole(call, text) * 2  # type: ignore[method-assign]
    with pytest.raises(WrongValue, match="expected 3 probabilities"):
        LAWS["transactions.greedy"].body(subject(kernel), CASE)


def test_a_wrong_run_is_shown_round_by_round() -> None:
    """An arrow points at the round that went wrong; expected stands under got."""
    steps = [Step((1, 2), 2, (1, 2, 0), 3, 2), Step((1,), 0, (2,), 4, 4)]
    right = [Turn((1, 2), 2, (1, 2, 0)), Turn((2,), 0, (0,))]
    case = DecodeCase(prompts=((0,),), budget=(4,), stop=((2,),), minimum=(1,))
    assert run_lines(case, 0, steps, right, 1) == [
        "Request 0 (sampled): prompt 0, budget 4, stop 2, no stop before 1",
        "    round       drafts    accepted  emitted   caches hold",
        "    0 got       1 2       2         1 2 0     3, 2",
        " -> 1 got       1         0         2         4, 4",
        "      expected  2         0         0         4, 4",
    ]
    assert texts((1, 2), (1, 0, 2)) == [
        "  got      1 2",
        "  expected 1 0 2",
        "             ^ token 1",
    ]


@pytest.mark.parametrize(
    "name", ["decode_positions_not_rolled_back", "decode_looks_up_its_own_end"]
)
def test_a_failure_fits_on_a_screen(name: str) -> None:
    """At most 25 lines of 99 ASCII characters, with an arrow."""
    (mutant,) = [m for m in MUTANTS if m.name == name]
    found = check(LAWS[mutant.law], subject(build(mutant)), Options(shrink=False)).found
    assert found is not None
    lines = found.failure.facts["lines"]
    assert len(lines) <= 25
    assert all(line.isascii() and len(line) < 100 for line in lines)
    assert any(line.startswith(" -> ") for line in lines)


def test_long_runs_are_cut() -> None:
    """The round that went wrong is among the ones that are shown."""
    steps = [Step((), 0, (1,), t + 1, t + 1) for t in range(30)]
    lines = run_lines(DecodeCase(budget=(30,)), 0, steps, (), 20)
    assert len(lines) <= 12
    assert any(line.startswith(" -> 20") for line in lines)
    assert "rounds 0 to" in lines[2]


def test_the_arrow_of_a_call_that_answers_what_it_declines() -> None:
    """Every declined feature has a case that needs it alone."""
    domain = domain_of(subject())
    for feature in s.NEEDING:
        here = replace(domain, supports=domain.supports - {feature}, declines=frozenset({feature}))
        declined = s.declined(here)
        assert declined is not None
        case = simplest(declined)
        assert {*lacking(case, here)} == {feature}


def test_events_have_strata() -> None:
    """Whatever may happen in a run is asked for, or comes with something that is."""
    asked = {*s.RUNS, *s.LIMITED}
    assert {*EVENTS} - asked <= {"rejected_first", "all_accepted"}


def test_a_raising_kernel_is_a_failure() -> None:
    """An exception inside the loop is the kernel's."""

    def broken(call: DecodeCall) -> DecodeResult:
        raise IndexError("out of range")

    kernel = replace(speculative_decoder.adapter)
    kernel.decode = broken  # type: ignore[method-assign]
    with pytest.raises(Failure, match="IndexError"):
        LAWS["transactions.budget"].body(subject(kernel), CASE)


def test_the_machine_passes_a_right_loop_and_finds_a_wrong_one() -> None:
    """Rounds with drafts of any number; a hole in the draft cache is seen."""
    few = settings(
        decode_machine(speculative_decoder.adapter).TestCase.settings,
        max_examples=10, derandomize=True, database=None, phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(decode_machine(speculative_decoder.adapter), settings=few)
    wrong = build(
        next(m for m in MUTANTS if m.name == "decode_leaves_a_hole_after_full_acceptance")
    )
    with pytest.raises(WrongState, match=r"draft cache holds \d+ tokens, expected \d+"):
        run_state_machine_as_test(decode_machine(wrong), settings=few)
    less = replace(
        speculative_decoder.adapter.capabilities, supports=frozenset({"decode", "decode.trace"})
    )
    with pytest.raises(ValueError, match=r"got capabilities without decode\.rounds"):
        decode_machine(replace(speculative_decoder.adapter, capabilities=less))
