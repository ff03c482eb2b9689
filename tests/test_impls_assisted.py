"""transformers' assisted generation emits what algorithm 1 does, uniform by uniform and in law."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, product
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from kernelassay.impls.contract import Sampling
from kernelassay.impls.transformers_assisted import Assisted, injected, model
from kernelassay.oracle.decisions import (
    GRID,
    Noise,
    Piece,
    accept_pieces,
    breakpoints,
    correction_pieces,
    decide,
    decided_rounds,
    draw_pieces,
    outcomes,
    places,
)
from kernelassay.oracle.speculative import (
    Prefix,
    Round,
    autoregressive_law,
    generated_law,
)
from kernelassay.oracle.statistics import EACH, plan, two_stages
from kernelassay.oracle.statistics import decide as decided
from kernelassay.properties.speculative.probes import slack_for

library = pytest.importorskip("transformers.generation.utils", reason="needs transformers")

T = TypeVar("T")
Rounds = tuple[Round, ...]
SLACK_OF = slack_for(Sampling(unit=2.0**-21), "fp32")
"""An fp32 softmax of logits that lie 8 apart at most is off by a few units of 2^-24."""


def assisted(target: int, draft: int, V: int, K: int, prompt: Prefix) -> Assisted:
    """A target of two layers and a draft of one, or the target itself where the seeds agree."""
    large = model(target, V, 2)
    return Assisted(large, large if target == draft else model(draft, V, 1), K, prompt)


MODELS = {
    "two tokens": (0, 1, 2, 1, (1,)),
    "three tokens": (2, 3, 3, 2, (1, 0)),
    "five tokens": (4, 5, 5, 3, (1, 2, 3)),
    "nine tokens": (6, 7, 9, 2, (8, 3, 3, 1)),
    "long rounds": (8, 9, 4, 8, (3,)),
    "its own assistant": (10, 10, 4, 2, (0, 2)),
}
"""Seeds of target and draft, V, K, the prompt."""


def text_of(rounds: Rounds) -> Prefix:
    """What the rounds emit."""
    return tuple(x for one in rounds for x in one.tokens)


def offered(models: Assisted, left: int) -> int:
    """The drafts of a round when *left* tokens are."""
    return min(models.K, left - 1)


def used(models: Assisted, rounds: Rounds, length: int) -> int:
    """How many uniforms the rounds use up."""
    before = accumulate((len(one.tokens) for one in rounds), initial=0)
    return sum(2 * offered(models, length - n) + 1 for n in before if n < length)


def right_runs(models: Assisted, uniforms: Sequence[Fraction], length: int) -> set[Rounds]:
    """Algorithm 1 under the uniforms: one run, or more where one of them is near a breakpoint."""

    def drafted(text: Prefix, given: Sequence[Fraction]) -> Iterator[Prefix]:
        if not given:
            yield ()
            return
        q = models.draft_law(text)
        for x in outcomes(draw_pieces(q), given[0], slack=SLACK_OF(0, q, None)[1]):
            yield from ((x, *rest) for rest in drafted((*text, x), given[1:]))

    def walk(text: Prefix, at: int) -> Iterator[Rounds]:
        if len(text) == length:
            yield ()
            return
        k = offered(models, length - len(text))
        end = at + 2 * k
        for drafts in drafted(text, uniforms[at : at + k]):
            rows = [models.draft_law(text + drafts[:i]) for i in range(k)]
            noise = Noise(uniforms[at + k : end], [uniforms[end]] * (k + 1), "p/q>=u")
            for one in decided_rounds(
                lambda run: models.target_law(text + run), rows, drafts, noise, slack=SLACK_OF
            ):
                yield from ((one, *rest) for rest in walk(text + one.tokens, end + 1))

    return set(walk((), 0))


def placed(models: Assisted, length: int, rng: random.Random) -> list[Fraction]:
    """Uniforms at places of the decisions that they make: inside pieces, beside breakpoints."""
    found: list[Fraction] = []

    def put(pieces: Sequence[Piece[T]], within: Fraction) -> T:
        found.append(rng.choice(places(breakpoints(pieces), within)))
        return decide(pieces, found[-1])

    text: Prefix = ()
    while len(text) < length:
        k = offered(models, length - len(text))
        drafts: Prefix = ()
        for _ in range(k):
            q = models.draft_law(text + drafts)
            drafts = (*drafts, put(draw_pieces(q), SLACK_OF(0, q, None)[1]))
        n, last = 0, None
        for i, x in enumerate(drafts):
            p, q = models.target_law(text + drafts[:i]), models.draft_law(text + drafts[:i])
            if last is not None:  # no one looks at it
                found.append(anywhere(rng))
            elif put(accept_pieces(p, q, x), SLACK_OF(i, p, q)[0]):
                n += 1
            else:
                last = correction_pieces(p, q), SLACK_OF(i, p, q)[1]
        if last is None:
            p = models.target_law(text + drafts)
            last = draw_pieces(p), SLACK_OF(k, p, None)[1]
        text = (*text, *drafts[:n], put(*last))
    return found


def anywhere(rng: random.Random) -> Fraction:
    """Any multiple of 2^-24 in [0, 1)."""
    return rng.randrange(2**24) * GRID


def streams(models: Assisted, length: int, seed: int, many: int) -> Iterator[list[Fraction]]:
    """Uniforms for *length* tokens: placed ones, and every fourth time any."""
    rng, most = random.Random(seed), length * (2 * models.K + 1)
    for n in range(many):
        rest = [anywhere(rng) for _ in range(most)]
        yield rest if n % 4 == 3 else placed(models, length, rng) + rest


@pytest.mark.parametrize("name", MODELS)
def test_every_generation_is_algorithm_1(name: str) -> None:
    """Text and number of uniforms used are those of the reference, whatever is accepted."""
    models, seen, alone, many = assisted(*MODELS[name]), set[int](), 0, 48
    for n, uniforms in enumerate(streams(models, 4, seed=1, many=many)):
        length = 3 + n % 2
        left = iter(uniforms)
        text = models.sampled(length, left)
        runs = right_runs(models, uniforms, length)
        spent = len(uniforms) - sum(1 for _ in left)
        assert (text, spent) in {(text_of(r), used(models, r, length)) for r in runs}
        if len(runs) == 1:
            alone += 1
            seen.add(next(iter(runs))[0].accepted)
    assert alone > 0.9 * many
    most = offered(models, 4)
    assert seen >= ({most} if models.target is models.draft else {0, most})


def faulty(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """The library's verification, given other draft logits than the drafts were drawn from."""
    real = library._speculative_sampling
    return lambda ids, q, k, p, **rest: real(ids, change(q), k, p, **rest)


FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows of other places": lambda q: q.roll(1, 1),
    "uniform": torch.zeros_like,
    "another temperature": lambda q: q / 1.25,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_another_verification_is_not(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft law that the drafts were not drawn from leads to texts that are not right."""
    models, wrong = assisted(*MODELS["five tokens"]), 0
    monkeypatch.setattr(library, "_speculative_sampling", faulty(FAULTS[fault]))
    for uniforms in streams(models, 4, seed=2, many=40):
        text = models.sampled(4, uniforms)
        wrong += text not in {text_of(run) for run in right_runs(models, uniforms, 4)}
    assert wrong > 2


def test_first_tokens_follow_the_target_under_torch_s_own_noise() -> None:
    """The joint law of two tokens of three, and not that of the assistant."""
    models, length = assisted(*MODELS["three tokens"]), 3
    texts = [*product(range(3), repeat=2)]
    exact = autoregressive_law(models.target_law, 2)
    assert generated_law(models.target_law, models.draft_law, models.K, 2) == exact
    drawn: list[np.ndarray[Any, Any]] = []

    def sample(stage: str, look: int, n: int) -> np.ndarray[Any, Any]:
        with torch.random.fork_rng():
            torch.manual_seed(1000 * (stage == "confirm") + look)
            seen = Counter(models.sampled(length)[:2] for _ in range(n))
        drawn.append(np.array([seen[text] for text in texts]))
        return drawn[-1]

    verdict = two_stages(sample, [float(exact[text]) for text in texts], plan(9, effect=0.2))
    assert not verdict.rejected, verdict.reason
    other = autoregressive_law(models.draft_law, 2)
    assert decided(drawn[0], [float(other[text]) for text in texts], EACH).rejected


def test_greedy_generation_is_the_target_s_own() -> None:
    """Assisted or not, the same tokens come, whatever the target, the assistant and the prompt."""
    rng, texts = random.Random(3), set()
    for seed in range(52):
        V = rng.randint(2, 16)
        prompt = tuple(rng.choices(range(V), k=rng.randint(1, 6)))
        models = assisted(100 + seed, 200 + seed, V, rng.randint(1, 5), prompt)
        length = rng.randint(1, 6)
        text = models.greedy(length)
        assert text == models.greedy(length, assisted=False)
        assert len(text) == length
        texts.add(text)
    assert len(texts) > 26


# The injected noise itself


def test_injected_draws_are_inverse_cdfs() -> None:
    """The first token whose cumulated weight is above u, whatever the weights add up to."""
    law = tuple(Fraction(n, 16) for n in (0, 3, 0, 5, 8, 0))
    pieces = draw_pieces(law)
    uniforms = [*places(breakpoints(pieces)), *breakpoints(pieces)]
    weights = torch.tensor([[float(2 * w) for w in law]]).repeat(len(uniforms), 1)
    with injected(uniforms):
        draw = torch.multinomial
        got = draw(weights, num_samples=1)
    assert got.flatten().tolist() == [decide(pieces, u) for u in uniforms]


def test_torch_is_itself_again_afterwards() -> None:
    """Also where the uniforms do not last; the default generator is not touched."""
    functions, state = (torch.multinomial, torch.rand_like), torch.get_rng_state()
    models = assisted(*MODELS["three tokens"])
    first = models.sampled(4, [GRID] * 40)
    assert (torch.multinomial, torch.rand_like) == functions
    with pytest.raises(RuntimeError, match="2 more uniforms asked for, 1 left"):
        models.sampled(4, [GRID] * 3)
    assert (torch.multinomial, torch.rand_like) == functions
    assert torch.equal(torch.get_rng_state(), state)
    assert models.sampled(4, [GRID] * 40) == first
