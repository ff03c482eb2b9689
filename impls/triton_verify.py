"""Speculative verification in Triton: a chain of acceptance tests, then one draw for a request.

Of a request with the drafts x_0 ... x_{k-1}, drawn from the laws q_i, and the target's laws p_i:

    x_i is accepted          while u_i q_i(x_i) < p_i(x_i), or x_i is the greedy choice of p_i
    after a first rejection  y ~ [p_i - q_i]+, from p_i itself where no draft was made
    after k acceptances      y ~ p_k
    y                        the first token with C_y > v C, C_y the sum of the weights up to y

u and v are uniform in [0, 1): given, or Philox of the request's seed at 2 i and 2 i + 1. A greedy
request takes the first maximum for y. q_i of a draft that was certain is 1 at x_i. Nothing follows
a stop token, or the last token of the budget. Where p_i = q_i up to rounding a draft can be
rejected with [p_i - q_i]+ = 0: then y ~ p_i.

Shapes: R requests, k <= K drafts each, N in all; drafts [N], draft i of request r at
n = offsets[r] + i; p [N + R, V], the row for it at n + r; q [N, V]; accept [N]; draw [N + R];
seeds, greedy, budget [R]; stop [R, S]; tokens [R, K + 1]; accepted [R]. ROWS requests are one
program, TILE tokens one step. Products are fp32. Weights and their sums are fp64, so the last sum
of the second pass exceeds v C even at v = 1 - 2^-24 and every draw finds its token.
Sources: Leviathan et al. 2023, algorithm 1; Salmon et al. 2011 (Philox4x32-10).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from kernelassay.impls.contract import VERIFYING, Capabilities, Conventions
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere
from kernelassay.impls.verification import Sampling, VerifyCall, VerifyResult
from kernelassay.impls.verify_calls import check_verify, refuse_verify

TILE = 1024
SMALL_TILE = 32  # not interpreted, the one other tile: each size is a compilation
BLOCK = 2048  # weights a program holds: a few fp64 blocks of them fit the registers of 4 warps
GPU_ROWS = 128  # a thread each
INTERPRETED_BLOCK = 1 << 17  # the interpreter's cost is by operation, not by weight
OPTIONS: Mapping[str, Any] = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}

POINTERS = ("DRAFTS", "OFFSETS", "P", "GREEDY", "STOP", "BUDGET", "TOKENS", "ACCEPTED")
OPTIONAL = ("Q", "ACCEPT", "DRAW", "SEEDS")
SIZES = ("R", "K", "V", "S", "placeholder")
STRIDES = ("p_n", "p_v", "q_n", "q_v")

mend()


@triton.jit
def choices(P, rows, p_n, p_v, wanted, V, ROWS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first maximum of P[rows] [ROWS] where it is wanted; elsewhere nothing is read."""
    best = tl.full([ROWS], float("-inf"), tl.float32)
    token = tl.zeros([ROWS], tl.int32)
    end = tl.where(tl.max(wanted.to(tl.int32), 0) > 0, V, 0)
    for start in range(0, end, TILE):
        v = start + tl.arange(0, TILE)
        here = wanted[:, None] & (v < V)[None, :]
        p_at = P + rows[:, None] * p_n + v.to(tl.int64)[None, :] * p_v
        p = tl.load(p_at, mask=here, other=float("-inf")).to(tl.float32)  # [ROWS, TILE]
        largest = tl.max(p, 1)
        first = tl.min(tl.where(p == largest[:, None], v[None, :], V), 1)
        token = tl.where(largest > best, first, token)
        best = tl.maximum(best, largest)
    return token


@triton.jit
def weights(P, Q, p_rows, q_rows, p_n, p_v, q_n, q_v, x, v, here, drawn_from):  # type: ignore[no-untyped-def]
    """p and [p - q]+ [ROWS, TILE], fp64; of q only the rows *drawn_from* are read."""
    v64 = v.to(tl.int64)[None, :]
    p = tl.load(P + p_rows[:, None] * p_n + v64 * p_v, mask=here, other=0.0)
    p = p.to(tl.float32).to(tl.float64)
    if Q is not None:
        q_at = Q + q_rows[:, None] * q_n + v64 * q_v
        q = tl.load(q_at, mask=here & drawn_from[:, None], other=0.0)
        q = q.to(tl.float32).to(tl.float64)
        excess = tl.where(p > q, p - q, 0.0)
    else:
        excess = tl.where(v[None, :] == x[:, None], 0.0, p)
    return p, excess


