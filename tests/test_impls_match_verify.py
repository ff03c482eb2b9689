"""Samplers of one token as verifications: what is emitted, and laws hidden from truncation."""

import dataclasses
import random
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelassay.impls import flashinfer_sampling, torch_sampling
from kernelassay.impls.contract import (
    VERIFYING,
    ContractError,
    Sampling,
    Unsupported,
    VerifyCall,
    checked_adapter,
)
from kernelassay.impls.verify_shims import JUNK, MatchVerify, Truncated, truncated
from kernelassay.oracle import sampling_maps
from kernelassay.oracle.speculative import normalised

FLASHINFER = {
    "from_probs": "sampling_from_probs",
    "from_logits": "sampling_from_logits",
    "top_k": "top_k_sampling_from_probs",
    "top_p": "top_p_sampling_from_probs",
    "min_p": "min_p_sampling_from_probs",
    "top_k_top_p": "top_k_top_p_sampling_from_probs",
}
"""The library's function behind each adapter."""
TORCH = ("adapter", "top_k", "top_p", "min_p")
V = 4
ROUNDING = Fraction(1, 2**22)
"""Of a law that was scaled in float64 and rounded to float32, relatively."""


class Fixed:
    """A sampler that answers the same whatever it is asked, and keeps what it was given."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.given: tuple[Any, ...] = ()

    def __call__(self, *given: Any) -> Tensor:
        self.given = given
        return self.tokens


def call_of(drafts: list[list[int]], **more: Any) -> VerifyCall:
    """A flat call of requests with these drafts; laws are uniform."""
    counts = [len(x) for x in drafts]
    N, R = sum(counts), len(drafts)
    call = VerifyCall(
        drafts=torch.tensor([x for one in drafts for x in one], dtype=torch.int32),
        offsets=torch.tensor([*accumulate(counts, initial=0)], dtype=torch.int32),
        p=torch.full((N + R, V), 1 / V),
        q=torch.full((N, V), 1 / V),
        most=max(counts),
    )
    return dataclasses.replace(call, **more)


def emitted(drafts: list[int], drawn: list[int]) -> list[int]:
    """Drawn tokens of a request up to the first that no draft foresaw."""
    tokens = []
    for i, token in enumerate(drawn):
        tokens.append(token)
        if i == len(drafts) or drafts[i] != token:
            break
    return tokens


def check(drafts: list[list[int]], tokens: list[int], blank: int = -1) -> None:
    """The answer to a call is that of a loop over requests, draft by draft."""
    K, rest, right = max(map(len, drafts)), [*tokens], []
    for one in drafts:
        right.append(emitted(one, rest[: len(one) + 1]))
        rest = rest[len(one) + 1 :]
    adapter = MatchVerify("mine", Fixed(torch.tensor(tokens)), sampling={"placeholder": blank})
    result = adapter.verify(call_of(drafts))
    assert result.tokens.tolist() == [[*x, *[blank] * (K + 1 - len(x))] for x in right]
    assert result.accepted is not None
    assert result.accepted.tolist() == [len(x) - 1 for x in right]
    assert result.tokens.dtype == torch.int32


@pytest.mark.parametrize(
    ("drafts", "tokens"),
    [
        ([[], [], []], [1, 2, 3]),
        ([[]], [3]),
        ([[1, 2], []], [1, 2, 3, 0]),
        ([[], [1, 2]], [0, 1, 2, 3]),
        ([[2], [], []], [2, 1, 0, 3]),
        ([[1, 2, 3]], [1, 2, 3, 0]),
        ([[1, 2, 3]], [0, 2, 3, 0]),
        ([[1, 2, 3]], [1, 0, 3, 0]),
        ([[-1, 2]], [3, 2, 1]),
        ([[1, -1, 3]], [1, 0, 3, 2]),
        ([[-1], [1], [-1, -1]], [0, 1, 2, 3, 0, 1, 2]),
    ],
)
def test_a_round_is_what_was_drawn_up_to_a_surprise(
    drafts: list[list[int]], tokens: list[int]
) -> None:
    """No draft at all, none for the last requests, drafts never made, all kept, none kept."""
    check(drafts, tokens)


@pytest.mark.parametrize("blank", [-1, -100])
def test_ragged_batches(blank: int) -> None:
    """Two of three drafts are what is drawn, so that rounds of every length occur."""
    rng, lengths = random.Random(3), set()
    for _ in range(300):
        counts = rng.choices(range(5), k=rng.randint(1, 6))
        tokens = rng.choices(range(V), k=sum(counts) + len(counts))
        rest, drafts = [*tokens], []
        for k in counts:
            drawn, rest = rest[: k + 1], rest[k + 1 :]
            drafts.append([x if rng.random() < 2 / 3 else rng.randrange(-1, V) for x in drawn[:k]])
            lengths.add((k, len(emitted(drafts[-1], drawn))))
        check(drafts, tokens, blank)
    assert lengths == {(k, n) for k in range(5) for n in range(1, k + 2)}


def test_a_sampler_gets_the_laws_themselves() -> None:
    """p is not copied, and seeds are the call's; tokens come in the dtype of the drafts."""
    call, kernel = call_of([[1, 2], [0]]), Fixed(torch.tensor([1, 0, 0, 0, 3]))
    call = dataclasses.replace(call, seeds=torch.tensor([7, 8]), drafts=call.drafts.long())
    result = MatchVerify("mine", kernel, sampling={"tokens": "int64"}).verify(call)
    p, seeds = kernel.given
    assert p is call.p
    assert seeds is call.seeds
    assert result.tokens.tolist() == [[1, 0, -1], [0, 3, -1]]
    assert result.tokens.dtype == torch.int64


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("greedy", {"greedy": torch.ones(2, dtype=torch.bool)}),
        ("stop", {"stop": torch.zeros(2, 1, dtype=torch.int32)}),
        ("budget", {"budget": torch.ones(2, dtype=torch.int32)}),
        ("dtype fp16", {"p": torch.full((5, V), 1 / V).half()}),
    ],
)
def test_what_a_sampler_has_no_word_for_is_refused(name: str, more: dict[str, Any]) -> None:
    """By name, before it is called."""
    kernel = Fixed(torch.zeros(5))
    with pytest.raises(Unsupported, match=f"mine: .*{name}"):
        MatchVerify("mine", kernel).verify(call_of([[1, 2], [0]], **more))
    assert kernel.given == ()


