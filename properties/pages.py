"""Keys and values in pages: from logical tensors to pools and a block table.

Key j of request b lies in slot j % size of page table[b, j // size]. Pages lie in any order, with
pages between them that belong to nobody; these, and every slot at or past a length, hold garbage.
Entries of the table past a request's last page are -1.

A case says how by *pages*: "shuffled:7", "ordered", or "shared:7", where pages of several requests
with the same bits are kept once, or "reserved:7", where pages for all Tk keys are there and full,
though a length may be shorter.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendCall, Capabilities, Pages
from kernelassay.properties.inputs import Inputs, Logical, beside, layout_of, seen_by_kernel
from kernelassay.properties.memory import bits, place, placed_small

SPARE = 2
"""Pages that belong to nobody."""


@dataclass(frozen=True, eq=False)
class Paged:
    """Pools of keys and values [pages, Hkv, size, D or Dv], and where whose keys are."""

    k: Tensor
    v: Tensor
    table: Tensor  # [B, most], int32
    lengths: Tensor  # [B], int64
    size: int


def paged(tensors: Logical, capabilities: Capabilities) -> Paged:
    """The keys and values of *tensors* in pages of the size that its plan says."""
    size = tensors.plan.page or capabilities.pages[0]
    B, _, Tk, _ = tensors.k.shape
    place = tensors.k.device
    given = tensors.visibility.lengths
    lengths = torch.full((B,), Tk, device=place) if given is None else given.to(place)
    how, _, seed = tensors.plan.pages.partition(":")
    held = torch.full_like(lengths, Tk) if how == "reserved" else lengths
    owner = [(b, p) for b, n in enumerate(held.tolist()) for p in range(-(-int(n) // size))]
    first = (
        _first_alike(tensors, lengths, owner, size) if how == "shared" else dict(enumerate(owner))
    )
    kept = sorted({n for n, at in enumerate(owner) if first[n] == at})
    numbers = _numbers(len(kept), int(seed or 0), shuffle=how != "ordered")
    page_of = {owner[n]: number for n, number in zip(kept, numbers, strict=True)}
    columns = 1 + max((p for _, p in owner), default=-1) + 1
    rows = [[-1] * columns for _ in range(B)]  # lists: setting a tensor's elements is slow
    for n, (b, p) in enumerate(owner):
        rows[b][p] = page_of[first[n]]
    table = torch.tensor(rows, dtype=torch.int32, device=place).reshape(B, columns)
    harmless = capabilities.conventions.masked_content != "finite_only"
    usual = float("nan") if harmless else 1000.0
    fill = usual if tensors.plan.fill is None else tensors.plan.fill
    k, v = (_pool(x, table, held, size, len(kept) + SPARE, fill) for x in (tensors.k, tensors.v))
    return Paged(k, v, table, lengths.long(), size)


def _numbers(count: int, seed: int, *, shuffle: bool) -> list[int]:
    """Different page numbers below count + SPARE; shuffled ones leave some in between free."""
    if not shuffle:
        return list(range(count))
    order = torch.Generator().manual_seed(seed)
    return [int(n) for n in torch.randperm(count + SPARE, generator=order)[:count]]


def _first_alike(
    tensors: Logical, lengths: Tensor, owner: list[tuple[int, int]], size: int
) -> dict[int, tuple[int, int]]:
    """For each page the first one, of any request, that holds as many keys and the same bits."""
    seen: dict[tuple[int, bytes], tuple[int, int]] = {}
    first = {}
    for n, (b, p) in enumerate(owner):
        used = slice(p * size, min((p + 1) * size, int(lengths[b])))
        held = b"".join(
            bits(x[b, :, used]).cpu().numpy().tobytes() for x in (tensors.k, tensors.v)
        )
        first[n] = seen.setdefault((used.stop - used.start, held), (b, p))
    return first


def _pool(x: Tensor, table: Tensor, lengths: Tensor, size: int, pages: int, fill: float) -> Tensor:
    """*x* [B, Hkv, Tk, D] put into a pool [pages, Hkv, size, D] of *fill*."""
    _, Hkv, Tk, D = x.shape
    pool = torch.full((pages, Hkv, size, D), fill, dtype=x.dtype, device=x.device)
    b, j = (torch.arange(Tk, device=x.device) < lengths[:, None]).nonzero(as_tuple=True)
    pool[table[b, j // size].long(), :, j % size] = x[b, :, j]
    return pool


def paged_inputs(
    tensors: Logical, capabilities: Capabilities, *, view: str, device: str
) -> Inputs:
    """The call of *tensors* with keys and values in pages; equal requests where expanded."""
    pools, layout = paged(tensors, capabilities), layout_of(tensors.q, capabilities.layouts)
    page_layout = capabilities.page_layout
    vis, scoring = replace(tensors.visibility, lengths=pools.lengths), tensors.scoring
    q = place("q", tensors.q, layout, view, device)
    held = "contiguous" if view == "expanded" else view
    wide = "BTHD" if page_layout == "NHD" else "BHTD"
    k, v = (place(n, x, wide, held, device) for n, x in (("k", pools.k), ("v", pools.v)))
    table = placed_small("table", pools.table, device)
    around = beside(vis, scoring, device, capabilities.conventions.mask_polarity)
    call = AttendCall(
        q=q.view,
        k=k.view.transpose(1, 2) if page_layout == "NHD" else k.view,
        v=v.view.transpose(1, 2) if page_layout == "NHD" else v.view,
        scale=tensors.scale,
        splits=tensors.plan.splits,
        pages=Pages(table=table.view, size=pools.size, layout=page_layout),
        **seen_by_kernel(vis, scoring, around),
    )
    return Inputs(call, (q, k, v, table, *around.values()))
