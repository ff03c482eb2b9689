"""The bundled verifications emit what the exact oracle decides, and refuse what is malformed."""

import dataclasses
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelassay.impls import torch_verify
from kernelassay.impls.contract import VERIFYING, Unsupported, checked_adapter
from kernelassay.impls.interpreter import interpreting
from kernelassay.impls.verification import Sampling, VerifyCall, VerifyResult
from kernelassay.impls.verify_calls import check_verify, drafting_used, refuse_verify
from kernelassay.oracle.decisions import (
    GRID,
    Noise,
    accept_pieces,
    breakpoints,
    correction_pieces,
    decided_rounds,
    draw_pieces,
    outcomes,
    places,
)
from kernelassay.oracle.speculative import (
    Law,
    Prefix,
    Round,
    first_maximum,
    greedy_round,
    normalised,
    one_hot,
    residual,
    round_law,
)
from kernelassay.oracle.statistics import decide

try:
    from kernelassay.impls import triton_verify
except ImportError:  # Triton is for Linux
    triton_verify = None  # type: ignore[assignment]

if interpreting():
    import triton
    import triton.language as tl

    @triton.jit
    def philox_words(SEEDS, COUNTERS, WORDS):  # type: ignore[no-untyped-def]
        """The first word of each of 8 seeds and counters."""
        at = tl.arange(0, 8)
        words = tl.randint(tl.load(SEEDS + at), tl.load(COUNTERS + at))
        tl.store(WORDS + at, words)


NEEDS = "needs TRITON_INTERPRET=1 before Triton is imported"
TRITON = pytest.mark.skipif(not interpreting(), reason=NEEDS)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SMALL_SLACK = Fraction(1, 2**23)
"""u q is rounded once; weights in 64ths and their sums are exact."""
UNLIMITED = 99


def kernels(*, torch_ones: tuple[Any, ...], triton_ones: tuple[str, ...]) -> list[Any]:
    """Parameters: some of torch_verify, and some names of triton_verify, where it interprets."""
    found = [pytest.param(x, id=x.name) for x in torch_ones]
    for name in triton_ones:
        kernel = getattr(triton_verify, name, None)
        found.append(pytest.param(kernel, id=f"triton {name}", marks=TRITON))
    return found


