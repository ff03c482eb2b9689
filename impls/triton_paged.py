"""Paged flash attention in Triton: prefill and decoding over keys and values kept in pages.

    key j of request b lies in slot j % size of page table[b, j // size]
    x[i, j] = scale * sum_d q[i, d] k[j, d]          for the keys j that query i sees
    z[i, j] = cap tanh(x[i, j] / cap) - slope |at[i] - j|
    out[i]  = sum_j exp(z[i, j] - lse[i]) v[j]       lse[i] = log(exp(sink) + sum_j exp(z[i, j]))

Query i sees the keys j < length with at[i] - left <= j <= at[i] + right; the first *sinks* keys
are exempt from *left*. A causal corner is right = 0. The last query is at the last key (bottom),
or the first at the first (top left). Without key and sink, out = 0 and lse = -inf.

Shapes: q [B, Hq, Tq, D]; pools k [pages, size, Hkv, D] and v [pages, size, Hkv, Dv] (NHD), or
[pages, Hkv, size, ...] (HND); table [B, most]; lengths [B]; slopes, sink logits [Hq]; out [B, Hq,
Tq, Dv]; lse [B, Hq, Tq]; any strides. Query head h reads KV head h // (Hq / Hkv). M = BLOCK_M rows
of q are one program, N = BLOCK_N keys one step, whatever the page size: each key finds its page.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import triton
import triton.language as tl
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
    Unsupported,
)
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere
from kernelassay.impls.triton_attention import (
    BLOCK_M,
    BLOCK_N,
    FAR,
    LARGEST_D,
    by_head,
    padded,
    soft_capped,
    tuning,
)

POINTERS = ("Q", "K", "V", "OUT", "LSE", "TABLE", "LENGTHS", "ALIBI", "SINKS")
SIZES = ("Tq", "D", "Dv", "Hq", "group", "size", "bottom", "left", "right", "sinks")
INPUTS = (
    *(f"q_{axis}" for axis in "bhtd"),
    *(f"{x}_{axis}" for x in "kv" for axis in ("page", "slot", "h", "d")),
)
STRIDES = (
    *(f"o_{axis}" for axis in "bhtd"),
    *("table_b", "table_n", "len_b", "alibi_h", "sink_h"),
)

mend()


# As in `triton_attention`, nothing is specialised on sizes, strides and addresses, nor on corner,
# window, cap, slopes and sinks, nor on page sizes and layouts: head size and dtype make a kernel.
@triton.jit(do_not_specialize=(*SIZES, *INPUTS, *STRIDES), do_not_specialize_on_alignment=POINTERS)
def paged_kernel(  # type: ignore[no-untyped-def]  # Triton has no types for these
    Q, K, V, OUT, LSE, TABLE, LENGTHS, ALIBI, SINKS, scale, cap,
    Tq, D, Dv, Hq, group, size, bottom, left: tl.int64, right: tl.int64, sinks,
    q_b: tl.int64, q_h: tl.int64, q_t: tl.int64, q_d: tl.int64,  # 64 bits: inputs may be large
    k_page: tl.int64, k_slot: tl.int64, k_h: tl.int64, k_d: tl.int64,
    v_page: tl.int64, v_slot: tl.int64, v_h: tl.int64, v_d: tl.int64,
    o_b, o_h, o_t, o_d, table_b, table_n, len_b, alibi_h, sink_h,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_tiles = (Tq + BLOCK_M - 1) // BLOCK_M
    rows = tl.program_id(0) % row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)  # [M]
    head = tl.program_id(0) // row_tiles
    b = (head // Hq).to(tl.int64)  # offsets are 64 bits wide: pools are large
    h = (head % Hq).to(tl.int64)
    g = h // group
    rows64 = rows.to(tl.int64)
    d = tl.arange(0, BLOCK_D).to(tl.int64)

    # Row i sees the keys low[i]..high[i]; no row of this tile sees one outside first..end-1.
    length = tl.load(LENGTHS + b * len_b).to(tl.int32)
    at = rows64 + bottom * (length - Tq)
    low = tl.minimum(tl.maximum(at - left, 0), length).to(tl.int32)
    high = tl.minimum(tl.maximum(at + right, -1), length - 1).to(tl.int32)
    at = at.to(tl.int32)
    low = tl.where(rows < Tq, low, length)
    high = tl.where(rows < Tq, high, -1)
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
        visible = keys[None, :] <= high[:, None]  # [M, N]
        visible = visible & ((keys[None, :] >= low[:, None]) | (keys < sinks)[None, :])
        # What no row sees is not read, nor is its page looked up: past a request's last page
        # there is none, and NaN in a slot would survive as 0 x NaN.
        seen = tl.max(visible.to(tl.int32), 0) > 0  # [N]
        column = (keys // size).to(tl.int64)
        page = tl.load(TABLE + b * table_b + column * table_n, mask=seen, other=0).to(tl.int64)
        slot = (keys % size).to(tl.int64)

        k_at = K + page * k_page + slot * k_slot + g * k_h  # [N]
        k_at = k_at[None, :] + d[:, None] * k_d
        k = tl.load(k_at, mask=seen[None, :] & (d[:, None] < D), other=0.0)  # [D, N]
        z = tl.dot(q, k, input_precision="ieee") * scale
        if cap != 0.0:  # 0 is none, as of slopes
            z = soft_capped(z, cap)
        if slope != 0.0:
            distance = tl.abs(at[:, None] - keys[None, :]).to(tl.float32)
            z = z - slope * distance
        z = tl.where(visible, z, float("-inf"))  # [M, N]

        m_new = tl.maximum(m, tl.max(z, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - -inf would be NaN
        rescale = tl.exp(m - m_safe)
        p = tl.exp(z - m_safe[:, None])
        l = l * rescale + tl.sum(p, 1)  # noqa: E741
        v_at = V + page * v_page + slot * v_slot + g * v_h  # [N]
        v_at = v_at[:, None] + d[None, :] * v_d
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


def attention(call: AttendCall, pages: Pages, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse of *call*."""
    q, k, v, see, scoring = call.q, call.k, call.v, call.visibility, call.scoring
    B, Hq, Tq, D = q.shape
    Dv = v.shape[-1]
    out = torch.empty((B, Hq, Tq, Dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Tq), dtype=torch.float32, device=q.device)
    tuned = tuning(max(D, Dv))
    programs = B * Hq * triton.cdiv(Tq, tuned["BLOCK_M"])
    if programs == 0:
        return out, lse
    if pages.layout == "HND":  # views as [pages, size, Hkv, D]: the kernel follows strides
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    left, right = (FAR.value if n is None else min(n, FAR.value) for n in see.window)
    if see.causal != "none":
        right = 0
    slots = pages.table.shape[1] * pages.size
    alibi, sink_logits = by_head(q, scoring.alibi, 0.0), by_head(q, scoring.sink_logits, -math.inf)
    with launching(q):
        paged_kernel[(programs,)](
            q, k, v, out, lse, pages.table, lengths, alibi, sink_logits,
            float(call.softmax_scale), float(scoring.softcap or 0.0),
            Tq, D, Dv, Hq, Hq // key_heads(call), pages.size, int(see.causal != "top_left"),
            left, right, min(see.sinks, slots),
            *q.stride(), *k.stride(), *v.stride(), *out.stride(), *pages.table.stride(),
            *lengths.stride(), *alibi.stride(), *sink_logits.stride(),
            BLOCK_N=BLOCK_N, BLOCK_D=padded(max(D, Dv)), **tuned,
        )  # fmt: skip
    return out, lse


