"""Logits made laws in one Triton kernel without a sort: thresholds are found by bisection.

    x_i = logit, -inf where the mask removes it     m = max_i x_i     w_i = exp((x_i - m) / T)

An fp32 number's bits, all but the sign flipped where it is negative, are an int32 in the order
of the numbers: the key of x_i. Over keys a threshold is found in at most 32 passes.

    top-k   the largest t with #{key_i >= t} >= k: all tokens that tie with the k-th largest stay
    top-p   the largest t with W(key >= t) >= p W, W the sum of the weights that top-k left;
            of the tokens of key t the n-th by id (from 0) stays while W(key > t) + n w_t < p W
    min-p   w_i >= min_p, for the likeliest has weight 1 and is always kept

    p_i = w_i / sum w_i over the tokens kept, 0 elsewhere

Counts are exact. The sum of the same tiles with more tokens is not smaller, rounded as well: what
is bisected is monotone. p = 1 keeps tokens too light to change a sum.

Shapes: logits and mask [R, V], any strides; temperature, top_k, top_p, min_p [R]; p [R, V], fp32.
ROWS rows are one program, BLOCK tokens one step.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelassay.impls.contract import (
    LOGITS,
    Capabilities,
    Conventions,
    LawCall,
    Maps,
    Numerics,
)
from kernelassay.impls.interpreter import interpreting, launching, mend, refuse_elsewhere
from kernelassay.impls.law_calls import check_law, refuse_law

BLOCK = 1024
SMALL_BLOCK = 64  # holds a small vocabulary whole
TILE = 4096  # ROWS x BLOCK: a small vocabulary has more rows to a program
TILE_INTERPRETED = 32768  # it is steps that take time there; no row's arithmetic changes
OPTIONS: Mapping[str, Any] = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": False}

ROWWISE = ("TEMPERATURE", "TOP_K", "TOP_P", "MIN_P")
POINTERS = ("LOGITS", "OUT", *ROWWISE)
OPTIONAL = ("MASK",)
SIZES = ("R", "V")
STRIDES = ("x_r", "x_v", "mask_r", "mask_v", "t_r", "k_r", "p_r", "m_r")
LOWEST = tl.constexpr(-(2**31))
HIGHEST = tl.constexpr(2**31 - 1)

mend()


@triton.jit
def tile_of(X, KEEP, x_v, mask_v, V, here, start, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """x fp32, keys and ids of the tokens from *start* on, [ROWS, BLOCK]; x = -inf where none is.

    X and KEEP [ROWS] point at rows. What the mask removes is not read.
    """
    token = (start + tl.arange(0, BLOCK))[None, :]
    token64 = token.to(tl.int64)
    seen = here[:, None] & (token < V)
    if KEEP is not None:
        seen = seen & tl.load(KEEP[:, None] + token64 * mask_v, mask=seen, other=0)
    x = tl.load(X[:, None] + token64 * x_v, mask=seen, other=float("-inf"))
    x = x.to(tl.float32)
    x = tl.where(x == 0.0, 0.0, x)  # -0 is 0
    bits = x.to(tl.int32, bitcast=True)
    return x, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), token


@triton.jit
def weight_of(x, m, temperature):  # type: ignore[no-untyped-def]
    """exp((x - m) / T), 0 for a token removed."""
    scaled = tl.div_rn(x - m[:, None], tl.broadcast_to(temperature[:, None], x.shape))
    return tl.where(x == float("-inf"), 0.0, tl.exp(scaled))


# Nothing is specialised on the numbers of rows and tokens, on strides and addresses, nor on which
# maps there are: each has a value that keeps all tokens, for which its passes are left out. A mask
# is loaded for each token: those who have none should not pay for one.
@triton.jit(
    do_not_specialize=(*SIZES, *STRIDES), do_not_specialize_on_alignment=(*POINTERS, *OPTIONAL)
)
def law_kernel(  # type: ignore[no-untyped-def]
    LOGITS, MASK, TEMPERATURE, TOP_K, TOP_P, MIN_P, OUT, R, V,
    x_r, x_v, mask_r, mask_v, t_r, k_r, p_r, m_r,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # 64 bits: R V may be large
    here = row < R
    X = LOGITS + row * x_r
    KEEP = None
    if MASK is not None:
        KEEP = MASK + row * mask_r
    temperature = tl.load(TEMPERATURE + row * t_r, mask=here, other=1.0)

    m = tl.full([ROWS], float("-inf"), tl.float32)
    top = tl.full([ROWS], LOWEST, tl.int32)
    least = tl.full([ROWS], HIGHEST, tl.int32)  # keys from here on are kept
    for start in range(0, V, BLOCK):
        x, key, token = tile_of(X, KEEP, x_v, mask_v, V, here, start, BLOCK)
        m = tl.maximum(m, tl.max(x, 1))
        top = tl.maximum(top, tl.max(key, 1))
        least = tl.minimum(least, tl.min(tl.where(x == float("-inf"), HIGHEST, key), 1))
    m = tl.where(here, m, 0.0)  # -inf - -inf would be NaN

    k = tl.load(TOP_K + row * k_r, mask=here, other=0)
    high = tl.where(k < V, top, least)
    while tl.max((least < high).to(tl.int32), 0) > 0:
        t = (least | high) - ((least ^ high) >> 1)  # their mean, rounded up
        count = tl.zeros([ROWS], tl.int32)
        for start in range(0, V, BLOCK):
            x, key, token = tile_of(X, KEEP, x_v, mask_v, V, here, start, BLOCK)
            count += tl.sum((key >= t[:, None]).to(tl.int32), 1)
        high = tl.where(count >= k, high, t - 1)
        least = tl.where(count >= k, t, least)

    last = tl.zeros([ROWS], tl.int32) + V  # of the key *least* the ids up to here are kept
    share = tl.load(TOP_P + row * p_r, mask=here, other=1.0)
    cut = share < 1.0
    if tl.max(cut.to(tl.int32), 0) > 0:
        total = tl.zeros([ROWS], tl.float32)
        for start in range(0, V, BLOCK):
            x, key, token = tile_of(X, KEEP, x_v, mask_v, V, here, start, BLOCK)
            w = weight_of(x, m, temperature)
            total += tl.sum(tl.where(key >= least[:, None], w, 0.0), 1)
        needed = share * total
        low = least
        high = tl.where(cut, top, least)
        while tl.max((low < high).to(tl.int32), 0) > 0:
            t = (low | high) - ((low ^ high) >> 1)
            mass = tl.zeros([ROWS], tl.float32)
            for start in range(0, V, BLOCK):
                x, key, token = tile_of(X, KEEP, x_v, mask_v, V, here, start, BLOCK)
                w = weight_of(x, m, temperature)
                mass += tl.sum(tl.where(key >= t[:, None], w, 0.0), 1)
            high = tl.where(mass >= needed, high, t - 1)
            low = tl.where(mass >= needed, t, low)
        least = low

        above = tl.zeros([ROWS], tl.float32)
        for start in range(0, V, BLOCK):
            x, key, token = tile_of(X, KEEP, x_v, mask_v, V, here, start, BLOCK)
            w = weight_of(x, m, temperature)
            above += tl.sum(tl.where(key > least[:, None], w, 0.0), 1)
        seen = tl.zeros([ROWS], tl.int32)  # tokens of the key *least* so far
        reached = tl.full([ROWS], -1, tl.int32)
        for start in range(0, V, BLOCK):
            x, key, token = tile_of(X, KEEP, x_v, mask_v, V, here, start, BLOCK)
            w = weight_of(x, m, temperature)
            ties = (key == least[:, None]).to(tl.int32)
            n = seen[:, None] + tl.cumsum(ties, 1) - ties
            stays = above[:, None] + n.to(tl.float32) * w < needed[:, None]
            reached = tl.maximum(reached, tl.max(tl.where((ties > 0) & stays, token, -1), 1))
            seen += tl.sum(ties, 1)
        last = tl.where(cut, reached, last)

    ratio = tl.load(MIN_P + row * m_r, mask=here, other=0.0)
    l = tl.zeros([ROWS], tl.float32)  # noqa: E741
    for start in range(0, V, BLOCK):
        x, key, token = tile_of(X, KEEP, x_v, mask_v, V, here, start, BLOCK)
        w = kept_weight(x, key, token, m, temperature, least, last, ratio)
        l += tl.sum(w, 1)  # noqa: E741
    l = tl.where(here, l, 1.0)  # noqa: E741
    for start in range(0, V, BLOCK):
        x, key, token = tile_of(X, KEEP, x_v, mask_v, V, here, start, BLOCK)
        w = kept_weight(x, key, token, m, temperature, least, last, ratio)
        out_at = OUT + row[:, None] * V + token
        tl.store(out_at, w / l[:, None], mask=here[:, None] & (token < V))


@triton.jit
def kept_weight(x, key, token, m, temperature, least, last, ratio):  # type: ignore[no-untyped-def]
    """Weights [ROWS, BLOCK] of the tokens that all maps keep, 0 elsewhere."""
    w = weight_of(x, m, temperature)
    kept = (key > least[:, None]) | ((key == least[:, None]) & (token <= last[:, None]))
    return tl.where(kept & (w >= ratio[:, None]), w, 0.0)


def law(call: LawCall) -> Tensor:
    """p [R, V] of a well-formed call on a GPU or, interpreted, on the CPU."""
    logits, mask = call.logits, call.mask
    R, V = logits.shape
    out = torch.empty((R, V), dtype=torch.float32, device=logits.device)
    rowwise = tuple(
        logits.new_full((1,), absent, dtype=dtype).expand(R) if x is None else x
        for x, absent, dtype in (
            (call.temperature, 1.0, torch.float32),
            (call.top_k, V, torch.int32),
            (call.top_p, 1.0, torch.float32),
            (call.min_p, 0.0, torch.float32),
        )
    )
    block = SMALL_BLOCK if V <= SMALL_BLOCK else BLOCK
    rows = TILE // block
    if interpreting():
        rows = min(TILE_INTERPRETED // block, triton.next_power_of_2(R))
    if R:
        with launching(logits):
            law_kernel[(triton.cdiv(R, rows),)](
                logits, mask, *rowwise, out, R, V,
                *logits.stride(), *((0, 0) if mask is None else mask.stride()),
                *(x.stride(0) for x in rowwise),
                ROWS=rows, BLOCK=block, **OPTIONS,
            )  # fmt: skip
    return out


@dataclass(eq=False)
class TritonLaw:
    """The kernel above, on a GPU or in Triton's interpreter."""

    name: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]

    def law(self, call: LawCall) -> Tensor:
        """p [R, V], fp32; malformed calls raise ValueError."""
        check_law(call)
        refuse_law(self.name, self.capabilities, call)
        refuse_elsewhere(self.name, call.logits.device)
        return law(call)