def test_a_sampler_of_another_device_is_refused() -> None:
    """An interpreter's tensors are the CPU's."""
    kernel = Fixed(torch.zeros(5))
    with pytest.raises(Unsupported, match="mine: it does not run on cpu"):
        MatchVerify("mine", kernel, ("cuda",)).verify(call_of([[1, 2], [0]]))
    assert kernel.given == ()
    MatchVerify("mine", kernel, ("interpreter",)).verify(call_of([[1, 2], [0]]))
    assert len(kernel.given) == 2


ADAPTERS = [
    *(getattr(torch_sampling, name) for name in TORCH),
    *(getattr(flashinfer_sampling, name) for name in FLASHINFER),
]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda one: one.name)
def test_all_is_declared(adapter: Any) -> None:
    """Every feature is supported or declined, and rounds are judged by what they emit."""
    capabilities = checked_adapter(adapter).capabilities
    assert capabilities.supports | capabilities.declines == set(VERIFYING)
    assert isinstance(capabilities.sampling, Sampling)
    assert capabilities.sampling.rounds == "joint"


def test_defaults_can_be_overridden() -> None:
    """Noise is torch's own unless something else is said; names are checked."""
    plain = MatchVerify("mine", Fixed(torch.zeros(1))).capabilities
    assert plain.sampling == Sampling(noise="global", rounds="joint")
    assert plain.declines == {"greedy", "stop", "budget"}
    changed = MatchVerify(
        "mine", Fixed(torch.zeros(1)), sampling={"noise": "seeded"}, supports={"verify"}
    ).capabilities
    assert changed.sampling == Sampling(noise="seeded", rounds="joint")
    assert changed.declines == set(VERIFYING) - {"verify"}
    with pytest.raises(ContractError, match="supports"):
        MatchVerify("mine", Fixed(torch.zeros(1)), supports={"verify", "drafts.may"})


# Laws hidden from truncation


def hidden_laws() -> list[list[int]]:
    """Masses, zeros and ties among them; the least probability is 2^-16 or so."""
    rng, found = random.Random(5), [[1], [0, 1], [1, 1], [1, 2**16], [0, 3, 0, 3, 1]]
    for _ in range(400):
        size, most = rng.randint(1, 9), rng.choice((1, 3, 8, 1000))
        masses = [rng.choice((0, rng.randint(1, most))) for _ in range(size)]
        if any(masses):
            found.append(masses)
    return found


def given_of(masses: list[int]) -> Truncated:
    """The law of these masses, hidden as a call would hide it."""
    return truncated(torch.tensor([[w / sum(masses) for w in masses]], dtype=torch.float32))


def exact(x: Tensor) -> list[Fraction]:
    """The values of *x* as they are."""
    return [Fraction(w) for w in x.double().flatten().tolist()]


