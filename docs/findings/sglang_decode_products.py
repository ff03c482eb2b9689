"""SGLang 0.5.23: decode attention rounds each product of q and k to 16 bits, and fp16 overflows.

Where each query head has a KV head of its own (no GQA), a score is the fp32 sum of products that
were rounded to the dtype of q. In fp16 one above 65504 is inf: the row is NaN. With shared KV
heads a matrix product is taken, which rounds nothing. Needs sglang; without a GPU
TRITON_INTERPRET=1.
"""

import math

import torch
from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

place = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
D, KEYS = 128, 64


def answers(Hq: int, Hkv: int, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """SGLang's output and that of fp64, [Hq, D]; dimension 0 of q and k is *factor*."""
    q = torch.randn(1, Hq, D, device=place).half()
    k, v = torch.randn(2, KEYS, Hkv, D, device=place).half()
    q[..., 0] = k[..., 0] = factor
    ends = torch.tensor([0, KEYS], dtype=torch.int32, device=place)
    slots = torch.arange(KEYS, dtype=torch.int32, device=place)
    mid, out = torch.empty(1, Hq, 1, D, device=place), torch.empty_like(q)
    one = torch.ones(1, dtype=torch.int32, device=place)
    decode_attention_fwd(
        q, k, v, out, ends, slots, mid, mid[..., 0].clone(), one, 1, 1 / math.sqrt(D), 1.0, 1.0
    )
    keys, values = (x.double().repeat_interleave(Hq // Hkv, 1) for x in (k, v))
    weights = (torch.einsum("hd,khd->hk", q[0].double(), keys) / math.sqrt(D)).softmax(-1)
    return out[0].double(), torch.einsum("hk,khd->hd", weights, values)


for Hq, Hkv in ((4, 4), (8, 4)):
    for factor in (1.0, 100.0, 300.0):
        got, right = answers(Hq, Hkv, factor)
        off = (got - right).abs().max().item()
        print(f"{Hq} heads, {Hkv} KV heads, q[0] = k[0] = {factor:g}: off by {off:.1e}")
