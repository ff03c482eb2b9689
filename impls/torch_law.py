"""Logits made laws in plain PyTorch, each map on its own lines.

    x_i = logit, -inf where the mask removes it     m = max_i x_i     w_i = exp((x_i - m) / T)

    top-k   the k largest x_i
    top-p   the shortest run of tokens, largest x_i first, of weight at least p sum w_i
    min-p   tokens of weight w_i >= min_p, for the likeliest has weight 1 and is always kept

    p_i = w_i / sum w_i over the tokens kept, 0 elsewhere

Each map sees what the ones before it left. Tokens are ordered by logits, which a temperature
above 0 does not reorder: neither quotient nor exponential makes ties of tokens that are none.
Of tokens that tie with the k-th largest all are kept, or the lowest ids; of those that tie with
the last of the run the lowest ids, or all.

Shapes: logits and p [R, V]; w, sums and p are fp32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.impls.contract import LOGITS, Capabilities, Conventions, LawCall, Maps, Numerics
from kernelassay.impls.law_calls import check_law, refuse_law


def top_k_kept(x: Tensor, k: Tensor, ties: str) -> Tensor:
    """True for the k [R] largest of each row of x [R, V]."""
    ordered, order = x.sort(dim=1, descending=True, stable=True)
    if ties == "all":
        return x >= ordered.gather(1, k.long()[:, None] - 1)
    first = torch.arange(x.shape[1], device=x.device) < k[:, None]
    return torch.zeros_like(first).scatter(1, order, first)


def top_p_kept(x: Tensor, w: Tensor, p: Tensor, ties: str) -> Tensor:
    """True for the run of share p [R] of each row, of x and weights w [R, V]; all where p = 1."""
    ordered, order = x.sort(dim=1, descending=True, stable=True)
    sums = w.gather(1, order).cumsum(1)
    before = torch.cat((torch.zeros_like(sums[:, :1]), sums[:, :-1]), 1)
    # p = 1 keeps tokens too light to change a sum.
    run = (before < (p * sums[:, -1])[:, None]) | (p == 1)[:, None]
    if ties == "all":
        least = torch.where(run, ordered, math.inf).amin(1, keepdim=True)
        return x >= least
    return torch.zeros_like(run).scatter(1, order, run)


def law(call: LawCall, maps: Maps) -> Tensor:
    """p [R, V] of a well-formed call, ties as *maps* has them."""
    x = call.logits.float()
    if call.mask is not None:
        x = torch.where(call.mask, x, -math.inf)
    scaled = x - x.amax(1, keepdim=True)
    if call.temperature is not None:
        scaled = scaled / call.temperature[:, None]
    w = torch.where(x == -math.inf, 0.0, scaled.exp())
    if call.top_k is not None:
        w = torch.where(top_k_kept(x, call.top_k, maps.top_k_ties), w, 0.0)
    if call.top_p is not None:
        w = torch.where(top_p_kept(x, w, call.top_p, maps.top_p_ties), w, 0.0)
    if call.min_p is not None:
        w = torch.where(w >= call.min_p[:, None], w, 0.0)
    return w / w.sum(1, keepdim=True)


@dataclass(eq=False)
class TorchLaw:
    """The functions above."""

    name: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]

    def law(self, call: LawCall) -> Tensor:
        """p [R, V], fp32; malformed calls raise ValueError."""
        check_law(call)
        refuse_law(self.name, self.capabilities, call)
        return law(call, self.capabilities.maps or Maps())


def _capabilities(maps: Maps) -> Capabilities:
    return Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32", "bf16", "fp16"),
        supports=frozenset(LOGITS),
        maps=maps,
        conventions=Conventions(
            masked_content="nan_safe", deterministic=True, validates_calls=True
        ),
    )


# Both devices divide exactly rounded; a GPU's expf may be off by two units in the last place.
_FP32 = Numerics(out="fp32", exp_u=2.0**-22, div_u=2.0**-24)
_NUMERICS: Mapping[str, Numerics] = {"fp32": _FP32, "bf16": _FP32, "fp16": _FP32}

adapter = TorchLaw("torch_law", _capabilities(Maps()), _NUMERICS)
ties = TorchLaw(
    "torch_law_ties", _capabilities(Maps(top_k_ties="index", top_p_ties="all")), _NUMERICS
)
