"""Fault models of a merge: weights, maxima, empty parts, LSE."""

import math

import torch
from torch import Tensor

from kernelassay.oracle.merging import finish, merge, state_of
from kernelassay.properties.fault_setting import Answer, Fault, Setting, Variants, table
from kernelassay.properties.parts import true_parts

FAULTS: list[Fault] = []
SEEDS = (-1e4, -3e4, -5e4, -65504.0, -1e5, 0.0)
"""Finite numbers that a running maximum is started with."""
LARGEST_EXPONENT, LEAST_EXPONENT = 88.7, -103.9
"""Where exp overflows to infinity and vanishes in fp32."""
fault = table(FAULTS)


def parts_of(s: Setting) -> tuple[Tensor, Tensor]:
    """Outputs [n, B, H, T, Dv], garbage where empty, and LSEs [n, B, H, T], as they were given."""
    out, lse = (torch.stack(x) for x in zip(*true_parts(s.tensors), strict=True))
    fill = s.tensors.plan.fill
    return torch.where(lse[..., None] > -math.inf, out, 1000.0 if fill is None else fill), lse


def weighted(out: Tensor, lse: Tensor, weights: Tensor) -> Answer:
    """Outputs with these weights [n, B, H, T], which are divided by their sum."""
    share = (weights / weights.sum(0))[..., None]
    kept = torch.where(share > 0, share * out, share)  # NaN weights show
    return Answer(kept.sum(0), torch.logsumexp(lse, 0))


def right(out: Tensor, lse: Tensor) -> Answer:
    """The merge as it should be."""
    states = [state_of(o, z) for o, z in zip(out, lse, strict=True)]
    return Answer(*finish(merge(*states)))


@fault("empty with empty", "a merge of empty parts subtracts -inf from -inf")
def empty_with_empty(s: Setting) -> Variants:
    out, lse = parts_of(s)
    good, empty = right(out, lse), lse == -math.inf
    firsts = {
        "all parts empty": empty.all(0),
        "the first part empty": empty[0],
        "any part empty": empty.any(0),
    }
    for what, rows in firsts.items():
        if bool(rows.any()) and good.lse is not None:
            lost = torch.where(rows, math.nan, 0.0)
            yield what, Answer(good.out + lost[..., None], good.lse + lost)
            yield f"{what}, the LSE is right", Answer(good.out + lost[..., None], good.lse)


@fault(
    "finite first maximum", "the running maximum starts at a finite number: what is below is lost"
)
def finite_first_maximum(s: Setting) -> Variants:
    out, lse = parts_of(s)
    for seed in SEEDS:
        top = lse.amax(0).clamp_min(seed)
        weights = torch.exp(lse - top)
        weights = torch.where(lse - top < LEAST_EXPONENT, 0.0, weights)
        total = weights.sum(0)
        for what, instead in (("", 0.0), (", a sum of 0 divides by 1", 1.0)):
            safe = torch.where(total == 0, instead, total)
            made = (weights[..., None] * torch.where(weights[..., None] > 0, out, 0.0)).sum(0)
            yield f"{seed:g}{what}", Answer(made / safe[..., None], top + total.log())


@fault("parts weigh the same", "parts are averaged, whatever their log-sum-exps")
def equal_weights(s: Setting) -> Variants:
    out, lse = parts_of(s)
    yield "all", weighted(out, lse, torch.ones_like(lse))
    yield "those that saw a key", weighted(out, lse, (lse > -math.inf).double())


@fault("one part alone", "one part is taken for the whole")
def one_part(s: Setting) -> Variants:
    out, lse = parts_of(s)
    for what, n in (("the first", 0), ("the last", -1)):
        yield what, Answer(out[n], lse[n])
        yield f"{what}, the LSE is right", Answer(out[n], torch.logsumexp(lse, 0))
    largest = torch.nn.functional.one_hot(lse.argmax(0), len(lse)).movedim(-1, 0).double()
    yield "the one with the largest LSE", weighted(out, lse, largest)


@fault("part left out", "a part is not merged")
def part_left_out(s: Setting) -> Variants:
    out, lse = parts_of(s)
    for n in range(len(lse) if len(lse) > 1 else 0):
        rest = [i for i in range(len(lse)) if i != n]
        yield f"number {n}", right(out[rest], lse[rest])


@fault("part counted twice", "a part is merged twice")
def part_twice(s: Setting) -> Variants:
    out, lse = parts_of(s)
    for n in range(len(lse)):
        twice = [*range(len(lse)), n]
        yield f"number {n}", right(out[twice], lse[twice])


@fault("base of the LSE", "LSEs of one base are taken for those of another")
def wrong_base(s: Setting) -> Variants:
    out, lse = parts_of(s)
    for what, factor in (("base e taken for base 2", math.log(2)), ("2 for e", 1 / math.log(2))):
        made = right(out, lse * factor)
        yield what, made
        if made.lse is not None:
            yield f"{what}, converted back", Answer(made.out, made.lse / factor)
            yield f"{what}, the LSE is right", Answer(made.out, torch.logsumexp(lse, 0))


@fault("empty part counts", "a part that saw no key counts as one with an LSE of 0")
def empty_counts(s: Setting) -> Variants:
    out, lse = parts_of(s)
    yield "", right(out, torch.where(lse == -math.inf, 0.0, lse))


@fault("not divided", "the weighted sum is not divided by the sum of weights")
def not_divided(s: Setting) -> Variants:
    out, lse = parts_of(s)
    top = lse.amax(0)
    weights = torch.exp(lse - torch.where(top == -math.inf, 0.0, top))[..., None]
    yield "", Answer((weights * out).sum(0), torch.logsumexp(lse, 0))


@fault("exponent without its maximum", "exp(lse) is taken as it is: it overflows, or vanishes")
def bare_exponent(s: Setting) -> Variants:
    out, lse = parts_of(s)
    weights = torch.where(lse > LARGEST_EXPONENT, math.inf, torch.exp(lse))
    weights = torch.where(lse < LEAST_EXPONENT, 0.0, weights)
    total = weights.sum(0)
    share = (weights / total)[..., None]
    yield "", Answer(torch.where(share == 0, 0.0, share * out).sum(0), total.log())


@fault(
    "LSE is the maximum", "the LSE is the largest of the parts', without the logarithm of a sum"
)
def lse_is_maximum(s: Setting) -> Variants:
    out, lse = parts_of(s)
    yield "", Answer(right(out, lse).out, lse.amax(0))
