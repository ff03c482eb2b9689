"""transformers: speculative sampling accepts a draft of target probability 0 when r is 0.

A draft x is accepted if r <= p(x) / q(x), and torch.rand gives r = 0 once in 2**24 draws. So a
token outside the target's top-k (its logit is -inf) comes out, if the draft model's top-k holds
it. With r < p / q, or with p > 0 asked for as well, it would not. Needs torch and transformers.
"""

import torch
import transformers
from transformers.generation.utils import _speculative_sampling

DRAFT = 2
ids = torch.tensor([[0, DRAFT]])  # a prompt of one token, and the draft
q = torch.tensor([[[0.0, 0.0, 0.0]]])  # logits [1, drafts, V]
p = torch.tensor([[[0.0, 0.0, -torch.inf]]]).repeat(1, 2, 1)  # [1, drafts + 1, V]

print("transformers", transformers.__version__, "torch", torch.__version__)
for drawn in (0, 18555):  # numbers of seed 146 that other calls took: the one after 18555 is 0.0
    torch.manual_seed(146)
    torch.rand(drawn)
    r = float(torch.rand(1))
    torch.manual_seed(146)
    torch.rand(drawn)
    tokens, accepted = _speculative_sampling(ids, q, 1, p)
    print(f"r = {r:.3f}, p(draft) = {float(p[0, 0].softmax(-1)[DRAFT])}:", end=" ")
    print(f"accepted {int(accepted)}, expected 0; the first token {int(tokens[0, 0])},", end=" ")
    print("expected 0 or 1")
