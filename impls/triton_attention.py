"""Flash attention forward in Triton: one pass over key tiles, softmax on line.

    z[i, j] = scale * sum_d q[i, d] k[j, d]          for the keys j that query i sees
    out[i]  = sum_j exp(z[i, j] - lse[i]) v[j]       lse[i] = log sum_j exp(z[i, j])

A row that sees no key gets out = 0 and lse = -inf. Scores live in base 2: z' = z log2(e), so that
exp(z - m) = exp2(z' - m'), and lse = ln(2) (m' + log2(l)).

Shapes: q [B, Hq, Tq, D]; k [B, Hkv, Tk, D]; v [B, Hkv, Tk, Dv]; out [B, Hq, Tq, Dv]; lse
[B, Hq, Tq]; any strides. Query head h reads KV head h // (Hq / Hkv). M = BLOCK_M rows of q are one
program, N = BLOCK_N keys one step.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelassay.impls.calls import check_attend, refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
    Unsupported,
)
from kernelassay.impls.interpreter import interpreting, launching, mend

# Fixed, whatever Tq: a row's arithmetic does not depend on how many rows there are. An interpreted
# step costs the same at any tile size, so M is as large as registers allow at D = 128; N is small,
# so that a few dozen keys already cross a tile edge.
BLOCK_M = 64
BLOCK_N = 32
LARGEST_D = 128
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}  # explicit: Triton's default changes

POINTERS = ("Q", "K", "V", "OUT", "LSE", "MASK", "LENGTHS")
SIZES = ("Tq", "Tk", "D", "Dv", "Hq", "group", "corner", "len_b")
STRIDES = tuple(f"{x}_{axis}" for x in ("q", "k", "v", "o", "mask") for axis in "bhtd")
CORNERS = {"none": 0, "bottom_right": 1, "top_left": 2}

DECLINED = frozenset(("causal.positions", "window", "sink_tokens"))

mend()


# Nothing is specialised on the values of sizes, strides and addresses, nor on the causal corner or
# lengths: neither a view of odd strides nor another kind of call costs a compilation. A mask does:
# those who have none should not pay a load for each score.
@triton.jit(do_not_specialize=(*SIZES, *STRIDES), do_not_specialize_on_alignment=POINTERS)
def attention_kernel(  # type: ignore[no-untyped-def]  # Triton has no types for these
    Q, K, V, OUT, LSE, MASK, LENGTHS, scale_log2e,
    Tq, Tk, D, Dv, Hq, group, corner, len_b,
    q_b, q_h, q_t, q_d, k_b, k_h, k_t, k_d, v_b, v_h, v_t, v_d,
    o_b, o_h, o_t, o_d, mask_b, mask_h, mask_t, mask_d,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    row_tiles = (Tq + BLOCK_M - 1) // BLOCK_M
    rows = tl.program_id(0) % row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)  # [M]
    head = tl.program_id(0) // row_tiles
    b = (head // Hq).to(tl.int64)  # offsets are 64 bits wide: strides may be large
    h = (head % Hq).to(tl.int64)
    g = h // group
    rows64 = rows.to(tl.int64)
    d = tl.arange(0, BLOCK_D).to(tl.int64)
    dv = tl.arange(0, BLOCK_DV).to(tl.int64)

    # Row i sees no key from limit[i] on; no row of this tile sees one from end on.
    length = tl.load(LENGTHS + b * len_b).to(tl.int32)
    limit = tl.zeros([BLOCK_M], tl.int32) + length
    if corner == 1:
        limit = tl.minimum(length, rows + (length - Tq) + 1)
    if corner == 2:
        limit = tl.minimum(length, rows + 1)
    limit = tl.where(rows < Tq, limit, 0)
    end = tl.max(limit, 0)

    q_at = Q + b * q_b + h * q_h + rows64[:, None] * q_t + d[None, :] * q_d
    q = tl.load(q_at, mask=(rows[:, None] < Tq) & (d[None, :] < D), other=0.0)  # [M, D]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)  # running maximum, base 2
    l = tl.zeros([BLOCK_M], tl.float32)  # denominators  # noqa: E741
    u = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)  # numerators

    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)  # [N]
        keys64 = keys.to(tl.int64)
        visible = keys[None, :] < limit[:, None]  # [M, N]
        if MASK is not None:
            mask_at = MASK + b * mask_b + h * mask_h
            mask_at += rows64[:, None] * mask_t + keys64[None, :] * mask_d
            visible = visible & tl.load(mask_at, mask=visible, other=0)
        # What no row sees is not read: NaN there would survive as 0 x NaN.
        seen = tl.max(visible.to(tl.int32), 0) > 0  # [N]

        k_at = K + b * k_b + g * k_h + keys64[None, :] * k_t + d[:, None] * k_d
        k = tl.load(k_at, mask=seen[None, :] & (d[:, None] < D), other=0.0)  # [D, N]
        z = tl.dot(q, k, input_precision="ieee") * scale_log2e
        z = tl.where(visible, z, float("-inf"))  # [M, N]

        m_new = tl.maximum(m, tl.max(z, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - -inf would be NaN
        rescale = tl.exp2(m - m_safe)
        p = tl.exp2(z - m_safe[:, None])
        l = l * rescale + tl.sum(p, 1)  # noqa: E741
        v_at = V + b * v_b + g * v_h + keys64[:, None] * v_t + dv[None, :] * v_d
        v = tl.load(v_at, mask=seen[:, None] & (dv[None, :] < Dv), other=0.0)  # [N, Dv]
        u = u * rescale[:, None]
        u = tl.dot(p.to(v.dtype), v, u, input_precision="ieee")
        m = m_new

    empty = l == 0.0
    l_safe = tl.where(empty, 1.0, l)
    out_at = OUT + b * o_b + h * o_h + rows64[:, None] * o_t + dv[None, :] * o_d
    out = (u / l_safe[:, None]).to(OUT.dtype.element_ty)
    tl.store(out_at, out, mask=(rows[:, None] < Tq) & (dv[None, :] < Dv))
    lse = tl.where(empty, float("-inf"), (m + tl.log2(l_safe)) * 0.6931471805599453)
    tl.store(LSE + (b * Hq + h) * Tq + rows64, lse, mask=rows < Tq)


def attention(call: AttendCall) -> tuple[Tensor, Tensor]:
    """out and lse of *call*."""
    q, k, v, see = call.q, call.k, call.v, call.visibility
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, Dv = v.shape
    out = torch.empty((B, Hq, Tq, Dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Tq), dtype=torch.float32, device=q.device)
    programs = B * Hq * triton.cdiv(Tq, BLOCK_M)
    if programs == 0:
        return out, lse
    lengths = q.new_full((B,), Tk, dtype=torch.int64) if see.lengths is None else see.lengths
    mask = None if see.mask is None else see.mask.expand(B, Hq, Tq, Tk)  # stride 0 where broadcast
    with launching(q):
        attention_kernel[(programs,)](
            q, k, v, out, lse, mask, lengths, call.softmax_scale * math.log2(math.e),
            Tq, Tk, D, Dv, Hq, Hq // Hkv, CORNERS[see.causal], lengths.stride(0),
            *q.stride(), *k.stride(), *v.stride(), *out.stride(),
            *((0, 0, 0, 0) if mask is None else mask.stride()),
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
            BLOCK_D=padded(D), BLOCK_DV=padded(Dv), **OPTIONS,
        )  # fmt: skip
    return out, lse


def padded(D: int) -> int:
    """The block that holds D channels: a power of two, at least the 16 that a dot needs."""
    return max(16, triton.next_power_of_2(D))


_16_BIT = Numerics(l_from_p=False, block=BLOCK_N)  # tensor cores; the interpreter is finer


class TritonAttention:
    """The kernel above, on a GPU or in Triton's interpreter."""

    name = "triton_attention"
    capabilities = Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(16, 32, 64, 80, 96, 128),
        layouts=("BHTD", "BTHD"),
        tiles=(BLOCK_N, BLOCK_M),
        max_tokens=4096,
        work_limit={"interpreter": 16},
        supports=frozenset(FEATURES) - DECLINED,
        declines=DECLINED,
        conventions=Conventions(
            empty_row="zeros",
            empty_lse="-inf",
            lse_base="e",
            mask_polarity="keep",
            masked_content="nan_safe",
            deterministic=True,
            batch_invariant=True,
            validates_calls=True,
        ),
    )
    numerics: Mapping[str, Numerics] = {
        "fp16": _16_BIT,
        "bf16": _16_BIT,
        "fp32": Numerics(l_from_p=False, block=BLOCK_N, acc_u=2.0**-24, acc_biased=False, kstep=1),
    }

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*; malformed calls raise ValueError."""
        check_attend(call)
        refuse_unsupported(self.name, self.capabilities, call)
        if max(call.q.shape[-1], call.v.shape[-1]) > LARGEST_D:
            raise Unsupported(f"{self.name}: D = {call.q.shape[-1]}; at most {LARGEST_D}")
        if call.q.device.type != "cuda" and not interpreting():
            raise Unsupported(
                f"{self.name}: q is on {call.q.device}, where Triton needs its interpreter; "
                f"set TRITON_INTERPRET=1 before Triton is imported"
            )
        return AttendResult(*attention(call))


adapter = TritonAttention()


def compile_specs() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(kernel, signature, constexprs, options) of what is compiled without a device."""
    for dtype, masked in product(("fp32", "fp16", "bf16"), (False, True)):
        signature = dict.fromkeys(("Q", "K", "V", "OUT"), f"*{dtype}")
        signature |= {"LSE": "*fp32", "MASK": "*i1", "LENGTHS": "*i64", "scale_log2e": "fp32"}
        signature |= dict.fromkeys(SIZES + STRIDES, "i32")
        constexprs: dict[str, Any] = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
        constexprs |= {"BLOCK_D": 64, "BLOCK_DV": 64}
        if not masked:
            constexprs |= {"MASK": None}
        signature |= dict.fromkeys(constexprs, "constexpr")
        yield attention_kernel, signature, constexprs, OPTIONS
