"""Soft cap, ALiBi, bias and sinks: plain Python, rational truth and worked numbers agree."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernelassay.oracle.attention import attention, weights
from kernelassay.oracle.exact import as_tensor, integer_mass_attention, log_fraction
from kernelassay.oracle.scoring import PLAIN, Scoring, alibi_offsets, check_scoring, offsets
from kernelassay.oracle.visibility import Visibility, sees

UNIT = 2.0**-53
SHAPE = (2, 4, 3, 5)


def random(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers, float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv(B: int = 2, Hq: int = 4, Hkv: int = 2, Tq: int = 3, Tk: int = 5) -> tuple[Tensor, ...]:
    """Random q, k and v of D = 4 and Dv = 3."""
    return random(1, B, Hq, Tq, 4), random(2, B, Hkv, Tk, 4), random(3, B, Hkv, Tk, 3)


def distance(vis: Visibility, b: int, i: int, j: int, Tq: int, Tk: int) -> int:
    """How far query i of request b is from key j, in plain integers."""
    if vis.causal == "positions":
        assert vis.q_positions is not None
        assert vis.k_positions is not None
        return abs(int(vis.q_positions[b, i]) - int(vis.k_positions[b, j]))
    if vis.causal == "top_left":
        return abs(i - j)
    used = Tk if vis.lengths is None else int(vis.lengths[b])
    return abs(i + used - Tq - j)


def item(x: Tensor, *index: int) -> float:
    """x[index] of a tensor that is broadcast to the index's axes."""
    own = index[len(index) - x.ndim :]
    return float(x[tuple(i if n > 1 else 0 for i, n in zip(own, x.shape, strict=True))])


def row_by_hand(
    q: Tensor, k: Tensor, v: Tensor, scale: float, vis: Visibility, how: Scoring,
    b: int, h: int, i: int,
) -> tuple[list[float], float, dict[int, float]]:  # fmt: skip
    """out, lse and the weights of one query: the definition, one number at a time."""
    g, (Tq, Tk) = h // (q.shape[1] // k.shape[1]), (q.shape[2], k.shape[2])
    z = {}
    for j in range(Tk):
        score = scale * math.fsum(
            a * c for a, c in zip(q[b, h, i].tolist(), k[b, g, j].tolist(), strict=True)
        )
        if how.softcap is not None:
            score = how.softcap * math.tanh(score / how.softcap)
        if how.alibi is not None:
            score -= float(how.alibi[h]) * distance(vis, b, i, j, Tq, Tk)
        if how.bias is not None:
            score += item(how.bias, b, h, i, j)
        if sees(vis, b, h, i, j, Tq, Tk) and score > -math.inf:
            z[j] = score
    logits = list(z.values()) + ([] if how.sink_logits is None else [float(how.sink_logits[h])])
    top = max(logits, default=-math.inf)
    if top == -math.inf:
        return [0.0] * v.shape[-1], -math.inf, {}
    mass = math.fsum(math.exp(x - top) for x in logits)
    p = {j: math.exp(x - top) / mass for j, x in z.items()}
    columns = range(v.shape[-1])
    out = [math.fsum(p[j] * float(v[b, g, j, c]) for j in p) for c in columns]
    return out, top + math.log(mass), p


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    """q, k, v, scale, visibility and scoring of a few numbers, every term with every other."""
    B, Hkv, group, Tq, Tk = (draw(st.integers(*ends)) for ends in ((1, 2),) * 3 + ((0, 3), (0, 4)))
    Hq, seed = Hkv * group, draw(st.integers(0, 99))
    tensors = qkv(B, Hq, Hkv, Tq, Tk)
    causal = draw(st.sampled_from(["none", "bottom_right", "top_left", "positions"]))
    explicit = causal == "positions"
    places = torch.Generator().manual_seed(seed)
    vis = Visibility(
        causal=causal,
        window=(draw(st.sampled_from([None, 1, 4])), None),
        lengths=torch.randint(0, Tk + 1, (B,), generator=places) if draw(st.booleans()) else None,
        q_positions=torch.randint(-3, 9, (B, Tq), generator=places) if explicit else None,
        k_positions=torch.randint(-3, 9, (B, Tk), generator=places) if explicit else None,
    )
    axes = draw(st.tuples(*[st.booleans()] * 4))
    sizes = [n if vary else 1 for n, vary in zip((B, Hq, Tq, Tk), axes, strict=True)]
    bias = draw(st.sampled_from([1.0, 30.0])) * random(seed, *sizes)
    if draw(st.booleans()):
        bias = torch.where(random(seed + 1, *sizes) < 0, -math.inf, bias)
    sinks = torch.tensor([0.0, -math.inf, 3.0, -40.0])[(torch.arange(Hq) + seed) % 4]
    how = Scoring(
        softcap=draw(st.sampled_from([None, 0.5, 5.0])),
        alibi=random(seed, Hq).abs().float() if draw(st.booleans()) else None,
        bias=bias[(0,) * draw(st.integers(0, axes.index(True)))] if any(axes) else None,
        sink_logits=sinks if draw(st.booleans()) else None,
    )
    return *tensors, draw(st.sampled_from([0.5, -3.0, 20.0])), vis, how


