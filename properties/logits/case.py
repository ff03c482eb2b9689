"""Rows of logits and the maps of each row as a case: logits are levels of a step, or masses."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from kernelassay.properties.case import Case, CaseError

Rows = tuple[tuple[int, ...], ...]
TINY = 2.0**-100
"""What temperatures and shares are at least: fp32 holds it."""

HIDDEN = ("own", "large", "nan")
"""What a masked logit holds: its own number, a large finite one, NaN or an infinity."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LawCase(Case):
    """R rows of W columns; a column's logit is level x step or, of *masses*, the log of its mass.

    ids: which tokens of the vocabulary of V the columns are; the others have the level (or mass)
    *fill*, and -inf where it is None. With a *spread* of n above 0 the level of another token v is
    fill - (7 v mod (n + 1)). absent: columns, row by row, whose logit is -inf. The maps have a
    parameter for each row; mask: the columns that it removes. hidden: what those hold.

    shift: a level added to all logits of the other call that a law compares with. at: the row
    that a law looks at, or the malformed call; copies: how many such rows are in a call.
    """

    rows: Rows = ((1, 0),)
    masses: bool = False
    step: float = 1.0
    V: int | None = None
    ids: tuple[int, ...] | None = None
    fill: int | None = None
    spread: int = 0
    absent: Rows | None = None
    temperature: tuple[float, ...] | None = None
    top_k: tuple[int, ...] | None = None
    top_p: tuple[float, ...] | None = None
    min_p: tuple[float, ...] | None = None
    mask: Rows | None = None
    hidden: str = "own"
    shift: int = 0
    copies: int = 1
    at: int = 0

    KINDS: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(
            ("ids", "absent", "temperature", "top_k", "top_p", "min_p", "mask"),
            (tuple, list, type(None)),
        ),
        **dict.fromkeys(("V", "fill"), (int, type(None))),
        "rows": (tuple, list),
        "step": (float, int),
        "masses": (bool,),
    }
    NUMBERS = ("step",)
    EXAMPLE = "LawCase(rows=((2, 1, 0),), top_p=(0.9,))"

    @property
    def height(self) -> int:
        """R, the number of rows."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """W, the number of columns."""
        return len(self.rows[0])

    @property
    def vocabulary(self) -> int:
        """V, which is W where nothing else is said."""
        return self.width if self.V is None else self.V

    @property
    def columns(self) -> tuple[int, ...]:
        """The token of each column."""
        return tuple(range(self.width)) if self.ids is None else self.ids

    def removed(self, r: int) -> frozenset[int]:
        """The columns of row r that mask or logits remove."""
        gone = set() if self.mask is None else set(self.mask[r])
        gone |= set() if self.absent is None else set(self.absent[r])
        if self.masses:
            gone |= {x for x, mass in enumerate(self.rows[r]) if not mass}
        return frozenset(gone)

    def left(self, r: int) -> list[int]:
        """The columns of row r that are left, the likeliest first, of equal ones the lowest."""
        stay = [x for x in range(self.width) if x not in self.removed(r)]
        return sorted(stay, key=lambda x: -self.rows[r][x])

    def checked(self) -> None:
        """A `CaseError`, unless the fields fit together."""
        for good, name, expected in chain(self._shapes(), self._maps()):  # lazily: in this order
            if not good:
                got = getattr(self, name)
                raise CaseError(f"case: field {name}: got {got}, expected {expected}")

    def _shapes(self) -> Iterator[tuple[bool, str, str]]:
        """What must hold of rows and columns, field by field, the first things first."""
        yield bool(self.rows) and bool(self.rows[0]), "rows", "a row of a column or more"
        W, V, ids = self.width, self.vocabulary, self.columns
        least = 0 if self.masses else None
        kind = "masses" if self.masses else "levels"
        same = all(len(row) == W and _whole(row, least) for row in self.rows)
        yield same, "rows", f"rows of {W} {kind} each"
        yield 0 < self.step < math.inf, "step", "a finite number above 0"
        yield W <= V, "V", f"a number of at least {W}, or None for {W}"
        ordered = [*ids] == sorted({*ids}) and len(ids) == W
        yield ordered and _whole(ids, 0, V - 1), "ids", f"{W} tokens below {V}, in order"
        yield self.fill is None or _whole((self.fill,), least), "fill", "a level or mass, or None"
        wide = self.fill is not None and not self.masses
        yield (
            self.spread == 0 or (wide and self.spread > 0),
            "spread",
            "0, or with a fill of levels",
        )
        yield self.hidden in HIDDEN, "hidden", f"one of {', '.join(HIDDEN)}"
        yield self.copies >= 1, "copies", "at least 1"
        yield self.at >= 0, "at", "at least 0"

    def _maps(self) -> Iterator[tuple[bool, str, str]]:
        """What must hold of the maps, which are looked at after the shapes."""
        R, W, V = self.height, self.width, self.vocabulary
        for name in ("mask", "absent"):
            columns = getattr(self, name)
            good = columns is None or (
                len(columns) == R and all(_whole(row, 0, W - 1) for row in columns)
            )
            yield good, name, f"for each of {R} rows columns below {W}"
        stays = all(self.left(r) for r in range(R))
        yield stays, "rows", "a column in each row that mask and logits leave"
        whole = self.top_k is None or (len(self.top_k) == R and _whole(self.top_k, 1, V))
        yield whole, "top_k", f"for each of {R} rows a number of 1 to {V}"
        for name, low, high in (
            ("temperature", TINY, math.inf),
            ("top_p", TINY, 1.0),
            ("min_p", 0.0, 1.0),
        ):
            given = getattr(self, name)
            good = given is None or (
                len(given) == R and all(_number(x) and low <= x <= high for x in given)
            )
            bounds = "from 0" if low == 0 else "above 0"
            bounds += "" if high == math.inf else ", at most 1"
            yield good, name, f"for each of {R} rows a finite number {bounds}"


def _number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def _whole(values: Iterable[object], low: int | None = None, high: int | None = None) -> bool:
    """Whether *values* are whole numbers of *low* to *high*."""
    return all(
        isinstance(x, int)
        and not isinstance(x, bool)
        and (low is None or x >= low)
        and (high is None or x <= high)
        for x in values
    )
