"""CUDA flash and cuDNN attention in PyTorch: NaN for a scale of zero or below.

The math and memory-efficient backends are right. Needs torch and a CUDA device.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 3, 64, device="cuda", dtype=torch.float16).unbind(0)

for scale in (0.3, 0.0, -0.3):
    for causal in (False, True):
        for backend in (
            SDPBackend.MATH,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.CUDNN_ATTENTION,
        ):
            with sdpa_kernel(backend):
                out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
            shown = [round(x, 4) for x in out[0, 0, :, 0].tolist()]
            print(f"scale {scale:4}  causal {causal!s:5}  {backend.name:20} {shown}")
