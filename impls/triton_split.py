"""Decoding attention in Triton with the keys cut into parts (Flash-Decoding), then combined.

Part s of request b holds a run of whole key tiles; parts that get none are empty. Over its keys

    m[s] = max_j z[j]     l[s] = sum_j exp(z[j] - m[s])     u[s] = sum_j exp(z[j] - m[s]) v[j]

with z[j] = cap tanh(scale * q . k[j] / cap) for the keys j < length that the row sees: those up
to its causal corner that the mask does not hide. A second kernel makes one of S parts:

    m = max(sink, max_s m[s])     l = exp(sink - m) + sum_s exp(m[s] - m) l[s]
    out = sum_s exp(m[s] - m) u[s] / l     lse = m + log l     without key and sink: 0 and -inf

Shapes: q [B, Hq, Tq, D]; k [B, Hkv, Tk, D]; v [B, Hkv, Tk, Dv]; mask [B, Hq, Tq, Tk]; any strides;
states M, L [B, Hkv, S, R] and U [B, Hkv, S, R, Dv], fp32; out [B, Hq, Tq, Dv]; lse [B, Hq, Tq].
R = G Tq rows share a KV head, G = Hq / Hkv of them a query position: row r is position r // G of
head g G + r % G. BLOCK_M rows are one program, BLOCK_N keys one step.
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
from kernelassay.impls.triton_attention import (
    LARGEST_D,
    by_head,
    padded,
    soft_capped,
    strides,
)

# One dot's least number of rows serves the query heads of a KV head while one token is decoded;
# more rows take larger tiles. N is small, so that a few dozen keys already fill several parts.
FEW_ROWS = 16
MANY_ROWS = 64
COMBINED_ROWS = 32  # any number: states are combined row by row, without a dot
COMBINING: Mapping[str, Any] = {
    "BLOCK_M": COMBINED_ROWS, "num_warps": 4, "num_stages": 1, "enable_fp_fusion": False,
}  # fmt: skip
BLOCK_N = 16
# Without a number in the call: parts until programs fill a device, none shorter than this.
ENOUGH_PROGRAMS = 128
SHORTEST_PART = 64

POINTERS = ("Q", "K", "V", "M", "L", "U", "LENGTHS", "MASK")
SIZES = ("Tq", "D", "Dv", "Hkv", "group", "splits", "causal", "bottom")
INPUTS = tuple(f"{x}_{axis}" for x in "qkv" for axis in "bhtd")
STRIDES = (*(f"mask_{axis}" for axis in "bhtd"), "len_b")
COMBINE_POINTERS = ("M", "L", "U", "SINKS", "OUT", "LSE")
COMBINE_SIZES = ("Tq", "Dv", "Hkv", "group", "splits")
COMBINE_STRIDES = (*(f"o_{axis}" for axis in "bhtd"), "sink_h")

mend()


# As in `triton_attention`, only what is loaded for each score costs a compilation of its own.
@triton.jit(do_not_specialize=(*SIZES, *INPUTS, *STRIDES), do_not_specialize_on_alignment=POINTERS)
def partial_kernel(  # type: ignore[no-untyped-def]  # Triton has no types for these
    Q, K, V, M, L, U, LENGTHS, MASK, scale, cap, Tq, D, Dv, Hkv, group, splits, causal, bottom,
    q_b: tl.int64, q_h: tl.int64, q_t: tl.int64, q_d: tl.int64,  # 64 bits: inputs may be large
    k_b: tl.int64, k_h: tl.int64, k_t: tl.int64, k_d: tl.int64,
    v_b: tl.int64, v_h: tl.int64, v_t: tl.int64, v_d: tl.int64,
    mask_b, mask_h, mask_t, mask_d, len_b,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    R = group * Tq
    row_tiles = (R + BLOCK_M - 1) // BLOCK_M
    rows = tl.program_id(0) % row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)  # [M]
    split = tl.program_id(0) // row_tiles % splits
    head = (tl.program_id(0) // row_tiles // splits).to(tl.int64)  # offsets are 64 bits wide
    b, g = head // Hkv, head % Hkv
    t = rows // group
    t64 = t.to(tl.int64)
    h = g * group + rows % group
    d = tl.arange(0, BLOCK_D).to(tl.int64)

    # This part holds the keys first..end-1; row r sees those up to high[r].
    length = tl.load(LENGTHS + b * len_b).to(tl.int32)
    tiles = (length + BLOCK_N - 1) // BLOCK_N
    size = (tiles + splits - 1) // splits * BLOCK_N
    first = split * size
    high = tl.where(causal != 0, t + bottom * (length - Tq), length - 1)
    high = tl.where(rows < R, tl.minimum(high, length - 1), -1)
    end = tl.minimum(first + size, tl.max(high, 0) + 1)

    q_at = Q + b * q_b + h[:, None] * q_h + t64[:, None] * q_t + d[None, :] * q_d
    q = tl.load(q_at, mask=(rows[:, None] < R) & (d[None, :] < D), other=0.0)  # [M, D]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)  # running maximum
    l = tl.zeros([BLOCK_M], tl.float32)  # denominators  # noqa: E741
    u = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)  # numerators

    for start in range(first, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)  # [N]
        keys64 = keys.to(tl.int64)
        visible = keys[None, :] <= high[:, None]  # [M, N]
        if MASK is not None:
            mask_at = MASK + b * mask_b + h[:, None] * mask_h
            mask_at += t64[:, None] * mask_t + keys64[None, :] * mask_d
            visible = visible & tl.load(mask_at, mask=visible, other=0)
        # What no row sees is not read: NaN there would survive as 0 x NaN.
        seen = tl.max(visible.to(tl.int32), 0) > 0  # [N]

        k_at = K + b * k_b + g * k_h + keys64[None, :] * k_t + d[:, None] * k_d
        k = tl.load(k_at, mask=seen[None, :] & (d[:, None] < D), other=0.0)  # [D, N]
        z = tl.dot(q, k, input_precision="ieee") * scale
        if cap != 0.0:  # 0 is none
            z = soft_capped(z, cap)
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

    at = (head * splits + split) * R + rows
    tl.store(M + at, m, mask=rows < R)
    tl.store(L + at, l, mask=rows < R)
    u_at = U + at[:, None] * Dv + d[None, :]
    tl.store(u_at, u, mask=(rows[:, None] < R) & (d[None, :] < Dv))


@triton.jit(
    do_not_specialize=(*COMBINE_SIZES, *COMBINE_STRIDES),
    do_not_specialize_on_alignment=COMBINE_POINTERS,
)
def combine_kernel(  # type: ignore[no-untyped-def]
    M, L, U, SINKS, OUT, LSE, Tq, Dv, Hkv, group, splits, o_b, o_h, o_t, o_d, sink_h,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    R = (group * Tq).to(tl.int64)  # offsets are 64 bits wide
    row_tiles = (R + BLOCK_M - 1) // BLOCK_M
    rows = tl.program_id(0) % row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)  # [M]
    head = tl.program_id(0) // row_tiles
    b, g = head // Hkv, head % Hkv
    t = rows // group
    h = g * group + rows % group
    d = tl.arange(0, BLOCK_D).to(tl.int64)
    first = head * splits * R + rows  # of part 0; the next part lies R further

    # The largest maximum comes first, so that each part is rescaled once.
    # A sink, a key without a value, is counted here alone.
    sink = tl.load(SINKS + h * sink_h, mask=rows < R, other=float("-inf"))
    m = sink
    for split in range(splits):
        part = tl.load(M + first + split * R, mask=rows < R, other=float("-inf"))
        m = tl.maximum(m, part)
    m_safe = tl.where(m == float("-inf"), 0.0, m)  # -inf - -inf would be NaN
    l = tl.exp(sink - m_safe)  # noqa: E741
    u = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for split in range(splits):
        at = first + split * R
        part = tl.load(M + at, mask=rows < R, other=float("-inf"))
        weight = tl.exp(part - m_safe)
        l = l + weight * tl.load(L + at, mask=rows < R, other=0.0)  # noqa: E741
        u_at = U + at[:, None] * Dv + d[None, :]
        u_part = tl.load(u_at, mask=(rows[:, None] < R) & (d[None, :] < Dv), other=0.0)
        u = u + weight[:, None] * u_part

    empty = l == 0.0
    l_safe = tl.where(empty, 1.0, l)
    out_at = OUT + b * o_b + h[:, None] * o_h + t[:, None] * o_t + d[None, :] * o_d
    out = (u / l_safe[:, None]).to(OUT.dtype.element_ty)
    tl.store(out_at, out, mask=(rows[:, None] < R) & (d[None, :] < Dv))
    lse = tl.where(empty, float("-inf"), m + tl.log(l_safe))
    tl.store(LSE + (b * Hkv * group + h) * Tq + t, lse, mask=rows < R)


def attention(call: AttendCall) -> tuple[Tensor, Tensor]:
    """out and lse of *call*."""
    q, k, v, see, scoring = call.q, call.k, call.v, call.visibility, call.scoring
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, Dv = v.shape
    group = Hq // Hkv
    out = torch.empty((B, Hq, Tq, Dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Tq), dtype=torch.float32, device=q.device)
    tuned = tuning(group * Tq, max(D, Dv))
    programs = B * Hkv * triton.cdiv(group * Tq, tuned["BLOCK_M"])
    if programs == 0:
        return out, lse
    splits = parts(programs, Tk) if call.splits is None else call.splits
    states = (B, Hkv, splits, group * Tq)
    m = torch.empty(states, dtype=torch.float32, device=q.device)
    l = torch.empty_like(m)  # noqa: E741
    u = torch.empty((*states, Dv), dtype=torch.float32, device=q.device)
    mask = None if see.mask is None else see.mask.expand(B, Hq, Tq, Tk)
    lengths = q.new_full((B,), Tk, dtype=torch.int64) if see.lengths is None else see.lengths
    sinks = by_head(q, scoring.sink_logits, -math.inf)
    with launching(q):
        partial_kernel[(programs * splits,)](
            q, k, v, m, l, u, lengths, mask,
            float(call.softmax_scale), float(scoring.softcap or 0.0),
            Tq, D, Dv, Hkv, group, splits,
            int(see.causal != "none"), int(see.causal != "top_left"),
            *q.stride(), *k.stride(), *v.stride(), *strides(mask, 4), *strides(lengths, 1),
            BLOCK_N=BLOCK_N, BLOCK_D=padded(max(D, Dv)), **tuned,
        )  # fmt: skip
        combine_kernel[(B * Hkv * triton.cdiv(group * Tq, COMBINED_ROWS),)](
            m, l, u, sinks, out, lse, Tq, Dv, Hkv, group, splits,
            *out.stride(), *sinks.stride(), BLOCK_D=padded(Dv), **COMBINING,
        )  # fmt: skip
    return out, lse


def parts(programs: int, Tk: int) -> int:
    """Into how many parts to cut Tk keys where *programs* are needed for each part."""
    return max(1, min(ENOUGH_PROGRAMS // programs, triton.cdiv(Tk, SHORTEST_PART)))


def tuning(R: int, D: int) -> Mapping[str, Any]:
    """Rows per program, by their number and the head size, and compiler options."""
    rows = MANY_ROWS if D <= 128 else MANY_ROWS // 2
    return {
        "BLOCK_M": FEW_ROWS if R <= FEW_ROWS else rows,
        "num_warps": 4 if D <= 128 else 8,
        "num_stages": 2 if D <= 128 else 1,
        "enable_fp_fusion": False,
    }


DECLINES = frozenset(
    ("causal.positions", "window", "sink_tokens", "alibi", "bias", "bias.minus_infinity")
)
_16_BIT = Numerics(l_from_p=False, block=BLOCK_N)  # tensor cores; the interpreter is finer


class TritonSplit:
    """The kernels above, on a GPU or in Triton's interpreter."""

    name = "triton_split"
    capabilities = Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(16, 32, 64, 80, 96, 128, 192, 256),
        layouts=("BHTD", "BTHD"),
        tiles=(BLOCK_N, MANY_ROWS),
        splits=True,
        work_limit={"interpreter": 16},
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


