"""Partial attention results merged in plain PyTorch, each rule on its own line.

Part i of a row has seen some keys, with scores z and values v, and no two parts the same key:

    m_i = max_j z_j     l_i = sum_j exp(z_j - m_i)     u_i = sum_j exp(z_j - m_i) v_j

Of the row (Milakov and Gimelshein 2018):

    m = max_i m_i       l = sum_i exp(m_i - m) l_i     u = sum_i exp(m_i - m) u_i
    out = u / l         lse = m + log l

A part given as (out, lse) is the state m = lse, l = 1, u = out. A part without keys has m = -inf,
l = 0, and what its u holds counts for nothing. A row without keys has out = 0, lse = -inf. Where
LSEs are in base 2, exp is 2**x and log is log2.

Shapes: outs [n, B, H, T, Dv]; lses and sums [n, B, H, T], fp32; out [B, H, T, Dv]; lse [B, H, T].
Sums are fp32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelassay.impls.contract import Capabilities, Conventions, MergeCall, Numerics
from kernelassay.impls.merge_calls import check_merge, refuse_merge

State = tuple[Tensor, Tensor, Tensor]
"""u, m and l."""


def merge_states(u: Tensor, m: Tensor, l: Tensor, base: str = "e") -> State:  # noqa: E741
    """States [n, ...] as one: u [..., Dv], m and l [...], in fp32."""
    exp = torch.exp if base == "e" else torch.exp2
    empty = l == 0  # [n, B, H, T]
    m = torch.where(empty, -math.inf, m)
    top = m.amax(dim=0)
    safe = torch.where(top == -math.inf, 0.0, top)  # -inf - -inf would be NaN
    total = torch.zeros_like(top)
    merged = torch.zeros_like(u[0], dtype=torch.float32)
    for i in range(len(m)):
        part = u[i].float()
        part = torch.where(empty[i][..., None], 0.0, part)  # it may hold NaN: 0 x NaN
        weight = exp(m[i] - safe)
        total = total + weight * l[i]
        merged = merged + weight[..., None] * part
    return merged, top, total


def finish(u: Tensor, m: Tensor, l: Tensor, base: str = "e") -> tuple[Tensor, Tensor]:  # noqa: E741
    """out and lse of a state, in fp32."""
    log = torch.log if base == "e" else torch.log2
    l_safe = torch.where(l == 0, 1.0, l)
    out = u / l_safe[..., None]
    lse = m + log(l_safe)
    return out, lse


def merge_outputs(outs: Tensor, lses: Tensor, base: str = "e") -> tuple[Tensor, Tensor]:
    """Outputs [n, ..., Dv] with LSEs [n, ...] as one: out of their dtype, and lse."""
    ones = torch.where(lses == -math.inf, 0.0, 1.0)
    u, m, l = merge_states(outs, lses, ones, base)  # noqa: E741
    out, lse = finish(u, m, l, base)
    return out.to(outs.dtype), lse


@dataclass(eq=False)
class TorchMerge:
    """The functions above."""

    name: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]

    def merge(self, call: MergeCall) -> tuple[Tensor, ...]:
        """out and lse, or u, m and l; malformed calls raise ValueError."""
        check_merge(call, self.capabilities.state)
        refuse_merge(self.name, self.capabilities, call)
        if call.sums is not None:
            return merge_states(call.outs, call.lses, call.sums)
        return merge_outputs(call.outs, call.lses, self.capabilities.conventions.lse_base)


_CONVENTIONS = Conventions(
    empty_row="zeros",
    empty_lse="-inf",
    lse_base="e",
    masked_content="nan_safe",
    deterministic=True,
    validates_calls=True,
)
_OUTPUTS = Capabilities(
    devices=("cpu", "cuda"),
    dtypes=("fp16", "bf16", "fp32"),
    head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
    layouts=("BHTD", "BTHD", "BTNHD"),
    supports=frozenset(("merge", "merge.many")),
    conventions=_CONVENTIONS,
)
_STATES = replace(_OUTPUTS, dtypes=("fp32",), state="mlu")
_PAIRS = replace(_OUTPUTS, supports=frozenset(("merge",)), declines=frozenset(("merge.many",)))
_BASE2 = replace(_OUTPUTS, conventions=replace(_CONVENTIONS, lse_base="2"))

# Both devices divide exactly rounded; a GPU's expf may be off by two units in the last place.
_FP32 = Numerics(out="input", lse="fp32", exp_u=2.0**-22, div_u=2.0**-24)
_NUMERICS: Mapping[str, Numerics] = {"fp16": _FP32, "bf16": _FP32, "fp32": _FP32}
_OF_STATES: Mapping[str, Numerics] = {"fp32": replace(_FP32, states=True)}

adapter = TorchMerge("torch_merge", _OUTPUTS, _NUMERICS)
states = TorchMerge("torch_merge_states", _STATES, _OF_STATES)
pairs = TorchMerge("torch_merge_pairs", _PAIRS, _NUMERICS)
base2 = TorchMerge("torch_merge_base2", _BASE2, _NUMERICS)
