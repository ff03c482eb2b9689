"""The float64 oracle against mpmath, torch and worked numbers, and in how it treats the unseen."""

import math
import subprocess
import sys

import mpmath
import pytest
import torch
from torch import Tensor

from kernelassay.oracle.attention import attention, lse_in_base, weights
from kernelassay.oracle.visibility import Visibility, sees, visible

UNIT = 2.0**-53


def _random(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)


def _qkv(
    B: int, Hq: int, Hkv: int, Tq: int, Tk: int, D: int, Dv: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _random(1, B, Hq, Tq, D), _random(2, B, Hkv, Tk, D), _random(3, B, Hkv, Tk, Dv)


VISIBILITIES = [
    Visibility(),
    Visibility(causal="bottom_right"),
    Visibility(causal="bottom_right", window=(2, None), sinks=1, lengths=torch.tensor([5, 0])),
    Visibility(window=(2, 1)),
    Visibility(causal="top_left", mask=_random(4, 2, 4, 3, 7) > 0),
]


@pytest.mark.parametrize("vis", VISIBILITIES)
@pytest.mark.parametrize("magnitude", [1.0, 30.0])
def test_against_mpmath(vis: Visibility, magnitude: float) -> None:
    """Each output and log-sum-exp is the one of 50-digit arithmetic, up to float64 rounding."""
    q, k, v = _qkv(2, 4, 2, 3, 7, 5, 3)
    scale = magnitude / 3
    out, lse = attention(q, k, v, scale, vis)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (2, 4, 3))).tolist():
        g = h // 2
        keys = [j for j in range(7) if sees(vis, b, h, i, j, 3, 7)]
        if not keys:
            assert out[b, h, i].tolist() == [0.0] * 3
            assert lse[b, h, i] == -math.inf
            continue
        with mpmath.workdps(50):
            e = {
                j: mpmath.exp(
                    mpmath.mpf(scale) * mpmath.fdot(q[b, h, i].tolist(), k[b, g, j].tolist())
                )
                for j in keys
            }
            total = mpmath.fsum(e.values())
            want = [
                mpmath.fsum(e[j] * float(v[b, g, j, c]) for j in keys) / total for c in range(3)
            ]
            assert abs(mpmath.log(total) - float(lse[b, h, i])) < 1e-14 * magnitude
            for c in range(3):
                assert abs(want[c] - float(out[b, h, i, c])) < 1e-14 * magnitude


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("causal", ["none", "bottom_right", "top_left"])
def test_against_torch_softmax(dtype: torch.dtype, causal: str) -> None:
    """On moderate shapes it is torch.softmax in float64, whatever the inputs' dtype."""
    B, Hq, Hkv, Tq, Tk = 2, 6, 2, 70, 130
    q, k, v = (x.to(dtype) for x in _qkv(B, Hq, Hkv, Tq, Tk, 32, 24))
    vis = Visibility(causal=causal)
    kk, vv = (x.double().repeat_interleave(Hq // Hkv, 1) for x in (k, v))
    z = torch.einsum("bhid,bhjd->bhij", q.double(), kk) * 0.25
    z = z.masked_fill(~visible(vis, (B, Hq, Tq, Tk)), -math.inf)
    out, lse = attention(q, k, v, 0.25, vis)
    assert out.dtype == lse.dtype == torch.float64
    torch.testing.assert_close(out, torch.softmax(z, -1) @ vv, rtol=0, atol=1e-13)
    torch.testing.assert_close(lse, torch.logsumexp(z, -1), rtol=0, atol=1e-13)
    torch.testing.assert_close(weights(q, k, 0.25, vis), torch.softmax(z, -1), rtol=0, atol=1e-13)


@pytest.mark.parametrize("vis", VISIBILITIES)
@pytest.mark.parametrize("block", [1, 2, 3, 7])
def test_block_does_not_matter(vis: Visibility, block: int) -> None:
    """Streaming in blocks of any size changes roundings only."""
    q, k, v = _qkv(2, 4, 2, 3, 7, 5, 3)
    for got, want in zip(
        attention(q, k, v, 0.7, vis, block=block), attention(q, k, v, 0.7, vis), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=16 * UNIT, atol=16 * UNIT)


@pytest.mark.parametrize(
    ("keys", "out", "mass"), [([0, 1], 2.0, 3), ([2], 5.0, 6), ([0, 1, 2], 4.0, 9), ([], 0.0, 0)]
)
def test_worked_numbers(keys: list[int], out: float, mass: int) -> None:
    """Masses 2, 1, 6 on values 1, 4, 5: parts 2 and 5, whole 4; lse is the log of the mass."""
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor([2.0, 1.0, 6.0], dtype=torch.float64).log().reshape(1, 1, 3, 1)
    v = torch.tensor([1.0, 4.0, 5.0]).reshape(1, 1, 3, 1)
    mask = torch.tensor([[j in keys for j in range(3)]])
    got, lse = attention(q, k, v, 1.0, Visibility(mask=mask))
    assert got.item() == pytest.approx(out, rel=8 * UNIT)
    assert lse.item() == pytest.approx(math.log(mass) if mass else -math.inf, rel=8 * UNIT)


@pytest.mark.parametrize("vis", VISIBILITIES)
def test_weights(vis: Visibility) -> None:
    """Weights are 0 where invisible, sum to 1 or 0, and give the output."""
    q, k, v = _qkv(2, 4, 2, 3, 7, 5, 3)
    p = weights(q, k, 0.7, vis)
    seen = visible(vis, (2, 4, 3, 7)).expand_as(p)
    assert not p[~seen].any()
    torch.testing.assert_close(p.sum(-1), seen.any(-1).double(), rtol=0, atol=1e-15)
    out, _ = attention(q, k, v, 0.7, vis)
    torch.testing.assert_close(p @ v.double().repeat_interleave(2, 1), out, rtol=0, atol=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("block", [2, 4096])
def test_unseen_content_never_matters(bad: float, block: int) -> None:
    """NaN and infinities in unseen keys and values, and in rows that see nothing, are inert."""
    q, k, v = _qkv(2, 4, 2, 3, 6, 5, 3)
    mask = torch.ones(2, 4, 3, 6, dtype=torch.bool)
    mask[0, :, :, 1] = False  # a key unseen by all
    mask[1, 2:, :, 4] = False  # a key unseen by the second head group
    mask[1, 0, 2] = False  # a row that sees nothing
    vis = Visibility(mask=mask, lengths=torch.tensor([5, 6]))
    want = attention(q, k, v, 0.7, vis, block=block)
    for x in (k, v):
        x[0, :, 1] = x[0, :, 5] = x[1, 1, 4] = bad
    q[1, 0, 2] = bad
    got = attention(q, k, v, 0.7, vis, block=block)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_key_seen_by_some_rows() -> None:
    """A NaN key that one row sees leaves the rows alone that do not see it."""
    q, k, v = _qkv(1, 1, 1, 4, 4, 5, 3)
    vis = Visibility(causal="bottom_right")
    want, _ = attention(q, k, v, 0.7, vis)
    k[0, 0, 3] = math.nan
    got, lse = attention(q, k, v, 0.7, vis)
    assert torch.equal(got[0, 0, :3], want[0, 0, :3])
    assert got[0, 0, 3].isnan().all()
    assert lse[0, 0].isnan().tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 3, 0), (1, 2, 1, 0, 3), (0, 2, 1, 3, 3), (2, 2, 2, 0, 0)]
)
def test_empty_shapes(shape: tuple[int, int, int, int, int]) -> None:
    """No keys: out 0 and lse -inf; no queries or requests: results without elements."""
    B, Hq, Hkv, Tq, Tk = shape
    q, k, v = _qkv(B, Hq, Hkv, Tq, Tk, 4, 5)
    out, lse = attention(q, k, v, 1.0, Visibility(causal="bottom_right"))
    assert torch.equal(out, torch.zeros(B, Hq, Tq, 5, dtype=torch.float64))
    assert torch.equal(lse, torch.full((B, Hq, Tq), -math.inf if Tk == 0 else 0).double())
    assert weights(q, k, 1.0, Visibility()).shape == (B, Hq, Tq, Tk)


