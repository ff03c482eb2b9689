"""Rounds of verification: cases, strata, batches, probes, samples, and what laws see of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from kernelassay.impls import torch_verify
from kernelassay.impls.contract import Capabilities, Sampling, VerifyCall, VerifyResult
from kernelassay.oracle.decisions import GRID, SLACK
from kernelassay.oracle.speculative import residual, round_law
from kernelassay.properties.case import CaseError, case_from, case_id, parse_case, to_json
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.engine import Options, Outcome, check
from kernelassay.properties.labels import labels
from kernelassay.properties.property import select
from kernelassay.properties.speculative.answers import verify
from kernelassay.properties.speculative.batches import lay_out
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.laws_of import (
    draft_chain,
    law_of_row,
    rounding,
    target_chain,
)
from kernelassay.properties.speculative.neighbours import around
from kernelassay.properties.speculative.probes import probes, slack_errors
from kernelassay.properties.speculative.requests import batch_of, laws_table
from kernelassay.properties.speculative.sampling import Sampler
from kernelassay.properties.subject import Subject

LAWS = {p.name: p for p in select("speculative")}
SAMPLING = torch_verify.adapter.capabilities.sampling
KERNELS = (torch_verify.adapter, torch_verify.seeded, torch_verify.padded)
CASE = VerifyCase(
    counts=(2, 0, 1),
    p=((1, 2, 3), (2, 0, 1), (1, 1, 1), (3, 2, 1), (1, 2, 0), (0, 0, 1)),
    q=((2, 2, 1), (1, 1, 0), (4, 3, 2)),
    chained=True,
)


class Changed:
    """The bundled kernel with its capabilities, calls or answers changed."""

    def __init__(
        self,
        answer: Callable[[VerifyCall, VerifyResult], VerifyResult] | None = None,
        call: Callable[[VerifyCall], VerifyCall] | None = None,
        sampling: dict[str, Any] | None = None,
        base: Any = torch_verify.adapter,
        **capabilities: Any,
    ) -> None:
        self.name, self.base = "changed", base
        self.numerics = None
        assert base.capabilities.sampling is not None
        self.capabilities: Capabilities = replace(
            base.capabilities,
            sampling=replace(base.capabilities.sampling, **(sampling or {})),
            **capabilities,
        )
        self._call, self._answer = call, answer

    def verify(self, call: VerifyCall) -> VerifyResult:
        came: VerifyResult = self.base.verify(self._call(call) if self._call else call)
        return self._answer(call, came) if self._answer else came


def run(kernel: Any, law: str, dtype: str = "fp32", **options: Any) -> Outcome:
    return check(LAWS[f"speculative.{law}"], Subject(kernel, dtype, "cpu"), Options(**options))


MALFORMED = {
    "counts": "VerifyCase(counts=())",
    "p": "VerifyCase(p=((1, 1),))",
    "q": "VerifyCase(q=((0, 0),))",
    "V": "VerifyCase(V=1)",
    "ids": "VerifyCase(V=9, ids=(8, 3))",
    "skipped": "VerifyCase(skipped=(1,))",
    "greedy": "VerifyCase(greedy=(1,))",
    "stop": "VerifyCase(stop=((2,),))",
    "budget": "VerifyCase(budget=(-1,))",
    "seed": "VerifyCase(seed=-1)",
    "chained": "VerifyCase(chained=1)",
    "spread": "VerifyCase(spread=2, V=9)",
    "q_above": "VerifyCase(q=None, q_above=1)",
}


@pytest.mark.parametrize("field", MALFORMED)
def test_a_malformed_case_names_its_field(field: str) -> None:
    """Of every field, what came and what is expected."""
    with pytest.raises(CaseError, match=f"field {field}: got .* expected"):
        parse_case(MALFORMED[field])


def test_a_case_comes_back_from_text_and_json() -> None:
    """A round is itself again, with its class, and keeps its id."""
    for case in (
        CASE,
        VerifyCase(q=None, stop=((0,),), budget=(1,)),
        VerifyCase(V=99, ids=(3, 98)),
        VerifyCase(p=((1, 0), (1, 0)), spread=250, seed=7),
        VerifyCase(q_above=2),
    ):
        assert parse_case(repr(case)) == case
        assert case_from(json.loads(json.dumps(to_json(case)))) == case
    assert case_id("law", CASE) != case_id("law", replace(CASE, chained=False))


STRATA = {
    f"{law.name} {label}": (label, build)
    for law in LAWS.values()
    for label, build in law.strata.items()
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", STRATA)
def test_each_stratum_keeps_to_its_label_and_capabilities(name: str, dtype: str) -> None:
    """Every case carries the label and needs what is supported; laws are exact in 16 bits."""
    label, build = STRATA[name]
    kernel = torch_verify.adapter
    if label == "declined":
        some = frozenset({"verify", "draft_law"})
        rest = kernel.capabilities.supports - some
        kernel = Changed(supports=some, declines=rest)
    domain = domain_of(Subject(kernel, dtype, "cpu"))
    strategy = build(domain)
    assert strategy is not None
    seen: list[VerifyCase] = []

    @settings(
        max_examples=12,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.seed(7)
    @given(case=strategy)
    def collect(case: VerifyCase) -> None:
        seen.append(case)

    collect()
    for case in seen:
        case.checked()
        assert label in labels(case, domain)
        assert (label == "declined") == bool(lacking(case, domain))
        if dtype == "bf16" and label != "apart" and label != "declined":
            assert all(rounding(law_of_row(row), 8) == 0 for row in (*case.p, *(case.q or ())))


def test_probes_reach_every_decision() -> None:
    """Each place of each request, both answers to each draft, every token of each draw."""
    assert SAMPLING is not None
    found = probes(CASE, SAMPLING, "fp32")
    places = {(probe.request, probe.at) for probe in found}
    assert places == {(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)}
    rounds = {r: {x for p in found if p.request == r for x in p.right} for r in range(3)}
    for r, k in enumerate(CASE.counts):
        law = round_law(target_chain(CASE, r), draft_chain(CASE, r), k)
        last = {(outcome.accepted, outcome.tokens[-1]) for outcome in law}
        if k < 2:
            assert {(outcome.accepted, outcome.tokens[-1]) for outcome in rounds[r]} == last
        assert rounds[r] <= set(law)


def test_uniforms_lie_at_the_ends_and_beside_every_breakpoint() -> None:
    """0, the largest float below 1, and 2^-20 to both sides of p / q."""
    assert SAMPLING is not None
    case = VerifyCase(p=((1, 3), (1, 0)), q=((1, 1),))
    of_draft = {
        probe.accept[0] for probe in probes(case, SAMPLING, "fp32") if probe.drafts == (0,)
    }
    half = Fraction(1, 2)
    assert {Fraction(0), 1 - GRID, half - SLACK, half + SLACK} <= of_draft


@pytest.mark.parametrize("name", [n for n in LAWS if n != "speculative.declines"])
@pytest.mark.parametrize(
    "kernel",
    [torch_verify.adapter, torch_verify.seeded, torch_verify.generators, torch_verify.padded],
    ids=lambda k: k.name,
)
def test_a_right_kernel_keeps_the_law(kernel: Any, name: str) -> None:
    """At smoke, in a dtype that differs from law to law; a law that does not apply says why."""
    dtype = kernel.capabilities.dtypes[len(name) % 3]
    record = check(LAWS[name], Subject(kernel, dtype, "cpu"), Options()).record
    assert record.status in ("passed", "not_applicable"), record.reason
    if record.status == "not_applicable":
        assert "declared" in record.reason


def biased(by: float) -> Any:
    """Accepts with a probability that is too large by so much."""

    def call(given: VerifyCall) -> VerifyCall:
        assert given.accept is not None
        return replace(given, accept=(given.accept - by).clamp(min=0))

    return Changed(call=call)


@pytest.mark.parametrize("law", ["decisions", "implied_law"])
def test_an_acceptance_bias_of_a_millionth_is_found(law: str) -> None:
    """Beyond what rounding can do; one of a sixteenth of that is not to be told from rounding."""
    assert run(biased(2.0**-18), law, shrink=False).record.status == "failed"
    assert run(biased(2.0**-24), law).record.status == "passed"


def test_a_draft_of_probability_zero_is_seen_at_uniform_zero() -> None:
    """The smallest case: p has nothing where q has all."""
    rule = {"rule": "u*q<=p"}  # what the oracle forgives beside a breakpoint, and not at p = 0
    case = VerifyCase(p=((1, 0), (1, 0)), q=((0, 1),))

    def accept_it(call: VerifyCall, came: VerifyResult) -> VerifyResult:
        assert call.accept is not None
        zero = call.accept == 0
        tokens = came.tokens.clone()
        tokens[zero] = torch.tensor([1, 0], dtype=tokens.dtype)
        assert came.accepted is not None
        return VerifyResult(tokens, torch.where(zero, 1, came.accepted))

    outcome = run(Changed(accept_it, sampling=rule), "decisions", case=case)
    assert (outcome.record.kind, outcome.record.status) == ("WrongToken", "failed")
    assert "expected [0] (0 of them drafts)" in outcome.record.reason
    assert run(Changed(sampling=rule), "decisions", case=case).record.status == "passed"


def always_first(call: VerifyCall, came: VerifyResult) -> VerifyResult:
    """Whatever was drawn: token 0 in its place."""
    tokens = came.tokens.clone()
    lengths = (tokens >= 0).sum(1)
    assert came.accepted is not None
    drawn = lengths > came.accepted
    rows = drawn.nonzero()[:, 0]
    tokens[rows, lengths[rows] - 1] = 0
    return VerifyResult(tokens, came.accepted)


@pytest.mark.parametrize(
    "law", ["rounds", "sequence", "first_token", "positions", "branches", "independent"]
)
def test_statistical_laws_see_a_wrong_draw(law: str) -> None:
    """A kernel whose own noise is bad, which no exact law looks at."""
    kernel = Changed(always_first, base=torch_verify.seeded)
    record = run(kernel, law, shrink=False).record
    assert (record.status, record.kind) == ("failed", "WrongDistribution")


def test_commit_lengths_see_what_is_accepted_too_rarely() -> None:
    """A kernel that drops its last draft whenever it accepted all."""

    def shorter(call: VerifyCall, came: VerifyResult) -> VerifyResult:
        return replace(came, tokens=came.tokens[:, :-1].contiguous(), accepted=None)

    def cut(call: VerifyCall, came: VerifyResult) -> VerifyResult:
        tokens = came.tokens.clone()
        tokens[:, -1] = -1
        return VerifyResult(tokens, None)

    assert run(Changed(cut, base=torch_verify.seeded), "commit_length").record.status == "failed"
    assert run(Changed(shorter), "commit_length").record.kind == "WrongShape"


def test_the_report_of_a_distribution_shows_counts_branch_and_exact_p() -> None:
    """What a user reads: observed beside expected, which branch is off, the exact p-value."""
    outcome = run(Changed(always_first, base=torch_verify.seeded), "rounds")
    assert outcome.found is not None
    text = "\n".join(outcome.found.failure.facts["lines"])
    for part in ("observed    expected", "accepts", "Distance to the law", "Exact p-value"):
        assert part in text
    case = outcome.found.case
    assert case.width == 2
    assert sum(sum(row) for row in (*case.p, *case.q)) <= 8


def test_a_lossy_sampler_is_called_lossy_not_broken() -> None:
    """Its declaration is the reason that records give; what is impossible stays so."""
    sampling = {"lossy": "typical acceptance", "rounds": "joint"}
    kernel = Changed(always_first, base=torch_verify.seeded, sampling=sampling)
    record = run(kernel, "rounds").record
    assert record.status == "not_applicable"
    assert "typical acceptance" in run(kernel, "first_token").record.reason


def test_samples_come_from_the_case_alone() -> None:
    """The same rounds again, others at another stage; torch's own generators stay."""
    subject = Subject(torch_verify.seeded, "fp32", "cpu")
    case = VerifyCase(p=((1, 2), (1, 1)), q=((1, 1),))
    before = torch.random.get_rng_state()
    first, again, other = (
        Sampler(subject, case, "test").rounds(stage, 0, 200).counted()
        for stage in ("screen", "screen", "confirm")
    )
    assert first == again != other
    assert sum(first.values()) == 200
    assert torch.equal(before, torch.random.get_rng_state())