DECLINES = frozenset(("causal.positions", "mask", "bias", "bias.minus_infinity"))
LARGEST_PAGE = 64
_16_BIT = Numerics(l_from_p=False, block=BLOCK_N)  # tensor cores; the interpreter is finer


class TritonPaged:
    """The kernel above for one layout of pages, on a GPU or in Triton's interpreter."""

    numerics: Mapping[str, Numerics] = {
        "fp16": _16_BIT,
        "bf16": _16_BIT,
        "fp32": Numerics(l_from_p=False, block=BLOCK_N, acc_u=2.0**-24, acc_biased=False, kstep=1),
    }

    def __init__(
        self, name: str, page_layout: Literal["NHD", "HND"], sizes: tuple[int, ...]
    ) -> None:
        self.name = name
        self.capabilities = Capabilities(
            devices=("cuda", "interpreter"),
            dtypes=("fp16", "bf16", "fp32"),
            head_sizes=(16, 32, 64, 80, 96, 128, 192, 256),
            layouts=("BTHD", "BHTD"),
            tiles=(BLOCK_N, BLOCK_M, sizes[0]),
            pages=sizes,
            page_layout=page_layout,
            work_limit={"interpreter": 16},
            supports=frozenset(FEATURES) - DECLINES,
            declines=DECLINES,
            conventions=Conventions(
                empty_row="zeros",
                empty_lse="-inf",
                lse_base="e",
                masked_content="nan_safe",
                deterministic=True,
                batch_invariant=True,
                validates_calls=True,
            ),
        )

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*; malformed calls raise ValueError."""
        check_attend(call)
        refuse_unsupported(self.name, self.capabilities, call)
        pages, lengths = call.pages, call.visibility.lengths
        assert pages is not None
        assert lengths is not None
        for name, size, most in (
            ("D", call.q.shape[-1], LARGEST_D),
            ("Dv", call.v.shape[-1], LARGEST_D),
            ("page size", pages.size, LARGEST_PAGE),
        ):
            if size > most:
                raise Unsupported(f"{self.name}: {name} = {size}; at most {most}")
        refuse_elsewhere(self.name, call.q.device)
        return AttendResult(*attention(call, pages, lengths))


adapter = TritonPaged("triton_paged", "NHD", (16, 1, 4, 64))
hnd = TritonPaged("triton_paged_hnd", "HND", (8, 32))


def compile_specs() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(kernel, signature, constexprs, options) of what is compiled without a device."""
    for dtype, D in (("fp32", 256), ("fp16", 128), ("bf16", 64)):
        signature = dict.fromkeys(("Q", "K", "V", "OUT"), f"*{dtype}")
        signature |= dict.fromkeys(("LSE", "ALIBI", "SINKS"), "*fp32")
        signature |= {"TABLE": "*i32", "LENGTHS": "*i64"} | dict.fromkeys(("scale", "cap"), "fp32")
        signature |= dict.fromkeys((*SIZES, *STRIDES), "i32")
        signature |= dict.fromkeys((*INPUTS, "left", "right"), "i64")
        options = dict(tuning(D))
        constexprs = {"BLOCK_M": options.pop("BLOCK_M"), "BLOCK_N": BLOCK_N, "BLOCK_D": D}
        signature |= dict.fromkeys(constexprs, "constexpr")
        yield paged_kernel, signature, constexprs, options
