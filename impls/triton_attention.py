"""Flash attention forward in Triton: one pass over key tiles, softmax on line.

    x[i, j] = scale * sum_d q[i, d] k[j, d]          for the keys j that query i sees
    z[i, j] = cap tanh(x[i, j] / cap) - slope |at_q[i] - at_k[j]| + bias[i, j]
    out[i]  = sum_j exp(z[i, j] - lse[i]) v[j]       lse[i] = log(exp(sink) + sum_j exp(z[i, j]))

Query i sees the keys j < length with at_q[i] - left <= at_k[j] <= at_q[i] + right that mask and
bias do not hide; the first *sinks* keys are exempt from *left*. A causal corner is right = 0.
Positions at_k are key numbers and at_q such that the last query is at the last key (bottom), the
first at the first (top left), or tensors. Without key and sink, out = 0 and lse = -inf.

Shapes: q [B, Hq, Tq, D]; k [B, Hkv, Tk, D]; v [B, Hkv, Tk, Dv]; mask, bias [B, Hq, Tq, Tk];
positions [B, Tq], [B, Tk]; slopes, sink logits [Hq]; out [B, Hq, Tq, Dv]; lse [B, Hq, Tq]; any
strides. Query head h reads KV head h // (Hq / Hkv). M = BLOCK_M rows of q are one program, N =
BLOCK_N keys one step.
"""

import math
from collections.abc import Iterator, Mapping
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
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere

# Fixed, whatever Tq: a row's arithmetic does not depend on how many rows there are. An interpreted
# step costs the same at any tile size, so M is as large as registers allow at D = 128; N is small,
# so that a few dozen keys already cross a tile edge.
BLOCK_M = 64
BLOCK_N = 32
LARGEST_D = 256
# Explicit, since Triton's defaults change. Beyond D = 128 half the rows, and nothing loaded ahead:
# tiles of fp32 fit into shared memory, of which the smallest targets have 64 and 99 KiB.
SMALL_D: Mapping[str, Any] = {
    "BLOCK_M": BLOCK_M, "num_warps": 4, "num_stages": 2, "enable_fp_fusion": False,
}  # fmt: skip
LARGE_D: Mapping[str, Any] = {
    "BLOCK_M": BLOCK_M // 2, "num_warps": 8, "num_stages": 1, "enable_fp_fusion": False,
}  # fmt: skip
FAR = tl.constexpr(2**62)  # no bound: positions lie within it on both sides

POINTERS = ("Q", "K", "V", "OUT", "LSE", "LENGTHS", "ALIBI", "SINKS")
OPTIONAL = ("MASK", "BIAS", "Q_AT", "K_AT")
SIZES = ("Tq", "D", "Dv", "Hq", "group", "bottom", "left", "right", "sinks")
INPUTS = tuple(f"{x}_{axis}" for x in "qkv" for axis in "bhtd")
STRIDES = (
    *(f"{x}_{axis}" for x in ("o", "mask", "bias") for axis in "bhtd"),
    *("len_b", "alibi_h", "sink_h", "qat_b", "qat_t", "kat_b", "kat_t"),
)

mend()


@triton.jit
def soft_capped(x, cap):  # type: ignore[no-untyped-def]  # Triton has no types for these
    """cap tanh(x / cap), with tanh y = 1 - 2 / (exp(2 y) + 1): exact where exp is 0 or inf."""
    return cap - 2.0 * cap / (tl.exp(x * (2.0 / cap)) + 1.0)


