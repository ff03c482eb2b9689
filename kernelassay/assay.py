"""From an outcome to its report: look at the counterexample, and write what was seen."""

from kernelassay.properties.diagnosis import diagnose
from kernelassay.properties.engine import Outcome
from kernelassay.properties.property import Property
from kernelassay.properties.subject import Subject
from kernelassay.report import render


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
