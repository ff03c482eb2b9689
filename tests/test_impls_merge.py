"""The bundled merges are the algebra of states, within the error that their numerics declare."""

import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_calls import DTYPES
from torch import Tensor

from kernelassay.impls import flashinfer_merge, torch_merge
from kernelassay.impls.contract import (
    MERGING,
    MergeCall,
    Unsupported,
    checked_adapter,
    numerics_for,
)
from kernelassay.impls.interpreter import interpreting
from kernelassay.oracle.budget_merge import Part, exact_part, merged, merged_along
from kernelassay.oracle.merging import State, Tree, binary_trees, fold, merge

try:
    from kernelassay.impls import triton_merge
except ImportError:  # Triton is for Linux
    triton_merge = None  # type: ignore[assignment]

U = 2.0**-24
TINY = 2.0**-126
COUNTS = (1, 2, 3, 17)
FAR = (0.0, 1e2, -1e2, 1e4, -1e4, 1e5, -1e5)
LN2 = math.log(2)
NEEDS = "needs TRITON_INTERPRET=1 before Triton is imported"
TRITON = pytest.mark.skipif(not interpreting(), reason=NEEDS)


def adapters(*, torch_ones: tuple[Any, ...], triton_ones: tuple[str, ...]) -> list[Any]:
    """Parameters: some of torch_merge, and some names of triton_merge, where it interprets."""
    found = [pytest.param(x, id=x.name) for x in torch_ones]
    for name in triton_ones:
        kernel = getattr(triton_merge, name, None)
        found.append(pytest.param(kernel, id=f"triton {name}", marks=TRITON))
    return found


OUTPUTS = adapters(
    torch_ones=(torch_merge.adapter, torch_merge.pairs, torch_merge.base2),
    triton_ones=("adapter",),
)
MANY = adapters(torch_ones=(torch_merge.adapter, torch_merge.base2), triton_ones=("adapter",))
STATES = adapters(torch_ones=(torch_merge.states,), triton_ones=("states",))
EVERY = [*OUTPUTS, *STATES]


Parts = tuple[Tensor, Tensor]
"""out [n, 64, 8] and lse [n, 64]."""


def normal(n: int, seed: int, far: float, spread: float) -> Parts:
    """Standard normal outputs; LSEs normal around *far*. All numbers are fp32."""
    generator = torch.Generator().manual_seed(seed)
    lse = torch.randn(n, 64, generator=generator)
    return torch.randn(n, 64, 8, generator=generator), far + spread * lse


def emptied(which: Callable[[Tensor, int], Tensor]) -> Callable[[Parts], Parts]:
    """Some parts without keys, by their number and how many there are; their outputs are NaN."""

    def without(parts: Parts) -> Parts:
        out, lse = parts
        gone = which(torch.arange(len(lse))[:, None], len(lse)).expand_as(lse)
        return out.masked_fill(gone[..., None], math.nan), lse.masked_fill(gone, -math.inf)

    return without


