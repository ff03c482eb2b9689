"""PyTorch's FlexAttention: its unfused form, and the kernel that torch.compile makes of it.

Who sees whom is a `mask_mod`, what is done to scores a `score_mod`. Outside torch.compile the
library computes whole score matrices; left alone it traces each such call anew, a second or more,
which its own debugging switch turns off. A row that sees no key gives 0 and an LSE of -inf.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as library

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Numerics,
    Unsupported,
)
from kernelassay.impls.torch_reference import q_positions

__all__ = ["compiled", "eager"]

# Sinks would need the LSE after the call. It takes no maximum over no keys, and without queries
# the LSE that was asked for is None.
NEVER = frozenset(("sink_logits", "no_keys", "no_queries"))
UNTRACED = (library, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
FP32 = torch.float32
MANY = {"recompile_limit": 10**6, "accumulated_recompile_limit": 10**6}


@cache
def _compiled() -> Any:
    return torch.compile(library.flex_attention, dynamic=True)


@dataclass(frozen=True)
class Flex:
    """flex_attention in one of its two forms."""

    name: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        if call.q.device.type not in self.capabilities.devices:
            raise Unsupported(f"{self.name}: it does not run on {call.q.device}")
        compiled = self.capabilities.compiled
        with torch._dynamo.config.patch(MANY) if compiled else patch.object(*UNTRACED):
            out, aux = (_compiled() if compiled else library.flex_attention)(
                call.q, call.k, call.v,
                score_mod=None if call.scoring.plain else _score_mod(call),
                block_mask=_block_mask(call),
                scale=call.scale,
                enable_gqa=call.q.shape[1] != call.k.shape[1],
                return_aux=library.AuxRequest(lse=True),
            )  # fmt: skip
        return AttendResult(out, aux.lse)


def _positions(call: AttendCall) -> tuple[Tensor, Tensor]:
    """The position of each query [B, Tq] and of each key [B, Tk]."""
    see, (B, _, Tk, _) = call.visibility, call.k.shape
    if see.k_positions is not None:
        return q_positions(call), see.k_positions
    return q_positions(call).expand(B, -1), torch.arange(Tk, device=call.q.device).expand(B, -1)


def _block_mask(call: AttendCall) -> Any:
    see, (B, H, Tq, _), Tk = call.visibility, call.q.shape, call.k.shape[2]
    (at_query, at_key), (left, right), sinks = _positions(call), see.window, see.sinks
    mods = []
    if see.causal != "none":
        mods.append(lambda b, h, i, j: at_key[b, j] <= at_query[b, i])
    if left is not None:
        mods.append(lambda b, h, i, j: (at_key[b, j] >= at_query[b, i] - left) | (j < sinks))
    if right is not None:
        mods.append(lambda b, h, i, j: at_key[b, j] <= at_query[b, i] + right)
    if (lengths := see.lengths) is not None:
        mods.append(lambda b, h, i, j: j < lengths[b])
    if see.mask is not None:
        mask = see.mask.expand(B, H, Tq, Tk)
        mods.append(lambda b, h, i, j: mask[b, h, i, j])
    if not mods:
        return None
    mod = library.and_masks(*mods)
    return library.create_block_mask(mod, B, H, Tq, Tk, device=call.q.device)


def _score_mod(call: AttendCall) -> Any:
    scoring, (at_query, at_key) = call.scoring, _positions(call)
    alibi, bias = scoring.alibi, scoring.bias
    # A tensor: a number that is captured cannot be compiled with dynamic shapes (torch 2.11).
    cap = None if scoring.softcap is None else call.q.new_tensor(scoring.softcap, dtype=FP32)
    if bias is not None:
        bias = bias.expand(*call.q.shape[:3], call.k.shape[2])

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if alibi is not None:
            score = score - alibi[h] * (at_query[b, i] - at_key[b, j]).abs()
        return score if bias is None else score + bias[b, h, i, j]

    return score_mod


_CAPABILITIES = Capabilities(
    devices=("cpu", "cuda"),
    dtypes=("fp16", "bf16", "fp32"),
    head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
    layouts=("BHTD", "BTHD"),
    supports=frozenset(FEATURES) - NEVER,
    declines=NEVER,
)

# Scores, softmax and LSE in fp32; P, divided by its sum, is cast before it meets v.
_UNFUSED = Numerics(l_from_p=False, p_normalised=True, kstep=1)
_UNFUSED_FP32 = replace(_UNFUSED, acc_u=2.0**-24, acc_biased=False)

eager = Flex(
    name="flex_eager",
    capabilities=_CAPABILITIES,
    numerics={"fp16": _UNFUSED, "bf16": _UNFUSED, "fp32": _UNFUSED_FP32},
)

# Each head size, number of heads and set of features is a compilation: a few seconds.
compiled = Flex(
    name="flex_compiled",
    capabilities=replace(
        _CAPABILITIES,
        devices=("cuda",),
        dtypes=("fp16", "bf16"),
        head_sizes=(64, 128),
        tiles=(64, 128),
        max_tokens=1024,
        compiled=True,
    ),
    numerics=dict.fromkeys(("fp16", "bf16"), Numerics(l_from_p=False)),
)
