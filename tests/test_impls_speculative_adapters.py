"""Samplers of libraries under the contract of verification decide as the exact oracle does."""

import dataclasses
import random
import runpy
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelassay.impls import flashinfer_speculative, transformers_speculative
from kernelassay.impls.contract import (
    VERIFYING,
    Capabilities,
    ContractError,
    Sampling,
    Unsupported,
    VerifyCall,
    checked_adapter,
)
from kernelassay.impls.verify_shims import ChainVerify, PackedVerify
from kernelassay.oracle.decisions import (
    GRID,
    SLACK,
    Noise,
    accept_pieces,
    breakpoints,
    decided_rounds,
    places,
)
from kernelassay.oracle.speculative import Law, Prefix, normalised, one_hot, residual
from kernelassay.plan import BUNDLED_EXPECTATIONS
from kernelassay.properties.domain import domain_of
from kernelassay.properties.engine import Options, check
from kernelassay.properties.expectations import Expectation, Expectations
from kernelassay.properties.laws.verifying import decisions
from kernelassay.properties.property import select
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.subject import Subject

ROOT = Path(__file__).parent.parent
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "verify_adapter.py"))
captured, own_noise = transformers_speculative.adapter, transformers_speculative.own_noise
KNOWN = Expectations.load(BUNDLED_EXPECTATIONS / "transformers.toml")
PARTS = 64  # laws are multiples of 1/64: exact in fp32, and so are their sums and differences
ZERO = Fraction(0)


@dataclasses.dataclass(frozen=True)
class Request:
    """A request's laws, k + 1 and k of them, its drafts, and the uniforms that judge them."""

    target: tuple[Law, ...]
    draft: tuple[Law, ...]
    drafts: Prefix
    accept: tuple[Fraction, ...]

    def accepted(self, slack: Fraction = SLACK) -> set[int]:
        """The right numbers of accepted drafts."""
        noise = Noise(self.accept, [ZERO] * len(self.target), "p/q>=u")
        rounds = decided_rounds(self.target, self.draft, self.drafts, noise, slack=slack)
        return {one.accepted for one in rounds}

    def weights(self, accepted: int) -> Law:
        """The law of the token after so many accepted drafts."""
        if accepted == len(self.drafts):
            return self.target[accepted]
        law = residual(self.target[accepted], self.draft[accepted])
        assert law is not None
        return law


def random_law(rng: random.Random, size: int) -> Law:
    """Multiples of 1/PARTS, some of them 0."""
    cuts = sorted(rng.choices(range(PARTS + 1), k=size - 1))
    edges = (0, *cuts, PARTS)
    return tuple(Fraction(b - a, PARTS) for a, b in pairwise(edges))


def random_request(rng: random.Random, size: int, k: int, certain: bool) -> Request:
    """Its uniforms see every decision, also at 0 and beside the breakpoints."""
    target = tuple(random_law(rng, size) for _ in range(k + 1))
    laws = [random_law(rng, size) for _ in range(k)]
    drafts = tuple(rng.choice([x for x, w in enumerate(law) if w]) for law in laws)
    if certain:
        laws = [one_hot(x, size) for x in drafts]
    accept = [
        rng.choice(places(breakpoints(accept_pieces(*row))))
        for row in zip(target, laws, drafts, strict=False)
    ]
    return Request(target, tuple(laws), drafts, tuple(accept))


def rows(laws: Sequence[Law], size: int) -> Tensor:
    """Laws as [n, V] in fp32, also none of them."""
    given = [[float(w) for w in law] for law in laws]
    return torch.tensor(given, dtype=torch.float32).reshape(-1, size)


def call_of(
    requests: Sequence[Request], *, bonus: Sequence[int] | None = None, certain: bool = False
) -> VerifyCall:
    """A flat call; its bonus rows are left out where the bonus tokens are given."""
    size = len(requests[0].target[0])
    dtype = torch.int64 if bonus is None else torch.int32
    counts = [len(one.drafts) for one in requests]
    kept = slice(None) if bonus is None else slice(-1)
    return VerifyCall(
        drafts=torch.tensor([x for one in requests for x in one.drafts], dtype=dtype),
        offsets=torch.tensor([*accumulate(counts, initial=0)], dtype=torch.int32),
        p=rows([law for one in requests for law in one.target[kept]], size),
        q=None if certain else rows([law for one in requests for law in one.draft], size),
        accept=torch.tensor([float(u) for one in requests for u in one.accept]),
        bonus=None if bonus is None else torch.tensor(bonus, dtype=dtype),
        most=max(counts),
    )


