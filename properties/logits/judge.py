"""The verdict on laws: which tokens must stay, which must go, and how far p may be off."""

import math

import torch
from torch import Tensor

from kernelassay.impls.contract import Maps, Numerics
from kernelassay.impls.logits import MAPS
from kernelassay.oracle.budget_law import LawUnits, boundary, law_budget, scaled_logits
from kernelassay.oracle.formats import format_of
from kernelassay.oracle.sampling_maps import law_of
from kernelassay.properties.failures import NonFinite, WrongDistribution
from kernelassay.properties.judge import compare
from kernelassay.properties.logits.batches import Batch
from kernelassay.properties.subject import Subject

MOST_SHOWN = 8


def units_of(numerics: Numerics, batch: Batch) -> LawUnits:
    """The errors of the declared arithmetic.

    A sum or product is off by what the accumulator or the dtype of the scores allows. A score is
    rounded in its base unless an FMA takes it. Each map that cuts may divide by a sum again.
    """
    cuts = [x for x in (batch.mask, batch.top_k, batch.top_p, batch.min_p) if x is not None]
    return LawUnits(
        unit=max(numerics.acc_u, format_of(numerics.score).unit),
        exp_unit=numerics.exp_u,
        div_unit=max(numerics.div_u, format_of(numerics.score).unit),
        prescaled=not numerics.fma,
        normalisations=1 + len(cuts),
    )


def maps_of(subject: Subject) -> Maps:
    """The declared order and ties."""
    return subject.capabilities.maps or Maps()


def seen(subject: Subject, batch: Batch) -> Tensor:
    """The logits [R, V], float64, without what a mask hides before any map could look at it."""
    z, order = batch.logits.double(), maps_of(subject).order
    if batch.mask is None or min(map(order.index, MAPS[2:])) < order.index("mask"):
        return z
    return z.masked_fill(~batch.mask, -math.inf)


def bounds(subject: Subject, batch: Batch) -> tuple[Tensor, Tensor]:
    """The tokens [R, V] that are surely left, and those that are surely removed."""
    maps, z = maps_of(subject), seen(subject, batch)
    sure, gone = boundary(
        z,
        batch.temperature,
        mask=batch.mask,
        top_k=batch.top_k,
        top_p=batch.top_p,
        min_p=batch.min_p,
        order=maps.order,
        top_k_ties=maps.top_k_ties,
        top_p_ties=maps.top_p_ties,
        units=units_of(subject.numerics, batch),
    )
    if batch.top_p is not None and batch.top_k is None and batch.min_p is None:
        some, kept = exact_shares(z, batch.top_p, maps)
        sure, gone = torch.where(some, kept, sure), torch.where(some, ~kept, gone)
    return sure, gone


def exact_shares(z: Tensor, top_p: Tensor, maps: Maps) -> tuple[Tensor, Tensor]:
    """Rows [R, 1] of logits z [R, V] that top-p cuts without a rounding, and what it keeps there.

    Tokens of equal logits have weights of exactly 1. With n = 2^m of them and p n whole, sums,
    quotients and products are exact in whatever order, and p n tokens are kept.
    """
    left = z > -math.inf
    n = left.sum(-1, keepdim=True)
    top = z.amax(-1, keepdim=True)
    count = top_p.double()[:, None] * n
    exact = (count == count.floor()) & ((n & (n - 1)) == 0) & ((z == top) | ~left).all(-1, True)
    if maps.top_p_ties == "all":
        return exact, left
    return exact, left & (left.long().cumsum(-1) <= count)


def judge(subject: Subject, batch: Batch, p: Tensor) -> None:
    """p [R, V] keeps what it must, removes what it must, and is off by no more than it may."""
    judge_support(subject, batch, p)
    kept = p > 0
    z = seen(subject, batch).masked_fill(~kept, -math.inf)
    expected = law_of(scaled_logits(z, batch.temperature))
    compare(subject, "p", p.double(), expected, allowed(subject, batch, p), kept)


def allowed(subject: Subject, batch: Batch, p: Tensor) -> Tensor:
    """How far each entry of p [R, V] may be off, over the tokens that it keeps."""
    units = units_of(subject.numerics, batch)
    return law_budget(seen(subject, batch), batch.temperature, p > 0, units=units)


def judge_support(subject: Subject, batch: Batch, p: Tensor) -> None:
    """p [R, V] is finite, 0 where a token is surely removed, above 0 where one surely is not."""
    bad = ~p.isfinite()
    if bool(bad.any()):
        r, v = (int(i) for i in bad.nonzero()[0])
        raise NonFinite(
            f"p[{r}, {v}] is {float(p[r, v])}", lines=described(subject, batch, r, p, v)
        )
    sure, gone = bounds(subject, batch)
    for wrong, expected in (
        (gone & (p != 0), "expected 0, as the maps remove this token"),
        (sure & (p <= 0), "expected more than 0, as the maps keep this token"),
        ((p < 0), "expected no negative number"),
        (~(p > 0).any(-1, keepdim=True), "expected a token that is kept"),
    ):
        if bool(wrong.any()):
            r, v = (int(i) for i in wrong.nonzero()[0])
            raise WrongDistribution(
                f"p[{r}, {v}] = {float(p[r, v]):.9g}; {expected}",
                lines=described(subject, batch, r, p, v),
            )


def described(
    subject: Subject, batch: Batch, r: int, p: Tensor, at: int | None = None
) -> list[str]:
    """Row r: its maps, its likeliest tokens and token *at*, what must become of them and did."""
    sure, gone = (x[r] for x in bounds(subject, batch))
    given = [(name, getattr(batch, name)) for name in maps_of(subject).order]
    shown = [f"{name} {x[r].item():g}" for name, x in given if x is not None and name != "mask"]
    lines = [f"Row {r}: {', '.join(shown) or 'no map but a mask'}"]
    lines.append(f"{'token':>8}{'logit':>14}{'must be':>10}{'p':>16}")
    z = seen(subject, batch)[r]
    likeliest = z.sort(descending=True, stable=True).indices[:MOST_SHOWN].tolist()
    for v in [*likeliest, *(() if at is None or at in likeliest else (at,))]:
        fate = "kept" if sure[v] else "removed" if gone[v] else "either"
        lines.append(f"{v:>8}{float(z[v]):>14.7g}{fate:>10}{float(p[r, v]):>16.9g}")
    return lines