def number(x: Tensor) -> Fraction:
    """The one value of *x* as it is."""
    return Fraction(float(x))


Threshold = Callable[[Truncated, list[Fraction]], tuple[Fraction, ...]]
KEPT: dict[str, Threshold] = {
    "top_k": lambda g, x: sampling_maps.top_k(x, int(g.top_k)),
    "top_p": lambda g, x: sampling_maps.top_p(x, number(g.top_p)),
    "min_p": lambda g, x: sampling_maps.min_p(x, number(g.min_p)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_a_threshold_leaves_is_the_law(name: str) -> None:
    """Its numbers as fractions: junk goes, what has a probability stays, in proportion."""
    for masses in hidden_laws():
        given, p = given_of(masses), normalised(masses)
        kept = KEPT[name](given, exact(given.x))
        assert not any(kept[len(p) :]), masses
        for got, right in zip(kept, p, strict=False):
            assert abs(got - right) <= ROUNDING * right, masses


def test_hidden_laws_are_laws() -> None:
    """They add up to 1; junk has 16 times the least probability, an eighth at most."""
    for masses in hidden_laws():
        given = given_of(masses)
        x = exact(given.x)
        junk = sum(x[len(masses) :], Fraction(0))
        least = min(w for w in normalised(masses) if w)
        assert len(x) == len(masses) + JUNK
        assert abs(sum(x, Fraction(-1))) <= ROUNDING
        right = min(least * 16, Fraction(1, 8))
        assert abs(junk - right) <= ROUNDING * right
        assert all(w > 0 for w in x[len(masses) :])


def test_thresholds_are_far_from_rounding() -> None:
    """Each lies a sixth of the least probability from where another set would be kept."""
    for masses in hidden_laws():
        given = given_of(masses)
        x, share, ratio = exact(given.x), number(given.top_p), number(given.min_p)
        least = min(w for w in normalised(masses) if w)
        assert sampling_maps.top_p_margin(x, share) >= least / 6
        assert min(abs(w - ratio * max(x)) for w in x) >= least / 6
        kept, *gone = sorted(x, reverse=True)[int(given.top_k) - 1 :]
        assert kept - max(gone) >= least / 6


def test_rows_are_hidden_apart() -> None:
    """A row's numbers do not depend on the rows beside it."""
    laws = [masses for masses in hidden_laws() if len(masses) == 5]
    p = torch.tensor([[w / sum(masses) for w in masses] for masses in laws])
    together = truncated(p)
    for r in range(len(laws)):
        alone = truncated(p[r : r + 1])
        for name in ("x", "top_k", "top_p", "min_p"):
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[r])
    assert len(laws) > 20


# FlashInfer


@pytest.mark.parametrize("name", FLASHINFER)
@pytest.mark.parametrize("seeds", [torch.tensor([5, 6]), None], ids=["seeded", "unseeded"])
def test_flashinfer_is_called_as_it_wants(
    name: str, seeds: Tensor | None, monkeypatch: Any
) -> None:
    """Laws or hidden laws with their thresholds; the first seed is the call's, at offset 0."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def sample(*given: Any, **noise: Any) -> Tensor:
        calls.append((given, noise))
        return torch.zeros(len(given[0]), dtype=torch.int32)

    library = SimpleNamespace(**{FLASHINFER[name]: sample})
    monkeypatch.setattr(flashinfer_sampling, "_library", lambda: library)
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]])
    tokens = getattr(flashinfer_sampling, f"_{name}")(p, seeds)
    ((given, noise),) = calls
    hidden = truncated(p)
    right = {
        "from_probs": [p],
        "from_logits": [p.log()],
        "top_k": [hidden.x, hidden.top_k],
        "top_p": [hidden.x, hidden.top_p],
        "min_p": [hidden.x, hidden.min_p],
        "top_k_top_p": [hidden.x, hidden.top_k, hidden.top_p],
    }[name]
    assert all(torch.equal(a, b) for a, b in zip(given, right, strict=True))
    assert tokens.tolist() == [0, 0]
    if name == "top_k_top_p":
        assert noise.pop("filter_apply_order") == "joint"
    assert noise == ({} if seeds is None else {"seed": 5, "offset": 0})


@pytest.mark.parametrize("name", FLASHINFER)
def test_flashinfer_wants_a_gpu(name: str) -> None:
    """Refused before the library is looked for."""
    adapter = getattr(flashinfer_sampling, name)
    with pytest.raises(Unsupported, match=f"{adapter.name}: it does not run on cpu"):
        adapter.verify(call_of([[1, 2], [0]], seeds=torch.tensor([7, 8])))
