"""What is taken for granted of a kernel where a case of attention or of a merge is judged.

Correct kernels differ in conventions. One that was not declared is at its default, and a kernel
that keeps to another is wrong throughout: the report says what was expected of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from kernelassay.impls.contract import Capabilities, Conventions
from kernelassay.properties.case import AttendCase
from kernelassay.properties.failures import Failure
from kernelassay.properties.judge import budget_for, empty_rows
from kernelassay.properties.subject import Subject

__all__ = ["taken"]

VALUES = ("WrongValue", "Imprecise", "NonFinite")
"""Kinds of failure that another convention could explain."""
SAID: Mapping[str, Mapping[str, str]] = {
    "state": {
        "out_lse": "a part is an output with its LSE",
        "mlu": "a part is a state (u, m, l) with natural m and l",
    },
    "lse_base": {"e": "LSEs are in base e", "2": "LSEs are in base 2"},
    "mask_polarity": {
        "keep": "True in a mask keeps a key",
        "drop": "True in a mask removes a key",
    },
    "empty_row": {
        "zeros": "the output of a row without keys is 0",
        "nan": "the output of a row without keys is NaN",
        "undefined": "the output of a row without keys may be anything",
    },
    "empty_lse": {
        "-inf": "the LSE of a row without keys is -inf",
        "+inf": "the LSE of a row without keys is +inf",
        "undefined": "the LSE of a row without keys may be anything",
    },
}
"""Of each field what its values mean, in the order in which they are said."""
USUAL: Mapping[str, Any] = {
    f.name: f.default for of in (Capabilities, Conventions) for f in fields(of)
}


def taken(subject: Subject, failure: Failure, *, reads_lse: bool) -> str:
    """The conventions that *failure* may be due to, as sentences; "" where there is none.

    reads_lse: the law judges or uses log-sum-exps.
    """
    case = failure.facts.get("case")
    if not isinstance(case, AttendCase) or failure.kind not in VALUES:
        return ""
    reads_lse |= failure.place is not None and failure.place.tensor == "lse"
    said: dict[bool, list[str]] = {True: [], False: []}
    for name in used(subject, case, reads_lse=reads_lse):
        of = subject.capabilities if name == "state" else subject.conventions
        value = getattr(of, name)
        said[value != USUAL[name]].append(f"{SAID[name][value]} ({name})")
    starts = {True: "As declared", False: "As nothing else is declared"}
    return " ".join(f"{starts[own]}: {', '.join(some)}." for own, some in said.items() if some)


def used(subject: Subject, case: AttendCase, *, reads_lse: bool) -> Iterator[str]:
    """The fields of `SAID` that decide what is right in *case*."""
    merges = subject.merges
    reads_lse |= merges
    if merges:
        yield "state"
    if reads_lse and not subject.numerics.states:
        yield "lse_base"
    if case.mask is not None and not merges:
        yield "mask_polarity"
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    if bool(empty_rows(budget).any()):
        yield "empty_row"
        if reads_lse:
            yield "empty_lse"