def zero_kept(one: Request) -> bool:
    """A draft of target probability 0 meets u = 0, where `p/q >= u` alone keeps it."""
    judged = zip(one.target, one.drafts, one.accept, strict=False)
    return any(p[x] == 0 and u == 0 for p, x, u in judged)


# transformers


@pytest.mark.parametrize("certain", [False, True], ids=["drawn drafts", "certain drafts"])
def test_transformers_decides_and_weighs_as_the_oracle(certain: bool) -> None:
    """Injected uniforms accept what they must; the weights are the residual or the bonus row."""
    pytest.importorskip("transformers")
    rng, seen = random.Random(7), set()
    for _ in range(400):
        one = random_request(rng, rng.randint(2, 6), rng.randint(1, 3), certain)
        if zero_kept(one):
            continue
        call = call_of([one], certain=certain)
        result = captured.verify(call)
        assert result.accepted is not None
        assert result.weights is not None
        (n,) = result.accepted.tolist()
        assert {n} == one.accepted(slack=Fraction(1, 2**40))
        seen.add((len(one.drafts), n))
        law = one.weights(n)
        got = (result.weights / result.weights.sum()).flatten().tolist()
        assert got == pytest.approx([float(w) for w in law], abs=1e-13)
        tokens = result.tokens.tolist()
        assert tokens == [[*one.drafts[:n], tokens[0][n], *[-1] * (call.most - n)]]
        assert law[tokens[0][n]] > 0
        assert result.tokens.dtype == torch.int64
    assert seen == {(k, n) for k in (1, 2, 3) for n in range(k + 1)}


def test_transformers_with_noise_of_its_own() -> None:
    """Torch's default generator gives the acceptance uniforms, one float64 for each draft."""
    pytest.importorskip("transformers")
    rng, seen = random.Random(8), set()
    with torch.random.fork_rng():
        for seed in range(200):
            one = random_request(rng, 4, 3, certain=False)
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.rand(3, dtype=torch.float64, generator=generator).tolist()
            one = dataclasses.replace(one, accept=tuple(Fraction(u) for u in drawn))
            torch.manual_seed(seed)
            call = dataclasses.replace(call_of([one]), accept=None)
            result = own_noise.verify(call)
            assert result.weights is None
            assert result.accepted is not None
            (n,) = result.accepted.tolist()
            assert {n} == one.accepted(slack=Fraction(1, 2**40))
            assert one.weights(n)[int(result.tokens[0, n])] > 0
            seen.add(n)
    assert seen == {0, 1, 2, 3}


def test_transformers_is_patched_during_a_call_alone() -> None:
    """torch's own functions are back after a call and after one that raises; no noise is used."""
    pytest.importorskip("transformers")
    functions, state = (torch.rand_like, torch.multinomial), torch.get_rng_state()
    call = call_of([random_request(random.Random(1), 4, 2, certain=False)])
    captured.verify(call)
    assert (torch.rand_like, torch.multinomial) == functions
    broken = dataclasses.replace(call, p=call.p * torch.nan)
    with pytest.raises(RuntimeError, match="nan"):
        captured.verify(broken)
    assert (torch.rand_like, torch.multinomial) == functions
    assert torch.equal(torch.get_rng_state(), state)


def test_transformers_accepts_what_the_target_forbids() -> None:
    """p(x) = 0 and u = 0: the draft is kept. docs/findings has it; 2^-24 above 0 it is right."""
    pytest.importorskip("transformers")
    half = (Fraction(1, 2), Fraction(1, 2), ZERO)
    even = (Fraction(1, 4), Fraction(1, 4), Fraction(1, 2))
    got = {}
    for u in (ZERO, GRID):
        one = Request((half, half), (even,), (2,), (u,))
        assert one.accepted(slack=ZERO) == {0}
        accepted = captured.verify(call_of([one])).accepted
        assert accepted is not None
        got[u] = int(accepted)
    assert got == {ZERO: 1, GRID: 0}


def test_the_finding_shows_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """The script has a uniform above 0, judged rightly, and one of 0 from the generator itself."""
    pytest.importorskip("transformers")
    with torch.random.fork_rng():
        runpy.run_path(str(ROOT / "docs" / "findings" / "transformers_zero_probability.py"))
    _, above, zero = capsys.readouterr().out.splitlines()
    assert "accepted 0, expected 0" in above
    assert "r = 0.000" in zero
    assert "accepted 1, expected 0; the first token 2, expected 0 or 1" in zero