@pytest.mark.parametrize("level", [-6e4, -110.0, 99.0, 4500.0])
def test_far_scores(level: float) -> None:
    """Scores far from 0 move the log-sum-exp by themselves and leave the output."""
    k = torch.tensor([2.0, 1.0, 6.0], dtype=torch.float64).log() + level
    v = torch.tensor([1.0, 4.0, 5.0]).reshape(1, 1, 3, 1)
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    for block in (1, 3):
        out, lse = attention(q, k.reshape(1, 1, 3, 1), v, 1.0, Visibility(), block=block)
        assert out.item() == pytest.approx(4.0, rel=4 * UNIT * abs(level))
        assert lse.item() == pytest.approx(level + math.log(9), rel=4 * UNIT)


def test_lse_in_base() -> None:
    """log2 of the same sum: 8 equal keys of score 0 have 3."""
    q, k, v = (torch.zeros(1, 1, n, 4) for n in (1, 8, 8))
    _, lse = attention(q, k, v, 1.0, Visibility())
    assert lse_in_base(lse, 2.0).item() == pytest.approx(3.0, rel=4 * UNIT)
    assert lse_in_base(torch.tensor(-math.inf), 2.0) == -math.inf


def test_shapes_that_do_not_fit() -> None:
    """Shapes that do not fit are refused with what came and what is expected."""
    q, k, v = _qkv(1, 3, 2, 1, 4, 5, 5)
    with pytest.raises(ValueError, match=r"got q \(1, 3, 1, 5\).*Hkv dividing Hq"):
        attention(q, k, v, 1.0, Visibility())


MEMORY = """
import resource, torch
from kernelassay.oracle.attention import attention
from kernelassay.oracle.visibility import Visibility

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

torch.set_num_threads(1)
shapes = (1, 8, 1, 128), (1, 4, 2**17, 128), (1, 4, 2**17, 128)
q, k, v = (torch.ones(shape, dtype=torch.bfloat16) for shape in shapes)
attention(q, k[:, :, :8], v[:, :, :8], 0.1, Visibility())
before = peak()
out, lse = attention(q, k, v, 0.0, Visibility(causal="bottom_right"))
assert (out == 1).all()
print(before, peak())
"""


def test_long_context_streams() -> None:
    """128k keys of size 128 in 4 heads (1 GiB in float64) take under 256 MiB beyond the inputs."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True, timeout=120
    )
    before, after = map(float, done.stdout.split())
    assert after < 2048
    assert after - before < 256
