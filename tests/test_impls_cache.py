"""The bundled KV caches beside attention in float64, and what they refuse."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelassay.impls import torch_cache, torch_ring, transformers_cache
from kernelassay.impls.contract import CacheSpec, Caching, Capabilities, ContractError, Unsupported
from kernelassay.impls.torch_cache import PageTable
from kernelassay.properties.caching.case import CacheCase
from kernelassay.properties.caching.run import Run, played, room
from kernelassay.properties.content import normal
from kernelassay.properties.engine import Options, check
from kernelassay.properties.property import select
from kernelassay.properties.subject import Subject

try:
    from kernelassay.impls import triton_cache
except ImportError:
    triton_cache = None  # type: ignore[assignment]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(
    not INTERPRETED, reason="needs TRITON_INTERPRET=1 before Triton's import"
)
SPEC = CacheSpec(
    R=2, Hq=4, Hkv=2, D=16, Dv=8, most=12, dtype=torch.float32, device=torch.device("cpu")
)
PAGED = replace(SPEC, page=3, pages=9)
KERNELS = {
    "torch_cache": (torch_cache.adapter, PAGED),
    "torch_ring": (torch_ring.adapter, SPEC),
    "torch_ring of 5": (torch_ring.adapter, replace(SPEC, window=5, spare=2)),
    "torch_cache of 5": (torch_cache.adapter, replace(PAGED, window=5, spare=2)),
}


def random(seed: int, *shape: int) -> torch.Tensor:
    """About N(0, 1), a hash of the place."""
    axes = [torch.arange(n).view([-1 if i == j else 1 for j in range(len(shape))])
            for i, n in enumerate(shape)]  # fmt: skip
    return normal(seed, *axes).float()


def right(q: Any, k: Any, v: Any, window: int | None) -> torch.Tensor:
    """Attention of one request in float64, causal at the bottom right, within the window."""
    L, T, group = len(k), q.shape[1], q.shape[0] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    i, j = torch.arange(L - T, L)[:, None], torch.arange(L)
    hidden = (j > i) | (j <= i - (window or L))
    z = (q.double() @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    return z.softmax(-1) @ v


@pytest.mark.parametrize("name", KERNELS)
def test_attention_over_a_cache_is_attention(name: str) -> None:
    """Random keys and values, appended in two pieces, cut and appended to again."""
    kernel, spec = KERNELS[name]
    store = kernel.cache(spec)
    k, v = random(1, 20, 2, 16), random(2, 20, 2, 8)
    store.append(k[:12], v[:12], torch.tensor([0, 8, 12], dtype=torch.int32))
    store.truncate(torch.tensor([7, 3], dtype=torch.int32))
    store.append(k[12:17], v[12:17], torch.tensor([0, 2, 5], dtype=torch.int32))
    held = {0: [*range(7), 12, 13], 1: [8, 9, 10, 14, 15, 16]}
    assert store.lengths() == [9, 6]
    q = random(3, 2, 4, 2, 16)
    out = store.attend(q)
    for r, rows in held.items():
        expected = right(q[r], k[rows], v[rows], spec.window)
        assert torch.allclose(out[r].double(), expected, atol=1e-5), r


PROGRAMS = {
    "everything": (("append", (5, 2)), ("fork", 0, 1, 4), ("append", (1, 2)),
                   ("compact", 0, 1, (1, 3)), ("truncate", (2, 5)), ("append", (4, 0))),
    "copies": (("append", (7, 0)), ("fork", 0, 1, 5), ("append", (0, 3)), ("append", (2, 1))),
    "moves": (("append", (1, 9)), ("compact", 1, 0, (1, 2, 3, 5, 8)), ("append", (2, 1))),
    "shared moves": (("append", (0, 6)), ("fork", 1, 0, 6), ("compact", 1, 1, (1, 2, 4))),
}  # fmt: skip


@interpreted
@pytest.mark.parametrize("name", PROGRAMS)
def test_triton_holds_what_torch_holds(name: str) -> None:
    """The same program leaves the same pages, and in what is held the same bits."""
    case = CacheCase(R=2, Hkv=2, Hq=2, page=3, padding=2, steps=PROGRAMS[name])
    stores = []
    for kernel, device in ((torch_cache.adapter, "cpu"), (triton_cache.adapter, "interpreter")):
        run = played(Subject(kernel, "fp16", device), case, each=(), last=("needle", "mean"))
        stores.append((run.method("pages"), run.method("pools")))
    (use, first), (same, second) = stores
    assert use == same
    for r, L in enumerate(case.states()[-1].lengths):
        for j in range(L):
            at = use.held[r][j // 3], j % 3
            assert torch.equal(first.k[at], second.k[at])
            assert torch.equal(first.v[at], second.v[at])


@interpreted
@pytest.mark.parametrize("law", ["bits", "memory"])
def test_the_triton_cache_keeps_the_law_interpreted(law: str) -> None:
    """At the smoke level, in a dtype that differs from law to law."""
    subject = Subject(triton_cache.adapter, ("fp16", "bf16", "fp32")[len(law) % 3], "interpreter")
    (prop,) = select(f"transactions.{law}")
    outcome = check(prop, subject, Options(level="smoke", seed=1))
    assert outcome.record.status == "passed", outcome.record.reason


@pytest.mark.skipif(INTERPRETED or triton_cache is None, reason="Triton compiles in this mode")
def test_the_triton_cache_refuses_the_cpu_when_not_interpreted() -> None:
    """It says what to set."""
    with pytest.raises(Unsupported, match="set TRITON_INTERPRET=1 before Triton is imported"):
        triton_cache.adapter.cache(PAGED)


@interpreted
def test_what_is_compiled_names_every_argument() -> None:
    """Signatures and constants are those of the kernels."""
    specs = [*triton_cache.compile_specs()]
    assert {kernel.fn.__name__ for kernel, *_ in specs} == {
        "append_kernel", "copy_kernel", "move_kernel",
    }  # fmt: skip
    for kernel, signature, constexprs, _ in specs:
        assert set(signature) == set(kernel.arg_names)
        assert {n for n, kind in signature.items() if kind == "constexpr"} == set(constexprs)


def test_a_page_is_free_once_nobody_holds_it() -> None:
    """Two forks of a page; it comes back with the last one."""
    pages = PageTable(3, 4, 2)
    assert pages.written(0, 0, 3) == []
    pages.lengths[0] = 3
    pages.fork(0, 1, 3)
    pages.fork(0, 2, 2)
    assert pages.references == [3, 0]
    assert pages.written(1, 3, 4) == [(0, 1)]
    assert (pages.references, pages.free) == ([2, 1], [])
    with pytest.raises(ValueError, match="pool: got 0 free pages, expected 1"):
        pages.check_room([(2, 2, 3)])
    pages.cut(0, 0)
    assert pages.free == []
    pages.cut(2, 0)
    assert pages.free == [0]


def test_a_compaction_without_room_changes_nothing() -> None:
    """Entries of a shared page move: the copy finds no page, and both requests keep theirs."""
    store = torch_cache.adapter.cache(replace(PAGED, pages=1))
    k, v = random(1, 3, 2, 16), random(2, 3, 2, 8)
    store.append(k, v, torch.tensor([0, 3, 3], dtype=torch.int32))
    store.fork(0, 1, 3)
    with pytest.raises(ValueError, match="pool: got 0 free pages, expected 1"):
        store.compact(1, 0, [1, 2])
    assert [*store.lengths()] == [3, 3]
    assert store.pages().held == ((0,), (0,))
    assert torch.equal(store.pools().k[0], k)


def test_who_writes_last_needs_no_page() -> None:
    """Two requests share a page and both write to it: one copy, not two."""
    pages = PageTable(2, 4, 2)
    pages.written(0, 0, 3)
    pages.lengths[0] = 3
    pages.fork(0, 1, 3)
    both = [(0, 3, 4), (1, 3, 4)]
    pages.check_room(both)
    with pytest.raises(ValueError, match="pool: got 1 free pages, expected 3"):
        pages.check_room([(0, 3, 5), (1, 3, 5)])
    assert [pages.written(*span) for span in both] == [[(0, 1)], []]


@pytest.mark.parametrize(
    ("kernel", "fields", "said"),
    [
        (torch_cache.adapter, {"R": 0}, "R: got 0"),
        (torch_cache.adapter, {"Hq": 3}, "Hq: got 3, expected a multiple of Hkv = 2"),
        (torch_cache.adapter, {"pages": None}, "pages: got None, expected given with page"),
        (torch_ring.adapter, {"page": None, "pages": None, "window": 0}, "window: got 0"),
        (torch_ring.adapter, {"page": None, "pages": None, "spare": -1}, "spare: got -1"),
    ],
)
def test_malformed_specs_raise(kernel: Any, fields: dict[str, Any], said: str) -> None:
    """A `ValueError` names the field, what came and what is expected."""
    with pytest.raises(ValueError, match=said):
        kernel.cache(replace(PAGED, **fields))


def test_caches_refuse_specs_of_another_kind() -> None:
    """Pages where there are none, none where there must be some, windows."""
    with pytest.raises(Unsupported, match="without a page"):
        torch_cache.adapter.cache(SPEC)
    with pytest.raises(Unsupported, match="got a page of 3"):
        torch_ring.adapter.cache(PAGED)
    with pytest.raises(Unsupported, match="full attention"):
        transformers_cache.dynamic_cache.cache(replace(SPEC, window=2))


def test_a_declaration_must_be_known() -> None:
    """Of pages, and of what `Capabilities.caching` is."""
    with pytest.raises(ValueError, match=r"Caching\.pages: got 'some', expected exact or reserve"):
        Caching(pages="some")  # type: ignore[arg-type]
    with pytest.raises(ContractError, match=r"Capabilities\.caching: got 1, expected Caching"):
        Capabilities(
            devices=("cpu",),
            dtypes=("fp32",),
            head_sizes=(16,),
            supports={"cache"},  # type: ignore[arg-type]
            caching=1,  # type: ignore[arg-type]
        )


def test_a_pool_is_no_larger_than_the_steps_need() -> None:
    """Three pages for a fork of two that is written to; more only where that is declared."""
    case = CacheCase(
        R=2, page=2, steps=(("append", (3, 0)), ("fork", 0, 1, 3), ("append", (0, 1)))
    )
    subject = Subject(torch_cache.adapter, "fp32", "cpu")
    assert room(subject, case) == (4, 3)
    Run(subject, case).open(*room(subject, case))


def test_transformers_caches_have_one_length() -> None:
    """Unequal appends, cuts and forks are refused, not answered for the first request."""
    pytest.importorskip("transformers")
    for kernel in (transformers_cache.dynamic_cache, transformers_cache.static_cache):
        store = kernel.cache(SPEC)
        k, v = random(1, 4, 2, 16), random(2, 4, 2, 8)
        store.append(k, v, torch.tensor([0, 2, 4], dtype=torch.int32))
        with pytest.raises(Unsupported, match="one length"):
            store.append(k, v, torch.tensor([0, 1, 4], dtype=torch.int32))
        with pytest.raises(Unsupported, match="every row"):
            store.append(k, v, torch.tensor([0, 1, 2], dtype=torch.int32))
        with pytest.raises(Unsupported, match="one length"):
            store.truncate(torch.tensor([2, 1], dtype=torch.int32))
        with pytest.raises(Unsupported, match="one length"):
            store.fork(0, 1, 1)
        assert store.lengths() == [2, 2]
