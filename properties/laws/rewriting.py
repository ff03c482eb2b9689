"""Calls put in another way: heads replaced, keys in another order, keys and queries added."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from kernelassay.properties.answers import Attended
from kernelassay.properties.content import hashed
from kernelassay.properties.inputs import Logical
from kernelassay.properties.judge import shape_of

_LAST = 1 << 62  # beyond every rank that an order is made of


def group(tensors: Logical, g: int) -> slice:
    """The query heads that read KV head *g*."""
    size = tensors.q.shape[1] // tensors.k.shape[1]
    return slice(g * size, (g + 1) * size)


def heads_of(tensors: Logical, g: int) -> Logical:
    """KV head *g* alone with the query heads that read it."""
    heads, shape = group(tensors, g), shape_of(tensors)
    vis, scoring = tensors.visibility, tensors.scoring

    def own(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[heads] if x.ndim == 1 else x.expand(shape)[:, heads]

    return replace(
        tensors,
        q=tensors.q[:, heads],
        k=tensors.k[:, g : g + 1],
        v=tensors.v[:, g : g + 1],
        visibility=replace(vis, mask=own(vis.mask)),
        scoring=replace(
            scoring,
            alibi=own(scoring.alibi),
            bias=own(scoring.bias),
            sink_logits=own(scoring.sink_logits),
        ),
    )


def answer_heads(answer: Attended, heads: slice) -> Attended:
    """These query heads of an answer."""
    lse = answer.lse
    return replace(answer, out=answer.out[:, heads], lse=None if lse is None else lse[:, heads])


def other_heads_replaced(tensors: Logical, g: int) -> Logical:
    """The same content for KV head *g* and its group; scores of hundreds everywhere else."""
    own_kv = torch.arange(tensors.k.shape[1], device=tensors.k.device) == g
    own = own_kv.repeat_interleave(tensors.q.shape[1] // len(own_kv))
    vis, scoring = tensors.visibility, tensors.scoring

    def changed(x: Tensor, factor: float, mine: Tensor) -> Tensor:
        other = (factor * x.flip(2)).clamp(-1000, 1000)
        return torch.where(mine[:, None, None], x, other)

    def moved(x: Tensor | None) -> Tensor | None:
        """Another finite number in what the other heads have of their own."""
        if x is None or (x.ndim > 1 and x.shape[1] == 1):
            return x
        mine = own if x.ndim == 1 else own[:, None, None]
        return torch.where(mine | ~x.isfinite(), x, 9 - x)

    mask = vis.mask
    if mask is not None and mask.shape[1] > 1:
        mask = mask ^ ~own[:, None, None]
    return replace(
        tensors,
        q=changed(tensors.q, 30.0, own),
        k=changed(tensors.k, 8.0, own_kv),
        v=changed(tensors.v, -2.0, own_kv),
        visibility=replace(vis, mask=mask),
        scoring=replace(
            scoring,
            alibi=moved(scoring.alibi),
            bias=moved(scoring.bias),
            sink_logits=moved(scoring.sink_logits),
        ),
    )


def order_of_keys(tensors: Logical, kind: int) -> Tensor:
    """The key that each slot gets, int64 [B, Tk]: reversed, rotated as in a ring, or hashed.

    Slots beyond a request's length stay where they are.
    """
    B, _, _, Tk = shape_of(tensors)
    j = torch.arange(Tk)
    used = torch.full((B, 1), Tk)
    if tensors.visibility.lengths is not None:
        used = tensors.visibility.lengths.cpu().long()[:, None]
    turn = 1 + kind // 3 % max(1, Tk - 1)
    ranks = (
        -j,
        torch.where(j < turn, j + Tk, j),
        hashed(kind, torch.arange(B)[:, None], j) >> 2,
    )
    rank = torch.where(j < used, ranks[kind % 3], _LAST + j)
    return rank.argsort(dim=-1, stable=True).to(tensors.k.device)


def keys_in_order(tensors: Logical, order: Tensor) -> Logical:
    """Keys and all that belongs to each of them, in the order [B, Tk]."""
    B, vis, scoring = tensors.q.shape[0], tensors.visibility, tensors.scoring

    def rows(x: Tensor) -> Tensor:
        return x.gather(2, order[:, None, :, None].expand(x.shape))

    def columns(x: Tensor | None) -> Tensor | None:
        if x is None or x.shape[-1] == 1:
            return x
        full = x.expand(B, *x.shape[1:])
        return full.gather(3, order[:, None, None].expand(full.shape))

    k_positions = None if vis.k_positions is None else vis.k_positions.gather(1, order)
    return replace(
        tensors,
        k=rows(tensors.k),
        v=rows(tensors.v),
        visibility=replace(vis, mask=columns(vis.mask), k_positions=k_positions),
        scoring=replace(scoring, bias=columns(scoring.bias)),
    )


def more_keys(tensors: Logical, extra: int, *, by: str, harmless: bool) -> Logical:
    """*extra* slots of garbage after the keys, hidden by "lengths" or by a "mask".

    NaN where that is *harmless*, else a large number.
    """
    B, _, _, Tk = shape_of(tensors)
    poison = math.nan if harmless else min(1000.0, torch.finfo(tensors.k.dtype).max)
    vis, scoring, device = tensors.visibility, tensors.scoring, tensors.k.device

    def longer(x: Tensor | None, axis: int, fill: float) -> Tensor | None:
        if x is None or (axis == 3 and x.shape[3] == 1):
            return x
        added = list(x.shape)
        added[axis] = extra
        return torch.cat((x, x.new_full(added, fill)), axis)

    lengths, mask = vis.lengths, longer(vis.mask, 3, False)
    if by == "lengths" and lengths is None:
        lengths = torch.full((B,), Tk, device=device)
    if by == "mask":
        hidden = (torch.arange(Tk + extra, device=device) < Tk).view(1, 1, 1, -1)
        mask = hidden if mask is None else mask & hidden
    k, v = longer(tensors.k, 2, poison), longer(tensors.v, 2, -poison)
    assert k is not None
    assert v is not None
    positions = longer(vis.k_positions, 1, 0)
    return replace(
        tensors,
        k=k,
        v=v,
        visibility=replace(vis, lengths=lengths, mask=mask, k_positions=positions),
        scoring=replace(scoring, bias=longer(scoring.bias, 3, 0.0)),
    )


def more_queries(tensors: Logical, extra: int) -> tuple[Logical, int]:
    """The call with *extra* queries, and where its own begin: behind them, unless top-left.

    A query's position is counted from the end of the keys, in the top-left corner from the start.
    """
    vis, scoring = tensors.visibility, tensors.scoring
    first = vis.causal != "top_left"

    def longer(x: Tensor | None, axis: int, fill: float) -> Tensor | None:
        if x is None or (x.ndim == 4 and x.shape[2] == 1 and x is not tensors.q):
            return x
        added = list(x.shape)
        added[axis] = extra
        new = x.new_full(added, fill)
        return torch.cat((new, x) if first else (x, new), axis)

    q = longer(tensors.q, 2, 3.0)
    assert q is not None
    return replace(
        tensors,
        q=q,
        visibility=replace(
            vis, mask=longer(vis.mask, 2, True), q_positions=longer(vis.q_positions, 1, 0)
        ),
        scoring=replace(scoring, bias=longer(scoring.bias, 2, 0.0)),
    ), extra if first else 0