def test_padding_holds_garbage_and_flat_rows_are_packed() -> None:
    """What a padded kernel may not look at is NaN; a flat one gets no row too many."""
    assert SAMPLING is not None
    some = probes(CASE, SAMPLING, "fp32")[:1] + probes(CASE, SAMPLING, "fp32")[-1:]
    flat = verify(Subject(torch_verify.adapter, "fp32", "cpu"), batch_of(CASE, some))
    padded = verify(Subject(torch_verify.padded, "fp32", "cpu"), batch_of(CASE, some))
    assert torch.equal(flat.tokens, padded.tokens)

    seen: list[VerifyCall] = []

    def look(call: VerifyCall) -> VerifyCall:
        seen.append(call)
        return call

    verify(
        Subject(Changed(call=look, base=torch_verify.padded), "fp32", "cpu"), batch_of(CASE, some)
    )
    (call,) = seen
    assert call.counts.tolist() == [2, 1]
    assert bool(torch.isnan(call.p[1, 2]).all())
    assert not bool(torch.isnan(call.p[0]).any())


def test_rounding_moves_breakpoints_less_than_the_slack_of_small_laws() -> None:
    """The derived error of an acceptance stays below 2^-20; of a draw it grows as Z shrinks."""
    p, wide, near = law_of_row((1, 1)), law_of_row((3, 1)), law_of_row((101, 100))
    assert SAMPLING is not None
    accept, draw = slack_errors(p, wide, SAMPLING, "fp32")
    assert accept < SLACK
    assert slack_errors(p, near, SAMPLING, "fp32")[1] > 50 * draw
    assert residual(p, near) is not None
    assert rounding(p, 8) == 0 < rounding(law_of_row((1, 2)), 24) <= Fraction(1, 2**24)


