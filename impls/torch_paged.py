"""Paged flash attention in plain PyTorch: keys and values are gathered tile by tile from pages.

    key j of request b lies in slot j % size of page table[b, j // size]
    z[i, j] = cap tanh(scale * q[i] . k[j] / cap) - slope |i - j|    for the keys j that i sees
    out[i]  = sum_j exp(z[i, j] - lse[i]) v[j]       lse[i] = log sum_j exp(z[i, j])

State of a row after some tiles, as in `torch_reference`:

    m = max_j z[j]     l = sum_j exp(z[j] - m)     u = sum_j exp(z[j] - m) v[j]

Shapes: q [B, Hq, Tq, D]; pools k [pages, size, Hkv, D] and v [pages, size, Hkv, Dv], or with the
axes of slots and heads swapped; table [B, most]; lengths [B]; out [B, Hq, Tq, Dv]; lse [B, Hq,
Tq]; query head h reads KV head h // (Hq / Hkv). Sums are fp32; probabilities are rounded to the
input dtype before they meet v. A row that sees no key gets out = 0 and lse = -inf. A sink logit s
starts the state with m = s, l = 1, u = 0.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from kernelassay.impls.calls import check_attend, key_heads, refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
    Pages,
)

TILE = 32  # keys a step
FAR = 2**62  # a window that wide hides nothing; positions lie within it, so that no sum overflows


def attention(call: AttendCall, pages: Pages, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse of *call*."""
    q = call.q
    B, Hq, Tq, D = q.shape
    Dv = call.v.shape[-1]
    scale = 1.0 / math.sqrt(D) if call.scale is None else call.scale
    group = Hq // key_heads(call)
    kv_head = torch.arange(Hq, device=q.device) // group
    m = q.new_full((B, Hq, Tq), -math.inf, dtype=torch.float32)
    if call.scoring.sink_logits is not None:
        m = call.scoring.sink_logits[None, :, None].expand(B, Hq, Tq)
    l = torch.where(m > -math.inf, 1.0, 0.0)  # noqa: E741
    u = q.new_zeros((B, Hq, Tq, Dv), dtype=torch.float32)
    queries = q.float().contiguous()  # contiguous: no bit depends on the layout of the inputs
    end = int(lengths.max()) if B > 0 else 0
    for start in range(0, end, TILE):
        stop = min(start + TILE, end)
        key = torch.arange(start, stop, device=q.device)  # [tile]
        k_tile = gathered(call.k, pages, lengths, key)  # [B, Hkv, tile, D]
        v_tile = gathered(call.v, pages, lengths, key)  # [B, Hkv, tile, Dv]
        k_tile = k_tile[:, kv_head].float()  # [B, Hq, tile, D]
        v_tile = v_tile[:, kv_head].float()  # [B, Hq, tile, Dv]
        keep = visible(call, lengths, key)  # [B, Tq, tile]
        seen = keep.any(dim=1)[:, None, :, None]  # [B, 1, tile, 1]
        v_tile = torch.where(seen, v_tile, 0.0)  # what no row sees may be NaN: 0 x NaN
        z = queries @ k_tile.transpose(-1, -2)
        z = z * scale
        z = scored(call, lengths, key, z)
        z = torch.where(keep[:, None], z, -math.inf)
        m_new = torch.maximum(m, z.amax(dim=-1))
        m_safe = torch.where(m_new == -math.inf, 0.0, m_new)  # -inf - -inf would be NaN
        rescale = torch.exp(m - m_safe)
        p = torch.exp(z - m_safe[..., None])
        l = l * rescale + p.sum(dim=-1)  # noqa: E741
        u = u * rescale[..., None]
        p = p.to(q.dtype)
        u = u + p.float() @ v_tile
        m = m_new
    empty = l == 0
    l_safe = torch.where(empty, 1.0, l)
    out = u / l_safe[..., None]
    lse = m + torch.log(l_safe)
    lse = torch.where(empty, -math.inf, lse)
    return out.to(q.dtype), lse


def gathered(pool: Tensor, pages: Pages, lengths: Tensor, key: Tensor) -> Tensor:
    """What *pool* holds of the keys *key* of each request, [B, Hkv, tile, D or Dv].

    Keys that a request does not have are 0: neither their slots nor their pages are looked at.
    """
    if pages.layout == "HND":
        pool = pool.transpose(1, 2)  # [pages, size, Hkv, D]
    B = lengths.shape[0]
    Hkv, D = pool.shape[2:]
    used = key < lengths[:, None]  # [B, tile]
    column = key // pages.size
    page = pages.table[:, column]  # [B, tile]
    slot = key % pages.size
    slot = slot.expand(B, -1)  # [B, tile]
    tile = pool.new_zeros((B, key.shape[0], Hkv, D))
    tile[used] = pool[page[used], slot[used]]
    return tile.transpose(1, 2).contiguous()


def visible(call: AttendCall, lengths: Tensor, key: Tensor) -> Tensor:
    """Which of the keys *key* each query sees, [B, Tq, tile]."""
    see = call.visibility
    k_position = key[None, None, :]  # [1, 1, tile]
    q_position = q_positions(call, lengths)[:, :, None]  # [B, Tq, 1]
    keep = k_position < lengths[:, None, None]
    keep = keep.expand(-1, call.q.shape[2], -1)
    if see.causal != "none":
        keep = keep & (k_position <= q_position)
    left, right = (None if n is None else min(n, FAR) for n in see.window)
    if left is not None:
        within = k_position >= q_position - left
        sink = k_position < see.sinks
        keep = keep & (within | sink)
    if right is not None:
        keep = keep & (k_position <= q_position + right)
    return keep


def scored(call: AttendCall, lengths: Tensor, key: Tensor, z: Tensor) -> Tensor:
    """Scores z [B, Hq, Tq, tile] with soft cap and ALiBi."""
    scoring = call.scoring
    if scoring.softcap is not None:
        z = scoring.softcap * torch.tanh(z / scoring.softcap)
    if scoring.alibi is not None:
        distance = (q_positions(call, lengths)[:, :, None] - key).abs()[:, None]
        z = z - scoring.alibi[:, None, None] * distance
    return z


def q_positions(call: AttendCall, lengths: Tensor) -> Tensor:
    """The position of each query among the keys, [B, Tq]."""
    B, _, Tq, _ = call.q.shape
    row = torch.arange(Tq, device=call.q.device)[None, :]
    if call.visibility.causal == "top_left":
        return row.expand(B, Tq)
    offset = lengths.long() - Tq
    return row + offset[:, None]


DECLINES = frozenset(("causal.positions", "mask", "bias", "bias.minus_infinity"))
_FP32_SUMS = Numerics(l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1, block=TILE)


class TorchPaged:
    """The function above, over pages of [size, Hkv, D]."""

    name = "torch_paged"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
        layouts=("BHTD", "BTHD"),
        tiles=(16, TILE),
        pages=(16, 1, 4, 64),
        page_layout="NHD",
        supports=frozenset(FEATURES) - DECLINES,
        declines=DECLINES,
        conventions=Conventions(
            empty_row="zeros",
            empty_lse="-inf",
            lse_base="e",
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
        assert call.pages is not None
        assert call.visibility.lengths is not None
        return AttendResult(*attention(call, call.pages, call.visibility.lengths))


adapter = TorchPaged()
