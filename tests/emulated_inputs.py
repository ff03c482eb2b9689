"""Inputs and numerics to try emulated kernels and budgets on."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from emulated_scores import Terms
from emulated_units import cast
from torch import Tensor

from kernelassay.oracle.formats import format_of
from kernelassay.oracle.numerics import Numerics, default_numerics

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v, visible
PLAIN = default_numerics("fp32")
MATH = Numerics(scale_rounded=True, p_normalised=True, l_from_p=False)
EAGER = Numerics(score_roundings=2, p_normalised=True, l_from_p=False)

NUMERICS = {
    "fp16": ("fp16", Numerics()),
    "fp16, fp32 out": ("fp16", Numerics(out="fp32")),
    "bf16": ("bf16", Numerics()),
    "bf16, l of unrounded P": ("bf16", Numerics(l_from_p=False)),
    "bf16, l of rounded P": ("bf16", Numerics(l_from_p=True)),
    "fp16, l of rounded P": ("fp16", Numerics(l_from_p=True)),
    "bf16, P in fp32": ("bf16", Numerics(p="fp32")),
    "bf16, fused scale": ("bf16", Numerics(fma=True)),
    "bf16, q prescaled": ("bf16", Numerics(q_prescaled=True)),
    "fp16, q prescaled": ("fp16", Numerics(q_prescaled=True)),
    "bf16, math path": ("bf16", replace(MATH, score="bf16")),
    "fp16, math path": ("fp16", replace(MATH, score="fp16")),
    "bf16, scores in bf16": ("bf16", Numerics(score="bf16")),
    "fp16, fp16 accumulators": ("fp16", Numerics(acc_u=2.0**-11, acc_biased=False)),
    "bf16, P in e4m3": ("bf16", Numerics(p="e4m3", p_scale=256.0, acc_u=2.0**-13, kstep=32)),
    "fp32": ("fp32", PLAIN),
    "tf32": ("fp32", Numerics(dot="tf32", p="tf32", kstep=8)),
    "tf32, cut operands": ("fp32", Numerics(dot="tf32_trunc", p="tf32", kstep=8)),
    "3xtf32": (
        "fp32",
        Numerics(dot="3xtf32", p="fp32", acc_u=2.0**-24, acc_biased=False, kstep=8),
    ),
}
OF_SCORES = (
    "fp16", "bf16", "fp16, l of rounded P", "bf16, P in fp32", "bf16, fused scale",
    "bf16, q prescaled", "bf16, math path", "bf16, scores in bf16", "fp16, fp16 accumulators",
    "bf16, P in e4m3", "fp32", "tf32", "tf32, cut operands", "3xtf32",
)  # fmt: skip
NUMERICS_OF_SCORES = {name: NUMERICS[name] for name in OF_SCORES} | {
    "bf16, op by op": ("bf16", replace(EAGER, score="bf16")),
    "fp16, op by op": ("fp16", replace(EAGER, score="fp16")),
    "bf16, tanh.approx": ("bf16", Numerics(tanh_u=2.0**-11)),
    "fp32, tanh.approx": ("fp32", replace(PLAIN, tanh_u=2.0**-11)),
}
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"block": 64},
    {"block": 16, "splits": 4, "base2": False, "sink": "last"},
    {"block": 32, "backwards": True, "fold": False, "sink": "sum"},
)
HARD = (
    "logits of 10",
    "logits of 100",
    "tiny logits",
    "rising scores",
    "falling scores",
    "one key wins",
    "cancelling pairs",
    "mean of 4",
    "sorted values",
    "tiny values",
)
MASKS = ("causal", "holes and empty rows", "one key each")


def normal(n: int, dtype: str, seed: int, d: int = 64) -> Inputs:
    """Standard normal content, four query heads on two KV heads, everything visible."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(1, heads, length, d, generator=generator)
        for heads, length in ((4, 16), (2, n), (2, n))
    )
    to = format_of(dtype).dtype
    return q.to(to), k.to(to), v.to(to), torch.ones(1, 4, 16, n, dtype=torch.bool)