def test_neighbours_leave_out_a_token_a_draft_a_request_and_the_chain() -> None:
    """Each kind of neighbour is run, and what is left out is named."""
    lines = around(LAWS["speculative.decisions"], Subject(biased(0.3), "fp32", "cpu"), CASE)
    text = "\n".join(lines)
    for kind in ("a token fewer", "a draft fewer", "a request fewer", "depend on the token"):
        assert kind in text
    assert "fails" in text


def test_a_column_is_spread_over_tokens_in_shares_of_its_seed() -> None:
    """Shares add up to the column's mass, differ, are the same in p and q; zeros stay zeros."""
    case = VerifyCase(p=((3, 1, 0), (1, 1, 0)), q=((1, 1, 2),), spread=100, seed=3)
    case.checked()
    p, q = laws_table(case, [law_of_row(case.p[0]), law_of_row(case.q[0] if case.q else ())])
    assert case.vocabulary == len(p) == 300
    assert p.view(3, 100).sum(1).tolist() == pytest.approx([0.75, 0.25, 0.0])
    assert len(set(p[:100].tolist())) > 10
    assert torch.allclose(p[:100], 3 * q[:100])
    assert not p[200:].any()
    assert bool((q > 0).all())
    other = laws_table(replace(case, seed=4), [law_of_row(case.p[0])])
    assert not torch.equal(p[None], other)