# Nothing is specialised on sizes, strides and addresses, nor on whether requests are greedy, have
# budgets or stop tokens. The kind of noise, whether drafts have laws, a small or a large
# vocabulary and the dtype make a kernel.
@triton.jit(
    do_not_specialize=(*SIZES, *STRIDES),
    do_not_specialize_on_alignment=(*POINTERS, *OPTIONAL),
)
def verify_kernel(  # type: ignore[no-untyped-def]
    DRAFTS, OFFSETS, P, Q, ACCEPT, DRAW, SEEDS, GREEDY, STOP, BUDGET, TOKENS, ACCEPTED,
    R, K, V, S, placeholder,
    p_n: tl.int64, p_v: tl.int64, q_n: tl.int64, q_v: tl.int64,  # 64 bits: N x V may be large
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = r < R
    n_0 = tl.load(OFFSETS + r, mask=here, other=0)
    k = tl.load(OFFSETS + r + 1, mask=here, other=0) - n_0
    n_0 = n_0.to(tl.int64)
    limit = tl.minimum(k + 1, tl.load(BUDGET + r, mask=here, other=0))
    greedy = tl.load(GREEDY + r, mask=here, other=0) != 0
    seed = r
    if SEEDS is not None:
        seed = tl.load(SEEDS + r, mask=here, other=0)

    a = tl.zeros([ROWS], tl.int32)  # drafts accepted
    on = here  # all drafts so far are accepted
    stopped = r < 0  # one of them is a stop token
    tests = tl.minimum(k, limit)
    for i in range(tl.max(tests, 0)):
        on = on & (i < tests)
        n = n_0 + i
        x = tl.load(DRAFTS + n, mask=on, other=-1)
        made = on & (x >= 0)
        p_x = tl.load(P + (n + r) * p_n + x.to(tl.int64) * p_v, mask=made, other=0.0)
        q_x = tl.full([ROWS], 1.0, tl.float32)
        if Q is not None:
            q_at = Q + n * q_n + x.to(tl.int64) * q_v
            q_x = tl.load(q_at, mask=made & ~greedy, other=0.0).to(tl.float32)
        if SEEDS is not None:
            u = tl.rand(seed, tl.zeros([ROWS], tl.int32) + 2 * i)
        else:
            u = tl.load(ACCEPT + n, mask=on, other=0.0)
        accepted = made & (u * q_x < p_x.to(tl.float32))
        choice = choices(P, n + r, p_n, p_v, made & greedy, V, ROWS, TILE)
        accepted = tl.where(greedy, made & (x == choice), accepted)
        for s in range(S):
            stop = tl.load(STOP + r * S + s, mask=accepted, other=-1)
            stopped = stopped | (accepted & (x == stop))
        a = a + accepted.to(tl.int32)
        on = accepted & ~stopped

    draws = here & ~stopped & (a < limit)
    n = n_0 + a
    row = n + r
    x = tl.load(DRAFTS + n, mask=draws & (a < k), other=-1)
    rejected = draws & (x >= 0)
    if SEEDS is not None:
        u = tl.rand(seed, 2 * a + 1)
    else:
        u = tl.load(DRAW + row, mask=draws, other=0.0)
    sampled = draws & ~greedy
    total_p = tl.zeros([ROWS], tl.float64)
    total = tl.zeros([ROWS], tl.float64)
    end = tl.where(tl.max(sampled.to(tl.int32), 0) > 0, V, 0)
    for start in range(0, end, TILE):
        v = start + tl.arange(0, TILE)
        used = sampled[:, None] & (v < V)[None, :]
        p, excess = weights(P, Q, row, n, p_n, p_v, q_n, q_v, x, v, used, rejected)
        total_p += tl.sum(p, 1)
        total += tl.sum(excess, 1)
    rejected = rejected & (total > 0.0)
    threshold = u.to(tl.float64) * tl.where(rejected, total, total_p)

    y = tl.zeros([ROWS], tl.int32) + V
    before = tl.zeros([ROWS], tl.float64)  # sum of the weights of earlier tiles
    for start in range(0, end, TILE):
        v = start + tl.arange(0, TILE)
        used = sampled[:, None] & (v < V)[None, :]
        p, excess = weights(P, Q, row, n, p_n, p_v, q_n, q_v, x, v, used, rejected)
        w = tl.where(rejected[:, None], excess, p)
        above = before[:, None] + tl.cumsum(w, 1) > threshold[:, None]
        # A parallel sum need not stand still where a weight is 0.
        y = tl.minimum(y, tl.min(tl.where(above & (w > 0.0), v[None, :], V), 1))
        before += tl.sum(w, 1)
    choice = choices(P, row, p_n, p_v, draws & greedy, V, ROWS, TILE)
    y = tl.where(greedy, choice, y)
    y = tl.where(draws, y, placeholder)

    for i in range(K + 1):
        x = tl.load(DRAFTS + n_0 + i, mask=here & (i < a), other=0)
        token = tl.where(i < a, x, tl.where(i == a, y, placeholder))
        tl.store(TOKENS + r * (K + 1) + i, token, mask=here)
    tl.store(ACCEPTED + r, a, mask=here)


def blocks(V: int, R: int, interpreted: bool) -> dict[str, int]:
    """ROWS and TILE: a small vocabulary is one step; a program has as many requests as fit."""
    if interpreted:
        tile = min(triton.next_power_of_2(V), TILE)
        return {"ROWS": min(INTERPRETED_BLOCK // tile, triton.next_power_of_2(R)), "TILE": tile}
    tile = min(SMALL_TILE, TILE) if V <= SMALL_TILE else TILE
    return {"ROWS": min(BLOCK // tile, GPU_ROWS), "TILE": tile}


def verified(call: VerifyCall, placeholder: int) -> VerifyResult:
    """The tokens of a round and how many of them are drafts."""
    R, K, V, p, q = call.requests, call.most, call.p.shape[-1], call.p, call.q
    like = call.drafts
    tokens = torch.empty((R, K + 1), dtype=like.dtype, device=like.device)
    accepted = torch.empty((R,), dtype=like.dtype, device=like.device)
    noise = (call.accept, call.draw, call.seeds)
    accept, draw, seeds = (None if x is None else x.contiguous() for x in noise)
    greedy, stop, budget = (
        like.new_full(shape, absent, dtype=dtype) if x is None else x.contiguous()
        for x, shape, absent, dtype in (
            (call.greedy, (R,), False, torch.bool),
            (call.stop, (R, 0), -1, like.dtype),
            (call.budget, (R,), K + 1, torch.int32),
        )
    )
    if R:
        tuned = blocks(V, R, p.device.type == "cpu")
        with launching(p):
            verify_kernel[(triton.cdiv(R, tuned["ROWS"]),)](
                like.contiguous(), call.offsets.contiguous(), p, q, accept, draw, seeds, greedy,
                stop, budget, tokens, accepted,
                R, K, V, stop.shape[1], placeholder,
                *p.stride(), *((0, 0) if q is None else q.stride()), **tuned, **OPTIONS,
            )  # fmt: skip
    return VerifyResult(tokens, accepted)


@dataclass(eq=False)
class TritonVerify:
    """The kernel above with one kind of noise, on a GPU or in Triton's interpreter."""

    name: str
    capabilities: Capabilities

    def verify(self, call: VerifyCall) -> VerifyResult:
        """tokens [R, K + 1] and accepted [R]; malformed calls raise ValueError."""
        check_verify(call, self.capabilities)
        refuse_verify(self.name, self.capabilities, call)
        refuse_elsewhere(self.name, call.p.device)
        assert self.capabilities.sampling is not None
        return verified(call, self.capabilities.sampling.placeholder)


_INJECTED = Capabilities(
    devices=("cuda", "interpreter"),
    dtypes=("fp32", "bf16", "fp16"),
    tiles=(SMALL_TILE, TILE),
    max_vocabulary=1 << 18,
    work_limit={"interpreter": 16},
    supports=frozenset(VERIFYING),
    sampling=Sampling(noise="injected", rule="u*q<p", bad_laws="refused"),
    conventions=Conventions(deterministic=True, validates_calls=True),
)
_SEEDED = replace(_INJECTED, sampling=Sampling(noise="seeded", bad_laws="refused"))

adapter = TritonVerify("triton_verify", _INJECTED)
seeded = TritonVerify("triton_verify_seeded", _SEEDED)


def compile_specs() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(kernel, signature, constexprs, options) of what is compiled without a device."""
    kinds: tuple[tuple[str, int, tuple[str, ...]], ...] = (
        ("fp32", 152_064, ("Q", "ACCEPT", "DRAW")),
        ("bf16", 8, ("Q", "SEEDS")),
        ("fp16", 32_000, ("SEEDS",)),
    )
    for dtype, V, present in kinds:
        signature = dict.fromkeys(POINTERS, "*i32")
        signature |= {"P": f"*{dtype}", "Q": f"*{dtype}", "ACCEPT": "*fp32", "DRAW": "*fp32"}
        signature |= {"SEEDS": "*i64", "GREEDY": "*i1"}
        signature |= dict.fromkeys(SIZES, "i32") | dict.fromkeys(STRIDES, "i64")
        constexprs: dict[str, Any] = dict(blocks(V, 1 << 12, interpreted=False))
        constexprs |= dict.fromkeys({*OPTIONAL} - {*present})
        signature |= dict.fromkeys(constexprs, "constexpr")
        yield verify_kernel, signature, constexprs, dict(OPTIONS)
