"""The enclosure holds rational truth, and the float64 oracle lies within a derived bound of it."""

import builtins
import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from kernelassay.oracle.attention import attention
from kernelassay.oracle.enclosure import attention_enclosure
from kernelassay.oracle.exact import as_tensor, counting_attention
from kernelassay.oracle.scoring import Scoring, offsets
from kernelassay.oracle.visibility import Visibility, visible

UNIT = 2.0**-53
CAUSAL = Visibility(causal="bottom_right")


@pytest.fixture(autouse=True)
def _flint() -> None:
    pytest.importorskip("flint", reason="the extra kernelassay[enclosure] is not installed")


def _inputs(Tq: int, Tk: int, D: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, float]:
    draw = torch.Generator().manual_seed(Tq + Tk + D)
    q, k, v = (torch.randn(n, D, generator=draw) for n in (Tq, Tk, Tk))
    return q, k, v, scale


def _bounds(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Worst case of the float64 oracle's error in out and lse, [Tq, 1] and [Tq].

    With S = max_j scale |q|.|k_j| over visible j: a dot product of D terms and the scaling err by
    (D + 1) u S, subtracting the maximum by 2 u S, exp by 2 u: together eps. A weight's relative
    error of eps moves out by at most eps |v_j - o| <= 2 eps max|v|; two sums of n terms and a
    division add (2 n + 1) u max|v|. The lse takes eps once, its sum n u, and the logarithm and the
    last addition 4 u (S + log n). The factor 1.01 covers products of these terms.
    """
    D, n = q.shape[1], seen.sum(1).double()
    sizes = abs(scale) * (q.double().abs() @ k.double().abs().T)
    S = torch.where(seen, sizes, 0.0).amax(1)
    eps = UNIT * ((D + 3) * S + 2)
    out = (2 * eps + UNIT * (2 * n + 1)) * v.double().abs().max()
    lse = eps + UNIT * (n + 4 * (S + n.clamp(min=1).log()))
    return 1.01 * out[:, None], 1.01 * lse


@pytest.mark.parametrize(
    ("Tq", "Tk", "D", "logits"),
    [(1, 1, 4, 1), (7, 12, 16, 8), (64, 96, 32, 400), (33, 300, 64, 40)],
)
def test_float64_oracle_is_certified(Tq: int, Tk: int, D: int, logits: float) -> None:
    """|float64 - truth| is within the rounding analysis, for logits up to 400."""
    q, k, v, _ = _inputs(Tq, Tk, D)
    scale = logits / float((q @ k.T).abs().max())
    seen = visible(CAUSAL, (1, 1, Tq, Tk))[0, 0]
    true = attention_enclosure(q, k, v, scale, seen)
    out, lse = (
        x[0, 0] for x in attention(q[None, None], k[None, None], v[None, None], scale, CAUSAL)
    )
    out_bound, lse_bound = _bounds(q, k, v, scale, seen)
    assert bool(((out - true.out).abs() <= out_bound + true.out_radius).all())
    assert bool(((lse - true.lse).abs() <= lse_bound + true.lse_radius).all())
    # what is seen is far below the worst case: rounding errors cancel
    assert float((out - true.out).abs().max()) <= 1e-15 * max(4.0, logits)
    assert float((lse - true.lse).abs().max()) <= 1e-15 * max(4.0, logits)


SCORINGS = {
    "cap of 1": Scoring(softcap=1.0),
    "cap of 30": Scoring(softcap=30.0),
    "slope of 1": Scoring(alibi=torch.ones(1)),
    "bias": Scoring(bias=3 * torch.randn(33, 60, generator=torch.Generator().manual_seed(1))),
    "bias of -6e4": Scoring(bias=torch.full((1,), -6e4)),
    "sink above": Scoring(sink_logits=torch.tensor([60.0])),
    "sink below": Scoring(sink_logits=torch.tensor([-500.0])),
    "no sink": Scoring(sink_logits=torch.tensor([-math.inf])),
    "all": Scoring(
        softcap=2.0,
        alibi=torch.tensor([0.3]),
        bias=torch.where(torch.arange(60) % 7 == 0, -math.inf, torch.linspace(-9, 9, 60)),
        sink_logits=torch.tensor([1.5]),
    ),
}


@pytest.mark.parametrize("name", SCORINGS)
@pytest.mark.parametrize("logits", [3, 300])
def test_float64_oracle_is_certified_with_its_terms(name: str, logits: float) -> None:
    """Soft cap, ALiBi, bias and sinks: |float64 - truth| is within the rounding analysis.

    On top of `_bounds`: quotient, tanh (2 u), product and sum are 4 u of a score, ALiBi and bias
    a sum, and scores grow by what is added, the sink's logit included.
    """
    how = SCORINGS[name]
    q, k, v, _ = _inputs(33, 60, 16)
    scale = logits / float((q @ k.T).abs().max())
    seen = visible(CAUSAL, (1, 1, 33, 60))[0, 0]
    added = offsets(how, CAUSAL, (1, 1, 33, 60))
    added = torch.zeros(1, 1, 1, 1).double() if added is None else added
    offset = added.expand(1, 1, 33, 60)[0, 0]
    sink = None if how.sink_logits is None else float(how.sink_logits)
    true = attention_enclosure(q, k, v, scale, seen, softcap=how.softcap, offset=offset, sink=sink)
    whole = [x[None, None] for x in (q, k, v)]
    out, lse = (x[0, 0] for x in attention(*whole, scale, CAUSAL, how))
    out_bound, lse_bound = _bounds(q, k, v, scale, seen & (offset > -math.inf))
    size = torch.where(offset > -math.inf, offset, 0.0).abs().amax(1)
    size = UNIT * (8 * size + 4 * logits + 4 * (abs(sink) if sink and sink > -math.inf else 0))
    assert bool(((out - true.out).abs() <= out_bound + 8 * size[:, None] + true.out_radius).all())
    assert bool(((lse - true.lse).abs() <= lse_bound + size + true.lse_radius).all())


def test_enclosure_of_a_soft_cap_by_hand() -> None:
    """Cap 5 makes 5 tanh 10 of a score of 50; two keys and a sink of mass e."""
    q, k, v = torch.ones(1, 1), torch.tensor([[50.0], [0.0]]), torch.tensor([[1.0], [0.0]])
    true = attention_enclosure(q, k, v, 1.0, torch.ones(1, 2).bool(), softcap=5.0, sink=1.0)
    with mpmath.workdps(50):
        e = mpmath.exp(5 * mpmath.tanh(10))
        total = e + 1 + mpmath.e
        assert abs(mpmath.log(total) - float(true.lse)) <= float(true.lse_radius)
        assert abs(e / total - float(true.out)) <= float(true.out_radius)


def test_enclosure_with_nothing_but_a_sink() -> None:
    """A row that sees no key has out 0 and the sink's logit as lse; -inf hides and is no sink."""
    q, k, v, scale = _inputs(2, 3, 4)
    hidden = torch.full((2, 3), -math.inf)
    for sink in (-7.25, -math.inf):
        true = attention_enclosure(
            q, k, v, scale, torch.ones(2, 3).bool(), offset=hidden, sink=sink
        )
        assert not true.out.any()
        assert true.lse.tolist() == [sink] * 2
        assert bool((true.lse_radius <= UNIT * 8).all())


def test_enclosure_is_tight() -> None:
    """The radius is the midpoint's rounding to float64 and no more, also for far scores."""
    for scale in (0.1, 100.0, -3e4):
        true = attention_enclosure(*_inputs(9, 9, 8, scale), torch.ones(9, 9).tril().bool())
        assert bool((true.out_radius <= 1.01 * UNIT * true.out.abs()).all())
        assert bool((true.lse_radius <= 1.01 * UNIT * true.lse.abs()).all())


def test_enclosure_holds_mpmath() -> None:
    """50-digit arithmetic lies inside the enclosure."""
    q, k, v, scale = _inputs(2, 3, 4, 0.37)
    true = attention_enclosure(q, k, v, scale, torch.ones(2, 3).bool())
    with mpmath.workdps(50):
        for i in range(2):
            e = [
                mpmath.exp(mpmath.mpf(scale) * mpmath.fdot(q[i].tolist(), k[j].tolist()))
                for j in range(3)
            ]
            lse = mpmath.log(mpmath.fsum(e))
            assert abs(lse - float(true.lse[i])) <= float(true.lse_radius[i])
            for c in range(4):
                out = mpmath.fdot(e, v[:, c].tolist()) / mpmath.fsum(e)
                assert abs(out - float(true.out[i, c])) <= float(true.out_radius[i, c])


def test_enclosure_holds_counting_attention() -> None:
    """q = 0: the enclosure holds the rational average, and log n."""
    _, k, _, scale = _inputs(4, 6, 3)
    v = torch.arange(18.0).reshape(6, 3)
    seen = visible(CAUSAL, (1, 1, 4, 6))[0, 0]
    rows, count = counting_attention(v, seen)
    true = attention_enclosure(torch.zeros(4, 3), k, v, scale, seen)
    assert bool(((true.out - as_tensor(rows)).abs() <= 2 * true.out_radius).all())
    assert true.lse.tolist() == pytest.approx([math.log(n) for n in count], rel=4 * UNIT)


def test_unseen_and_empty() -> None:
    """What no query sees may hold anything; a row without keys has out 0 and lse -inf."""
    q, k, v, scale = _inputs(3, 4, 2)
    seen = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 1]]).bool()
    want = attention_enclosure(q, k, v, scale, seen)
    k[2], v[2], q[1] = math.nan, math.inf, math.nan
    got = attention_enclosure(q, k, v, scale, seen)
    assert torch.equal(got.out, want.out)
    assert torch.equal(got.lse, want.lse)
    assert got.out[1].tolist() == [0.0, 0.0]
    assert (got.lse[1], got.lse_radius[1]) == (-math.inf, 0)


