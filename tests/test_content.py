"""Content is a pure function of recipe and logical coordinates, the same for ever."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernelassay.oracle.formats import format_of
from kernelassay.properties.case import AttendCase, CaseError
from kernelassay.properties.content import (
    bits_per_column,
    content,
    hashed,
    mask_content,
    position_content,
)
from kernelassay.properties.inputs import logical, visibility_of

CASE = AttendCase(B=2, Hq=2, Hkv=2, Tq=3, Tk=5, D=4)
RANDOM_3 = [
    [-0.5513183358021468, -0.4822657189149589, 0.7940957501408368, -1.180753028461789],
    [0.4172310486125464, -0.18521799349632478, -1.7323143098713876, -0.023603100170099707],
]


def made(
    recipe: str,
    shape: tuple[int, int, int, int] = (1, 1, 5, 4),
    case: AttendCase = CASE,
    dtype: str = "fp32",
) -> Tensor:
    """The first request's first head of *recipe*, or all of it where there are several."""
    full = content(recipe, shape, case, dtype)
    return full[0, 0] if shape[:2] == (1, 1) else full


def test_random_content_is_pinned() -> None:
    """random:3 has these very values, on every version of every library."""
    assert made("random:3", (1, 1, 2, 4), dtype="fp64").tolist() == RANDOM_3
    assert int(hashed(3, torch.tensor(0), torch.tensor(7))) == 4246324400847942137


@pytest.mark.parametrize("recipe", ["axis:0.1", "first:0.1", "level:0.1", "peak:0:0.1:0.1"])
def test_numbers_in_recipes_are_not_rounded_twice(recipe: str) -> None:
    """A recipe's number is rounded to the dtype alone, not to float32 on the way."""
    assert float(made(recipe, dtype="fp64")[0, 0]) == 0.1


def test_dropping_requests_heads_or_rows_leaves_the_others_alone() -> None:
    """An element depends on its own coordinates, not on how many there are."""
    for recipe in ("random:9", "lattice:9:3", "signs:9", "around:9:3.0:1.0", "integers:9:6"):
        full = content(recipe, (3, 4, 7, 8), CASE, "fp32")
        part = content(recipe, (2, 3, 5, 4), CASE, "fp32")
        assert torch.equal(part, full[:2, :3, :5, :4]), recipe


def test_random_content_is_about_normal() -> None:
    """Mean 0, variance 1, third moment 0, fourth 3 to within what 2**17 samples allow."""
    x = content("random:5", (2, 4, 128, 128), CASE, "fp32").double()
    n = x.numel()
    five_sigma = 5 / math.sqrt(n)
    assert abs(float(x.mean())) < five_sigma
    assert abs(float(x.square().mean()) - 1) < five_sigma * math.sqrt(2)
    assert abs(float(x.pow(3).mean())) < five_sigma * math.sqrt(15)
    # Eight uniforms have kurtosis 3 - 6/5/8.
    assert abs(float(x.pow(4).mean()) - (3 - 1.2 / 8)) < five_sigma * math.sqrt(96)
    assert float(x.abs().max()) < math.sqrt(24)


@pytest.mark.parametrize("axis", range(4))
def test_neighbours_are_independent(axis: int) -> None:
    """Elements that are next to each other on any axis are uncorrelated."""
    x = content("random:5", (8, 8, 32, 32), CASE, "fp32").double()
    length = x.shape[axis] - 1
    product = x.narrow(axis, 0, length) * x.narrow(axis, 1, length)
    assert abs(float(product.mean())) < 5 / math.sqrt(product.numel())


def test_seeds_are_independent() -> None:
    """q, k and v of one generic case (seeds 3 s, 3 s + 1, 3 s + 2) are uncorrelated."""
    streams = [made(f"random:{n}", (1, 1, 128, 128)).double() for n in (0, 1, 2, 3, 4, 256)]
    for i, a in enumerate(streams):
        for b in streams[:i]:
            assert abs(float((a * b).mean())) < 5 / math.sqrt(a.numel())


def test_amplitude_and_centre() -> None:
    """random:s:a is a times random:s; around:s:c:a is c plus that."""
    unit = made("random:3", dtype="fp64")
    assert torch.equal(made("random:3:6.0", dtype="fp64"), 6 * unit)
    assert torch.equal(made("around:3:40.0:2.0", dtype="fp64"), 40 + 2 * unit)


