"""FlashInfer 0.6.1: consecutive chain_speculative_sampling calls share a uniform.

After a rejection a request consumes K + 2 uniforms (K acceptance tests, the rejected draft twice,
and the draw); the generator moves on by R (K + 1), rounded up to a multiple of 4: for R = 1 and
K = 3, by 4 of 5. The draw of one call is the first acceptance uniform of the next. Needs a GPU.
"""

import flashinfer
import torch

V, K = 1024, 3
print("flashinfer", flashinfer.__version__, torch.cuda.get_device_name())
torch.cuda.manual_seed(0)
p = torch.full((1, K + 1, V), 1 / (V - 1), device="cuda")
p[..., 0] = 0.0
never = torch.zeros(1, K, dtype=torch.int32, device="cuda")  # target probability 0: rejected
q = torch.zeros(1, K, V, device="cuda")
q[..., 0] = 1.0
half = torch.full((1, K + 1, 2), 0.5, device="cuda")  # draft 0, certain, is accepted if u < 1/2
one = torch.zeros(1, K, 2, device="cuda")
one[..., 0] = 1.0
agree = 0
for _ in range(1000):
    drawn = flashinfer.sampling.chain_speculative_sampling(q, never, p)[0]
    u = (float(drawn[0, 0]) - 1) / (V - 1)  # the token says u to 1 / V
    tokens = flashinfer.sampling.chain_speculative_sampling(one, never, half)[0]
    agree += (u < 0.5) == (int(tokens[0, 0]) == 0)
print(f"accepted as the last draw says: {agree} of 1000, expected about 500")
