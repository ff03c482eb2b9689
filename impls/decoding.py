"""The contract of a decode loop: rounds of draft, verify, commit and roll back continue texts.

A call has R requests. Request r begins with a prompt of one token or more; what is emitted after
it follows the target model's law token by token, whatever drafts are made on the way. In round t
every request that has not ended gets K_t = schedule[t % len(schedule)] drafts, 0 included; a
kernel that is `Decoding.trimmed` makes no more than the budget leaves beside one further token.

A request ends with a stop token of its own, accepted or drawn, or with the last token of its
budget: nothing follows either. Before *minimum* tokens are emitted a stop token has no
probability, in each draft's row as in the bonus row.

The models are the adapter's own: *model* and *vocabulary* name one, and `target_law` gives its law
by one full forward without any cache. That law is the truth that emitted texts are held against.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, get_type_hints, runtime_checkable

from torch import Tensor

__all__ = [
    "DECODING",
    "DecodeCall",
    "DecodeResult",
    "Decodes",
    "Decoding",
    "Drafts",
    "Rounds",
    "Step",
    "Uniforms",
]

DECODING: Mapping[str, str] = {
    "decode": "texts are continued: decode(call) -> tokens",
    "decode.requests": "more than one request in a call",
    "decode.ragged": "prompts of different lengths",
    "decode.model": "drafts of a draft model: near the target, far from it, or the target itself",
    "decode.lookup": "drafts that followed the last tokens where they occurred before",
    "decode.schedule": "numbers of drafts that change from round to round, 0 included",
    "decode.sampled": "requests that draw their tokens",
    "decode.greedy": "requests that take the likeliest token, beside sampled ones too",
    "decode.stop": "stop tokens of each request's own",
    "decode.budget": "budgets of each request's own, 0 included",
    "decode.minimum": "a number of tokens before which a stop token has no probability",
    "decode.trace": "the rounds: drafts, accepted, emitted, lengths of the caches",
    "decode.rounds": "round by round: start(call) -> run, whose rounds take numbers of drafts",
    "decode.logprobs": "log-probabilities of the emitted tokens under the target's law",
}
"""What a decode loop may support or decline, with what each name means."""

Text = tuple[int, ...]
Drafts = Literal["near", "far", "same", "lookup"]
"""A draft model near the target, one far from it, the target itself, or a look-up in the text."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Uniforms:
    """Injected noise, fp64 multiples of 2^-24 in [0, 1): request, round, place."""

    draft: Tensor  # [R, T, K]: draft i is the first y with C_y > u of the cumulated draft law
    accept: Tensor  # [R, T, K]: see `Sampling.rule`, which is "u*q<p" here
    draw: Tensor  # [R, T, K + 1]: for the token after i accepted drafts; see Decoding.shared_draw


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodeCall:
    """R texts to be continued. T is the most rounds, the largest budget; K the most drafts."""

    model: int
    """seed of the target's weights."""
    vocabulary: int
    """V."""
    prompts: tuple[Text, ...]
    """[R], each of one token or more."""
    drafts: Drafts = "near"
    schedule: tuple[int, ...] = (2,)
    """numbers of drafts, round by round, from the start again after the last."""
    stop: tuple[Text, ...]
    """[R], stop tokens."""
    budget: tuple[int, ...]
    """[R], the most tokens to emit."""
    minimum: tuple[int, ...]
    """[R], tokens before which no stop token may come."""
    greedy: tuple[bool, ...]
    """[R]"""
    seeds: tuple[int, ...] | None = None
    """[R], where `Decoding.noise` is "seeded"."""
    uniforms: Uniforms | None = None
    """where it is "injected"."""
    device: str = "cpu"
    dtype: str = "fp32"

    @property
    def requests(self) -> int:
        """R."""
        return len(self.prompts)

    @property
    def most(self) -> int:
        """K."""
        return max(self.schedule)


