"""SGLang 0.5.23: where p = q up to rounding a rejected draft is followed by token V - 1.

No [p - q]+ is above 0 then, the sum that the draw compares with is 0, and V - 1 is taken, whatever
its probability. To draw from p, or to accept the draft, is right. Needs sglang's sources and
triton; without a GPU TRITON_INTERPRET=1.
"""

import torch
from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton

place = "cuda" if torch.cuda.is_available() else "cpu"


def emitted(p: list[float], q: list[float], u: float, by_block: bool) -> int:
    """What follows the draft 0, or the draft itself, under the uniform u."""
    target, draft = torch.tensor([[p, p]], device=place), torch.tensor([[q]], device=place)
    places = torch.arange(2, device=place)[None]
    predicts = torch.zeros(2, dtype=torch.int32, device=place)
    chain_speculative_sampling_triton(
        predicts, torch.full_like(places, -1), torch.zeros(1, dtype=torch.int32, device=place),
        torch.zeros_like(places), places, None, None, torch.full((1, 1), u, device=place),
        torch.full((1,), 0.3, device=place), target, draft, 1.0, 1.0, True,
        block_verification=by_block,
    )  # fmt: skip
    return int(predicts[0])


ulp = 2.0**-23
for by_block in (False, True):
    for q in ([0.5, 0.5, 0.0], [0.5 + ulp, 0.5, 0.0]):
        y = emitted([0.5, 0.5, 0.0], q, 1 - 2.0**-24, by_block)
        kind = "block by block" if by_block else "draft by draft"
        print(f"{kind}, p = [0.5, 0.5, 0], q = {q}: emits {y}; right is 0 or 1, never 2")
