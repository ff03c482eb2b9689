"""vLLM 0.33.0: top-k keeps another number of tokens where a row has a logit of -1e9.

The threshold is looked for in 18 steps between two ends that the row's mean and deviation, or its
least logit, give; each step leaves two thirds. A finite logit that stands for "never", -1e9 or
torch.finfo(torch.float32).min, makes the ends so far apart that 18 steps do not tell tokens from
each other. With -inf the count is right. Needs vllm and a GPU.
"""

import torch
from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton

place = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
LOGITS = 2.5 * torch.randn(2, 32_000, device=place)
for never in (-torch.inf, -1e4, -1e9, torch.finfo(torch.float32).min):
    x = LOGITS.clone()
    x[:, 7] = never
    k = torch.full((2,), 50, dtype=torch.int32, device=place)
    kept = (apply_top_k_top_p_triton(x, k, None) > -torch.inf).sum(1).tolist()
    print(f"one logit of {never:.3g}: top-k 50 keeps {kept[0]} and {kept[1]} tokens")
