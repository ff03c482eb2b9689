"""Content is a pure function of recipe and logical coordinates, the same for ever."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernelassay.oracle.formats import format_of
from kernelassay.properties.case import AttendCase, CaseError
from kernelassay.properties.content import bits_per_column, content, hashed
from kernelassay.properties.content_terms import (
    alibi_content,
    bias_content,
    mask_content,
    position_content,
    sink_content,
)
from kernelassay.properties.inputs import logical, scoring_of, visibility_of

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
    "pair:0:3.0:-2.0:0.0": [[3.0, -2.0, 0, 0]] * 5,
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


def test_a_ring_holds_every_position_once() -> None:
    """Each request's slots are a permutation of its own; queries follow one another."""
    case = AttendCase(B=4, Tq=3, Tk=40)
    q, k = position_content("ring:5", case)
    assert q.tolist() == [[b, b + 1, b + 2] for b in range(4)]
    assert all(sorted(row) == list(range(40)) for row in k.tolist())
    orders = {tuple(row) for row in k.tolist()} | {tuple(range(40))}
    assert len(orders) == 5
    assert not torch.equal(position_content("ring:6", case)[1], k)


def test_dropping_a_request_leaves_the_other_rings_alone() -> None:
    """A request's order does not depend on how many there are; nor on the queries."""
    large = position_content("ring:5", AttendCase(B=4, Tq=3, Tk=40))[1]
    assert torch.equal(position_content("ring:5", AttendCase(B=2, Tq=1, Tk=40))[1], large[:2])


@pytest.mark.parametrize(
    "recipe",
    ["offset", "offset:x", "offset:--1", "gaps:-1", "gaps:²", "ring", "ring:x", "ring:1:2", ""],
)
def test_malformed_positions_say_what_is_expected(recipe: str) -> None:
    """The message shows what came."""
    with pytest.raises(CaseError, match="expected offset:n, gaps:seed, ring:seed") as caught:
        position_content(recipe, CASE)
    assert repr(recipe) in str(caught.value)


SLOPES = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    4: [2**-2, 2**-4, 2**-6, 2**-8],
    8: [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8],
    # No power of two: those of the next smaller one, then every other one of the next larger.
    3: [2**-4, 2**-8, 2**-2],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    12: [2.0**-n for n in (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5)],
}  # fmt: skip


@pytest.mark.parametrize("heads", SLOPES)
def test_standard_slopes(heads: int) -> None:
    """The slopes of the paper: 8 heads start at 1/2; other numbers follow its recursion."""
    slopes = alibi_content("standard", AttendCase(Hq=heads, Hkv=heads), "fp32")
    assert slopes.dtype == torch.float32
    assert slopes.tolist() == torch.tensor(SLOPES[heads], dtype=torch.float64).float().tolist()


@pytest.mark.parametrize("seed", range(5))
def test_hashed_slopes_tell_heads_apart(seed: int) -> None:
    """Thirty-one heads have thirty-one slopes in (0, 1); dropping heads leaves the others."""
    slopes = alibi_content(f"hashed:{seed}", AttendCase(Hq=31), "fp16")
    assert len(set(slopes.tolist())) == 31
    assert 0 < float(slopes.min()) < float(slopes.max()) < 1
    assert torch.equal(alibi_content(f"hashed:{seed}", AttendCase(Hq=7), "fp16"), slopes[:7])


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_slopes_and_sinks_are_numbers_of_the_dtype(dtype: str) -> None:
    """float32 tensors hold what the dtype holds: a kernel may read them in either."""
    case = AttendCase(Hq=12, Hkv=12)
    for x in (alibi_content("standard", case, dtype), sink_content("random:1:2.0", case, dtype)):
        assert x.dtype == torch.float32
        assert torch.equal(x.to(format_of(dtype).dtype).float(), x)
    exact = sink_content("random:1:2.0", case, "fp64")
    assert torch.equal(sink_content("random:1:2.0", case, "fp32"), exact)


