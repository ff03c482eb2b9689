"""Partial attention results merged in Triton: the largest part first, then all relative to it.

    m = max_i m_i       l = sum_i exp(m_i - m) l_i     u = sum_i exp(m_i - m) u_i
    out = u / l         lse = m + log l

A part is a state (u, m, l) of the online softmax over its keys, or (out, lse), which is the state
u = out, m = lse, l = 1. A part without keys has m = -inf, l = 0, and its u is not read. Without
keys in any part u, l and out are 0, m and lse are -inf.

Shapes: outs [n, B, H, T, Dv]; lses and sums [n, B, H, T], fp32; any strides. out [B, H, T, Dv], of
the dtype of outs; lse and sum [B, H, T], fp32. R = BLOCK rows of the B x H x T are one program.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelassay.impls.contract import (
    Capabilities,
    Conventions,
    MergeCall,
    Numerics,
    Unsupported,
)
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere
from kernelassay.impls.merge_calls import check_merge, refuse_merge

BLOCK = 32  # rows a program, whatever their number: no row's arithmetic depends on it
LARGEST_D = 256
OPTIONS: Mapping[str, Any] = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}

POINTERS = ("OUTS", "LSES", "OUT", "LSE")
OPTIONAL = ("SUMS", "SUM")
SIZES = ("n", "rows", "H", "T", "Dv")
PARTS = ("outs_n", "lses_n", "sums_n")
STRIDES = (*(f"outs_{x}" for x in "bhtd"), *(f"{p}_{x}" for p in ("lses", "sums") for x in "bht"))

mend()


@triton.jit
def state_of(LSES, SUMS, lse_at, sum_at, here):  # type: ignore[no-untyped-def]
    """m and l of a part [R]: -inf and 0 where it has no key; l = 1 where it is (out, lse)."""
    m = tl.load(LSES + lse_at, mask=here, other=float("-inf"))
    l = tl.where(m == float("-inf"), 0.0, 1.0)  # noqa: E741
    if SUMS is not None:
        l = tl.load(SUMS + sum_at, mask=here, other=0.0)  # noqa: E741
        m = tl.where(l == 0.0, float("-inf"), m)
    return m, l


# Nothing is specialised on the number of parts, on sizes, strides and addresses: a view of odd
# strides costs no compilation. Dv up to a power of two, dtype and form make a kernel.
@triton.jit(
    do_not_specialize=(*SIZES, *PARTS, *STRIDES),
    do_not_specialize_on_alignment=(*POINTERS, *OPTIONAL),
)
def merge_kernel(  # type: ignore[no-untyped-def]
    OUTS, LSES, SUMS, OUT, LSE, SUM, n, rows, H, T, Dv,
    outs_n: tl.int64, lses_n: tl.int64, sums_n: tl.int64,  # 64 bits: a part may be large
    outs_b, outs_h, outs_t, outs_d, lses_b, lses_h, lses_t, sums_b, sums_h, sums_t,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [R]
    here = row < rows
    t = row % T
    h = row // T % H
    b = row // T // H
    d = tl.arange(0, BLOCK_D).to(tl.int64)
    outs_at = (b * outs_b + h * outs_h + t * outs_t)[:, None] + (d * outs_d)[None, :]  # [R, Dv]
    lses_at = b * lses_b + h * lses_h + t * lses_t
    sums_at = b * sums_b + h * sums_h + t * sums_t

    m = tl.full([BLOCK], float("-inf"), tl.float32)
    for i in range(n):
        m_i, l_i = state_of(LSES, SUMS, lses_at + i * lses_n, sums_at + i * sums_n, here)
        m = tl.maximum(m, m_i)
    m_safe = tl.where(m == float("-inf"), 0.0, m)  # -inf - -inf would be NaN

    l = tl.zeros([BLOCK], tl.float32)  # denominators  # noqa: E741
    u = tl.zeros([BLOCK, BLOCK_D], tl.float32)  # numerators
    for i in range(n):
        m_i, l_i = state_of(LSES, SUMS, lses_at + i * lses_n, sums_at + i * sums_n, here)
        weight = tl.exp(m_i - m_safe)
        # What an empty part holds is not read: NaN there would survive as 0 x NaN.
        some = here & (l_i != 0.0)
        u_i = tl.load(
            OUTS + i * outs_n + outs_at, mask=some[:, None] & (d < Dv)[None, :], other=0.0
        )
        l = l + weight * l_i  # noqa: E741
        u = u + weight[:, None] * u_i.to(tl.float32)

    if SUMS is None:
        l_safe = tl.where(l == 0.0, 1.0, l)
        u = u / l_safe[:, None]
        m = m + tl.log(l_safe)
    else:
        tl.store(SUM + row, l, mask=here)
    out_at = OUT + row[:, None] * Dv + d[None, :]
    tl.store(out_at, u.to(OUT.dtype.element_ty), mask=here[:, None] & (d < Dv)[None, :])
    tl.store(LSE + row, m, mask=here)


def merged(call: MergeCall) -> tuple[Tensor, ...]:
    """out and lse of *call*, or u, m and l where it has sums."""
    outs, lses, sums = call.outs, call.lses, call.sums
    n, B, H, T, Dv = outs.shape
    out = torch.empty((B, H, T, Dv), dtype=outs.dtype, device=outs.device)
    lse = torch.empty((B, H, T), dtype=torch.float32, device=outs.device)
    total = None if sums is None else torch.empty_like(lse)
    rows = B * H * T
    if rows:
        with launching(outs):
            merge_kernel[(triton.cdiv(rows, BLOCK),)](
                outs, lses, sums, out, lse, total, n, rows, H, T, Dv,
                outs.stride(0), lses.stride(0), 0 if sums is None else sums.stride(0),
                *outs.stride()[1:], *lses.stride()[1:],
                *((0, 0, 0) if sums is None else sums.stride()[1:]),
                BLOCK=BLOCK, BLOCK_D=triton.next_power_of_2(Dv), **OPTIONS,
            )  # fmt: skip
    return (out, lse) if total is None else (out, lse, total)


@dataclass(eq=False)
class TritonMerge:
    """The kernel above in one of its two forms, on a GPU or in Triton's interpreter."""

    name: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]

    def merge(self, call: MergeCall) -> tuple[Tensor, ...]:
        """out and lse, or u, m and l; malformed calls raise ValueError."""
        check_merge(call, self.capabilities.state)
        refuse_merge(self.name, self.capabilities, call)
        if (size := call.outs.shape[-1]) > LARGEST_D:
            raise Unsupported(f"{self.name}: Dv = {size}; at most {LARGEST_D}")
        refuse_elsewhere(self.name, call.outs.device)
        return merged(call)