HARD: dict[str, Callable[[Parts], Parts]] = {
    "as they come": lambda x: x,
    "equal LSEs": lambda x: (x[0], x[1][:1].expand_as(x[1])),
    "rising": lambda x: (x[0], x[1].sort(0).values),
    "falling": lambda x: (x[0], x[1].sort(0, descending=True).values),
    "far apart": lambda x: (x[0], 200 * x[1]),
    "1e5 on both sides of zero": lambda x: (x[0], x[1].sign() * 1e5),
    "at the edge of underflow": lambda x: (x[0], torch.cat((x[1][:1], x[1][1:] - 87.3))),
    "cancelling": lambda x: (
        x[0] + 1000 * (-1.0) ** torch.arange(len(x[0]))[:, None, None], x[1][:1].expand_as(x[1])
    ),
    "huge beside light parts": lambda x: (
        x[0] * (x[1].amax(0) - x[1]).clamp_max(60).exp()[..., None], x[1]
    ),
    "huge": lambda x: (x[0] * 2.0**110, 20 * x[1]),
    "tiny": lambda x: (x[0] * 2.0**-126, x[1]),
    "the first empty": emptied(lambda i, n: i == 0),
    "the middle empty": emptied(lambda i, n: i == n // 2),
    "the last empty": emptied(lambda i, n: i == n - 1),
    "only one": emptied(lambda i, n: i != n // 2),
    "all empty": emptied(lambda i, n: i >= 0),
    "holes": emptied(lambda i, n: (i * 7 + torch.arange(64)) % 5 < 2),
}  # fmt: skip
"""What is made of normal parts to strain a merge."""


def base_of(kernel: Any) -> float:
    """log of the base of its LSEs."""
    return LN2 if kernel.capabilities.conventions.lse_base == "2" else 1.0


def make_call(
    n: int = 2,
    *,
    far: float = 0.0,
    kind: str = "as they come",
    dtype: str = "fp32",
    spread: float = 3.0,
    seed: int = 0,
    sums: bool = False,
) -> MergeCall:
    """Parts of B2 H4 T8 Dv8, made hard in the way called *kind*; with *sums* states (u, m, l)."""
    out, lse = HARD[kind](normal(n, seed, far, spread))
    outs, lses = out.reshape(n, 2, 4, 8, 8).to(DTYPES[dtype]), lse.reshape(n, 2, 4, 8).clone()
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 40, lses.shape, generator=generator)  # of keys: l is at least 1
    total = torch.where(lses == -math.inf, 0.0, counts * (1 + U * counts).float())
    return MergeCall(outs=outs, lses=lses, sums=total if sums else None)


def truth(kernel: Any, call: MergeCall, dtype: str) -> Part:
    """What is true of *call*, and what its numerics allow."""
    parts = map(exact_part, call.outs, call.lses.double() * base_of(kernel))
    return merged(*parts, numerics=numerics_for(kernel, dtype)[0])


def ratio(kernel: Any, budget: Part, out: Tensor, lse: Tensor) -> float:
    """The largest error of out or lse over what is allowed; NaN counts as infinite."""
    lse = lse.double() * base_of(kernel)
    off = torch.where(lse == budget.lse, 0.0, (lse - budget.lse).abs()) / budget.lse_allowed
    worst = torch.maximum(((out.double() - budget.out).abs() / budget.out_allowed).amax(-1), off)
    return float(worst.nan_to_num(math.inf).max())


def over_budget(kernel: Any, call: MergeCall, dtype: str) -> float:
    """The same of a merge of *call*."""
    out, lse = kernel.merge(call)
    assert out.dtype == call.outs.dtype
    assert lse.dtype == torch.float32
    assert out.shape == call.outs.shape[1:]
    assert lse.shape == call.lses.shape[1:]
    return ratio(kernel, truth(kernel, call, dtype), out, lse)


def sizes(kernel: Any, kind: str) -> list[tuple[int, float, int]]:
    """(n, far, seed) to try on parts of this kind; an interpreted kernel gets few."""
    turn, interpreted = list(HARD).index(kind), "interpreter" in kernel.capabilities.devices
    counts = COUNTS[: 3 if interpreted and turn % 3 else 4]
    if "merge.many" not in kernel.capabilities.supports:
        counts = (2, 2)
    fars = [(FAR[(turn + 2 * i) % 7], FAR[(turn + 2 * i + 3) % 7]) for i in range(len(counts))]
    few = 1 if interpreted else 2
    return [(n, far, turn + n) for n, two in zip(counts, fars, strict=True) for far in two[:few]]


def fits(kind: str, dtype: str) -> bool:
    """Whether numbers of this kind are numbers of the dtype."""
    return dtype != "fp16" or "huge" not in kind


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("kernel", OUTPUTS)
def test_error_is_within_the_declared_numerics(kernel: Any, kind: str, dtype: str) -> None:
    """Wherever LSEs lie, whichever part is empty; an empty part's output is NaN."""
    if not fits(kind, dtype):
        pytest.skip(f"{kind}: too large for {dtype}")
    for n, far, seed in sizes(kernel, kind):
        call = make_call(n, far=far, kind=kind, dtype=dtype, seed=seed)
        assert over_budget(kernel, call, dtype) <= 1.0, (n, far)


def state_bound(call: MergeCall) -> tuple[State, Tensor, Tensor]:
    """The true state of the union, and how far u and l may be off.

    A weight e^(m_i - m) is off by 3u (m - m_i), for the difference, its product with log2 e and
    that constant, and by the exponential's 4u; products and sums of S parts by u each.
    """
    assert call.sums is not None
    parts = [
        State(m.double(), l.double(), torch.where(l[..., None] > 0, u.double(), 0.0))
        for u, m, l in zip(call.outs, call.lses, call.sums, strict=True)  # noqa: E741
    ]
    whole = merge(*parts)
    allowed_u, allowed_l = torch.zeros_like(whole.u), torch.zeros_like(whole.l)
    for part in parts:
        below = torch.where(part.l > 0, whole.m - part.m, 0.0)
        off = 1.01 * torch.exp(-below) * U * (3 * below + 4 + len(parts) + 1)
        allowed_l += off * part.l + TINY * (part.l + 2)
        allowed_u += off[..., None] * part.u.abs() + TINY * (part.u.abs() + 2)
    return whole, allowed_u, allowed_l


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("kernel", STATES)
def test_states_are_merged(kernel: Any, kind: str) -> None:
    """The maximum is exact; numerators and denominators are what roundings allow."""
    for n, far, seed in sizes(kernel, kind):
        call = make_call(n, far=far, kind=kind, seed=seed, sums=True)
        u, m, l = kernel.merge(call)  # noqa: E741
        assert u.dtype == m.dtype == l.dtype == torch.float32
        whole, allowed_u, allowed_l = state_bound(call)
        assert torch.equal(m.double(), whole.m), (n, far)
        assert ((l.double() - whole.l).abs() <= allowed_l).all(), (n, far)
        assert ((u.double() - whole.u).abs() <= allowed_u).all(), (n, far)
        empty = whole.l == 0
        assert (l[empty] == 0).all()
        assert (u[empty] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", OUTPUTS)
def test_every_tree_of_merges_is_within_its_budget(kernel: Any, dtype: str) -> None:
    """Two at a time in any order, each result rounded to the dtype that it is kept in."""
    call = make_call(4, dtype=dtype, far=50.0, kind="holes")
    parts = list(map(exact_part, call.outs, call.lses.double() * base_of(kernel)))
    numerics = numerics_for(kernel, dtype)[0]

    def pair(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        outs, lses = (torch.stack(x) for x in zip(a, b, strict=True))
        return kernel.merge(MergeCall(outs=outs, lses=lses))

    trees: list[Tree] = [*binary_trees((0, 1, 2, 3)), *binary_trees((3, 1, 0, 2))]
    for tree in trees:
        result = fold(tree, list(zip(call.outs, call.lses, strict=True)), pair)
        budget = merged_along(tree, parts, numerics)
        assert ratio(kernel, budget, *result) <= 1.0, tree


def test_parts_weigh_as_much_as_their_mass() -> None:
    """Masses 1 and 3 with outputs 0 and 4 give 3, not the mean 2; in base 2 as well."""
    for kernel in (torch_merge.adapter, torch_merge.pairs, torch_merge.base2):
        lses = torch.tensor([0.0, math.log(3)]) / base_of(kernel)
        outs = torch.tensor([0.0, 4.0])
        out, lse = kernel.merge(
            MergeCall(outs=outs.view(2, 1, 1, 1, 1), lses=lses.view(2, 1, 1, 1))
        )
        assert float(out) == pytest.approx(3, rel=1e-6)
        assert float(lse) * base_of(kernel) == pytest.approx(math.log(4), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", MANY)
def test_one_part_alone_stays_as_it_is(kernel: Any, dtype: str) -> None:
    """Bit for bit, wherever its LSE lies."""
    for far in FAR:
        call = make_call(1, far=far, dtype=dtype)
        out, lse = kernel.merge(call)
        assert torch.equal(out, call.outs[0])
        assert torch.equal(lse, call.lses[0])


@pytest.mark.parametrize("poison", [math.nan, math.inf, -6e4])
@pytest.mark.parametrize("kernel", EVERY)
def test_of_nothing_comes_nothing(kernel: Any, poison: float) -> None:
    """Where all parts are empty u, l and out are 0, m and lse are -inf, whatever they hold."""
    call = make_call(2, kind="all empty", sums=kernel.capabilities.state == "mlu")
    call = dataclasses.replace(call, outs=torch.full_like(call.outs, poison))
    out, lse, *total = kernel.merge(call)
    assert (out == 0).all()
    assert (lse == -math.inf).all()
    assert all((x == 0).all() for x in total)


@pytest.mark.parametrize("kernel", [*MANY, *STATES])
def test_empty_parts_change_no_bit(kernel: Any) -> None:
    """The first, the middle or the last part may be empty and hold NaN."""
    sums = kernel.capabilities.state == "mlu"
    few = make_call(3, far=-1e4, spread=30.0, sums=sums)
    expected = kernel.merge(few)
    nothing = make_call(1, kind="all empty", sums=sums)
    for at in (0, 1, 3):
        more = [
            None if a is None or b is None else torch.cat((a[:at], b, a[at:]))
            for a, b in (
                (few.outs, nothing.outs),
                (few.lses, nothing.lses),
                (few.sums, nothing.sums),
            )
        ]
        assert more[0] is not None
        assert more[1] is not None
        found = kernel.merge(MergeCall(outs=more[0], lses=more[1], sums=more[2]))
        assert all(map(torch.equal, found, expected)), at


@pytest.mark.parametrize("kernel", STATES)
def test_a_part_without_keys_is_known_by_its_sum(kernel: Any) -> None:
    """Where l is 0 the maximum counts for nothing either, be it larger than all others."""
    call = make_call(3, kind="the middle empty", sums=True)
    assert call.sums is not None
    raised = torch.where(call.sums == 0, 1e5, call.lses)
    for a, b in zip(
        kernel.merge(call), kernel.merge(dataclasses.replace(call, lses=raised)), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kernel", MANY)
def test_what_is_not_a_number_stays_visible(kernel: Any) -> None:
    """An LSE of NaN is not an empty part; its row, and no other, is NaN."""
    call = make_call(3)
    call.lses[1, 0, 2, 3] = math.nan
    out, lse = kernel.merge(call)
    assert out[0, 2, 3].isnan().all()
    assert lse[0, 2, 3].isnan()
    assert lse.isnan().sum() == 1
    assert out.isnan().sum() == 8


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "BTHD": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "BTNHD": lambda x: x.movedim(0, 2).transpose(1, 3).contiguous().transpose(1, 3).movedim(2, 0),
    "every other row": lambda x: x.repeat_interleave(2, 3)[:, :, :, ::2],
    "every other head": lambda x: x.repeat_interleave(2, 2)[:, :, 1::2],
    "every other part": lambda x: x.repeat_interleave(2, 0)[::2],
    "parts innermost": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "starting late": lambda x: torch.cat((x.new_zeros(3), x.flatten()))[3:].view(x.shape),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kernel", EVERY)
def test_views_of_any_strides_are_read(kernel: Any, view: str) -> None:
    """Outputs, LSEs and sums may lie each in their own way; declared bits stay."""
    call = make_call(2, kind="holes", sums=kernel.capabilities.state == "mlu")
    expected = kernel.merge(call)
    way = VIEWS[view]
    seen = [(way(call.outs), call.lses, call.sums), (call.outs, way(call.lses), call.sums)]
    if call.sums is not None:
        seen.append((call.outs, call.lses, way(call.sums)))
    for outs, lses, sums in seen:
        assert torch.equal(outs.nan_to_num(), call.outs.nan_to_num())
        found = kernel.merge(MergeCall(outs=outs, lses=lses, sums=sums))
        for a, b in zip(found, expected, strict=True):
            if kernel.capabilities.conventions.batch_invariant:
                assert torch.equal(a, b)
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("kernel", EVERY)
def test_what_is_shared_is_read_by_all(kernel: Any, axis: int) -> None:
    """An axis of stride 0: the same part, request, head or row again and again."""
    call = make_call(2, sums=kernel.capabilities.state == "mlu")

    def shared(x: Tensor) -> Tensor:
        return x.narrow(axis, 0, 1).expand_as(x)

    outs, lses = shared(call.outs), shared(call.lses)
    sums = None if call.sums is None else shared(call.sums)
    copied = None if sums is None else sums.contiguous()
    found = kernel.merge(MergeCall(outs=outs, lses=lses, sums=sums))
    expected = kernel.merge(MergeCall(outs=outs.contiguous(), lses=lses.contiguous(), sums=copied))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("Dv", [1, 3, 16, 40, 80, 256])
@pytest.mark.parametrize("kernel", OUTPUTS)
def test_any_size_of_values(kernel: Any, Dv: int) -> None:
    """Powers of two or not; 33 rows are one more than a program of the Triton kernel has."""
    generator = torch.Generator().manual_seed(Dv)
    outs = torch.randn(2, 1, 3, 11, Dv, generator=generator)
    call = MergeCall(outs=outs, lses=torch.randn(2, 1, 3, 11, generator=generator))
    assert over_budget(kernel, call, "fp32") <= 1.0


@pytest.mark.parametrize("kernel", EVERY)
def test_no_rows(kernel: Any) -> None:
    """Without requests, heads or rows the results are empty."""
    for shape in ((0, 2, 3), (2, 0, 3), (2, 3, 0)):
        outs, lses = torch.zeros(2, *shape, 8), torch.zeros(2, *shape)
        sums = lses if kernel.capabilities.state == "mlu" else None
        out, lse, *_ = kernel.merge(MergeCall(outs=outs, lses=lses, sums=sums))
        assert out.shape == (*shape, 8)
        assert lse.shape == shape


@TRITON
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_a_row_are_its_own(dtype: str) -> None:
    """A row alone has the bits that it has among others."""
    call = make_call(3, kind="holes", dtype=dtype)
    out, lse = triton_merge.adapter.merge(call)
    for b, h, t in ((0, 0, 0), (1, 2, 7), (0, 3, 4)):
        at = (slice(None), slice(b, b + 1), slice(h, h + 1), slice(t, t + 1))
        alone = MergeCall(outs=call.outs[at], lses=call.lses[at])
        row, total = triton_merge.adapter.merge(alone)
        assert torch.equal(row[0, 0, 0], out[b, h, t])
        assert torch.equal(total[0, 0, 0], lse[b, h, t])


@pytest.mark.parametrize("kernel", EVERY)
def test_inputs_are_left_alone(kernel: Any) -> None:
    """A call changes none of its tensors."""
    call = make_call(2, kind="holes", sums=kernel.capabilities.state == "mlu")
    tensors = [x for x in (call.outs, call.lses, call.sums) if x is not None]
    before = [x.nan_to_num().clone() for x in tensors]
    kernel.merge(call)
    assert all(torch.equal(x.nan_to_num(), y) for x, y in zip(tensors, before, strict=True))


OUTS, LSES = torch.zeros(2, 1, 2, 3, 4), torch.zeros(2, 1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outs": OUTS[0]}, "outs: got 4 axes, expected 5"),
        ({"outs": OUTS.int()}, "outs: got torch.int32, expected floating point"),
        ({"outs": OUTS[:0], "lses": LSES[:0]}, "outs: got no part, expected n of 1 or more"),
        ({"outs": OUTS[..., :0]}, "outs: got Dv = 0, expected Dv of 1 or more"),
        ({"lses": LSES[..., None]}, r"lses: got shape \(2, 1, 2, 3, 1\), expected \(2, 1, 2, 3\)"),
        ({"lses": LSES.mT}, r"lses: got shape \(2, 1, 3, 2\), expected \(2, 1, 2, 3\), as outs"),
        ({"lses": LSES[:1]}, r"lses: got shape \(1, 1, 2, 3\)"),
        ({"lses": LSES.int()}, "lses: got torch.int32, expected torch.float32"),
        ({"lses": LSES.half()}, "lses: got torch.float16, expected torch.float32"),
        ({"lses": LSES.to("meta")}, "lses: got meta, expected cpu, as outs"),
        ({"sums": LSES}, "sums: got a tensor, expected None"),
    ],
)
@pytest.mark.parametrize("kernel", OUTPUTS)
def test_malformed_calls_raise(kernel: Any, changes: dict[str, Any], words: str) -> None:
    """What does not fit is a ValueError that names the argument, what came and what fits."""
    with pytest.raises(ValueError, match=words):
        kernel.merge(MergeCall(**{"outs": OUTS, "lses": LSES} | changes))


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        (None, "sums: got None, expected a tensor beside u and m"),
        (LSES[..., :2], r"sums: got shape \(2, 1, 2, 2\), expected \(2, 1, 2, 3\)"),
        (LSES.long(), "sums: got torch.int64, expected torch.float32"),
    ],
)
@pytest.mark.parametrize("kernel", STATES)
def test_malformed_states_raise(kernel: Any, sums: Tensor | None, words: str) -> None:
    """A state has a denominator for each row."""
    with pytest.raises(ValueError, match=words):
        kernel.merge(MergeCall(outs=OUTS, lses=LSES, sums=sums))


def refused(kernel: Any, outs: Tensor, words: str) -> None:
    """Parts of these outputs are refused in these words."""
    lses = torch.zeros(outs.shape[:-1])
    sums = lses if kernel.capabilities.state == "mlu" else None
    with pytest.raises(Unsupported, match=words):
        kernel.merge(MergeCall(outs=outs, lses=lses, sums=sums))


@pytest.mark.parametrize("kernel", EVERY)
def test_other_dtypes_are_refused(kernel: Any) -> None:
    """float64 is refused by name; states are fp32."""
    refused(kernel, OUTS.double(), "dtype fp64; it takes")
    if kernel.capabilities.state == "mlu":
        refused(kernel, OUTS.half(), "dtype fp16; it takes fp32")


def test_pairs_refuse_more_and_fewer() -> None:
    """Two parts, neither one nor three."""
    refused(torch_merge.pairs, OUTS[:1], "1 part; it merges two")
    refused(torch_merge.pairs, OUTS[:1].expand(3, -1, -1, -1, -1), "3 parts; it merges two")


@TRITON
@pytest.mark.parametrize("kernel", adapters(torch_ones=(), triton_ones=("adapter", "states")))
def test_values_that_fit_no_block_are_refused(kernel: Any) -> None:
    """What the kernel does not do is refused with `Unsupported`, which says what was asked."""
    refused(kernel, torch.zeros(2, 1, 1, 1, 257), "Dv = 257; at most 256")


def test_without_the_interpreter_a_cpu_tensor_is_refused() -> None:
    """A compiling process imports the module without a GPU and says what a CPU tensor needs."""
    pytest.importorskip("triton")
    code = (
        "import torch\n"
        "from kernelassay.impls.contract import MergeCall, Unsupported\n"
        "from kernelassay.impls.triton_merge import adapter\n"
        "x = torch.zeros(2, 1, 1, 1, 16)\n"
        "try: adapter.merge(MergeCall(outs=x, lses=x[..., 0]))\n"
        "except Unsupported as refusal: print(refusal)"
    )
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert "set TRITON_INTERPRET=1 before Triton is imported" in done.stdout


@pytest.mark.parametrize("kernel", EVERY)
def test_the_adapters_keep_to_the_contract(kernel: Any) -> None:
    """Name, capabilities, numerics and merge are what the contract asks for; all is declared."""
    assert checked_adapter(kernel) is kernel
    assert not kernel.capabilities.undeclared
    assert kernel.capabilities.supports | kernel.capabilities.declines == set(MERGING)
    for dtype in kernel.capabilities.dtypes:
        numerics, declared = numerics_for(kernel, dtype)
        assert declared
        assert (numerics.out, numerics.lse) == (dtype, "fp32")


class Library:
    """FlashInfer's two functions as documented: base 2, contiguous, rows [rows, (n,) H, D]."""

    def merge_state(self, v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> Parts:
        """Of two results."""
        assert v_a.shape == v_b.shape
        return self.merge_states(torch.stack((v_a, v_b), 1), torch.stack((s_a, s_b), 1))

    def merge_states(self, v: Tensor, s: Tensor) -> Parts:
        """Of any number."""
        assert v.is_contiguous()
        assert s.is_contiguous()
        assert v.ndim == 4
        assert v.shape[:3] == s.shape
        weights = torch.softmax(s * LN2, 1)
        return (weights[..., None] * v.float()).sum(1).to(v.dtype), torch.logsumexp(
            s * LN2, 1
        ) / LN2


@pytest.mark.parametrize("n", [2, 3])
def test_the_library_is_given_its_rows(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """A stand-in for FlashInfer gets contiguous rows; the results come back in place."""
    monkeypatch.setattr(flashinfer_merge, "_library", Library)
    generator = torch.Generator().manual_seed(n)
    outs = torch.randn(n, 2, 3, 5, 64, generator=generator).half()
    lses = torch.randn(n, 2, 3, 5, generator=generator)
    expected = torch_merge.base2.merge(MergeCall(outs=outs, lses=lses))
    for kernel in (flashinfer_merge.pair, flashinfer_merge.several):
        assert checked_adapter(kernel) is kernel
        here = dataclasses.replace(kernel.capabilities, devices=("cpu",))
        kernel = dataclasses.replace(kernel, capabilities=here)
        (layout,) = here.layouts
        call = MergeCall(outs=VIEWS[layout](outs), lses=VIEWS[layout](lses))
        if n == 3 and layout == "BTHD":
            with pytest.raises(Unsupported, match="3 parts; it merges two"):
                kernel.merge(call)
            continue
        for a, b in zip(kernel.merge(call), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-3)
        with pytest.raises(Unsupported, match="parts must be contiguous"):
            kernel.merge(MergeCall(outs=outs, lses=lses))
        with pytest.raises(Unsupported, match="Dv = 40; it takes 64, 128 and 256"):
            kernel.merge(MergeCall(outs=outs[..., :40], lses=lses))


@pytest.mark.parametrize("kernel", [flashinfer_merge.pair, flashinfer_merge.several])
def test_a_gpu_library_refuses_a_cpu_tensor(kernel: Any) -> None:
    """It says so before it imports anything; fp32 is refused as well."""
    refused(kernel, torch.zeros(2, 1, 1, 1, 64).half(), "it does not run on cpu")
    refused(kernel, torch.zeros(2, 1, 1, 1, 64), "dtype fp32; it takes fp16, bf16")
    assert kernel.needs == ("flashinfer",)


@TRITON
def test_what_is_compiled_without_a_device_is_all_there_is_to_say() -> None:
    """Each spec types every argument of the kernel; sums are there and are absent."""
    absent = []
    for kernel, signature, constexprs, _ in triton_merge.compile_specs():
        assert set(signature) == set(kernel.arg_names)
        absent.append("SUMS" in constexprs)
    assert {True, False} == set(absent)
