"""Entries of a cold run: each encodes its scope and every token up to its own.

An entry at position p of tokens t in scope s, with w = a hash of (s, t_0..t_p), is for KV head h

    k[h, :] = +-1, +-1, ...                              signs from w, h and the channel
    v[h, :] = (t_p, p, salt, adapter, +-1, +-1, ...)     likewise

so that two entries are alike if they are of one scope, position and run of tokens, as in a model,
where an entry depends on all before it. All are whole numbers that every format holds.
"""

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

from kernelassay.properties.content import hashed

__all__ = ["FIELDS", "rows", "said"]

FIELDS = 4
"""The channels of a value from here on are signs."""
_KEY_SEED, _VALUE_SEED = 71, 72

Tokens = tuple[int, ...]
Scope = tuple[int, int]


@lru_cache(maxsize=4096)
def _word(scope: Scope, tokens: Tokens) -> int:
    digest = hashlib.blake2b(repr((scope, tokens)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


@lru_cache(maxsize=512)
def rows(scope: Scope, tokens: Tokens, Hkv: int, D: int, Dv: int) -> tuple[Tensor, Tensor]:
    """k [L, Hkv, D] and v [L, Hkv, Dv] of all L tokens, float64; not to be written to."""
    L = len(tokens)
    words = torch.tensor([_word(scope, tokens[: p + 1]) for p in range(L)], dtype=torch.int64)
    head = torch.arange(Hkv)[None, :, None]
    k, v = (
        1.0 - 2.0 * (hashed(seed, words[:, None, None], head, torch.arange(size)[None, None]) & 1)
        for seed, size in ((_KEY_SEED, D), (_VALUE_SEED, Dv))
    )
    fields = [(token, p, *scope) for p, token in enumerate(tokens)]
    k, v = k.double(), v.double()
    v[:, :, :FIELDS] = torch.tensor(fields, dtype=torch.float64).reshape(L, 1, FIELDS)
    return k, v


def said(v: Tensor) -> str:
    """What the first channels of a value [Dv] say that it is."""
    fields = v[:FIELDS].tolist()
    if not all(0 <= x < 1e3 and x == round(x) for x in fields):
        return "no entry (" + ", ".join(f"{x:.3g}" for x in fields) + ")"
    token, position, salt, adapter = map(round, fields)
    beside = "".join(f", {n} {x}" for n, x in (("salt", salt), ("adapter", adapter)) if x)
    return f"t{token} at {position}{beside}"