def rows(*text: str) -> list[list[float]]:
    return [[float(x) for x in line.split()] for line in text]


DEFINITIONS = {
    "zeros": [[0.0] * 4] * 5,
    "axis:3.0": rows("3 0 0 0", "0 3 0 0", "0 0 3 0", "0 0 0 3", "3 0 0 0"),
    "first:2.5": [[2.5, 0, 0, 0]] * 5,
    "level:-7": [[-7.0] * 4] * 5,
    "ramp:-2.0:0.5": [[-2 + 0.5 * t] * 4 for t in range(5)],
    "peak:4:1.0:9.0": [[1.0] * 4] * 4 + [[9.0] * 4],
    "peak:7:1.0:9.0": [[1.0] * 4] * 5,
    "onehot": rows("1 0 0 0", "0 1 0 0", "0 0 1 0", "0 0 0 1", "1 0 0 0"),
    "step": rows("1 1 1 1", "-1 1 1 1", "-1 -1 1 1", "-1 -1 -1 1", "-1 -1 -1 -1"),
    "bits:0:2": rows("1 0 0 0", "2 0 0 0", "0 1 0 0", "0 2 0 0", "0 0 1 0"),
    "bits:2:2": rows("0 0 0 0", "0 0 0 0", "1 0 0 0", "2 0 0 0", "0 1 0 0"),
    "bits:0:1": rows("1 0 0 0", "0 1 0 0", "0 0 1 0", "0 0 0 1", "0 0 0 0"),
    "zeros;0,0,4,1=2;0,0,0,0=-1": rows("-1 0 0 0", "0 0 0 0", "0 0 0 0", "0 0 0 0", "0 2 0 0"),
    "zeros;0,0,5,0=1": [[0.0] * 4] * 5,
    "zeros;1,0,0,0=1": [[0.0] * 4] * 5,
}


@pytest.mark.parametrize("recipe", DEFINITIONS)
def test_patterns_are_as_defined(recipe: str) -> None:
    """Each pattern, written out for five rows of four columns."""
    assert made(recipe).tolist() == DEFINITIONS[recipe]


def test_spikes_balance_the_mass_before_them() -> None:
    """Column d has score 0 before row P(d), log P(d) at it, -24 after: half the mass is there."""
    z = made("spike:-24.0", dtype="fp64")
    for d, p in enumerate((1, 2, 3, 4)):
        expected = [0.0] * p + [math.log(p)] + [-24.0] * (4 - p)
        assert z[:, d].tolist() == pytest.approx(expected, rel=2**-52)
        before, at = z[:p, d].exp().sum(), z[p, d].exp()
        assert float(before) == pytest.approx(float(at), rel=2**-50)


