"""Speculative sampling emits the target's law, whatever the drafts (exact, by enumeration).

One step with target law p and draft law q: a draft x ~ q is accepted with probability
a(x) = min(1, p(x) / q(x)); after a rejection the token is drawn from the residual
r = [p - q]+ / Z, Z = sum [p - q]+ = TV(p, q). So

    P(emit y) = min(p, q)(y) + Z r(y) = min(p, q)(y) + [p - q]+(y) = p(y).

One round with k drafts: the first rejection ends it; after k acceptances a bonus token is drawn
from row k. Nothing follows a stop token, accepted or drawn, nor the last token of the budget.

Laws are tuples of Fractions over the vocabulary. Sources: Leviathan, Kalman and Matias 2023,
algorithm 1 and appendix A.1; Chen et al. 2023, algorithm 2 and theorem 1.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import Literal, TypeVar

T = TypeVar("T")
Law = tuple[Fraction, ...]
Prefix = tuple[int, ...]
Context = Callable[[Prefix], Law]
"""The law of the next token given the tokens before it."""
Chain = Context | Sequence[Law]
"""The same, or one row per position."""


@dataclass(frozen=True)
class Round:
    """What one round emits; the first *accepted* of its tokens are drafts."""

    accepted: int
    tokens: Prefix


class Row(tuple[Fraction, ...]):
    """A law that is looked up often: its hash, a modular inverse for each entry, is taken once."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("hash")
        if found is None:
            found = self.__dict__["hash"] = super().__hash__()
        return found


def normalised(masses: Sequence[Fraction | int]) -> Law:
    """The law proportional to *masses*, none negative. A total of 0 is a ValueError."""
    total = Fraction(sum(masses))
    if total <= 0 or min(masses) < 0:
        raise ValueError(f"normalised: got masses {[*masses]}, expected none negative, not all 0")
    return Row(w / total for w in masses)


@lru_cache(4096)
def one_hot(token: int, size: int) -> Law:
    """The law of a token that is certain: a greedy or n-gram draft, a greedy target."""
    return Row(Fraction(x == token) for x in range(size))


def overlap(p: Law, q: Law) -> Fraction:
    """sum min(p, q): the probability that a draft from q is accepted."""
    return sum((min(a, b) for a, b in zip(p, q, strict=True)), Fraction(0))


def total_variation(p: Law, q: Law) -> Fraction:
    """sum |p - q| / 2, which is 1 - overlap."""
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), Fraction(0)) / 2


def acceptance(p: Law, q: Law) -> Law:
    """min(1, p(x) / q(x)) for every x; 0 where q(x) = 0, a token that is never drafted."""
    pairs = zip(p, q, strict=True)
    return tuple(min(Fraction(1), a / b) if b else Fraction(0) for a, b in pairs)


@lru_cache(4096)
def residual(p: Law, q: Law) -> Law | None:
    """[p - q]+ / Z: the law of the token after a rejection. None where Z = 0: none is rejected."""
    excess = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    return normalised(excess) if any(excess) else None


def branches(p: Law, q: Law, drawn: Law | None = None, resample: Law | None = None) -> list[Law]:
    """P(accept and emit y) and P(reject and emit y) of one step, for every y.

    drawn is the law that really made the draft, q by default; resample the law drawn from after a
    rejection, the residual by default. Other ones describe faults, and drafts that are given.
    """
    made = q if drawn is None else drawn
    kept = tuple(d * a for d, a in zip(made, acceptance(p, q), strict=True))
    after = residual(p, q) if resample is None else resample
    lost = sum(made) - sum(kept)
    if after is None and lost:
        raise ValueError(f"branches: a draft that q never makes is rejected, and p = q = {q}")
    return [kept, tuple(lost * r for r in after) if after else (Fraction(0),) * len(p)]


def emitted_law(p: Law, q: Law, drawn: Law | None = None, resample: Law | None = None) -> Law:
    """The law of the token that one step emits: p, unless drawn or resample say otherwise."""
    kept, corrected = branches(p, q, drawn, resample)
    return tuple(a + b for a, b in zip(kept, corrected, strict=True))


def row_of(chain: Chain, run: Prefix) -> Law:
    """The law of the token after *run*."""
    return chain[len(run)] if isinstance(chain, Sequence) else chain(run)


def ended(run: Prefix, stop: Collection[int], limit: int) -> bool:
    """Nothing is emitted after *run*: it ends in a stop token or fills the limit."""
    return len(run) >= limit or (len(run) > 0 and run[-1] in stop)


def limit_of(target: Chain, draft: Chain, k: int, budget: int | None) -> int:
    """The most tokens of a round: min(k + 1, budget). ValueError if rows and k disagree."""
    for name, rows, expected in (("target", target, k + 1), ("draft", draft, k)):
        if isinstance(rows, Sequence) and len(rows) != expected:
            raise ValueError(f"round of {k} drafts: got {len(rows)} {name} rows, not {expected}")
    if k < 0 or (budget is not None and budget < 0):
        raise ValueError(f"round of {k} drafts, budget {budget}: expected none negative")
    return k + 1 if budget is None else min(k + 1, budget)


