"""Labels of decode loops: what kind of call a case is, and what happens in its rounds."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from kernelassay.oracle.decoding import Turn, greedy_text
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.decoding.domain import DecodeDomain
from kernelassay.properties.decoding.models import Models
from kernelassay.properties.decoding.rehearsal import rehearsed
from kernelassay.properties.domain import lacking
from kernelassay.properties.labels import LABELS, labels

EVENTS = (
    "rejected_first",
    "rejected_later",
    "all_accepted",
    "rolled_back",
    "draft_rolled_back",
    "hole",
    "no_drafts_after_hole",
    "stop_accepted",
    "stop_before_drafts_end",
    "stop_corrected",
    "stop_bonus",
    "minimum_in_round",
    "budget_inside",
    "budget_at_end",
    "lookup_match",
    "lookup_no_match",
    "ends_apart",
)
"""What may happen in a run."""


@labels.register
def _(case: DecodeCase, domain: Any) -> set[str]:
    declined = {"declined"} if set(lacking(case, domain)) & domain.declines else set()
    true = {name for name, holds in _facts(case).items() if holds}
    if isinstance(domain, DecodeDomain):
        true |= happenings(models_in(domain, case))
    return declined | true


def models_in(domain: DecodeDomain, case: DecodeCase) -> Models:
    """The models of the case as the domain's kernel has them."""
    return Models(domain.kernel, domain.decoding, case, domain.device, domain.dtype)


def _facts(case: DecodeCase) -> dict[str, bool]:
    R, greedy = case.requests, len({*case.greedy})
    some = [k for k in case.schedule if k]
    return {
        "run": True,
        "malformed": True,
        **{f"{kind}_drafts": case.drafts == kind for kind in ("near", "far", "same")},
        "lookups": case.drafts == "lookup",
        "several_drafts": max(case.schedule) > 1,
        "rounds_without_drafts": 0 in case.schedule and bool(some),
        "no_drafts": not some,
        "several_requests": R > 1,
        "ragged_prompts": len({*map(len, case.prompts)}) > 1,
        "one_prompt_token": any(len(p) == 1 for p in case.prompts),
        "all_greedy": greedy == R,
        "greedy_and_sampled": 0 < greedy < R,
        "sampled": greedy < R,
        "stop_tokens": case.stop is not None and any(case.stop),
        "minimum": any(case.stops(r) and case.least(r) for r in range(R)),
        "no_budget": 0 in case.budget,
        "budget_of_one": 1 in case.budget,
        "budgets_differ": len({*case.budget}) > 1,
    }


@lru_cache(1 << 12)
def happenings(models: Models) -> frozenset[str]:
    """The events of the requests' runs; none where the adapter's models give no law."""
    case, found = models.case, set[str]()
    turns = []
    for r in range(case.requests):
        try:
            turns.append(min(rehearsed(models, r), key=repr))
        except Exception:  # the law that runs the case says what is wrong with the models
            return frozenset()
        found |= {*_events(case, r, turns[-1])}
    if case.greedy and all(clear(models, r) for r in case.greedy):
        found.add("clear_greedy")
    if len({*map(len, turns)} - {0}) > 1:
        found.add("ends_apart")
    return frozenset(found)


def clear(models: Models, r: int) -> bool:
    """Whether the greedy text of request r is the same for laws that are off by a little."""
    _, lead = greedy_text(models.task(r), models.target(r))
    return lead > 16 * models.decoding.slack


def _events(case: DecodeCase, r: int, turns: Sequence[Turn]) -> Iterator[str]:
    emitted = 0
    for turn in turns:
        k, a, n = len(turn.drafts), turn.accepted, len(turn.emitted)
        emitted += n
        last, drawn = turn.emitted[-1], n > a
        if drawn and a < k:
            yield "rejected_first" if a == 0 else "rejected_later"
        if k and a == k:
            yield "all_accepted"
        if last in case.stops(r):
            kind = "stop_accepted" if not drawn else "stop_corrected" if a < k else "stop_bonus"
            yield kind
            if kind == "stop_accepted" and n < k:
                yield "stop_before_drafts_end"
            if emitted - n < case.least(r):
                yield "minimum_in_round"
        elif emitted == case.budget[r]:
            yield "budget_at_end" if drawn else "budget_inside"
        if case.drafts == "lookup":
            yield "lookup_match" if k else "lookup_no_match"
    for turn, following in pairwise(turns):
        k, a = len(turn.drafts), turn.accepted
        if a < k and following.drafts:
            yield "rolled_back"
        if a < k - 1 and following.drafts:
            yield "draft_rolled_back"
        if k and a == k and following.drafts:
            yield "hole"
        if k and a == k and not following.drafts:
            yield "no_drafts_after_hole"


LABELS.update(_facts(DecodeCase()))
LABELS.update(EVENTS)
LABELS.add("clear_greedy")
