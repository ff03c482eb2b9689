"""FlashInfer's samplers on a GPU (0.6.1): one token from each row of laws, all or truncated.

    sampling_from_probs(p [rows, V])                    top_k_sampling_from_probs(p, k)
    sampling_from_logits(log p [rows, V])               top_p_sampling_from_probs(p, share)
    top_k_top_p_sampling_from_probs(p, k, share)        min_p_sampling_from_probs(p, ratio)

all with seed= and offset= -> tokens [rows], int32. One Philox seed serves a call: row n draws from
subsequence n of it. Laws are fp32. Truncating samplers draw, and draw again where the token is one
that the threshold removes; each is given p hidden beside tokens that its threshold removes.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

from kernelassay.impls.contract import Conventions
from kernelassay.impls.verify_shims import MatchVerify, truncated

__all__ = ["from_logits", "from_probs", "min_p", "top_k", "top_k_top_p", "top_p"]


@cache
def _library() -> Any:
    return import_module("flashinfer.sampling")


def _noise(seeds: Tensor | None) -> dict[str, int]:
    return {} if seeds is None else {"seed": int(seeds[0]), "offset": 0}


def _from_probs(p: Tensor, seeds: Tensor | None) -> Tensor:
    return _library().sampling_from_probs(p, **_noise(seeds))


def _from_logits(p: Tensor, seeds: Tensor | None) -> Tensor:
    return _library().sampling_from_logits(p.log(), **_noise(seeds))


def _top_k(p: Tensor, seeds: Tensor | None) -> Tensor:
    given = truncated(p)
    return _library().top_k_sampling_from_probs(given.x, given.top_k, **_noise(seeds))


def _top_p(p: Tensor, seeds: Tensor | None) -> Tensor:
    given = truncated(p)
    return _library().top_p_sampling_from_probs(given.x, given.top_p, **_noise(seeds))


def _min_p(p: Tensor, seeds: Tensor | None) -> Tensor:
    given = truncated(p)
    return _library().min_p_sampling_from_probs(given.x, given.min_p, **_noise(seeds))


def _top_k_top_p(p: Tensor, seeds: Tensor | None) -> Tensor:
    given = truncated(p)
    return _library().top_k_top_p_sampling_from_probs(
        given.x, given.top_k, given.top_p, filter_apply_order="joint", **_noise(seeds)
    )


def _adapter(name: str, function: Callable[[Tensor, Tensor | None], Tensor]) -> MatchVerify:
    return MatchVerify(
        f"flashinfer_{name}",
        function,
        ("cuda",),
        needs=("flashinfer",),
        sampling={"noise": "seeded", "seeded_requests": False},
        conventions=Conventions(deterministic=True),
        tiles=(1024, 4096),
        max_vocabulary=3 * 4096,
    )


from_probs = _adapter("sampling", _from_probs)
from_logits = _adapter("sampling_logits", _from_logits)
top_k = _adapter("top_k", _top_k)
top_p = _adapter("top_p", _top_p)
min_p = _adapter("min_p", _min_p)
top_k_top_p = _adapter("top_k_top_p", _top_k_top_p)
