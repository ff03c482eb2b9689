"""Hashes of blocks that collide, each in a way of its own: what they say must not be believed."""

from collections.abc import Mapping

from kernelassay.impls.contract import Scope
from kernelassay.impls.prefixes import Hash

__all__ = ["HASHES"]

Tokens = tuple[int, ...]


def _constant(before: int | None, tokens: Tokens, scope: Scope) -> int:
    """Everything collides."""
    return 7


def _sum(before: int | None, tokens: Tokens, scope: Scope) -> int:
    """Permuted tokens and blocks collide, and a salt with an adapter."""
    return (before or 0) + sum(tokens) + sum(scope)


def _tokens(before: int | None, tokens: Tokens, scope: Scope) -> int:
    """Equal blocks collide, whatever is before them and whoever asks."""
    return sum(token * 131**i for i, token in enumerate(tokens))


def _scopeless(before: int | None, tokens: Tokens, scope: Scope) -> int:
    """Equal prefixes of different scopes collide."""
    return (0 if before is None else before * 7919) + 1 + _tokens(before, tokens, scope)


HASHES: Mapping[str, Hash | None] = {
    "own": None,
    "constant": _constant,
    "sum": _sum,
    "tokens": _tokens,
    "scopeless": _scopeless,
}
"""By name; None is the cache's own."""
