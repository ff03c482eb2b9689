"""Partial attention in Triton: the state of the online softmax over a range of keys, unfinished.

    z[i, j] = scale * sum_d q[i, d] k[j, d]     for the keys start <= j < stop that query i sees
    m[i] = max_j z[i, j]
    l[i] = sum_j exp(z[i, j] - m[i])            u[i] = sum_j exp(z[i, j] - m[i]) v[j]

Query i sees the keys j < length, and where it is causal j <= i + length - Tq. Without a key in the
range m = -inf, l = 0, u = 0. States of ranges that share no key merge to the state of their union;
the finished row is out = u / l, lse = m + log l.

Shapes: q [B, Hq, Tq, D]; k [B, Hkv, Tk, D]; v [B, Hkv, Tk, Dv]; any strides. u [B, Hq, Tq, Dv]; m
and l [B, Hq, Tq]; all three fp32. Query head h reads KV head h // (Hq / Hkv). M = BLOCK_M rows of
q are one program, N = BLOCK_N keys one step.
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

BLOCK_M = 32
BLOCK_N = 32
LARGEST_D = 256
OPTIONS: Mapping[str, Any] = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}

POINTERS = ("Q", "K", "V", "U", "M", "L", "LENGTHS")
SIZES = ("Tq", "D", "Dv", "Hq", "group", "causal", "start", "stop")
INPUTS = tuple(f"{x}_{axis}" for x in "qkv" for axis in "bhtd")

mend()


# Nothing is specialised on the values of sizes, strides and addresses, nor on the range of keys.
@triton.jit(do_not_specialize=(*SIZES, *INPUTS, "len_b"), do_not_specialize_on_alignment=POINTERS)
def partial_kernel(  # type: ignore[no-untyped-def]
    Q, K, V, U, M, L, LENGTHS, scale, Tq, D, Dv, Hq, group, causal, start, stop,
    q_b: tl.int64, q_h: tl.int64, q_t: tl.int64, q_d: tl.int64,  # 64 bits: inputs may be large
    k_b: tl.int64, k_h: tl.int64, k_t: tl.int64, k_d: tl.int64,
    v_b: tl.int64, v_h: tl.int64, v_t: tl.int64, v_d: tl.int64, len_b,
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

    # Row i sees the keys start to high[i]; no row of this tile sees a key at or past end.
    length = tl.load(LENGTHS + b * len_b).to(tl.int32)
    high = length - 1 - causal * (Tq - 1 - rows)
    high = tl.where(rows < Tq, tl.minimum(high, stop - 1), -1)
    end = tl.max(high, 0) + 1

    q_at = Q + b * q_b + h * q_h + rows64[:, None] * q_t + d[None, :] * q_d
    q = tl.load(q_at, mask=(rows[:, None] < Tq) & (d[None, :] < D), other=0.0)  # [M, D]
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    u = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for first in range(start, end, BLOCK_N):
        keys = first + tl.arange(0, BLOCK_N)  # [N]
        keys64 = keys.to(tl.int64)
        # What no row sees is not read: NaN there would survive as 0 x NaN.
        k_at = K + b * k_b + g * k_h + keys64[None, :] * k_t + d[:, None] * k_d
        k = tl.load(k_at, mask=(keys < end)[None, :] & (d[:, None] < D), other=0.0)  # [D, N]
        z = tl.dot(q, k, input_precision="ieee") * scale
        z = tl.where(keys[None, :] <= high[:, None], z, float("-inf"))  # [M, N]

        m_new = tl.maximum(m, tl.max(z, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - -inf would be NaN
        rescale = tl.exp(m - m_safe)
        p = tl.exp(z - m_safe[:, None])
        l = l * rescale + tl.sum(p, 1)  # noqa: E741
        v_at = V + b * v_b + g * v_h + keys64[:, None] * v_t + d[None, :] * v_d
        v = tl.load(v_at, mask=(keys < end)[:, None] & (d[None, :] < Dv), other=0.0)  # [N, Dv]
        u = u * rescale[:, None]
        u = tl.dot(p.to(v.dtype), v, u, input_precision="ieee")
        m = m_new

    at = (b * Hq + h) * Tq + rows64
    tl.store(M + at, m, mask=rows < Tq)
    tl.store(L + at, l, mask=rows < Tq)
    u_at = U + at[:, None] * Dv + d[None, :]
    tl.store(u_at, u, mask=(rows[:, None] < Tq) & (d[None, :] < Dv))


def partial(
    call: AttendCall, start: int = 0, stop: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """u, m and l of *call* over the keys start to stop - 1 alone, by default to the last.

    The corner stays that of all keys. Malformed calls and ranges raise ValueError, a call that
    needs what the kernel does not do `Unsupported`.
    """
    check_attend(call)
    stop = call.k.shape[2] if stop is None else stop
    _check(call, start, stop)
    q, k, v, see = call.q, call.k, call.v, call.visibility
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, Dv = v.shape
    u = torch.empty((B, Hq, Tq, Dv), dtype=torch.float32, device=q.device)
    m = torch.empty((B, Hq, Tq), dtype=torch.float32, device=q.device)
    l = torch.empty_like(m)  # noqa: E741
    programs = B * Hq * triton.cdiv(Tq, BLOCK_M)
    if programs == 0:
        return u, m, l
    lengths = q.new_full((B,), Tk, dtype=torch.int64) if see.lengths is None else see.lengths
    with launching(q):
        partial_kernel[(programs,)](
            q, k, v, u, m, l, lengths, float(call.softmax_scale),
            Tq, D, Dv, Hq, Hq // Hkv, int(see.causal != "none"), start, stop,
            *q.stride(), *k.stride(), *v.stride(), *lengths.stride(),
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_D=padded(max(D, Dv)), **OPTIONS,
        )  # fmt: skip
    return u, m, l


def _check(call: AttendCall, start: int, stop: int) -> None:
    """An exception, unless the range is one and the kernel does what is asked for."""
    if not 0 <= start <= stop <= call.k.shape[2]:
        Tk = call.k.shape[2]
        raise ValueError(f"start, stop: got {start}, {stop}, expected 0 <= start <= stop <= {Tk}")
    name = adapter.name
    refuse_unsupported(name, adapter.capabilities, call)
    for what, size in (("D", call.q.shape[-1]), ("Dv", call.v.shape[-1])):
        if size > LARGEST_D:
            raise Unsupported(f"{name}: {what} = {size}; at most {LARGEST_D}")
    refuse_elsewhere(name, call.q.device)


def padded(D: int) -> int:
    """The block that holds D channels: a power of two, at least the 16 that a dot needs."""
    return max(16, triton.next_power_of_2(D))


_SUPPORTS = frozenset((
    "attend", "lse", "causal.bottom_right", "unequal_lengths", "more_queries", "no_keys",
    "no_queries", "value_size", "lengths", "gqa", "scale", "scale.nonpositive", "strides",
))  # fmt: skip
_16_BIT = Numerics(l_from_p=False, block=BLOCK_N)  # tensor cores; the interpreter is finer


class TritonPartial:
    """The kernel above over all keys, finished in PyTorch."""

    name = "triton_partial"
    capabilities = Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(16, 32, 64, 80, 96, 128, 192, 256),
        layouts=("BHTD", "BTHD"),
        tiles=(BLOCK_N,),
        work_limit={"interpreter": 16},
        supports=_SUPPORTS,
        declines=frozenset(FEATURES) - _SUPPORTS,
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
        "fp16": _16_BIT,
        "bf16": _16_BIT,
        "fp32": Numerics(l_from_p=False, block=BLOCK_N, acc_u=2.0**-24, acc_biased=False, kstep=1),
    }

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*; malformed calls raise ValueError."""
        u, m, l = partial(call)  # noqa: E741
        l_safe = torch.where(l == 0, 1.0, l)
        lse = torch.where(l == 0, -math.inf, m + l_safe.log())
        return AttendResult((u / l_safe[..., None]).to(call.q.dtype), lse)


adapter = TritonPartial()


def compile_specs() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(kernel, signature, constexprs, options) of what is compiled without a device."""
    for dtype, D in (("fp32", 256), ("fp16", 64), ("bf16", 128)):
        signature = dict.fromkeys(("Q", "K", "V"), f"*{dtype}")
        signature |= dict.fromkeys(("U", "M", "L"), "*fp32") | {"LENGTHS": "*i64"}
        signature |= dict.fromkeys((*SIZES, "len_b"), "i32") | {"scale": "fp32"}
        signature |= dict.fromkeys(INPUTS, "i64")
        constexprs = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_D": D}
        signature |= dict.fromkeys(constexprs, "constexpr")
        yield partial_kernel, signature, constexprs, dict(OPTIONS)
