"""vLLM 0.33.0: top-p always removes the least likely token that is left, needed or not.

The kernel keeps what is above a threshold, which it looks for between the least probability and
the largest: the token of the least is never above it. It matters where few tokens are left, as by
a grammar: of two with 0.6 and 0.4 top-p 0.9 must keep both. Rows with a top-k of their own, or
more than 64 rows without, take this kernel. Ties for the k-th place are lost likewise where no
token is less likely, and a row of equal logits is left whole. Needs vllm and a GPU.
"""

import math

import torch
from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton

place = "cuda" if torch.cuda.is_available() else "cpu"
V = 32_000


def kept(logits: dict[int, float], k: int, share: float, rest: float = -math.inf) -> int:
    """How many of V tokens are kept; those that are not named have the logit *rest*."""
    x = torch.full((1, V), rest, device=place)
    for token, logit in logits.items():
        x[0, token] = logit
    top_k = torch.tensor([k], dtype=torch.int32, device=place)
    top_p = torch.tensor([share], device=place)
    return int((apply_top_k_top_p_triton(x, top_k, top_p) > -math.inf).sum())


two = {100: math.log(0.6), 20_000: math.log(0.4)}
three = two | {300: math.log(0.3)}
print(f"0.6, 0.4            top-k 50, top-p 0.9   keeps {kept(two, 50, 0.9)}; right are 2")
print(f"6 : 4 : 3           top-k 50, top-p 0.9   keeps {kept(three, 50, 0.9)}; right are 3")
six = dict.fromkeys(range(5), 6.0)
print(f"five 6, the rest 0  top-k 6               keeps {kept(six, 6, 1.0, 0.0)}; right are 6")
print(f"all 0               top-k 6               keeps {kept({}, 6, 1.0, 0.0)}; right are 6")
