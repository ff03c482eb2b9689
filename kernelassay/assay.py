"""One item from end to end: check the law, look at the counterexample, write the report."""

from collections.abc import Callable

from kernelassay.properties.case import AttendCase
from kernelassay.properties.diagnosis import diagnose
from kernelassay.properties.engine import Options, Outcome, check
from kernelassay.properties.property import Property
from kernelassay.properties.records import Record
from kernelassay.properties.subject import Subject
from kernelassay.report import render


def assay(
    prop: Property,
    subject: Subject,
    options: Options = Options(),  # noqa: B008 - frozen
    on_case: Callable[[AttendCase], None] = lambda case: None,
    *,
    spec: str | None = None,
) -> Record:
    """The record of *prop* on *subject*, with a report if the law fails.

    Without shrinking (mutants are run so) there is no diagnosis and no report. *spec* is how the
    kernel was named, for the rerun line.
    """
    outcome = check(prop, subject, options, on_case)
    if outcome.found is not None and options.shrink:
        outcome.record.report = reported(prop, subject, outcome, spec)
    return outcome.record


def reported(prop: Property, subject: Subject, outcome: Outcome, spec: str | None) -> str:
    """The report of a failed outcome; a short one if the diagnosis itself fails."""
    assert outcome.found is not None
    record, found = outcome.record, outcome.found
    try:
        picture = diagnose(prop, subject, found, outcome.search)
        return render(record, prop, subject, found, picture, outcome.search, spec=spec)
    except Exception as error:
        return "\n".join(
            [
                f"FAILED {record.law}  kernel={record.kernel}  dtype={record.dtype}  "
                f"device={record.device}",
                f"{found.failure.title}: {found.failure.message}",
                f"Law: {prop.sentence}",
                f"Case: {found.case!r}",
                f"(no full report: {type(error).__name__}: {error})",
            ]
        )
