"""SGLang 0.5.23: prefill attention's log-sum-exp is inf where a sink lies 89 above the scores.

exp(sink - m) is added to the row's sum with the maximum m of the scores alone, and overflows fp32.
Without keys m is -inf: the log-sum-exp is NaN, the sink's logit is right, and a sink of -inf makes
the output NaN, too. Needs sglang; without a GPU TRITON_INTERPRET=1.
"""

import torch
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

place = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
KEYS, H, D = 8, 1, 64
q = torch.randn(1, H, D, device=place).half()
k, v = torch.randn(2, KEYS, H, D, device=place).half()
none, slots = q[:0], torch.arange(KEYS, device=place)
scores = (q.double() * k.double()).sum(-1) / D**0.5  # [KEYS, H]

for keys, sink in ((KEYS, 0.0), (KEYS, 80.0), (KEYS, 100.0), (0, 0.0), (0, -torch.inf)):
    out, lse = torch.empty_like(q), torch.empty(1, H, device=place)
    starts, indptr = (torch.tensor([0, n], device=place) for n in (1, keys))
    sinks = torch.full((H,), sink, device=place)
    extend_attention_fwd(
        q, none, none, out, k, v, starts, indptr, slots[:keys], None, False, None, 1, 1.0, 1.0,
        sinks=sinks, lse_extend=lse, skip_extend=True,
    )  # fmt: skip
    right = torch.cat((scores[:keys, 0], sinks.double())).logsumexp(0).item()
    print(f"{keys} keys, sink {sink:g}: lse {lse.item():g}, right {right:g}; out {out[0, 0, 0]:g}")
