"""vLLM 0.33.0: with sinks, what ALiBi gives depends on how many new tokens a call has.

The bias of key j is slope (j - first new key), not -slope (i - j). Within a row of a causal call
the two differ by a constant, which the softmax does not feel; but the sink does not get it. So the
last of five new tokens has another output than the same token decoded alone, which is right. In
calls that are not causal, keys ahead of the query gain with their distance. Needs vllm; without a
GPU TRITON_INTERPRET=1.
"""

import torch
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

place = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
T, D, SLOPE = 32, 64, torch.tensor([0.5], device=place)
q, k, v = torch.randn(3, T, 1, D, device=place).half()
pages = torch.arange(2, dtype=torch.int32, device=place)[None]


def off(new: int, row: int, sinks: torch.Tensor | None, *, causal: bool = True) -> str:
    """How far query *row* of the last *new*, which are given together, is off."""
    out, ends = torch.empty_like(q[-new:]), torch.tensor([0, new, T], device=place).int()
    unified_attention(
        q[-new:], *(x.view(2, 16, 1, D) for x in (k, v)), out, ends[:2], new, ends[2:], T, D**-0.5,
        causal, (-1, -1), pages, 0.0, None, None, None, sinks=sinks, alibi_slopes=SLOPE,
    )  # fmt: skip
    scores = (k[:, 0].double() @ q[row, 0].double()) * D**-0.5
    scores -= SLOPE * (torch.arange(T, device=place) - row).abs()
    weights = scores if sinks is None else torch.cat([scores, sinks.double()])
    right = weights.softmax(0)[:T] @ v[:, 0].double()
    return f"off by {(out[row - T, 0].double() - right).abs().max().item():.1e}"


sink = torch.ones(1, device=place)
for new in (1, 5):
    print(f"last of {new} new: {off(new, T - 1, None)}; with a sink {off(new, T - 1, sink)}")
print(f"not causal, first of 5: {off(5, T - 5, None, causal=False)}")
