"""Merges of partial attention results under the laws: an adapter is ten lines.

    kernelassay run --kernel examples/merge_adapter.py:right      # passes
    kernelassay run --kernel examples/merge_adapter.py:faulty     # two faults that shipped

A merge is given n partial results of the same rows, stacked: outs [n, B, H, T, Dv] and their
log-sum-exps, lses [n, B, H, T]. A part that saw no key has an LSE of -inf.
"""

import torch
from torch import Tensor

from kernelassay import Capabilities, Unsupported

Result = tuple[Tensor, Tensor]
"""out [B, H, T, Dv] and lse [B, H, T]."""


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """A kernel of one's own that takes two results."""
    lse = torch.logaddexp(lse_a, lse_b)
    safe = torch.where(lse == -torch.inf, 0.0, lse)  # -inf - -inf is NaN
    a, b = torch.exp(lse_a - safe), torch.exp(lse_b - safe)
    return (a[..., None] * out_a + b[..., None] * out_b).to(out_a.dtype), lse


def merge_states(states: list[Result]) -> Result:
    """A kernel of one's own that takes a list of results."""
    top = torch.stack([lse for _, lse in states]).amax(0)
    safe = torch.where(top == -torch.inf, 0.0, top)
    weights = [torch.exp(lse - safe) for _, lse in states]
    total = sum(weights)
    out = sum(w[..., None] * out for w, (out, _) in zip(weights, states, strict=True))
    out = out / torch.where(total == 0, 1.0, total)[..., None]
    return out.to(states[0][0].dtype), safe + torch.log(total)


class Pair:
    """merge(out_a, lse_a, out_b, lse_b) for the suite."""

    capabilities = Capabilities(
        devices=("cpu", "cuda"), dtypes=("fp32", "fp16"), head_sizes=(32, 64),
        supports={"merge"}, declines={"merge.many"},
    )  # fmt: skip

    def __init__(self, name, kernel):
        self.name, self.kernel = name, kernel

    def merge(self, call):
        """out and lse of two parts."""
        if len(call.outs) != 2:
            raise Unsupported("two parts, no more and no fewer")
        return self.kernel(call.outs[0], call.lses[0], call.outs[1], call.lses[1])


class Several:
    """merge_states([(out, lse), ...]) for the suite."""

    capabilities = Capabilities(
        devices=("cpu", "cuda"), dtypes=("fp32", "fp16"), head_sizes=(32, 64),
        supports={"merge", "merge.many"},
    )  # fmt: skip

    def __init__(self, name, kernel):
        self.name, self.kernel = name, kernel

    def merge(self, call):
        """out and lse of all parts."""
        return self.kernel(list(zip(call.outs, call.lses, strict=True)))


def merge_without_guard(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """NaN where both parts are empty: exp(-inf - -inf). vllm-project/vllm#27491."""
    top = torch.maximum(lse_a, lse_b)
    a, b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    out = (a[..., None] * out_a + b[..., None] * out_b) / (a + b)[..., None]
    return out.to(out_a.dtype), top + torch.log(a + b)


def merge_states_seeded(states: list[Result]) -> Result:
    """What lies below the seed of the maximum is lost. flashinfer-ai/flashinfer#4267.

    Two parts with an LSE of -1e5 give out = 0 and lse = -5e4; so do two empty ones.
    """
    top = torch.full_like(states[0][1], -5e4)
    total, numerator = torch.ones_like(top), torch.zeros_like(states[0][0], dtype=torch.float32)
    for out, lse in states:
        new = torch.maximum(top, lse)
        old, weight = torch.exp(top - new), torch.exp(lse - new)
        total = total * old + weight
        numerator = numerator * old[..., None] + weight[..., None] * out
        top = new
    return (numerator / total[..., None]).to(states[0][0].dtype), top + torch.log(total)


right = [Pair("my_merge", merge), Several("my_merge_states", merge_states)]
faulty = [
    Pair("merge_without_guard", merge_without_guard),
    Several("merge_states_seeded", merge_states_seeded),
]