def test_the_finding_of_an_empty_residual_shows_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """r = 1/2 accepts the draft; beside 1 it is rejected, and there is nothing to draw from."""
    pytest.importorskip("transformers")
    with torch.random.fork_rng():
        runpy.run_path(str(ROOT / "docs" / "findings" / "transformers_empty_residual.py"))
    *_, half, one = capsys.readouterr().out.splitlines()
    assert half.endswith("got 0")
    assert "got RuntimeError: probability tensor contains" in one


@pytest.mark.parametrize("entry", KNOWN.entries, ids=lambda e: e.law)
def test_transformers_known_faults_are_still_there(entry: Expectation) -> None:
    """Each witness fails as recorded, and what is said of it outside the region does not hold."""
    pytest.importorskip("transformers")
    subject = Subject(captured, "fp32", "cpu")
    (law,) = select(entry.law)
    options = Options(level="replay", expectations=Expectations((entry,)))
    record = check(law, subject, options).record
    assert record.status == "expected", f"{record.kind}: {record.reason}"
    assert isinstance(entry.witness, VerifyCase)
    beside = dataclasses.replace(entry.witness, p=((1, 1), (1, 0)))
    assert entry.covers(entry.witness, domain_of(subject))
    assert not entry.covers(beside, domain_of(subject))
    law.body(subject, beside)


def test_transformers_may_round_a_law_before_it_subtracts() -> None:
    """A softmax of laws that agree at a token leaves it a residual of 3e-8; the law allows it."""
    pytest.importorskip("transformers")
    case = VerifyCase(p=((1, 2, 3), (1, 0, 0)), q=((1, 1, 1),))
    third = Fraction(1, 3)
    laws = (normalised(case.p[0]), normalised(case.p[1])), ((third, third, third),)
    one = Request(*laws, (0,), (1 - GRID,))
    weights = captured.verify(call_of([one])).weights
    assert weights is not None
    assert one.weights(0)[1] == 0 != float(weights[0, 1])
    decisions(Subject(captured, "fp32", "cpu"), case)


# Samplers of the packed kind


def expected(one: Request, bonus: int, race: Sequence[Fraction]) -> Prefix:
    """The tokens of a request: argmax (residual / race) follows a rejection."""
    (n,) = one.accepted(slack=ZERO)
    if n == len(one.drafts):
        return (*one.drafts, bonus)
    scores = [w / noise for w, noise in zip(one.weights(n), race, strict=True)]
    return (*one.drafts[:n], scores.index(max(scores)))


def batches(certain: bool) -> list[tuple[list[Request], list[int], list[list[Fraction]]]]:
    """Ragged requests, bonus tokens and exponential-like noise, no two scores of which tie."""
    rng, size, found = random.Random(9), 5, []
    for _ in range(60):
        counts = rng.choices(range(4), k=rng.randint(1, 6))
        requests = [random_request(rng, size, k, certain) for k in counts]
        numerators = [rng.sample((101, 211, 307, 401, 503, 601), size) for _ in requests]
        race = [[Fraction(n, 256) for n in row] for row in numerators]
        found.append((requests, [rng.randrange(size) for _ in requests], race))
    return found


def run(adapter: PackedVerify, *, certain: bool) -> list[tuple[list[list[int]], list[list[int]]]]:
    """What *adapter* makes of each batch, and what is right."""
    both = []
    for requests, bonus, race in batches(certain):
        call = call_of(requests, bonus=bonus, certain=certain)
        noise = torch.tensor([[float(u) for u in row] for row in race])
        tokens = adapter.verify(dataclasses.replace(call, race=noise)).tokens
        right = [expected(*given) for given in zip(requests, bonus, race, strict=True)]
        padded = [[*row, *[-1] * (call.most + 1 - len(row))] for row in right]
        both.append((tokens.tolist(), padded))
        assert tokens.dtype == torch.int32
    return both


@pytest.mark.parametrize("certain", [False, True], ids=["drawn drafts", "certain drafts"])
def test_the_example_is_right(certain: bool) -> None:
    """Ragged batches, zeros and uniforms of 0 among them, come out as the oracle says."""
    for got, right in run(checked_adapter(EXAMPLE["right"]), certain=certain):
        assert got == right


