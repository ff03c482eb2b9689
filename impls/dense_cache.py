"""Keys and values of R requests in one tensor [R, most, Hkv, D], the plainest cache that can be.

Entry j of request r is row j: `append` writes behind the length, `truncate` lowers it, `attend`
reads below it. What lies at or past a length is what earlier tokens left there, at first NaN.
"""

import math

import torch
from torch import Tensor

from kernelassay.impls.caching import CacheSpec

__all__ = ["DenseCache"]


class DenseCache:
    """A store of `append`, `truncate` and `attend`, opened with its spec."""

    def __init__(self, spec: CacheSpec) -> None:
        self.k, self.v = (
            torch.full(
                (spec.R, spec.most, spec.Hkv, size), math.nan, dtype=spec.dtype, device=spec.device
            )
            for size in (spec.D, spec.Dv)
        )
        self.lengths = torch.zeros(spec.R, dtype=torch.int64, device=spec.device)

    def append(self, k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Rows offsets[r] to offsets[r + 1] of k [N, Hkv, D] and v follow what request r has."""
        counts = (offsets[1:] - offsets[:-1]).long()
        owner = torch.repeat_interleave(torch.arange(len(counts), device=k.device), counts)
        place = torch.arange(len(k), device=k.device) - offsets[owner] + self.lengths[owner]
        self.k[owner, place], self.v[owner, place] = k, v
        self.lengths = self.lengths + counts

    def truncate(self, lengths: Tensor) -> None:
        """Request r keeps its first lengths[r] entries; more than it has is a ValueError."""
        if bool((lengths > self.lengths).any()):
            raise ValueError(f"truncate: got {lengths.tolist()}, have {self.lengths.tolist()}")
        self.lengths = lengths.long()

    def attend(self, q: Tensor) -> Tensor:
        """out [R, Hq, Tq, Dv]: query i sees entries j <= length - Tq + i; 0 where it sees none."""
        _, Hq, Tq, D = q.shape
        Hkv = self.k.shape[2]
        L = int(self.lengths.max()) if len(self.lengths) else 0
        j = torch.arange(L, device=q.device)
        last = torch.arange(Tq, device=q.device) + self.lengths[:, None] - Tq  # [R, Tq]
        seen = (j <= last[..., None])[:, None]  # [R, 1, Tq, L]
        held = (j < self.lengths[:, None])[..., None, None]  # garbage times 0 need not be 0
        k, v = (
            x[:, :L].where(held, 0.0).repeat_interleave(Hq // Hkv, 2) for x in (self.k, self.v)
        )
        scores = torch.einsum("rhid,rjhd->rhij", q, k) / math.sqrt(D)
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        weights = weights.where(seen.any(-1, keepdim=True), 0.0)
        return torch.einsum("rhij,rjhd->rhid", weights, v)