@pytest.mark.parametrize("law", ["decisions", "possible"])
def test_the_last_token_after_many_weights_is_seen(law: str) -> None:
    """A draw that no sum exceeds and that takes V - 1: the report names the tokens of a column."""

    def last(call: VerifyCall, came: VerifyResult) -> VerifyResult:
        assert call.draw is not None
        assert came.accepted is not None
        tokens, rows = came.tokens.clone(), torch.arange(call.requests)
        place = came.accepted.long()
        beyond = call.draw[call.offsets[:-1].long() + rows + place] == 1 - 2.0**-24
        tokens[rows[beyond], place[beyond]] = call.p.shape[-1] - 1
        return replace(came, tokens=tokens)

    case = VerifyCase(p=((1, 1, 0), (1, 1, 0)), q=((1, 1, 1),), spread=100)
    outcome = run(Changed(last), law, case=case)
    assert outcome.record.kind == "WrongToken"
    assert "200-299" in outcome.record.reason
    assert run(Changed(), law, case=case).record.status == "passed"


ABOVE = VerifyCase(p=((1, 15, 0), (1, 15, 0)), q=((1, 15, 0),), q_above=1)
"""p = q, and q is given a unit in the last place larger."""


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_q_that_is_given_larger_rejects_by_rounding(dtype: str) -> None:
    """Each q(x) > 0 lies a unit or two above p(x); a round may then accept, or draw from p."""
    batch = batch_of(ABOVE, probes(ABOVE, SAMPLING, dtype))
    call = lay_out(batch, torch_verify.adapter.capabilities, dtype, "cpu").call
    assert call.q is not None
    p, q = (x.double().reshape(-1, 3)[0] for x in (call.p, call.q))
    eps = torch.finfo(call.p.dtype).eps
    assert (q[:2] / p[:2] - 1).tolist() == pytest.approx([eps] * 2, rel=0.1)
    assert float(q[2]) == float(p[2]) == 0
    rejected = [x for x in probes(ABOVE, SAMPLING, dtype) if x.at == 0 and x.accept[0] == 1 - GRID]
    first = {x.drafts[0]: {r.tokens[0] for r in x.right if not r.accepted} for x in rejected}
    assert first == {0: {1}, 1: {1}}
    assert all({r.accepted for r in x.right} == {0, 1} for x in rejected)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("law", ["decisions", "possible"])
