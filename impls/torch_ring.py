"""A KV cache in rings, in plain PyTorch: a request has a fixed number of slots, written around.

    entry j of request r lies in slot j % n of row r,  n = W + spare, or the most entries of a
                                                       request where there is no window
    query at i sees the entries j with i - W < j <= i,  i = L - Tq, ..., L - 1
    out = softmax(q . k / sqrt(D)) v over those

A ring need not hold what nobody can ask for: the last n entries that a request ever had are there,
even once some of the newest are dropped again.

Shapes: rings k [R, n, Hkv, D] and v [R, n, Hkv, Dv]; rows k [N, Hkv, D] and v [N, Hkv, Dv]; q [R,
Hq, Tq, D]; out [R, Hq, Tq, Dv]; query head h reads KV head h // (Hq / Hkv).
"""

import math
from collections.abc import Sequence

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


class RingStore:
    """A cache in rings; `kernelassay.impls.caching.Store` says what the methods do."""

    def __init__(self, spec: CacheSpec) -> None:
        self.spec = spec
        self.slots = spec.most if spec.window is None else spec.window + spec.spare
        shape = (spec.R, self.slots, spec.Hkv)
        self.k = torch.empty(*shape, spec.D, dtype=spec.dtype, device=spec.device)
        self.v = torch.empty(*shape, spec.Dv, dtype=spec.dtype, device=spec.device)
        self.held = [0] * spec.R

    def append(self, k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Ragged rows go to the ends of the requests; of more than a ring holds the last ones."""
        counts = check_append(self.spec, self.held, k, v, offsets)
        first = 0
        for r, n in enumerate(counts):
            L = self.held[r]
            kept = min(n, self.slots)
            at = torch.arange(L + n - kept, L + n, device=k.device) % self.slots
            for ring, rows in ((self.k, k), (self.v, v)):
                ring[r, at] = rows[first + n - kept : first + n]
            self.held[r] = L + n
            first += n

    def truncate(self, lengths: Tensor) -> None:
        """The last entries of each request go; their slots are written over later."""
        self.held = check_cut(self.held, lengths)

    def compact(self, request: int, start: int, kept: Sequence[int]) -> None:
        """Refused: a ring does not know where entries that moved were."""
        raise Unsupported(f"a ring does not move entries; got {[*kept]} from {start} of {request}")

    def fork(self, parent: int, child: int, length: int) -> None:
        """The child gets a copy of the parent's ring."""
        check_steps(self.held, parent, length, (), child)
        for ring in (self.k, self.v):
            ring[child] = ring[parent]
        self.held[child] = length

    def free(self, request: int) -> None:
        """The request has no entries."""
        check_steps(self.held, request, 0, ())
        self.held[request] = 0

    def attend(self, q: Tensor) -> Tensor:
        """Attention over what each request holds, in order of position."""
        spec = self.spec
        R, Hq, Tq, _ = q.shape
        out = q.new_zeros((R, Hq, Tq, spec.Dv))
        for r in range(R):
            L = self.held[r]
            j = torch.arange(max(0, L - self.slots), L, device=q.device)  # [n]
            at = j % self.slots
            rings, group = (self.k, self.v), Hq // spec.Hkv
            k, v = (x[r, at].repeat_interleave(group, 1).float() for x in rings)
            z = torch.einsum("htd,nhd->htn", q[r].float(), k) / math.sqrt(spec.D)
            i = torch.arange(L - Tq, L, device=q.device)[:, None]  # [Tq, 1]
            keep = j <= i
            if spec.window is not None:
                keep = keep & (j > i - spec.window)
            z = z.masked_fill(~keep, -math.inf)
            p = z.softmax(-1).nan_to_num(0.0)  # a row that sees nothing is 0 / 0
            out[r] = torch.einsum("htn,nhd->htd", p, v).to(q.dtype)
        return out

    def lengths(self) -> list[int]:
        """How many entries each request holds, those that a ring has lost among them."""
        return list(self.held)


DECLINES = frozenset(("cache.compact", "cache.accounting", "cache.exhausted", "cache.pools"))


class TorchRing:
    """The store above."""

    name = "torch_ring"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32", "bf16", "fp16"),
        head_sizes=(16, 8, 32, 64, 80, 128, 256),
        tiles=(16,),
        supports=frozenset(CACHING) - DECLINES,
        declines=DECLINES,
        conventions=Conventions(
            empty_row="zeros",
            deterministic=True,
            validates_calls=True,
        ),
    )

    def cache(self, spec: CacheSpec) -> RingStore:
        """An empty cache; malformed specs raise ValueError."""
        check_spec(spec)
        if spec.page is not None:
            raise Unsupported(f"{self.name}: no cache in pages; got a page of {spec.page}")
        return RingStore(spec)


adapter = TorchRing()
