"""cuDNN attention in PyTorch: finite garbage for a query row whose keys are all masked.

The math and memory-efficient backends return zeros there. Needs torch and a CUDA device.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 2, 64, device="cuda", dtype=torch.float16).unbind(0)
mask = torch.tensor([[False, False], [True, True]], device="cuda")  # row 0 sees no key

for backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])
    print(f"{backend.name:20} row 0: {out[0, 0, 0, :4].tolist()}")
