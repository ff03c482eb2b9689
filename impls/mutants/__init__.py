"""Kernels with one fault each, imitating public reports, and kernels that only look faulty.

Every mutant must be killed by the law that it names, and every control must pass all of them: the
first shows that the suite sees faults, the second that it raises no false alarm.
"""

from kernelassay.impls.mutants import (
    alignment,
    attention,
    caching,
    caching_controls,
    caching_rings,
    caching_triton,
    controls,
    decoding,
    decoding_controls,
    divided,
    logits,
    merging,
    prefixes,
    recurrent,
    relations,
    scores,
    speculative,
    speculative_block,
    speculative_chance,
    speculative_controls,
    speculative_limits,
    speculative_sampling,
    speculative_triton,
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
    *speculative.MUTANTS,
    *speculative_limits.MUTANTS,
    *speculative_chance.MUTANTS,
    *speculative_block.MUTANTS,
    *speculative_sampling.MUTANTS,
    *speculative_triton.MUTANTS,
    *logits.MUTANTS,
    *prefixes.MUTANTS,
    *recurrent.MUTANTS,
    *caching.MUTANTS,
    *caching_rings.MUTANTS,
    *caching_triton.MUTANTS,
    *decoding.MUTANTS,
)
CONTROLS = (
    *controls.CONTROLS,
    *relations.CONTROLS,
    *merging.CONTROLS,
    *speculative_controls.CONTROLS,
    *logits.CONTROLS,
    *prefixes.CONTROLS,
    *recurrent.CONTROLS,
    *caching_controls.CONTROLS,
    *decoding_controls.CONTROLS,
    *speculative_sampling.CONTROLS,
)
