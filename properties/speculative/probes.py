"""Probes: rounds whose uniforms are placed so that every decision of a case is seen.

What a round emits is a piecewise constant function of its uniforms, see
`kernelassay.oracle.decisions`. At each place of a draft, for each draft that can be made there,
the acceptance uniform is put at 0, inside each piece, to both sides of each breakpoint and at the
largest float below 1; after a rejection, and for the bonus, so is the uniform of the draw. Drafts
before that place are accepted.

How near a uniform may be to a breakpoint follows from the kernel's rounding. With the relative
error e of an entry of p or q and u of an operation, a quotient p / q is off by 3 e at most. A
cumulated sum of n terms of [p - q]+, divided by its total Z, is off by e (4 / Z + 2) + 2 n u: each
difference carries e (p + q), so that their sum carries 2 e, divided by Z, and so does Z itself. A
column that is spread over s tokens has s terms, each rounded to its format; one of mass w has no
token below w / (16 s), where numbers of fp16 are 2^-24 apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from kernelassay.impls.verification import Sampling
from kernelassay.oracle.decisions import (
    GRID,
    SLACK,
    Noise,
    Piece,
    Slack,
    accept_pieces,
    breakpoints,
    correction_pieces,
    decide,
    decided_rounds,
    draw_pieces,
    places,
)
from kernelassay.oracle.speculative import (
    Context,
    Law,
    Prefix,
    Round,
    acceptance,
    greedy_rounds,
    residual,
    total_variation,
)
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.laws_of import (
    draft_chain,
    rounding,
    support,
    target_chain,
)
from kernelassay.properties.speculative.requests import Request

BITS = {"fp32": 24, "fp16": 11, "bf16": 8}
"""Significant bits of the formats that laws come in."""
HALF_STEP = {"fp16": Fraction(1, 2**25)}
"""Half of the distance between the format's least numbers, where a law's may be among them."""
PLAIN = 6949143 * GRID
"""A uniform of 0.414..., that no breakpoint of small masses is near to."""
ANY = Fraction(2)
"""A slack within which every outcome is right."""
LEAD = Fraction(1, 2**16)
"""By how much the winner of a race leads: far above fp32's rounding."""
LONG_LEAD = Fraction(2**20)
"""The same where a column's mass is spread over tokens, whose shares are rounded to the dtype."""


@dataclass(frozen=True, kw_only=True)
class Probe(Request):
    """A request whose decision at the place *at* is looked at, and the rounds that are right."""

    at: int
    right: frozenset[Round] = frozenset()


def slack_for(
    sampling: Sampling,
    dtype: str,
    judged: frozenset[int] | None = None,
    spread: int = 1,
    q_above: int = 0,
) -> Slack:
    """How near to a breakpoint either neighbour is right, for a kernel with this rounding.

    With *judged*, places, draws anywhere else are not judged. *spread* and *q_above* are those of
    the case.
    """

    def slack(i: int, p: Law, q: Law | None) -> tuple[Fraction, Fraction]:
        accept, draw = slack_errors(p, q, sampling, dtype, spread, q_above)
        free = judged is not None and i not in judged
        return max(SLACK, accept), ANY if free else max(SLACK, draw)

    return slack


def slack_errors(
    p: Law, q: Law | None, sampling: Sampling, dtype: str, spread: int = 1, q_above: int = 0
) -> tuple[Fraction, Fraction]:
    """By how much a kernel's rounding moves a breakpoint of the acceptance, and of the draw."""
    return _errors(p, q, Fraction(sampling.unit), dtype, spread, q_above)


def raised(q_above: int, dtype: str) -> Fraction:
    """By how much, relatively, so many units in the last place raise a law."""
    return Fraction(2 * q_above, 2 ** BITS[dtype])


@lru_cache(4096)
def _errors(
    p: Law, q: Law | None, u: Fraction, dtype: str, spread: int, q_above: int
) -> tuple[Fraction, Fraction]:
    """By how much a quotient, and a cumulated sum, may be off."""
    laws, bits = [law for law in (p, q) if law is not None], BITS[dtype]
    if spread == 1:
        e = u + max(rounding(law, bits) for law in laws)
    else:
        least = min(w for law in laws for w in law if w) / (16 * spread)
        e = u + max(Fraction(1, 2**bits), HALF_STEP.get(dtype, Fraction(0)) / least)
    e += raised(q_above, dtype) if q is not None else 0
    weights = drawn_from(p, q)
    Z = Fraction(1) if q is None else total_variation(p, q) or Fraction(1)
    return 3 * e, e * (4 / Z + 2) + 2 * spread * len(support(weights)) * u


def unjudged(i: int, p: Law, q: Law | None) -> tuple[Fraction, Fraction]:
    """The slack under which every outcome is right that some noise makes."""
    return ANY, ANY


def probes(case: VerifyCase, sampling: Sampling, dtype: str) -> list[Probe]:
    """All probes of the case, request by request."""
    every = (Prober(case, r, sampling, dtype) for r in range(case.requests))
    return [probe for prober in every for probe in prober.all()]


