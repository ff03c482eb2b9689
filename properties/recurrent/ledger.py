"""Rows of tokens that show in which order they were folded, and how often.

Of token t, head h and channel d, from a hash: a = +-1 and b = +-1, +-2 or +-3. A state is then a
sum of all b, each with the product of the signs of all later a: a token that is missing, twice, or
at another place changes a channel in three of four cases. States of n tokens are whole numbers up
to 3 n.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernelassay.oracle.recurrences import fold
from kernelassay.properties.content import hashed

__all__ = ["right", "rows"]

_SEED = 81


def rows(tokens: Sequence[int], H: int, D: int) -> tuple[Tensor, Tensor]:
    """a and b [n, H, D], float64."""
    t = torch.tensor([*tokens], dtype=torch.int64)[:, None, None]
    word = hashed(_SEED, t, torch.arange(H)[None, :, None], torch.arange(D)[None, None])
    signs = [1.0 - 2.0 * (word >> bit & 1).double() for bit in (0, 1)]
    return signs[0], signs[1] * (1 + (word >> 2 & 0xFFFF) % 3).double()


def right(tokens: Sequence[int], H: int, D: int, tail: int) -> tuple[Tensor, Tensor]:
    """The state [H, D] and the tail [tail, H, D] of a request with these tokens, float64."""
    a, b = rows(tokens, H, D)
    pairs = zip(a.flatten(1).t().tolist(), b.flatten(1).t().tolist(), strict=True)
    state = [fold([*zip(map(int, x), map(int, y), strict=True)]) for x, y in pairs]
    before = torch.zeros((tail, H, D), dtype=torch.float64)
    return (
        torch.tensor(state, dtype=torch.float64).reshape(H, D),
        torch.cat([before, b])[len(tokens) :],
    )