@settings(max_examples=150, deadline=None)
@given(cases(), st.sampled_from([1, 3, 4096]))
def test_tensors_are_the_definition(case: tuple[Any, ...], block: int) -> None:
    """Output, log-sum-exp and weights are those of plain Python, for all terms combined."""
    q, k, v, scale, vis, how = case
    out, lse = attention(q, k, v, scale, vis, how, block=block)
    p = weights(q, k, scale, vis, how)
    assert p.shape == (*q.shape[:3], k.shape[2])
    # Scores are below 400: so many roundings of them, of weights and sums, on either side.
    near = 16 * UNIT * 400
    for b, h, i in itertools.product(*map(range, q.shape[:3])):
        want, mass, shares = row_by_hand(q, k, v, scale, vis, how, b, h, i)
        assert lse[b, h, i].item() == pytest.approx(mass, rel=0, abs=near)
        assert out[b, h, i].tolist() == pytest.approx(want, rel=0, abs=8 * near)
        for j in range(k.shape[2]):
            assert p[b, h, i, j].item() == pytest.approx(shares.get(j, 0.0), rel=0, abs=2 * near)
            assert (j in shares) or p[b, h, i, j] == 0


# Rational truth: scores are logs of integers, so masses are integers.


@pytest.mark.parametrize("mass", [1, 2, 7, 1000])
def test_a_sink_of_rational_mass(mass: int) -> None:
    """q = 0 and a logit of log m: n visible keys have weight 1 / (n + m) each."""
    q, k, v = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 6, 4), torch.arange(18.0).reshape(6, 3)
    logit = torch.tensor([math.log(mass)])
    vis = Visibility(causal="bottom_right")
    out, lse = attention(q, k, v[None, None], 1.0, vis, Scoring(sink_logits=logit))
    moved = abs(logit.item() - math.log(mass)) + 8 * UNIT  # a logit is a float32 number
    for i in range(4):
        n = 3 + i
        want = [Fraction(sum(range(c, 3 * n, 3)), n + mass) for c in range(3)]
        assert out[0, 0, i].tolist() == pytest.approx([float(x) for x in want], rel=moved)
        assert lse[0, 0, i].item() == pytest.approx(math.log(n + mass), abs=moved)


def test_biases_that_are_logs_of_integers() -> None:
    """q = 0: masses are the integers, whatever the axes that the bias varies on."""
    masses = torch.arange(1, 21).reshape(4, 5)
    v = torch.arange(-5, 5).reshape(5, 2)
    see = Visibility(causal="top_left")
    visible = [[j <= i for j in range(5)] for i in range(4)]
    q, k = torch.zeros(1, 1, 4, 2).double(), torch.ones(1, 1, 5, 2).double()
    for chosen in (masses, masses[:1], masses[:, :1]):
        whole = chosen.expand(4, 5)
        rows, sums = integer_mass_attention(whole, v, visible)
        how = Scoring(bias=chosen.double().log())
        out, lse = attention(q, k, v.double()[None, None], 1.0, see, how)
        torch.testing.assert_close(out[0, 0], as_tensor(rows), rtol=1e-15, atol=2e-15)
        assert lse[0, 0].tolist() == pytest.approx([log_fraction(s) for s in sums], rel=1e-15)


@pytest.mark.parametrize("causal", ["bottom_right", "top_left", "none"])
def test_slopes_of_log_two(causal: Any) -> None:
    """q = 0 and a slope of ln 2: a key at distance d has mass 2**-d."""
    slope = torch.tensor([math.log(2)])
    vis = Visibility(causal=causal)
    q, k, v = torch.zeros(1, 1, 3, 2), torch.ones(1, 1, 6, 2), torch.arange(12).reshape(6, 2)
    masses = [[Fraction(1, 2 ** distance(vis, 0, i, j, 3, 6)) for j in range(6)] for i in range(3)]
    visible = [[sees(vis, 0, 0, i, j, 3, 6) for j in range(6)] for i in range(3)]
    rows, sums = integer_mass_attention(masses, v, visible)
    out, lse = attention(q, k, v[None, None], 1.0, vis, Scoring(alibi=slope))
    moved = 5 * abs(slope.item() - math.log(2)) + 8 * UNIT  # the farthest key is 5 away
    torch.testing.assert_close(out[0, 0], as_tensor(rows), rtol=2 * moved, atol=0)
    assert lse[0, 0].tolist() == pytest.approx([log_fraction(s) for s in sums], abs=moved)


