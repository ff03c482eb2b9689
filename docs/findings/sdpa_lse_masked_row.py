"""PyTorch: the log-sum-exp of a fully masked row is 0 where attention gives it, not -inf.

The operators behind scaled_dot_product_attention return it to whoever merges partial results: the
row then counts as a part with one key of score 0. CPU flash, and memory efficient on a GPU.
"""

import torch

torch.manual_seed(0)
q, k, v = (torch.randn(1, 1, n, 64) for n in (2, 8, 8))
mask = torch.zeros(1, 1, 2, 8)
mask[0, 0, 0] = float("-inf")  # query 0 sees nothing
aten = torch.ops.aten
print("torch", torch.__version__)
out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask)
print(
    "CPU flash: LSE", lse.flatten().tolist(), "  out of query 0:", float(out[0, 0, 0].abs().max())
)

rest = torch.randn(1, 1, 8, 64), torch.ones(1, 1, 8, 64)  # other keys, all of value 1
out2, lse2 = aten._scaled_dot_product_flash_attention_for_cpu(q, *rest, 0.0, False)
weights = torch.softmax(torch.stack([lse.view(2), lse2.view(2)]), 0)
merged = weights[0, 0] * out[0, 0, 0, 0] + weights[1, 0] * out2[0, 0, 0, 0]
print("merged with a part in which every value is 1:", float(merged), "  right: 1.0")

if torch.cuda.is_available():
    a, b, c = (x.cuda().half() for x in (q, k, v))
    _, lse, *_ = aten._scaled_dot_product_efficient_attention(a, b, c, mask.cuda().half(), True)
    print("memory efficient: LSE", lse[0, 0, :2].tolist())