@dataclass(frozen=True)
class Prober:
    """Makes the probes of request r."""

    case: VerifyCase
    r: int
    sampling: Sampling
    dtype: str

    @property
    def k(self) -> int:
        """The drafts of the request."""
        return self.case.counts[self.r]

    def p(self, run: Prefix) -> Law:
        """The target's law after *run*."""
        return target_chain(self.case, self.r)(run)

    def q(self, run: Prefix, x: int) -> Law:
        """The law that the draft x after *run* was drawn from."""
        return draft_chain(self.case, self.r, (*run, x))(run)

    def skipped(self, i: int) -> bool:
        """Whether draft i is -1."""
        return self.case.first_draft(self.r) + i in self.case.skipped

    def subtracted(self, run: Prefix, x: int | None) -> Law | None:
        """The q that is subtracted from p where x, the draft after *run*, is not accepted."""
        return subtracted(self.case, self.r, self.sampling, run, x)

    def all(self) -> Iterator[Probe]:
        """Probes of every place that can be reached."""
        run: Prefix = ()
        while True:
            yield from self.at(run)
            best = self.surest(run)
            if best is None:
                return
            run = (*run, best)

    def surest(self, run: Prefix) -> int | None:
        """The draft after *run* that is accepted most surely; None if none can be."""
        i, W = len(run), self.case.width
        if i == self.k or self.skipped(i):
            return None
        if self.r in self.case.greedy:
            (best, *_) = sorted(self.chosen(run))
            return best
        p = self.p(run)
        if self.case.q is None:
            return max(range(W), key=lambda x: (p[x], -x))
        a = acceptance(p, draft_chain(self.case, self.r)(run))
        x = max(range(W), key=lambda y: (a[y], -y))
        return x if a[x] else None

    def chosen(self, run: Prefix) -> set[int]:
        """What a greedy request may take after *run*."""
        ties = self.sampling.ties
        return {r.tokens[0] for r in greedy_rounds([self.p(run)], (), ties=ties)}

    def bonuses(self, run: Prefix) -> Sequence[int]:
        """The tokens that may be handed over as the bonus after *run*."""
        return sorted(self.chosen(run)) if self.r in self.case.greedy else support(self.p(run))

    def drafted(self, run: Prefix) -> Sequence[int]:
        """The drafts that can be made after *run*."""
        if self.case.q is None:
            return range(self.case.width)
        return support(draft_chain(self.case, self.r)(run))

    def at(self, run: Prefix) -> Iterator[Probe]:
        """Probes of the decision after *run*."""
        i, p = len(run), self.p(run)
        near = self.slack()
        if i == self.k and self.sampling.bonus == "given":
            for y in self.bonuses(run):
                yield self.made(i, run, bonus=y)
        elif i == self.k or self.skipped(i):
            x = None if i == self.k else -1
            q = self.subtracted(run, x)
            for w in self.drawing(draw_pieces(drawn_from(p, q)), near(i, p, q)[1]):
                yield self.made(i, run if x is None else (*run, x), draw=w)
        else:
            for x in self.drafted(run):
                yield from self.of_draft(run, x, near)

    def of_draft(self, run: Prefix, x: int, near: Slack) -> Iterator[Probe]:
        """Probes of the draft x after *run*: of its acceptance, and of the draw if it is not."""
        i, p, q = len(run), self.p(run), self.q(run, x)
        sides, draws = near(i, p, q)
        pieces = accept_pieces(p, q, x)
        for u in places(breakpoints(pieces), sides):
            yield self.made(i, (*run, x), accept=u)
        for piece in pieces:
            if not piece.outcome:
                inside = (piece.low + piece.high) / 2 // GRID * GRID
                for w in self.drawing(correction_pieces(p, q), draws):
                    yield self.made(i, (*run, x), accept=inside, draw=w)

    def drawing(self, pieces: Sequence[Piece[int]], slack: Fraction) -> Sequence[Fraction]:
        """Uniforms of a draw: all places, or in a race one inside each piece."""
        if self.sampling.draw == "race" or self.sampling.noise == "captured":
            return [(piece.low + piece.high) / 2 for piece in pieces]
        return places(breakpoints(pieces), slack)

    def made(
        self,
        at: int,
        run: Prefix,
        accept: Fraction = PLAIN,
        draw: Fraction = PLAIN,
        bonus: int | None = None,
    ) -> Probe:
        """The round of the drafts *run* and the surest ones after them.

        Drafts before and after the place *at* have the uniform 0, which accepts what can be; where
        p(x) = 0 they have another, so that only a probe of that place asks what comes at 0.
        """
        drafts = run
        while len(drafts) < self.k:
            drafts = (*drafts, self.next(drafts))
        made = tuple(max(x, 0) for x in drafts)
        uniforms = [Fraction(0) if self.p(made[:i])[x] else PLAIN for i, x in enumerate(made)]
        if at < self.k:
            uniforms[at] = accept
        if bonus is None and self.sampling.bonus == "given":
            bonus = self.bonuses(made)[0]
        draws = [PLAIN] * (self.k + 1)
        draws[at] = draw
        if self.sampling.shared_draw:
            draws = [draw] * (self.k + 1)
        probe = Probe(
            request=self.r,
            drafts=drafts,
            accept=tuple(uniforms),
            draw=tuple(draws),
            bonus=bonus,
            at=at,
        )
        if self.sampling.draw == "race":
            probe = replace(probe, race=self.race(probe))
        return replace(probe, right=self.right(probe))

    def next(self, run: Prefix) -> int:
        """Some draft after *run*, of which nothing is asked."""
        if self.skipped(len(run)):
            return -1
        if -1 in run:
            return 0 if self.case.q is None else self.drafted(tuple(max(x, 0) for x in run))[0]
        best = self.surest(run)
        return self.drafted(run)[0] if best is None else best

    def race(self, probe: Probe) -> tuple[Fraction, ...]:
        """Noise under which the token that the draw's uniform means wins, others nearly."""
        i, run = probe.at, probe.drafts[: probe.at]
        x = probe.drafts[i] if i < self.k else None
        weights = drawn_from(self.p(run), self.subtracted(run, x))
        winner = decide(draw_pieces(weights), probe.draw[i])
        lead = LEAD if self.case.spread == 1 else LONG_LEAD
        tiny = Fraction(1, 2**40)  # with it a token of weight 0 must not win
        return tuple(
            tiny if not w else w if y == winner else w * (1 + lead) for y, w in enumerate(weights)
        )

    def right(self, probe: Probe) -> frozenset[Round]:
        """The right rounds of a probe."""
        judged = None
        if self.sampling.noise == "captured":
            judged = frozenset[int]()  # the weights are looked at, not what was drawn from them
        elif probe.race is not None:
            judged = frozenset({probe.at})
        return self.right_of(probe, self.slack(judged))

    def slack(self, judged: frozenset[int] | None = None) -> Slack:
        """`slack_for` this case."""
        case = self.case
        return slack_for(self.sampling, self.dtype, judged, case.spread, case.q_above)

    def right_of(self, probe: Request, slack: Slack) -> frozenset[Round]:
        """The right rounds of a request, if breakpoints are known so well."""
        case, r, drafts = self.case, self.r, probe.drafts
        stop = () if case.stop is None else case.stop[r]
        budget = None if case.budget is None else case.budget[r]
        target: Context = target_chain(case, r)
        nearly = max(SLACK, 4 * Fraction(self.sampling.unit))  # of a quotient, or of logarithms
        if case.q_above:  # a q that is larger rejects more, and `unjudged` knows no uniform
            nearly = ANY if slack is unjudged else nearly + 3 * raised(case.q_above, self.dtype)
        after_skip = None
        if -1 in drafts:  # a round that was offered no draft there is a shorter one
            drafts = drafts[: drafts.index(-1)]
            after_skip = self.subtracted(drafts, -1)
        if r in case.greedy:
            return greedy_rounds(target, drafts, stop, budget, self.sampling.ties)
        if after_skip is not None:  # whose last token follows another law than p
            target, slack = self.after_skip(drafts, after_skip, slack)
        rows = [self.q(drafts[:i], x) for i, x in enumerate(drafts)]
        noise = Noise(
            probe.accept[: len(drafts)],
            probe.draw[: len(drafts) + 1],
            self.sampling.rule,
            self.sampling.closed_draw,
            probe.bonus if len(drafts) == self.k else None,
        )
        return decided_rounds(target, rows, drafts, noise, stop, budget, slack, nearly)

    def after_skip(self, run: Prefix, q: Law, slack: Slack) -> tuple[Context, Slack]:
        """The target's laws, and what is near to their breakpoints, with [p - q]+ after *run*."""
        target, end = target_chain(self.case, self.r), len(run)
        p = target(run)
        last, errors = drawn_from(p, q), slack(end, p, q)

        def laws(before: Prefix) -> Law:
            return last if len(before) == end else target(before)

        def near(i: int, p: Law, q: Law | None) -> tuple[Fraction, Fraction]:
            return errors if i == end else slack(i, p, q)

        return laws, near


def subtracted(
    case: VerifyCase, r: int, sampling: Sampling, run: Prefix, x: int | None
) -> Law | None:
    """The q of [p - q]+ after *run* where the draft x is not accepted; None where p follows.

    x is None after all drafts, -1 where the draft is skipped.
    """
    if x is None or (x < 0 and (sampling.skipped == "never_made" or case.q is None)):
        return None
    return draft_chain(case, r, (*run, x))(run)


def drawn_from(p: Law, q: Law | None) -> Law:
    """The law of a token that is no draft: p, or [p - q]+ / Z where that is not empty."""
    return p if q is None else residual(p, q) or p
