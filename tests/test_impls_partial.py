"""Partial attention gives the state of a range of keys; states of all ranges make the whole."""

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from attention_calls import DTYPES, lengths, make_call, over_budget, seen_by
from attention_examples import CALLS, any_call
from torch import Tensor

from kernelassay.impls.calls import features_used
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    MergeCall,
    Unsupported,
    checked_adapter,
    numerics_for,
)
from kernelassay.impls.interpreter import interpreting
from kernelassay.oracle.budget import attention_budget
from kernelassay.oracle.merging import State, finish, merge

if not interpreting():
    pytest.skip("needs TRITON_INTERPRET=1 before Triton is imported", allow_module_level=True)

from kernelassay.impls import torch_merge, triton_merge
from kernelassay.impls.triton_partial import adapter, compile_specs, partial

SUPPORTS = adapter.capabilities.supports
OFFERED = [n for n, call in CALLS.items() if features_used(make_call(**call)) <= SUPPORTS]
REFUSED = [n for n in CALLS if n not in OFFERED]

SPLIT: dict[str, dict[str, Any]] = {
    "plain": {"Tq": 5, "Tk": 70},
    "bottom right": {"Tq": 9, "Tk": 40, "causal": "bottom_right"},
    "fewer keys": {"Tq": 9, "Tk": 4, "causal": "bottom_right"},
    "ragged": {"B": 3, "Tq": 3, "Tk": 40, "lengths": lengths(0, 7, 40), "causal": "bottom_right"},
    "grouped heads": {"Hq": 4, "Hkv": 2, "Tq": 2, "Tk": 33, "Dv": 40},
    "far below zero": {"Tq": 2, "Tk": 40, "scale": -400.0},
}
CUTS = [(0, 1), (0, 0, 7, 7), (33,), (2, 31, 32, 33, 64)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OFFERED)
def test_error_is_within_the_declared_numerics(name: str, dtype: str) -> None:
    """out and lse over all keys differ from float64 by no more than the declared roundings."""
    assert over_budget(adapter, make_call(**CALLS[name], dtype=dtype)) <= 1.0


def test_features_work_together() -> None:
    """Any features at once, of any sizes, stay within the declared roundings."""
    tried = 0
    for seed in range(400):
        call = any_call(seed, "fp32")
        if features_used(call) <= SUPPORTS:
            tried += 1
            assert over_budget(adapter, call) <= 1.0, seed
    assert tried >= 5


def test_every_feature_occurs_in_a_call_above() -> None:
    """Each supported feature is used; the rest is about memory; all others are declined."""
    used = {"lse", "strides"}.union(*(features_used(make_call(**CALLS[n])) for n in OFFERED))
    assert used == SUPPORTS
    assert set(FEATURES) - SUPPORTS == adapter.capabilities.declines


