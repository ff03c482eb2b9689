"""Fault models of reading and arithmetic: heads, strides, scale, rescales, sums, maxima, LSE."""

import math

import torch
from torch import Tensor

from kernelassay.properties.fault_setting import (
    Answer,
    Fault,
    Setting,
    Variants,
    attend,
    streamed,
    table,
    tiles_of,
)
from kernelassay.properties.memory import place

FAULTS: list[Fault] = []
MOST_KEYS = 64
"""Up to this Tk each single key is tried as the one that is counted twice."""
fault = table(FAULTS)


@fault(
    "masked before scaled", "hidden scores are -inf before a scale of 0 or below multiplies them"
)
def masked_before_scaled(s: Setting) -> Variants:
    if s.scale > 0:
        return
    right, hidden = attend(s), ~s.seen.all(-1)
    everywhere = torch.ones_like(hidden)
    for what, rows in (("", hidden), ("lanes past the last key too", everywhere)):
        out = torch.where(rows[..., None], math.nan, right.out)
        yield what, Answer(out, None if right.lse is None else right.lse * out[..., 0])


@fault("KV head mapping", "query heads read the wrong KV head")
def head_mapping(s: Setting) -> Variants:
    Hq, Hkv = s.shape[1], s.tensors.k.shape[1]
    if Hkv == 1:
        return
    heads = torch.arange(Hq, device=s.keys.device)
    for what, wrong in (("h % Hkv", heads % Hkv), ("KV head 0 for all", heads * 0)):
        k, v = s.tensors.k.double()[:, wrong], s.tensors.v.double()[:, wrong]
        scores = s.scale * s.tensors.q.double() @ k.transpose(-1, -2)
        yield what, attend(s, scores=scores, v=v)
        yield f"{what}, in k alone", attend(s, scores=scores)
        yield f"{what}, in v alone", attend(s, v=v)


@fault("keys of request 0", "every request reads the keys and values of request 0")
def first_request(s: Setting) -> Variants:
    if s.shape[0] > 1:
        k, v = s.k[:1].expand_as(s.k), s.v[:1].expand_as(s.v)
        scores = s.scale * s.tensors.q.double() @ k.transpose(-1, -2)
        yield "", attend(s, scores=scores, v=v)
        yield "k alone", attend(s, scores=scores)
        yield "v alone", attend(s, v=v)


@fault("strides ignored", "memory is read as if it were contiguous")
def strides_ignored(s: Setting) -> Variants:
    if s.view == "contiguous":
        return
    read = {}
    for name in ("q", "k", "v"):
        x: Tensor = getattr(s.tensors, name)
        held = place(name, x, s.layout, s.view, str(x.device)).view
        B, H, T, D = x.shape
        strides = (H * T * D, T * D, D, 1) if s.layout == "BHTD" else (T * H * D, D, H * D, 1)
        if held.storage_offset() + B * H * T * D <= held.untyped_storage().nbytes() // x.itemsize:
            read[name] = held.as_strided((B, H, T, D), strides).double()
    for what in ("qkv", "q", "k", "v", "kv"):
        q, k, v = (
            read.get(n, y) if n in what else y
            for n, y in zip("qkv", (s.tensors.q, s.tensors.k, s.tensors.v), strict=True)
        )
        k, v = k.double()[:, s.kv_heads], v.double()[:, s.kv_heads]
        yield f"of {what}", attend(s, scores=s.scale * q.double() @ k.transpose(-1, -2), v=v)


@fault("scale wrong", "the softmax scale is wrong")
def scale_wrong(s: Setting) -> Variants:
    D = s.tensors.q.shape[-1]
    padded = max(16, 1 << (D - 1).bit_length())
    others = {
        "1 instead of the scale": 1.0,
        "the default 1/sqrt(D), not the one given": D**-0.5,
        f"1/sqrt({padded}), from D padded": padded**-0.5,
        "applied twice": s.scale**2,
        "exp2 without the factor log2(e)": s.scale * math.log(2),
        "exp with the factor log2(e)": s.scale / math.log(2),
    }
    for what, scale in others.items():
        if not math.isclose(scale, s.scale):
            yield what, attend(s, scores=scale * s.dots)


@fault("accumulator not rescaled", "sums are not rescaled when the running maximum rises")
def no_rescale(s: Setting) -> Variants:
    for tile in s.tiles:
        yield f"numerators, tile {tile}", streamed(s, tile, rescale_u=False)
        yield f"row sums, tile {tile}", streamed(s, tile, rescale_l=False)
        yield f"both, tile {tile}", streamed(s, tile, rescale_u=False, rescale_l=False)


@fault("wrong row sum", "the output is divided by the row sum of the last tile alone")
def last_sum(s: Setting) -> Variants:
    for tile in s.tiles:
        yield f"tile {tile}", streamed(s, tile, last_sum=True)


@fault("not normalised", "the output is not divided by the row sum")
def not_normalised(s: Setting) -> Variants:
    z = torch.where(s.seen, s.scores, -math.inf)
    top = z.amax(-1, keepdim=True) if s.shape[3] else z.sum(-1, keepdim=True)
    e = torch.exp(z - torch.where(top == -math.inf, 0.0, top))
    yield "", Answer(e @ s.v, attend(s).lse)


