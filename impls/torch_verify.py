"""Speculative verification in plain PyTorch, each rule on its own line.

Of a request with the drafts x_0 ... x_{k-1}, drawn from the laws q_i, and the target's laws p_i:

    x_i is accepted          while u_i q_i(x_i) < p_i(x_i), or x_i is the greedy choice of p_i
    after a first rejection  y ~ [p_i - q_i]+, from p_i itself where no draft was made
    after k acceptances      y ~ p_k
    y                        the first token with C_y > v C, C_y the sum of the weights up to y

u and v are uniform in [0, 1): given, or Philox of the request's seed at 2 i and 2 i + 1, or drawn
from its generator, all u before all v, where it is sampled and may emit a token. A greedy
request takes the first maximum for y. q_i of a draft that was certain is 1 at x_i. Nothing follows
a stop token, or the last token of the budget. Where p_i = q_i up to rounding a draft can be
rejected with [p_i - q_i]+ = 0: then y ~ p_i.

Shapes: R requests, k <= K drafts each, V tokens. Laws are packed as the contract says; what is
[R, K] or [R, K + 1] below is by request and place. Products are fp32. Weights and their
sums are fp64, so the last sum exceeds v C even at v = 1 - 2^-24 and every draw finds its token.
Sources: Leviathan et al. 2023, algorithm 1; Salmon et al. 2011 (Philox4x32-10).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernelassay.impls.contract import VERIFYING, Capabilities, Conventions
from kernelassay.impls.verification import Sampling, VerifyCall, VerifyResult
from kernelassay.impls.verify_calls import check_verify, refuse_verify

LOW = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def wide_product(factor: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of a product of 32-bit numbers, all held in int64."""
    product = x * factor  # modulo 2^64, with a sign: the mask below removes it
    return (product >> 32) & LOW, product & LOW


def philox_uniforms(seeds: Tensor, counters: Tensor) -> Tensor:
    """A uniform for each seed and counter [...], fp32: the top 24 bits of Philox's first word."""
    key = [seeds & LOW, (seeds >> 32) & LOW]
    zero = torch.zeros_like(counters + seeds)
    words = [zero + counters, zero, zero, zero]
    for _ in range(ROUNDS):
        high_0, low_0 = wide_product(MULTIPLIERS[0], words[0])
        high_2, low_2 = wide_product(MULTIPLIERS[1], words[2])
        words = [high_2 ^ words[1] ^ key[0], low_2, high_0 ^ words[3] ^ key[1], low_0]
        key = [(k + w) & LOW for k, w in zip(key, WEYL, strict=True)]
    return (words[0] >> 8).float() * 2.0**-24


def generated_uniforms(call: VerifyCall) -> tuple[Tensor, Tensor]:
    """u [R, K] and v [R, K + 1]; 0 where a request draws nothing, whose generator stays."""
    R, K, device, own = call.requests, call.most, call.p.device, call.generators or ()
    greedy = torch.zeros(R) if call.greedy is None else call.greedy
    budget = torch.ones(R) if call.budget is None else call.budget
    draws = (~greedy.bool().cpu() & (budget.cpu() > 0)).tolist()
    counts = call.counts.tolist()
    drawn = [torch.zeros(2 * K + 1, device=device)]  # what lies past a request's own
    for k, generator, draw in zip(counts, own, draws, strict=True):
        made = torch.zeros(2 * k + 1, device=device)
        drawn.append(made.uniform_(generator=generator) if draw else made)
    start = torch.cumsum(2 * call.counts + 1, 0)[:, None] - (2 * call.counts + 1)[:, None]
    i = torch.arange(K + 1, device=device)
    uniforms = torch.cat([*drawn[1:], drawn[0]])
    return uniforms[start + i[:K]], uniforms[start + call.counts[:, None] + i]


def inverse_cdf(weights: Tensor, v: Tensor) -> Tensor:
    """The first token with C_y > v C [R] of weights [R, V], fp64; its weight is not 0."""
    sums = weights.cumsum(-1)
    above = sums > v[:, None].double() * sums[:, -1:]
    # A parallel sum need not stand still where a weight is 0.
    return (above & (weights > 0)).int().argmax(-1)