def ranges(Tk: int, cuts: tuple[int, ...]) -> list[tuple[int, int]]:
    """The ranges between some cuts of Tk keys; some may be empty."""
    edges = [0, *(min(c, Tk) for c in cuts), Tk]
    return list(pairwise(edges))


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("name", SPLIT)
def test_a_range_has_the_state_of_its_keys(name: str, cuts: tuple[int, ...]) -> None:
    """Of each range m, l and u are the definition's, in float64."""
    call = make_call(**SPLIT[name])
    seen, group = seen_by(call), call.q.shape[1] // call.k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (call.k, call.v))
    scores = (call.q.double() @ k.mT * call.softmax_scale).masked_fill(~seen, -math.inf)
    for start, stop in ranges(call.k.shape[2], cuts):
        z = scores[..., start:stop]
        u, m, l = partial(call, start, stop)  # noqa: E741
        top = z.amax(-1) if start < stop else torch.full_like(scores[..., 0], -math.inf)
        p = torch.exp(z - torch.where(top > -math.inf, top, 0.0)[..., None])
        torch.testing.assert_close(m.double(), top, rtol=1e-6, atol=1e-5)
        # Both are relative to the maximum, which has an error of its own.
        off = torch.where(top > -math.inf, m.double() - top, 0.0).exp()
        torch.testing.assert_close(l * off, p.sum(-1), rtol=1e-3, atol=0.0)
        torch.testing.assert_close(
            u * off[..., None], p @ v[:, :, start:stop], rtol=1e-3, atol=1e-4
        )
        assert torch.equal(l == 0, ~seen[..., start:stop].any(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("name", SPLIT)
def test_states_of_all_ranges_make_the_whole(name: str, cuts: tuple[int, ...], dtype: str) -> None:
    """Merged by the oracle, in float64, they are attention within the declared roundings.

    A merge in float64 adds next to nothing to what each range's own arithmetic is allowed.
    """
    call = make_call(**SPLIT[name], dtype=dtype)
    states = [partial(call, *r) for r in ranges(call.k.shape[2], cuts)]
    whole = merge(*(State(m.double(), l.double(), u.double()) for u, m, l in states))  # noqa: E741
    out, lse = finish(whole)
    budget = attention_budget(
        call.q, call.k, call.v, call.softmax_scale, seen_by(call),
        numerics_for(adapter, dtype)[0],
        generic=True,
    )  # fmt: skip
    assert ((out - budget.out).abs() <= budget.out_allowed).all()
    off = torch.where(lse == budget.lse, 0.0, (lse - budget.lse).abs())
    assert (off <= budget.lse_allowed).all()


@pytest.mark.parametrize("kernel", [torch_merge.states, triton_merge.states], ids=lambda x: x.name)
def test_the_bundled_merge_of_states_takes_them(kernel: Any) -> None:
    """Ranges of a causal, ragged call, empty ones included, in any order."""
    call = make_call(**SPLIT["ragged"])
    expected = adapter.attend(call)
    states = [partial(call, *r) for r in ranges(40, (0, 7, 7, 33))]
    for order in (states, states[::-1]):
        u, m, l = (torch.stack(x) for x in zip(*order, strict=True))  # noqa: E741
        u, m, l = kernel.merge(MergeCall(outs=u, lses=m, sums=l))  # noqa: E741
        out, lse = torch_merge.finish(u, m, l)
        torch.testing.assert_close(out, expected.out, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lse, expected.lse, rtol=1e-6, atol=1e-6)


def test_without_a_key_the_state_is_empty() -> None:
    """A range that holds no key or none that a row sees: m = -inf, l = 0, u = 0."""
    call = make_call(B=2, Tq=3, Tk=40, lengths=lengths(0, 5), causal="bottom_right")
    empty = ~seen_by(call)[..., 4:40].any(-1)
    for start, stop, rows in ((5, 40, empty | True), (7, 7, empty | True), (4, 40, empty)):
        u, m, l = partial(call, start, stop)  # noqa: E741
        assert (m[rows] == -math.inf).all()
        assert (l[rows] == 0).all()
        assert (u[rows] == 0).all()
        assert m[~rows].isfinite().all()


@pytest.mark.parametrize("poison", [math.nan, math.inf, 6e4])
def test_keys_outside_the_range_may_hold_anything(poison: float) -> None:
    """NaN and infinities before start, from stop and from a length on change no bit."""
    call = make_call(B=2, Tq=3, Tk=70, lengths=lengths(70, 20), dtype="fp16")
    expected = partial(call, 3, 40)
    key = torch.arange(70)
    out_of_range = ((key < 3) | (key >= 40))[None].expand(2, 70).clone()
    out_of_range[1, 20:] = True
    k, v = (x.masked_fill(out_of_range[:, None, :, None], poison) for x in (call.k, call.v))
    found = partial(dataclasses.replace(call, k=k, v=v), 3, 40)
    assert all(map(torch.equal, found, expected))


def bthd(x: Tensor) -> Tensor:
    """*x* with the heads of a token side by side."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def test_views_of_any_strides_are_read() -> None:
    """BTHD, rows of a wider tensor, D not innermost, shared heads: the same bits."""
    call = make_call(B=2, Tq=3, Tk=35, causal="bottom_right", lengths=lengths(35, 9))
    expected = partial(call)
    ways = (
        bthd,
        lambda x: x.repeat_interleave(2, 3)[..., ::2],
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.cat((x, x), 3)[..., : x.shape[3]],
    )
    for way in ways:
        q, k, v = (way(x) for x in (call.q, call.k, call.v))
        found = partial(dataclasses.replace(call, q=q, k=k, v=v))
        assert all(map(torch.equal, found, expected))
    q, k, v = (x[:1, :1].expand_as(x) for x in (call.q, call.k, call.v))
    shared = dataclasses.replace(call, q=q, k=k, v=v)
    copied = dataclasses.replace(call, q=q.contiguous(), k=k.contiguous(), v=v.contiguous())
    assert all(map(torch.equal, partial(shared), partial(copied)))


def test_inputs_are_left_alone() -> None:
    """A call changes none of its tensors."""
    call = make_call(B=2, Tq=2, Tk=33, lengths=lengths(3, 33))
    assert call.visibility.lengths is not None
    tensors = (call.q, call.k, call.v, call.visibility.lengths)
    before = [x.clone() for x in tensors]
    adapter.attend(call)
    assert all(map(torch.equal, before, tensors))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_declined_is_refused(name: str) -> None:
    """Masks, windows, positions, soft caps, slopes, biases and sinks are refused by name."""
    call = make_call(**CALLS[name])
    with pytest.raises(Unsupported, match="triton_partial: the call needs"):
        adapter.attend(call)
    with pytest.raises(Unsupported, match="triton_partial: the call needs"):
        partial(call, 0, 0)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, 41)])
def test_malformed_ranges_raise(start: int, stop: int) -> None:
    """A range lies within the keys."""
    with pytest.raises(ValueError, match=r"start, stop: got .*, expected 0 <= start"):
        partial(make_call(Tk=40), start, stop)


def wrong(**changes: Any) -> AttendCall:
    """A call with *changes*."""
    return dataclasses.replace(make_call(), **changes)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (wrong(q=torch.zeros(2, 3, 16)), "q: got 3 axes, expected 4"),
        (wrong(k=torch.zeros(2, 3, 16)), "k: got 3 axes, expected 4"),
        (wrong(scale=math.nan), "scale: got nan"),
        (make_call(lengths=lengths(1, 2)), "lengths: got shape"),
    ],
)
def test_malformed_calls_raise(call: AttendCall, words: str) -> None:
    """What does not fit is a ValueError that names the argument, what came and what fits."""
    with pytest.raises(ValueError, match=words):
        adapter.attend(call)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (make_call(D=257), "D = 257; at most 256"),
        (make_call(Dv=300), "Dv = 300; at most 256"),
        (wrong(**dict.fromkeys("qkv", torch.zeros(1, 2, 5, 16).double())), "dtype fp64"),
    ],
)
def test_what_fits_no_tile_is_refused(call: AttendCall, words: str) -> None:
    """What the kernel does not do is refused with `Unsupported`, which says what was asked."""
    with pytest.raises(Unsupported, match=words):
        adapter.attend(call)


def test_the_adapter_keeps_to_the_contract() -> None:
    """Name, capabilities, numerics and attend are what the contract asks for; all is declared."""
    assert checked_adapter(adapter) is adapter
    assert not adapter.capabilities.undeclared


def test_what_is_compiled_without_a_device_is_all_there_is_to_say() -> None:
    """Each spec types every argument of the kernel."""
    for kernel, signature, _, _ in compile_specs():
        assert set(signature) == set(kernel.arg_names)
