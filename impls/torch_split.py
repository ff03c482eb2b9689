"""Attention in plain PyTorch with the keys cut into parts, which are put together at the end.

Part s holds a run of keys j, all parts equally many but the last ones. A row's state over it is

    m[s] = max_j z[j]     l[s] = sum_j exp(z[j] - m[s])     u[s] = sum_j exp(z[j] - m[s]) v[j]

    m   = max(sink, max_s m[s])
    l   = exp(sink - m) + sum_s exp(m[s] - m) l[s]
    out = sum_s exp(m[s] - m) u[s] / l                      lse = m + log l

with scores z[j] = cap tanh(scale * q . k[j] / cap) of the keys j that the row sees. This is
Flash-Decoding (Dao, Haziza, Massa, Sizov 2023), inside a part as in `torch_reference`.

Shapes: q [B, Hq, Tq, D]; k [B, Hkv, Tk, D]; v [B, Hkv, Tk, Dv]; states of all parts m, l [S, B,
Hq, Tq] and u [S, B, Hq, Tq, Dv]; out [B, Hq, Tq, Dv]; lse [B, Hq, Tq]. States are fp32;
probabilities are rounded to the input dtype before they meet v. A part without a key has m = -inf,
l = 0, u = 0; a row without a key and a sink gets out = 0 and lse = -inf.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from kernelassay.impls.calls import check_attend, refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
)
from kernelassay.impls.torch_reference import scored, visible

TILE = 32  # keys a step
PART = 128  # keys a part, where the call does not say into how many they are cut

State = tuple[Tensor, Tensor, Tensor]


def attention(call: AttendCall) -> tuple[Tensor, Tensor]:
    """out and lse of *call*."""
    Tk = call.k.shape[2]
    splits = max(1, math.ceil(Tk / PART)) if call.splits is None else call.splits
    size = math.ceil(Tk / splits)
    parts = []
    for split in range(splits):
        start = min(split * size, Tk)
        stop = min(start + size, Tk)
        parts.append(partial(call, start, stop))
    m, l, u = (torch.stack(x) for x in zip(*parts, strict=True))  # noqa: E741
    return combined(call, m, l, u)


def partial(call: AttendCall, start: int, stop: int) -> State:
    """The state (m, l, u) of each row over the keys start..stop-1."""
    q, k, v = call.q, call.k, call.v
    B, Hq, Tq, D = q.shape
    Hkv, _, Dv = v.shape[1:]
    scale = 1.0 / math.sqrt(D) if call.scale is None else call.scale
    group = Hq // Hkv
    kv_head = torch.arange(Hq, device=q.device) // group
    m = q.new_full((B, Hq, Tq), -math.inf, dtype=torch.float32)
    l = q.new_zeros((B, Hq, Tq), dtype=torch.float32)  # noqa: E741
    u = q.new_zeros((B, Hq, Tq, Dv), dtype=torch.float32)
    queries = q.float().contiguous()  # contiguous: no bit depends on the layout of the inputs
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        k_tile = k[:, kv_head, first:last].float().contiguous()  # [B, Hq, tile, D]
        v_tile = v[:, kv_head, first:last].float().contiguous()  # [B, Hq, tile, Dv]
        keep = visible(call, first, last)  # [B, Hq, Tq, tile]
        seen = keep.any(dim=-2)  # [B, Hq, tile]
        v_tile = torch.where(seen[..., None], v_tile, 0.0)  # what no row sees may be NaN: 0 x NaN
        z = queries @ k_tile.transpose(-1, -2)
        z = z * scale
        z = scored(call, z, first, last)
        z = torch.where(keep, z, -math.inf)
        m_new = torch.maximum(m, z.amax(dim=-1))
        m_safe = torch.where(m_new == -math.inf, 0.0, m_new)  # -inf - -inf would be NaN
        rescale = torch.exp(m - m_safe)
        p = torch.exp(z - m_safe[..., None])
        l = l * rescale + p.sum(dim=-1)  # noqa: E741
        u = u * rescale[..., None]
        p = p.to(v.dtype)
        u = u + p.float() @ v_tile
        m = m_new
    return m, l, u


def combined(call: AttendCall, m: Tensor, l: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:  # noqa: E741
    """out and lse of rows whose states over all parts are m, l and u."""
    B, Hq, Tq, _ = call.q.shape
    sink = m.new_full((B, Hq, Tq), -math.inf)
    if call.scoring.sink_logits is not None:
        sink = call.scoring.sink_logits[None, :, None].expand(B, Hq, Tq)
    top = m.amax(dim=0)
    top = torch.maximum(top, sink)
    top_safe = torch.where(top == -math.inf, 0.0, top)  # -inf - -inf would be NaN
    weight = torch.exp(m - top_safe)  # [S, B, Hq, Tq]
    total = (weight * l).sum(dim=0)
    total = total + torch.exp(sink - top_safe)  # once, however many parts there are
    numerator = (weight[..., None] * u).sum(dim=0)
    empty = total == 0
    total_safe = torch.where(empty, 1.0, total)
    out = numerator / total_safe[..., None]
    lse = top + torch.log(total_safe)
    lse = torch.where(empty, -math.inf, lse)
    return out.to(call.q.dtype), lse


DECLINES = frozenset(
    ("causal.positions", "window", "sink_tokens", "alibi", "bias", "bias.minus_infinity")
)
_FP32_SUMS = Numerics(l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1, block=TILE)


class TorchSplit:
    """The function above, in as many parts as the call says."""

    name = "torch_split"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
        layouts=("BHTD", "BTHD"),
        tiles=(TILE, PART),
        splits=True,
        supports=frozenset(FEATURES) - DECLINES,
        declines=DECLINES,
        conventions=Conventions(
            empty_row="zeros",
            empty_lse="-inf",
            lse_base="e",
            mask_polarity="keep",
            masked_content="nan_safe",
            deterministic=True,
            validates_calls=True,
        ),
    )
    numerics: Mapping[str, Numerics] = {
        "fp16": _FP32_SUMS,
        "bf16": _FP32_SUMS,
        "fp32": _FP32_SUMS,
    }

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*; malformed calls raise ValueError."""
        check_attend(call)
        refuse_unsupported(self.name, self.capabilities, call)
        return AttendResult(*attention(call))


adapter = TorchSplit()
