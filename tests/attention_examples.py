"""Calls that use every feature of attention forward, alone and together."""

import math
from random import Random
from typing import Any

import torch
from attention_calls import at, fields, lengths, make_call, numbers, random_bias, random_mask, ring

from kernelassay.impls.contract import AttendCall

SIZES: dict[str, dict[str, Any]] = {
    "plain": fields(Tq=33, Tk=65, D=64),
    "one query, one key": fields(Tq=1, Tk=1),
    "no keys": fields(Tq=3, Tk=0, causal="bottom_right"),
    "no queries": fields(Tq=0, Tk=3),
    "no requests": fields(B=0, Tq=2),
    "many tiles": fields(Tq=3, Tk=200, causal="bottom_right"),
    "grouped heads": fields(B=2, Hq=6, Hkv=2, Tq=3, Tk=33),
    "D of no power of two": fields(Tq=4, Tk=33, D=80),
    "D smaller than a dot": fields(Tq=4, Tk=33, D=5),
    "D = 128": fields(Hq=1, Tq=4, Tk=33, D=128),
    "D = 256": fields(Hq=1, Tq=4, Tk=33, D=256),
    "narrow values": fields(Tq=4, Tk=33, D=40, Dv=8),
    "wide values": fields(Hq=4, Hkv=2, Tq=4, Tk=33, D=16, Dv=160),
    "scale": fields(Tq=4, Tk=33, scale=0.7),
    "negative scale": fields(Tq=4, Tk=33, scale=-1.5, causal="bottom_right"),
    "scores far below zero": fields(Tq=4, Tk=70, scale=-400.0),
}  # fmt: skip
"""Sizes of heads and sequences, scales."""
WHO_SEES: dict[str, dict[str, Any]] = {
    "bottom right": fields(Tq=31, Tk=65, D=32, causal="bottom_right"),
    "bottom right, fewer keys": fields(Tq=70, Tk=40, causal="bottom_right"),
    "top left": fields(Tq=65, Tk=96, causal="top_left"),
    "top left, fewer keys": fields(Tq=65, Tk=33, causal="top_left"),
    "lengths": fields(B=3, Hq=1, Tq=4, Tk=40, lengths=lengths(0, 33, 40)),
    "lengths, bottom right": fields(
        B=3, Hq=1, Tq=9, Tk=40, lengths=lengths(5, 0, 40), causal="bottom_right"
    ),
    "mask": fields(B=2, Hq=1, Tq=5, Tk=40, mask=random_mask(2, 1, 5, 40)),
    "mask of keys": fields(B=2, Tq=5, Tk=40, mask=random_mask(1, 40)),
    "mask of queries": fields(B=2, Tq=5, Tk=40, mask=random_mask(5, 1)),
    "mask, lengths, top left": fields(
        B=2, Hq=1, Tq=5, Tk=40, mask=random_mask(2, 1, 1, 40), lengths=lengths(7, 33),
        causal="top_left",
    ),
    "window": fields(Tq=70, Tk=90, window=(3, None), causal="bottom_right"),
    "window of both sides": fields(Tq=40, Tk=40, window=(3, 2)),
    "window to the right": fields(Tq=40, Tk=70, window=(None, 1)),
    "window of one key": fields(Tq=5, Tk=40, window=(0, 0)),
    "window, fewer keys": fields(Tq=9, Tk=4, window=(1, 0)),
    "window far from the first keys": fields(
        Tq=3, Tk=200, window=(7, None), causal="bottom_right"
    ),
    "window of a ragged batch": fields(
        B=3, Hq=1, Tq=5, Tk=70, window=(2, None), lengths=lengths(0, 66, 70), causal="bottom_right"
    ),
    "window with sinks": fields(
        Tq=70, Tk=90, window=(3, None), sinks=2, causal="bottom_right"
    ),
    "window of the top left corner": fields(Tq=9, Tk=20, window=(1, None), causal="top_left"),
    "windows that hide nothing": fields(Tq=40, Tk=9, window=(2**31 - 1, 2**63 - 1), sinks=2**40),
    "positions": fields(
        Tq=3, Tk=5, causal="positions", q_positions=at((4, 0, 2)), k_positions=at((3, 1, 4, 0, 9)),
    ),
    "positions and a window": fields(
        Tq=3, Tk=5, causal="positions", q_positions=at((4, 0, 2)), k_positions=at((3, 1, 4, 0, 9)),
        window=(1, 2**31), sinks=1,
    ),
    "positions of ring buffers": fields(
        B=2, Tq=2, Tk=40, causal="positions", window=(20, None),
        q_positions=at((38, 39), (20, 21), dtype=torch.int32),
        k_positions=ring(3, 35, Tk=40).int(),
    ),
    "positions far from zero": fields(
        Tq=2, Tk=3, causal="positions", q_positions=at((2**40, -2**40)), window=(2**63 - 1, None),
        k_positions=at((2**40, 5 - 2**40, -2**41)),
    ),
}  # fmt: skip
"""Corners of causal masks, ragged lengths, masks, windows, positions."""
SCORES: dict[str, dict[str, Any]] = {
    "soft cap": fields(Tq=5, Tk=40, D=64, softcap=2.0, scale=1.0),
    "soft cap far below the scores": fields(Tq=5, Tk=40, softcap=1.0, scale=1e4),
    "soft cap, causal": fields(Tq=40, Tk=40, softcap=30.0, causal="bottom_right"),
    "slopes": fields(Tq=5, Tk=40, alibi=numbers(0.5, 0.0625)),
    "slopes, causal": fields(
        B=2, Tq=5, Tk=40, alibi=numbers(1.0, 0.3), causal="bottom_right", lengths=lengths(7, 40)
    ),
    "slopes of the top left corner": fields(
        Tq=5, Tk=40, alibi=numbers(1.0, 0.3), causal="top_left"
    ),
    "slopes by position": fields(
        Tq=3, Tk=5, alibi=numbers(1.0, 0.3), causal="positions", q_positions=at((4, 0, 2)),
        k_positions=at((3, 1, 4, 0, 9)),
    ),
    "bias": fields(B=2, Hq=4, Hkv=2, Tq=5, Tk=40, bias=random_bias(2, 4, 5, 40)),
    "bias of heads": fields(B=2, Tq=5, Tk=40, bias=random_bias(2, 1, 1)),
    "bias of keys": fields(B=2, Tq=5, Tk=40, bias=random_bias(1, 40), causal="bottom_right"),
    "bias of queries": fields(B=2, Tq=5, Tk=40, bias=random_bias(5, 1)),
    "bias, mask and corner": fields(
        B=2, Tq=5, Tk=40, bias=random_bias(2, 1, 1, 40), mask=random_mask(5, 40),
        causal="bottom_right",
    ),
    "bias that hides": fields(B=2, Hq=1, Tq=5, Tk=40, bias=random_bias(2, 1, 5, 40, hides=True)),
    "bias that hides the first tile": fields(
        Tq=5, Tk=70, bias=torch.where(torch.arange(70) < 40, -math.inf, 0.5)[None]
    ),
    "sinks": fields(Tq=5, Tk=40, sink_logits=numbers(0.3, 2.0)),
    "sinks far from the scores": fields(Tq=5, Tk=40, sink_logits=numbers(-200.0, 200.0)),
    "no sink": fields(Tq=5, Tk=40, sink_logits=numbers(-math.inf, 0.5)),
    "sinks and empty rows": fields(
        Tq=9, Tk=4, sink_logits=numbers(0.3, -math.inf), causal="bottom_right"
    ),
    "sinks without keys": fields(Tq=2, Tk=0, sink_logits=numbers(0.3, -math.inf)),
}  # fmt: skip
"""Soft cap, ALiBi, bias, sinks."""
CALLS = SIZES | WHO_SEES | SCORES
"""All of them, by name."""