@fault("merged with equal weights", "parts of the keys are merged without their weights")
def equal_merge(s: Setting) -> Variants:
    Tk = s.shape[3]
    cuts = {"two halves": -(-Tk // 2)} | {f"tiles of {t}": t for t in s.tiles}
    for what, size in cuts.items():
        if 0 < size < Tk:
            inside = [(s.keys >= p.start) & (s.keys < p.stop) for p in tiles_of(s, size)]
            parts = [attend(s, seen=s.seen & keys).out for keys in inside]
            yield what, Answer(torch.stack(parts).mean(0), None)


@fault("no maximum subtracted", "exp is taken of scores without their maximum subtracted")
def no_maximum(s: Setting) -> Variants:
    e = torch.where(s.seen, s.scores.float().exp(), 0.0)
    sums = e.sum(-1)
    out = (e @ s.v.float()) / sums[..., None]
    yield "fp32", Answer(out.double(), sums.double().log())


@fault("first tile masked", "a row whose first key tile is wholly masked becomes NaN (inf - inf)")
def first_tile(s: Setting) -> Variants:
    right = attend(s)
    for tile in s.tiles:
        hit = s.seen.any(-1) & ~s.seen[..., :tile].any(-1)
        assert right.lse is not None
        lse = torch.where(hit, math.nan, right.lse)
        yield f"tile {tile}", Answer(torch.where(hit[..., None], math.nan, right.out), lse)


@fault("masked scores are 0", "masked scores are set to 0, not to minus infinity")
def masked_zero(s: Setting) -> Variants:
    everything = torch.ones_like(s.seen)
    yield "", attend(s, seen=everything, scores=torch.where(s.seen, s.scores, 0.0))


@fault("mask after the softmax", "weights are masked after the softmax and not normalised again")
def masked_late(s: Setting) -> Variants:
    whole = attend(s, seen=torch.ones_like(s.seen))
    if whole.lse is not None:
        p = torch.exp(s.scores - whole.lse[..., None])
        yield "", Answer(torch.where(s.seen, p, 0.0) @ s.v, whole.lse)


@fault(
    "pad keys counted", "the zero scores of a partial tile's pad lanes are counted in the row sum"
)
def pads_counted(s: Setting) -> Variants:
    right = attend(s)
    assert right.lse is not None
    for tile in s.tiles:
        pads = (-s.lengths % tile).double().view(-1, 1, 1)
        total = torch.logaddexp(right.lse, pads.log())
        share = torch.nan_to_num(torch.exp(right.lse - total))
        yield f"tile {tile}", Answer(right.out * share[..., None], total)


@fault("key counted twice", "one key is counted twice")
def counted_twice(s: Setting) -> Variants:
    for key in range(min(s.shape[3], MOST_KEYS + 1) if s.shape[3] <= MOST_KEYS else 0):
        yield f"key {key}", attend(s, scores=s.scores + math.log(2) * (s.keys == key))


@fault(
    "empty row averaged", "a row that sees no key gets the mean of values: its scores are finite"
)
def empty_averaged(s: Setting) -> Variants:
    empty = ~s.seen.any(-1, keepdim=True)
    for what, scores in (("of all", torch.zeros_like(s.scores)), ("by score", s.scores)):
        yield what, attend(s, seen=s.seen | empty, scores=torch.where(empty, scores, s.scores))
        used = s.seen | (empty & s.below(s.lengths))
        yield f"{what} used", attend(s, seen=used, scores=torch.where(empty, scores, s.scores))


@fault("empty row 0/0", "a row that sees no key is divided by its row sum of 0")
def empty_divided(s: Setting) -> Variants:
    right = attend(s)
    empty = ~s.seen.any(-1, keepdim=True)
    yield "", Answer(torch.where(empty, math.nan, right.out), None)


@fault("tail query rows not computed", "query rows past the last whole tile are not computed")
def tail_rows(s: Setting) -> Variants:
    Tq = s.shape[2]
    rows = torch.arange(Tq, device=s.keys.device)[:, None]
    for tile in s.tiles:
        yield f"tile {tile}", attend(s, seen=s.seen & (rows < Tq // tile * tile))


@fault("LSE wrong", "the log-sum-exp is not what was declared")
def lse_wrong(s: Setting) -> Variants:
    right = attend(s)
    assert right.lse is not None
    z = torch.where(s.seen, s.scores, -math.inf)
    top = z.amax(-1) if s.shape[3] else right.lse
    others = {
        "base 2 instead of e": right.lse / math.log(2),
        "base e instead of 2": right.lse * math.log(2),
        "without the maximum": right.lse - torch.where(top == -math.inf, 0.0, top),
        "the maximum alone": top,
        "of unscaled scores": attend(s, scores=s.dots).lse,
        "its sign turned": -right.lse,
    }
    for what, lse in others.items():
        yield what, Answer(right.out, lse)


@fault("uniform weights", "every visible key has the same weight: scores do not matter")
def uniform(s: Setting) -> Variants:
    yield "", attend(s, scores=torch.zeros_like(s.scores))


@fault("zeros", "the output is 0 throughout")
def zeros(s: Setting) -> Variants:
    yield "", Answer(torch.zeros_like(attend(s).out), None)
