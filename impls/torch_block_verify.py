"""Block verification in plain PyTorch: the drafts of a round are judged together.

Of a request with the drafts x_1 ... x_k, drawn from the laws q_1 ... q_k, the target's laws being
p_1 ... p_{k+1}:

    w_0 = 1,  w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i))
    e_i(y) = [w_i p_{i+1}(y) - q_{i+1}(y)]+,  E_i = sum_y e_i(y)            for i < k
    h_i = E_i / (E_i + 1 - w_i) for i < k,  h_k = w_k
    a = the largest i with u_i < h_i, or 0                    drafts that are accepted
    y ~ e_a where a < k, y ~ p_{k+1} after k acceptances

A draft is accepted with one after it, though its own test failed: what is emitted follows the
target's law as a whole, and no fewer drafts are accepted than one by one. Drafts from one that was
never made on, after a stop token or beyond the budget are left out first; a prefix of what follows
the target's law follows it, too. Where E_a = 0, up to rounding, y ~ p_{a+1}.

Shapes: R requests, k <= K drafts each, V tokens; what is [R, K] or [R, K + 1] below is by request
and place. u and v are uniform in [0, 1), given. Laws are fp64 inside.
Source: Sun et al. 2024, algorithm 2.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from kernelassay.impls.contract import VERIFYING, Capabilities, Conventions
from kernelassay.impls.torch_verify import inverse_cdf
from kernelassay.impls.verification import Sampling, VerifyCall, VerifyResult
from kernelassay.impls.verify_calls import check_verify, refuse_verify


def verified(call: VerifyCall, placeholder: int) -> VerifyResult:
    """The tokens of a round and how many of them are drafts."""
    assert call.accept is not None
    assert call.draw is not None
    R, K, V, device = call.requests, call.most, call.p.shape[-1], call.p.device
    k = call.counts[:, None]
    r, i = torch.arange(R, device=device)[:, None], torch.arange(K + 1, device=device)
    first = call.offsets[:-1, None]
    n = torch.where(i[:K] < k, first + i[:K], 0)  # [R, K]: where a draft and its law are
    row = torch.where(i <= k, first + r + i, 0)  # [R, K + 1]: where the target's law is
    u, v = call.accept[n], call.draw[row]
    x = torch.where(i[:K] < k, call.drafts[n], -1)
    token = x.long().clamp_min(0)[:, :, None]

    limit = k + 1 if call.budget is None else torch.minimum(call.budget[:, None], k + 1)
    ends = torch.zeros_like(x, dtype=torch.bool)
    if call.stop is not None:
        ends = (x[:, :, None] == call.stop[:, None, :]).any(-1) & (x >= 0)
    used = (x >= 0) & (i[:K] < limit) & ~pad(ends, (1, 0))[:, :K]
    used = used.int().cumprod(1).bool()
    k = used.sum(1, keepdim=True)

    p = call.p[row].double()  # [R, K + 1, V]
    if call.q is None:
        q = torch.zeros_like(p[:, :K]).scatter(2, token, 1.0)
    else:
        q = call.q[n].double()
    ratio = (p[:, :K].gather(2, token) / q.gather(2, token))[:, :, 0]
    w = [torch.ones_like(p[:, 0, 0])]
    for j in range(K):
        w.append((w[-1] * ratio[:, j]).clamp_max(1.0))
    weight = torch.stack(w, 1)  # [R, K + 1]
    excess = (weight[:, :K, None] * p[:, :K] - q).clamp_min(0.0)
    total = pad(excess.sum(-1), (0, 1))
    h = torch.where(i == k, weight, total / (total + 1 - weight))  # 0 / 0 accepts nothing
    accepted = (u < h[:, 1:]) & used
    a = pad(accepted * i[1:], (1, 0)).amax(1, keepdim=True)

    draws = (a < limit) & ~((a == k) & (ends & used).any(1, keepdim=True))
    at = a[:, :, None].expand(R, 1, V)
    weights = p.gather(1, at)[:, 0]
    rest = pad(excess, (0, 0, 0, 1)).gather(1, at)[:, 0]
    rejects = (a < k) & (rest > 0).any(-1, keepdim=True)
    weights = torch.where(rejects, rest, weights)
    y = torch.where(draws, inverse_cdf(weights, v.gather(1, a)[:, 0])[:, None], placeholder)
    tokens = torch.where(i < a, pad(x, (0, 1)), torch.where(i == a, y, placeholder))
    return VerifyResult(tokens.to(call.drafts.dtype), a[:, 0].to(call.drafts.dtype))


@dataclass(eq=False)
class TorchBlockVerify:
    """The function above, under given uniforms."""

    name: str
    capabilities: Capabilities

    def verify(self, call: VerifyCall) -> VerifyResult:
        """tokens [R, K + 1] and accepted [R]; malformed calls raise ValueError."""
        check_verify(call, self.capabilities)
        refuse_verify(self.name, self.capabilities, call)
        assert self.capabilities.sampling is not None
        return verified(call, self.capabilities.sampling.placeholder)


adapter = TorchBlockVerify(
    "torch_block_verify",
    Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32", "bf16", "fp16"),
        tiles=(16, 32),
        max_vocabulary=4096,
        supports=frozenset(VERIFYING) - {"greedy"},
        declines=frozenset({"greedy"}),
        sampling=Sampling(noise="injected", rounds="joint", bad_laws="refused"),
        conventions=Conventions(deterministic=True, validates_calls=True),
    ),
)
