"""A paged KV cache in plain PyTorch: reference counts on the host, pools on the device.

    entry j of request r lies in slot j % size of page held[r][j // size]
    references[page] = the number of requests that hold it; a page is free where that is 0

A fork holds the pages of its parent. Whoever writes to a page that others hold, too, first takes
a free page, copies the old one and lets go of that: copy on write.

Shapes: pools k [pages, size, Hkv, D] and v [pages, size, Hkv, Dv]; rows k [N, Hkv, D] and v [N,
Hkv, Dv]; q [R, Hq, Tq, D]; out [R, Hq, Tq, Dv]. What runs on the device is four functions,
`Device`, so that another module can bring its own kernels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelassay.impls import torch_paged
from kernelassay.impls.cache_calls import check_append, check_cut, check_spec, check_steps
from kernelassay.impls.contract import (
    CACHING,
    AttendCall,
    CacheSpec,
    Capabilities,
    Conventions,
    Pages,
    PageUse,
    Pools,
    Unsupported,
    Visibility,
)

Slots = list[int]
"""Numbers of slots, those of page p from p * size on."""
Span = tuple[int, int, int]
"""A request and the positions low..high - 1 of it that are written to."""


class PageTable:
    """Which pages each request holds, and who else does."""

    def __init__(self, requests: int, size: int, pages: int) -> None:
        self.size = size
        self.lengths = [0] * requests
        self.held: list[list[int]] = [[] for _ in range(requests)]
        self.references = [0] * pages
        self.free = list(range(pages))[::-1]

    def take(self) -> int:
        """A free page, held once."""
        page = self.free.pop()
        self.references[page] = 1
        return page

    def drop(self, page: int) -> None:
        """One request fewer holds *page*."""
        self.references[page] -= 1
        if self.references[page] == 0:
            self.free.append(page)

    def columns(self, low: int, high: int) -> range:
        """Which of a request's pages hold the positions low..high - 1."""
        return range(low // self.size, -(-high // self.size))

    def check_room(self, spans: Sequence[Span]) -> None:
        """A ValueError, before anything is changed, unless *spans* find their pages."""
        shared, need = dict(enumerate(self.references)), 0
        for r, low, high in spans:
            held = self.held[r]
            for column in self.columns(low, high):
                if column >= len(held):
                    need += 1
                elif shared[held[column]] > 1:
                    shared[held[column]] -= 1  # who writes last has the page to itself
                    need += 1
        if need > len(self.free):
            raise ValueError(f"pool: got {len(self.free)} free pages, expected {need}")

    def written(self, r: int, low: int, high: int) -> list[tuple[int, int]]:
        """Request r alone holds the pages of positions low..high - 1; the copies this needs."""
        held, copies = self.held[r], []
        for column in self.columns(low, high):
            if column == len(held):
                held.append(self.take())
            elif self.references[held[column]] > 1:
                page = self.take()
                copies.append((held[column], page))
                self.drop(held[column])
                held[column] = page
        return copies

    def cut(self, r: int, length: int) -> None:
        """Request r keeps its first *length* entries and the pages of those."""
        columns = -(-length // self.size)
        for page in self.held[r][columns:]:
            self.drop(page)
        del self.held[r][columns:]
        self.lengths[r] = length

    def fork(self, parent: int, child: int, length: int) -> None:
        """The child holds the pages of the parent's first *length* entries, as the parent does."""
        self.cut(child, 0)
        self.held[child] = self.held[parent][: -(-length // self.size)]
        for page in self.held[child]:
            self.references[page] += 1
        self.lengths[child] = length

    def slots(self, r: int, positions: Sequence[int]) -> Slots:
        """Where these entries of request r lie."""
        return [self.held[r][j // self.size] * self.size + j % self.size for j in positions]

    def table(self, device: torch.device) -> Tensor:
        """The pages of each request, [R, most + 1], int32, then -1."""
        most = 1 + max(map(len, self.held))
        rows = [held + [-1] * (most - len(held)) for held in self.held]
        return torch.tensor(rows, dtype=torch.int32, device=device)


@dataclass(frozen=True)
class Device:
    """What runs on the device; pools are changed in place."""

    write: Callable[[Pools, PageTable, Tensor, Tensor, Sequence[int]], None]
    """Rows of k and v go to the last counts[r] entries of each request r, one after the other."""
    copy: Callable[[Pools, Sequence[tuple[int, int]]], None]
    """Page a is copied to page b, for each (a, b)."""
    move: Callable[[Pools, Slots, Slots], None]
    """What lies in the first slots goes to the second; it moves down within its request."""
    attend: Callable[[AttendCall, Pages, Tensor], tuple[Tensor, Tensor]]


class PagedStore:
    """A cache in pages; `kernelassay.impls.caching.Store` says what the methods do."""

    def __init__(self, spec: CacheSpec, device: Device) -> None:
        assert spec.page is not None
        assert spec.pages is not None
        self.spec, self.device = spec, device
        self.pages_of = PageTable(spec.R, spec.page, spec.pages)
        shape = (spec.pages, spec.page, spec.Hkv)
        self.pool = Pools(
            torch.empty(*shape, spec.D, dtype=spec.dtype, device=spec.device),
            torch.empty(*shape, spec.Dv, dtype=spec.dtype, device=spec.device),
        )

    def append(self, k: Tensor, v: Tensor, offsets: Tensor) -> None:
        """Ragged rows go to the ends of the requests; malformed ones raise ValueError."""
        lengths = self.pages_of.lengths
        counts = check_append(self.spec, lengths, k, v, offsets)
        spans = [(r, L, L + n) for r, (L, n) in enumerate(zip(lengths, counts, strict=True)) if n]
        self.pages_of.check_room(spans)
        copies = []
        for r, low, high in spans:
            copies += self.pages_of.written(r, low, high)
            lengths[r] = high
        self.device.copy(self.pool, copies)
        self.device.write(self.pool, self.pages_of, k, v, counts)

    def truncate(self, lengths: Tensor) -> None:
        """The last entries of each request go."""
        for r, n in enumerate(check_cut(self.pages_of.lengths, lengths)):
            self.pages_of.cut(r, n)

    def compact(self, request: int, start: int, kept: Sequence[int]) -> None:
        """Scattered entries move together."""
        check_steps(self.pages_of.lengths, request, start, kept)
        end = start + len(kept)
        moved = [i for i, source in enumerate(kept) if source != i]
        if moved:
            span = (request, start + moved[0], end)
            self.pages_of.check_room([span])
            pages = self.pages_of.written(*span)
            self.device.copy(self.pool, pages)
            sources = self.pages_of.slots(request, [start + kept[i] for i in moved])
            targets = self.pages_of.slots(request, [start + i for i in moved])
            self.device.move(self.pool, sources, targets)
        self.pages_of.cut(request, end)

    def fork(self, parent: int, child: int, length: int) -> None:
        """The child shares the parent's pages."""
        check_steps(self.pages_of.lengths, parent, length, (), child)
        self.pages_of.fork(parent, child, length)

    def free(self, request: int) -> None:
        """All pages of the request go."""
        check_steps(self.pages_of.lengths, request, 0, ())
        self.pages_of.cut(request, 0)

    def attend(self, q: Tensor) -> Tensor:
        """Paged attention over what is held."""
        lengths = torch.tensor(self.pages_of.lengths, device=q.device)
        table = self.pages_of.table(q.device)
        pages = Pages(table=table, size=self.pages_of.size, layout="NHD")
        W = self.spec.window
        within = (None if W is None else W - 1, None)
        see = Visibility(causal="bottom_right", window=within, lengths=lengths)
        call = AttendCall(q=q, k=self.pool.k, v=self.pool.v, visibility=see, pages=pages)
        return self.device.attend(call, pages, lengths)[0]

    def lengths(self) -> list[int]:
        """How many entries each request holds."""
        return list(self.pages_of.lengths)

    def pages(self) -> PageUse:
        """Which pages are held, and which are free."""
        held = tuple(tuple(pages) for pages in self.pages_of.held)
        return PageUse(held, tuple(self.pages_of.free))

    def pools(self) -> Pools:
        """The pools."""
        return self.pool


def write(pools: Pools, pages: PageTable, k: Tensor, v: Tensor, counts: Sequence[int]) -> None:
    """Rows of k and v go to the last counts[r] entries of each request r."""
    slots = []
    for r, n in enumerate(counts):
        end = pages.lengths[r]
        slots += pages.slots(r, range(end - n, end))
    at = torch.tensor(slots, dtype=torch.int64, device=k.device)
    for pool, rows in ((pools.k, k), (pools.v, v)):
        pool.flatten(0, 1)[at] = rows[: len(slots)]


def copy(pools: Pools, copies: Sequence[tuple[int, int]]) -> None:
    """Whole pages."""
    for source, target in copies:
        pools.k[target] = pools.k[source]
        pools.v[target] = pools.v[source]


def move(pools: Pools, sources: Slots, targets: Slots) -> None:
    """What lies in *sources* goes to *targets*: all is read before anything is written."""
    for pool in (pools.k, pools.v):
        flat = pool.flatten(0, 1)
        flat[targets] = flat[sources]


class TorchCache:
    """The store above."""

    name = "torch_cache"
    capabilities = Capabilities(
        devices=("cpu", "cuda"),
        dtypes=("fp32", "bf16", "fp16"),
        head_sizes=(16, 8, 32, 64, 80, 128, 256),
        tiles=(16, 32),
        pages=(4, 1, 2, 3, 16),
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
        return PagedStore(spec, Device(write, copy, move, torch_paged.attention))


adapter = TorchCache()