@pytest.mark.parametrize("faulty", EXAMPLE["faulty"], ids=lambda one: one.name)
def test_the_faults_of_the_example_are_faults(faulty: PackedVerify) -> None:
    """Each answers some batches wrongly."""
    wrong = sum(got != right for got, right in run(checked_adapter(faulty), certain=False))
    assert 0 < wrong < len(batches(certain=False))


class Recorder:
    """A sampler that keeps what it is given."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.given = answer, ()

    def __call__(self, *given: Any) -> Any:
        self.given = given
        return self.answer


def test_a_packed_sampler_gets_the_tensors_themselves() -> None:
    """drafts, inclusive ends, q, p, bonus, accept, race and K, in this order, none copied."""
    requests = batches(certain=False)[0][0]
    call = call_of(requests, bonus=[0] * len(requests))
    call = dataclasses.replace(call, race=torch.ones(len(requests), 5))
    answer = torch.full((len(requests), call.most + 1), -1, dtype=torch.int32)
    kernel = Recorder(answer)
    assert PackedVerify("mine", kernel).verify(call).tokens is answer
    drafts, ends, *rest = kernel.given
    assert drafts is call.drafts
    assert ends.tolist() == [*accumulate(len(one.drafts) for one in requests)]
    assert ends.untyped_storage().data_ptr() == call.offsets.untyped_storage().data_ptr()
    wanted = (call.q, call.p, call.bonus, call.accept, call.race, call.most)
    assert all(a is b for a, b in zip(rest, wanted, strict=True))


# Samplers of the chain kind


def padded_call(R: int = 2, K: int = 3, V: int = 5) -> VerifyCall:
    """Equal numbers of drafts; uniform laws."""
    return VerifyCall(
        drafts=torch.arange(R * K, dtype=torch.int32).view(R, K) % V,
        offsets=torch.arange(R + 1, dtype=torch.int32) * K,
        p=torch.full((R, K + 1, V), 1 / V),
        q=torch.full((R, K, V), 1 / V),
        seeds=torch.arange(5, 5 + R),
        most=K,
    )


def test_a_chain_sampler_gets_the_tensors_themselves() -> None:
    """q, drafts, p and seeds; of its counters the second is that of emitted drafts."""
    call = padded_call()
    answer = tuple(torch.full((2,), n, dtype=torch.int32) for n in range(3))
    kernel = Recorder(answer)
    result = ChainVerify("mine", kernel).verify(call)
    assert all(
        a is b
        for a, b in zip(kernel.given, (call.q, call.drafts, call.p, call.seeds), strict=True)
    )
    assert (result.tokens, result.accepted) == (answer[0], answer[2])


@pytest.mark.parametrize("adapter", ["adapter", "own_noise"])
def test_flashinfer_is_called_as_it_wants(adapter: str, monkeypatch: Any) -> None:
    """The seed of request 0 is the call's, at offset 0; without seeds none is passed."""
    checked = checked_adapter(getattr(flashinfer_speculative, adapter))
    call, calls = padded_call(), []

    def chain_speculative_sampling(*given: Any, **noise: Any) -> tuple[Tensor, ...]:
        calls.append((given, noise))
        return tuple(torch.full((2,), n, dtype=torch.int32) for n in range(3))

    library = SimpleNamespace(chain_speculative_sampling=chain_speculative_sampling)
    monkeypatch.setattr(flashinfer_speculative, "_library", lambda: library)
    with pytest.raises(Unsupported, match=f"{checked.name}: it does not run on cpu"):
        checked.verify(call)
    seeds = call.seeds if adapter == "adapter" else None
    emitted = flashinfer_speculative.chain(call.q, call.drafts, call.p, seeds)[2]
    ((given, noise),) = calls
    assert all(a is b for a, b in zip(given, (call.q, call.drafts, call.p), strict=True))
    assert noise == ({} if seeds is None else {"seed": 5, "offset": 0})
    assert emitted.tolist() == [2, 2]


# What is declared and what is refused


ALL = [
    captured, own_noise, EXAMPLE["right"], *EXAMPLE["faulty"],
    flashinfer_speculative.adapter, flashinfer_speculative.own_noise,
]  # fmt: skip


