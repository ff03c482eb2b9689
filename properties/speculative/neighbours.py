"""Neighbours of a counterexample: a token, a draft, a request fewer, laws without their chain."""

import time
from collections.abc import Iterator
from dataclasses import replace

from kernelassay.properties.case import CaseError
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.failures import Failure
from kernelassay.properties.property import Property
from kernelassay.properties.speculative.case import Rows, VerifyCase
from kernelassay.properties.subject import Subject

MOST_SECONDS = 20.0


def around(prop: Property, subject: Subject, case: VerifyCase) -> tuple[str, ...]:
    """A line for each kind of change: which neighbours pass, and which fail."""
    deadline, found = time.perf_counter() + MOST_SECONDS, dict[str, list[tuple[str, str]]]()
    domain = domain_of(subject)
    for kind, name, near in _proposed(case):
        try:
            near.checked()
        except CaseError:
            continue
        if lacking(near, domain) or time.perf_counter() > deadline:
            continue
        found.setdefault(kind, []).append((name, _verdict(prop, subject, near)))
    return tuple(_line(kind, verdicts) for kind, verdicts in found.items())


def _line(kind: str, verdicts: list[tuple[str, str]]) -> str:
    """ "with a token fewer: passes without 2; fails without 0, 1"."""
    words = []
    for verdict in dict.fromkeys(v for _, v in verdicts):
        names = [n for n, v in verdicts if v == verdict and n]
        words.append(verdict + (f" without {', '.join(names)}" if names else ""))
    return f"  {kind}: {'; '.join(words)}"


def _verdict(prop: Property, subject: Subject, case: VerifyCase) -> str:
    subject.current = case
    try:
        prop.body(subject, case)
    except Failure:
        return "fails"
    return "passes"


def _proposed(case: VerifyCase) -> Iterator[tuple[str, str, VerifyCase]]:
    """(kind of change, what is left out, the case)."""
    if case.width > 2:
        for x in range(case.width):
            if (near := _without_column(case, x)) is not None:
                yield "with a token fewer", str(case.columns[x]), near
    r = max(range(case.requests), key=case.counts.__getitem__)
    if case.counts[r] > 1:
        yield "with a draft fewer", "", _without_draft(case, r)
    if case.requests > 1:
        for r in range(case.requests):
            yield "with a request fewer", str(r), _without_request(case, r)
    if case.chained:
        yield "with laws that do not depend on the token before", "", replace(case, chained=False)


def _without_column(case: VerifyCase, x: int) -> VerifyCase | None:
    def cut(rows: Rows) -> Rows:
        return tuple((*row[:x], *row[x + 1 :]) for row in rows)

    p, q = cut(case.p), None if case.q is None else cut(case.q)
    if not all(map(any, (*p, *(q or ())))):
        return None
    stop = case.stop
    if stop is not None:
        stop = tuple(tuple(y - (y > x) for y in s if y != x) for s in stop)
    ids = None if case.ids is None else (*case.ids[:x], *case.ids[x + 1 :])
    return replace(case, p=p, q=q, stop=stop, ids=ids)


def _without_draft(case: VerifyCase, r: int) -> VerifyCase:
    """Request r without its last draft; its bonus row stays."""
    k = case.counts[r]
    n, row = case.first_draft(r) + k - 1, case.first_draft(r) + r + k - 1
    return replace(
        case,
        counts=(*case.counts[:r], k - 1, *case.counts[r + 1 :]),
        p=(*case.p[:row], *case.p[row + 1 :]),
        q=None if case.q is None else (*case.q[:n], *case.q[n + 1 :]),
        skipped=tuple(i - (i > n) for i in case.skipped if i != n),
    )


def _without_request(case: VerifyCase, r: int) -> VerifyCase:
    k, n, row = case.counts[r], case.first_draft(r), case.first_draft(r) + r
    return replace(
        case,
        counts=(*case.counts[:r], *case.counts[r + 1 :]),
        p=(*case.p[:row], *case.p[row + k + 1 :]),
        q=None if case.q is None else (*case.q[:n], *case.q[n + k :]),
        skipped=tuple(i - k * (i >= n + k) for i in case.skipped if not n <= i < n + k),
        greedy=tuple(g - (g > r) for g in case.greedy if g != r),
        stop=None if case.stop is None else (*case.stop[:r], *case.stop[r + 1 :]),
        budget=None if case.budget is None else (*case.budget[:r], *case.budget[r + 1 :]),
    )
