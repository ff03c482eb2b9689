"""SGLang 0.5.23: prefill attention reads sm_scale=0.0 as none given.

A scale of 0 makes all weights equal, so that the output is the mean of the values that a query
sees; it is that of the default 1/sqrt(D). Needs sglang; without a GPU TRITON_INTERPRET=1.
"""

import torch
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

place = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
PREFIX, NEW, H, D = 5, 3, 1, 64
q, k, v = torch.randn(3, NEW, H, D, device=place).half()
k_pool, v_pool = torch.randn(2, PREFIX, H, D, device=place).half()
starts = torch.tensor([0, NEW], device=place)
indptr, slots = torch.tensor([0, PREFIX], device=place), torch.arange(PREFIX, device=place)

for scale in (None, 1e-30, 0.0):
    out = torch.empty_like(q)
    extend_attention_fwd(
        q, k, v, out, k_pool, v_pool, starts, indptr, slots, None, True, None, NEW, 1.0, 1.0,
        sm_scale=scale,
    )  # fmt: skip
    print(f"scale {scale!s:6} {out[-1, 0, :3].tolist()}")
print(f"mean of values {torch.cat((v_pool, v)).float().mean(0)[0, :3].tolist()}")
