"""The budget of merges against emulated kernels: right ones keep it, wrong ones do not."""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
import torch
from emulated_merge import HARD, KERNELS, Merge, Parts, State, normal
from emulated_units import LN2, cast, f32
from torch import Tensor

from kernelassay.oracle.budget_merge import (
    Part,
    exact_part,
    merged,
    merged_along,
    rounded_part,
)
from kernelassay.oracle.formats import format_of
from kernelassay.oracle.merging import (
    Tree,
    depth,
    exact_merge,
    exact_state,
    finish,
    fold,
    merge,
    state_of,
)
from kernelassay.oracle.numerics import Numerics

FP32 = Numerics().resolved("fp32")
FAR = (0.0, 1e2, -1e2, 1e4, -1e4, 1e5, -1e5)
COUNTS = (1, 2, 3, 5, 8, 17)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def declared(kernel: Merge) -> Numerics:
    """What the author of a kernel would say of it."""
    return replace(FP32, fma=kernel.base == "fused", out=kernel.out, lse=kernel.lse)


def given(kernel: Merge, parts: Parts) -> Parts:
    """The parts as this kernel is given them: one in base 2 has fp32 LSEs in base 2."""
    out, lse = parts
    return (out, f32(lse) * LN2) if kernel.base == "2" else parts


def ratios(budget: Part, out: Tensor, lse: Tensor) -> tuple[float, float]:
    """Worst error / allowed of output and LSE; what is empty must be exact."""
    empty = budget.lse == -torch.inf
    assert torch.equal(empty, lse == -torch.inf)
    assert out[empty].count_nonzero() == 0
    for allowed in (budget.out_allowed, budget.lse_allowed):
        assert allowed.isfinite().all()
        assert (allowed > 0).all()
    off = torch.where(empty, 0.0, lse - budget.lse).abs() / budget.lse_allowed
    return float(((out - budget.out).abs() / budget.out_allowed).max()), float(off.max())


def judged(kernel: Merge, parts: Parts) -> tuple[float, float]:
    """The share of its budget that a kernel uses, for output and LSE."""
    out, lse = given(kernel, parts)
    budget = merged(*map(exact_part, out, lse), numerics=declared(kernel))
    return ratios(budget, *kernel(out, lse))


@pytest.mark.parametrize("name", KERNELS)
def test_right_merges_keep_the_budget_on_hard_parts(name: str) -> None:
    """Wherever LSEs lie, whichever part is empty, for one part to seventeen."""
    turn = list(KERNELS).index(name)
    for i, (kind, made) in enumerate(HARD.items()):
        for j in (0, 1):
            far, n = FAR[(turn + i + 3 * j) % 7], COUNTS[(turn // 7 + i + 2 * j) % 6]
            found = judged(KERNELS[name], made(normal(n, turn + j, far)))
            assert max(found) <= 1, (kind, far, n, found)


@pytest.mark.parametrize("name", KERNELS)
def test_right_merges_keep_the_budget_and_use_a_good_part_of_it(name: str) -> None:
    """fp32, LSEs between -10 and 10: the median call uses a fifteenth of each budget at least."""
    found = [judged(KERNELS[name], normal(n, n, 5 * (n % 2), 1 + n % 3)) for n in range(1, 18)]
    assert max(map(max, found)) <= 1
    for used in zip(*found, strict=True):
        assert statistics.median(used) >= 1 / 15, used


@pytest.mark.parametrize("to", ["fp16", "bf16"])
@pytest.mark.parametrize("name", [n for n in KERNELS if "pairs" not in n])
def test_of_results_in_16_bits_it_is_the_rounding_that_counts(name: str, to: str) -> None:
    """The median call uses a quarter of both budgets at least, wherever LSEs lie up to 1e4."""
    kernel = replace(KERNELS[name], out=to, lse=to)
    found = [judged(kernel, normal(n, n, FAR[n % 5], 3)) for n in range(1, 18, 2)]
    assert max(map(max, found)) <= 1
    for used in zip(*found, strict=True):
        assert statistics.median(used) >= 1 / 4, used


def chain(n: int) -> Tree:
    """The parts in their order, each merged with the result so far."""
    tree: Tree = 0
    for i in range(1, n):
        tree = (tree, i)
    return tree


def balanced(leaves: range) -> Tree:
    """Halves first."""
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return (balanced(leaves[:half]), balanced(leaves[half:]))


TREES = {
    "flat": tuple(range(16)),
    "by fours": tuple(tuple(range(i, i + 4)) for i in range(0, 16, 4)),
    "balanced": balanced(range(16)),
    "chain": chain(16),
}


def along(tree: Tree, kernel: Merge, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel's result along a tree; each node's is kept in the kernel's dtypes."""

    def node(*parts: Parts) -> Parts:
        outs, lses = zip(*parts, strict=True)
        return kernel(torch.stack(outs), torch.stack(lses))

    return fold(tree, list(zip(out, lse, strict=True)), node)


@pytest.mark.parametrize("to", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("shape", TREES)
def test_right_merges_keep_the_budget_along_trees(shape: str, to: str) -> None:
    """Parts stored in a dtype, results of every node too, LSEs included."""
    found = []
    for lse_to, name, kind in product(
        ("fp32", to), ("at once, quotient, e", "at once, logsum, libm"), (None, *HARD)
    ):
        kernel = replace(KERNELS[name], out=to, lse=lse_to)
        out, lse = normal(16, len(found), spread=3)
        out, lse = HARD[kind]((out, lse)) if kind else (out, lse)
        if out.abs().nan_to_num(0).max() > format_of(to).max:
            continue  # an overflow is no rounding
        x = declared(kernel)
        parts = [rounded_part(o, z, x) for o, z in zip(out, lse, strict=True)]
        budget = merged_along(TREES[shape], parts, x)
        result = along(TREES[shape], kernel, cast(out, to), cast(lse, lse_to))
        found.append(ratios(budget, *result))
        assert max(found[-1]) <= 1, (lse_to, name, kind, found[-1])
    print(shape, to, [statistics.median(x) for x in zip(*found)])
