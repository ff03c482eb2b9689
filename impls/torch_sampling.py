"""Samplers of one token from each of many laws, in plain PyTorch.

    x [rows, W]    the laws, fp32; of a row some tokens are kept:
        top-k      x >= the k-th largest
        top-p      likelier ones add up to less than the share
        min-p      x >= ratio max x
    y              the first token with C_y > u C, C_y the sum of what is kept up to y

u [rows] is Philox of a call's first seed at the number of the row. Sums are fp64. A sampler that
truncates gets laws hidden beside tokens that it must remove, see `verify_shims.truncated`: its
tokens follow the laws that were hidden.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernelassay.impls.contract import Conventions
from kernelassay.impls.torch_verify import philox_uniforms
from kernelassay.impls.verify_shims import MatchVerify, truncated

__all__ = ["adapter", "min_p", "top_k", "top_p"]


def _whole(p: Tensor) -> Tensor:
    return p


def _top_k(p: Tensor) -> Tensor:
    given = truncated(p)
    largest = given.x.sort(1, descending=True).values
    kth = largest.gather(1, given.top_k[:, None].long() - 1)
    return torch.where(given.x >= kth, given.x, 0.0)


def _top_p(p: Tensor) -> Tensor:
    given = truncated(p)
    x, order = given.x.sort(1, descending=True)
    before = x.double().cumsum(1) - x
    kept = torch.where(before < given.top_p[:, None], x, 0.0)
    return torch.zeros_like(x).scatter(1, order, kept)


def _min_p(p: Tensor) -> Tensor:
    given = truncated(p)
    least = given.min_p[:, None] * given.x.amax(1, keepdim=True)
    return torch.where(given.x >= least, given.x, 0.0)


def _draw(kept: Tensor, seeds: Tensor | None) -> Tensor:
    """A token of each row of weights."""
    assert seeds is not None
    row = torch.arange(len(kept), device=kept.device)
    u = philox_uniforms(seeds[:1], row)[:, None].double()
    sums = kept.double().cumsum(1)
    above = sums > u * sums[:, -1:]
    # A parallel sum need not stand still where a weight is 0.
    return (above & (kept > 0)).int().argmax(1)


def _adapter(name: str, kept: Callable[[Tensor], Tensor]) -> MatchVerify:
    return MatchVerify(
        name,
        lambda p, seeds: _draw(kept(p), seeds),
        dtypes=("fp32", "bf16", "fp16"),
        sampling={"noise": "seeded", "seeded_requests": False},
        conventions=Conventions(deterministic=True),
        tiles=(16, 32),
        max_vocabulary=4096,
    )


top_k = _adapter("torch_sampling_top_k", _top_k)
top_p = _adapter("torch_sampling_top_p", _top_p)
min_p = _adapter("torch_sampling_min_p", _min_p)
adapter = _adapter("torch_sampling", _whole)