adapter = TritonSplit()


def compile_specs() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(kernel, signature, constexprs, options) of what is compiled without a device."""
    for kernel, dtype, D, tuned, absent in (
        (combine_kernel, "fp16", 256, COMBINING, ()),
        (partial_kernel, "fp32", 256, tuning(40, 256), ("MASK",)),
        (partial_kernel, "bf16", 64, tuning(8, 64), ()),
    ):
        signature = dict.fromkeys((*COMBINE_SIZES, *COMBINE_STRIDES, *SIZES, *STRIDES), "i32")
        signature |= dict.fromkeys(INPUTS, "i64")
        signature |= dict.fromkeys(("Q", "K", "V", "OUT"), f"*{dtype}") | {"MASK": "*i1"}
        signature |= dict.fromkeys(("M", "L", "U", "LSE", "SINKS"), "*fp32") | {"LENGTHS": "*i64"}
        signature |= dict.fromkeys(("scale", "cap"), "fp32")
        options = dict(tuned)
        constexprs = dict.fromkeys(absent) | {"BLOCK_M": options.pop("BLOCK_M")}
        constexprs |= {"BLOCK_N": BLOCK_N, "BLOCK_D": D}
        constexprs = {name: x for name, x in constexprs.items() if name in kernel.arg_names}
        signature |= dict.fromkeys(constexprs, "constexpr")
        yield kernel, {name: signature[name] for name in kernel.arg_names}, constexprs, options