def made_hard(inputs: Inputs, kind: str) -> Inputs:
    """*inputs* with the content or the mask that *kind* names."""
    q, k, v, visible = (x.clone() for x in inputs)
    n, rows = k.shape[2], torch.arange(q.shape[2])[:, None]
    ramp = torch.linspace(0, 4, n)[:, None]
    factor = {"logits of 10": 10, "logits of 100": 100, "tiny logits": 1e-4}
    q = (q * factor.get(kind, 1)).to(q.dtype)
    if kind in ("rising scores", "falling scores"):
        q, k = q.abs(), (k.abs() * (ramp if kind == "rising scores" else 4 - ramp)).to(k.dtype)
    elif kind == "one key wins":
        k[:, :, n // 3] *= 30
    elif kind == "cancelling pairs":
        k[:, :, 1::2], v[:, :, 1::2] = k[:, :, : n - 1 : 2], -v[:, :, : n - 1 : 2]
    elif kind == "mean of 4":
        v = v + 4
    elif kind == "sorted values":
        v = v.sort(2).values
    elif kind == "tiny values":
        v = v * 2**-10
    elif kind == "causal":
        visible = visible & (torch.arange(n) <= rows + n - 20)
    elif kind == "holes and empty rows":
        visible = visible & ((torch.arange(n) * 7 + rows * 5) % 3 == 0) & (rows % 4 != 1)
    elif kind == "one key each":
        visible = visible & (torch.arange(n) == rows % n)
    return q, k, v, visible


def midpoint_score(dtype: str) -> float:
    """The score whose exp the cast to *dtype* moves the most, relatively."""
    scores = torch.linspace(-6, 0, 4096).to(format_of(dtype).dtype).double()
    weights = scores.exp()
    return float(
        scores[((cast(weights.float().double(), dtype) - weights) / weights).abs().argmax()]
    )


def structured(kind: str, dtype: str, n: int = 4096) -> Inputs:
    """Inputs of few distinct scores: their cast errors repeat instead of averaging out."""
    g = torch.Generator().manual_seed(1)
    if kind == "rounding midpoints":
        q = torch.ones(1, 1, 1, 1)
        k = torch.full((1, 1, n, 1), midpoint_score(dtype))
        v = (torch.arange(n)[:, None] < torch.tensor([n, n // 2])).float()[None, None]
        k[..., 0, :], v[..., 0, :] = 0, 0
    elif kind == "few distinct keys":
        q, keys = torch.randn(1, 1, 16, 32, generator=g), torch.randn(1, 1, 5, 32, generator=g)
        k = keys[:, :, torch.randint(0, 5, (n,), generator=g)]
        v = 3 + torch.randn(1, 1, n, 32, generator=g) / 5
    else:
        q, k = (torch.randint(-1, 2, (1, 1, m, 16), generator=g).float() for m in (16, n))
        v = torch.randint(0, 4, (1, 1, n, 32), generator=g).float()
    to = format_of(dtype).dtype
    return q.to(to), k.to(to), v.to(to), torch.ones(1, 1, q.shape[2], n, dtype=torch.bool)


def distance(inputs: Inputs) -> Tensor:
    """Between query i and key j, the last of each at the same place; [Tq, Tk]."""
    Tq, Tk = inputs[0].shape[2], inputs[1].shape[2]
    return (torch.arange(Tq)[:, None] + Tk - Tq - torch.arange(Tk)).abs()


def bias(inputs: Inputs, size: float, *, each: str = "hqk") -> Tensor:
    """About N(0, size^2) in the inputs' dtype, another number along each axis named of "hqk"."""
    sizes = zip("hqk", (*inputs[0].shape[1:3], inputs[1].shape[2]), strict=True)
    made = torch.Generator().manual_seed(9)
    drawn = torch.randn(1, *(n if a in each else 1 for a, n in sizes), generator=made)
    return (size * drawn).to(inputs[0].dtype)


def filled(inputs: Inputs, every: int, x: float) -> Tensor:
    """x on one key of *every*, which are others for each query, and a small bias elsewhere."""
    Tq, Tk = inputs[0].shape[2], inputs[1].shape[2]
    chosen = (torch.arange(Tq)[:, None] + torch.arange(Tk)) % every == 0
    return torch.where(chosen, x, bias(inputs, 1.0)).to(inputs[0].dtype)


STANDARD = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
STEEP = torch.tensor([1, 0.7, 0.3, 0])
MILD: dict[str, Callable[[Inputs], Terms]] = {
    "cap of 30": lambda i: Terms(softcap=30.0),
    "cap of 5": lambda i: Terms(softcap=5.0),
    "standard slopes": lambda i: Terms(slopes=STANDARD, distance=distance(i)),
    "bias": lambda i: Terms(bias=bias(i, 1.0)),
    "bias of each key": lambda i: Terms(bias=bias(i, 2.0, each="k")),
    "sinks": lambda i: Terms(sink=torch.tensor([0.0, 1.0, -1.0, 2.0])),
    "all": lambda i: Terms(
        softcap=10.0, slopes=STANDARD, distance=distance(i), bias=bias(i, 1.0),
        sink=torch.tensor([0.0, 1.5, -60.0, 4.0]),
    ),
}  # fmt: skip
"""What is done to scores in the way of real models."""
HARD_TERMS: dict[str, Callable[[Inputs], Terms]] = {
    "cap of 1": lambda i: Terms(softcap=1.0),
    "steep slopes": lambda i: Terms(slopes=STEEP, distance=distance(i)),
    "large bias": lambda i: Terms(bias=bias(i, 8.0)),
    "-6e4 on all keys": lambda i: Terms(bias=torch.full((1, 1), -6e4).to(i[0].dtype)),
    "-6e4 on some keys": lambda i: Terms(bias=filled(i, 3, -6e4)),
    "-6e4 on most keys": lambda i: Terms(bias=-6e4 - filled(i, 9, -6e4)),
    "a bias that cancels the slopes": lambda i: Terms(
        slopes=STEEP, distance=distance(i),
        bias=(STEEP[:, None, None] * distance(i)).to(i[0].dtype),
    ),
    "sinks far below": lambda i: Terms(sink=torch.tensor([-50.0, -1e4, -math.inf, -8.0])),
    "sinks above": lambda i: Terms(sink=torch.tensor([8.0, 20.0, 40.0, 60.0])),
    "keys far below the sinks": lambda i: Terms(
        bias=torch.full((1, 1), -80.0).to(i[0].dtype), sink=torch.tensor([0.0, 0.3, -0.7, 2.0])
    ),
    "sinks far above": lambda i: Terms(sink=torch.tensor([85.0, 95.0, 110.0, 1e4])),
    "all": lambda i: Terms(
        softcap=2.0, slopes=STEEP, distance=distance(i), bias=bias(i, 8.0),
        sink=torch.tensor([0.0, 3.0, -60.0, 50.0]),
    ),
    "all, and -6e4": lambda i: Terms(
        softcap=1.0, slopes=STANDARD, distance=distance(i), bias=filled(i, 2, -6e4),
        sink=torch.tensor([0.0, -6e4, -math.inf, 5.0]),
    ),
}  # fmt: skip
"""What strains the arithmetic of scores."""
