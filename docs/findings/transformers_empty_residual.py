"""transformers: speculative sampling raises where draft and target agree up to rounding.

The target's logits are the draft's and a constant: the same law. In float32 p(x) may come out an
ulp below q(x) and nowhere above; a draft rejected there has [p - q]+ = 0, and 0 / 0 is drawn from.
Needs torch and transformers.
"""

from unittest.mock import patch

import torch
import transformers
from transformers.generation.utils import _speculative_sampling

q = torch.tensor([[[-2.2989187240600586, 3.2977516651153564]]])  # logits [1, drafts, V]
p = q.repeat(1, 2, 1) + 27.565383911132812  # [1, drafts + 1, V]
print("transformers", transformers.__version__, "torch", torch.__version__)
print("p / q =", (p.softmax(-1)[0, 0] / q.softmax(-1)[0, 0]).tolist())
for r in (0.5, 1 - 2**-24):
    try:
        with patch.object(torch, "rand_like", lambda x, r=r: torch.full_like(x, r)):
            got = _speculative_sampling(torch.tensor([[0]]), q, 1, p)[0][0, 0]
    except RuntimeError as error:
        got = f"RuntimeError: {error}"
    print(f"r = {r:.8f}: expected token 0 accepted, or one of p; got {got}")