INJECTED = kernels(
    torch_ones=(torch_verify.adapter, torch_verify.padded), triton_ones=("adapter",)
)
SEEDED = kernels(torch_ones=(torch_verify.seeded,), triton_ones=("seeded",))
EVERY = [*INJECTED, *SEEDED]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request: k drafts with their laws, k + 1 laws of the target, and its uniforms."""

    target: Sequence[Law]
    draft: Sequence[Law] = ()
    drafts: Prefix = ()
    accept: Sequence[Fraction] = ()
    draw: Sequence[Fraction]
    greedy: bool = False
    stop: Prefix = ()
    budget: int | None = None


def right_rounds(asked: Asked, slack: Fraction) -> frozenset[Round]:
    """What the oracle allows. A draft of -1 was not made, and none after it counts."""
    k = next((i for i, x in enumerate(asked.drafts) if x < 0), len(asked.drafts))
    target, draft, drafts = asked.target[: k + 1], asked.draft[:k], asked.drafts[:k]
    if asked.greedy:
        return frozenset({greedy_round(target, drafts, asked.stop, asked.budget)})
    noise = Noise(asked.accept[:k], asked.draw[: k + 1])
    return decided_rounds(target, draft, drafts, noise, asked.stop, asked.budget, slack)


def some_law(rng: random.Random, V: int, exact: bool) -> Law:
    """Random masses with zeros; *exact* ones are 64ths, which every dtype can hold."""
    if not exact:
        masses = [rng.randrange(7) * rng.randrange(2) for _ in range(V)]
        masses[rng.randrange(V)] += 1
        return normalised(masses)
    tokens = rng.choices(rng.sample(range(V), rng.randint(1, V)), k=64 // rng.choice((1, 2, 16)))
    return normalised([tokens.count(y) for y in range(V)])


def pair_of_laws(rng: random.Random, V: int, exact: bool) -> tuple[Law, Law]:
    """p and q: unrelated, equal, or of disjoint supports."""
    p, q = some_law(rng, V, exact), some_law(rng, V, exact)
    kind = rng.randrange(5)
    if kind == 0:
        return p, p
    if kind == 1 and V > 1:
        half = V // 2
        return (*some_law(rng, half, exact), *(Fraction(0),) * (V - half)), (
            *(Fraction(0),) * half,
            *some_law(rng, V - half, exact),
        )
    return p, q


def uniform(rng: random.Random, breaks: Sequence[Fraction]) -> Fraction:
    """0, 1 - 2^-24, beside a breakpoint, inside a piece, or anywhere."""
    return rng.choice([*places(breaks), rng.randrange(2**24) * GRID])


def some_request(
    rng: random.Random, V: int, k: int, *, certain: bool, exact: bool, greedy: bool
) -> Asked:
    """Drafts from q, some with p(x) = 0, some not made, and uniforms where it matters."""
    target, draft, drafts, accept, draw = [], [], [], [], []
    for _ in range(k):
        p, q = pair_of_laws(rng, V, exact)
        made = [y for y in range(V) if q[y]]
        likely = [y for y in made if p[y]] if rng.randrange(2) else []
        x = rng.choice(likely or made)
        if certain:
            q = one_hot(x, V)
        corrections = correction_pieces(p, q) if residual(p, q) else draw_pieces(p)
        target.append(p)
        draft.append(q)
        drafts.append(x if rng.randrange(10) else -1)
        accept.append(uniform(rng, breakpoints(accept_pieces(p, q, x))))
        draw.append(uniform(rng, breakpoints(corrections if drafts[-1] >= 0 else draw_pieces(p))))
    target.append(some_law(rng, V, exact))
    draw.append(uniform(rng, breakpoints(draw_pieces(target[-1]))))
    if greedy:  # few drafts would be accepted
        best = map(first_maximum, target[:k])
        drafts = [
            b if x >= 0 and rng.randrange(3) else x for x, b in zip(drafts, best, strict=True)
        ]
    return Asked(
        target=target,
        draft=draft,
        drafts=(*drafts,),
        accept=accept,
        draw=draw,
        greedy=greedy,
        stop=tuple(rng.sample(range(V), rng.randrange(min(V, 2) + 1))),
        budget=rng.randrange(k + 3),
    )


def some_batch(seed: int, *, exact: bool, size: int = 40) -> tuple[list[Asked], bool]:
    """Requests over one vocabulary, and whether drafts were certain.

    The first and the last may have no draft. Features are there and absent.
    """
    rng = random.Random(seed)
    V, most, certain = rng.randint(1, 9), rng.choice((0, 1, 2, 4)), rng.randrange(3) == 0
    counts = [rng.randint(0, most) for _ in range(size)]
    counts[0 if seed % 2 else -1] = 0
    some_greedy = rng.randrange(3) > 0
    batch = [
        some_request(
            rng, V, k, certain=certain, exact=exact, greedy=some_greedy and rng.randrange(4) == 0
        )
        for k in counts
    ]
    if rng.randrange(2):
        batch = [dataclasses.replace(x, stop=()) for x in batch]
    if rng.randrange(2):
        batch = [dataclasses.replace(x, budget=None) for x in batch]
    return batch, certain


def packed(
    kernel: Any, batch: Sequence[Asked], certain: bool = False, dtype: str = "fp32"
) -> VerifyCall:
    """The call that asks *kernel* for a batch; what lies past a request's drafts is garbage."""
    V, counts = len(batch[0].target[0]), [len(x.drafts) for x in batch]
    most = max(counts)

    def rows(each: Sequence[Sequence[Any]], width: int, garbage: Any, kind: torch.dtype) -> Tensor:
        if kernel.capabilities.packing == "padded":
            each = [[*x, *[garbage] * (width - len(x))] for x in each]
            shape = [len(batch), width]
        else:
            each = [item for x in each for item in x]
            shape = [len(each)]
        shape += [V] * isinstance(garbage, list)
        return torch.tensor(each, dtype=torch.float64).reshape(shape).to(kind)

    def floats(laws: Sequence[Law]) -> list[list[float]]:
        return [[float(w) for w in law] for law in laws]

    nan = float("nan")
    sampling: Sampling = kernel.capabilities.sampling
    given: dict[str, Tensor] = {}
    if sampling.noise == "injected":
        given["accept"] = rows([[*map(float, x.accept)] for x in batch], most, nan, torch.float32)
        given["draw"] = rows([[*map(float, x.draw)] for x in batch], most + 1, nan, torch.float32)
    else:
        given["seeds"] = torch.arange(len(batch)) * 7919 - 1000
    if any(x.greedy for x in batch):
        given["greedy"] = torch.tensor([x.greedy for x in batch])
    if (width := max(len(x.stop) for x in batch)) > 0:
        stops = [[*x.stop, *[-1] * (width - len(x.stop))] for x in batch]
        given["stop"] = torch.tensor(stops, dtype=torch.int32)
    if any(x.budget is not None for x in batch):
        budgets = [UNLIMITED if x.budget is None else x.budget for x in batch]
        given["budget"] = torch.tensor(budgets, dtype=torch.int32)
    drafted = rows([floats(x.draft) for x in batch], most, [nan] * V, DTYPES[dtype])
    return VerifyCall(
        drafts=rows([x.drafts for x in batch], most, V + 7, torch.int32),
        offsets=torch.tensor([0, *counts]).cumsum(0).int(),
        p=rows([floats(x.target) for x in batch], most + 1, [nan] * V, DTYPES[dtype]),
        q=None if certain else drafted,
        most=most,
        **given,
    )


def rounds_of(result: VerifyResult, most: int) -> list[Round]:
    """The rounds of a result, each checked for its placeholders."""
    assert result.accepted is not None
    assert result.tokens.shape == (len(result.accepted), most + 1)
    assert result.tokens.dtype == torch.int32
    found = []
    for row, accepted in zip(result.tokens.tolist(), result.accepted.tolist(), strict=True):
        length = next((i for i, y in enumerate(row) if y == -1), most + 1)
        assert row[length:] == [-1] * (most + 1 - length)
        assert min(row[:length], default=0) >= 0
        found.append(Round(accepted, tuple(row[:length])))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", INJECTED)
