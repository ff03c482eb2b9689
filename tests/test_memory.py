"""Where tensors lie: views, guard zones, poison; a write anywhere that it must not be is seen."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelassay.properties.case import AttendCase
from kernelassay.properties.content import content
from kernelassay.properties.failures import NotWritten, OutOfBounds
from kernelassay.properties.inputs import inputs, logical
from kernelassay.properties.memory import (
    GUARD,
    VIEWS,
    Watch,
    bits,
    check_guards,
    check_written,
    guarded_empty,
    is_poison,
    place,
    placed_small,
    poison_like,
    same_bits,
)

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SHAPE = (3, 2, 5, 4)
LAYOUTS = ("BHTD", "BTHD")
nan, inf = math.nan, math.inf


def values(view: str = "contiguous", shape: tuple[int, int, int, int] = SHAPE) -> Tensor:
    x = content("random:1", shape, AttendCase(), "fp16")
    return x[:1].expand_as(x) if view == "expanded" else x


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_holds_the_logical_content(view: str, layout: str) -> None:
    """Whatever the strides, the view reads as the tensor, and guards lie on both sides of it."""
    x = values(view)
    placed = place("k", x, layout, view, "cpu")
    assert torch.equal(placed.view, x)
    assert placed.intact()
    for zone in (placed.storage[:GUARD], placed.storage[-GUARD:]):
        assert bool(zone.isnan().all())


STRIDES: dict[tuple[str, str], tuple[int, ...]] = {
    ("contiguous", "BHTD"): (40, 20, 4, 1),
    ("contiguous", "BTHD"): (40, 4, 8, 1),
    ("offset", "BHTD"): (40, 20, 4, 1),
    ("padded", "BHTD"): (120, 60, 12, 1),
    ("padded", "BTHD"): (120, 12, 24, 1),
    ("interleaved", "BHTD"): (80, 40, 8, 1),
    ("interleaved", "BTHD"): (80, 8, 16, 1),
    ("inner", "BHTD"): (40, 20, 1, 5),
    ("inner", "BTHD"): (40, 20, 1, 5),
    ("expanded", "BHTD"): (0, 20, 4, 1),
    ("expanded", "BTHD"): (0, 4, 8, 1),
}


@pytest.mark.parametrize(("view", "layout"), STRIDES)
def test_views_have_the_strides_they_are_named_for(view: str, layout: str) -> None:
    """Padded rows are 8 longer, interleaved ones twice as long, an expanded batch has stride 0."""
    placed = place("k", values(view), layout, view, "cpu")
    assert placed.view.stride() == STRIDES[view, layout]
    assert placed.view.storage_offset() == GUARD + (view == "offset")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_write_anywhere_is_noticed(view: str, layout: str) -> None:
    """One element before, after, in a lane between rows or in the tensor itself: all are seen."""
    x = values(view)
    mine = torch.zeros(place("k", x, layout, view, "cpu").storage.numel(), dtype=torch.bool)
    probe = place("k", x, layout, view, "cpu").view
    mine.as_strided(probe.shape, probe.stride(), probe.storage_offset()).fill_(True)
    first, last = int(mine.nonzero()[0]), int(mine.nonzero()[-1])
    lanes = (~mine[first:last]).nonzero().flatten() + first
    assert (len(lanes) > 0) == (view in ("padded", "interleaved"))
    for at in (0, first - 1, first, last, last + 1, len(mine) - 1, *lanes[:1].tolist()):
        placed = place("k", x, layout, view, "cpu")
        placed.storage[at] = 1.0
        assert not placed.intact(), at


def test_a_write_of_equal_bits_is_none() -> None:
    """Only changed bits count: writing what is there already, NaN included, is no change."""
    placed = place("k", values(), "BHTD", "contiguous", "cpu")
    placed.storage.copy_(placed.before)
    assert placed.intact()
    placed.view[0, 0, 0, 0] = 0.0
    held = place("k", placed.view, "BHTD", "contiguous", "cpu")
    held.view[0, 0, 0, 0] = -0.0
    assert not held.intact()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(2, 2, 0, 4), (1, 1, 1, 1), (2, 1, 3, 1)])
def test_small_and_empty_tensors_can_be_placed(
    view: str, shape: tuple[int, int, int, int]
) -> None:
    """T = 0 and D = 1 lie between guards like anything else."""
    x = values(view, shape)
    for layout in LAYOUTS:
        placed = place("k", x, layout, view, "cpu")
        assert torch.equal(placed.view, x)
        placed.storage[GUARD - 1] = 0.0
        assert not placed.intact()


def test_small_inputs_are_watched() -> None:
    """A write to lengths, positions or a mask is seen."""
    held = placed_small("lengths", torch.tensor([3, 4]), "cpu")
    assert held.intact()
    held.view[1] = 5
    assert not held.intact()


def test_inputs_name_what_was_written_to() -> None:
    """mutated() names the tensors whose storage changed, and the call holds the very views."""
    case = AttendCase(
        B=2, Tq=3, Tk=5, lengths=(2, 5), mask="keep:1:50:qk", q="random:1", view="padded",
        causal="positions", positions="offset:1",
    )  # fmt: skip
    given = inputs(logical(case, "fp16"), layout="BTHD", view="padded", device="cpu")
    assert given.mutated() == []
    assert given.call.q.stride() == (3 * 72, 72, 72, 1)
    given.call.k[0, 0, 0, 0] = 7.0
    assert given.call.visibility.mask is not None
    given.call.visibility.mask.logical_not_()
    assert given.mutated() == ["k", "mask"]


@pytest.mark.parametrize("name", ["alibi", "bias", "sink_logits"])
def test_a_write_to_a_scoring_term_is_noticed(name: str) -> None:
    """Slopes, bias and sink logits are inputs: the kernel may not write to them."""
    case = AttendCase(Tk=5, softcap=2.0, alibi="standard", bias="level:1", sink_logits="level:1")
    given = inputs(logical(case, "bf16"), layout="BHTD", view="contiguous", device="cpu")
    assert given.mutated() == []
    assert given.call.scoring.softcap == 2.0
    getattr(given.call.scoring, name).add_(1)
    assert given.mutated() == [name]


def test_calls_do_not_share_their_scoring_terms() -> None:
    """What one call's kernel did to its bias does not reach the next call."""
    tensors = logical(AttendCase(Tk=5, bias="level:1"), "bf16")
    first, second = (
        inputs(tensors, layout="BHTD", view="contiguous", device="cpu") for _ in range(2)
    )
    assert first.call.scoring.bias is not None
    first.call.scoring.bias.zero_()
    assert second.call.scoring.bias is not None
    assert float(second.call.scoring.bias) == 1


