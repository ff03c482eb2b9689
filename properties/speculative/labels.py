"""Labels of rounds: what kind of input a case of verification is."""

from typing import Any

from kernelassay.oracle.speculative import overlap, residual
from kernelassay.properties.domain import lacking
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.laws_of import law_of_row, support


@labels.register
def _(case: VerifyCase, domain: Any) -> set[str]:
    declined = {"declined"} if set(lacking(case, domain)) & domain.declines else set()
    return declined | {name for name, holds in _facts(case).items() if holds}


def _facts(case: VerifyCase) -> dict[str, bool]:
    counts, tokens = case.counts, set(case.columns)
    pairs = [] if case.q is None else [*zip(_draft_rows(case), case.q, strict=True)]
    laws = [(law_of_row(p), law_of_row(q)) for p, q in pairs]
    stops, budgets = case.stop or (), case.budget or ()
    return {
        "round": True,
        "malformed": True,
        "distinct_laws": any(p != q for p, q in laws),
        "wide_residual": any(len(support(residual(p, q) or ())) > 1 for p, q in laws),
        "target_zeros": any(any(b and not a for a, b in zip(p, q, strict=True)) for p, q in laws)
        or (case.q is None and any(0 in row for row in _draft_rows(case))),
        "draft_zeros": any(any(a and not b for a, b in zip(p, q, strict=True)) for p, q in laws),
        "equal_laws": bool(laws) and all(p == q for p, q in laws),
        "q_just_above": bool(case.q_above),
        "disjoint_laws": bool(laws)
        and all(not any(a and b for a, b in zip(p, q, strict=True)) for p, q in laws),
        "certain_drafts": case.q is None,
        "chained_laws": case.chained and max(counts) > 0,
        "several_drafts": max(counts) > 1,
        "several_requests": len(counts) > 1,
        "no_drafts_first": len(counts) > 1 and counts[0] == 0 < max(counts),
        "no_drafts_last": len(counts) > 1 and counts[-1] == 0 < max(counts),
        "no_drafts": max(counts) == 0,
        "skipped_drafts": bool(case.skipped),
        "all_greedy": len(set(case.greedy)) == len(counts),
        "greedy_and_sampled": 0 < len(set(case.greedy)) < len(counts),
        "greedy_ties": any(row.count(max(row)) > 1 for r in case.greedy for row in _of(case, r)),
        "stop_tokens": any(stops),
        "budgets": bool(budgets),
        "budget_cuts": any(b <= k for b, k in zip(budgets, counts, strict=False)),
        "no_budget_left": 0 in budgets,
        "large_vocabulary": case.vocabulary > 64 * case.width * case.spread,
        "many_weights": case.spread > 1 and any(not row[-1] for row in case.p),
        "even_odds": len(counts) == 1
        and bool(laws)
        and all(
            2 * overlap(p, q) == 1 and len(support(residual(p, q) or ())) > 1 for p, q in laws
        ),
        "apart": counts == (1,) and len({*case.p[1]} - {0}) == 1,
        "last_token": case.vocabulary - 1 in tokens and case.vocabulary > case.width,
    }


def _draft_rows(case: VerifyCase) -> list[tuple[int, ...]]:
    """The target's row for each draft, without the bonus rows."""
    return [row for r in range(case.requests) for row in _of(case, r)[:-1]]


def _of(case: VerifyCase, r: int) -> tuple[tuple[int, ...], ...]:
    """The target's rows of request r."""
    first = case.first_draft(r) + r
    return case.p[first : first + case.counts[r] + 1]


LABELS.update(_facts(VerifyCase()))