_CAPABILITIES = Capabilities(
    devices=("cuda", "interpreter"),
    dtypes=("fp32", "bf16", "fp16"),
    supports=frozenset(LOGITS),
    maps=Maps(),
    tiles=(BLOCK,),
    conventions=Conventions(
        masked_content="never_read", deterministic=True, batch_invariant=True, validates_calls=True
    ),
)
_FP32 = Numerics(out="fp32", exp_u=2.0**-22, div_u=2.0**-22)
_NUMERICS: Mapping[str, Numerics] = {"fp32": _FP32, "bf16": _FP32, "fp16": _FP32}

adapter = TritonLaw("triton_law", _CAPABILITIES, _NUMERICS)


def compile_specs() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(kernel, signature, constexprs, options) of what is compiled without a device."""
    types = dict(zip(ROWWISE, ("*fp32", "*i32", "*fp32", "*fp32"), strict=True))
    for dtype, block, absent in (
        ("fp16", SMALL_BLOCK, OPTIONAL),
        ("fp32", BLOCK, OPTIONAL),
        ("bf16", BLOCK, ()),
    ):
        signature = {"LOGITS": f"*{dtype}", "OUT": "*fp32", "MASK": "*i1", **types}
        signature |= dict.fromkeys((*SIZES, *STRIDES), "i32")
        constexprs = {"ROWS": TILE // block, "BLOCK": block} | dict.fromkeys(absent)
        signature |= dict.fromkeys(constexprs, "constexpr")
        yield law_kernel, signature, constexprs, dict(OPTIONS)
