"""Fault models of the soft cap and of the additive bias."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from kernelassay.properties.fault_answers import attend, sees
from kernelassay.properties.fault_setting import Fault, Setting, Variants, kept, scored, table

FAULTS: list[Fault] = []
fault = table(FAULTS)


def factors(s: Setting) -> dict[str, float]:
    """What a term may be multiplied by, by mistake."""
    named = {
        "times the scale": s.scale,
        "times ln 2: exp2 without the factor log2(e)": math.log(2),
        "times log2(e): exp with that factor": 1 / math.log(2),
    }
    return {what: factor for what, factor in named.items() if not math.isclose(factor, 1.0)}


@fault("soft cap ignored", "scores are not capped")
def cap_ignored(s: Setting) -> Variants:
    if s.cap is not None:
        yield "", attend(s, scores=scored(s, cap=s.scaled))


@fault("soft cap formula", "scores are capped by another formula than cap tanh(z / cap)")
def cap_formula(s: Setting) -> Variants:
    if s.cap is None:
        return
    z, cap = s.scaled, s.cap
    right = cap * torch.tanh(z / cap)
    capped = {
        "z tanh(z / cap)": z * torch.tanh(z / cap),
        "tanh(z / cap)": torch.tanh(z / cap),
        "cap tanh(z)": cap * torch.tanh(z),
        "the scale after the cap": s.scale * cap * torch.tanh(s.dots / cap),
        "cut at -cap and cap": z.clamp(-cap, cap),
    }
    for what, scores in capped.items():
        yield what, attend(s, scores=scored(s, cap=scores))
    if s.slopes is not None or s.bias is not None:
        inside = cap * torch.tanh((scored(s) - right + z) / cap)
        yield "bias and ALiBi within the cap", attend(s, scores=inside)
    once, twice = (torch.exp(n * (z / cap).float()).double() for n in (1, 2))
    for what, tanh in (
        ("tanh as (exp(2x) - 1) / (exp(2x) + 1)", (twice - 1) / (twice + 1)),
        ("tanh as sinh / cosh", (once - 1 / once) / (once + 1 / once)),
    ):
        yield what, attend(s, scores=scored(s, cap=cap * tanh))


@fault("soft cap after the mask", "hidden keys come back with a score of -cap")
def cap_after_mask(s: Setting) -> Variants:
    if s.cap is None:
        return
    scores = scored(s, cap=torch.where(s.seen, scored(s, alibi=0.0, bias=0.0), -s.cap))
    reached = {"": torch.full_like(s.lengths, s.shape[3]), "of the keys in use": s.lengths}
    for tile in s.tiles:
        last = -(-s.lengths.max() // tile) * tile
        reached[f"of visited tiles of {tile}"] = last.expand_as(s.lengths)
    unseen = ~s.seen.any(-2, keepdim=True).mT  # [B, Hq, Tk, 1]
    for what, limit in reached.items():
        seen = s.unhidden & s.below(limit) & torch.ones_like(s.seen)
        yield what, attend(s, seen=seen, scores=scores)
        zeroed = attend(s, seen=seen, scores=scores, v=torch.where(unseen, 0.0, s.v))
        yield f"{what}, without their values".removeprefix(", "), zeroed


@fault("bias ignored", "the additive bias is not added")
def bias_ignored(s: Setting) -> Variants:
    if s.bias is not None:
        scores = scored(s, bias=0.0)
        yield "", attend(s, scores=scores)
        shown = sees(s, unhidden=torch.ones_like(s.unhidden))
        yield "its -inf too", attend(s, seen=shown, scores=scores)


@fault("bias of the wrong sign", "the additive bias is subtracted")
def bias_sign(s: Setting) -> Variants:
    if s.bias is not None:
        yield "", attend(s, scores=scored(s, bias=-torch.where(s.unhidden, s.bias, 0.0)))


@fault("bias of another index", "the additive bias of another request, head or query is added")
def bias_index(s: Setting) -> Variants:
    for what, bias in _other_biases(s):
        scores = scored(s, bias=bias)
        yield what, attend(s, seen=sees(s, unhidden=kept(bias)), scores=scores)
        yield f"{what}, but for its -inf", attend(s, scores=scores)


def _other_biases(s: Setting) -> Iterator[tuple[str, Tensor]]:
    bias = s.tensors.scoring.bias
    if s.bias is None or bias is None:
        return
    for axis, name in ((-4, "request"), (-3, "head"), (-2, "query")):
        if bias.ndim >= -axis and bias.shape[axis] > 1:
            yield f"{name} 0", s.bias.narrow(axis, 0, 1).expand(s.shape)
            yield f"the next {name}", s.bias.roll(-1, axis)
            if axis == -3 and bool((s.kv_heads != torch.arange(s.shape[1])).any()):
                yield "the KV head", s.bias.index_select(axis, s.kv_heads)


@fault("-inf of the bias ignored", "a bias of -inf does not hide its key")
def bias_hides_nothing(s: Setting) -> Variants:
    if not bool(s.unhidden.all()):
        yield "taken as 0", attend(s, seen=sees(s, unhidden=torch.ones_like(s.unhidden)))


@fault("bias scaled", "the additive bias is multiplied by a factor")
def bias_scaled(s: Setting) -> Variants:
    if s.bias is not None:
        for what, factor in {**factors(s), "added twice": 2.0}.items():
            bias = torch.where(s.unhidden, s.bias, 0.0)
            yield what, attend(s, scores=scored(s, bias=factor * bias))


@fault("bias read as a mask", "the additive bias is read as a boolean mask")
def bias_as_mask(s: Setting) -> Variants:
    if s.bias is not None:
        for what, keeps in (("0 hides", s.bias != 0), ("0 keeps", s.bias == 0)):
            yield what, attend(s, seen=sees(s, unhidden=keeps), scores=scored(s, bias=0.0))
