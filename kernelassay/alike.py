"""Failures that are one and the same: a kernel that fails before it computes fails every law.

Two records of one kernel on one device are alike if they have the same kind, which says that
nothing was computed or compared, and the same message, where a raised exception says so much:

    RAISED         the same statement (file:line) raised the same words; their numbers may differ,
                   as sizes do from case to case: an exception's type and words are that
                   statement's, its numbers the case's
    DEVICE LOST, REFUSED, WRONG SHAPE, WRONG DTYPE
                   the message is the same to the letter: no place is known that would tell one
                   cause from another, and the sizes of a wrong shape are what is wrong

Wrong values are never alike: what is wrong with them is not in their message. Neither is a record
that says more than its failure: of other kinds, or of what happened to its counterexample later.
"""

import re
from collections.abc import Hashable, Iterable, Sequence

from kernelassay.messages import paragraph
from kernelassay.properties.records import Record, dumps
from kernelassay.report import raised_at
from kernelassay.running import LOOKED_INTO

SAME_MESSAGE = ("Refused", "WrongShape", "WrongDtype")
_KEPT = "\N{NO-BREAK SPACE}"
"""Between words that stay on one line."""
_NUMBERS = re.compile(r"\d+(?:[\s,.x]*\d+)*")


def alike(records: Iterable[Record]) -> list[list[Record]]:
    """Records that are alike side by side: the one with the shortest case, then the others.

    Groups, and records within them, are in the order of *records* otherwise; most are of one.
    """
    groups: dict[Hashable, list[Record]] = {}
    for record in records:
        groups.setdefault(_cause(record) or id(record), []).append(record)
    for group in groups.values():
        group.insert(0, group.pop(group.index(min(group, key=_length))))
    return list(groups.values())


def others(group: Sequence[Record]) -> str:
    """Where else the first failure of *group* happened, with the id of each case."""
    first, *rest = group
    dtypes = len({r.dtype for r in group}) > 1
    places: dict[tuple[str, str | None], list[str]] = {}
    for r in rest:
        places.setdefault((r.law, r.case_id), []).append(r.dtype)
    named = [
        _KEPT.join(filter(None, (law, case, f"({', '.join(of)})" if dtypes else "")))
        for (law, case), of in places.items()
    ]
    laws = len({r.law for r in rest} - {first.law})
    where = [f"{laws} other law{'s' * (laws != 1)}"] if laws else []
    if dtypes:
        more = len({r.dtype for r in rest} - {first.dtype})
        where.append(f"{more} other dtype{'s' * (more != 1)}")
    numbers = ", but for numbers in the message," if len({r.reason for r in group}) > 1 else ""
    text = paragraph(
        f"The very same happened{numbers} in {' and '.join(where)}: {', '.join(named)}. "
        f"Each as a script: kernelassay repro ID. Each report: kernelassay run ... --json FILE."
    )
    return text.replace(_KEPT, " ")


def _cause(record: Record) -> Hashable | None:
    """What records that are alike have in common; None for one that is like no other."""
    if record.also or f"\n{LOOKED_INTO}" in (record.report or ""):
        return None
    told: Hashable
    if record.status == "device_lost":
        told = record.status, record.reason
    elif record.status == "failed" and record.kind in SAME_MESSAGE:
        told = record.kind, record.reason
    elif record.status == "failed" and record.kind == "Raised":
        place = raised_at(record.report or "")
        if not place:
            return None
        told = record.kind, _NUMBERS.sub("#", record.reason), place
    else:
        return None
    return record.kernel, record.device, told


def _length(record: Record) -> int:
    return len(dumps(record.case or {}))