@dataclass(frozen=True)
class Step:
    """One round of one request, and how many tokens its caches hold after it.

    target and draft count prompt and emitted tokens whose keys and values the caches hold; None
    where there is no such cache, or where its length cannot be told.
    """

    drafts: Text
    accepted: int
    emitted: Text
    target: int | None = None
    draft: int | None = None


@dataclass(frozen=True, eq=False)
class DecodeResult:
    """tokens [R]: what was emitted after each prompt; *trace* [R] of rounds and *logprobs* [R] of
    a number for each token where "decode.trace" and "decode.logprobs" are supported."""

    tokens: tuple[Text, ...]
    trace: tuple[tuple[Step, ...], ...] | None = None
    logprobs: tuple[tuple[float, ...], ...] | None = None


class Rounds(Protocol):
    """A run that is taken round by round, the prompts seen."""

    def round(self, drafts: Sequence[int]) -> Sequence[Step | None]:
        """Every request r that has not ended gets drafts[r] drafts, 0 to K, whatever the schedule
        of the call; its round, or None of one that has ended."""


@runtime_checkable
class Decodes(Protocol):
    """An adapter that offers a decode loop; its `capabilities.decoding` is a `Decoding`.

    Where "decode.rounds" is supported there is also `start(call) -> Rounds`.
    """

    name: str

    def decode(self, call: DecodeCall) -> DecodeResult:
        """The texts after the prompts; `Unsupported` refuses the call."""

    def target_law(self, call: DecodeCall, text: Text) -> Tensor:
        """p [V] of the token after *text*, a prompt and what was emitted; no cache, no minimum."""

    def draft_law(self, call: DecodeCall, text: Text) -> Tensor:
        """q [V] that a draft after *text* is drawn from. Never asked for drafts looked up."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How a decode loop works where correct ones differ."""

    noise: Literal["injected", "seeded", "global"] = "seeded"
    """injected: uniforms come with the call; seeded: a seed for each request; global: torch's
    default generator."""
    shared_draw: bool = False
    """draw[r, t, 0] serves whichever token is drawn in round t."""
    trimmed: bool = False
    """a round makes at most budget left - 1 drafts."""
    seeded_requests: bool = True
    """a request's tokens depend on its own seed and prompt alone, not on its neighbours."""
    caches: Literal["all_but_last", "prefix"] = "all_but_last"
    """what the caches hold after a round: prompt and emitted tokens but the last, or some prefix
    of them. With all_but_last the draft cache also lacks the last draft of a round that accepted
    all of them, as the draft model has not seen it."""
    rounds: Literal["token", "joint"] = "token"
    """as `Sampling.rounds`: whether drafts are judged one by one with min(1, p / q)."""
    drafts_processed: bool = False
    """drafts are drawn from the draft model's law with the minimum in force."""
    lookup: Literal["latest", "earliest", "other"] = "latest"
    """which occurrence of the last tokens is followed, or that drafts are found another way."""
    longest: int = 2
    """the most tokens of the text's end that are looked up; then fewer, down to one."""
    logprobs: Literal["raw", "processed"] = "processed"
    """of the model's law, or of the law without stop tokens before the minimum."""
    slack: float = 2.0**-20
    """the most that a probability computed over the caches differs from the full forward's."""

    def __post_init__(self) -> None:
        for name, known in get_type_hints(type(self)).items():
            value = getattr(self, name)
            good, listed = _fits(value, known)
            if not good:
                raise ValueError(f"Decoding.{name}: got {value!r}, expected {listed}")


def _fits(value: object, known: object) -> tuple[bool, str]:
    """Whether *value* is of the annotated kind, and what that kind allows."""
    if known is bool:
        return isinstance(value, bool), "True or False"
    if known is int:
        return type(value) is int and value > 0, "a positive integer"
    if known is float:
        return isinstance(value, float) and 0 < value < 0.5, "a number in (0, 0.5)"
    return value in get_args(known), f"one of {', '.join(map(str, get_args(known)))}"
