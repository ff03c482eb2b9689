"""Kernels of laws that only look faulty: other orders, ties, bases and sums, as they declare."""

from dataclasses import replace
from functools import partial

from kernelassay.impls.contract import Capabilities, Maps
from kernelassay.impls.logits import MAPS
from kernelassay.impls.mutants.logits_lines import (
    BEFORE,
    DIFFERENCE,
    K_TIES,
    LAW,
    MIN_P,
    RUN,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    WEIGHTS,
)
from kernelassay.impls.variants import Variant

_mutant = partial(Variant, base="kernelassay.impls.torch_law")


def _lowest_ids(c: Capabilities) -> Capabilities:
    """Of tokens that tie with the k-th the lowest ids are kept."""
    return replace(c, maps=Maps(top_k_ties="index"))


def _min_p_first(c: Capabilities) -> Capabilities:
    return replace(c, maps=Maps(order=("mask", "temperature", "min_p", "top_k", "top_p")))


def _temperature_last(c: Capabilities) -> Capabilities:
    return replace(c, maps=Maps(order=tuple(sorted(MAPS, key="temperature".__eq__))))


CONTROLS = (
    _mutant(
        name="law_top_k_keeps_lowest_ids",
        edits=((K_TIES, K_TIES.replace('"all"', '"never"')),),
        report="S44",
        hides="How ties are treated is for the kernel to say.",
        capabilities=_lowest_ids,
    ),
    _mutant(
        name="law_min_p_first",
        edits=(
            (f"    if call.min_p is not None:\n        {MIN_P}\n", ""),
            (
                "    if call.top_k is not None:\n",
                f"    if call.min_p is not None:\n        {MIN_P}\n"
                "    if call.top_k is not None:\n",
            ),
        ),
        report="S49",
        hides="The order of the maps is for the kernel to say.",
        capabilities=_min_p_first,
    ),
    _mutant(
        name="law_temperature_last",
        edits=(
            (f"    if call.temperature is not None:\n        {TEMPERATURE}\n", ""),
            (
                f"    {LAW}",
                "    if call.temperature is not None:\n"
                "        w = torch.where(w > 0, (scaled / call.temperature[:, None]).exp(), 0.0)\n"
                f"    {LAW}",
            ),
        ),
        report="S49",
        hides="The order of the maps is for the kernel to say.",
        capabilities=_temperature_last,
    ),
    _mutant(
        name="law_divides_before_it_subtracts",
        edits=(
            (DIFFERENCE, "scaled = x"),
            (WEIGHTS, f"scaled = scaled - scaled.amax(1, keepdim=True)\n    {WEIGHTS}"),
        ),
        report="S49",
        hides="A quotient is rounded before the difference; that is allowed for.",
    ),
    _mutant(
        name="law_in_base_2",
        edits=(
            (WEIGHTS, WEIGHTS.replace("scaled.exp()", "torch.exp2(scaled * math.log2(math.e))")),
        ),
        report="S19",
        hides="That is what an exponential is on a GPU.",
    ),
    _mutant(
        name="law_of_logits_in_base_2",
        edits=(
            (DIFFERENCE, "z = x * math.log2(math.e)\n    scaled = z - z.amax(1, keepdim=True)"),
            (WEIGHTS, WEIGHTS.replace("scaled.exp()", "torch.exp2(scaled)")),
        ),
        report="S19",
        hides="A product is rounded before the difference; that is allowed for.",
    ),
    _mutant(
        name="law_in_float64",
        edits=(
            (DIFFERENCE, "scaled = (x - x.amax(1, keepdim=True)).double()"),
            (LAW, "return (w / w.sum(1, keepdim=True)).float()"),
            (WEIGHTS, WEIGHTS.replace("0.0", "torch.zeros((), dtype=torch.float64)")),
        ),
        report="S19",
        hides="More digits than declared are no fault.",
    ),
    _mutant(
        name="law_top_p_from_the_other_end",
        edits=(
            (BEFORE, "before = sums[:, -1:] - w.gather(1, order).flip(1).cumsum(1).flip(1)"),
            (RUN, RUN + " | (order == order[:, :1])"),
        ),
        report="S46",
        hides="What is left out has a share of 1 - p at most: other sums, the same tokens.",
    ),
    _mutant(
        name="law_divides_at_each_map",
        edits=(
            (TOP_K, f"{TOP_K}\n        w = w / w.sum(1, keepdim=True)"),
            (TOP_P, f"{TOP_P}\n        w = w / w.sum(1, keepdim=True)"),
            (
                MIN_P,
                MIN_P.replace("call.min_p[:, None]", "call.min_p[:, None] * w.amax(1, True)"),
            ),
        ),
        report="S50",
        hides="Laws that are renormalised have the same ratios.",
    ),
)
