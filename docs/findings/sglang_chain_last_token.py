"""SGLang 0.5.23: a draw under the largest uniforms can be the last token, of probability 0.

The token after the drafts is the first y with C_y > u C. C is a sum of tiles, C_y a running sum;
where rounding makes the last C_y smaller than u C no y is found, and V - 1 is taken, whatever its
probability. torch.rand is 1 - 2^-24 once in 2^24 draws. Needs sglang's sources and triton; without
a GPU TRITON_INTERPRET=1.
"""

import torch
from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton

place = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
R = 64


def emitted(V: int, u: float) -> torch.Tensor:
    """What R requests emit whose draft is rejected; their last token has p = 0."""
    p, q = (torch.randn(R, n, V, device=place).mul(3).softmax(-1) for n in (2, 1))
    p[..., -1] = 0.0
    p /= p.sum(-1, keepdim=True)
    drafts = torch.stack([torch.zeros(R, device=place), q[:, 0].argmax(-1)], 1).long()
    places = torch.arange(2 * R, device=place).view(R, 2)
    predicts = torch.zeros(2 * R, dtype=torch.int32, device=place)
    accepted = torch.zeros(R, dtype=torch.int32, device=place)
    rejecting = torch.full((R, 1), 1 - 2.0**-24, device=place)
    last = torch.full((R,), u, device=place)
    chain_speculative_sampling_triton(
        predicts, torch.full_like(places, -1), accepted, drafts, places, None, None,
        rejecting, last, p, q, 1.0, 1.0, True,
    )  # fmt: skip
    return predicts.view(R, 2)[torch.arange(R, device=place), accepted.long()]


for V in (1000, 32_000):
    for power in (24, 22, 20):
        n = int((emitted(V, 1 - 2.0**-power) == V - 1).sum())
        print(f"V = {V}, u = 1 - 2^-{power}: {n} of {R} requests emit the token of probability 0")