def test_a_bias_of_minus_infinity_is_a_mask() -> None:
    """Hidden by the bias or by a mask: the same bits, of rows that see nothing too."""
    q, k, v = qkv()
    mask = random(5, *SHAPE) > 0
    mask[0, 1], mask[1, :, 2] = False, True
    vis = Visibility(causal="bottom_right")
    how = Scoring(softcap=3.0, sink_logits=torch.tensor([0.0, 1.0, -math.inf, 2.0]))
    for terms in (PLAIN, how):
        hidden = replace(terms, bias=torch.where(mask, 0.0, -math.inf))
        masked = replace(vis, mask=mask)
        for got, want in zip(
            attention(q, k, v, 0.7, vis, hidden), attention(q, k, v, 0.7, masked, terms),
            strict=True,
        ):  # fmt: skip
            assert torch.equal(got, want)
        assert torch.equal(weights(q, k, 0.7, vis, hidden), weights(q, k, 0.7, masked, terms))


# Worked numbers.


def test_soft_cap_by_hand() -> None:
    """Cap 5: a score of 50 becomes 5 tanh 10, one of -50 its negative, one of 0 stays 0."""
    q, k = torch.tensor([[[[2.0]]]]), torch.tensor([50.0, -50.0, 0.0]).reshape(1, 1, 3, 1)
    v = torch.eye(3)[None, None]
    out, lse = attention(q, k, v, 0.5, Visibility(), Scoring(softcap=5.0))
    high = 5 * math.tanh(10)
    mass = math.exp(high) + math.exp(-high) + 1
    assert lse.item() == pytest.approx(math.log(mass), rel=8 * UNIT)
    want = [math.exp(high) / mass, math.exp(-high) / mass, 1 / mass]
    assert out.flatten().tolist() == pytest.approx(want, rel=64 * UNIT)
    assert high == pytest.approx(4.999999979388464, rel=4 * UNIT)


@pytest.mark.parametrize(
    "how",
    [
        Scoring(softcap=5.0, bias=torch.tensor([40.0, 0.0])),
        Scoring(softcap=5.0, alibi=torch.tensor([-40.0])),  # the keys are 1 and 0 away
    ],
)
def test_the_cap_comes_before_what_is_added(how: Scoring) -> None:
    """40 added to a score of 50 under a cap of 5 gives 5 tanh 10 + 40, not 5 tanh 18."""
    q, k = torch.ones(1, 1, 1, 1), torch.full((1, 1, 2, 1), 50.0)
    _, lse = attention(q, k, torch.ones(1, 1, 2, 1), 1.0, Visibility(), how)
    far = 5 * math.tanh(10) + 40
    assert lse.item() == pytest.approx(far + math.log1p(math.exp(-40)), rel=8 * UNIT)