def _capabilities(dtypes: tuple[str, ...], **rest: Any) -> Capabilities:
    return Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=dtypes,
        head_sizes=(1, 8, 16, 32, 64, 80, 128, 192, 256),
        layouts=("BHTD", "BTHD", "BTNHD"),
        tiles=(BLOCK,),
        work_limit={"interpreter": 16},
        supports=frozenset(("merge", "merge.many")),
        conventions=Conventions(
            empty_row="zeros",
            empty_lse="-inf",
            lse_base="e",
            masked_content="nan_safe",
            deterministic=True,
            batch_invariant=True,
            validates_calls=True,
        ),
        **rest,
    )


_FP32 = Numerics(out="input", lse="fp32", exp_u=2.0**-22, div_u=2.0**-22)
_NUMERICS: Mapping[str, Numerics] = {"fp16": _FP32, "bf16": _FP32, "fp32": _FP32}
_OF_STATES: Mapping[str, Numerics] = {"fp32": replace(_FP32, states=True)}

adapter = TritonMerge("triton_merge", _capabilities(("fp16", "bf16", "fp32")), _NUMERICS)
states = TritonMerge("triton_merge_states", _capabilities(("fp32",), state="mlu"), _OF_STATES)


def compile_specs() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(kernel, signature, constexprs, options) of what is compiled without a device."""
    for dtype, D, with_sums in (("fp32", 256, True), ("fp16", 128, False), ("bf16", 256, False)):
        signature = dict.fromkeys(("OUTS", "OUT"), f"*{dtype}")
        signature |= dict.fromkeys(("LSES", "LSE", *OPTIONAL), "*fp32")
        signature |= dict.fromkeys((*SIZES, *STRIDES), "i32") | dict.fromkeys(PARTS, "i64")
        constexprs = {"BLOCK": BLOCK, "BLOCK_D": D} | ({} if with_sums else {"SUMS": None})
        signature |= dict.fromkeys(constexprs, "constexpr")
        yield merge_kernel, signature, constexprs, dict(OPTIONS)
