"""Attention and its log-sum-exp in float64.

    z[b, h, i, j] = scale q[b, h, i] . k[b, g, j],   g = h // (Hq / Hkv)
    lse[b, h, i]  = log sum_j exp z[b, h, i, j]                    over visible j
    out[b, h, i]  = sum_j exp(z[b, h, i, j] - lse[b, h, i]) v[b, g, j]

A `Scoring` may change z and add a sink to the sum. A row that sees no key has out 0 and lse -inf,
or the sink's logit. What no query sees never matters, NaN and infinities included: invisible
scores are selected away, never multiplied by 0. What a query sees is finite.
"""

import math

import torch
from torch import Tensor

from kernelassay.oracle.scoring import PLAIN, Scoring, capped, check_scoring, offsets
from kernelassay.oracle.visibility import Visibility, visible

HELD = 2**25
"""About how many float64 numbers one array of a step may hold: 256 MiB."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    visibility: Visibility,
    scoring: Scoring = PLAIN,
    *,
    block: int = 4096,
) -> tuple[Tensor, Tensor]:
    """out = softmax(z) v over visible keys, and lse: the maximum first, then plain sums.

    q [B, Hq, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv] of any dtype, on one device. Returns
    float64 out [B, Hq, Tq, Dv] and lse [B, Hq, Tq], in base e. Two passes over the keys, at most
    *block* at a time: nothing is rescaled, so the recurrences under test are not used.
    """
    shape, steps = _shape(q, k, v), _steps(q, v, block)
    check_scoring(scoring, shape)
    q, call = q.double(), (scale, visibility, scoring)
    sink = _sink(scoring, q)
    top = sink.expand(*q.shape[:3], 1)
    for keys in steps:
        top = torch.maximum(top, _scores(q, k, keys, *call).amax(-1, keepdim=True))
    top = torch.where(top == -math.inf, 0.0, top)
    mass = torch.exp(sink - top)
    total = q.new_zeros((*q.shape[:3], v.shape[-1]))
    for keys in steps:
        z = _scores(q, k, keys, *call)
        e = torch.exp(z - top)
        mass += e.sum(-1, keepdim=True)
        total += _by_group(e, _values(v, z != -math.inf, keys))
    return total / torch.where(mass == 0, 1.0, mass), (top + mass.log()).squeeze(-1)


def weights(
    q: Tensor, k: Tensor, scale: float, visibility: Visibility, scoring: Scoring = PLAIN
) -> Tensor:
    """p[b, h, i, j] = exp(z - lse), 0 where invisible: float64 [B, Hq, Tq, Tk], in one piece.

    With a sink they sum to less than 1.
    """
    shape = _shape(q, k, k)
    z = _scores(q.double(), k, range(shape[3]), scale, visibility, scoring)
    lse = z.logsumexp(-1, keepdim=True).logaddexp(_sink(scoring, z))
    return torch.where(z != -math.inf, torch.exp(z - lse), 0.0)


def lse_in_base(lse: Tensor, base: float) -> Tensor:
    """log_base of the same sum, from its natural logarithm."""
    return lse / math.log(base)


def _scores(
    q: Tensor, k: Tensor, keys: range, scale: float, vis: Visibility, scoring: Scoring
) -> Tensor:
    """z [B, Hq, Tq, keys], -inf where invisible."""
    shape = (*q.shape[:3], k.shape[2])
    dots = _by_group(q, k[:, :, keys.start : keys.stop].double().transpose(-1, -2))
    z = capped(scale * dots, scoring.softcap)
    seen = visible(vis, shape, q.device, keys)
    if (added := offsets(scoring, vis, shape, q.device, keys)) is not None:
        z, seen = z + added, seen & (added != -math.inf)
    return torch.where(seen, z, -math.inf)


def _sink(scoring: Scoring, like: Tensor) -> Tensor:
    """The sink logit of each head [Hq or 1, 1, 1], float64; -inf is no sink."""
    if scoring.sink_logits is None:
        return like.new_full((1, 1, 1), -math.inf)
    return scoring.sink_logits.to(like.device).double()[:, None, None]


def _values(v: Tensor, seen: Tensor, keys: range) -> Tensor:
    """v [B, Hkv, keys, Dv] with 0 for each key that no query of its head group sees."""
    B, Hkv, _, _ = v.shape
    some = seen.any(2)  # [B, Hq or 1, keys]
    if some.shape[1] > 1:
        some = some.reshape(B, Hkv, some.shape[1] // Hkv, len(keys)).any(2)
    return torch.where(some[..., None], v[:, :, keys.start : keys.stop].double(), 0.0)


def _by_group(rows: Tensor, columns: Tensor) -> Tensor:
    """rows [B, Hq, T, X] times columns [B, Hkv, X, Y] of each head's group: [B, Hq, T, Y]."""
    B, Hq, T, X = rows.shape
    Hkv, Y = columns.shape[1], columns.shape[3]
    return (rows.reshape(B, Hkv, Hq // Hkv * T, X) @ columns).reshape(B, Hq, T, Y)


def _steps(q: Tensor, v: Tensor, block: int) -> list[range]:
    """Consecutive runs of keys, at most *block* long, shorter where a step would hold too much."""
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, Dv = v.shape
    per_key = B * max(Hq * Tq, Hkv * D, Hkv * Dv, 1)
    step = max(1, min(block, HELD // max(1, per_key)))
    return [range(start, min(start + step, Tk)) for start in range(0, Tk, step)]


def _shape(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int]:
    """(B, Hq, Tq, Tk), or a ValueError if q, k and v do not fit together."""
    B, Hq, Tq, D = q.shape
    _, Hkv, Tk, _ = k.shape
    if k.shape != (B, Hkv, Tk, D) or v.shape[:3] != (B, Hkv, Tk) or Hkv < 1 or Hq % Hkv:
        raise ValueError(
            f"attention: got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, expected "
            f"[B, Hq, Tq, D], [B, Hkv, Tk, D], [B, Hkv, Tk, Dv] with Hkv dividing Hq"
        )
    return B, Hq, Tq, Tk
