"""The visible set: scalar definition, vectorised form and hand-written tables agree."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernelassay.oracle.visibility import Visibility, check_visibility, sees, visible

Shape = tuple[int, int, int, int]


def _scalar(vis: Visibility, shape: Shape) -> Tensor:
    B, Hq, Tq, Tk = shape
    flat = [sees(vis, *at, Tq, Tk) for at in itertools.product(*map(range, (B, Hq, Tq, Tk)))]
    return torch.tensor(flat, dtype=torch.bool).reshape(shape)


def _table(vis: Visibility, Tq: int, Tk: int) -> list[str]:
    """One string a query, 'x' for a visible key; both forms must draw it."""
    scalar = _scalar(vis, (1, 1, Tq, Tk))
    assert torch.equal(scalar, visible(vis, (1, 1, Tq, Tk)))
    return ["".join("x" if s else "." for s in row) for row in scalar[0, 0].tolist()]


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Visibility, Shape]:
    """Every field combined with every other, degenerate sizes included."""
    shape = B, Hq, Tq, Tk = tuple(
        draw(st.sampled_from(range(low, high))) for low, high in ((1, 4), (1, 4), (0, 6), (0, 7))
    )

    def ints(low: int, high: int, *size: int) -> Tensor:
        n = int(np.prod(size))
        values = draw(st.lists(st.sampled_from(range(low, high + 1)), min_size=n, max_size=n))
        return torch.tensor(values, dtype=torch.int64).reshape(size)

    causal = draw(st.sampled_from(["positions", "bottom_right", "top_left", "none"]))
    side = st.sampled_from([None, 0, 1, 2, 3, 10**6, 2**63 - 1])
    dims = [draw(st.sampled_from([1, n])) for n in shape][draw(st.integers(0, 3)) :]
    return (
        Visibility(
            causal=causal,
            window=(draw(side), draw(side)),
            sinks=draw(st.sampled_from(range(7))),
            lengths=ints(0, Tk, B) if draw(st.booleans()) else None,
            q_positions=ints(-2, 8, B, Tq) if causal == "positions" else None,
            k_positions=ints(-2, 8, B, Tk) if causal == "positions" else None,
            mask=ints(0, 1, *dims).bool() if draw(st.booleans()) else None,
        ),
        (B, Hq, Tq, Tk),
    )


@settings(max_examples=500, deadline=None)
@given(_cases())
def test_vectorised_is_scalar(case: tuple[Visibility, Shape]) -> None:
    """The interval form sees exactly what the definition sees, for all fields combined."""
    vis, shape = case
    assert torch.equal(visible(vis, shape).expand(shape), _scalar(vis, shape))


@settings(max_examples=100, deadline=None)
@given(_cases(), st.data())
def test_key_ranges_are_columns(case: tuple[Visibility, Shape], data: st.DataObject) -> None:
    """A run of keys is that run of columns of the whole, as a slice and as a range."""
    vis, shape = case
    start = data.draw(st.integers(0, shape[3]))
    stop = data.draw(st.integers(start, shape[3]))
    expected = visible(vis, shape)[..., start:stop]
    assert torch.equal(visible(vis, shape, keys=slice(start, stop)), expected)
    assert torch.equal(visible(vis, shape, keys=range(start, stop)), expected)


@pytest.mark.parametrize(("Tq", "Tk"), [*itertools.product(range(1, 6), range(7))])
def test_causal_corners_are_triangles(Tq: int, Tk: int) -> None:
    """The two causal corners are numpy's lower triangles of diagonal Tk - Tq and 0."""
    ones = np.ones((Tq, Tk), dtype=bool)
    for causal, diagonal in (("bottom_right", Tk - Tq), ("top_left", 0)):
        seen = visible(Visibility(causal=causal), (1, 1, Tq, Tk))[0, 0]
        assert np.array_equal(seen.numpy(), np.tril(ones, k=diagonal))


def test_table_causal() -> None:
    """Worked corners: more keys than queries, and fewer."""
    bottom_right, top_left = (Visibility(causal=c) for c in ("bottom_right", "top_left"))
    assert _table(bottom_right, 2, 5) == ["xxxx.", "xxxxx"]
    assert _table(bottom_right, 4, 2) == ["..", "..", "x.", "xx"]
    assert _table(top_left, 2, 5) == ["x....", "xx..."]
    assert _table(top_left, 4, 2) == ["x.", "xx", "xx", "xx"]