@pytest.mark.parametrize(("Tq", "Tk"), [(0, 3), (2, 0), (0, 0)])
def test_empty_shapes(Tq: int, Tk: int) -> None:
    """No queries or no keys give results of the right shape."""
    true = attention_enclosure(*_inputs(Tq, Tk, 4), torch.ones(Tq, Tk).bool())
    assert torch.equal(true.out, torch.zeros(Tq, 4, dtype=torch.float64))
    assert true.lse.tolist() == [-math.inf] * Tq


def test_precision_is_restored() -> None:
    """flint's global precision is as before, also after an error inside."""
    import flint

    before = flint.ctx.prec
    with pytest.raises(ValueError, match=r"visible: .* expected shape"):
        attention_enclosure(*_inputs(2, 3, 4), torch.ones(3, 3).bool())
    with pytest.raises(ValueError, match=r"offset: .* expected shape"):
        attention_enclosure(*_inputs(2, 3, 4), torch.ones(2, 3).bool(), offset=torch.ones(3))
    q, k, v, scale = _inputs(2, 3, 4)
    with pytest.raises(ValueError, match="multipl"):
        attention_enclosure(q[:, :3], k, v, scale, torch.ones(2, 3).bool())
    attention_enclosure(*_inputs(2, 3, 4), torch.ones(2, 3).bool())
    assert flint.ctx.prec == before


def test_missing_flint_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without python-flint the error says what to install."""
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "flint":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r"kernelassay\[enclosure\]"):
        attention_enclosure(*_inputs(2, 3, 4), torch.ones(2, 3).bool())