def test_rounds_are_those_that_the_uniforms_decide(kernel: Any, dtype: str) -> None:
    """Ragged batches with all features, laws that every dtype holds: nothing but u q rounds."""
    decided, lengths = Counter[bool](), Counter[int]()
    for seed in range(25):
        batch, certain = some_batch(seed, exact=True)
        call = packed(kernel, batch, certain, dtype)
        found = rounds_of(kernel.verify(call), call.most)
        for asked, round_ in zip(batch, found, strict=True):
            right = right_rounds(asked, SMALL_SLACK)
            assert round_ in right, (seed, asked)
            decided[len(right) == 1] += 1
            lengths[len(round_.tokens) - round_.accepted] += 1
    assert decided[True] > 20 * decided[False]
    assert min(lengths[0], lengths[1]) > 100


@pytest.mark.parametrize("kernel", INJECTED)
def test_laws_that_are_rounded(kernel: Any) -> None:
    """Masses of any total: the oracle's slack covers the rounding of laws to fp32."""
    for seed in range(100, 125):
        batch, certain = some_batch(seed, exact=False)
        call = packed(kernel, batch, certain)
        found = rounds_of(kernel.verify(call), call.most)
        for asked, round_ in zip(batch, found, strict=True):
            assert round_ in right_rounds(asked, Fraction(1, 2**20)), (seed, asked)