@pytest.mark.parametrize(
    ("vis", "rows"),
    [
        (Visibility(), [[1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]),
        (Visibility(causal="bottom_right"), [[1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]),
        (Visibility(causal="top_left"), [[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1]]),
        (Visibility(lengths=torch.tensor([3])), [[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1]]),
        (Visibility(lengths=torch.tensor([2])), [[1, 2, 3, 4], [0, 1, 2, 3], [1, 0, 1, 2]]),
        (
            Visibility(
                causal="positions",
                q_positions=torch.tensor([[7, 0, 3]]),
                k_positions=torch.tensor([[3, 9, 0, -2]]),
            ),
            [[4, 2, 7, 9], [3, 9, 0, 2], [0, 6, 3, 5]],
        ),
    ],
)  # fmt: skip
def test_alibi_by_hand(vis: Visibility, rows: list[list[int]]) -> None:
    """Each head subtracts its slope times the distance, beyond the diagonal as well."""
    slopes = torch.tensor([0.5, 0.125])
    got = offsets(Scoring(alibi=slopes), vis, (1, 2, 3, 4))
    assert got is not None
    assert got.dtype == torch.float64
    for h, slope in enumerate([0.5, 0.125]):
        assert got[0, h].tolist() == [[-slope * d for d in row] for row in rows]


def test_alibi_follows_the_lengths_of_each_request() -> None:
    """Requests of other lengths have corners of their own; one length serves all."""
    vis, how = Visibility(lengths=torch.tensor([4, 1])), Scoring(alibi=torch.ones(1))
    got = offsets(how, vis, (2, 1, 1, 4))
    assert got is not None
    assert got[:, 0, 0].tolist() == [[-3, -2, -1, 0], [0, -1, -2, -3]]
    shared = offsets(how, Visibility(), (2, 1, 1, 4))
    assert shared is not None
    assert shared.shape == (1, 1, 1, 4)


@pytest.mark.parametrize("axes", [*itertools.product((False, True), repeat=4)])
def test_a_bias_is_broadcast_on_any_axes(axes: tuple[bool, ...]) -> None:
    """A bias of size 1 on some axes, or without leading ones, is the same as one written out."""
    q, k, v = qkv()
    bias = random(7, *(n if vary else 1 for n, vary in zip(SHAPE, axes, strict=True)))
    vis = Visibility(causal="bottom_right")
    want = attention(q, k, v, 0.7, vis, Scoring(bias=bias.expand(SHAPE).clone()))
    first = axes.index(True) if any(axes) else 3
    for same in (bias, bias[(0,) * first]):
        for block in (2, 4096):
            got = attention(q, k, v, 0.7, vis, Scoring(bias=same), block=block)
            torch.testing.assert_close(got, want, rtol=16 * UNIT, atol=16 * UNIT)


def test_a_run_of_keys_is_columns() -> None:
    """What is added to keys 1..4 is that part of what is added to all."""
    how = Scoring(alibi=random(4, 4), bias=random(7, 1, 4, 3, 5))
    for terms in (how, replace(how, alibi=None), replace(how, bias=how.bias[..., :1])):
        whole = offsets(terms, Visibility(), SHAPE)
        part = offsets(terms, Visibility(), SHAPE, keys=range(1, 4))
        assert whole is not None
        assert part is not None
        assert torch.equal(part, whole[..., 1:4])
    assert offsets(Scoring(softcap=1.0, sink_logits=torch.ones(4)), Visibility(), SHAPE) is None


def test_what_is_added_is_alibi_and_bias() -> None:
    """ALiBi alone, the bias alone and both, which may cancel."""
    slopes, bias = torch.ones(1), torch.tensor([3.0, 2.0, -1.0])
    both, shape = Scoring(alibi=slopes, bias=bias), (1, 1, 1, 3)

    def added(f: Any, how: Scoring) -> Any:
        got = f(how, Visibility(), shape)
        return None if got is None else got.flatten().tolist()

    assert added(offsets, both) == [1, 1, -1]
    assert added(alibi_offsets, both) == added(offsets, Scoring(alibi=slopes)) == [-2, -1, 0]
    assert added(offsets, Scoring(bias=bias)) == [3, 2, -1]
    assert added(alibi_offsets, Scoring(bias=bias)) is None


def test_a_row_that_sees_only_the_sink() -> None:
    """Its output is 0 and its log-sum-exp the logit, without keys as with hidden ones."""
    logits = torch.tensor([-3.0, 0.0, 7.5, -math.inf])
    for Tk in (0, 5):
        q, k, v = qkv(Tk=Tk)
        vis = Visibility(lengths=torch.zeros(2, dtype=torch.int64))
        out, lse = attention(q, k, v, 1.0, vis, Scoring(sink_logits=logits))
        assert not out.any()
        assert torch.equal(lse, logits.double()[:, None].expand(2, 4, 3))
        assert not weights(q, k, 1.0, vis, Scoring(sink_logits=logits)).any()


def test_a_sink_of_minus_infinity_is_none() -> None:
    """The bits are those of a call without a sink."""
    q, k, v = qkv()
    none = Scoring(sink_logits=torch.full((4,), -math.inf))
    vis = Visibility(causal="bottom_right")
    for got, want in zip(
        attention(q, k, v, 0.7, vis, none), attention(q, k, v, 0.7, vis), strict=True
    ):
        assert torch.equal(got, want)
    assert torch.equal(weights(q, k, 0.7, vis, none), weights(q, k, 0.7, vis))


def test_a_sink_takes_its_share() -> None:
    """Equal to two keys of mass 1, it halves their mean, and the weights sum to a half."""
    q, k, v = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 2, 2), torch.tensor([1.0, 3.0])
    how = Scoring(sink_logits=torch.tensor([0.0]))
    out, lse = attention(q, k, v.reshape(1, 1, 2, 1), 1.0, Visibility(), how)
    assert out.item() == pytest.approx(4 / 3, rel=4 * UNIT)
    assert lse.item() == pytest.approx(math.log(3), rel=4 * UNIT)
    assert weights(q, k, 1.0, Visibility(), how).sum().item() == pytest.approx(2 / 3, rel=4 * UNIT)


@pytest.mark.parametrize("logit", [-1e4, 1e4])
def test_sinks_far_from_the_scores(logit: float) -> None:
    """Far below it changes nothing; far above it takes all the weight."""
    q, k, v = qkv()
    out, lse = attention(q, k, v, 0.7, Visibility(), Scoring(sink_logits=torch.full((4,), logit)))
    plain, mass = attention(q, k, v, 0.7, Visibility())
    assert torch.equal(out, plain if logit < 0 else torch.zeros_like(out))
    assert torch.equal(lse, mass if logit < 0 else torch.full_like(lse, logit))


def test_a_constant_bias_moves_the_log_sum_exp_only() -> None:
    """-6e4 on every key: the output stays, the log-sum-exp falls by 6e4."""
    q, k, v = qkv()
    out, lse = attention(q, k, v, 0.7, Visibility(), Scoring(bias=torch.full((1,), -6e4)))
    plain, mass = attention(q, k, v, 0.7, Visibility())
    torch.testing.assert_close(out, plain, rtol=0, atol=32 * UNIT * 6e4)
    torch.testing.assert_close(lse, mass - 6e4, rtol=4 * UNIT, atol=0)


def test_unseen_terms_never_matter() -> None:
    """NaN in the bias of a hidden key is inert; in that of a visible one it is not hidden."""
    q, k, v = qkv()
    vis = Visibility(causal="top_left")
    bias = random(7, *SHAPE)
    want = attention(q, k, v, 0.7, vis, Scoring(bias=bias.clone()))
    bias[..., 0, 1:] = math.nan
    got = attention(q, k, v, 0.7, vis, Scoring(bias=bias))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    bias[..., 0, 0] = math.nan
    out, lse = attention(q, k, v, 0.7, vis, Scoring(bias=bias))
    assert out[:, :, 0].isnan().all()
    assert lse[:, :, 0].isnan().all()
    assert not out[:, :, 1:].isnan().any()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Scoring(softcap=0.0), r"softcap: got 0.0, expected a finite number above 0"),
        (Scoring(softcap=-5.0), r"softcap: got -5.0"),
        (Scoring(softcap=math.inf), r"softcap: got inf"),
        (Scoring(softcap=math.nan), r"softcap: got nan"),
        (Scoring(alibi=torch.ones(2)), r"alibi: got .* \(2,\), expected torch.float32 \(4,\)"),
        (Scoring(alibi=torch.ones(4).half()), r"alibi: got torch.float16 \(4,\), expected"),
        (Scoring(sink_logits=torch.ones(1, 4)), r"sink_logits: got torch.float32 \(1, 4\)"),
        (Scoring(sink_logits=torch.ones(4).double()), r"sink_logits: got torch.float64 \(4,\)"),
        (Scoring(bias=torch.ones(3, 4)), r"bias: got .*\(3, 4\), expected .* to \(2, 4, 3, 5\)"),
        (Scoring(bias=torch.ones([1] * 5)), r"bias: got torch.float32 \(1, 1, 1, 1, 1\)"),
        (Scoring(bias=torch.tensor(1.0)), r"bias: got torch.float32 \(\), expected"),
        (Scoring(bias=torch.ones(5).bool()), r"bias: got torch.bool \(5,\), expected floating"),
    ],
)  # fmt: skip
def test_malformed(how: Scoring, message: str) -> None:
    """A malformed scoring is refused with field, got and expected, by the oracle too."""
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"^Scoring\." + message):
        check_scoring(how, SHAPE)
    with pytest.raises(ValueError, match=r"^Scoring\." + message):
        attention(q, k, v, 1.0, Visibility(), how)


def test_well_formed() -> None:
    """Each term in each of its forms passes, and only an empty one is plain."""
    for how in (
        Scoring(softcap=30),
        Scoring(alibi=torch.zeros(4)),
        Scoring(sink_logits=torch.full((4,), -math.inf)),
        Scoring(bias=torch.ones(5).bfloat16()),
        Scoring(bias=torch.ones(2, 1, 1, 5)),
    ):
        check_scoring(how, SHAPE)
        assert not how.plain
    check_scoring(PLAIN, SHAPE)
    assert PLAIN.plain
