"""The picture of a failed read: the program with the step that broke, the cache before and after.

Everything that is not the model's is read off the cache by needles, entry by entry.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernelassay.oracle.transactions import Entry, State
from kernelassay.properties.caching import ledger
from kernelassay.properties.caching.case import CacheCase, Step
from kernelassay.properties.caching.reads import Read

if TYPE_CHECKING:
    from kernelassay.properties.caching.run import Run

__all__ = ["described", "pictured", "program"]

MOST_STEPS = 10
MOST_REQUESTS = 3
WIDTH = 96


def described(step: Step) -> str:
    """ "append (2, 0)"."""
    name, *arguments = step
    names: dict[str, tuple[str, ...]] = {
        "compact": ("request", "from", "keeps"),
        "fork": ("of request", "as request", "length"),
        "free": ("request",),
        "truncate": ("to",),
    }
    words = names.get(name, ("",) * len(arguments))
    pairs = zip(words, arguments, strict=False)
    return " ".join([str(name), *(f"{word} {value}".strip() for word, value in pairs)])


def program(steps: Sequence[Step], states: Sequence[State], broke: int | None) -> list[str]:
    """The steps, one a line, each with the lengths after it; an arrow at the one that broke."""
    shown = range(max(0, len(steps) - MOST_STEPS), len(steps))
    lines = ["Program" + (f" (its last {len(shown)} steps)" if shown.start else "")]
    for n in shown:
        arrow = "->" if n == broke else "  "
        lengths = ", ".join(map(str, states[n + 1].lengths))
        lines.append(f"{arrow}{n + 1:3}  {described(steps[n]):<40} lengths {lengths}".rstrip())
    return lines


def history(run: "Run", entry: Entry) -> str:
    """Where a token came from and where it went."""
    token, position, owner = entry
    born = gone = None
    for n, state in enumerate(run.states):
        holds = any(e[0] == token for entries in state.entries for e in entries)
        if born is None and holds:
            born = n
        elif born is not None and gone is None and not holds:
            gone = n
    if born is None:
        return f"t{token}, which was never appended"
    said = f"t{token}, which step {born} appended to request {owner} at {position}"
    return said + (f" and step {gone} dropped" if gone is not None else "")


def pictured(
    run: "Run", read: Read, got: Tensor, right: Tensor, wrong: Tensor
) -> tuple[str, list[str]]:
    """The failure in words, and the lines of the picture."""
    # The first entry that is wrong; of means the last, which sees most.
    r, h, i = (int(x) for x in wrong.nonzero()[0 if read.kind == "needle" else -1])
    state = run.state
    L, broke = len(state.entries[r]), len(run.steps) - 1
    after = f"after step {broke + 1}" if run.steps else "before any step"
    sought = read.sought[r, h, i].nonzero()[:, 0].tolist()
    where = f"request {r}, query head {h}"
    if len(sought) == 1 and not run.exact:
        came = ledger.tokens_in(got[r, h, i].tolist())
        head = _head(got[r, h, i])
        held = state.entries[r][sought[0]]
        why = "" if came else _guess(run, r, h, sought, got[r, h, i])
        seen = history(run, came) if came else f"no entry ({_channels(got[r, h, i])}{why})"
        if not bool(got[r, h, i].any()):
            seen = "0, as if it saw nothing,"
        if came == held:
            wanted = h // (run.case.Hq // run.case.Hkv)
            seen = (
                f"t{held[0]} of KV head {head}, not {wanted}"
                if head != wanted
                else (f"t{held[0]} with other channels than were appended")
            )
        said = f"{after} {where} reads {seen} at position {sought[0]}; expected t{held[0]}"
    elif len(sought) == 1:
        said = (
            f"{after} {where} reads {_channels(got[r, h, i], 9)} at position {sought[0]}; "
            f"expected the bits that were appended, {_channels(right[r, h, i], 9)}"
        )
    elif not sought:
        said = f"{after} {where} sees {_channels(got[r, h, i])} where nothing is held; expected 0"
    else:
        at = L - read.rows + i
        said = (
            f"{after} a query of {where} at position {at} does not see the mean of the "
            f"{len(sought)} entries that it should{_guess(run, r, h, sought, got[r, h, i])}"
        )
    lines = program(run.steps, run.states, broke)
    if run.steps:
        lines += ["Before that step", *_rows(run.case, run.states[-2])]
    lines += [f"{after[0].upper()}{after[1:]}, expected and read", *_after(run, r)]
    return said, [line[:WIDTH] for line in lines]


def _head(row: Tensor) -> int:
    """The KV head that a value read is of."""
    x = float(row[3])
    return round(x) if x == x and abs(x) < 1e6 else -1


def _channels(row: Tensor, digits: int = 3) -> str:
    return "[" + ", ".join(f"{x:.{digits}g}" for x in row[:4].tolist()) + ", ...]"


def _guess(run: "Run", r: int, h: int, sought: list[int], got: Tensor) -> str:
    """Which one entry more, fewer or twice explains a mean, if one does."""
    case, group = run.case, run.case.Hq // run.case.Hkv
    ever = {e for state in run.states for entries in state.entries for e in entries}
    held = [run.state.entries[r][j] for j in sought]
    n = len(held)

    def value(entries: Sequence[Entry]) -> Tensor:
        return ledger.values(entries, case.Hkv, case.value_size)[:, h // group]

    total = value(held).sum(0)
    for e in sorted(ever):
        v = value([e])[0]
        more, fewer = (total + v) / (n + 1), (total - v) / max(1, n - 1)
        if e not in held and _near(got, more, n):
            return f", as if it saw {history(run, e)}, too"
        if e in held and _near(got, more, n):
            return f", as if it saw t{e[0]} twice"
        if e in held and n > 1 and _near(got, fewer, n):
            return f", as if it did not see t{e[0]}"
    return ""


def _near(got: Tensor, made: Tensor, n: int) -> bool:
    signs = slice(ledger.VALUE, None)
    return bool(((got[signs] - made[signs]).abs() < 0.5 / (n + 2)).all())


def _rows(case: CacheCase, state: State) -> Iterator[str]:
    """The entries that each request must hold, page by page."""
    for r in range(min(case.R, MOST_REQUESTS)):
        yield f"  request {r}: {_cells(case, [f't{t}' for t, _, _ in state.entries[r]])}"


def _cells(case: CacheCase, names: Sequence[str]) -> str:
    if case.page is None:
        return " ".join(names) or "-"
    pages = [names[j : j + case.page] for j in range(0, len(names), case.page)]
    return " ".join(f"[{' '.join(p)}]" for p in pages) or "-"


def _after(run: "Run", wrong: int) -> Iterator[str]:
    """Expected beside read, of the request that is wrong first; pages where they are known."""
    case, state = run.case, run.state
    order = sorted(range(case.R), key=lambda r: r != wrong)[:MOST_REQUESTS]
    names = _read_names(run)
    use: Any = None
    try:
        use = run.use()
    except Exception:
        use = None
    for r in order:
        yield f"  request {r}: {_cells(case, [f't{t}' for t, _, _ in state.entries[r]])}"
        if names:
            yield f"       read: {_cells(case, names[r])}"
        if use is not None and r < len(use.held):
            yield f"      pages: {' '.join(map(str, use.held[r])) or '-'}"


def _read_names(run: "Run") -> list[list[str]] | None:
    """What needles read of every entry, of the first query head; None where that fails."""
    if run.exact:
        return None
    state = run.state
    names = [["?"] * L for L in state.lengths]
    try:
        for read in run.reads("needle"):
            got = run.attend(read.q).to("cpu", torch.float64)
            for r, row in enumerate(names):
                for i in range(read.rows):
                    at = read.sought[r, 0, i].nonzero()[:, 0].tolist()
                    if len(at) == 1:
                        came = ledger.tokens_in(got[r, 0, i].tolist())
                        row[at[0]] = f"t{came[0]}" if came else "??"
    except Exception:
        return None
    return names
