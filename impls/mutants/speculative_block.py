"""Faults of block verification: one half of it, beside a half of token-wise verification.

Ids such as S07 name a report in the project's catalogue of public faults of speculative decoding.
"""

from functools import partial

from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.torch_block_verify"
_mutant = partial(Variant, base=BASE, law="speculative.sequence")
_FIRST = ("speculative.first_token",)

MUTANTS = (
    _mutant(
        name="block_verify_draws_from_the_residual_of_a_token",
        edits=(("(weight[:, :K, None] * p[:, :K] - q)", "(p[:, :K] - q)"),),
        report="S07",
        hides="Right for one draft.",
        level="pr",
    ),
    _mutant(
        name="block_verify_weighs_each_draft_alone",
        edits=(("(w[-1] * ratio[:, j])", "ratio[:, j]"),),
        report="S07",
        hides="Right for one draft.",
        level="pr",
    ),
    _mutant(
        name="block_verify_ends_at_the_first_failure",
        edits=(
            (
                "accepted = (u < h[:, 1:]) & used",
                "accepted = ((u < h[:, 1:]) & used).int().cumprod(1)",
            ),
        ),
        report="X5",
        hides="A draft accepted after one that failed looks like a fault, and is none.",
        level="pr",
    ),
)