def verified(call: VerifyCall, packing: str, placeholder: int) -> VerifyResult:
    """The tokens of a round and how many of them are drafts."""
    R, K, V, device = call.requests, call.most, call.p.shape[-1], call.p.device
    k = call.counts[:, None]
    r, i = torch.arange(R, device=device)[:, None], torch.arange(K + 1, device=device)
    first = call.offsets[:-1, None] if packing == "flat" else r * K
    first_row = first + r
    n = torch.where(i[:K] < k, first + i[:K], 0)  # [R, K]: where a draft and its law are
    row = torch.where(i <= k, first_row + i, 0)  # [R, K + 1]: where the target's law is
    p = call.p.reshape(-1, V)
    q = None if call.q is None else call.q.reshape(-1, V)

    if call.generators is not None:
        u, v = generated_uniforms(call)
    elif call.seeds is None:
        assert call.accept is not None
        assert call.draw is not None
        u, v = call.accept.flatten()[n], call.draw.flatten()[row]
    else:
        u = philox_uniforms(call.seeds[:, None], 2 * i[:K])
        v = philox_uniforms(call.seeds[:, None], 2 * i + 1)

    x = torch.where(i[:K] < k, call.drafts.flatten()[n], -1)
    token = x.long().clamp_min(0)
    p_x = p[row[:, :K], token].float()
    q_x = torch.ones_like(p_x) if q is None else q[n, token].float()
    accepted = u * q_x < p_x
    if call.greedy is not None:
        choice = p.argmax(-1)[row]  # [R, K + 1]
        accepted = torch.where(call.greedy[:, None], token == choice[:, :K], accepted)
    accepted &= x >= 0
    limit = k + 1 if call.budget is None else torch.minimum(call.budget[:, None], k + 1)
    accepted &= i[:K] < limit
    ends = torch.zeros_like(accepted)
    if call.stop is not None:
        ends = (x[:, :, None] == call.stop[:, None, :]).any(-1)
    reached = pad(accepted & ~ends, (1, 0), value=True).cumprod(1).bool()  # [R, K + 1]
    kept = reached[:, :K] & accepted
    a = kept.sum(1, keepdim=True)  # [R, 1]
    draws = (a < limit) & ~(kept & ends).any(1, keepdim=True)

    weights = p[row.gather(1, a)[:, 0]].double()  # [R, V]
    if K:
        rejects = (pad(x, (0, 1), value=-1).gather(1, a) >= 0) & draws
        at = a.clamp_max(K - 1)
        if q is None:
            law = torch.zeros_like(weights).scatter(1, token.gather(1, at), torch.inf)
        else:
            law = q[n.gather(1, at)[:, 0]].double()
        excess = (weights - law).clamp_min(0.0)
        rejects &= (excess > 0).any(-1, keepdim=True)
        weights = torch.where(rejects, excess, weights)
    y = inverse_cdf(weights, v.gather(1, a)[:, 0])[:, None]
    if call.greedy is not None:
        y = torch.where(call.greedy[:, None], choice.gather(1, a), y)
    y = torch.where(draws, y, placeholder)
    tokens = torch.where(i < a, pad(x, (0, 1)), torch.where(i == a, y, placeholder))
    return VerifyResult(tokens.to(call.drafts.dtype), a[:, 0].to(call.drafts.dtype))


@dataclass(eq=False)
class TorchVerify:
    """The function above for one packing and one kind of noise."""

    name: str
    capabilities: Capabilities

    def verify(self, call: VerifyCall) -> VerifyResult:
        """tokens [R, K + 1] and accepted [R]; malformed calls raise ValueError."""
        check_verify(call, self.capabilities)
        refuse_verify(self.name, self.capabilities, call)
        assert self.capabilities.sampling is not None
        return verified(call, self.capabilities.packing, self.capabilities.sampling.placeholder)


_INJECTED = Capabilities(
    devices=("cpu", "cuda"),
    dtypes=("fp32", "bf16", "fp16"),
    tiles=(16, 32),
    max_vocabulary=1 << 18,
    supports=frozenset(VERIFYING),
    sampling=Sampling(noise="injected", rule="u*q<p", bad_laws="refused"),
    conventions=Conventions(deterministic=True, validates_calls=True),
)
_GENERATORS = replace(_INJECTED, sampling=Sampling(noise="generators", bad_laws="refused"))
_SEEDED = replace(_INJECTED, sampling=Sampling(noise="seeded", bad_laws="refused"))

adapter = TorchVerify("torch_verify", _INJECTED)
seeded = TorchVerify("torch_verify_seeded", _SEEDED)
generators = TorchVerify("torch_verify_generators", _GENERATORS)
padded = TorchVerify("torch_verify_padded", replace(_INJECTED, packing="padded"))
