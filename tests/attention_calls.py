"""Calls for the tests of bundled attention kernels, and how far an answer is from float64."""

import math
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import (
    AttendCall,
    AttendResult,
    Scoring,
    Visibility,
    numerics_for,
)
from kernelassay.oracle.budget import attention_budget
from kernelassay.oracle.scoring import offsets
from kernelassay.oracle.visibility import positions, visible

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SCORING = ("softcap", "alibi", "bias", "sink_logits")


def make_call(
    *,
    B: int = 1,
    Hq: int = 2,
    Hkv: int | None = None,
    Tq: int = 5,
    Tk: int | None = None,
    D: int = 16,
    Dv: int | None = None,
    dtype: str = "fp32",
    seed: int = 0,
    scale: float | None = None,
    **rest: Any,
) -> AttendCall:
    """A call of normal random q, k and v; what is left over describes scoring and visibility.

    A bias is cast to the dtype of q.
    """
    Tk = Tq if Tk is None else Tk
    generator = torch.Generator().manual_seed(seed)

    def normal(H: int, T: int, size: int) -> Tensor:
        return torch.randn(B, H, T, size, generator=generator).to(DTYPES[dtype])

    q, k, v = normal(Hq, Tq, D), normal(Hkv or Hq, Tk, D), normal(Hkv or Hq, Tk, Dv or D)
    scoring = {name: rest.pop(name) for name in SCORING if name in rest}
    if scoring.get("bias") is not None:
        scoring["bias"] = scoring["bias"].to(q.dtype)
    see, score = Visibility(**rest), Scoring(**scoring)
    return AttendCall(q=q, k=k, v=v, scale=scale, visibility=see, scoring=score)


def lengths(*values: int) -> Tensor:
    """Key lengths, one a request."""
    return torch.tensor(values)


def at(*requests: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    """Positions, a row for each request."""
    return torch.tensor(requests, dtype=dtype)


def ring(*starts: int, Tk: int) -> Tensor:
    """Positions of the keys of ring buffers: the oldest key of request b lies at starts[b]."""
    return torch.stack([(torch.arange(Tk) - start) % Tk for start in starts])


def numbers(*values: float) -> Tensor:
    """Slopes or sink logits, one a head."""
    return torch.tensor(values)


def random_mask(*shape: int) -> Tensor:
    """A mask that keeps half of the keys and hides all of them from the last query."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    if shape[-2] > 1:
        mask[..., -1, :] = False
    return mask


def random_bias(*shape: int, hides: bool = False) -> Tensor:
    """A normal random bias, -inf where a random mask drops if it *hides*."""
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    return torch.where(random_mask(*shape), bias, -math.inf) if hides else bias


def shape_of(call: AttendCall) -> tuple[int, int, int, int]:
    """(B, Hq, Tq, Tk)."""
    B, Hq, Tq, _ = call.q.shape
    return B, Hq, Tq, call.k.shape[2]


def seen_by(call: AttendCall) -> Tensor:
    """Who sees what in *call*, [B, Hq, Tq, Tk]; a bias of -inf hides its key."""
    seen = visible(call.visibility, shape_of(call)).expand(shape_of(call))
    bias = call.scoring.bias
    return seen if bias is None else seen & (bias > -math.inf)


def plain_softmax(call: AttendCall) -> tuple[Tensor, Tensor]:
    """out and lse by the definition, in float64, nothing clever."""
    scoring, group = call.scoring, call.q.shape[1] // call.k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (call.k, call.v))
    z = call.q.double() @ k.mT * call.softmax_scale
    if scoring.softcap is not None:
        z = scoring.softcap * torch.tanh(z / scoring.softcap)
    if scoring.alibi is not None:
        at_q, at_k = positions(call.visibility, shape_of(call))
        distance = (at_q[:, None, :, None] - at_k[:, None, None, :]).abs()
        z = z - scoring.alibi.double()[:, None, None] * distance
    if scoring.bias is not None:
        z = z + scoring.bias.double()
    z = z.masked_fill(~seen_by(call), -torch.inf)
    if scoring.sink_logits is not None:  # one more key, whose value is 0
        z = torch.cat((z, scoring.sink_logits.double().view(-1, 1, 1).expand(*z.shape[:3], 1)), -1)
        v = torch.nn.functional.pad(v, (0, 0, 0, 1))
    return z.softmax(-1).nan_to_num(0.0) @ v, z.logsumexp(-1)


def fields(**values: Any) -> dict[str, Any]:
    """Arguments of `make_call`."""
    return values


def over_budget(adapter: Any, call: AttendCall, *, generic: bool = True) -> float:
    """The largest error of out or lse over what the adapter's numerics allow."""
    result: AttendResult = adapter.attend(call)
    dtype = next(name for name, x in DTYPES.items() if x == call.q.dtype)
    scoring, shape = call.scoring, shape_of(call)
    budget = attention_budget(
        call.q, call.k, call.v, call.softmax_scale, seen_by(call),
        numerics_for(adapter, dtype)[0],
        generic=generic,
        softcap=scoring.softcap,
        offset=offsets(scoring, call.visibility, shape),
        sink_logits=scoring.sink_logits,
    )  # fmt: skip
    assert result.out.dtype == call.q.dtype
    assert result.out.shape == budget.out.shape
    ratios = [(result.out.double() - budget.out).abs() / budget.out_allowed]
    if result.lse is not None:
        same = result.lse.double() == budget.lse  # -inf - -inf would be NaN
        error = (result.lse.double() - budget.lse).abs() / budget.lse_allowed
        ratios.append(torch.where(same, 0.0, error))
    worst = torch.cat([x.flatten() for x in ratios])
    return float(worst.nan_to_num(torch.inf).max()) if worst.numel() else 0.0