def round_law(
    target: Chain,
    draft: Chain,
    k: int,
    stop: Collection[int] = (),
    budget: int | None = None,
    drawn: Chain | None = None,
) -> dict[Round, Fraction]:
    """The probability of everything that one round can emit (only what is possible is listed).

    target has k + 1 rows, draft k; both see the tokens of this round. drawn is the law that really
    makes the drafts: one-hot rows give the law of a round whose drafts are known. A round that was
    offered no draft at position i (a placeholder) is a round of i drafts.
    """
    limit = limit_of(target, draft, k, budget)
    law: dict[Round, Fraction] = {}

    def walk(run: Prefix, mass: Fraction) -> None:
        i = len(run)
        if ended(run, stop, limit):
            law[Round(i, run)] = mass
            return
        p = row_of(target, run)
        kept, final = (Fraction(0),) * len(p), p
        if i < k:
            q = row_of(draft, run)
            kept, final = branches(p, q, row_of(drawn, run) if drawn is not None else q)
        law.update({Round(i, (*run, y)): mass * w for y, w in enumerate(final) if w})
        for x, w in enumerate(kept):
            if w:
                walk((*run, x), mass * w)

    walk((), Fraction(1))
    return law


def token_law(rounds: Mapping[Round, Fraction]) -> dict[Prefix, Fraction]:
    """The law of the emitted tokens, however many of them were drafts."""
    return _pushed(rounds, lambda outcome: outcome.tokens)


def length_law(rounds: Mapping[Round, Fraction]) -> dict[int, Fraction]:
    """The law of the number of tokens that a round commits."""
    return _pushed(rounds, lambda outcome: len(outcome.tokens))


def generated_law(
    target: Context, draft: Context, k: int, length: int, stop: Collection[int] = ()
) -> dict[Prefix, Fraction]:
    """The law of the text that rounds of k drafts make, up to *length* tokens or a stop token."""
    law: dict[Prefix, Fraction] = {}

    def walk(text: Prefix, mass: Fraction) -> None:
        if ended(text, stop, length):
            law[text] = law.get(text, Fraction(0)) + mass
            return
        p, q = (lambda run: target(text + run)), (lambda run: draft(text + run))
        rounds = round_law(p, q, k, stop, length - len(text))
        for tokens, w in token_law(rounds).items():
            walk(text + tokens, mass * w)

    walk((), Fraction(1))
    return law


def autoregressive_law(
    target: Context, length: int, stop: Collection[int] = ()
) -> dict[Prefix, Fraction]:
    """The law of the text drawn from the target token by token: what generated_law must equal."""
    law: dict[Prefix, Fraction] = {(): Fraction(1)}
    for _ in range(length):
        grown: dict[Prefix, Fraction] = {}
        for text, mass in law.items():
            if ended(text, stop, length):
                grown[text] = mass
            else:
                grown |= {(*text, y): mass * w for y, w in enumerate(target(text)) if w}
        law = grown
    return law


def commit_law(rates: Sequence[Fraction]) -> Law:
    """P(1 token), ..., P(k + 1 tokens) of a round whose draft i is accepted with rates[i]."""
    survival = list(accumulate(rates, mul, initial=Fraction(1)))
    return (*(s - t for s, t in pairwise(survival)), survival[-1])


def mean_committed(rates: Sequence[Fraction]) -> Fraction:
    """1 + a_1 + a_1 a_2 + ... + a_1 ... a_k: the survival products, one per token."""
    return sum(accumulate(rates, mul, initial=Fraction(1)), Fraction(0))


def mean_committed_equal(rate: Fraction, k: int) -> Fraction:
    """(1 - a^(k+1)) / (1 - a) tokens per round; k + 1 where a = 1 (Leviathan et al., eq. 1)."""
    return Fraction(k + 1) if rate == 1 else (1 - rate ** (k + 1)) / (1 - rate)


def first_maximum(p: Law) -> int:
    """The most likely token, the first of equals."""
    return p.index(max(p))


def last_maximum(p: Law) -> int:
    """The most likely token, the last of equals."""
    return len(p) - 1 - p[::-1].index(max(p))


def greedy_round(
    target: Chain,
    drafts: Prefix,
    stop: Collection[int] = (),
    budget: int | None = None,
    choose: Callable[[Law], int] = first_maximum,
) -> Round:
    """Drafts are accepted while they are the target's choice; then the target's choice follows."""
    limit = limit_of(target, [()] * len(drafts), len(drafts), budget)
    run: Prefix = ()
    while not ended(run, stop, limit):
        token = choose(row_of(target, run))
        if len(run) == len(drafts) or drafts[len(run)] != token:
            return Round(len(run), (*run, token))
        run = (*run, token)
    return Round(len(run), run)


def greedy_rounds(
    target: Chain,
    drafts: Prefix,
    stop: Collection[int] = (),
    budget: int | None = None,
    ties: Literal["first", "last", "any"] = "first",
) -> frozenset[Round]:
    """The right greedy rounds: one, or all that the choices lead to where any maximum may be."""
    limit = limit_of(target, [()] * len(drafts), len(drafts), budget)

    def choices(p: Law) -> Sequence[int]:
        if ties == "any":
            return [y for y, w in enumerate(p) if w == max(p)]
        return [first_maximum(p) if ties == "first" else last_maximum(p)]

    def walk(run: Prefix) -> Iterator[Round]:
        i = len(run)
        if ended(run, stop, limit):
            yield Round(i, run)
            return
        for y in choices(row_of(target, run)):
            if i < len(drafts) and drafts[i] == y:
                yield from walk((*run, y))
            else:
                yield Round(i, (*run, y))

    return frozenset(walk(()))


def _pushed(rounds: Mapping[Round, Fraction], of: Callable[[Round], T]) -> dict[T, Fraction]:
    """The law of what *of* says of a round."""
    law: dict[T, Fraction] = {}
    for outcome, mass in rounds.items():
        law[of(outcome)] = law.get(of(outcome), Fraction(0)) + mass
    return law
