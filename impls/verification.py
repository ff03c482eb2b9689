"""The contract of speculative verification: a round's call, its result, how a kernel draws.

A round judges the drafts of R requests. Request r has k[r] drafts, 0 included; the target has a
law for each draft's place and one more, the bonus row, for the token after k[r] accepted drafts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, get_type_hints, runtime_checkable

import torch
from torch import Tensor

__all__ = ["VERIFYING", "Sampling", "Verifies", "VerifyCall", "VerifyResult"]

VERIFYING: Mapping[str, str] = {
    "verify": "drafts are judged: verify(call) -> tokens, accepted",
    "requests": "more than one request in a call",
    "drafts.many": "more than one draft for a request",
    "drafts.ragged": "numbers of drafts that differ between requests, 0 included",
    "drafts.none": "a call without any draft",
    "drafts.skipped": "a draft of -1, which was not made or is forbidden, is never accepted",
    "draft_law": "drafts drawn from the laws in q",
    "draft_certain": "drafts that were certain (greedy, n-gram): q is None",
    "greedy": "greedy requests, alone and beside sampled ones",
    "stop": "stop tokens of each request's own: nothing follows one",
    "budget": "a length budget of each request's own, 0 included",
}
"""What a verification may support or decline, with what each name means."""


@dataclass(frozen=True, kw_only=True, eq=False)
class VerifyCall:
    """One round for R requests over a vocabulary of V tokens; N = sum k drafts, K = max k.

    Where `Capabilities.packing` is "flat", draft i of request r is at n = offsets[r] + i, and the
    target's row for it at n + r; row offsets[r] + r + k[r] is the bonus row. Where it is "padded"
    they are at [r, i], and what lies past a request's drafts is garbage. Where `Sampling.bonus` is
    "given" the bonus rows are left out: p has the shape of q.

    Noise is there as `Sampling.noise` declares: *accept* and *draw* (or *race*) if it is injected,
    *seeds* if seeded, *generators*, on the device of the laws, if it comes from those.
    """

    drafts: Tensor  # [N] or [R, K], of dtype Sampling.tokens
    offsets: Tensor  # [R + 1], int32: 0, k[0], k[0] + k[1], ..., N
    p: Tensor  # [N + R, V] or [R, K + 1, V]: the target's laws
    q: Tensor | None  # [N, V] or [R, K, V]: the laws that drafts were drawn from; None: certain
    accept: Tensor | None = None  # [N] or [R, K], fp32 in [0, 1): one for each draft
    draw: Tensor | None = None  # [N + R] or [R, K + 1], likewise, for each row; [R] if shared
    race: Tensor | None = None  # [R, V], fp32 > 0: exponential noise, y = argmax weight / race
    bonus: Tensor | None = None  # [R], of dtype Sampling.tokens: drawn from the bonus row already
    seeds: Tensor | None = None  # [R], int64
    generators: tuple[torch.Generator, ...] | None = None  # R
    greedy: Tensor | None = None  # [R], bool; None: all requests are sampled
    stop: Tensor | None = None  # [R, S], of dtype Sampling.tokens, padded with -1
    budget: Tensor | None = None  # [R], int32: the most tokens that a request may emit
    most: int  # K

    @property
    def counts(self) -> Tensor:
        """k [R]."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def requests(self) -> int:
        """R."""
        return self.offsets.shape[0] - 1


@dataclass(frozen=True, eq=False)
class VerifyResult:
    """What a round emits.

    tokens [R, K + 1]: accepted drafts, then the token that was drawn, then placeholders. accepted
    [R]: how many of them are drafts, or None. weights [R, V]: where noise is captured, what the
    token after the drafts was drawn with, to any factor; rows of requests that drew none count
    for nothing.
    """

    tokens: Tensor
    accepted: Tensor | None = None
    weights: Tensor | None = None


@runtime_checkable
class Verifies(Protocol):
    """An adapter that offers verification; its `capabilities.sampling` is a `Sampling`."""

    name: str

    def verify(self, call: VerifyCall) -> VerifyResult:
        """One round; `Unsupported` refuses it."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a verification draws. The oracle follows what is declared; the rest is a fault."""

    noise: Literal["injected", "captured", "seeded", "generators", "global"] = "seeded"
    """injected: uniforms come with the call; captured: the acceptance uniforms do, and the weights
    of a draw are handed out; seeded: the call brings a seed for each request; generators:
    a torch.Generator for each, which moves on where the request draws; global: torch's default
    generator of the device."""
    rule: Literal["u*q<p", "u*q<=p", "p/q>=u"] = "u*q<p"
    """when a draft is accepted under the uniform u."""
    draw: Literal["inverse_cdf", "race"] = "inverse_cdf"
    """how injected noise makes a token: the first y with C_y > u of the cumulated weights, or the
    argmax of weight / race."""
    closed_draw: bool = False
    """the first y with C_y >= u instead."""
    shared_draw: bool = False
    """draw has one uniform for each request, not for each row: only one of them is used."""
    skipped: Literal["never_made", "rejected"] = "never_made"
    """what a draft of -1 was, where drafts have laws, and so what a sampled request's token there
    is drawn from. never_made: p. rejected: it was drawn from q and is rejected whatever the
    uniform, as one that a grammar forbids: [p - q]+, or p where that is 0. This follows the target
    where p has no share of the forbidden."""
    bonus: Literal["drawn", "given"] = "drawn"
    """whether the kernel draws the bonus token or is given one."""
    rounds: Literal["token", "joint"] = "token"
    """token: draft by draft, accepted with min(1, p / q), else drawn from the residual. joint: by
    another rule whose emitted tokens follow the target's law (block verification, equality with a
    target draw): only what is emitted is judged."""
    ties: Literal["first", "last", "any"] = "first"
    """which of equally likely tokens a greedy request takes."""
    tokens: Literal["int32", "int64"] = "int32"
    """dtype of tokens, in and out."""
    placeholder: int = -1
    """what stands after a request's last token."""
    seeded_requests: bool = True
    """a request's tokens depend on its own seed and laws alone, not on its place in the batch."""
    bad_laws: Literal["refused", "undefined"] = "undefined"
    """laws that are none (NaN, negative, all zero): ValueError, or anything but a crash."""
    unit: float = 2.0**-24
    """relative error of a quotient or sum inside the kernel, at most."""
    lossy: str = ""
    """why what is emitted does not follow the target's law, for a sampler that means to."""

    def __post_init__(self) -> None:
        for name, known in get_type_hints(type(self)).items():
            value = getattr(self, name)
            good, listed = _fits(value, known)
            if not good:
                raise ValueError(f"Sampling.{name}: got {value!r}, expected {listed}")


def _fits(value: object, known: object) -> tuple[bool, str]:
    """Whether *value* is of the annotated kind, and what that kind allows."""
    if known is bool:
        return isinstance(value, bool), "True or False"
    if known is int:
        return type(value) is int, "an integer"
    if known is str:
        return isinstance(value, str), "text"
    if known is float:
        good = isinstance(value, float) and 0 < value < 1 and math.isfinite(value)
        return good, "a number in (0, 1)"
    return value in get_args(known), f"one of {', '.join(map(str, get_args(known)))}"