def test_masks_come_in_the_declared_polarity() -> None:
    """ "drop" inverts the mask that the kernel gets, and nothing else."""
    tensors = logical(AttendCase(Tk=5, mask="prefix:2"), "fp16")
    masks = [
        inputs(tensors, layout="BHTD", view="contiguous", device="cpu", mask_polarity=p)
        for p in ("keep", "drop")
    ]
    keep, drop = (m.call.visibility.mask for m in masks)
    assert keep is not None
    assert drop is not None
    assert torch.equal(keep, ~drop)
    assert keep.flatten().tolist() == [True, True, False, False, False]


def test_bits_tell_what_numbers_do_not() -> None:
    """NaN equals NaN of the same payload, -0 differs from 0, dtypes and shapes count."""
    for dtype in DTYPES:
        a = torch.tensor([1.0, nan, -0.0, inf], dtype=dtype)
        assert same_bits(a, a.clone())
        assert not same_bits(a, torch.tensor([1.0, nan, 0.0, inf], dtype=dtype))
        assert not same_bits(a, a[:3])
        assert not same_bits(poison_like(4, dtype, "cpu"), torch.full((4,), nan, dtype=dtype))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert not same_bits(torch.zeros(2, 1), torch.zeros(1, 2))
    assert same_bits(torch.tensor([[1, 2], [3, 4]]).T, torch.tensor([[1, 3], [2, 4]]))
    assert bits(torch.tensor([-0.0])).item() == -(2**31)
    assert bits(torch.tensor([True])).dtype == torch.uint8


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_a_nan_of_its_own(dtype: torch.dtype) -> None:
    """Poison is NaN, and is not the NaN that arithmetic makes."""
    poison = poison_like(3, dtype, "cpu")
    assert bool(poison.isnan().all())
    assert bool(is_poison(poison).all())
    made = torch.zeros(3, dtype=dtype) / 0
    assert bool(made.isnan().all())
    assert not bool(is_poison(made).any())
    assert not bool(is_poison(torch.full((3,), nan, dtype=dtype)).any())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 3), (3, 1)), ((2, 3), (1, 2)), ((2, 3), (8, 1)), ((2, 3), (0, 1)), ((), ()),
        ((0, 3), (3, 1)), ((3, 0), (1, 1)), ((4,), (5,)),
    ],
)  # fmt: skip
def test_outputs_of_any_strides_lie_between_guards(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> None:
    """A guarded output has its shape and strides and is all poison, to the last element."""
    view, storage = guarded_empty(shape, strides, dtype, "cpu")
    assert tuple(view.shape) == shape
    assert view.stride() == strides
    assert bool(is_poison(view).all())
    view.fill_(1.0)
    check_guards(storage)
    used = (~is_poison(storage)).nonzero().flatten()
    if 0 in shape:
        assert used.numel() == 0
        assert storage.numel() == 2 * GUARD
    else:
        assert int(used[0]) == GUARD
        assert int(used[-1]) == storage.numel() - GUARD - 1


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (GUARD - 1, "1 elements before an allocation .* the nearest at distance 1"),
        (0, "before an allocation .* the nearest at distance 4096"),
        (-GUARD, "after an allocation .* the nearest at distance 1"),
        (-1, "after an allocation .* the nearest at distance 4096"),
    ],
)
def test_guards_say_where_they_were_hit(at: int, words: str) -> None:
    """The nearest and the farthest element of each zone are watched; the distance is told."""
    _, storage = guarded_empty((2, 3), (3, 1), torch.float16, "cpu")
    check_guards(storage)
    storage[at] = nan  # a NaN other than poison
    with pytest.raises(OutOfBounds, match=words):
        check_guards(storage)


