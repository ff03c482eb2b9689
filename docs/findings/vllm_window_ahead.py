"""vLLM 0.33.0: a sliding window that looks ahead loses values, whose weights stay in the sum.

Without a causal mask a query sees the keys less than W away on both sides. The kernel sets values
to 0 that its first query row does not see; the rows after it, of a block of 16, see further. So do
rows within a range that sees itself whole (mm_prefix_range), which goes before the window. Needs
vllm; without a GPU TRITON_INTERPRET=1.
"""

import torch
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

place = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
T, D, PAGE, W = 64, 64, 16, 8
q, k, v = torch.randn(3, T, 1, D, device=place).half()
at = torch.arange(T, device=place)
back = at[:, None] - at  # how far key j lies behind query i


def off(causal: bool, keep: torch.Tensor, ranges: torch.Tensor | None = None) -> str:
    """The largest error of each row, and how many rows are off."""
    out, ends = torch.empty_like(q), torch.tensor([0, T], dtype=torch.int32, device=place)
    pages = torch.arange(T // PAGE, dtype=torch.int32, device=place)[None]
    unified_attention(
        q, *(x.view(-1, PAGE, 1, D) for x in (k, v)), out, ends, T, ends[1:], T, D**-0.5, causal,
        (W - 1, 0), pages, 0.0, None, None, None, mm_prefix_range=ranges,
    )  # fmt: skip
    scores = q[:, 0].double() @ k[:, 0].double().T * D**-0.5
    right = scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v[:, 0].double()
    error = (out[:, 0].double() - right).abs().amax(-1)
    return f"{error.max().item():.1e}; {int((error > 0.05).sum())} of {T} rows off by over 0.05"


near = (back >= 0) & (back < W)
image = torch.tensor([[[2, 40]]], dtype=torch.int32, device=place)
inside = (at >= 2) & (at <= 40)
print("causal:              ", off(True, near))
print("not causal:          ", off(False, back.abs() < W))
print("with a range of 39:  ", off(True, near | (inside[:, None] & inside), image))
