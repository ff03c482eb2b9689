"""Flash attention in plain PyTorch: softmax on line over key tiles, each rule on its own line.

    z[i, j] = cap tanh(scale * q[i] . k[j] / cap) - slope |i - j| + bias[i, j]
                                                     for the keys j that query i sees
    out[i]  = sum_j exp(z[i, j] - lse[i]) v[j]       lse[i] = log sum_j exp(z[i, j])

State of a row after some tiles (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1):

    m = max_j z[j]     l = sum_j exp(z[j] - m)     u = sum_j exp(z[j] - m) v[j]

Shapes: q [B, Hq, Tq, D]; k [B, Hkv, Tk, D]; v [B, Hkv, Tk, Dv]; out [B, Hq, Tq, Dv]; lse
[B, Hq, Tq]; query head h reads KV head h // (Hq / Hkv). Sums are fp32; probabilities are rounded
to the input dtype before they meet v. A row that sees no key gets out = 0 and lse = -inf. A sink
logit s starts the state with m = s, l = 1, u = 0.
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

TILE = 64  # keys a step
FAR = 2**62  # a window that wide hides nothing; positions lie within it, so that no sum overflows


def attention(call: AttendCall) -> tuple[Tensor, Tensor]:
    """out and lse of *call*."""
    q, k, v = call.q, call.k, call.v
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, Dv = v.shape
    scale = 1.0 / math.sqrt(D) if call.scale is None else call.scale
    group = Hq // Hkv
    kv_head = torch.arange(Hq, device=q.device) // group
    m = q.new_full((B, Hq, Tq), -math.inf, dtype=torch.float32)
    if call.scoring.sink_logits is not None:
        m = call.scoring.sink_logits[None, :, None].expand(B, Hq, Tq)
    l = torch.where(m > -math.inf, 1.0, 0.0)  # noqa: E741
    u = q.new_zeros((B, Hq, Tq, Dv), dtype=torch.float32)
    queries = q.float().contiguous()  # contiguous: no bit depends on the layout of the inputs
    end = used_keys(call)
    for start in range(0, end, TILE):
        stop = min(start + TILE, Tk)
        k_tile = k[:, kv_head, start:stop].float().contiguous()  # [B, Hq, tile, D]
        v_tile = v[:, kv_head, start:stop].float().contiguous()  # [B, Hq, tile, Dv]
        keep = visible(call, start, stop)  # [B, Hq, Tq, tile]
        seen = keep.any(dim=-2)  # [B, Hq, tile]
        v_tile = torch.where(seen[..., None], v_tile, 0.0)  # what no row sees may be NaN: 0 x NaN
        z = queries @ k_tile.transpose(-1, -2)
        z = z * scale
        z = scored(call, z, start, stop)
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
    empty = l == 0
    l_safe = torch.where(empty, 1.0, l)
    out = u / l_safe[..., None]
    lse = m + torch.log(l_safe)
    lse = torch.where(empty, -math.inf, lse)
    return out.to(q.dtype), lse


def used_keys(call: AttendCall) -> int:
    """The number of keys that the longest request uses."""
    Tk = call.k.shape[2]
    lengths = call.visibility.lengths
    if lengths is None or lengths.numel() == 0:
        return Tk
    return int(lengths.max())


def visible(call: AttendCall, start: int, stop: int) -> Tensor:
    """Which of the keys start..stop-1 each query sees, [B, Hq, Tq, stop - start]."""
    see = call.visibility
    B, Hq, Tq, _ = call.q.shape
    Tk = call.k.shape[2]
    key = torch.arange(start, stop, device=call.q.device)[None, None, :]
    k_position = key  # [1, 1, tile]
    q_position = q_positions(call)[:, :, None].long()  # [B, Tq, 1]
    if see.causal == "positions" and see.k_positions is not None:
        k_position = see.k_positions[:, None, start:stop]
    keep = torch.ones((B, Tq, stop - start), dtype=torch.bool, device=call.q.device)
    if see.lengths is not None:
        keep = keep & (key < see.lengths[:, None, None])
    if see.causal != "none":
        keep = keep & (k_position <= q_position)
    left, right = (None if n is None else min(n, FAR) for n in see.window)
    if left is not None:
        within = k_position >= q_position - left
        sink = key < see.sinks
        keep = keep & (within | sink)
    if right is not None:
        keep = keep & (k_position <= q_position + right)
    keep = keep[:, None].expand(B, Hq, Tq, stop - start)
    if call.scoring.bias is not None:
        bias = call.scoring.bias.expand(B, Hq, Tq, Tk)
        keep = keep & (bias[..., start:stop] > -math.inf)
    if see.mask is not None:
        mask = see.mask.expand(B, Hq, Tq, Tk)
        keep = keep & mask[..., start:stop]
    return keep


def scored(call: AttendCall, z: Tensor, start: int, stop: int) -> Tensor:
    """Scores z [B, Hq, Tq, stop - start] with soft cap, ALiBi and bias."""
    scoring, see = call.scoring, call.visibility
    shape = (*call.q.shape[:3], call.k.shape[2])
    if scoring.softcap is not None:
        z = scoring.softcap * torch.tanh(z / scoring.softcap)
    if scoring.alibi is not None:
        k_position = torch.arange(start, stop, device=z.device)[None, None, :]
        if see.causal == "positions" and see.k_positions is not None:
            k_position = see.k_positions[:, None, start:stop]
        distance = (q_positions(call)[:, :, None] - k_position).abs()[:, None]
        z = z - scoring.alibi[:, None, None] * distance
    if scoring.bias is not None:
        z = z + scoring.bias.expand(shape)[..., start:stop].float()
    return z


def q_positions(call: AttendCall) -> Tensor:
    """The position of each query among the keys, [B, Tq]."""
    see = call.visibility
    B, _, Tq, _ = call.q.shape
    Tk = call.k.shape[2]
    if see.causal == "positions" and see.q_positions is not None:
        return see.q_positions
    row = torch.arange(Tq, device=call.q.device)[None, :]
    if see.causal == "top_left":
        return row.expand(B, Tq)
    used = torch.full((B,), Tk, device=call.q.device) if see.lengths is None else see.lengths
    offset = used - Tq
    return row + offset[:, None]


_SIXTEEN_BIT = Numerics(l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1, block=TILE)


class TorchReference:
    """The function above; supports every feature of attention forward."""

    name = "torch_reference"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
        layouts=("BHTD", "BTHD"),
        tiles=(TILE,),
        max_tokens=4096,
        supports=frozenset(FEATURES),
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
        "fp16": _SIXTEEN_BIT,
        "bf16": _SIXTEEN_BIT,
        "fp32": _SIXTEEN_BIT,
    }

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*; malformed calls raise ValueError."""
        check_attend(call)
        refuse_unsupported(self.name, self.capabilities, call)
        return AttendResult(*attention(call))


adapter = TorchReference()
