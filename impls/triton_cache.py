"""A paged KV cache in Triton: kernels that append ragged rows, copy pages and move entries.

    row n of an append belongs to the request r with offsets[r] <= n < offsets[r + 1] and becomes
    its entry j = length[r] - (offsets[r + 1] - n), which lies in slot j % size of page
    table[r, j // size]; rows from offsets[R] on belong to nobody and are not read

Which page belongs to whom is `torch_cache`'s, on the host; attention is `triton_paged`'s.

Shapes: pools k [pages, size, Hkv, D] and v [pages, size, Hkv, Dv], of which a slot is one row of
C = Hkv D or Hkv Dv numbers; rows k [N, Hkv, D], v [N, Hkv, Dv]; offsets [R + 1]; lengths [R],
after the append; table [R, most]; pairs [n, 2] of pages or slots.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelassay.impls import triton_paged
from kernelassay.impls.cache_calls import check_spec
from kernelassay.impls.contract import (
    CACHING,
    CacheSpec,
    Capabilities,
    Conventions,
    Pools,
    Unsupported,
)
from kernelassay.impls.interpreter import launching, mend, refuse_elsewhere
from kernelassay.impls.torch_cache import Device, PagedStore, PageTable, Slots

POINTERS = ("ROWS", "POOL", "OFFSETS", "LENGTHS", "TABLE", "PAIRS")

mend()


@triton.jit(do_not_specialize=("R", "C", "size", "most"), do_not_specialize_on_alignment=POINTERS)
def append_kernel(  # type: ignore[no-untyped-def]  # Triton has no types for these
    ROWS, POOL, OFFSETS, LENGTHS, TABLE, R, C, size, most,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    requests = tl.arange(0, BLOCK_R)
    ends = tl.load(OFFSETS + 1 + requests, mask=requests < R, other=2147483647)
    r = tl.sum((ends <= n).to(tl.int32), 0)  # requests that end before this row
    if r < R:
        j = tl.load(LENGTHS + r) - (tl.load(OFFSETS + 1 + r) - n)
        page = tl.load(TABLE + r * most + j // size).to(tl.int64)
        slot = page * size + j % size
        c = tl.arange(0, BLOCK_C)
        row = tl.load(ROWS + n.to(tl.int64) * C + c, mask=c < C)
        tl.store(POOL + slot * C + c, row, mask=c < C)


@triton.jit(do_not_specialize=("C",), do_not_specialize_on_alignment=POINTERS)
def copy_kernel(  # type: ignore[no-untyped-def]
    POOL, PAIRS, C, BLOCK_C: tl.constexpr
):
    pair = tl.program_id(0)
    source = tl.load(PAIRS + 2 * pair).to(tl.int64)
    target = tl.load(PAIRS + 2 * pair + 1).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    page = tl.load(POOL + source * C + c, mask=c < C)
    tl.store(POOL + target * C + c, page, mask=c < C)


# Entries move down within their request and in order, so that none is written over before it has
# been read: a program does them one after the other, channels side by side.
@triton.jit(do_not_specialize=("n", "C"), do_not_specialize_on_alignment=POINTERS)
def move_kernel(  # type: ignore[no-untyped-def]
    POOL, PAIRS, n, C, BLOCK_C: tl.constexpr
):
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    for i in range(n):
        source = tl.load(PAIRS + 2 * i).to(tl.int64)
        target = tl.load(PAIRS + 2 * i + 1).to(tl.int64)
        entry = tl.load(POOL + source * C + c, mask=c < C)
        tl.store(POOL + target * C + c, entry, mask=c < C)


def write(pools: Pools, pages: PageTable, k: Tensor, v: Tensor, counts: Sequence[int]) -> None:
    """Rows of k and v go to the last counts[r] entries of each request r."""
    N, R = k.shape[0], len(counts)
    if N == 0:
        return
    ends = [sum(counts[:r]) for r in range(R + 1)]
    offsets = torch.tensor(ends, dtype=torch.int32, device=k.device)
    lengths = torch.tensor(pages.lengths, dtype=torch.int32, device=k.device)
    table = pages.table(k.device)
    for pool, rows in ((pools.k, k), (pools.v, v)):
        C = rows.shape[1] * rows.shape[2]
        blocks = {"BLOCK_R": triton.next_power_of_2(R), "BLOCK_C": triton.next_power_of_2(C)}
        with launching(pool):
            append_kernel[(N,)](
                rows.contiguous(), pool, offsets, lengths, table, R, C, pages.size, table.shape[1],
                **blocks,
            )  # fmt: skip


BLOCK_C = 1024


def copy(pools: Pools, copies: Sequence[tuple[int, int]]) -> None:
    """Whole pages."""
    for pool in (pools.k, pools.v) if copies else ():
        pairs = torch.tensor(copies, dtype=torch.int32, device=pool.device)
        C = pool[0].numel()
        with launching(pool):
            copy_kernel[(len(copies), triton.cdiv(C, BLOCK_C))](pool, pairs, C, BLOCK_C=BLOCK_C)


def move(pools: Pools, sources: Slots, targets: Slots) -> None:
    """What lies in *sources* goes to *targets*, in order."""
    pairs = torch.tensor([*zip(sources, targets, strict=True)], dtype=torch.int32)
    for pool in (pools.k, pools.v):
        C = pool[0, 0].numel()
        with launching(pool):
            move_kernel[(triton.cdiv(C, BLOCK_C),)](
                pool, pairs.to(pool.device), len(sources), C, BLOCK_C=BLOCK_C
            )


class TritonCache:
    """The store of `torch_cache` with these kernels, on a GPU or in Triton's interpreter."""

    name = "triton_cache"
    capabilities = Capabilities(
        devices=("cuda", "interpreter"),
        dtypes=("fp16", "bf16", "fp32"),
        head_sizes=(16, 32, 64, 80, 96, 128, 256),
        tiles=(16, 64),
        pages=(4, 16, 1, 2, 3),
        supports=frozenset(CACHING),
        conventions=Conventions(
            empty_row="zeros",
            masked_content="nan_safe",
            deterministic=True,
            validates_calls=True,
        ),
    )

    def cache(self, spec: CacheSpec) -> PagedStore:
        """An empty cache; malformed specs raise ValueError."""
        check_spec(spec)
        if spec.page is None:
            raise Unsupported(f"{self.name}: only in pages; got a spec without a page")
        refuse_elsewhere(self.name, spec.device)
        return PagedStore(spec, Device(write, copy, move, triton_paged.attention))


adapter = TritonCache()


def compile_specs() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """(kernel, signature, constexprs, options) of what is compiled without a device."""
    for dtype in ("fp32", "bf16"):
        sizes: tuple[tuple[Any, dict[str, str], dict[str, Any]], ...] = (
            (
                append_kernel,
                {
                    "ROWS": f"*{dtype}", "POOL": f"*{dtype}",
                    **dict.fromkeys(("OFFSETS", "LENGTHS", "TABLE"), "*i32"),
                    **dict.fromkeys(("R", "C", "size", "most"), "i32"),
                },
                {"BLOCK_R": 8, "BLOCK_C": 1024},
            ),
            (
                copy_kernel,
                {"POOL": f"*{dtype}", "PAIRS": "*i32", "C": "i32"},
                {"BLOCK_C": BLOCK_C},
            ),
            (
                move_kernel,
                {"POOL": f"*{dtype}", "PAIRS": "*i32", "n": "i32", "C": "i32"},
                {"BLOCK_C": BLOCK_C},
            ),
        )  # fmt: skip
        for kernel, signature, constexprs in sizes:
            yield kernel, signature | dict.fromkeys(constexprs, "constexpr"), constexprs, {}