@pytest.mark.parametrize("kernel", INJECTED)
def test_a_vocabulary_of_several_tiles(kernel: Any) -> None:
    """Sparse laws over 5000 tokens, the tile's edges among them; sampled and greedy requests."""
    V, edges = 5000, (0, 1, 1023, 1024, 2047, 2048, 4095, 4096, 4999)
    rng, batch = random.Random(5), []
    for greedy in (False,) * 9 + (True,) * 3:
        small = some_request(rng, len(edges), 2, certain=False, exact=True, greedy=greedy)
        if greedy:  # ties between tiles
            ties = [normalised([int(w > 0) for w in p]) for p in small.target]
            small = dataclasses.replace(small, target=ties)

        def spread(law: Law) -> Law:
            return tuple(law[edges.index(y)] if y in edges else Fraction(0) for y in range(V))

        batch.append(
            dataclasses.replace(
                small,
                target=[spread(p) for p in small.target],
                draft=[spread(q) for q in small.draft],
                drafts=tuple(edges[x] if x >= 0 else -1 for x in small.drafts),
                stop=tuple(edges[x] for x in small.stop),
                budget=None,
            )
        )
    found = rounds_of(kernel.verify(packed(kernel, batch)), 2)
    drawn = {asked.greedy: set[int]() for asked in batch}
    for asked, round_ in zip(batch, found, strict=True):
        assert round_ in right_rounds(asked, SMALL_SLACK), asked
        drawn[asked.greedy] |= {y // 1024 for y in round_.tokens[round_.accepted :]}
    assert min(map(len, drawn.values())) > 1  # tiles


def one_draft(kernel: Any, p: Sequence[float], q: Sequence[float], x: int, u: float) -> list[int]:
    """The first token for the draft *x* tested with *u*, for draws all over [0, 1)."""
    draws = torch.tensor([0.0, 2.0**-24, 0.25, 0.5, 0.5 + 2.0**-24, 0.75, 1 - 2.0**-24])
    R, V = len(draws), len(p)
    flat = kernel.capabilities.packing == "flat"
    call = VerifyCall(
        drafts=torch.full((R,), x, dtype=torch.int32),
        offsets=torch.arange(R + 1, dtype=torch.int32),
        p=torch.tensor(p).expand(2 * R, V),
        q=torch.tensor(q).expand(R, V),
        accept=torch.full((R,), u),
        draw=draws.repeat_interleave(2),
        most=1,
    )
    if not flat:
        assert call.q is not None
        assert call.accept is not None
        assert call.draw is not None
        call = dataclasses.replace(
            call,
            drafts=call.drafts[:, None],
            p=call.p.reshape(R, 2, V),
            q=call.q[:, None],
            accept=call.accept[:, None],
            draw=call.draw.reshape(R, 2),
        )
    law = normalised([Fraction(w) for w in p])
    found = rounds_of(kernel.verify(call), 1)
    for v, round_ in zip(draws.tolist(), found, strict=True):
        if round_.accepted == 0:
            assert {round_.tokens[0]} == outcomes(draw_pieces(law), Fraction(v), slack=Fraction(0))
    return [round_.accepted for round_ in found]


@pytest.mark.parametrize("kernel", INJECTED)
def test_where_nothing_is_left_the_target_is_drawn_from(kernel: Any) -> None:
    """p is q but for a last bit: x is rejected near u = 1, [p - q]+ is 0, y comes from p."""
    p, q, last = (0.0, 0.5, 0.5 - 2.0**-24), (0.0, 0.5, 0.5), 1 - 2.0**-24
    assert set(one_draft(kernel, p, q, 2, last)) == {0}
    assert set(one_draft(kernel, p, q, 1, last)) == {1}
    assert set(one_draft(kernel, p, q, 2, 0.5)) == {1}


@pytest.mark.parametrize("kernel", INJECTED)
def test_no_uniform_draws_a_token_of_weight_0(kernel: Any) -> None:
    """At 0 and below 1, whatever the sum of the weights, zeros around and between them."""
    at_breakpoints = (0.0, 0.25, 0.0, 0.25, 0.5, 0.0)
    uneven = (0.0, 0.0, 0.1, 0.0, 0.2, 0.7, 0.0)
    for p in (at_breakpoints, uneven, (0.0, 1e-40, 0.0), (0.0, 1.0, 2.0**-30, 0.0)):
        q = (1.0, *(0.0,) * (len(p) - 1))
        assert set(one_draft(kernel, p, q, 0, 0.0)) == {0}


@pytest.mark.parametrize("kernel", EVERY)
def test_only_what_a_request_needs_is_read(kernel: Any) -> None:
    """Rows past the budget, and q of greedy requests and of drafts not made, may be NaN."""
    batch = [x for seed in range(200, 206) for x in some_batch(seed, exact=True, size=12)[0]]
    batch = [x for x in batch if len(x.target[0]) == len(batch[0].target[0])]
    nothing = (float("nan"),) * len(batch[0].target[0])
    poisoned = []
    for asked in batch:
        most = len(asked.target) if asked.budget is None else asked.budget
        unread = [x < 0 or asked.greedy or i >= most for i, x in enumerate(asked.drafts)]
        draft = [nothing if n else q for n, q in zip(unread, asked.draft, strict=True)]
        target = [nothing if i >= most else p for i, p in enumerate(asked.target)]
        poisoned.append(dataclasses.replace(asked, target=target, draft=draft))  # type: ignore[arg-type]
    assert poisoned != batch
    expected, found = (kernel.verify(packed(kernel, x)) for x in (batch, poisoned))
    assert torch.equal(expected.tokens, found.tokens)
    assert torch.equal(expected.accepted, found.accepted)


@pytest.mark.parametrize("kernel", EVERY)
def test_views_of_any_strides_are_read(kernel: Any) -> None:
    """Laws by columns, tokens and noise with gaps: the same tokens. No input is changed."""
    call = packed(kernel, some_batch(3, exact=True)[0])
    expected = kernel.verify(call)
    tensors = {n: x for n, x in vars(call).items() if isinstance(x, Tensor)}
    before = {n: x.clone() for n, x in tensors.items()}
    views: dict[str, Any] = {n: x.repeat_interleave(2, -1)[..., ::2] for n, x in tensors.items()}
    views |= {n: tensors[n].mT.contiguous().mT for n in "pq"}
    found = kernel.verify(dataclasses.replace(call, **views))
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.accepted, expected.accepted)
    for name, x in tensors.items():
        torch.testing.assert_close(x, before[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kernel", EVERY)
def test_no_request(kernel: Any) -> None:
    """Without requests the results are empty."""
    asked = Asked(target=[one_hot(0, 3)], draw=[Fraction(0)])
    call = packed(kernel, [asked])
    none: dict[str, Any] = {n: x[:0] for n, x in vars(call).items() if isinstance(x, Tensor)}
    result = kernel.verify(dataclasses.replace(call, **none | {"offsets": call.offsets[:1]}))
    assert result.tokens.shape == (0, 1)
    assert result.accepted.shape == (0,)


# Drafts are rejected half the time, and the residuals have two tokens: a draw that repeats the
# uniform of the test before it favours one of them.
P = (normalised((3, 3, 2, 2)), normalised((1, 0, 2, 3)), normalised((1, 1, 0, 2)))
Q = (normalised((1, 1, 6, 2)), normalised((0, 1, 5, 0)))


def seeded_call(kernel: Any, n: int, first: int = 0) -> VerifyCall:
    """The same laws for n requests with seeds of their own; two drafts each, drawn from Q."""
    generator = torch.Generator().manual_seed(first)
    laws = torch.tensor([[float(w) for w in q] for q in Q])
    drafts = torch.multinomial(laws, n, replacement=True, generator=generator)
    p = torch.tensor([[float(w) for w in law] for law in P])
    return VerifyCall(
        drafts=drafts.T.flatten().int(),
        offsets=2 * torch.arange(n + 1, dtype=torch.int32),
        p=p.repeat(n, 1),
        q=laws.repeat(n, 1),
        seeds=torch.arange(first, first + n),
        most=2,
    )


@pytest.mark.parametrize("kernel", SEEDED)
def test_seeded_rounds_follow_the_law(kernel: Any) -> None:
    """Neighbouring seeds, below 0 and beyond 2^32 too: the law of whole rounds, and no other."""
    n = 4000
    law = round_law(P, Q, 2)
    no_rejection = round_law(P, P[:2], 2)
    for first in (-n // 2, 2**40):
        found = Counter(rounds_of(kernel.verify(seeded_call(kernel, n, first)), 2))
        cells = sorted({*law, *no_rejection, *found}, key=repr)
        counts = [found[cell] for cell in cells]
        verdict = decide(counts, [float(law.get(cell, 0)) for cell in cells])
        assert not verdict.rejected, verdict.reason
        assert decide(counts, [float(no_rejection.get(cell, 0)) for cell in cells]).rejected


@pytest.mark.parametrize("kernel", SEEDED)
def test_a_request_depends_on_its_seed_alone(kernel: Any) -> None:
    """Twice the same, reversed, and beside requests of other lengths: the same tokens."""
    call = seeded_call(kernel, 300)
    expected = kernel.verify(call).tokens
    assert torch.equal(kernel.verify(call).tokens, expected)
    assert len(set(map(tuple, expected.tolist()))) > 10
    assert call.seeds is not None
    drafts = call.drafts.reshape(300, 2).flip(0).flatten()
    back = dataclasses.replace(call, drafts=drafts, seeds=call.seeds.flip(0))
    assert torch.equal(kernel.verify(back).tokens.flip(0), expected)
    more = dataclasses.replace(
        call,
        offsets=torch.cat((call.offsets.new_zeros(1), call.offsets)),
        p=torch.cat((call.p[2:3], call.p)),
        seeds=torch.cat((call.seeds[-1:], call.seeds)),
    )
    assert torch.equal(kernel.verify(more).tokens[1:], expected)


@TRITON
def test_philox_is_that_of_triton() -> None:
    """PyTorch's integers and Triton's make the same words of seeds of any sign and size."""
    seeds = torch.tensor([0, 1, -1, 2**31, 2**32 + 5, -(2**63), 2**63 - 1, 12345])
    counters, words = torch.arange(8), torch.empty(8, dtype=torch.int32)
    philox_words[(1,)](seeds, counters.int(), words)
    expected = ((words.long() & 0xFFFFFFFF) >> 8).float() * 2.0**-24
    assert torch.equal(torch_verify.philox_uniforms(seeds, counters), expected)


OFFSETS = torch.tensor([0, 2, 3], dtype=torch.int32)
LAWS, BOTH = torch.full((5, 4), 0.25), torch.zeros(2, dtype=torch.int32)
FLAT: dict[str, Any] = {
    "drafts": torch.tensor([0, -1, 3], dtype=torch.int32),
    "offsets": OFFSETS,
    "p": LAWS,
    "q": LAWS[:3],
    "accept": torch.zeros(3),
    "draw": torch.zeros(5),
    "most": 2,
}
PADDED: dict[str, Any] = {
    "drafts": torch.tensor([[0, -1], [3, 9]], dtype=torch.int32),
    "offsets": OFFSETS,
    "p": torch.full((2, 3, 4), 0.25),
    "q": torch.full((2, 2, 4), 0.25),
    "accept": torch.zeros(2, 2),
    "draw": torch.zeros(2, 3),
    "most": 2,
}


def holding(x: Tensor, number: float, *at: int) -> Tensor:
    """*x* with a number in one place."""
    changed = x.clone()
    changed[at] = number
    return changed


NAN, INF = float("nan"), float("inf")
SHARED: list[tuple[dict[str, Any], str]] = [
    ({"offsets": OFFSETS.long()}, r"offsets: got torch.int64 \(3,\), expected torch.int32"),
    ({"offsets": OFFSETS[None]}, r"offsets: got torch.int32 \(1, 3\)"),
    ({"offsets": OFFSETS[:0]}, r"offsets: got torch.int32 \(0,\)"),
    ({"offsets": OFFSETS.to("meta")}, "offsets: got meta, expected cpu, as p"),
    ({"offsets": OFFSETS + 1}, r"offsets: got \[1, 3, 4\], expected 0, then none below"),
    ({"offsets": holding(OFFSETS, 4, 1)}, r"offsets: got \[0, 4, 3\]"),
    ({"most": 3}, "most: got 3, expected 2, the most drafts"),
    ({"most": True}, "most: got True"),
    ({"greedy": BOTH}, "greedy: got torch.int32, expected torch.bool"),
    ({"greedy": torch.zeros(3).bool()}, r"greedy: got shape \(3,\), expected \(2,\)"),
    ({"stop": BOTH}, "stop: got 1 axes, expected 2"),
    ({"stop": BOTH[:1, None]}, r"stop: got shape \(1, 1\), expected \(2, 1\)"),
    ({"stop": BOTH[:, None].long()}, "stop: got torch.int64, expected torch.int32"),
    ({"budget": BOTH[:1]}, r"budget: got shape \(1,\), expected \(2,\)"),
    ({"budget": BOTH.long()}, "budget: got torch.int64, expected torch.int32"),
    ({"budget": BOTH - 1}, r"budget: got -1 at \[0\], expected 0 or more"),
    ({"accept": None}, "accept: got None, expected a tensor: noise is injected"),
    ({"draw": None}, "draw: got None, expected a tensor"),
    ({"seeds": BOTH.long()}, "seeds: got a tensor, expected None: noise is injected"),
    ({"generators": ()}, "generators: got a tuple, expected None: noise is injected"),
    ({"race": torch.ones(2, 4)}, "race: got a tensor, expected None"),
    ({"bonus": BOTH}, "bonus: got a tensor, expected None: .* the bonus drawn"),
]
OF_FLAT: list[tuple[dict[str, Any], str]] = [
    ({"p": LAWS[None]}, "p: got 3 axes, expected 2: flat rows of V weights"),
    ({"p": LAWS[:4]}, r"p: got shape \(4, 4\), expected \(5, 4\)"),
    ({"p": LAWS[:, :0]}, "p: got V = 0, expected V of 1 or more"),
    ({"p": LAWS.int()}, "p: got torch.int32, expected floating point"),
    ({"p": holding(LAWS, NAN, 1, 1)}, r"p: got weights from nan to nan at \[1\], expected finite"),
    ({"p": holding(LAWS, INF, 4, 0)}, r"p: got weights from 0.25 to inf at \[4\]"),
    ({"p": holding(LAWS, -1.0, 0, 3)}, r"p: got weights from -1.0 to 0.25 at \[0\]"),
    ({"p": holding(LAWS, 0.0, 3)}, r"p: got weights from 0.0 to 0.0 at \[3\]"),
    ({"q": LAWS}, r"q: got shape \(5, 4\), expected \(3, 4\)"),
    ({"q": LAWS[:3].half()}, "q: got torch.float16, expected torch.float32"),
    ({"q": LAWS[:3].to("meta")}, "q: got meta, expected cpu, as p"),
    ({"q": holding(LAWS[:3], NAN, 0, 0)}, r"q: got weights from nan to nan at \[0\]"),
    ({"q": holding(LAWS[:3], 0.0, 2)}, r"q: got weights from 0.0 to 0.0 at \[2\]"),
    ({"drafts": FLAT["drafts"][:2]}, r"drafts: got shape \(2,\), expected \(3,\)"),
    ({"drafts": FLAT["drafts"].long()}, "drafts: got torch.int64, expected torch.int32"),
    ({"drafts": FLAT["drafts"] + 1}, r"drafts: got 4 at \[2\], expected -1 to 3"),
    ({"drafts": FLAT["drafts"] - 1}, r"drafts: got -2 at \[1\], expected -1 to 3"),
    ({"accept": torch.zeros(5)}, r"accept: got shape \(5,\), expected \(3,\)"),
    ({"accept": torch.ones(3)}, r"accept: got 1.0 at \[0\], expected 0 <= u < 1"),
    ({"draw": torch.zeros(5).double()}, "draw: got torch.float64, expected torch.float32"),
    ({"draw": holding(torch.zeros(5), NAN, 4)}, r"draw: got nan at \[4\]"),
]
OF_PADDED: list[tuple[dict[str, Any], str]] = [
    ({"p": LAWS}, "p: got 2 axes, expected 3: padded rows of V weights"),
    ({"p": holding(PADDED["p"], NAN, 1, 1, 0)}, r"p: got weights from nan to nan at \[1, 1\]"),
    ({"q": holding(PADDED["q"], INF, 1, 0, 0)}, r"q: got weights from 0.25 to inf at \[1, 0\]"),
    ({"drafts": PADDED["drafts"][:, :1]}, r"drafts: got shape \(2, 1\), expected \(2, 2\)"),
    ({"drafts": PADDED["drafts"].flip(1)}, r"drafts: got 9 at \[1, 0\], expected -1 to 3"),
    ({"draw": holding(PADDED["draw"], 1.5, 1, 1)}, r"draw: got 1.5 at \[1, 1\]"),
]


@pytest.mark.parametrize(
    ("whole", "changes", "words"),
    [
        *((FLAT, *case) for case in [*SHARED, *OF_FLAT]),
        *((PADDED, *case) for case in [*SHARED, *OF_PADDED]),
    ],
)
def test_malformed_calls_raise(whole: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    """What does not fit is a ValueError that names the argument, what came and what fits."""
    kernel = torch_verify.adapter if whole is FLAT else torch_verify.padded
    kernel.verify(VerifyCall(**whole))
    with pytest.raises(ValueError, match=words):
        kernel.verify(VerifyCall(**whole | changes))


@pytest.mark.parametrize("kernel", EVERY)
def test_each_kernel_looks_at_its_calls(kernel: Any) -> None:
    """A malformed call raises and another dtype is refused, whatever the noise."""
    call = packed(kernel, some_batch(3, exact=True)[0])
    kernel.verify(call)
    with pytest.raises(ValueError, match="most: got 99"):
        kernel.verify(dataclasses.replace(call, most=99))
    assert call.q is not None
    with pytest.raises(Unsupported, match="dtype fp64; it takes fp32, bf16, fp16"):
        kernel.verify(dataclasses.replace(call, p=call.p.double(), q=call.q.double()))


NO_NOISE: dict[str, Any] = {"accept": None, "draw": None}
GENERATORS = tuple(torch.Generator().manual_seed(n) for n in range(2))
OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"draw": "race"}, {"draw": None, "race": torch.ones(2, 4)}, ""),
    ({"draw": "race"}, {"draw": None, "race": torch.zeros(2, 4)}, r"race: got 0.0 at \[0, 0\]"),
    ({"draw": "race"}, {}, "draw: got a tensor, expected None"),
    ({"shared_draw": True}, {"draw": torch.zeros(2)}, ""),
    ({"shared_draw": True}, {}, r"draw: got shape \(5,\), expected \(2,\)"),
    ({"noise": "captured"}, {"draw": None}, ""),
    ({"noise": "generators"}, {**NO_NOISE, "generators": GENERATORS}, ""),
    ({"noise": "generators"}, NO_NOISE, "generators: got None, expected a tuple: noise is gen"),
    (
        {"noise": "generators"},
        {**NO_NOISE, "generators": GENERATORS[:1]},
        "generators: got 1 on cpu, expected 2 on cpu, as p",
    ),
    ({"noise": "captured"}, {}, "draw: got a tensor, expected None: noise is captured"),
    ({"noise": "global"}, {"accept": None, "draw": None}, ""),
    ({"noise": "global"}, {"draw": None}, "accept: got a tensor, expected None: noise is global"),
    (
        {"bonus": "given"},
        {"p": LAWS[:3], "draw": torch.zeros(3), "bonus": BOTH},
        "",
    ),
    ({"bonus": "given"}, {"bonus": BOTH}, r"p: got shape \(5, 4\), expected \(3, 4\)"),
    (
        {"bonus": "given"},
        {"p": LAWS[:3], "draw": torch.zeros(3), "bonus": BOTH - 1},
        r"bonus: got -1 at \[0\], expected 0 to 3",
    ),
    ({"bad_laws": "undefined"}, {"p": holding(LAWS, NAN, 1, 1)}, ""),
    ({"tokens": "int64"}, {"drafts": FLAT["drafts"].long()}, ""),
    ({"tokens": "int64"}, {}, "drafts: got torch.int32, expected torch.int64"),
]


@pytest.mark.parametrize(("declared", "changes", "words"), OTHERS)
def test_a_call_is_checked_as_declared(
    declared: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    """Other noise, a given bonus, other tokens; without words the call is well formed."""
    sampling = dataclasses.replace(torch_verify.adapter.capabilities.sampling, **declared)  # type: ignore[type-var]
    capabilities = dataclasses.replace(torch_verify.adapter.capabilities, sampling=sampling)
    call = VerifyCall(**FLAT | changes)
    if not words:
        check_verify(call, capabilities)
        return
    with pytest.raises(ValueError, match=words):
        check_verify(call, capabilities)


STOP = torch.tensor([[0, -1], [-1, -1]], dtype=torch.int32)
NO_LAW = r"got weights from {} at \[{}\], expected finite ones, none negative, not all 0$"
UNUSED: list[tuple[str, dict[str, Any], str, tuple[int, ...]]] = [
    ("never_made", {}, "q", (1,)),  # no draft was drawn from it
    ("never_made", {}, "p", (2,)),  # follows a draft of -1
    ("rejected", {}, "p", (2,)),
    ("rejected", {"drafts": torch.tensor([-1, 0, 3]).int()}, "q", (1,)),
    ("rejected", {"drafts": torch.tensor([-1, -1, 3]).int()}, "q", (1,)),
    ("rejected", {"greedy": torch.tensor([True, False])}, "q", (1,)),
    ("rejected", {"budget": torch.tensor([1, 1]).int()}, "q", (1,)),
    ("rejected", {"stop": STOP}, "q", (1,)),  # draft 0 of the first request is a stop token
    ("rejected", {"stop": STOP}, "p", (1,)),
]
"""What is declared of drafts of -1, a change of the call, and rows of p or q that are unused."""
USED: list[tuple[str, dict[str, Any], str, int]] = [
    ("rejected", {}, "q", 1),  # of the draft of -1
    ("rejected", {"stop": STOP.flip(0)}, "q", 1),
    ("rejected", {"greedy": torch.tensor([False, True])}, "q", 1),
    ("rejected", {"budget": torch.tensor([2, 1]).int()}, "q", 1),
    ("rejected", {"drafts": torch.tensor([-1, 0, 3]).int()}, "q", 0),
    ("never_made", {}, "q", 0),
    ("never_made", {}, "p", 1),  # what is drawn instead of a draft of -1
    ("rejected", {"stop": STOP, "drafts": torch.tensor([1, 0, 3]).int()}, "q", 1),
    ("rejected", {"stop": STOP}, "p", 3),  # another request's stop token
]
WRONG_ROWS = {"nan to nan": NAN, "-1.0 to -1.0": -1.0, "inf to inf": INF, "0.0 to 0.0": 0.0}


def skipping(declared: str, packing: str = "flat") -> Any:
    """The capabilities of the reference, and what a draft of -1 is."""
    of = torch_verify.adapter if packing == "flat" else torch_verify.padded
    sampling = dataclasses.replace(of.capabilities.sampling, skipped=declared)  # type: ignore[type-var]
    return dataclasses.replace(of.capabilities, sampling=sampling)


@pytest.mark.parametrize(("declared", "changes", "name", "rows"), UNUSED)
def test_an_unused_row_may_hold_anything(
    declared: str, changes: dict[str, Any], name: str, rows: tuple[int, ...]
) -> None:
    """No draft was drawn from it, or nothing is emitted there."""
    for row, number in itertools.product(rows, WRONG_ROWS.values()):
        given = {name: holding(FLAT[name], number, row)}
        check_verify(VerifyCall(**FLAT | changes | given), skipping(declared))


@pytest.mark.parametrize(("declared", "changes", "name", "row"), USED)
def test_a_row_in_use_must_be_a_law(
    declared: str, changes: dict[str, Any], name: str, row: int
) -> None:
    """The error names the argument, what it holds, where, and what was expected."""
    for words, number in WRONG_ROWS.items():
        given = {name: holding(FLAT[name], number, row)}
        with pytest.raises(ValueError, match=f"^{name}: {NO_LAW.format(words, row)}"):
            check_verify(VerifyCall(**FLAT | changes | given), skipping(declared))


def test_rows_in_use_of_padded_drafts() -> None:
    """A draft of -1 has its row; what is past a request's drafts has none."""
    never_made, rejected = (skipping(d, "padded") for d in ("never_made", "rejected"))
    past = PADDED | {"drafts": torch.tensor([[0, -1], [3, -1]]).int()}
    check_verify(VerifyCall(**past | {"q": holding(PADDED["q"], NAN, 1, 1)}), rejected)
    spoilt = VerifyCall(**PADDED | {"q": holding(PADDED["q"], NAN, 0, 1)})
    check_verify(spoilt, never_made)
    with pytest.raises(ValueError, match=f"^q: {NO_LAW.format('nan to nan', '0, 1')}"):
        check_verify(spoilt, rejected)


NONE: dict[str, Any] = {"drafts": FLAT["drafts"][:0], "offsets": OFFSETS[:1].expand(3), "most": 0}
NONE |= {"p": LAWS[:2], "q": LAWS[:0], "accept": torch.zeros(0), "draw": torch.zeros(2)}
NEEDED: dict[str, dict[str, Any]] = {
    "requests": {},
    "drafts.many": {},
    "drafts.ragged": {},
    "drafts.skipped": {},
    "draft_law": {},
    "drafts.none": NONE,
    "draft_certain": {"q": None},
    "greedy": {"greedy": torch.tensor([False, True])},
    "stop": {"stop": torch.full((2, 1), -1, dtype=torch.int32)},
    "budget": {"budget": BOTH},
}
"""What calls for a feature."""


@pytest.mark.parametrize("feature", NEEDED)
def test_a_feature_that_is_lacking_is_refused(feature: str) -> None:
    """By name, and only where the call needs it."""
    capabilities = torch_verify.adapter.capabilities
    fewer = dataclasses.replace(capabilities, supports=capabilities.supports - {feature})
    call = VerifyCall(**FLAT | NEEDED[feature])
    refuse_verify("some", capabilities, call)
    with pytest.raises(Unsupported, match=f"^some: the call needs {feature}$"):
        refuse_verify("some", fewer, call)
    refuse_verify("some", fewer, VerifyCall(**BARE if feature != "draft_certain" else FLAT))


BARE: dict[str, Any] = {"drafts": FLAT["drafts"][:1], "offsets": OFFSETS[:2] // 2, "most": 1}
BARE |= {"p": LAWS[:2], "q": None, "accept": torch.zeros(1), "draw": torch.zeros(2)}


def test_every_feature_has_a_call_that_needs_it() -> None:
    """One request with one certain draft needs nothing else; each other feature is named."""
    assert {"verify", *NEEDED} == set(VERIFYING)
    assert drafting_used(VerifyCall(**BARE), "flat") == {"verify", "draft_certain"}
    greedy = BARE | {"greedy": torch.tensor([False])}
    assert drafting_used(VerifyCall(**greedy), "flat") == {"verify", "draft_certain"}
    assert "drafts.skipped" in drafting_used(VerifyCall(**PADDED), "padded")


def test_without_the_interpreter_a_cpu_tensor_is_refused() -> None:
    """A compiling process imports the module without a GPU and says what a CPU tensor needs."""
    pytest.importorskip("triton")
    code = (
        "import torch\n"
        "from kernelassay.impls.contract import Unsupported, VerifyCall\n"
        "from kernelassay.impls.triton_verify import seeded\n"
        "no = torch.zeros(0, dtype=torch.int32)\n"
        "call = VerifyCall(drafts=no, offsets=torch.zeros(2, dtype=torch.int32), most=0,\n"
        "                  p=torch.ones(1, 1), q=None, seeds=torch.zeros(1, dtype=torch.int64))\n"
        "try: seeded.verify(call)\n"
        "except Unsupported as refusal: print(refusal)"
    )
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert "set TRITON_INTERPRET=1 before Triton is imported" in done.stdout


@pytest.mark.parametrize("kernel", EVERY)
def test_the_adapters_keep_to_the_contract(kernel: Any) -> None:
    """Name, capabilities and verify are what the contract asks for; all is supported."""
    assert checked_adapter(kernel) is kernel
    assert kernel.capabilities.supports == set(VERIFYING)
    assert kernel.capabilities.sampling.bad_laws == "refused"


@TRITON
def test_what_is_compiled_without_a_device_is_all_there_is_to_say() -> None:
    """Each spec types every argument of the kernel; each optional one is there and is absent."""
    absent, tiles = [], []
    for kernel, signature, constexprs, _ in triton_verify.compile_specs():
        assert set(signature) == set(kernel.arg_names)
        absent.append({name for name, value in constexprs.items() if value is None})
        tiles.append(constexprs["TILE"])
    assert set.union(*absent) == set(triton_verify.OPTIONAL)
    assert not set.intersection(*absent)
    assert len(set(tiles)) > 1
