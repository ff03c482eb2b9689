"""The speculative decoder over paged KV caches, in PyTorch or with Triton's kernels throughout.

A page has 4 entries, so that rounds of three drafts cross its end. The models compute in fp32.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from kernelassay.impls import torch_cache, torch_verify, triton_cache, triton_verify
from kernelassay.impls.caching import Caches, CacheSpec, Store
from kernelassay.impls.speculative_decoder import SpeculativeDecoder, single

__all__ = ["adapter", "paged", "triton"]

PAGE = 4


def paged(cache: Caches) -> Callable[[CacheSpec], Store]:
    """Opens stores of the cache, with a page for all that the requests may hold."""

    def opened(spec: CacheSpec) -> Store:
        pages = spec.R * -(-spec.most // PAGE)
        return cache.cache(replace(spec, page=PAGE, pages=pages))

    return opened


adapter = SpeculativeDecoder(
    "speculative_decoder_paged",
    replace(single.capabilities, max_requests=256),
    torch_verify.adapter,
    paged(torch_cache.adapter),
    torch.float32,
)
triton = SpeculativeDecoder(
    "speculative_decoder_triton",
    replace(single.capabilities, devices=("cuda", "interpreter"), max_requests=256),
    triton_verify.adapter,
    paged(triton_cache.adapter),
    torch.float32,
)
