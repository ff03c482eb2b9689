"""FlashInfer's speculative sampling of chains of drafts on a GPU (0.6.1).

    chain_speculative_sampling(q [R, K, V], drafts [R, K], p [R, K + 1, V], seed=, offset=)
        -> tokens [R, K + 1], accepted [R], emitted [R]

One Philox seed serves a call: request r draws from subsequence r of it, at offset up. Without a
seed the library takes both from torch's default generator of the device, and moves it on. A draft
x is accepted under u in (0, 1] if u q(x) < p(x); the token after the drafts is the first y with
C_y > u C_V, C the cumulated weights [p - q]+, or p where all drafts were accepted. Laws are fp32,
tokens and counters int32. A draft of -1 would be read as an index.
"""

from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

from kernelassay.impls.contract import Conventions
from kernelassay.impls.verify_shims import ChainVerify

__all__ = ["adapter", "chain", "own_noise"]


@cache
def _library() -> Any:
    return import_module("flashinfer.sampling")


def chain(
    q: Tensor, drafts: Tensor, p: Tensor, seeds: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The function above; the seed of request 0 is the call's."""
    noise = {} if seeds is None else {"seed": int(seeds[0]), "offset": 0}
    return _library().chain_speculative_sampling(q, drafts, p, **noise)


def _adapter(name: str, noise: str) -> ChainVerify:
    return ChainVerify(
        name,
        chain,
        ("cuda",),
        needs=("flashinfer",),
        # Sums are trees over 1024 threads, each of which adds up to 4 weights at a time.
        sampling={"noise": noise, "seeded_requests": False, "unit": 2.0**-20},
        conventions=Conventions(deterministic=True),
        tiles=(1024, 4096),
        max_vocabulary=3 * 4096,
    )


adapter = _adapter("flashinfer_chain", "seeded")
own_noise = _adapter("flashinfer_chain_global", "global")
