"""With injected uniforms, what a round emits is a piecewise constant function of them.

A decision is a row of pieces of [0, 1), each with one outcome: a draft x is accepted below
t = min(1, p(x) / q(x)); a draw by inverse CDF gives token y between the cumulated sums C_{y-1} and
C_y. What happens at a breakpoint is declared: open pieces are [low, high), as in "u*q < p" and
"u < C_y"; closed ones are (low, high], as in "u*q <= p", "p/q >= u" and "u <= C_y".
Pieces of mass 0 are no pieces: a token of law 0 is never emitted, whatever the rule, at u = 0 too.

Uniforms are Fractions. A kernel computes t and C in floats: nearer to a breakpoint than SLACK
either neighbour is right.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Generic, Literal, TypeVar

from kernelassay.oracle.speculative import (
    Chain,
    Law,
    Prefix,
    Round,
    ended,
    limit_of,
    residual,
    row_of,
)

T = TypeVar("T")
Rule = Literal["u*q<p", "u*q<=p", "p/q>=u"]
GRID = Fraction(1, 2**24)
"""Multiples of it in [0, 1) are float32 numbers; the largest is the largest float32 below 1."""
SLACK = Fraction(1, 2**20)
Slack = Callable[[int, Law, Law | None], tuple[Fraction, Fraction]]
"""(position, p, q or None for the bonus) -> how near to a breakpoint of the acceptance, and of the
draw, either neighbour is right."""


@dataclass(frozen=True)
class Piece(Generic[T]):
    """The outcome for uniforms between low and high."""

    low: Fraction
    high: Fraction
    outcome: T

    @property
    def mass(self) -> Fraction:
        """The probability of the piece under a uniform law."""
        return self.high - self.low


@dataclass(frozen=True)
class Box:
    """A rectangle of (acceptance uniform, drawing uniform) on which one step emits *token*."""

    accept: Piece[bool]
    draw: Piece[int] | None  # None: an accepted draft needs no draw
    token: int

    @property
    def mass(self) -> Fraction:
        """Its area."""
        return self.accept.mass * (self.draw.mass if self.draw else 1)


@dataclass(frozen=True)
class Noise:
    """The uniforms of one round and how they are compared.

    accept: one per draft. draw: one per row, k + 1 of them, the same one again if they are shared;
    draw[i] serves the token after a rejection of draft i, draw[k] the bonus. bonus: a bonus token
    that is passed in, not drawn.
    """

    accept: Sequence[Fraction]
    draw: Sequence[Fraction]
    rule: Rule = "u*q<p"
    closed_draw: bool = False
    bonus: int | None = None


# One round asks the same few laws of each of its probes: what follows from them is kept.
@lru_cache(4096)
def accept_pieces(p: Law, q: Law, draft: int) -> tuple[Piece[bool], ...]:
    """True below min(1, p(x) / q(x)), False above. ValueError where q(x) = 0: never drafted."""
    if q[draft] == 0:
        raise ValueError(f"accept_pieces: got the draft {draft}, which q = {q} never makes")
    t = min(Fraction(1), p[draft] / q[draft])
    pieces = Piece(Fraction(0), t, True), Piece(t, Fraction(1), False)
    return tuple(piece for piece in pieces if piece.mass)


@lru_cache(4096)
def draw_pieces(law: Law) -> tuple[Piece[int], ...]:
    """Token y between the cumulated sums before and after it."""
    pieces, low = [], Fraction(0)
    for y, w in enumerate(law):
        if w:
            pieces.append(Piece(low, low + w, y))
        low += w
    return tuple(pieces)


def correction_pieces(p: Law, q: Law) -> tuple[Piece[int], ...]:
    """The draw from the residual after a rejection. ValueError where nothing can be rejected."""
    law = residual(p, q)
    if law is None:
        raise ValueError(f"correction_pieces: nothing is rejected where [p - q]+ is 0, p = {p}")
    return draw_pieces(law)


def breakpoints(pieces: Sequence[Piece[T]]) -> tuple[Fraction, ...]:
    """Where the outcome changes, 0 and 1 left out."""
    return tuple(piece.low for piece in pieces[1:])


def decide(pieces: Sequence[Piece[T]], u: Fraction, closed: bool = False) -> T:
    """The outcome at u. A u outside [0, 1) is a ValueError; closed pieces include 1."""
    if closed and u == 0:
        return pieces[0].outcome
    for piece in pieces:
        if piece.low < u <= piece.high if closed else piece.low <= u < piece.high:
            return piece.outcome
    raise ValueError(f"decide: got the uniform {u}, expected 0 <= u < 1")


def outcomes(
    pieces: Sequence[Piece[T]], u: Fraction, closed: bool = False, slack: Fraction = SLACK
) -> frozenset[T]:
    """The right outcomes at u: that of u itself, and of pieces nearer than *slack*."""
    near = {x.outcome for x in pieces if x.low - slack < u < x.high + slack}
    return frozenset(near | {decide(pieces, u, closed)})


def places(breaks: Sequence[Fraction], slack: Fraction = SLACK) -> tuple[Fraction, ...]:
    """Uniforms that see every piece: 0, inside each, *slack* to each side of a break, 1 - 2^-24.

    All are multiples of GRID, hence float32 numbers: the sides are rounded away from their break,
    and a piece that holds no multiple strictly inside has none.
    """
    found = {Fraction(0), 1 - GRID}
    for low, high in pairwise([Fraction(0), *breaks, Fraction(1)]):
        middle = _below((low + high) / 2)
        found.update([u for u in (middle, middle + GRID) if low < u < high][:1])
    for edge in breaks:
        found |= {_below(edge - slack), -_below(-(edge + slack))}
    return tuple(sorted(u for u in found if 0 <= u < 1))


def step_boxes(p: Law, q: Law, draft: int) -> tuple[Box, ...]:
    """All that one step can do with this draft; the masses sum to 1."""
    boxes = []
    for piece in accept_pieces(p, q, draft):
        if piece.outcome:
            boxes.append(Box(piece, None, draft))
        else:
            boxes += [Box(piece, drawn, drawn.outcome) for drawn in correction_pieces(p, q)]
    return tuple(boxes)


def decided_rounds(
    target: Chain,
    draft: Sequence[Law],
    drafts: Prefix,
    noise: Noise,
    stop: Collection[int] = (),
    budget: int | None = None,
    slack: Fraction | Slack = SLACK,
    nearly: Fraction = Fraction(0),
) -> frozenset[Round]:
    """The right rounds under this noise: one with slack 0, more where a uniform is near a break.

    A draft with p(x) / q(x) >= 1 is never rejected, but by rounding it may be where u comes within
    *nearly* of that ratio; where [p - q]+ is 0 the token is then drawn from p.

    target: k + 1 rows or a function of the tokens of the round; draft: the k rows the drafts were
    drawn from. Uniforms that the round does not reach are not looked at.
    """
    k = len(drafts)
    limit = limit_of(target, draft, k, budget)
    closed = noise.rule != "u*q<p"

    def near(i: int, p: Law, q: Law | None) -> tuple[Fraction, Fraction]:
        return (slack, slack) if isinstance(slack, Fraction) else slack(i, p, q)

    def drawn(run: Prefix, pieces: Sequence[Piece[int]], within: Fraction) -> Iterator[Round]:
        for y in outcomes(pieces, noise.draw[len(run)], noise.closed_draw, within):
            yield Round(len(run), (*run, y))

    def walk(run: Prefix) -> Iterator[Round]:
        i = len(run)
        if ended(run, stop, limit):
            yield Round(i, run)
        elif i == k:
            given, p = noise.bonus, row_of(target, run)
            yield from (
                drawn(run, draw_pieces(p), near(i, p, None)[1])
                if given is None
                else [Round(k, (*run, given))]
            )
        else:
            p, q, x = row_of(target, run), draft[i], drafts[i]
            sides, draws = near(i, p, q)
            answers = outcomes(accept_pieces(p, q, x), noise.accept[i], closed, sides)
            if p[x] >= q[x] and p[x] / q[x] - noise.accept[i] < nearly:
                answers |= {False}
            for accepted in answers:
                rest = draw_pieces(residual(p, q) or p)
                yield from walk((*run, x)) if accepted else drawn(run, rest, draws)

    return frozenset(walk(()))


def _below(u: Fraction) -> Fraction:
    """The largest multiple of GRID that is at most u."""
    return u // GRID * GRID
