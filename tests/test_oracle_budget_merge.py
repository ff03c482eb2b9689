"""The budget of merges against emulated kernels: right ones keep it, wrong ones do not."""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
import torch
from emulated_merge import KERNELS, Merge, State, Traced
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


Parts = tuple[Tensor, Tensor]
"""out [S, 64, 8] and lse [S, 64]."""


def normal(n: int, seed: int, far: float = 0.0, spread: float = 1.0) -> Parts:
    """Standard normal outputs; LSEs normal around *far*. All numbers are fp32."""
    g = torch.Generator().manual_seed(seed)
    out, lse = torch.randn(n, 64, 8, generator=g), torch.randn(n, 64, generator=g)
    return out.double(), f32(far + spread * lse.double())


def _empty(which: Callable[[Tensor, int], Tensor]) -> Callable[[Parts], Parts]:
    def emptied(parts: Parts) -> Parts:
        out, lse = parts
        index = torch.arange(len(lse))[:, None]
        gone = which(index, len(lse)).expand_as(lse)
        return out.masked_fill(gone[..., None], torch.nan), lse.masked_fill(gone, -torch.inf)

    return emptied


HARD: dict[str, Callable[[Parts], Parts]] = {
    "equal LSEs": lambda x: (x[0], x[1][:1].expand_as(x[1])),
    "equal maxima": lambda x: (x[0], torch.minimum(x[1], x[1].median(0).values)),
    "rising": lambda x: (x[0], x[1].sort(0).values),
    "falling": lambda x: (x[0], x[1].sort(0, descending=True).values),
    "far apart": lambda x: (x[0], f32(200 * x[1])),
    "at the edge of flushing": lambda x: (x[0], torch.cat((x[1][:1], f32(x[1][1:] - 87.3)))),
    "heavy outputs of light parts": lambda x: (
        f32(x[0] * (x[1].amax(0) - x[1]).clamp_max(60).exp()[..., None]),
        x[1],
    ),
    "huge outputs of flushed parts": lambda x: (x[0] * 2.0**120, f32(x[1] * 60)),
    "tiny outputs": lambda x: (f32(x[0] * 2.0**-126), x[1]),
    "cancelling outputs": lambda x: (
        f32(x[0] + 1000 * (-1.0) ** torch.arange(len(x[0]))[:, None, None]),
        x[1][:1].expand_as(x[1]),
    ),
    "outputs of one sign": lambda x: (f32(x[0].abs() + 4), x[1]),
    "the first empty": _empty(lambda i, n: i == 0),
    "the middle empty": _empty(lambda i, n: i == n // 2),
    "the last empty": _empty(lambda i, n: i == n - 1),
    "only one": _empty(lambda i, n: i != n // 2),
    "all empty": _empty(lambda i, n: i >= 0),
    "every other empty": _empty(lambda i, n: i % 2 == 0),
    "holes": _empty(lambda i, n: (i * 7 + torch.arange(64)) % 5 < 2),
}
"""What is made of normal parts to strain a merge."""


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


def as_states(parts: Parts, seed: int, most: int) -> tuple[Parts, Tensor, Parts]:
    """States (u, m) and l, from 1 to *most*, of about these parts, and the parts that they are."""
    g = torch.Generator().manual_seed(seed)
    out, lse = parts
    sums = torch.randint(1, most + 1, lse.shape, generator=g).double()
    u, m = f32(out * sums[..., None]), f32(lse - sums.log())
    return (u, m), sums, (u / sums[..., None], m + sums.log())


@pytest.mark.parametrize("name", [n for n in KERNELS if not n.endswith(", 2")])
def test_right_merges_of_states_keep_the_budget(name: str) -> None:
    """Maxima need not be in the order of LSEs, and row sums are far from 1."""
    kernel, turn = KERNELS[name], list(KERNELS).index(name)
    for i, (kind, made) in enumerate(HARD.items()):
        if kind == "huge outputs of flushed parts":
            continue  # numerators would overflow
        far, n, most = FAR[(turn + i) % 7], COUNTS[(turn // 7 + i) % 6], (1000, 2)[i % 2]
        states, sums, parts = as_states(made(normal(n, turn, far)), turn, most)
        budget = merged(*map(exact_part, *parts), numerics=declared(kernel), sums=most)
        found = ratios(budget, *kernel(*states, sums))
        assert max(found) <= 1, (kind, far, n, found)


@pytest.mark.parametrize("to", ["fp32", "bf16"])
def test_roundings_of_states_are_allowed(to: str) -> None:
    """m may be far from an LSE near 0, and l of a coarse dtype."""
    x, most = replace(FP32, lse=to), 1104  # bf16 rounds 1100 up
    for seed in range(5):
        out, lse = (f32(t) for t in normal(5, seed, spread=0.01))
        sums = 1000 + 100 * torch.rand(5, 64, generator=torch.Generator().manual_seed(seed))
        u, m = f32(out * sums[..., None]), cast(lse - sums.log(), to)
        sums = cast(sums.double(), to)
        parts = [rounded_part(o, z, x, sums=most) for o, z in zip(out, lse, strict=True)]
        for part, o, z in zip(parts, u / sums[..., None], m + sums.log(), strict=True):
            assert max(ratios(part, o, z)) <= 1
        budget = merged(*parts, numerics=FP32, sums=most)
        assert max(ratios(budget, *KERNELS["online, quotient, e"](u, m, sums))) <= 1


def single(n: int, far: float, spread: float, order: int) -> Parts:
    """An output for each of 64 rows, near 0 or far from it; LSEs as drawn, rising or falling."""
    out, lse = normal(n, n, far, spread)
    far_off = torch.tensor((0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0)).repeat(8)
    out = out[..., 0] - out[..., 0].mean(0) + far_off * out[0, :, 1]
    return f32(out)[..., None], lse.sort(0, order < 0).values if order else lse


CALLS = (
    (1, 10.0, 1.0, 0),
    (2, 0.0, 1.0, 0),
    (2, 10.0, 1.0, 0),
    (2, 1e3, 3.0, 0),
    (3, 0.0, 30.0, 0),
    (5, 0.0, 3.0, -1),
    (9, 0.0, 0.01, 1),
    (9, 1e3, 0.01, 1),
)


def worst(name: str, x: Numerics, most: int = 1) -> tuple[float, float]:
    """The most of its budget that a kernel can use, to first order, for output and LSE.

    Parts come as states of row sums up to *most*.
    """
    used = []
    for call in CALLS:
        traced = Traced(64, x)
        kernel = replace(KERNELS[name], by=traced)
        states, sums, parts = as_states(given(kernel, single(*call)), 1, most)
        budget = merged(*map(exact_part, *parts), numerics=x, sums=most)
        result, total = map(traced.worst, kernel(*states, sums))
        used.append((result / budget.out_allowed[:, 0], total / budget.lse_allowed))
    outs, lses = (torch.stack(x) for x in zip(*used, strict=True))
    return float(outs.max()), float(lses.max())


@pytest.mark.parametrize("name", [n for n in KERNELS if "fused" not in n])
def test_the_worst_that_roundings_can_do_is_within_the_budget(name: str) -> None:
    """To first order: the sum over all operations of derivative times unit roundoff.

    Some kernel attains 0.9 of what is allowed to all of them.
    """
    out, lse = worst(name, FP32)
    assert (0.9 if "logsum" in name or "converted" in name else 0.4) <= out <= 1
    assert 0.3 <= lse <= 1
    assert max(worst(name, FP32, most=100)) <= 1


@pytest.mark.parametrize("name", [n for n in KERNELS if n.endswith("e")])
def test_each_declared_error_counts_as_often_as_it_can_occur(name: str) -> None:
    """One error far above all others, or none of exponentials and quotients."""
    for exp_u, div_u in ((2.0**-16, 2.0**-40), (2.0**-40, 2.0**-16), (2.0**-40, 2.0**-40)):
        out, lse = worst(name, replace(FP32, exp_u=exp_u, div_u=div_u))
        assert max(out, lse) <= 1
        if exp_u == 2.0**-16:
            assert lse >= 0.9
        if div_u == 2.0**-16 and "logsum" not in name:
            assert out >= 0.9


@pytest.mark.parametrize("to", ["fp16", "bf16"])
@pytest.mark.parametrize("name", [n for n in KERNELS if "at once" in n])
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
    """Parts are stored in a dtype, and the results of every node; LSEs in it or in fp32."""
    names = ("at once, quotient, e", "at once, logsum, libm", "at once, shares, converted")
    for i, kind in enumerate(HARD):
        kernel = replace(KERNELS[names[i % 3]], out=to, lse=(to, "fp32")[i // 3 % 2])
        out, lse = HARD[kind](normal(16, i, spread=3))
        if out.nan_to_num(0).abs().max() > format_of(to).max:
            continue  # an overflow is no rounding
        x = declared(kernel)
        parts = [rounded_part(o, z, x) for o, z in zip(out, lse, strict=True)]
        stored = cast(out, to), cast(lse, kernel.lse)
        found = ratios(merged_along(TREES[shape], parts, x), *along(TREES[shape], kernel, *stored))
        assert max(found) <= 1, (kind, kernel.lse, found)


@pytest.mark.parametrize("to", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", TREES)
def test_partial_results_in_16_bits_use_a_good_part_of_the_budget(shape: str, to: str) -> None:
    """A fifth at least in the median, be they merged at once or one after the other."""
    kernel, used = replace(KERNELS["at once, quotient, e"], out=to), []
    for seed in range(7):
        out, lse = normal(16, seed, far=5)
        parts = [rounded_part(o, z, declared(kernel)) for o, z in zip(out, lse, strict=True)]
        budget = merged_along(TREES[shape], parts, declared(kernel))
        used.append(ratios(budget, *along(TREES[shape], kernel, cast(out, to), lse))[0])
    assert statistics.median(used) >= 1 / 5, used


@pytest.mark.parametrize("to", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("far", FAR)
def test_a_running_output_and_lse_are_a_chain(far: float, to: str) -> None:
    """They are kept in fp32 until the last part, whatever dtype the output has then."""
    name, used = "at once, logsum, e", []
    inner, kernel = KERNELS[name], replace(KERNELS[name], out=to)
    for n in (2, 5, 17):
        out, lse = normal(n, n, far, 3)
        first = along(chain(n - 1), inner, out[:-1], lse[:-1])
        twos = (torch.stack(x) for x in zip(first, (out[-1], lse[-1]), strict=True))
        parts = [exact_part(o, z) for o, z in zip(out, lse, strict=True)]
        budget = merged_along(chain(n), parts, declared(kernel), inner=declared(inner))
        used.append(ratios(budget, *kernel(*twos)))
    assert max(map(max, used)) <= 1, used
    coarse = merged_along(chain(n), parts, declared(kernel))
    assert (coarse.out_allowed >= budget.out_allowed).all()


def test_the_allowance_grows_with_the_depth_of_16_bit_results() -> None:
    """With equal parts: the roundings of the parts, and one more for each level above them."""
    out, lse = torch.full((16, 1, 1), 1.0), torch.zeros(16, 1)
    for to in ("fp16", "bf16"):
        x = replace(FP32, out=to)
        parts = [rounded_part(o, z, x) for o, z in zip(out, lse, strict=True)]
        for shape, tree in TREES.items():
            allowed = float(merged_along(tree, parts, x).out_allowed) / format_of(to).unit
            # In a chain the result of k parts weighs k / 16 in the end.
            roundings = 1 + sum(range(2, 17)) / 16 if shape == "chain" else 1 + depth(tree)
            assert roundings <= allowed <= roundings * 1.2, (shape, to, allowed)


def test_fp32_results_add_little_at_any_depth() -> None:
    """A chain of fifteen merges in fp32 may be off by less than one rounding to fp16."""
    out, lse = normal(16, 1)
    parts = [exact_part(o, z) for o, z in zip(out, lse, strict=True)]
    deep = merged_along(chain(16), parts, FP32)
    once = merged(*parts, numerics=replace(FP32, out="fp16"))
    size = (once.out_allowed - merged(*parts, numerics=FP32).out_allowed).mean()
    assert deep.out_allowed.mean() < size


class Unscaled(Merge):
    """The numerator is not rescaled when the maximum changes."""

    def product(self, w: Tensor, state: State) -> Tensor:
        return super().product(w if state.fresh else torch.ones_like(w), state)


def equal_weights(out: Tensor, lse: Tensor) -> Parts:
    """The mean of the outputs."""
    return out.mean(0), KERNELS["at once, quotient, e"](out, lse)[1]


def other_base(out: Tensor, lse: Tensor) -> Parts:
    """Natural LSEs taken for LSEs in base 2."""
    return KERNELS["at once, quotient, 2"](out, lse * LN2)


def maximum(out: Tensor, lse: Tensor) -> Parts:
    """The largest LSE returned as that of all parts."""
    return KERNELS["at once, quotient, e"](out, lse)[0], lse.amax(0)


def shifted(out: Tensor, lse: Tensor) -> Parts:
    """Each part has its neighbour's weight."""
    return KERNELS["at once, quotient, e"](out, lse.roll(1, 0))


def dropped(out: Tensor, lse: Tensor) -> Parts:
    """The last part is left out."""
    return KERNELS["at once, quotient, e"](out[:-1], lse[:-1])


def coarse(out_to: str, lse_to: str) -> Callable[[Tensor, Tensor], Parts]:
    """Parts stored in dtypes of their own before they are merged."""
    return lambda out, lse: KERNELS["at once, quotient, e"](cast(out, out_to), cast(lse, lse_to))


WRONG: dict[str, tuple[Callable[[Tensor, Tensor], Parts], float, float]] = {
    "equal weights": (equal_weights, 1e6, 0),
    "numerator not rescaled": (Unscaled(order="online"), 1e6, 0),
    "base mixed up": (other_base, 1e5, 1e5),
    "the maximum for the LSE": (maximum, 0, 1e5),
    "weights of other parts": (shifted, 1e6, 0),
    "a part dropped": (dropped, 1e5, 1e5),
    "parts stored in bf16": (coarse("bf16", "fp32"), 500, 0),
    "parts stored in fp16": (coarse("fp16", "fp32"), 100, 0),
    "LSEs stored in bf16": (coarse("fp32", "bf16"), 5000, 5000),
    "LSEs stored in fp16": (coarse("fp32", "fp16"), 500, 500),
}
"""How many budgets of output and LSE each fault comes to at least."""


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("n", [2, 4, 16])
def test_wrong_merges_are_far_outside(fault: str, n: int) -> None:
    """Under an fp32 declaration, with LSEs as those of some hundred keys."""
    wrong, far_out, far_lse = WRONG[fault]
    out, lse = normal(n, n, far=5, spread=2)
    budget = merged(*map(exact_part, out, lse), numerics=FP32)
    found = ratios(budget, *wrong(out, lse))
    assert found[0] >= far_out
    assert found[1] >= far_lse


@pytest.mark.parametrize(("fault", "least"), [("equal weights", 1000), ("a part dropped", 500)])
@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_wrong_merges_are_outside_in_16_bits_too(fault: str, least: float, to: str) -> None:
    """Their roundings do not hide a wrong weight."""
    out, lse = normal(4, 3, far=5, spread=2)
    x = replace(FP32, out=to)
    parts = [rounded_part(o, z, x) for o, z in zip(out, lse, strict=True)]
    result, total = WRONG[fault][0](cast(out, to), lse)
    found = ratios(merged(*parts, numerics=x), cast(result, to), total)
    assert found[0] > least


def test_what_is_merged_is_exact() -> None:
    """Outputs and LSEs of rational masses and values, along any tree, within float64."""
    keys = [([2, 1], [[3], [6]]), ([], []), ([Fraction(1, 3)], [[-5]]), ([6, 8], [[4], [9]])]
    states = [exact_state(masses, values, 1) for masses, values in keys]
    outs = [[float(x) for x in s.out or [math.nan]] for s in states]
    out, lse = (torch.tensor(x, dtype=torch.float64) for x in (outs, [s.lse for s in states]))
    parts = list(map(exact_part, out, lse))
    for tree in ((0, 1, 2, 3), (((0, 1), 2), 3), ((3, 1), (2, 0)), (1, 0), (1, (1, 1)), 2):
        exact = fold(tree, states, exact_merge)
        found = merged_along(tree, parts, FP32)
        assert float(found.lse) == pytest.approx(exact.lse, abs=1e-15)
        out = 0 if exact.out is None else float(exact.out[0])
        assert float(found.out) == pytest.approx(out, abs=1e-15)


@pytest.mark.parametrize("c", [0.0, 1e-3, 0.1, 1.0, 30.0])
def test_errors_of_parts_are_allowed_and_no_more(c: float) -> None:
    """Of all ways to be off by c and d, none exceeds the budget; the worst uses most of it."""
    out, lse = (x[..., :4] for x in normal(4, 1))
    out = out[:, :4]
    offs = [torch.full_like(lse, c), torch.full_like(out, 1e-2)]
    budget = merged(
        *(Part(o, z, d, e) for o, z, e, d in zip(out, lse, *offs, strict=True)), numerics=FP32
    )
    used = []
    for signs in product((-1.0, 0.0, 1.0), repeat=4):
        s = torch.tensor(signs, dtype=torch.float64)
        held, total = finish(merge(*map(state_of, out, lse + c * s[:, None])))
        moved = (held - budget.out).abs() + 1e-2  # outputs are off by d, whatever the weights
        used.append((moved / budget.out_allowed, (total - budget.lse).abs() / budget.lse_allowed))
    outs, lses = (torch.stack(x).amax(0) for x in zip(*used, strict=True))
    assert max(outs.max(), lses.max()) <= 1
    if c in (0.0, 1e-3):
        assert outs.min() >= 0.9
    if c:
        assert lses.min() >= 0.9


def test_of_lses_too_coarse_to_weigh_with_only_the_hull_is_left() -> None:
    """bf16 LSEs near 1e4 say nothing of weights: any output between the parts' is allowed."""
    out, lse = normal(3, 1, far=1e4)
    x = replace(FP32, lse="bf16")
    parts = [rounded_part(o, z, x) for o, z in zip(out, lse, strict=True)]
    budget = merged(*parts, numerics=FP32)
    reach, allowed = (out - budget.out).abs().amax(0), budget.out_allowed
    assert (allowed >= reach).all()
    assert (allowed <= reach + 0.01 * out.abs().amax(0)).all()
    assert max(ratios(budget, *KERNELS["at once, quotient, e"](out, cast(lse, "bf16")))) <= 1


def test_empty_parts_change_nothing() -> None:
    """Neither values nor allowances, NaN content included; of nothing comes 0 and -inf."""
    out, lse = normal(3, 1)
    nothing = exact_part(torch.full((64, 8), math.nan), torch.full((64,), -math.inf))
    parts = [rounded_part(o, z, FP32) for o, z in zip(out, lse, strict=True)]
    plain = merged(*parts, numerics=FP32)
    for some in ([nothing, *parts], [*parts, nothing], [parts[0], nothing, *parts[1:]]):
        found = merged(*some, numerics=FP32)
        for name in ("out", "lse", "out_allowed", "lse_allowed"):
            assert torch.equal(getattr(found, name), getattr(plain, name)), name
    void = merged(nothing, merged(nothing, nothing, numerics=FP32), numerics=FP32)
    assert void.out.count_nonzero() == 0
    assert (void.lse == -math.inf).all()
    assert void.out_allowed.max() < 1e-30
