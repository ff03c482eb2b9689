"""One round of speculative verification as a case: laws are rows of integer masses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kernelassay.properties.case import Case, CaseError

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class VerifyCase(Case):
    """R requests, request r with counts[r] drafts; rows lie one request after the other.

    p: a row for each draft and one more, the bonus row, of each request; q: a row for each draft,
    None if drafts are certain. A row's law is its masses divided by their sum. A *chained* row
    depends on the token before it, x, as target and draft models do: the law of y is that of
    (y + x) mod W in the row. ids: which tokens of the vocabulary of V the W columns are; all other
    tokens have probability 0. spread: column y is so many tokens, y spread to (y + 1) spread - 1,
    which share its mass in the ratio of whole numbers from 1 to 16 that the seed draws; p / q and
    the order of sums are those of columns, so that decisions are, too. q_above: by so many units
    in the last place q is given larger than its law says, as where the softmax that made it
    added its terms in another order than that of p.

    skipped: drafts, by number, that are -1, see `Sampling.skipped`; greedy: requests that are
    greedy; stop: stop tokens of each request, as columns; budget: most tokens of each request;
    seed: of shares, and of drafts and noise where a law draws some.
    """

    counts: tuple[int, ...] = (1,)
    p: Rows = ((1, 1), (1, 1))
    q: Rows | None = ((1, 1),)
    chained: bool = False
    V: int | None = None
    ids: tuple[int, ...] | None = None
    spread: int = 1
    q_above: int = 0
    skipped: tuple[int, ...] = ()
    greedy: tuple[int, ...] = ()
    stop: Rows | None = None
    budget: tuple[int, ...] | None = None
    seed: int = 0

    KINDS: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("q", "ids", "stop", "budget"), (tuple, list, type(None))),
        **dict.fromkeys(("counts", "p", "skipped", "greedy"), (tuple, list)),
        "V": (int, type(None)),
        "chained": (bool,),
    }
    EXAMPLE = "VerifyCase(p=((1, 1), (1, 1)), q=((2, 1),))"

    @property
    def requests(self) -> int:
        """R."""
        return len(self.counts)

    @property
    def width(self) -> int:
        """W, the number of columns."""
        return len(self.p[0])

    @property
    def vocabulary(self) -> int:
        """V, which is W spread where nothing else is said."""
        return self.width * self.spread if self.V is None else self.V

    @property
    def columns(self) -> tuple[int, ...]:
        """The token of each column, the first of several."""
        if self.ids is not None:
            return self.ids
        return tuple(range(0, self.width * self.spread, self.spread))

    @property
    def tokens(self) -> list[int]:
        """All tokens of the first column, then those of the next, W spread in all."""
        return [token for y in range(self.width) for token in self.tokens_of(y)]

    def tokens_of(self, y: int) -> range:
        """All tokens of column y."""
        return range(self.columns[y], self.columns[y] + self.spread)

    def first_draft(self, r: int) -> int:
        """The number of the first draft of request r."""
        return sum(self.counts[:r])

    def checked(self) -> None:
        """A `CaseError`, unless the fields fit together."""

        def wrong(name: str, expected: str) -> CaseError:
            return CaseError(f"case: field {name}: got {getattr(self, name)}, expected {expected}")

        R, N = self.requests, sum(self.counts)
        if not self.counts or not all(_whole(n) for n in self.counts):
            raise wrong("counts", "one number of at least 0 for each request, and a request")
        for name, rows, many in (("p", self.p, N + R), ("q", self.q, N)):
            if rows is None and name == "q":
                continue
            if len(rows or ()) != many or not all(_row(row, len(self.p[0])) for row in rows or ()):
                raise wrong(name, f"{many} rows of equally many masses >= 0, not all 0")
        plain = self.V is None and self.ids is None and not self.greedy and self.stop is None
        if self.spread != 1 and (
            not _whole(self.spread) or not self.spread or not plain or (N and self.q is None)
        ):
            raise wrong(
                "spread",
                "1, or more where drafts have laws, and V, ids, greedy and stop are left out",
            )
        W, V = self.width, self.vocabulary
        if not _whole(V) or W > V:
            raise wrong("V", f"a number of at least {W}, or None for {W}")
        ids = self.columns
        if [*ids] != sorted({*ids}) or len(ids) != W or not all(_whole(x) and x < V for x in ids):
            raise wrong("ids", f"{W} different tokens below {V}, in order")
        for name, below in (("skipped", N), ("greedy", R)):
            if not all(_whole(x) and x < below for x in getattr(self, name)):
                raise wrong(name, f"numbers below {below}")
        if self.stop is not None and (
            len(self.stop) != R or not all(_whole(x) and x < W for s in self.stop for x in s)
        ):
            raise wrong("stop", f"for each of {R} requests columns below {W}")
        if self.budget is not None and (
            len(self.budget) != R or not all(_whole(n) for n in self.budget)
        ):
            raise wrong("budget", f"for each of {R} requests a number of at least 0")
        if not _whole(self.q_above) or (self.q_above and self.q is None):
            raise wrong("q_above", "a number of at least 0, and 0 where drafts are certain")
        if self.seed < 0:
            raise wrong("seed", "at least 0")


def _whole(x: object) -> bool:
    """Whether *x* is a whole number of at least 0."""
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _row(row: object, width: int) -> bool:
    """Whether *row* is a row of *width* masses, one of them positive."""
    if not isinstance(row, tuple) or len(row) != width or not all(map(_whole, row)):
        return False
    return any(row)
