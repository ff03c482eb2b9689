"""KV caches of Hugging Face transformers: DynamicCache and StaticCache, of full attention.

    k, v = cache.update(k, v, layer)      cache.crop(-n)      cache.reorder_cache(rows)

A cache has one length for the whole batch: requests get as many entries each, and lose as many.
Attention is a softmax in fp32 over what `update` returns, up to `get_seq_length`; a StaticCache
returns its whole buffer, of which the rest is nobody's.

Shapes there: k [R, Hkv, n, D], v [R, Hkv, n, Dv]; query head h reads KV head h // (Hq / Hkv).
"""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.cache_calls import check_append, check_cut, check_spec, check_steps
from kernelassay.impls.contract import (
    CACHING,
    CacheSpec,
    Capabilities,
    Conventions,
    Unsupported,
)


class LibraryStore:
    """One layer of a cache of the library."""

    def __init__(self, spec: CacheSpec, cache: Any) -> None:
        self.spec, self.cache = spec, cache
        empty = torch.empty((spec.R, spec.Hkv, 0, 1), dtype=spec.dtype, device=spec.device)
        self.nothing = tuple(empty.expand(-1, -1, -1, n).contiguous() for n in (spec.D, spec.Dv))

    @property
    def length(self) -> int:
        """Entries of every request."""
        return int(self.cache.get_seq_length())

    def append(self, k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """As many rows for every request go to its end."""
        counts = check_append(self.spec, self.lengths(), k, v, offsets)
        if len({*counts}) > 1:
            raise Unsupported(f"one length for the batch; got {counts} entries")
        if sum(counts) < len(k):
            raise Unsupported("every row belongs to a request")
        if counts[0]:
            R = self.spec.R
            rows = (x.view(R, -1, *x.shape[1:]).transpose(1, 2) for x in (k, v))
            self.cache.update(*rows, 0)

    def truncate(self, lengths: Tensor) -> None:
        """The last entries of every request go."""
        kept = check_cut(self.lengths(), lengths)
        if len({*kept}) > 1:
            raise Unsupported(f"one length for the batch; got {kept}")
        self.cache.crop(kept[0] - self.length)

    def fork(self, parent: int, child: int, length: int) -> None:
        """The child's row becomes the parent's, as in a beam search."""
        check_steps(self.lengths(), parent, length, (), child)
        if length != self.length:
            raise Unsupported(f"one length for the batch; got a fork of {length}")
        rows = torch.arange(self.spec.R, device=self.spec.device)
        rows[child] = parent
        self.cache.reorder_cache(rows)

    def attend(self, q: Tensor) -> Tensor:
        """Attention over what an update with nothing new returns."""
        L, Tq, group = self.length, q.shape[2], self.spec.Hq // self.spec.Hkv
        if not L:
            return q.new_zeros((*q.shape[:3], self.spec.Dv))
        k, v = self.cache.update(*self.nothing, 0)
        k, v = (x[:, :, :L].repeat_interleave(group, 1).float() for x in (k, v))
        z = q.float() @ k.mT / math.sqrt(self.spec.D)
        i = torch.arange(L - Tq, L, device=q.device)[:, None]
        z = z.masked_fill(torch.arange(L, device=q.device) > i, -math.inf)
        p = z.softmax(-1).nan_to_num(0.0)  # a row that sees nothing is 0 / 0
        return (p @ v).to(q.dtype)

    def lengths(self) -> list[int]:
        """The length of the batch, for each request."""
        return [self.length] * self.spec.R


def dynamic(spec: CacheSpec) -> Any:
    """A DynamicCache."""
    return import_module("transformers").DynamicCache()


def static(spec: CacheSpec) -> Any:
    """A StaticCache of one layer."""
    library = import_module("transformers")
    config = library.LlamaConfig(num_hidden_layers=1)
    return library.StaticCache(config=config, max_cache_len=spec.most)


_SUPPORTS = frozenset(
    ("cache", *(f"cache.{f}" for f in ("requests", "queries", "gqa", "value_size", "truncate",
                                       "fork", "lengths")))
)  # fmt: skip


class LibraryCache:
    """The store above for one class of caches."""

    needs = ("transformers",)

    def __init__(self, name: str, make: Callable[[CacheSpec], Any]) -> None:
        self.name, self.make = name, make
        self.capabilities = Capabilities(
            devices=("cpu", "cuda"),
            dtypes=("fp32", "bf16", "fp16"),
            head_sizes=(16, 8, 32, 64, 128),
            tiles=(16,),
            supports=_SUPPORTS,
            declines=frozenset(CACHING) - _SUPPORTS,
            conventions=Conventions(empty_row="zeros", deterministic=True, validates_calls=True),
        )

    def cache(self, spec: CacheSpec) -> LibraryStore:
        """An empty cache; malformed specs raise ValueError."""
        check_spec(spec)
        if spec.page is not None or spec.window is not None:
            raise Unsupported(f"{self.name}: full attention, without pages; got {spec}")
        return LibraryStore(spec, self.make(spec))


dynamic_cache = LibraryCache("transformers_dynamic_cache", dynamic)
static_cache = LibraryCache("transformers_static_cache", static)