def test_sinks() -> None:
    """level: one logit for all heads, -inf for none; random: one for each head."""
    case = AttendCase(Hq=3, Hkv=3)
    assert sink_content("level:-1.5", case, "bf16").tolist() == [-1.5] * 3
    assert sink_content("level:-inf", case, "bf16").tolist() == [-math.inf] * 3
    assert float(sink_content("level:1e39", case, "fp16")[0]) == format_of("fp16").max
    logits = sink_content("random:4:2.0", case, "fp32")
    assert len(set(logits.tolist())) == 3
    assert torch.equal(2 * sink_content("random:4:1.0", case, "fp32"), logits)
    assert torch.equal(sink_content("random:4:2.0", AttendCase(Hq=2), "fp32"), logits[:2])


ninf = -math.inf
BIASES = {
    "level:0.5": ((1, 1, 1, 1), [0.5]),
    "level:-inf": ((1, 1, 1, 1), [ninf]),
    "fill:-3:prefix:2": ((1, 1, 1, 5), [0, 0, -3, -3, -3]),
    "fill:-inf:suffix:3": ((1, 1, 1, 5), [ninf, ninf, ninf, 0, 0]),
    "fill:-inf:nothing": ((1, 1, 1, 5), [ninf] * 5),
    # Parts are added: -inf stays what it is, whatever comes to it.
    "level:0.5;fill:-3:prefix:2": ((1, 1, 1, 5), [0.5, 0.5, -2.5, -2.5, -2.5]),
    "fill:-inf:prefix:3;level:2;fill:1:suffix:1": ((1, 1, 1, 5), [3, 2, 2, ninf, ninf]),
    # What is finite stays finite.
    "level:1e39": ((1, 1, 1, 1), [65504.0]),
    "level:-1e39;fill:-inf:prefix:4": ((1, 1, 1, 5), [-65504.0] * 4 + [ninf]),
}


@pytest.mark.parametrize("recipe", BIASES)
def test_plain_biases(recipe: str) -> None:
    """level is a constant, fill a number where a mask drops; parts joined by ";" are added."""
    shape, expected = BIASES[recipe]
    bias = bias_content(recipe, CASE, "fp16")
    assert bias.dtype == torch.float16
    assert bias.shape == shape
    assert bias.flatten().tolist() == expected


@pytest.mark.parametrize("axes", ["", "k", "qk", "bk", "hk", "hq", "bhqk"])
def test_random_biases_vary_on_their_axes_alone(axes: str) -> None:
    """A bias has size 1 on axes that it does not vary on, and is about N(0, a^2)."""
    case = AttendCase(B=6, Hq=7, Hkv=7, Tq=40, Tk=50)
    bias = bias_content(f"random:3:2.0:{axes}", case, "fp64")
    assert list(bias.shape) == [
        n if a in axes else 1 for a, n in zip("bhqk", case.shape, strict=True)
    ]
    n = bias.numel()
    assert len(bias.unique()) > 0.7 * n
    if n > 100:
        assert abs(float(bias.mean())) < 5 * 2 / math.sqrt(n)
        assert abs(float(bias.square().mean()) - 4) < 5 * 4 * math.sqrt(2 / n)


def test_parts_of_other_sizes_broadcast() -> None:
    """A part over heads and one over keys make a bias over both; the mask of a fill adds its."""
    h, k = (bias_content(f"random:{s}:1.0:{a}", CASE, "fp64") for s, a in ((1, "h"), (2, "k")))
    both = bias_content("random:1:1.0:h;random:2:1.0:k", CASE, "fp64")
    assert both.shape == (1, 2, 1, 5)
    assert torch.equal(both, h + k)
    masked = bias_content("random:1:1.0:h;fill:-inf:keep:3:50:qk", CASE, "fp64")
    keeps = mask_content("keep:3:50:qk", CASE)
    assert masked.shape == (1, 2, 3, 5)
    assert torch.equal(masked, torch.where(keeps, h, -math.inf))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_a_bias_is_rounded_once(dtype: str) -> None:
    """The sum of the parts is rounded to the dtype, not each of them."""
    recipe = "random:1:1.0:qk;level:0.1"
    exact = bias_content(recipe, CASE, "fp64")
    assert torch.equal(bias_content(recipe, CASE, dtype), exact.to(format_of(dtype).dtype))


def test_dropping_requests_heads_rows_or_keys_leaves_the_bias_alone() -> None:
    """A larger bias holds the smaller one."""
    recipe = "random:3:1.0:bhqk;fill:-inf:keep:4:50:qk"
    large = bias_content(recipe, replace(CASE, B=3, Hq=4, Tq=9, Tk=11), "fp32")
    assert torch.equal(bias_content(recipe, CASE, "fp32"), large[:2, :2, :3, :5])