def any_call(seed: int, dtype: str) -> AttendCall:
    """A call of several features at once, drawn from *seed*."""
    draw, generator = Random(seed), torch.Generator().manual_seed(seed)
    Hkv, D = draw.choice((1, 2)), draw.choice((5, 16, 24, 64, 160))
    shape = (
        draw.choice((1, 2)),
        Hkv * draw.choice((1, 1, 2, 3)),
        draw.choice((1, 2, 5, 33, 65)),
        draw.choice((0, 1, 5, 31, 33, 70)),
    )
    sizes = dict(zip(("B", "Hq", "Tq", "Tk"), shape, strict=True))
    sizes |= fields(Hkv=Hkv, D=D, Dv=draw.choice((D, D, 8, 40)))
    given = _who_sees(draw, generator, shape) | _scores(draw, generator, shape)
    scale = draw.choice((None, 0.3, 2.0, -1.0))
    return make_call(**sizes, **given, scale=scale, dtype=dtype, seed=seed)


Shape = tuple[int, int, int, int]


def _broadcast(draw: Random, shape: Shape) -> list[int]:
    return [n if draw.random() < 0.6 else 1 for n in shape]


def _who_sees(draw: Random, generator: torch.Generator, shape: Shape) -> dict[str, Any]:
    B, _, Tq, Tk = shape
    given = fields(causal=draw.choice(("none", "bottom_right", "top_left", "positions")))
    if given["causal"] == "positions":
        first, kind = draw.choice((0, -50, 10**6)), draw.choice((torch.int32, torch.int64))
        order = torch.stack([torch.randperm(Tk, generator=generator) for _ in range(B)])
        given["k_positions"] = (order + first).to(kind)
        given["q_positions"] = torch.randint(-3, 80, (Tq, B), generator=generator).T + first
    if draw.random() < 0.5:
        given["window"] = (draw.choice((None, 0, 1, 7, 40)), draw.choice((None, 0, 3, 2**31)))
        given["sinks"] = draw.choice((0, 0, 1, 4, 100))
    if draw.random() < 0.4:
        given["lengths"] = torch.randint(0, Tk + 1, (B,), generator=generator)
    if draw.random() < 0.4:
        given["mask"] = torch.rand(_broadcast(draw, shape), generator=generator) < 0.6
    return given


def _scores(draw: Random, generator: torch.Generator, shape: Shape) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if draw.random() < 0.4:
        given["softcap"] = draw.choice((1.0, 5.0, 30.0))
    if draw.random() < 0.4:
        given["alibi"] = torch.rand(shape[1], generator=generator)
    if draw.random() < 0.5:
        bias = torch.randn(_broadcast(draw, shape), generator=generator)
        hidden = torch.rand(bias.shape, generator=generator) < draw.choice((0.0, 0.3))
        given["bias"] = bias.masked_fill(hidden, -math.inf)
    if draw.random() < 0.4:
        given["sink_logits"] = torch.randn(shape[1], generator=generator)
    return given
