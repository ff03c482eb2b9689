"""The contract of KV caches: what one is opened with, its steps, and what it says of its pages.

A cache holds, for each of R requests, its entries in order: entry j is a key [Hkv, D] and a value
[Hkv, Dv]. Steps change what it holds; attention shows it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

__all__ = ["CACHING", "CacheSpec", "Caches", "Caching", "PageUse", "Pools", "Store"]

CACHING: Mapping[str, str] = {
    "cache": "a KV cache: cache(spec) -> store, which has append(k, v, offsets) and attend(q)",
    "cache.requests": "more than one request",
    "cache.ragged": "lengths that differ between requests, and appends that bring some nothing",
    "cache.queries": "attend takes more than one query of a request, causal at the bottom right",
    "cache.gqa": "fewer KV heads than query heads",
    "cache.value_size": "Dv differs from D",
    "cache.truncate": "truncate(lengths): the last entries go, as those of rejected drafts do",
    "cache.compact": "compact(request, start, kept): of the entries from start on some stay",
    "cache.fork": "fork(parent, child, length): the child begins with entries of the parent",
    "cache.free": "free(request): it holds nothing, and may begin anew",
    "cache.window": "a window W: queries see the last W entries only, older ones may be gone",
    "cache.padding": "rows of an append past the last offset, which belong to nobody",
    "cache.lengths": "lengths() says how many entries each request holds",
    "cache.accounting": "pages() says which pages each request holds and which are free",
    "cache.pools": "pools() hands out where pages lie",
    "cache.exhausted": "an append that needs more pages than are free raises and changes nothing",
}
"""What a KV cache may support or decline, with what each name means."""


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """What a cache is opened with: R requests, all empty, heads, sizes and room.

    Where `Capabilities.pages` names sizes, *page* is one of them and *pages* the number of pages
    in the pool: no more are needed at any time, with pages of forked requests shared and copied
    when written to (see `Caching.pages`). Otherwise both are None. No request ever has more than
    *most* entries.

    With a window W a query at position i sees the entries at i - W + 1..i. A cache need not keep
    more than the last W + *spare* entries that a request ever had: no step or query asks for
    others, so that *spare* drafts can be dropped again.
    """

    R: int
    Hq: int
    Hkv: int
    D: int
    Dv: int
    most: int
    dtype: torch.dtype
    device: torch.device
    page: int | None = None
    pages: int | None = None
    window: int | None = None
    spare: int = 0


@dataclass(frozen=True)
class PageUse:
    """Which pages of the pool each request holds, in the order of its entries; which are free."""

    held: tuple[tuple[int, ...], ...]
    free: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pools:
    """Where keys and values lie: entry j of a request in slot j % page of its page j // page.

    The suite writes to slots that nobody holds.
    """

    k: Tensor  # [pages, page, Hkv, D], a view of any strides
    v: Tensor  # [pages, page, Hkv, Dv], likewise


class Store(Protocol):
    """An open cache. Every method but append and attend is there where its feature is supported.

    Integers come as int32 tensors on the cache's device, requests and positions as numbers.
    """

    def append(self, k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Rows offsets[r]..offsets[r + 1] - 1 of k [N, Hkv, D] and v [N, Hkv, Dv] go to the end of
        request r; offsets [R + 1] begin with 0. Rows from offsets[R] on are nobody's. All of it
        is done or, where it raises, nothing."""

    def attend(self, q: Tensor) -> Tensor:
        """out [R, Hq, Tq, Dv] of q [R, Hq, Tq, D] over what each request holds, scale 1/sqrt(D).

        Query i of Tq is at position length - Tq + i and sees what lies there and before, within
        the window if there is one. A row that sees nothing is as `Conventions.empty_row` says.
        """

    def truncate(self, lengths: Tensor) -> None:
        """Request r keeps its first lengths[r] entries, which it has; lengths [R]."""

    def compact(self, request: int, start: int, kept: Sequence[int]) -> None:
        """Of the entries from *start* on those at start + kept[0], start + kept[1], ... stay and
        move together; *kept* rises. What is left has start + len(kept) entries."""

    def fork(self, parent: int, child: int, length: int) -> None:
        """The child holds the first *length* entries of the parent, and nothing it had before."""

    def free(self, request: int) -> None:
        """The request holds nothing."""

    def lengths(self) -> Sequence[int]:
        """How many entries each request holds."""

    def pages(self) -> PageUse:
        """Which pages each request holds, and which are free."""

    def pools(self) -> Pools:
        """The storage of the pages."""


@runtime_checkable
class Caches(Protocol):
    """An adapter that offers a KV cache."""

    name: str

    def cache(self, spec: CacheSpec) -> Store:
        """An empty cache; `Unsupported` refuses the spec."""


@dataclass(frozen=True, kw_only=True)
class Caching:
    """Where correct caches differ."""

    pages: Literal["exact", "reserve"] = "exact"
    """exact: a request holds the pages that its entries need, forked requests share pages until
    one of them is written to. reserve: it may hold more, a page ahead or copies at once; the pool
    then has a page for each that entries of each request could need, and one more."""

    def __post_init__(self) -> None:
        if self.pages not in (known := get_args(Literal["exact", "reserve"])):
            raise ValueError(f"Caching.pages: got {self.pages!r}, expected {' or '.join(known)}")
