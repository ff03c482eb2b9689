"""Labels of programs: which of the steps that go wrong elsewhere a program takes."""

from collections.abc import Iterator
from typing import Any

from kernelassay.oracle.recurrences import State
from kernelassay.properties.domain import lacking
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.recurrent.case import RecurrentCase, Step


@labels.register
def _(case: RecurrentCase, domain: Any) -> set[str]:
    found = facts(case)
    if set(lacking(case, domain)) & domain.declines:
        found.add("declined")
    return found


def facts(case: RecurrentCase) -> set[str]:
    """Everything that the program does and that is worth counting."""
    states, found = case.states(), {"program", "malformed"}
    for n, step in enumerate(case.steps):
        found |= set(_of_step(step, states[n], case.steps[:n]))
    if case.tail:
        found.add("with_tail")
    if case.padding:
        found.add("padded_rows")
    if case.R > 1:
        found.add("several_requests")
    return found


def _of_step(step: Step, before: State, earlier: tuple[Step, ...]) -> Iterator[str]:
    name = step[0]
    if name == "append":
        counts = step[1]
        if any(n and own for n, own in zip(counts, before.tokens, strict=True)):
            yield "append_held"
        if len({*counts}) > 1:
            yield "unequal_appends"
        if earlier and earlier[-1][0] == "rollback" and any(counts):
            yield "append_after_rollback"
        if earlier and earlier[-1][0] in ("free", "fork") and any(counts):
            yield f"append_after_{earlier[-1][0]}"
    elif name == "rollback":
        cuts = [n - k for n, k in zip(before.new or (), step[1], strict=True)]
        true = {
            "all_rejected": any(c and k == 0 for c, k in zip(cuts, step[1], strict=True)),
            "some_rejected": any(c and k for c, k in zip(cuts, step[1], strict=True)),
            "none_rejected": any(before.new or ()) and not any(cuts),
            "unequally_rejected": len({*cuts}) > 1,
            "nothing_drafted": not all(before.new or (1,)) and any(before.tokens),
        }
        yield from (label for label, holds in true.items() if holds)
    elif name == "fork" and before.tokens[step[1]]:
        yield "forked"
    elif name == "free" and before.tokens[step[1]]:
        yield "freed"


LABELS.update(
    {
        "program", "malformed", "declined", "with_tail", "padded_rows", "several_requests",
        "append_held", "unequal_appends", "append_after_rollback", "append_after_free",
        "append_after_fork", "all_rejected", "some_rejected", "none_rejected",
        "unequally_rejected", "nothing_drafted", "forked", "freed",
    }
)  # fmt: skip
