"""A run of a decode loop in words, round by round, with an arrow at the round that went wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kernelassay.impls.decoding import Step
from kernelassay.oracle.decoding import State, Turn, states
from kernelassay.oracle.speculative import Prefix
from kernelassay.properties.decoding.case import DecodeCase

MOST_ROUNDS = 9
"""Rounds that are shown, the wrong one among them: two lines each."""


@dataclass(frozen=True)
class Row:
    """One round as it is printed: drafts, accepted, emitted, lengths of the caches."""

    drafts: str
    accepted: str
    emitted: str
    caches: str


MISSING = Row("no such round", "", "", "")


def listed(tokens: Sequence[int]) -> str:
    """Tokens as "1 2 0", "-" for none."""
    return " ".join(map(str, tokens)) or "-"


def lengths(target: int | None, draft: int | None) -> str:
    """The lengths of the caches, "?" for one that is not told."""
    return ", ".join("?" if n is None else str(n) for n in (target, draft))


def got_row(step: Step) -> Row:
    """A round as the kernel reports it."""
    return Row(
        listed(step.drafts),
        str(step.accepted),
        listed(step.emitted),
        lengths(step.target, step.draft),
    )


def right_row(turn: Turn, state: State, cached: bool) -> Row:
    """A round as the oracle has it."""
    return Row(
        listed(turn.drafts),
        str(turn.accepted),
        listed(turn.emitted),
        lengths(state.target, state.draft if cached else None),
    )


def heading(case: DecodeCase, r: int) -> str:
    """The request in words."""
    words = [f"prompt {listed(case.prompts[r])}", f"budget {case.budget[r]}"]
    if case.stops(r):
        words.append(f"stop {listed(case.stops(r))}")
    if case.least(r):
        words.append(f"no stop before {case.least(r)}")
    return f"Request {r} ({'greedy' if r in case.greedy else 'sampled'}): " + ", ".join(words)


def table(got: Sequence[Row], right: Sequence[Row], wrong: int | None) -> list[str]:
    """Rounds side by side: each as it came, under it as expected where that is another."""
    widths = [8, 8, 8]
    for row in (*got, *right):
        cells = (row.drafts, row.accepted, row.emitted)
        widths = [max(w, len(c)) for w, c in zip(widths, cells, strict=True)]

    def line(mark: str, name: str, row: Row) -> str:
        cells = zip((row.drafts, row.accepted, row.emitted), widths, strict=True)
        shown = "  ".join(f"{c:<{w}}" for c, w in cells)
        return f"{mark:<4}{name:<12}{shown}  {row.caches}".rstrip()

    lines = [line("", "round", Row("drafts", "accepted", "emitted", "caches hold"))]
    first = max(0, (len(got) if wrong is None else wrong + 2) - MOST_ROUNDS)
    if first:
        lines.append(f"    (rounds 0 to {first - 1} are as expected)")
    for t, (came, true) in [*enumerate(zip_longest(got, right))][first : first + MOST_ROUNDS]:
        mark = " -> " if t == wrong else ""
        lines.append(line(mark, f"{t} got", came or MISSING))
        if right and t == wrong:
            lines.append(line("", "  expected", true or MISSING))
    return lines


def run_lines(
    case: DecodeCase,
    r: int,
    trace: Sequence[Step] | None,
    right: Sequence[Turn] = (),
    wrong: int | None = None,
) -> list[str]:
    """Request r of the case round by round, where rounds are known."""
    lines = [heading(case, r)]
    if trace is None:
        return lines
    cached = case.drafts != "lookup"
    after = states(case.prompts[r], right)[1:]
    expected = [right_row(turn, s, cached) for turn, s in zip(right, after, strict=True)]
    return lines + table([got_row(s) for s in trace], expected, wrong)


def texts(got: Prefix, expected: Prefix) -> list[str]:
    """Two texts under each other, an arrow at the first token that differs."""
    pairs = zip_longest(got, expected)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    lines = [f"  got      {listed(got)}", f"  expected {listed(expected)}"]
    if at is not None:
        before = " ".join(map(str, expected[:at] if at < len(expected) else got[:at]))
        lines.append("           " + " " * (len(before) + (at > 0)) + f"^ token {at}")
    return lines
