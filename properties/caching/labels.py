"""Labels of programs: which of the steps that go wrong elsewhere a program takes."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from kernelassay.oracle.transactions import State
from kernelassay.properties.caching.case import CacheCase, Step
from kernelassay.properties.domain import lacking
from kernelassay.properties.labels import LABELS, labels


@labels.register
def _(case: CacheCase, domain: Any) -> set[str]:
    found = facts(case)
    if set(lacking(case, domain)) & domain.declines:
        found.add("declined")
    return found


def facts(case: CacheCase) -> set[str]:
    """Everything that the program does and that is worth counting."""
    states = case.states()
    found = {"program", "malformed"}
    for n, step in enumerate(case.steps):
        before, after = states[n], states[n + 1]
        found |= set(_of_step(case, step, before, after))
        found |= set(_since(case, n, states))
    if case.page is not None and case.pages is None:
        found |= {"exact_pool", "exhausted"}
        last = states[-1]
        ends = [held[-1] for held, L in zip(last.held, last.lengths, strict=True) if L % case.page]
        if any(sum(page in held for held in last.held) > 1 for page in ends):
            found.add("shared_at_the_end")
    if case.padding:
        found.add("padded_rows")
    if case.R > 1:
        found.add("several_requests")
    return found


def _of_step(case: CacheCase, step: Step, before: State, after: State) -> Iterator[str]:
    """What a step is, by itself."""
    name, page, L = step[0], case.page, before.lengths
    if name == "append":
        counts, got = step[1], [n for n in step[1] if n]
        true = {
            "nothing_first": len(counts) > 1 and counts[0] == 0 < max(counts),
            "nothing_last": len(counts) > 1 and counts[-1] == 0 < max(counts),
            "unequal_appends": len({*counts}) > 1,
            "nothing_appended": not got,
            "one_goes_on": len(counts) > 1
            and len(got) == 1
            and all(a or n for a, n in zip(L, counts, strict=True)),
            "append_held": any(n and a for a, n in zip(L, counts, strict=True)),
        }
        if page is not None:
            inside = [(a % page, n) for a, n in zip(L, counts, strict=True) if n]
            true["across_page"] = any(a and a + n > page for a, n in inside)
            true["several_pages"] = any(n > 2 * page for n in got)
        yield from (label for label, holds in true.items() if holds)
    elif name == "truncate":
        yield from _of_truncate(page, L, step[1])
    elif name == "compact":
        _, _, first, kept = step
        moved = [first + i for i, source in enumerate(kept) if source != i]
        yield "compacted"
        if len(moved) > 1:
            yield "several_moved"
        if page and any((first + kept[i - first]) // page != i // page for i in moved):
            yield "moved_across_pages"
        if any(b != a + 1 for a, b in pairwise(kept)):
            yield "scattered"
    elif name == "fork":
        _, parent, child, length = step
        yield "forked"
        if page and length % page:
            yield "fork_inside_page"
        if 0 < length < L[parent]:
            yield "fork_of_some"
        if L[child]:
            yield "fork_over_entries"
    elif name == "free" and L[step[1]]:
        yield "freed"
    yield from _of_window(case, after)


def _of_truncate(page: int | None, L: tuple[int, ...], kept: tuple[int, ...]) -> Iterator[str]:
    cuts = [a - b for a, b in zip(L, kept, strict=True)]
    if any(cuts):
        yield "truncated"
    for n, cut in zip(kept, cuts, strict=True):
        if cut and n == 0:
            yield "truncate_all"
        if cut and page and n and n % page == 0:
            yield "truncate_to_page"
        if cut and page and n % page:
            yield "truncate_inside_page"
        if cut and page and (n + cut - 1) // page > max(0, n - 1) // page:
            yield "truncate_frees_page"
    if any(L) and not any(cuts):
        yield "truncate_nothing"
    if len({*cuts}) > 1:
        yield "truncate_unequal"


def _of_window(case: CacheCase, after: State) -> Iterator[str]:
    if case.window is None:
        return
    W, slots = case.window, case.window + case.spare
    for L in after.lengths:
        for name, n in (
            ("window_full", W),
            ("window_one_less", W - 1),
            ("window_one_more", W + 1),
        ):
            if L and n == L:
                yield name
        if slots < L:
            yield "wrapped"
        if 2 * slots < L:
            yield "wrapped_twice"


def _since(case: CacheCase, n: int, states: list[State]) -> Iterator[str]:
    """What a step is after others."""
    step, page = case.steps[n], case.page
    earlier = case.steps[:n]
    if step[0] == "append":
        for r, count in enumerate(step[1]):
            if not count:
                continue
            before = states[n].entries[r]
            owners = {q for _, _, q in before}
            if earlier and earlier[-1][0] == "truncate":
                a, b = states[n - 1].lengths[r], states[n].lengths[r]
                if b < a:
                    yield "append_after_truncate"
                    if case.window is not None and states[n].longest[r] > case.window:
                        yield "append_after_trim_in_window"
            if owners - {r}:
                yield "append_to_child"
            if any(s[0] == "fork" and s[1] == r for s in earlier):
                yield "append_to_parent"
            if page and states[n].held[r]:
                shared = {p for q, held in enumerate(states[n].held) if q != r for p in held}
                if len(before) % page and states[n].held[r][-1] in shared:
                    yield "copied_on_write"
            if not before and any(s[0] == "free" for s in earlier):
                yield "append_after_free"
    elif step[0] == "compact" and states[n + 1].taken > states[n].taken:
        yield "compact_of_shared"


LABELS.update(
    {
        "program", "malformed", "exhausted", "shared_at_the_end", "declined", "exact_pool",
        "padded_rows", "several_requests",
        "across_page", "several_pages", "nothing_first", "nothing_last", "unequal_appends",
        "nothing_appended", "append_held", "compacted", "several_moved", "moved_across_pages",
        "scattered", "forked", "fork_inside_page", "fork_of_some", "fork_over_entries", "freed",
        "one_goes_on", "truncated", "truncate_all", "truncate_to_page", "truncate_inside_page",
        "truncate_frees_page", "truncate_nothing", "truncate_unequal", "window_full",
        "window_one_more", "wrapped", "wrapped_twice",
        "append_after_truncate", "append_after_trim_in_window", "append_to_child",
        "append_to_parent", "copied_on_write", "append_after_free", "compact_of_shared",
    }
)  # fmt: skip
