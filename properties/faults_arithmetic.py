"""Fault models of arithmetic: scale, rescales, sums, maxima, LSE."""

import math
from collections.abc import Iterator

import torch

from kernelassay.properties.fault_answers import attend, streamed, tiles_of
from kernelassay.properties.fault_setting import Answer, Fault, Setting, Variants, scored, table

FAULTS: list[Fault] = []
MOST_KEYS = 64
"""Up to this Tk each single key is tried as the one that is counted twice."""
FILLS = (-1e4, -3e4, -5e4 * math.log(2), -5e4, -65504.0)
"""Finite numbers that stand for minus infinity; the third is -5e4 in base 2."""
fault = table(FAULTS)


@fault(
    "masked before scaled", "hidden scores are -inf before a scale of 0 or below multiplies them"
)
def masked_before_scaled(s: Setting) -> Variants:
    if s.scale > 0 or (s.scale < 0 and s.cap is not None):  # a cap makes a number of infinity
        return
    right, hidden = attend(s), ~s.seen.all(-1)
    everywhere = torch.ones_like(hidden)
    for what, rows in (("", hidden), ("lanes past the last key too", everywhere)):
        out = torch.where(rows[..., None], math.nan, right.out)
        yield what, Answer(out, None if right.lse is None else right.lse * out[..., 0])


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
            yield what, attend(s, scores=scored(s, scale * s.dots))
    for what, factor in (("exp2 without", math.log(2)), ("exp with", 1 / math.log(2))):
        answer = attend(s, scores=factor * s.scores, sink=factor * s.sink)
        yield f"{what} the factor log2(e), in all terms", answer


@fault("accumulator not rescaled", "sums are not rescaled when the running maximum rises")
def no_rescale(s: Setting) -> Variants:
    ways = {"numerators": (False, True), "row sums": (True, False), "both": (False, False)}
    for tile, last, told in sink_places(s):
        for what, (u, l) in ways.items():  # noqa: E741
            answer = streamed(s, tile, rescale_u=u, rescale_l=l, sink_last=last)
            yield f"{what}, tile {tile}{told}", answer


def sink_places(s: Setting) -> Iterator[tuple[int, bool, str]]:
    """(tile, whether a sink comes last, how to say so) for kernels that go over tiles."""
    for tile in s.tiles:
        yield tile, False, ""
        yield tile, True, ", then the sink"


@fault("wrong row sum", "the output is divided by the row sum of the last tile alone")
def last_sum(s: Setting) -> Variants:
    for tile, last, told in sink_places(s):
        yield f"tile {tile}{told}", streamed(s, tile, last_sum=True, sink_last=last)


@fault("not normalised", "the output is not divided by the row sum")
def not_normalised(s: Setting) -> Variants:
    z = torch.where(s.seen, s.scores, -math.inf)
    top = z.amax(-1, keepdim=True) if s.shape[3] else torch.full_like(z[..., :1], -math.inf)
    for what, most in {"": top, "the sink in the maximum": top.maximum(s.sink[..., None])}.items():
        e = torch.exp(z - torch.where(most == -math.inf, 0.0, most))
        yield what, Answer(e @ s.v, attend(s).lse)


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
    sums = e.sum(-1) + s.sink.float().exp()
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
    scores = torch.where(s.seen, s.scores, 0.0)
    yield "but for the bias", attend(s, seen=everything & s.unhidden, scores=scores)


@fault(
    "masked scores are finite",
    "hidden keys and pad lanes score a finite number: rows whose scores are lower are lost",
)
def masked_finite(s: Setting) -> Variants:
    used = (s.below(s.lengths) | s.seen).expand(s.shape)
    fills = {f"{x:g}": x for x in FILLS}
    if s.scale > 0 and s.scale != 1 and bool(s.seen.any()):
        # Only where a row is lost: the fills cannot be told apart by rows that see nothing.
        lowest = float(torch.where(s.seen, s.scores, math.inf).min())
        scaled = {f"{x:g} before the scale": x * s.scale for x in FILLS}
        fills |= {what: x for what, x in scaled.items() if lowest < x}
    for what, fill in fills.items():
        scores = torch.where(s.seen, s.scores, fill)
        yield what, attend(s, seen=used, scores=scores)
        for tile in s.tiles:
            pads = (-s.lengths % tile).double().view(-1, 1, 1)
            lanes = torch.logaddexp(s.sink, fill + pads.log())  # their values are 0
            yield f"{what}, tile {tile}", attend(s, seen=used, scores=scores, sink=lanes)


@fault("mask after the softmax", "weights are masked after the softmax and not normalised again")
def masked_late(s: Setting) -> Variants:
    everything = torch.ones_like(s.seen)
    ways = {"": everything, "but for the bias": everything & s.unhidden}
    for what, seen in ways.items():
        whole = attend(s, seen=seen)
        assert whole.lse is not None
        p = torch.exp(s.scores - whole.lse[..., None])
        yield what, Answer(torch.where(s.seen, p, 0.0) @ s.v, whole.lse)


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
    assert right.lse is not None
    empty = torch.isneginf(right.lse)[..., None]
    yield "", Answer(torch.where(empty, math.nan, right.out), None)


@fault("tail query rows not computed", "query rows past the last whole tile are not computed")
def tail_rows(s: Setting) -> Variants:
    Tq = s.shape[2]
    rows = torch.arange(Tq, device=s.keys.device)[:, None]
    for tile in s.tiles:
        done = rows < Tq // tile * tile
        sink = torch.where(done[:, 0], s.sink, -math.inf)
        yield f"tile {tile}", attend(s, seen=s.seen & done, sink=sink)


@fault("LSE wrong", "the log-sum-exp is not what was declared")
def lse_wrong(s: Setting) -> Variants:
    right = attend(s)
    assert right.lse is not None
    z = torch.where(s.seen, s.scores, -math.inf)
    top = z.amax(-1).maximum(s.sink) if s.shape[3] else right.lse
    others = {
        "base 2 instead of e": right.lse / math.log(2),
        "base e instead of 2": right.lse * math.log(2),
        "without the maximum": right.lse - torch.where(top == -math.inf, 0.0, top),
        "the maximum alone": top,
        "of unscaled scores": attend(s, scores=scored(s, s.dots)).lse,
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