def test_a_token_out_of_an_empty_residual_is_seen(law: str, dtype: str) -> None:
    """The last token after a rejection by rounding, which has probability 0, is no way out."""

    def last(call: VerifyCall, came: VerifyResult) -> VerifyResult:
        assert came.accepted is not None
        tokens = came.tokens.clone()
        tokens[came.accepted == 0, 0] = call.p.shape[-1] - 1
        return replace(came, tokens=tokens)

    assert run(Changed(last), law, dtype, case=ABOVE).record.kind == "WrongToken"
    for kernel in KERNELS[: 3 if law == "possible" else 1]:
        assert run(kernel, law, dtype, case=ABOVE).record.status == "passed"


SKIPPING = VerifyCase(p=((1, 1, 2), (1, 1, 1)), q=((1, 2, 1),), skipped=(0,))


@pytest.mark.parametrize(
    ("declared", "first"), [("never_made", {0, 1, 2}), ("rejected", {2})], ids=lambda x: str(x)
)
def test_what_a_skipped_draft_was_decides_the_law_of_the_token(
    declared: Any, first: set[int]
) -> None:
    """p follows a draft that was never made, [p - q]+ one that is rejected for certain."""
    found = probes(SKIPPING, Sampling(noise="injected", skipped=declared), "fp32")
    assert {x.tokens[0] for probe in found for x in probe.right} == first
    certain = replace(SKIPPING, q=None)
    found = probes(certain, Sampling(noise="injected", skipped=declared), "fp32")
    assert {x.tokens[0] for probe in found for x in probe.right} == {0, 1, 2}
    empty = replace(SKIPPING, p=((1, 2, 1), (1, 1, 1)))
    found = probes(empty, Sampling(noise="injected", skipped=declared), "fp32")
    assert {x.tokens[0] for probe in found for x in probe.right} == {0, 1, 2}


