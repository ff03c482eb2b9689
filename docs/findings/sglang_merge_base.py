"""SGLang 0.5.23: LSEs of base 2 are merged as natural ones; two empty parts give NaN.

FlashInfer's LSEs are in base 2. SGLang's FlashInfer backend merges its two parts with FlashInfer's
merge_state, and from 65 query heads of size 128 on with its own merge_state_triton, whose LSEs are
natural (`_safe_merge_state`). Needs sglang's sources and triton; without a GPU TRITON_INTERPRET=1.
"""

import math

import torch
from sglang.kernels.ops.attention.merge_state import merge_state_triton

place = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
H, D, KEYS = 96, 128, 64
q = torch.randn(H, D, device=place)
k, v = torch.randn(2, 2 * KEYS, H, D, device=place).unbind(0)
scores = torch.einsum("hd,khd->hk", q, k) / math.sqrt(D)
whole = torch.einsum("hk,khd->hd", scores.softmax(-1), v)


def part(keys: slice, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """out [1, H, D] and LSE [1, H] over some of the keys."""
    s = scores[:, keys]
    out = torch.einsum("hk,khd->hd", s.softmax(-1), v[keys])
    return out[None], (s.logsumexp(-1) / math.log(base))[None]


for name, base in (("e", math.e), ("2, as FlashInfer's", 2.0)):
    first, second = part(slice(0, KEYS // 4), base), part(slice(KEYS // 4, None), base)
    out, _ = merge_state_triton(*first, *second)
    off = (out[0] - whole).abs().max().item()
    print(f"LSEs of base {name}: off by {off:.2e}, values up to {whole.abs().max():.2f}")

ones = torch.ones(1, 1, D, device=place)
empty = torch.full((1, 1), -math.inf, device=place)
out, lse = merge_state_triton(ones, empty, ones, empty)
print(f"two empty parts: out {out[0, 0, 0].item()}, LSE {lse.item()}; right are 0 and -inf")
