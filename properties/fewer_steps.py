"""Neighbours of a program that fails: a step fewer."""

import time
from dataclasses import replace
from typing import Any

from kernelassay.properties.case import CaseError
from kernelassay.properties.failures import Failure
from kernelassay.properties.property import Property
from kernelassay.properties.subject import Subject

MOST_SECONDS = 20.0


def without_a_step(prop: Property, subject: Subject, case: Any) -> tuple[str, ...]:
    """One line: without which of its steps a program passes, and without which it fails."""
    deadline, found = time.perf_counter() + MOST_SECONDS, dict[str, list[str]]()
    for n in range(len(case.steps)):
        near = replace(case, steps=(*case.steps[:n], *case.steps[n + 1 :]))
        try:
            near.checked()
        except CaseError:  # a later step needs it
            continue
        if time.perf_counter() > deadline:
            break
        subject.current = near
        try:
            prop.body(subject, near)
        except Failure:
            found.setdefault("fails", []).append(str(n + 1))
        else:
            found.setdefault("passes", []).append(str(n + 1))
    said = [f"{verdict} without {', '.join(steps)}" for verdict, steps in found.items()]
    return (f"  with a step fewer: {'; '.join(said)}",) if said else ()
