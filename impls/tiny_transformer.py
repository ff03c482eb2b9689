"""A deterministic decoder-only transformer of a few thousand weights, drawn from a hash.

With tokens x_0 ... x_{n-1}, h = E[x], and for each layer

    a = N(h)             q, k, v = a Wq, a Wk, a Wv    q, k turned by position (RoPE)
    h <- h + A(q, k, v) Wo
    h <- h + silu(N(h) W1) W2
    law of the next token = softmax(N(h) U)

N divides a row by its root mean square, A is causal attention, Hq query heads share Hkv KV heads.
Every weight is (2 u - 1) s / sqrt(rows), u a hash of (seed, matrix, number) and s the matrix's
scale: no generator, so that a model is the same everywhere.

`full_law` sees a whole text at once. `cached_logits` sees new tokens of R texts and reads the rest
from a KV cache for each layer (`append` and `attend`); the two share the layers, not attention or
positions. Source: Touvron et al. 2023 (RMSNorm, RoPE), Ainslie et al. 2023 (grouped heads).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu

from kernelassay.impls.caching import CacheSpec

__all__ = ["KeyValues", "Model", "cache_spec", "cached_logits", "full_law", "mixed", "model"]

D_MODEL, HIDDEN, HQ, HKV, D = 16, 32, 2, 1, 16
TURN = 20.0
"""Base of the angles: position p turns channel pair c by p / TURN^(2 c / D)."""
SCALES = {"E": 0.7, "q": 6.0, "k": 3.0, "v": 3.0, "o": 4.0, "1": 3.0, "2": 3.0, "U": 3.0}
"""Laws are neither nearly uniform nor nearly certain, and depend on every token before."""
Weights = dict[str, Tensor]


class KeyValues(Protocol):
    """What is used of a `Store`: the keys and values of one layer."""

    def append(self, k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """See `Store.append`."""

    def truncate(self, lengths: Tensor) -> None:
        """See `Store.truncate`."""

    def attend(self, q: Tensor) -> Tensor:
        """See `Store.attend`."""


@dataclass(frozen=True, eq=False)
class Model:
    """Weights by name, "0.q" those of layer 0; V tokens."""

    weights: Weights
    layers: int
    V: int


def hashed(seed: int, stream: int, n: int) -> np.ndarray:
    """n uniforms in [0, 1), fp64, multiples of 2^-53: the finaliser of SplitMix64."""
    with np.errstate(over="ignore"):
        x = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(seed % 2**32) * np.uint64(0xD1B54A32D192ED03)
        x += np.uint64(stream) * np.uint64(0x8CB92BA72F3D8DD7)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray((x ^ (x >> np.uint64(31))) >> np.uint64(11), np.float64) * 2.0**-53


@lru_cache(64)
def model(
    seed: int,
    V: int,
    layers: int = 2,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Model:
    """The model of this seed over V tokens."""
    shapes = {"E": (V, D_MODEL), "U": (D_MODEL, V)}
    inner = {
        "q": (D_MODEL, HQ * D),
        "k": (D_MODEL, HKV * D),
        "v": (D_MODEL, HKV * D),
        "o": (HQ * D, D_MODEL),
        "1": (D_MODEL, HIDDEN),
        "2": (HIDDEN, D_MODEL),
    }
    shapes |= {f"{layer}.{name}": s for layer in range(layers) for name, s in inner.items()}
    weights = {}
    for stream, (name, (rows, columns)) in enumerate(shapes.items()):
        u = hashed(seed, stream, rows * columns).reshape(rows, columns)
        fan = 1 if name == "E" else rows
        made = (2 * u - 1) * SCALES[name[-1]] / math.sqrt(fan)
        weights[name] = torch.as_tensor(made).to(device, dtype)
    return Model(weights, layers, V)


def mixed(one: Model, other: Model, share: float) -> Model:
    """The model between two of one shape: (1 - share) one + share other."""
    made = {n: (1 - share) * w + share * other.weights[n] for n, w in one.weights.items()}
    return replace(one, weights=made)


def normalised(h: Tensor) -> Tensor:
    """N(h), rows of h [..., C]."""
    return h * (h.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """x [N, H, D] turned by positions [N]: channels c and c + D / 2 are a pair."""
    half = x.shape[-1] // 2
    rates = TURN ** -(torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angle = positions.to(x.dtype)[:, None, None] * rates
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _hidden(
    m: Model,
    tokens: Tensor,
    positions: Tensor,
    attention: Callable[[int, Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """N of the last h [N, C]; *attention* takes the layer and q, k, v [N, H, D]."""
    w, N = m.weights, len(tokens)
    h = w["E"][tokens]
    for layer in range(m.layers):
        a = normalised(h)
        q = turned((a @ w[f"{layer}.q"]).view(N, HQ, D), positions)
        k = turned((a @ w[f"{layer}.k"]).view(N, HKV, D), positions)
        v = (a @ w[f"{layer}.v"]).view(N, HKV, D)
        h = h + attention(layer, q, k, v).reshape(N, HQ * D) @ w[f"{layer}.o"]
        h = h + silu(normalised(h) @ w[f"{layer}.1"]) @ w[f"{layer}.2"]
    return normalised(h)


def full_law(m: Model, text: tuple[int, ...]) -> Tensor:
    """p [V] of the token after *text*, of one token or more: one forward without a cache."""
    some = m.weights["E"]
    tokens = torch.tensor(text, device=some.device)
    n = len(text)
    seen = torch.ones(n, n, dtype=torch.bool, device=some.device).tril()

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (x.repeat_interleave(HQ // HKV, 1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, keys) / math.sqrt(D)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return torch.einsum("hij,jhd->ihd", weights, values)

    h = _hidden(m, tokens, torch.arange(n, device=some.device), attention)
    return (h[-1] @ m.weights["U"]).softmax(-1)


def cache_spec(m: Model, requests: int, most: int) -> CacheSpec:
    """What the cache of a layer is opened with, for so many requests of *most* tokens."""
    some = m.weights["E"]
    return CacheSpec(
        R=requests, Hq=HQ, Hkv=HKV, D=D, Dv=D, most=most, dtype=some.dtype, device=some.device
    )


def cached_logits(
    m: Model, tokens: Tensor, offsets: Tensor, held: Tensor, caches: Sequence[KeyValues]
) -> Tensor:
    """Logits [N, V] after each new token; *caches*, one a layer, hold the tokens afterwards.

    tokens [N]: request r's are offsets[r] to offsets[r + 1], int32, at positions from held[r] on.
    """
    counts = (offsets[1:] - offsets[:-1]).long()
    R, most = len(counts), int(counts.max()) if len(tokens) else 0
    owner = torch.repeat_interleave(torch.arange(R, device=tokens.device), counts)
    place = torch.arange(len(tokens), device=tokens.device) - offsets[owner]
    column = most - counts[owner] + place  # the last query of each request is the last column

    def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        caches[layer].append(k, v, offsets)
        padded = q.new_zeros(R, HQ, most, D)
        padded[owner, :, column] = q
        return caches[layer].attend(padded)[owner, :, column]

    return _hidden(m, tokens, held[owner] + place, attention) @ m.weights["U"]