def test_what_was_not_written_is_named() -> None:
    """The first element that still holds poison is told; written NaN is not poison."""
    out, _ = guarded_empty((2, 3), (3, 1), torch.bfloat16, "cpu")
    with pytest.raises(NotWritten, match=r"out\[0, 0\] was never written.*\(6 of 6 elements\)"):
        check_written("out", out)
    out[:] = nan
    check_written("out", out)
    out[1:, 2:] = poison_like(1, torch.bfloat16, "cpu")
    with pytest.raises(NotWritten, match=r"out\[1, 2\] was never written.*\(1 of 6 elements\)"):
        check_written("out", out)
    check_written("out", torch.empty(0))
    check_written("tokens", torch.zeros(3, dtype=torch.int64))


WAYS: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: torch.empty((2, 3), dtype=torch.float16),
    "empty of a size": lambda: torch.empty(2, 3),
    "empty_like": lambda: torch.empty_like(torch.zeros(2, 3)),
    "empty_like of strides": lambda: torch.empty_like(torch.zeros(3, 2).T),
    "new_empty": lambda: torch.zeros(1).new_empty((2, 3)),
    "new_empty of another dtype": lambda: torch.zeros(1).new_empty(2, 3, dtype=torch.bfloat16),
    "empty_strided": lambda: torch.empty_strided((2, 3), (1, 2)),
    "new_empty_strided": lambda: torch.zeros(1).new_empty_strided((2, 3), (8, 1)),
    "empty_permuted": lambda: torch.empty_permuted((2, 3), (1, 0)),
    "Tensor": lambda: torch.Tensor(2, 3),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_watch_poisons_and_guards_every_allocation(way: str) -> None:
    """Shape, dtype and strides are what they were; each side of the allocation is watched."""
    plain = WAYS[way]()
    with Watch() as watch:
        made = WAYS[way]()
    assert (made.shape, made.dtype, made.stride()) == (plain.shape, plain.dtype, plain.stride())
    assert bool(is_poison(made).all())
    assert watch.owns(made)
    watch.check()
    for outside in (-1, made.numel() if plain.is_contiguous() else 2 * made.stride(0) + 6):
        beyond = made.as_strided((1,), (1,), made.storage_offset() + outside)
        before = beyond.clone()
        beyond.fill_(0.0)
        with pytest.raises(OutOfBounds):
            watch.check()
        beyond.copy_(before)
    watch.check()


def test_the_watch_leaves_the_rest_alone() -> None:
    """Booleans, initialised tensors and results of arithmetic are what they always are."""
    with Watch() as watch:
        held: list[Any] = [torch.empty(3, dtype=torch.bool), torch.zeros(3), torch.ones(3) + 1]
        sums = torch.zeros(4, 4) @ torch.ones(4, 4)
    assert not any(watch.owns(x) for x in (*held, sums))
    assert held[2].tolist() == [2, 2, 2]
    assert not watch.storages
    outside = torch.empty(3)
    assert not watch.owns(outside)


def test_the_watch_owns_views_of_its_allocations() -> None:
    """A slice or a transpose of a watched output is still a watched one, a copy is not."""
    with Watch() as watch:
        made = torch.empty(4, 4)
        part = made[1:, :2].T
        copy = made.clone()
    assert watch.owns(part)
    assert not watch.owns(copy)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_are_watched_too(dtype: torch.dtype) -> None:
    """Tokens that were never written are seen, and those written past the end."""
    with Watch() as watch:
        tokens = torch.empty(2, 3, dtype=dtype)
    assert watch.owns(tokens)
    tokens[0] = 0
    with pytest.raises(NotWritten, match=r"tokens\[1, 0\] was never written"):
        check_written("tokens", tokens)
    tokens.as_strided((4, 3), (3, 1)).fill_(0)
    with pytest.raises(OutOfBounds):
        watch.check()
