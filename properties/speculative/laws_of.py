"""The exact laws of a case: the target's and the drafts' rows, given the tokens before them."""

from fractions import Fraction
from functools import lru_cache

from kernelassay.oracle.speculative import Context, Law, Prefix, normalised, one_hot
from kernelassay.properties.speculative.case import VerifyCase


@lru_cache(4096)
def law_of_row(row: tuple[int, ...], turned: int = 0) -> Law:
    """The row's law, y having the mass of column (y + turned) mod W."""
    W = len(row)
    return normalised([row[(y + turned) % W] for y in range(W)])


def target_chain(case: VerifyCase, r: int) -> Context:
    """The target's law of request r after the tokens of this round, as columns."""
    first = case.first_draft(r) + r
    return lambda run: law_of_row(case.p[first + len(run)], _turn(case, run))


def draft_chain(case: VerifyCase, r: int, drafts: Prefix | None = None) -> Context:
    """The law that the draft after *run* is drawn from; of drafts that are certain: one-hot."""
    first = case.first_draft(r)
    rows = case.q
    if rows is None:
        assert drafts is not None, "certain drafts have no law of their own"
        return lambda run: one_hot(drafts[len(run)], case.width)
    return lambda run: law_of_row(rows[first + len(run)], _turn(case, run))


def _turn(case: VerifyCase, run: Prefix) -> int:
    return run[-1] if case.chained and run else 0


def support(law: Law) -> list[int]:
    """The tokens that the law can give."""
    return [y for y, w in enumerate(law) if w]


@lru_cache(4096)
def rounding(law: Law, bits: int) -> Fraction:
    """The largest relative error of the law's numbers in a format of so many significant bits."""
    worst = Fraction(0)
    for w in law:
        if w:
            held = _nearest(w, bits)
            worst = max(worst, abs(held - w) / w)
    return worst


def _nearest(w: Fraction, bits: int) -> Fraction:
    """*w* in (0, 1] to so many significant bits."""
    unit = Fraction(1)
    while w < unit:
        unit /= 2
    unit /= 2 ** (bits - 1)
    return round(w / unit) * unit
