"""Laws of equivalent calls: the same question put in another way has the same answer."""

from dataclasses import replace

import torch

from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import domain_of
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.judge import budget_of
from kernelassay.properties.laws.comparing import answered, kept, same_answers
from kernelassay.properties.laws.equality import agree, rows_of
from kernelassay.properties.laws.rewriting import (
    answer_heads,
    group,
    heads_of,
    keys_in_order,
    more_keys,
    more_queries,
    order_of_keys,
    other_heads_replaced,
)
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


@law(
    "attention.head_independence",
    "A head's output does not depend on the other heads, but for those of its own group's KV "
    "head.",
    strata={
        "several_heads": s.several_heads,
        "grouped": s.grouped_heads,
        "scoring": s.scored_heads,
    },
    weight=0.5,
)
def head_independence(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    g = case.at % case.Hkv
    first, second = (
        answer_heads(kept(subject.attend(t)), group(tensors, g))
        for t in (tensors, other_heads_replaced(tensors, g))
    )
    agree(
        subject,
        f"every head but those of KV head {g} was replaced",
        first,
        second,
        budget_of(heads_of(tensors, g), subject.numerics, generic=case.generic),
    )


@law(
    "attention.key_permutation",
    "The order in which keys are stored does not matter: values, masks, biases and positions go "
    "with them.",
    strata={
        "any_order": s.any_order,
        "positions": s.reordered_positions,
        "positions_window": s.reordered_window,
        "ragged": s.reordered_ragged,
    },
    weight=0.5,
)
def key_permutation(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    moved = keys_in_order(tensors, order_of_keys(tensors, case.at))
    first, second = (answered(subject, t, generic=case.generic) for t in (tensors, moved))
    same_answers(subject, "the keys were stored in another order", first, second)


@law(
    "attention.padding",
    "Hidden slots after the keys, and other queries beside its own, change nothing of a row.",
    requires=["unequal_lengths"],
    strata={
        "random_content": s.padded_corner,
        "positions": s.padded_positions,
        "ragged": s.padded_ragged,
    },
    weight=0.5,
)
def padding(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    clean = kept(subject.attend(tensors))
    domain, extra = domain_of(subject), 1 + case.at
    if domain.fits(case.B, case.Hq, case.Tq, case.Tk + extra):
        # NaN beyond a length is `attention.unseen_content`'s to find: one fault, one red law.
        harmless = subject.conventions.masked_content != "finite_only"
        for by in ways_to_hide(subject, tensors):
            longer = more_keys(tensors, extra, by=by, harmless=harmless)
            what = f"{extra} slots were added after the keys and hidden by {by}"
            budget = budget_of(longer, subject.numerics, generic=case.generic)
            alike = getattr(tensors.visibility, by) is not None
            agree(subject, what, clean, subject.attend(longer), budget, alike=alike)
    rows = 1 + case.at % 3
    fits = domain.fits(case.B, case.Hq, case.Tq + rows, case.Tk)
    if fits and (case.Tq + rows <= case.Tk or domain.has("more_queries")):
        taller, start = more_queries(tensors, rows)
        answer = rows_of(subject.attend(taller), start, start + case.Tq)
        budget = budget_of(tensors, subject.numerics, generic=case.generic)
        agree(subject, f"{rows} queries were added", clean, answer, budget)


def ways_to_hide(subject: Subject, tensors: Logical) -> list[str]:
    """By what added slots can be hidden without moving a query.

    A mask leaves Tk, from which positions are counted, as it is: only where none are counted, or
    from the start, or given.
    """
    vis, scoring = tensors.visibility, tensors.scoring
    ways = ["lengths"] if subject.has("lengths") or vis.lengths is not None else []
    counted = vis.causal == "bottom_right" or (
        vis.causal == "none" and (vis.window != (None, None) or scoring.alibi is not None)
    )
    if subject.has("mask") and vis.lengths is None and not counted:
        ways.append("mask")
    return ways


@law(
    "attention.bias_is_mask",
    "A bias of 0 and minus infinity is the boolean mask that keeps where it is 0.",
    requires=["mask", "bias", "bias.minus_infinity"],
    strata={
        "boolean_mask": s.boolean_mask,
        "full_mask": s.full_mask,
        "scores_leap": s.hidden_peak,
    },
    weight=0.5,
)
def bias_is_mask(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    mask = tensors.visibility.mask
    if mask is None:
        return
    zero = torch.zeros((), dtype=tensors.q.dtype, device=mask.device)
    bias = torch.where(mask, zero, -torch.inf)
    other = replace(
        tensors,
        visibility=replace(tensors.visibility, mask=None),
        scoring=replace(tensors.scoring, bias=bias),
    )
    first, second = (answered(subject, t, generic=case.generic) for t in (tensors, other))
    same_answers(subject, "the mask came as a bias of 0 and -inf", first, second)
