"""Entries that encode what they are: any read says which ones it saw.

An entry is (token, position, owner). For KV head h

    k[h, d] = s(h, d) b_d       b_d = +-1: bit d mod 14 of token (8 bits), then position (6 bits)
    v[h, :] = (token + 1, position, owner, h, +-1, +-1, ...)

with signs s(h, d), and the +-1 in v, from hashes. All of it are whole numbers that every format
holds. Three kinds of query rows, each of which makes attention the mean over a set of entries,
since the scores of the others are lower by 30 or more:

    needle   q[d] = a s(h, d) b_d, 16 times that at bits of the position: one entry, exactly; in
             its absence another one that was appended at that position
    mean     q = 0: every entry that is seen
    bit      q[d] = +-A at one d, else 0: the entries with that bit

A mean of n entries moves by 1 / (n + 1) or more wherever the +-1 of an entry that is seen beside
them, or twice, or not at all, is not the sign of the mean: in half of the channels, about.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor

from kernelassay.oracle.transactions import Entry
from kernelassay.properties.content import hashed

__all__ = ["VALUE", "exact_values", "keys", "needle", "probe_of", "tokens_in", "values"]

TOKEN_BITS, POSITION_BITS = 8, 6
BITS = TOKEN_BITS + POSITION_BITS
VALUE = 4
"""The channels of a value from here on are signs."""
AMPLITUDE = 256.0
"""A: 2 A / sqrt(D) > 30 up to D = 256."""
_KEY_SEED, _VALUE_SEED, _EXACT_SEED = 61, 62, 63


@cache
def _key_signs(Hkv: int, D: int) -> Tensor:
    """s [Hkv, D]."""
    h, d = torch.arange(Hkv)[:, None], torch.arange(D)[None]
    return 1.0 - 2.0 * (hashed(_KEY_SEED, h, d) & 1).double()


def _bits(entries: Sequence[Entry], D: int) -> Tensor:
    """b [n, D]."""
    words = [t | p << TOKEN_BITS for t, p, _ in entries]
    shifts = torch.arange(D) % BITS
    return 1.0 - 2.0 * (torch.tensor(words, dtype=torch.int64)[:, None] >> shifts & 1).double()


def keys(entries: Sequence[Entry], Hkv: int, D: int) -> Tensor:
    """k [n, Hkv, D] of the entries, float64."""
    return _bits(entries, D)[:, None] * _key_signs(Hkv, D)


def values(entries: Sequence[Entry], Hkv: int, Dv: int) -> Tensor:
    """v [n, Hkv, Dv] of the entries, float64."""
    head, channel = torch.arange(Hkv)[None, :, None], torch.arange(Dv)[None, None]
    e = torch.tensor(entries, dtype=torch.int64).reshape(-1, 3)
    signs = hashed(_VALUE_SEED, *(e[:, None, None, i] for i in range(3)), head, channel) & 1
    v = 1.0 - 2.0 * signs.double()
    v[..., :3] = e[:, None].double()
    v[..., 0] += 1
    v[..., 3] = torch.arange(Hkv).double()
    return v


def exact_values(entries: Sequence[Entry], Hkv: int, Dv: int) -> Tensor:
    """Values of full precision instead, +-[1, 2), of which every bit counts; float64."""
    head, channel = torch.arange(Hkv)[None, :, None], torch.arange(Dv)[None, None]
    e = torch.tensor(entries, dtype=torch.int64).reshape(-1, 3)
    word = hashed(_EXACT_SEED, *(e[:, None, None, i] for i in range(3)), head, channel)
    sign = 1.0 - 2.0 * (word & 1).double()
    return sign * (1.0 + (word >> 1 & (1 << 30) - 1).double() / 2**30)


@cache
def needle(entry: Entry, Hq: int, Hkv: int, D: int) -> Tensor:
    """q [Hq, D] that reads *entry*, float64."""
    copies = max(1, D // BITS)  # of each bit, at least
    a = 2.0 ** math.ceil(math.log2(16 * math.sqrt(D) / copies))
    at_position = torch.arange(D) % BITS >= TOKEN_BITS
    wanted = torch.where(at_position, 16 * a, a) * _bits([entry], D)[0]
    return (wanted * _key_signs(Hkv, D)).repeat_interleave(Hq // Hkv, 0)


def probe_of(channel: int, sign: int, D: int) -> Tensor:
    """q [D] that reads the entries whose k has this sign at *channel*, float64."""
    q = torch.zeros(D, dtype=torch.float64)
    q[channel] = AMPLITUDE * sign
    return q


def tokens_in(read: Iterable[float]) -> Entry | None:
    """The entry that a value read is one of, or None where its first channels say none."""
    fields = [*read][:3]
    if not all(-0.25 < x < 1e3 and abs(x - round(x)) < 0.25 for x in fields):
        return None
    token, position, owner = (round(x) for x in fields)
    return (token - 1, position, owner) if token else None
