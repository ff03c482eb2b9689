"""What must not change a bit of the bundled Triton kernel's answers, and does not."""

import dataclasses
from typing import Any

import pytest
import torch
from attention_calls import (
    DTYPES,
    at,
    fields,
    lengths,
    make_call,
    numbers,
    random_bias,
    random_mask,
    seen_by,
    shape_of,
)
from attention_examples import CALLS, WHO_SEES

from kernelassay.impls.contract import AttendCall, Scoring, Visibility
from kernelassay.impls.interpreter import interpreting
from kernelassay.impls.triton_attention import adapter
from kernelassay.oracle.visibility import positions

if not interpreting():
    pytest.skip("needs TRITON_INTERPRET=1 before Triton is imported", allow_module_level=True)


def same(first: AttendCall, second: AttendCall) -> bool:
    """Whether two calls have the same out and lse, bit for bit."""
    a, b = adapter.attend(first), adapter.attend(second)
    assert a.lse is not None
    assert b.lse is not None
    return torch.equal(a.out, b.out) and torch.equal(a.lse, b.lse)


HIDING = CALLS | {
    "window of the last keys": fields(
        B=2, Tq=3, Tk=70, window=(4, 1), sinks=1, lengths=lengths(9, 66), causal="bottom_right"
    ),
    "slots of a ring": fields(
        B=2, Tq=1, Tk=40, causal="positions", window=(9, None), q_positions=at((39,), (30,)),
        k_positions=torch.stack([torch.arange(40), torch.arange(40).flip(0)]),
    ),
}  # fmt: skip
"""Calls some of whose keys no query sees, beside others."""


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 6e4])
@pytest.mark.parametrize(
    "name",
    [
        "top left",
        "lengths, bottom right",
        "mask of keys",
        "window far from the first keys",
        "window of the last keys",
        "slots of a ring",
        "bias that hides the first tile",
    ],
)
def test_keys_that_no_query_sees_may_hold_anything(name: str, poison: float) -> None:
    """NaN and infinities in k and v that no query sees change no bit."""
    call = make_call(**HIDING[name], dtype="fp16")
    unseen = ~seen_by(call).any(dim=2).any(dim=1)[:, None, :, None]  # [B, 1, Tk, 1]
    assert unseen.any()
    k, v = (x.masked_fill(unseen, poison) for x in (call.k, call.v))
    assert same(call, dataclasses.replace(call, k=k, v=v))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 6e4])
@pytest.mark.parametrize("name", ["top left", "lengths", "mask", "window", "positions"])
def test_a_bias_under_what_is_hidden_may_hold_anything(name: str, poison: float) -> None:
    """NaN and infinities in a bias change no bit where mask, corner, length or window hide."""
    call = make_call(**CALLS[name])
    hidden = ~seen_by(call)
    assert hidden.any()
    clean, spoilt = (torch.zeros(shape_of(call)).masked_fill(hidden, x) for x in (0.0, poison))
    assert same(*(dataclasses.replace(call, scoring=Scoring(bias=x)) for x in (clean, spoilt)))


def test_nan_that_a_query_sees_is_shown() -> None:
    """A NaN in a visible key reaches the rows that see it and no other."""
    call = make_call(Tq=4, Tk=4, causal="bottom_right")
    call.k[:, :, 2] = torch.nan
    out = adapter.attend(call).out
    assert out[:, :, 2:].isnan().all()
    assert out[:, :, :2].isfinite().all()


def test_nan_in_a_bias_that_a_query_sees_is_shown() -> None:
    """A NaN in the bias of a visible key reaches its row and no other."""
    bias = torch.zeros(4, 40)
    bias[2, 1] = torch.nan
    rows = adapter.attend(make_call(Tq=4, Tk=40, bias=bias)).out.isnan().all(-1)
    assert rows.tolist() == [[[False, False, True, False]] * 2]


@pytest.mark.parametrize("name", WHO_SEES)
def test_a_mask_of_what_is_seen_gives_the_same_bits(name: str) -> None:
    """Corner, window, lengths and positions give the bits of the mask that says the same.

    With the mask every tile is visited; where the others skip one, that tile adds nothing.
    """
    call = make_call(**CALLS[name])
    assert same(call, dataclasses.replace(call, visibility=Visibility(mask=seen_by(call))))


@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
def test_positions_give_the_bits_of_a_corner(causal: str) -> None:
    """The positions of a corner, written out, give its bits, with windows, sinks and slopes."""
    call = make_call(
        B=2, Tq=40, Tk=70, window=(9, None), sinks=3, lengths=lengths(33, 70), causal=causal,
        alibi=numbers(0.3, 1.0),
    )  # fmt: skip
    at_q, at_k = (x.expand(2, -1) for x in positions(call.visibility, shape_of(call)))
    see = dataclasses.replace(
        call.visibility, causal="positions", q_positions=at_q, k_positions=at_k
    )
    assert same(call, dataclasses.replace(call, visibility=see))