def test_the_report_of_a_skipped_draft_names_what_is_declared() -> None:
    """The bundled kernel draws from p: wrong where -1 means a draft that was rejected."""
    outcome = run(Changed(sampling={"skipped": "rejected"}), "skipped", case=SKIPPING)
    assert outcome.record.kind == "WrongToken"
    assert outcome.found is not None
    text = "\n".join(outcome.found.failure.facts["lines"])
    for part in ('Sampling.skipped="rejected"', "[p - q]+ / Z = 0 0 1", "q = 1/4 1/2 1/4"):
        assert part in text
    assert run(Changed(), "skipped", case=SKIPPING).record.status == "passed"


def test_one_fault_is_one_red_law() -> None:
    """A draft of probability 0 that is accepted at 0 is a matter of decisions alone."""

    def asked(law: str, case: VerifyCase) -> str:
        def accept_it(call: VerifyCall) -> VerifyCall:
            x = call.drafts.long()
            rows = torch.arange(len(x)) + torch.repeat_interleave(call.counts.long())
            assert call.accept is not None
            forbidden = (call.p[rows, x] == 0) & (call.accept == 0) & (x >= 0)
            p = call.p.clone()
            p[rows[forbidden], x[forbidden]] = 1.0
            return replace(call, p=p)

        return run(Changed(call=accept_it), law, case=case).record.status

    two = VerifyCase(counts=(1, 1), p=((1, 0), (1, 1)) * 2, q=((1, 1),) * 2)
    beside, other = replace(two, greedy=(0,)), replace(two, skipped=(0,))
    after = VerifyCase(counts=(2,), p=((1, 1), (1, 0), (1, 1)), q=((1, 1), (0, 1)), skipped=(0,))
    assert (
        asked("greedy", beside) == asked("skipped", other) == asked("skipped", after) == "passed"
    )
    assert asked("decisions", two) == asked("decisions", beside) == "failed"


def test_malformed_answers_are_failures_of_form() -> None:
    """A token beyond the vocabulary, one after a placeholder, another dtype, no result at all."""

    def beyond(call: VerifyCall, came: VerifyResult) -> VerifyResult:
        return replace(came, tokens=torch.where(came.tokens >= 0, came.tokens + 99, came.tokens))

    def after(call: VerifyCall, came: VerifyResult) -> VerifyResult:
        return replace(came, tokens=came.tokens.flip(1))

    ways: dict[str, tuple[Any, str]] = {
        "WrongToken": (beyond, "expected a token of the vocabulary"),
        "WrongDtype": (
            lambda c, came: replace(came, tokens=came.tokens.long()),
            "Sampling.tokens",
        ),
        "WrongShape": (lambda c, came: came.tokens, "expected a VerifyResult"),
    }
    for kind, (answer, said) in ways.items():
        record = run(Changed(answer), "possible", shrink=False).record
        assert (record.kind, said in record.reason) == (kind, True)
    assert "a placeholder" in run(Changed(after), "possible", shrink=False).record.reason


def test_sampling_says_what_is_wrong_with_a_declaration() -> None:
    """Field, got, expected."""
    with pytest.raises(ValueError, match=r"Sampling\.rule: got 'u<p', expected one of u\*q<p"):
        Sampling(rule="u<p")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Sampling\.skipped: got 'lost', expected one of never"):
        Sampling(skipped="lost")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Sampling\.unit: got 2\.0, expected a number in"):
        Sampling(unit=2.0)