@pytest.mark.parametrize("adapter", ALL, ids=lambda one: one.name)
def test_all_is_declared(adapter: Any) -> None:
    """Every feature is supported or declined."""
    capabilities = checked_adapter(adapter).capabilities
    assert capabilities.supports | capabilities.declines == set(VERIFYING)
    assert isinstance(capabilities.sampling, Sampling)


def needing(name: str, call: VerifyCall) -> VerifyCall:
    """*call*, of equal numbers of drafts, with one feature more."""
    R, drafts = call.requests, call.drafts
    padded = drafts.ndim == 2
    changes: dict[str, dict[str, Any]] = {
        "drafts.ragged": {"offsets": torch.tensor([0, 3, 4], dtype=torch.int32)},
        "drafts.none": {
            "drafts": drafts[:, :0] if padded else drafts[:0],
            "p": call.p[:, :1] if padded else call.p[:R],
            "offsets": torch.zeros(R + 1, dtype=torch.int32),
            "most": 0,
        },
        "drafts.skipped": {"drafts": torch.full_like(drafts, -1)},
        "draft_certain": {"q": None},
        "greedy": {"greedy": torch.ones(R, dtype=torch.bool)},
        "stop": {"stop": torch.zeros(R, 1, dtype=drafts.dtype)},
        "budget": {"budget": torch.ones(R, dtype=torch.int32)},
    }
    return dataclasses.replace(call, **changes[name])


@pytest.mark.parametrize("name", sorted(ChainVerify("mine", Recorder(None)).capabilities.declines))
def test_a_chain_sampler_refuses(name: str) -> None:
    """What is declined is refused by name, before the function is called."""
    kernel = Recorder(None)
    with pytest.raises(Unsupported, match=f"mine: .*{name}"):
        ChainVerify("mine", kernel).verify(needing(name, padded_call()))
    assert kernel.given == ()


@pytest.mark.parametrize(
    "adapter",
    [captured, own_noise, PackedVerify("mine", Recorder(None))],
    ids=lambda one: one.name,
)
def test_flat_adapters_refuse(adapter: Any) -> None:
    """The same of calls of the flat form; the library need not be there."""
    flat = call_of([random_request(random.Random(3), 4, 3, certain=False)])
    declines = adapter.capabilities.declines
    for name in declines - {"requests", "drafts.ragged"}:
        with pytest.raises(Unsupported, match=f"{adapter.name}: .*{name}"):
            adapter.verify(needing(name, flat))
    if "requests" in declines:
        two = call_of([random_request(random.Random(4), 4, k, certain=False) for k in (3, 1)])
        with pytest.raises(Unsupported, match=r"drafts\.ragged, requests"):
            adapter.verify(two)


def test_devices_and_dtypes_are_refused() -> None:
    """An interpreter's tensors are the CPU's."""
    call, kernel = padded_call(), Recorder((0, 1, 2))
    with pytest.raises(Unsupported, match="mine: dtype fp16; it takes fp32"):
        ChainVerify("mine", kernel).verify(dataclasses.replace(call, p=call.p.half()))
    with pytest.raises(Unsupported, match="mine: it does not run on cpu"):
        ChainVerify("mine", kernel, ("cuda",)).verify(call)
    assert kernel.given == ()
    ChainVerify("mine", kernel, ("interpreter",)).verify(call)
    assert len(kernel.given) == 4


def test_defaults_of_the_shims_can_be_overridden() -> None:
    """rule, fields of Sampling and of Capabilities; what is not supported is declined."""
    plain: Capabilities = PackedVerify("mine", Recorder(None)).capabilities
    assert plain.sampling == Sampling(
        noise="injected", rule="p/q>=u", draw="race", shared_draw=True, bonus="given"
    )
    changed = PackedVerify(
        "mine", Recorder(None), rule="u*q<p", sampling={"draw": "inverse_cdf"},
        supports={"verify", "drafts.many"}, max_requests=4,
    ).capabilities  # fmt: skip
    assert changed.sampling == dataclasses.replace(
        plain.sampling, rule="u*q<p", draw="inverse_cdf"
    )
    assert changed.declines == set(VERIFYING) - {"verify", "drafts.many"}
    assert changed.max_requests == 4
    chained = ChainVerify("mine", Recorder(None), sampling={"noise": "global"}).capabilities
    assert (chained.packing, chained.sampling) == ("padded", Sampling(noise="global"))
    with pytest.raises(ContractError, match="supports"):
        ChainVerify("mine", Recorder(None), supports={"verify", "drafts.may"})
