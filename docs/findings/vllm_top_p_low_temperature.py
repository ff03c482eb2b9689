"""vLLM 0.33.0: top-p removes nothing where the first logits of a row spread widely.

The kernel takes exp(x - m) with m = mean + 10 standard deviations of a row's first tile, in place
of the row's maximum. Where m is more than 104 above it, all of them are 0, 0 / 0 is NaN, and a row
whose threshold is NaN is left as it is. Low temperatures spread logits, and so does one token at
-10000. Needs vllm and a GPU; up to 64 rows without top-k take another path there, which is right.
"""

import torch
from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton

place, rows = ("cuda", 65) if torch.cuda.is_available() else ("cpu", 2)
torch.manual_seed(0)
LOGITS = 2.5 * torch.randn(rows, 32_000, device=place)
SHARE = 0.5


def right(x: torch.Tensor) -> int:
    """Tokens that top-p keeps of the first row."""
    shares = x[0].double().softmax(-1).sort(descending=True).values.cumsum(0)
    return int((shares < SHARE).sum()) + 1


def kept(x: torch.Tensor) -> int:
    """Those that vLLM keeps."""
    p = torch.full((rows,), SHARE, device=place)
    return int((apply_top_k_top_p_triton(x.clone(), None, p)[0] > -torch.inf).sum())


banned = LOGITS.clone()
banned[:, 7] = -10_000.0
for what, x in (
    ("temperature 1.0", LOGITS),
    ("temperature 0.5", LOGITS / 0.5),
    ("temperature 0.1", LOGITS / 0.1),
    ("one logit of -10000", banned),
):
    print(f"{what}: of 32000 tokens top-p {SHARE} keeps {kept(x)}; right are {right(x)}")
