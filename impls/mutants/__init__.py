"""Kernels with one fault each, imitating public reports, and kernels that only look faulty.

Every mutant must be killed by the law that it names, and every control must pass all of them: the
first shows that the suite sees faults, the second that it raises no false alarm.
"""

from kernelassay.impls.mutants import (
    alignment,
    attention,
    controls,
    divided,
    merging,
    relations,
    scores,
    terms,
    triton,
)

__all__ = ["CONTROLS", "MUTANTS"]

MUTANTS = (
    *attention.MUTANTS,
    *scores.MUTANTS,
    *terms.MUTANTS,
    *alignment.MUTANTS,
    *relations.MUTANTS,
    *triton.MUTANTS,
    *merging.MUTANTS,
    *divided.MUTANTS,
)
CONTROLS = (*controls.CONTROLS, *relations.CONTROLS, *merging.CONTROLS)