def views(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """*x* in other memory layouts."""
    padded = torch.full((*x.shape[:-1], x.shape[-1] + 3), torch.nan, dtype=x.dtype)
    padded[..., 1:-2] = x
    interleaved = torch.stack([x, torch.full_like(x, torch.nan)], dim=-2)
    return {
        "BTHD": x.transpose(1, 2).contiguous().transpose(1, 2),
        "D outside": x.mT.contiguous().mT,
        "padded": padded[..., 1:-2],
        "interleaved": interleaved[..., 0, :],
    }


@pytest.mark.parametrize("view", ["BTHD", "D outside", "padded", "interleaved"])
def test_memory_layout_changes_no_bit(view: str) -> None:
    """Views of any strides give the bits of contiguous tensors."""
    call = make_call(B=2, Tq=5, Tk=33, dtype="bf16", causal="bottom_right")
    q, k, v = (views(x)[view] for x in (call.q, call.k, call.v))
    assert not q.is_contiguous()
    assert same(call, dataclasses.replace(call, q=q, k=k, v=v))


def test_expanded_keys_are_read_with_stride_zero() -> None:
    """One head of k and v expanded to all heads is every head's."""
    call = make_call(Hq=3, Tq=3, Tk=33)
    k, v = (x[:, :1].expand_as(x) for x in (call.k, call.v))
    apart = dataclasses.replace(call, k=k.contiguous(), v=v.contiguous())
    expanded = dataclasses.replace(call, k=k, v=v)
    assert torch.equal(adapter.attend(apart).out, adapter.attend(expanded).out)


def every_other(x: torch.Tensor) -> torch.Tensor:
    """*x* as every other element of a larger tensor."""
    return torch.stack((x, x), -1).flatten(-2)[..., ::2]


def test_small_tensors_may_have_any_strides() -> None:
    """Bias, mask, slopes, sinks, lengths and positions are read where their strides say."""
    at_k = torch.stack([torch.arange(40), torch.arange(40).flip(0)])
    given = fields(
        causal="positions", q_positions=at((3, 9, 20, 39, 0), (5, 6, 7, 8, 9)), k_positions=at_k,
        lengths=lengths(40, 33), mask=random_mask(2, 1, 1, 40), bias=random_bias(2, 1, 1, 40),
        alibi=numbers(0.5, 0.3), sink_logits=numbers(0.3, 1.0),
    )  # fmt: skip
    strided = {n: x if isinstance(x, str) else every_other(x) for n, x in given.items()}
    assert not any(x.is_contiguous() for x in strided.values() if not isinstance(x, str))
    sizes = fields(B=2, Tq=5, Tk=40, window=(9, None))
    assert same(make_call(**sizes, **given), make_call(**sizes, **strided))


def test_expanded_slopes_and_biases_are_read_with_stride_zero() -> None:
    """One slope, sink and row of bias and mask, expanded, are those of every head and row."""
    bias, mask = random_bias(1, 40), random_mask(1, 40)
    one = numbers(0.3)
    plain = make_call(
        Hq=3, Tk=40, bias=bias.repeat(5, 1), mask=mask.repeat(5, 1), alibi=one.repeat(3),
        sink_logits=one.repeat(3),
    )  # fmt: skip
    wide = make_call(
        Hq=3, Tk=40, bias=bias.expand(5, 40), mask=mask.expand(5, 40), alibi=one.expand(3),
        sink_logits=one.expand(3),
    )  # fmt: skip
    assert same(plain, wide)


ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": fields(causal="bottom_right"),
    "window": fields(causal="bottom_right", window=(9, None)),
    "window with sinks": fields(window=(9, 2), sinks=3),
    "slopes, soft cap, sinks": fields(
        causal="bottom_right", alibi=numbers(0.5, 0.3), softcap=2.0, sink_logits=numbers(0.3, 1.0)
    ),
    "head size of 160": fields(causal="bottom_right", window=(9, None), D=160),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_does_not_depend_on_the_others(name: str, dtype: str) -> None:
    """A row's bits are the same alone, with other rows and in another batch."""
    call = make_call(**fields(B=2, Tq=70, Tk=100, D=32) | ROWS[name], dtype=dtype)
    whole = adapter.attend(call)
    q, k, v = (x[1:] for x in (call.q, call.k, call.v))
    tail = adapter.attend(dataclasses.replace(call, q=q[:, :, 67:], k=k, v=v))
    assert torch.equal(whole.out[1:, :, 67:], tail.out)
    assert torch.equal(whole.lse[1:, :, 67:], tail.lse)


def test_a_row_with_a_bias_does_not_depend_on_the_others() -> None:
    """The same with bias and positions of its own."""
    at_q = torch.arange(140).view(2, 70) % 90
    at_k = torch.stack([97 * torch.arange(100) % 100, 89 * torch.arange(100) % 100])
    given = fields(causal="positions", q_positions=at_q, k_positions=at_k, window=(40, None))
    call = make_call(B=2, Tq=70, Tk=100, bias=random_bias(2, 2, 70, 100, hides=True), **given)
    whole = adapter.attend(call)
    alone = dataclasses.replace(
        call,
        q=call.q[1:, :, 67:],
        k=call.k[1:],
        v=call.v[1:],
        visibility=dataclasses.replace(
            call.visibility, q_positions=at_q[1:, 67:], k_positions=at_k[1:]
        ),
        scoring=Scoring(bias=call.scoring.bias[1:, :, 67:]),
    )
    tail = adapter.attend(alone)
    assert torch.equal(whole.out[1:, :, 67:], tail.out)
    assert torch.equal(whole.lse[1:, :, 67:], tail.lse)
