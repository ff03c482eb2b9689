"""What a store of recurrent states can be given: sizes and features that steps need."""

from dataclasses import dataclass
from typing import Any

from kernelassay.properties.domain import Features, domain_for, head_sizes_at, lacking
from kernelassay.properties.recurrent.case import MOST_TOKENS, RecurrentCase
from kernelassay.properties.subject import Subject

REQUESTS = 3


@dataclass(frozen=True)
class RecurrentDomain(Features):
    """The sizes and features that programs may use."""

    requests: int
    tokens: int
    head_sizes: tuple[int, ...]


@domain_for("recurrence")
def _recurrence(subject: Subject, level: str, seed: int) -> RecurrentDomain:
    c = subject.capabilities
    sizes = c.head_sizes
    return RecurrentDomain(
        supports=subject.supports,
        declines=c.declines,
        requests=min(REQUESTS, c.max_requests) if subject.has("recurrence.requests") else 1,
        tokens=min(MOST_TOKENS, c.max_tokens),
        head_sizes=head_sizes_at(sizes, "smoke", seed) if level != "nightly" else sizes,
    )


@lacking.register
def _(case: RecurrentCase, domain: Any) -> list[str]:
    if not isinstance(domain, RecurrentDomain):
        return ["recurrence"]
    names = {step[0] for step in case.steps}
    given = [step[1] for step in case.steps if step[0] in ("append", "rollback")]
    needs = {
        "recurrence.requests": case.R > 1,
        "recurrence.ragged": any(len({*counts}) > 1 for counts in given),
        "recurrence.tail": case.tail > 0,
        "recurrence.rollback": "rollback" in names,
        "recurrence.fork": "fork" in names,
        "recurrence.free": "free" in names,
        "recurrence.padding": case.padding > 0,
    }
    missing = [name for name, needed in needs.items() if needed and not domain.has(name)]
    if domain.requests < case.R and domain.has("recurrence.requests"):
        missing.append(f"R={case.R}")
    if case.D not in domain.head_sizes:
        missing.append(f"D={case.D}")
    return missing
