"""ONNX Runtime's GroupQueryAttention (com.microsoft, version 1) on the CPU.

Queries are the last tokens of the keys: all keys before them are given as the cache.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
)
from kernelassay.impls.onnx_models import additive, flat, run

__all__ = ["GroupQueryAttention", "adapter"]


@dataclass(frozen=True)
class GroupQueryAttention:
    """The operator: q and the new k, v as [B, Tq, H D], the cache as [B, Hkv, Tk - Tq, D]."""

    name: str
    capabilities: Capabilities
    numerics: Numerics
    needs: tuple[str, ...] = ("onnx", "onnxruntime")

    def attend(self, call: AttendCall) -> AttendResult:
        """out of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        (B, Hq, Tq, D), Tk = call.q.shape, call.k.shape[2]
        out = torch.empty(B, Tq, Hq * D, dtype=call.q.dtype)
        if B > 1 and 1 < Tq < Tk and call.visibility.causal == "none":
            for b in range(B):
                self.answer(one(call, b), out[b : b + 1])
        else:
            self.answer(call, out)
        return AttendResult(out.view(B, Tq, Hq, D).transpose(1, 2))

    def answer(self, call: AttendCall, out: Tensor) -> None:
        """Write *out*; over a cache, several requests of several queries must be causal."""
        see, (B, Hq, Tq, _), (Hkv, Tk) = call.visibility, call.q.shape, call.k.shape[1:3]
        causal, (left, right), keep, past = see.causal != "none", see.window, see.mask, Tk - Tq
        if not causal and see.window != (None, None):
            ahead = torch.arange(Tk) - torch.arange(Tq)[:, None] - past
            near = (ahead >= (-Tk if left is None else -left)) & (
                ahead <= (Tk if right is None else right)
            )
            keep = near if keep is None else near & keep
        sink = call.scoring.sink_logits
        run(
            "com.microsoft::GroupQueryAttention",
            [
                *(flat(x) for x in (call.q, call.k[:, :, past:], call.v[:, :, past:])),
                *((x[:, :, :past] if past else None) for x in (call.k, call.v)),
                torch.full((B,), Tk - 1, dtype=torch.int32),
                torch.tensor(Tk, dtype=torch.int32),
                *(None, None, None),  # rotary embeddings, positions for them
                additive(call, keep),
                None if sink is None else sink.to(call.q.dtype),
                *(None, None, None, None),  # quantised caches, norms of q and k
                torch.full((B,), Tq, dtype=torch.int32) if causal and past and B > 1 else None,
            ],
            out,
            outputs=3,
            num_heads=Hq,
            kv_num_heads=Hkv,
            scale=call.scale,
            softcap=call.scoring.softcap,
            causal=int(causal),
            local_window_size=left + 1 if causal and left is not None else None,
        )


def one(call: AttendCall, b: int) -> AttendCall:
    """Request *b* of *call* alone."""

    def own(x: Tensor | None) -> Tensor | None:
        return x if x is None or x.ndim < 4 or x.shape[0] == 1 else x[b : b + 1]

    return replace(
        call,
        q=call.q[b : b + 1],
        k=call.k[b : b + 1],
        v=call.v[b : b + 1],
        visibility=replace(call.visibility, mask=own(call.visibility.mask)),
        scoring=replace(call.scoring, bias=own(call.scoring.bias)),
    )


DECLINES = frozenset((
    "lse", "causal.top_left", "causal.positions", "more_queries", "no_keys", "no_queries",
    "value_size", "lengths", "sink_tokens", "alibi",
))  # fmt: skip
"""Lengths: the operator takes none below Tq, and so none of 0."""

adapter = GroupQueryAttention(
    name="ort_group_query",
    capabilities=Capabilities(
        devices=("cpu",),
        dtypes=("fp16", "fp32"),
        head_sizes=(8, 16, 32, 64, 80, 128, 256),
        layouts=("BTHD",),
        conventions=Conventions(empty_row="nan", deterministic=True),
        supports=frozenset(FEATURES) - DECLINES,
        declines=DECLINES,
    ),
    # fp32 with FMA throughout, for fp16 inputs too; MLAS's exp and tanh were measured to be within
    # 2**-23.
    numerics=Numerics(
        p="fp32",
        l_from_p=False,
        acc_u=2.0**-24,
        acc_biased=False,
        kstep=1,
        exp_u=2.0**-23,
        tanh_u=2.0**-23,
    ),
)
