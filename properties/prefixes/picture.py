"""The picture of a failure: the program with its hits and the step that broke, entries read."""

from collections.abc import Sequence

from torch import Tensor

from kernelassay.oracle.prefixes import State
from kernelassay.properties.prefixes import ledger
from kernelassay.properties.prefixes.case import Step

__all__ = ["described", "program", "rows_beside"]

MOST_STEPS = 12
MOST_ROWS = 10
WIDTH = 96


def described(step: Step) -> str:
    """ "begin request 0 with 1 2 3, salt 1"."""
    name, *given = step
    if name in ("begin", "look"):
        *who, tokens, salt, adapter = given
        scope = "".join(f", {n} {x}" for n, x in (("salt", salt), ("adapter", adapter)) if x)
        first = f"begin request {who[0]} with" if who else "look for"
        return f"{first} {_listed(tokens)}{scope}"
    if name == "append":
        return f"append {_listed(given[1])} to request {given[0]}"
    if name in ("truncate", "commit"):
        return f"{name} request {given[0]} {'to' if name == 'truncate' else 'up to'} {given[1]}"
    return f"{name} request {given[0]}" if given else str(name)


def _listed(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def program(
    steps: Sequence[Step],
    states: Sequence[State],
    answers: Sequence[int | None],
    broke: int | None,
) -> list[str]:
    """The steps, one a line, with what was found; an arrow at the one that broke."""
    shown = range(max(0, len(steps) - MOST_STEPS), len(steps))
    lines = ["Program" + (f" (its last {len(shown)} steps)" if shown.start else "")]
    for n in shown:
        arrow, answer = "->" if n == broke else "  ", answers[n]
        hit = "" if answer is None else f"  found {answer}"
        lines.append(f"{arrow}{n + 1:3}  {described(steps[n])}{hit}"[:WIDTH])
    cached = sorted(states[-1].cached)
    if cached:
        ends = [
            (s, t) for s, t in cached
            if not any(s == q and t != u and u[: len(t)] == t for q, u in cached)
        ]  # fmt: skip
        named = [f"{_listed(t)}{f' ({s[0]}, {s[1]})' if any(s) else ''}" for s, t in ends]
        lines.append(f"Committed (salt, adapter): {'; '.join(named)}"[:WIDTH])
    return lines


def rows_beside(right: Tensor, got: Tensor, bad: Tensor) -> list[str]:
    """Values [L, Hkv, Dv] of KV head 0, those that differ marked."""
    lines = []
    first = max(0, int(bad.nonzero()[0]) - MOST_ROWS // 2)
    for at in range(first, min(len(bad), first + MOST_ROWS)):
        mark = "  <- differs" if bool(bad[at]) else ""
        wanted, came = ledger.said(right[at, 0]), ledger.said(got[at, 0])
        lines.append(f"  {at:3}  {wanted:<30} {came:<30}{mark}".rstrip())
    return lines