# Nothing is specialised on the values of sizes, strides and addresses, nor on corner, window,
# lengths, cap, slopes or sinks: neither a view of odd strides nor another kind of call costs a
# compilation. What is loaded for each score does, as do positions: those who have no mask should
# not pay for one.
@triton.jit(
    do_not_specialize=(*SIZES, *INPUTS, *STRIDES),
    do_not_specialize_on_alignment=(*POINTERS, *OPTIONAL),
)
def attention_kernel(  # type: ignore[no-untyped-def]
    Q, K, V, OUT, LSE, LENGTHS, MASK, BIAS, ALIBI, SINKS, Q_AT, K_AT, scale, cap,
    Tq, D, Dv, Hq, group, bottom, left: tl.int64, right: tl.int64, sinks,
    q_b: tl.int64, q_h: tl.int64, q_t: tl.int64, q_d: tl.int64,  # 64 bits: inputs may be large
    k_b: tl.int64, k_h: tl.int64, k_t: tl.int64, k_d: tl.int64,
    v_b: tl.int64, v_h: tl.int64, v_t: tl.int64, v_d: tl.int64,
    o_b, o_h, o_t, o_d, mask_b, mask_h, mask_t, mask_d, bias_b, bias_h, bias_t, bias_d,
    len_b, alibi_h, sink_h, qat_b, qat_t, kat_b, kat_t,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_tiles = (Tq + BLOCK_M - 1) // BLOCK_M
    rows = tl.program_id(0) % row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)  # [M]
    head = tl.program_id(0) // row_tiles
    b = (head // Hq).to(tl.int64)  # offsets are 64 bits wide: strides may be large
    h = (head % Hq).to(tl.int64)
    g = h // group
    rows64 = rows.to(tl.int64)
    d = tl.arange(0, BLOCK_D).to(tl.int64)

    # Row i sees positions low[i] to high[i]; no row of this tile sees a key outside first..end-1.
    length = tl.load(LENGTHS + b * len_b).to(tl.int32)
    if Q_AT is None:
        at_q = rows64 + bottom * (length - Tq)
    else:
        at_q = tl.load(Q_AT + b * qat_b + rows64 * qat_t, mask=rows < Tq, other=0).to(tl.int64)
    low = tl.where(rows < Tq, at_q - left, FAR)
    high = tl.where(rows < Tq, at_q + right, -FAR)
    first, end = 0, length
    if Q_AT is None:  # a key's number is its position: 32 bits will do
        at_q = at_q.to(tl.int32)
        low = tl.minimum(tl.maximum(low, 0), length).to(tl.int32)
        high = tl.minimum(tl.maximum(high, -1), length - 1).to(tl.int32)
        end = tl.max(high, 0) + 1
        first = tl.where(sinks > 0, 0, tl.min(low, 0) // BLOCK_N * BLOCK_N)

    q_at = Q + b * q_b + h * q_h + rows64[:, None] * q_t + d[None, :] * q_d
    q = tl.load(q_at, mask=(rows[:, None] < Tq) & (d[None, :] < D), other=0.0)  # [M, D]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)  # running maximum
    m = tl.maximum(m, tl.load(SINKS + h * sink_h))  # a key without a value
    l = tl.where(m == float("-inf"), 0.0, 1.0)  # denominators  # noqa: E741
    u = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)  # numerators
    slope = tl.load(ALIBI + h * alibi_h)

    for start in range(first, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)  # [N]
        keys64 = keys.to(tl.int64)
        at_k = keys
        if K_AT is not None:
            at_k = tl.load(K_AT + b * kat_b + keys64 * kat_t, mask=keys < length, other=0)
        visible = (at_k[None, :] <= high[:, None]) & (keys < length)[None, :]  # [M, N]
        visible = visible & ((at_k[None, :] >= low[:, None]) | (keys < sinks)[None, :])
        if MASK is not None:
            mask_at = MASK + b * mask_b + h * mask_h
            mask_at += rows64[:, None] * mask_t + keys64[None, :] * mask_d
            visible = visible & tl.load(mask_at, mask=visible, other=0)
        if BIAS is not None:
            bias_at = BIAS + b * bias_b + h * bias_h
            bias_at += rows64[:, None] * bias_t + keys64[None, :] * bias_d
            bias = tl.load(bias_at, mask=visible, other=0.0).to(tl.float32)
            visible = visible & (bias != float("-inf"))
        # What no row sees is not read: NaN there would survive as 0 x NaN.
        seen = tl.max(visible.to(tl.int32), 0) > 0  # [N]

        k_at = K + b * k_b + g * k_h + keys64[None, :] * k_t + d[:, None] * k_d
        k = tl.load(k_at, mask=seen[None, :] & (d[:, None] < D), other=0.0)  # [D, N]
        z = tl.dot(q, k, input_precision="ieee") * scale
        if cap != 0.0:  # 0 is none, as of slopes
            z = soft_capped(z, cap)
        if slope != 0.0:
            distance = tl.abs(at_q[:, None] - at_k[None, :]).to(tl.float32)
            z = z - slope * distance
        if BIAS is not None:
            z = z + bias
        z = tl.where(visible, z, float("-inf"))  # [M, N]

        m_new = tl.maximum(m, tl.max(z, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - -inf would be NaN
        rescale = tl.exp(m - m_safe)
        p = tl.exp(z - m_safe[:, None])
        l = l * rescale + tl.sum(p, 1)  # noqa: E741
        v_at = V + b * v_b + g * v_h + keys64[:, None] * v_t + d[None, :] * v_d
        v = tl.load(v_at, mask=seen[:, None] & (d[None, :] < Dv), other=0.0)  # [N, Dv]
        u = u * rescale[:, None]
        u = tl.dot(p.to(v.dtype), v, u, input_precision="ieee")
        m = m_new

    empty = l == 0.0
    l_safe = tl.where(empty, 1.0, l)
    out_at = OUT + b * o_b + h * o_h + rows64[:, None] * o_t + d[None, :] * o_d
    out = (u / l_safe[:, None]).to(OUT.dtype.element_ty)
    tl.store(out_at, out, mask=(rows[:, None] < Tq) & (d[None, :] < Dv))
    lse = tl.where(empty, float("-inf"), m + tl.log(l_safe))
    tl.store(LSE + (b * Hq + h) * Tq + rows64, lse, mask=rows < Tq)


def attention(call: AttendCall) -> tuple[Tensor, Tensor]:
    """out and lse of *call*."""
    q, k, v, see, scoring = call.q, call.k, call.v, call.visibility, call.scoring
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, Dv = v.shape
    out = torch.empty((B, Hq, Tq, Dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Tq), dtype=torch.float32, device=q.device)
    tuned = tuning(max(D, Dv))
    programs = B * Hq * triton.cdiv(Tq, tuned["BLOCK_M"])
    if programs == 0:
        return out, lse
    shape = (B, Hq, Tq, Tk)
    mask, bias = (None if x is None else x.expand(shape) for x in (see.mask, scoring.bias))
    alibi, sink_logits = by_head(q, scoring.alibi, 0.0), by_head(q, scoring.sink_logits, -math.inf)
    lengths = q.new_full((B,), Tk, dtype=torch.int64) if see.lengths is None else see.lengths
    q_at = k_at = None
    if see.causal == "positions":
        q_at, k_at = see.q_positions, see.k_positions
    left, right = (FAR.value if n is None else min(n, FAR.value) for n in see.window)
    if see.causal != "none":
        right = 0
    with launching(q):
        attention_kernel[(programs,)](
            q, k, v, out, lse, lengths, mask, bias, alibi, sink_logits, q_at, k_at,
            float(call.softmax_scale), float(scoring.softcap or 0.0),
            Tq, D, Dv, Hq, Hq // Hkv, int(see.causal != "top_left"), left, right,
            min(see.sinks, Tk),
            *q.stride(), *k.stride(), *v.stride(), *out.stride(),
            *strides(mask, 4), *strides(bias, 4), *strides(lengths, 1),
            *alibi.stride(), *sink_logits.stride(), *strides(q_at, 2), *strides(k_at, 2),
            BLOCK_N=BLOCK_N, BLOCK_D=padded(max(D, Dv)), **tuned,
        )  # fmt: skip
    return out, lse


def strides(x: Tensor | None, axes: int) -> tuple[int, ...]:
    """The strides of *x*, 0 where it is broadcast or absent."""
    return (0,) * axes if x is None else x.stride()


def by_head(q: Tensor, x: Tensor | None, absent: float) -> Tensor:
    """*x* [Hq], a number for each head of q, or *absent* for all, which then changes no score."""
    return q.new_full((1,), absent, dtype=torch.float32).expand(q.shape[1]) if x is None else x


def padded(D: int) -> int:
    """The block that holds D channels: a power of two, at least the 16 that a dot needs."""
    return max(16, triton.next_power_of_2(D))


def tuning(D: int) -> Mapping[str, Any]:
    """Rows per program and compiler options: chosen by the head size alone."""
    return SMALL_D if D <= 128 else LARGE_D


_16_BIT = Numerics(l_from_p=False, block=BLOCK_N)  # tensor cores; the interpreter is finer


class TritonAttention:
    """The kernel above, on a GPU or in Triton's interpreter; it supports every feature."""

    name = "triton_attention"
    capabilities = Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(16, 32, 64, 80, 96, 128, 192, 256),
        layouts=("BHTD", "BTHD"),
        tiles=(BLOCK_N, BLOCK_M),
        max_tokens=4096,
        work_limit={"interpreter": 16},
        supports=frozenset(FEATURES),
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
        for name, size in (("D", call.q.shape[-1]), ("Dv", call.v.shape[-1])):
            if size > LARGEST_D:
                raise Unsupported(f"{self.name}: {name} = {size}; at most {LARGEST_D}")
        refuse_elsewhere(self.name, call.q.device)
        return AttendResult(*attention(call))


adapter = TritonAttention()


def compile_specs() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(kernel, signature, constexprs, options) of what is compiled without a device."""
    kinds: tuple[tuple[str, int, tuple[str, ...]], ...] = (
        ("fp32", 128, ()),
        ("fp32", 256, OPTIONAL),
        ("fp16", 256, OPTIONAL),
        ("fp16", 64, ()),
        ("fp16", 64, ("Q_AT", "K_AT")),
        ("bf16", 64, ()),
        ("bf16", 64, OPTIONAL),
    )
    for dtype, D, present in kinds:
        signature = dict.fromkeys(("Q", "K", "V", "OUT", "BIAS"), f"*{dtype}")
        signature |= dict.fromkeys(("LSE", "ALIBI", "SINKS"), "*fp32") | {"MASK": "*i1"}
        signature |= dict.fromkeys(("LENGTHS", "Q_AT", "K_AT"), "*i64")
        signature |= dict.fromkeys(("scale", "cap"), "fp32")
        signature |= dict.fromkeys((*SIZES, *STRIDES), "i32")
        signature |= dict.fromkeys((*INPUTS, "left", "right"), "i64")
        options = dict(tuning(D))
        constexprs = {"BLOCK_M": options.pop("BLOCK_M"), "BLOCK_N": BLOCK_N, "BLOCK_D": D}
        constexprs |= dict.fromkeys({*OPTIONAL} - {*present})
        signature |= dict.fromkeys(constexprs, "constexpr")
        yield attention_kernel, signature, constexprs, options
