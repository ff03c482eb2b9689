"""CPU flash attention of PyTorch: NaN for is_causal=True with a scale of zero or below.

Hidden scores are set to -inf before the scale multiplies them: -inf * -0.3 = inf, -inf * 0 = NaN.
Needs torch alone.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 3, 8).unbind(0)  # [B, H, T, D] each

for scale in (0.3, 0.0, -0.3):
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        print(f"scale {scale:4}  {backend.name:16} out[0,0,:,0] = {out[0, 0, :, 0].tolist()}")

scores = (q.double() @ k.double().mT) * -0.3
scores = scores.masked_fill(~torch.ones(3, 3).tril().bool(), float("-inf"))
right = (scores.softmax(-1) @ v.double())[0, 0, :, 0]
print(f"scale -0.3  float64          out[0,0,:,0] = {right.tolist()}")
