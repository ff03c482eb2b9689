"""FlexAttention: NaN in a value that a mask_mod hides reaches the output.

A mask_mod is how FlexAttention is told of a length; it hides scores alone. The hidden key gets the
weight 0, and 0 x NaN is NaN. A cache that was allocated and never written may hold NaN there.
Needs torch alone.
"""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.manual_seed(0)
q, k, v = (torch.randn(1, 1, n, 8) for n in (1, 4, 4))  # [B, H, T, D]
length = 2


def used(b, h, i, j):
    return j < length


mask = create_block_mask(used, 1, 1, 1, 4, device="cpu")
right = torch.softmax((q @ k[:, :, :length].mT) / 8**0.5, -1) @ v[:, :, :length]
for label, beyond in (("7.0", 7.0), ("NaN", float("nan"))):
    for name, x in (("k", k), ("v", v)):
        x[:, :, length:] = beyond
        out = flex_attention(q, k, v, block_mask=mask)
        print(f"{name} beyond the length {label}: got {out[0, 0, 0, :3].tolist()}")
        x[:, :, length:] = 0.0
print(f"right: {right[0, 0, 0, :3].tolist()}")