def test_table_window() -> None:
    """Worked windows: one key wide, open to the right, centred at the bottom right."""
    only_self = Visibility(causal="bottom_right", window=(0, None))
    assert _table(only_self, 2, 5) == ["...x.", "....x"]
    assert _table(Visibility(causal="top_left", window=(0, 0)), 3, 2) == ["x.", ".x", ".."]
    assert _table(Visibility(window=(None, 10**9)), 4, 2) == ["xx"] * 4
    assert _table(Visibility(window=(1, 1)), 2, 5) == ["..xxx", "...xx"]
    assert _table(Visibility(window=(0, 2)), 4, 2) == ["x.", "xx", "xx", ".x"]


def test_table_sinks() -> None:
    """Sinks escape the window's left bound and neither its right bound nor causality."""
    vis = Visibility(causal="bottom_right", window=(1, None), sinks=2)
    assert _table(vis, 2, 6) == ["xx.xx.", "xx..xx"]
    assert _table(vis, 3, 3) == ["x..", "xx.", "xxx"]
    assert _table(Visibility(window=(0, 0), sinks=2), 3, 3) == ["x..", "xx.", "xxx"]


def test_table_lengths() -> None:
    """Each request has a bottom-right corner of its own; one without keys sees nothing."""
    vis = Visibility(causal="bottom_right", lengths=torch.tensor([3, 0, 1]))
    seen = visible(vis, (3, 4, 2, 4))
    assert seen.shape == (3, 1, 2, 4)
    assert seen[:, 0].int().tolist() == [
        [[1, 1, 0, 0], [1, 1, 1, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 0]],
        [[0, 0, 0, 0], [1, 0, 0, 0]],
    ]
    assert torch.equal(seen.expand(3, 4, 2, 4), _scalar(vis, (3, 4, 2, 4)))


def test_table_positions() -> None:
    """Explicit positions decide causality and window; lengths and sinks still count slots."""
    vis = Visibility(
        causal="positions",
        window=(2, None),
        sinks=1,
        lengths=torch.tensor([4]),
        q_positions=torch.tensor([[7, 3]]),
        k_positions=torch.tensor([[2, 7, 5, 0, 3]]),
    )
    assert _table(vis, 2, 5) == ["xxx..", "x...."]


def test_head_axis() -> None:
    """Heads are told apart only where a mask does it."""
    mask = torch.tensor([True, False]).reshape(1, 2, 1, 1)
    assert visible(Visibility(mask=mask[:, :1]), (1, 2, 3, 4)).shape == (1, 1, 3, 4)
    assert visible(Visibility(mask=mask), (1, 2, 3, 4)).sum((0, 2, 3)).tolist() == [12, 0]


@pytest.mark.parametrize(
    ("vis", "message"),
    [
        (Visibility(causal="left"), r"causal: got 'left', expected one of none, "),
        (Visibility(window=(-1, None)), r"window: got \(-1, None\), expected \(left, right\)"),
        (Visibility(sinks=-1), r"sinks: got -1, expected at least 0"),
        (
            Visibility(lengths=torch.tensor([4])),
            r"lengths: got shape \(1,\), expected shape \(2,\)",
        ),
        (Visibility(lengths=torch.tensor([4, 6])), r"lengths: got \[4, 6\], expected .* 0\.\.5"),
        (Visibility(lengths=torch.tensor([-1, 5])), r"lengths: got \[-1, 5\]"),
        (Visibility(lengths=torch.tensor([1.0, 2.0])), r"lengths: got torch.float32"),
        (Visibility(causal="positions"), r"q_positions: got None, expected a tensor"),
        (
            Visibility(causal="positions", q_positions=torch.zeros(2, 3).long()),
            r"k_positions: got None, expected a tensor",
        ),
        (
            Visibility(
                causal="positions",
                q_positions=torch.zeros(2, 3).long(),
                k_positions=torch.zeros(2, 4).long(),
            ),
            r"k_positions: got shape \(2, 4\), expected shape \(2, 5\)",
        ),
        (Visibility(mask=torch.ones(3, 5)), r"mask: got torch.float32, expected torch.bool"),
        (Visibility(mask=torch.ones(3, 4).bool()), r"mask: got shape \(3, 4\), expected broad"),
        (Visibility(mask=torch.ones([1] * 5).bool()), r"mask: got shape \(1, 1, 1, 1, 1\)"),
    ],
)
def test_malformed(vis: Visibility, message: str) -> None:
    """A malformed visibility is refused with field, got and expected."""
    with pytest.raises(ValueError, match=r"^Visibility\." + message):
        check_visibility(vis, (2, 4, 3, 5))
    with pytest.raises(ValueError, match=r"^Visibility\." + message):
        visible(vis, (2, 4, 3, 5))


def test_strided_keys() -> None:
    """Keys that are not consecutive are refused."""
    with pytest.raises(ValueError, match="expected consecutive"):
        visible(Visibility(), (1, 1, 2, 8), keys=slice(0, 8, 2))
