"""PyTorch's fused CUDA backends fail on a float mask that is broadcast over the keys.

The documentation asks for a mask that broadcasts to the scores. The choice of backend is no help:
the memory-efficient one is taken and raises. cuDNN ends with "misaligned address", which takes the
CUDA context with it; so it runs last.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, n, 64, device="cuda", dtype=torch.float16) for n in (2, 71, 71))
mask = torch.randn(1, 2, 1, 1, device="cuda", dtype=torch.float16)
with sdpa_kernel(SDPBackend.MATH):
    right = sdpa(q.float(), k.float(), v.float(), attn_mask=mask.float())

print("torch", torch.__version__, torch.cuda.get_device_name())
for backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
    for name, given in (("whole", mask.expand(1, 2, 2, 71).contiguous()), ("broadcast", mask)):
        try:
            with sdpa_kernel(backend):
                out = sdpa(q, k, v, attn_mask=given)
            error = float((out.float() - right).abs().max())
            print(f"{backend.name}, {name} mask: off by {error:.1e}")
        except Exception as error:
            print(f"{backend.name}, {name} mask: {str(error).splitlines()[0]}")
