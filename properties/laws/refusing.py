"""Shared parts of laws about refusals: what is declined, what is malformed."""

from collections.abc import Callable, Mapping
from typing import Any

from kernelassay.impls.contract import Capabilities, Unsupported
from kernelassay.properties.case import Case
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.failures import Accepted, Raised
from kernelassay.properties.subject import Subject


def validating(c: Capabilities) -> str | None:
    """Why malformed calls need not raise."""
    if c.conventions.validates_calls:
        return None
    return "rests on Conventions.validates_calls, which is not declared"


def took_what_it_declines(subject: Subject, case: Case) -> Accepted:
    """The failure of a subject that ran a program that needs a declined feature."""
    domain = domain_of(subject)
    wanted = ", ".join(f for f in lacking(case, domain) if f in domain.declines)
    return Accepted(
        f"{subject.name} took a program that needs {wanted}, which it declines; expected "
        f"Unsupported. Refuse it, or declare it as supported"
    )


def all_refused(
    subject: Subject, calls: Mapping[str, Callable[[], Any]], judge: Callable[[], None]
) -> None:
    """Each of these malformed calls raises, or it is an `Accepted`; *judge* looks after each."""
    for what, call in calls.items():
        try:
            call()
        except (Raised, Unsupported):
            judge()
            continue
        raise Accepted(
            f"{subject.name} took a malformed call: {what}; expected an exception, since it "
            f"declares Conventions.validates_calls"
        )