MALFORMED_TERMS = {
    "alibi": (
        alibi_content,
        ["", "standard:1", "hashed", "hashed:x", "hashed:-1", "slopes"],
        "expected standard or hashed:seed",
    ),
    "sink_logits": (
        sink_content,
        [
            "", "level", "level:x", "level:nan", "level:inf", "level:1e999", "level:-1e999",
            "level:1:2", "random:1", "random:x:1", "random:1:inf", "random:1:1:1", "zeros",
        ],
        "expected level:x .x finite or -inf. or random:seed:amplitude",
    ),
    "bias": (
        bias_content,
        [
            "", "level", "level:x", "level:nan", "level:inf", "level:-1e999", "level:1:2",
            "random:1:1", "random:x:1:k", "random:1:x:k", "random:1:inf:k", "random:1:1:kx",
            "random:1:1:k:q", "fill:nan:nothing", "fill:inf:nothing", "level:1;", "zeros",
        ],
        "expected random:seed:amplitude:axes, level:x or fill:x:mask recipe, x finite or -inf",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "recipe"), [(n, r) for n, (_, recipes, _) in MALFORMED_TERMS.items() for r in recipes]
)
def test_malformed_terms_say_what_is_expected(name: str, recipe: str) -> None:
    """The message names the field, shows the recipe and says what may be written."""
    make, _, expected = MALFORMED_TERMS[name]
    with pytest.raises(CaseError, match=expected) as caught:
        make(recipe, CASE, "fp32")
    assert str(caught.value).startswith(f"{name} recipe")
    assert repr(recipe) in str(caught.value)


def test_the_mask_of_a_bias_has_the_message_of_a_mask() -> None:
    """A fill whose mask cannot be read says so in the words of masks."""
    for recipe in ("fill:-inf", "fill:-inf:sideways", "fill:1:keep:1:50"):
        with pytest.raises(CaseError, match=r"mask recipe: got .* expected keep:seed:percent"):
            bias_content(recipe, CASE, "fp32")


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


def test_scoring_of_a_case() -> None:
    """A case's scoring holds cap, slopes, bias and sinks; a plain case has none of them."""
    case = AttendCase(
        B=2, Hq=2, Hkv=2, Tk=5, softcap=3, alibi="standard", bias="level:1;fill:-inf:prefix:2",
        sink_logits="level:0.5",
    )  # fmt: skip
    scoring = scoring_of(case, "bf16")
    assert scoring.softcap == 3
    assert scoring.alibi is not None
    assert scoring.alibi.tolist() == [2**-4, 2**-8]
    assert scoring.bias is not None
    assert scoring.bias.dtype == torch.bfloat16
    assert scoring.bias.flatten().tolist() == [1, 1, ninf, ninf, ninf]
    assert scoring.sink_logits is not None
    assert scoring.sink_logits.tolist() == [0.5, 0.5]
    assert scoring_of(AttendCase(), "bf16").plain
    assert logical(case, "bf16").scoring.softcap == 3


@pytest.mark.parametrize("Dv", [None, 3, 9])
def test_values_have_a_size_of_their_own(Dv: int | None) -> None:
    """v has Dv channels; q and k, and what the channels of v hold, do not depend on it."""
    recipes = {"q": "random:1", "k": "random:2", "v": "random:3"}
    x, plain = (logical(replace(CASE, Dv=n, **recipes), "fp32") for n in (Dv, 12))
    assert x.v.shape == (2, 2, 5, Dv or 4)
    assert torch.equal(x.v, plain.v[..., : Dv or 4])
    assert torch.equal(x.q, plain.q)
    assert torch.equal(x.k, plain.k)


def test_content_is_shared_and_not_changed() -> None:
    """The same recipe gives the same tensor object: nobody may write to it."""
    first = content("random:77", (1, 1, 4, 4), CASE, "fp32")
    assert content("random:77", (1, 1, 4, 4), CASE, "fp32") is first
    assert torch.equal(first, content.__wrapped__("random:77", (1, 1, 4, 4), CASE, "fp32"))