@pytest.mark.parametrize("T", [1, 2, 33, 130])
def test_spikes_visit_all_tiles(T: int) -> None:
    """The rows P(d) run from row 1 towards the last one in even steps."""
    step = made("step", (1, 1, T, 64))
    at = (step == 1).sum(0)
    assert at.min() == 1
    assert at.max() == (1 if T == 1 else T - max(1, -(-(T - 1) // 64)))
    assert bool((at.diff() >= 0).all())


def test_onehot_tells_keys_heads_and_requests_apart() -> None:
    """The value at d = t mod D is 1 + head + 4 request."""
    x = made("onehot", (2, 3, 5, 4))
    assert x[1, 2].tolist() == [[7.0 * (d == t % 4) for d in range(4)] for t in range(5)]


def test_discrete_patterns_keep_to_their_range() -> None:
    """lattice:s:m takes every integer in -m..m, signs -1 and 1, integers 0..m in column 0."""
    big = (2, 2, 40, 8)
    assert made("lattice:1:2", big).unique().tolist() == [-2, -1, 0, 1, 2]
    assert made("signs:1", big).unique().tolist() == [-1, 1]
    scores = made("integers:1:3", big)
    assert scores[..., 0].unique().tolist() == [0, 1, 2, 3]
    assert not bool(scores[..., 1:].any())


@pytest.mark.parametrize("causal", ["none", "bottom_right", "top_left"])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_seeking_queries_score_most_at_their_aim(causal: str, offset: int) -> None:
    """Query t is a times the row of signs at its own position plus the offset, in its group."""
    case = AttendCase(B=2, Hq=4, Hkv=2, Tq=3, Tk=7, D=32, causal=causal)
    q = content(f"seek:5:{offset}:0.5", (2, 4, 3, 32), case, "fp32")
    k = content("signs:5", (2, 2, 7, 32), case, "fp32")
    for t in range(3):
        own = t + (0 if causal == "top_left" else 4)
        aim = min(max(own + offset, 0), 6)
        for h in range(4):
            assert torch.equal(q[:, h, t], 0.5 * k[:, h // 2, aim])
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2)
    assert scores.max(-1).values.unique().tolist() == [16.0]


def test_seeking_without_keys_is_harmless() -> None:
    """A seek recipe over no keys still has content."""
    case = AttendCase(Tk=0, q="seek:1:0:1.0", k="signs:1")
    assert logical(case, "fp16").q.shape == (1, 1, 1, 64)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "e4m3"])
def test_content_is_rounded_to_the_dtype_and_never_infinite(dtype: str) -> None:
    """Values are rounded to nearest; those beyond the largest become the largest."""
    exact = content("random:3", (1, 1, 8, 8), CASE, "fp64")
    assert torch.equal(
        content("random:3", (1, 1, 8, 8), CASE, dtype).double(),
        exact.to(format_of(dtype).dtype).double(),
    )
    huge = content("level:1e39", (1, 1, 1, 1), CASE, dtype).double()
    assert float(huge) == format_of(dtype).max


def test_bits_can_be_read_in_every_format() -> None:
    """All visible keys of one element sum to a number that the format holds."""
    for dtype, width in (("fp32", 10), ("fp16", 8), ("bf16", 5)):
        assert bits_per_column(dtype) == width
        assert width <= format_of(dtype).precision - 3


MALFORMED = {
    "nonsense": "got pattern 'nonsense', expected one of zeros, random",
    "": "got pattern ''",
    "random": "random takes 2 arguments, got 0",
    "random:1:2:3": "random takes 2 arguments, got 3",
    "zeros:1": "zeros takes 0 arguments, got 1",
    "random:x": r"random takes \(int, float\), got \['x'\]",
    "random:1.5": r"random takes \(int, float\), got \['1.5'\]",
    "level:nan": "level takes finite numbers, got",
    "level:inf": "level takes finite numbers, got",
    "bits:0:0": "bits takes a last number of at least 1, got 0",
    "lattice:1:-1": "lattice takes a last number of at least 1, got -1",
    "integers:1:-1": "integers takes a last number of at least 1, got -1",
    "zeros;0,0,0=1": "got element '0,0,0=1', expected b,h,t,d=value",
    "zeros;0,0,0,0": "got element '0,0,0,0', expected b,h,t,d=value",
    "zeros;0,0,0,x=1": "got element '0,0,0,x=1', expected b,h,t,d=value",
    "zeros;0,0,-1,0=1": "got element '0,0,-1,0=1', expected b,h,t,d=value",
    "zeros;0,0,0,0=nan": "got element '0,0,0,0=nan', expected b,h,t,d=value",
    "zeros;": "got element '', expected b,h,t,d=value",
}


@pytest.mark.parametrize("recipe", MALFORMED)
def test_malformed_recipes_say_what_is_wrong(recipe: str) -> None:
    """The message shows the recipe, what came and what is expected."""
    with pytest.raises(CaseError, match=MALFORMED[recipe]) as caught:
        made(recipe)
    assert str(caught.value).startswith(f"recipe {recipe!r}: ")


MASKS = {
    "nothing": ((1, 1, 1, 5), [False] * 5),
    "prefix:2": ((1, 1, 1, 5), [True, True, False, False, False]),
    "prefix:0": ((1, 1, 1, 5), [False] * 5),
    "suffix:3": ((1, 1, 1, 5), [False, False, False, True, True]),
}


@pytest.mark.parametrize("recipe", MASKS)
def test_plain_masks(recipe: str) -> None:
    """prefix keeps keys below n, suffix keys from n on, nothing none."""
    shape, expected = MASKS[recipe]
    mask = mask_content(recipe, CASE)
    assert mask.dtype == torch.bool
    assert mask.shape == shape
    assert mask.flatten().tolist() == expected


@pytest.mark.parametrize("axes", ["k", "qk", "bk", "hk", "bhqk", "bqk", "q"])
def test_hashed_masks_vary_on_their_axes_alone(axes: str) -> None:
    """A mask has size 1 on axes that it does not vary on, and keeps about its share."""
    case = AttendCase(B=6, Hq=7, Hkv=7, Tq=40, Tk=50)
    mask = mask_content(f"keep:3:25:{axes}", case)
    sizes = [n if a in axes else 1 for a, n in zip("bhqk", case.shape, strict=True)]
    assert list(mask.shape) == sizes
    deviation = 5 * math.sqrt(0.25 * 0.75 / mask.numel())
    assert abs(float(mask.double().mean()) - 0.25) < deviation


def test_masks_do_not_depend_on_size() -> None:
    """A larger mask holds the smaller one."""
    small, large = CASE, replace(CASE, B=3, Hq=4, Tq=9, Tk=11)
    part = mask_content("keep:3:50:bhqk", small)
    assert torch.equal(mask_content("keep:3:50:bhqk", large)[:2, :2, :3, :5], part)


def test_row_masks_drop_some_rows_whole() -> None:
    """rows: the first row and about a quarter of the others see nothing; the rest see some."""
    case = AttendCase(Tq=100, Tk=60)
    sees = mask_content("rows:3:70:qk", case).any(-1).flatten()
    assert not bool(sees[0])
    assert abs(int((~sees).sum()) - 26) < 5 * math.sqrt(100 * 3 / 16)


@pytest.mark.parametrize(
    "recipe",
    [
        "keep:1:50", "keep:a:50:k", "keep:1:x:k", "keep:1:50:kx", "keep:1:-1:k",
        "prefix", "prefix:-1", "prefix:²", "prefix:1:2", "nothing:1", "all", "",
    ],
)  # fmt: skip
def test_malformed_masks_say_what_is_expected(recipe: str) -> None:
    """The message lists the recipes there are."""
    with pytest.raises(CaseError, match="expected keep:seed:percent:axes, rows") as caught:
        mask_content(recipe, CASE)
    assert repr(recipe) in str(caught.value)


def test_positions() -> None:
    """offset: another one in each request; gaps: keys at even places, queries anywhere near."""
    q, k = position_content("offset:-2", CASE)
    assert q.tolist() == [[-2, -1, 0], [-1, 0, 1]]
    assert k.tolist() == [[0, 1, 2, 3, 4]] * 2
    q, k = position_content("gaps:5", replace(CASE, B=3, Tq=200))
    assert k.tolist() == [[0, 2, 4, 6, 8]] * 3
    assert q.unique().tolist() == list(range(-1, 11))


@pytest.mark.parametrize("recipe", ["offset", "offset:x", "offset:--1", "gaps:-1", "gaps:²", ""])
def test_malformed_positions_say_what_is_expected(recipe: str) -> None:
    """The message shows what came."""
    with pytest.raises(CaseError, match="expected offset:n or gaps:seed") as caught:
        position_content(recipe, CASE)
    assert repr(recipe) in str(caught.value)


def test_an_expanded_view_repeats_the_first_request() -> None:
    """With stride 0 over the batch every request holds what the first one does."""
    case = replace(CASE, q="random:1", k="random:2", v="random:3", view="expanded")
    x = logical(case, "fp32")
    plain = logical(replace(case, view="contiguous"), "fp32")
    for name in "qkv":
        assert torch.equal(getattr(x, name)[1], getattr(plain, name)[0])


def test_visibility_of_a_case() -> None:
    """A case's visibility holds its lengths, mask, window and positions as tensors."""
    case = AttendCase(
        B=2, Tq=2, Tk=5, lengths=(0, 3), mask="prefix:2", window=(1, None), sinks=1,
        causal="positions", positions="offset:1",
    )  # fmt: skip
    vis = visibility_of(case)
    assert vis.lengths is not None
    assert vis.lengths.tolist() == [0, 3]
    assert vis.mask is not None
    assert vis.mask.shape == (1, 1, 1, 5)
    assert (vis.window, vis.sinks, vis.causal) == ((1, None), 1, "positions")
    assert vis.q_positions is not None
    assert vis.q_positions.tolist() == [[1, 2], [2, 3]]


def test_content_is_shared_and_not_changed() -> None:
    """The same recipe gives the same tensor object: nobody may write to it."""
    first = content("random:77", (1, 1, 4, 4), CASE, "fp32")
    assert content("random:77", (1, 1, 4, 4), CASE, "fp32") is first
    assert torch.equal(first, content.__wrapped__("random:77", (1, 1, 4, 4), CASE, "fp32"))
