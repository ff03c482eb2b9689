"""Fault models of ALiBi and of sink logits."""

import math

import torch
from torch import Tensor

from kernelassay.properties.fault_answers import attend
from kernelassay.properties.fault_setting import (
    Answer,
    Fault,
    Setting,
    Variants,
    gaps,
    penalty,
    scored,
    table,
)
from kernelassay.properties.faults_scoring import factors

FAULTS: list[Fault] = []
fault = table(FAULTS)


def other_heads(s: Setting, of_heads: Tensor) -> dict[str, Tensor]:
    """A tensor [Hq, ...] with what belongs to other heads."""
    others = {"the next head": of_heads.roll(-1, 0), "head 0": of_heads[:1].expand_as(of_heads)}
    others["the KV head"] = of_heads[s.kv_heads]
    return {what: x for what, x in others.items() if not torch.equal(x, of_heads)}


@fault("ALiBi ignored", "scores get no ALiBi penalty")
def alibi_ignored(s: Setting) -> Variants:
    if s.slopes is not None:
        yield "", attend(s, scores=scored(s, alibi=0.0))


@fault("ALiBi slope of another head", "the ALiBi slope of another head is used")
def alibi_head(s: Setting) -> Variants:
    if s.slopes is not None:
        for what, slopes in other_heads(s, s.slopes).items():
            term = -slopes[:, None, None] * gaps(s).abs()
            yield what, attend(s, scores=scored(s, alibi=term))


@fault("ALiBi of the wrong sign", "far keys gain what they should lose by ALiBi")
def alibi_sign(s: Setting) -> Variants:
    if s.slopes is not None:
        yield "", attend(s, scores=scored(s, alibi=-penalty(s, gaps(s))))


@fault("ALiBi distance", "the distance in ALiBi is another one than |position(i) - position(j)|")
def alibi_distance(s: Setting) -> Variants:
    if s.slopes is None:
        return
    slopes, gap, at = s.slopes[:, None, None], gaps(s), s.key_positions
    row = torch.arange(s.shape[2], device=s.keys.device)[:, None]
    terms = {
        "row index without the cached offset": penalty(s, row - at),
        "row index counted from Tk": penalty(s, row + s.shape[3] - s.shape[2] - at),
        "not absolute": -slopes * gap,
        "the position of the key alone": slopes * at,
        "keys ahead not penalised": -slopes * gap.clamp(min=0),
    }
    if s.vis.causal == "positions" and s.vis.q_positions is not None:
        terms["to slots, not positions"] = penalty(s, s.vis.q_positions[:, None, :, None] - s.keys)
    else:
        for tile in s.tiles:
            gap_in_tile = gap + s.keys // tile * tile
            terms[f"the index of the key within its tile of {tile}"] = penalty(s, gap_in_tile)
    for what, term in terms.items():
        yield what, attend(s, scores=scored(s, alibi=term))


@fault("ALiBi scaled", "the ALiBi penalty is multiplied by a factor")
def alibi_scaled(s: Setting) -> Variants:
    if s.slopes is not None:
        for what, factor in factors(s).items():
            yield what, attend(s, scores=scored(s, alibi=factor * penalty(s, gaps(s))))


@fault("sink logit ignored", "the sink is not counted in the denominator")
def sink_ignored(s: Setting) -> Variants:
    if s.has_sink:
        yield "", attend(s, sink=torch.full_like(s.sink, -math.inf))


@fault("sink logit scaled", "the sink logit is multiplied by a factor")
def sink_scaled(s: Setting) -> Variants:
    if s.has_sink:
        for what, factor in factors(s).items():
            yield what, attend(s, sink=torch.where(s.sink == -math.inf, s.sink, factor * s.sink))


@fault("sink without the maximum", "exp of the sink logit is added without its maximum subtracted")
def sink_unshifted(s: Setting) -> Variants:
    if s.has_sink and s.shape[3]:
        # Where no key is seen the maximum stays -inf, and so does the LSE.
        yield "", attend(s, sink=s.sink + torch.where(s.seen, s.scores, -math.inf).amax(-1))


@fault("sink counted more than once", "the sink is counted once for each part of the keys")
def sink_counted_often(s: Setting) -> Variants:
    if not s.has_sink:
        return
    yield "twice", attend(s, sink=s.sink + math.log(2))
    of_tk = torch.full_like(s.lengths, s.shape[3])
    longest = s.lengths.max().expand_as(s.lengths)
    for tile in s.tiles:
        for what, used in (("", of_tk), (" of the longest", longest), (" in use", s.lengths)):
            tiles = (-(-used // tile)).double()[:, None, None]
            for told, times in (("", tiles), (", and once more", tiles + 1)):
                more = torch.where(times > 0, times, 1.0).log()
                yield f"once a tile of {tile}{what}{told}", attend(s, sink=s.sink + more)


@fault("sink logit of another head", "the sink logit of another head is used")
def sink_head(s: Setting) -> Variants:
    if s.has_sink:
        for what, sink in other_heads(s, s.sink).items():
            yield what, attend(s, sink=sink)


@fault("sink in one output alone", "the sink is counted in out or in the LSE, not in both")
def sink_in_one(s: Setting) -> Variants:
    if s.has_sink:
        right, without = attend(s), attend(s, sink=torch.full_like(s.sink, -math.inf))
        yield "left out of the LSE", Answer(right.out, without.lse)
        yield "left out of out", Answer(without.out, right.lse)
