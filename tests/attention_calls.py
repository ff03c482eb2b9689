"""Calls for the tests of bundled attention kernels, and how far an answer is from float64."""

from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendCall, AttendResult, Visibility, numerics_for
from kernelassay.oracle.budget import attention_budget
from kernelassay.oracle.visibility import visible

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def make_call(
    *,
    B: int = 1,
    Hq: int = 2,
    Hkv: int | None = None,
    Tq: int = 5,
    Tk: int | None = None,
    D: int = 16,
    dtype: str = "fp32",
    seed: int = 0,
    scale: float | None = None,
    **visibility: Any,
) -> AttendCall:
    """A call of normal random q, k and v; what is left over describes the visibility."""
    Tk = Tq if Tk is None else Tk
    generator = torch.Generator().manual_seed(seed)

    def normal(H: int, T: int) -> Tensor:
        return torch.randn(B, H, T, D, generator=generator).to(DTYPES[dtype])

    q, k, v = normal(Hq, Tq), normal(Hkv or Hq, Tk), normal(Hkv or Hq, Tk)
    return AttendCall(q=q, k=k, v=v, scale=scale, visibility=Visibility(**visibility))


def lengths(*values: int) -> Tensor:
    """Key lengths, one a request."""
    return torch.tensor(values)


def random_mask(*shape: int) -> Tensor:
    """A mask that keeps half of the keys and hides all of them from the last query."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    if shape[-2] > 1:
        mask[..., -1, :] = False
    return mask


def seen_by(call: AttendCall) -> Tensor:
    """Who sees what in *call*, [B, Hq, Tq, Tk]."""
    shape = (*call.q.shape[:3], call.k.shape[2])
    return visible(call.visibility, shape).expand(shape)


def plain_softmax(call: AttendCall) -> tuple[Tensor, Tensor]:
    """out and lse by the definition, in float64, nothing clever."""
    group = call.q.shape[1] // call.k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (call.k, call.v))
    z = call.q.double() @ k.mT * call.softmax_scale
    z = z.masked_fill(~seen_by(call), -torch.inf)
    return z.softmax(-1).nan_to_num(0.0) @ v, z.logsumexp(-1)


def over_budget(adapter: Any, call: AttendCall, *, generic: bool = True) -> float:
    """The largest error of out or lse over what the adapter's numerics allow."""
    result: AttendResult = adapter.attend(call)
    dtype = next(name for name, x in DTYPES.items() if x == call.q.dtype)
    budget = attention_budget(
        call.q, call.k, call.v, call.softmax_scale, seen_by(call),
        numerics_for(adapter, dtype)[0], generic=generic,
    )  # fmt: skip
    assert result.out.dtype == call.q.dtype
    ratios = [(result.out.double() - budget.out).abs() / budget.out_allowed]
    if result.lse is not None:
        same = result.lse.double() == budget.lse  # -inf - -inf would be NaN
        error = (result.lse.double() - budget.lse).abs() / budget.lse_allowed
        ratios.append(torch.where(same, 0.0, error))
    worst = torch.cat([x.flatten() for x in ratios]) if ratios else torch.zeros(1)
    return float(worst.nan_to_num(torch.inf).max()) if worst.numel() else 0.0


def fields(**values: Any) -> dict[str, Any]:
    """Arguments of `make_call`."""
    return values


CALLS: dict[str, dict[str, Any]] = {
    "plain": fields(Tq=33, Tk=65, D=64),
    "one query, one key": fields(Tq=1, Tk=1),
    "bottom right": fields(Tq=31, Tk=65, D=32, causal="bottom_right"),
    "bottom right, fewer keys": fields(Tq=70, Tk=40, causal="bottom_right"),
    "top left": fields(Tq=65, Tk=96, causal="top_left"),
    "top left, fewer keys": fields(Tq=65, Tk=33, causal="top_left"),
    "no keys": fields(Tq=3, Tk=0, causal="bottom_right"),
    "no queries": fields(Tq=0, Tk=3),
    "no requests": fields(B=0, Tq=2),
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
    "grouped heads": fields(B=2, Hq=6, Hkv=2, Tq=3, Tk=33),
    "D of no power of two": fields(Tq=4, Tk=33, D=80),
    "D smaller than a dot": fields(Tq=4, Tk=33, D=5),
    "D = 128": fields(Hq=1, Tq=4, Tk=33, D=128),
    "scale": fields(Tq=4, Tk=33, scale=0.7),
    "negative scale": fields(Tq=4, Tk=33, scale=-1.5, causal="bottom_right"),
    "scores far below zero": fields(Tq=4, Tk=70, scale=-400.0),
}  # fmt: skip
"""Corners of causal masks, ragged lengths, masks, heads, head sizes and scales."""
