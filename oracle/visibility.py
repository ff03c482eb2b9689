"""Which keys a query sees, in integers."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Causal = Literal["none", "bottom_right", "top_left", "positions"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Visibility:
    """Query i of request b sees key j when every clause that is set allows it.

    With L = lengths[b] (Tk when absent), position of key j = j and of query i =
    i + L - Tq (bottom_right, and "none"), i (top_left), or q_positions[b, i] and
    k_positions[b, j] ("positions"):

    - lengths: j < L;
    - causal (any but "none"): position(j) <= position(i);
    - window (left, right): position(i) - left <= position(j) <= position(i) + right, None means
      no bound on that side; the first *sinks* keys (j < sinks) are exempt from the window's
      left bound (StreamingLLM);
    - mask[b, h, i, j] is True (True keeps).
    """

    causal: Causal = "none"
    window: tuple[int | None, int | None] = (None, None)
    sinks: int = 0
    lengths: Tensor | None = None  # [B] int64, used keys of each request
    q_positions: Tensor | None = None  # [B, Tq] int64
    k_positions: Tensor | None = None  # [B, Tk] int64
    mask: Tensor | None = None  # bool, broadcastable to [B, Hq, Tq, Tk]


def sees(vis: Visibility, b: int, h: int, i: int, j: int, Tq: int, Tk: int) -> bool:
    """Query i of head h sees key j in request b: the definition, in plain integers."""
    L = Tk if vis.lengths is None else int(vis.lengths[b])
    qi, kj = i + L - Tq, j
    if vis.causal == "top_left":
        qi = i
    elif vis.causal == "positions":
        q_positions, k_positions = _given_positions(vis)
        qi, kj = int(q_positions[b, i]), int(k_positions[b, j])
    left, right = vis.window
    return (
        j < L
        and (vis.causal == "none" or kj <= qi)
        and (left is None or kj >= qi - left or j < vis.sinks)
        and (right is None or kj <= qi + right)
        and (vis.mask is None or _at(vis.mask, b, h, i, j))
    )


def _at(mask: Tensor, *index: int) -> bool:
    """mask[b, h, i, j] of a mask that is broadcastable to [B, Hq, Tq, Tk]."""
    own = index[len(index) - mask.ndim :]
    return bool(mask[tuple(x if n > 1 else 0 for x, n in zip(own, mask.shape, strict=True))])


def visible(
    vis: Visibility,
    shape: tuple[int, int, int, int],
    device: torch.device | str = "cpu",
    keys: slice | range | None = None,
) -> Tensor:
    """Query i sees the keys whose position lies between two bounds of its own: `sees`, at once.

    *shape* is (B, Hq, Tq, Tk), *keys* a run of consecutive keys (None: all); nothing larger than
    the result is made. Returns bool [B, Hq or 1, Tq, keys], one head if no mask tells heads
    apart, perhaps an expanded view. A malformed *vis* is a ValueError.
    """
    check_visibility(vis, shape)
    B, _, Tq, Tk = shape
    run = range(Tk) if keys is None else range(Tk)[slice(keys.start, keys.stop, keys.step)]
    if run.step != 1:
        raise ValueError(f"visible: got keys {keys}, expected consecutive ones")
    j = torch.arange(run.start, max(run.start, run.stop), device=device)
    used = _used_keys(vis, Tk, device)[:, :, None]  # [B or 1, 1, 1]
    at_query, at_key = positions(vis, shape, device)
    low, high = _bounds(vis, at_query[:, :, None])  # [B or 1, Tq, 1]
    at = at_key[:, None, run.start : run.stop]  # [B or 1, 1, keys]
    inside = (at <= high) & ((at >= low) | (j < vis.sinks)) & (j < used)
    result = inside[:, None]  # [B or 1, 1, Tq, keys]
    if vis.mask is not None:
        mask = vis.mask if vis.mask.shape[-1] == 1 else vis.mask[..., run.start : run.stop]
        result = result & mask.to(device)
    return result.expand(B, -1, Tq, len(run))


def positions(
    vis: Visibility, shape: tuple[int, int, int, int], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """The position of each query [B or 1, Tq] and of each key [B or 1, Tk], int64.

    *vis* is well formed; positions of unused keys are of no meaning.
    """
    _, _, Tq, Tk = shape
    if vis.causal == "positions":
        q_positions, k_positions = _given_positions(vis)
        return q_positions.to(device).long(), k_positions.to(device).long()
    at = torch.arange(Tq, device=device)[None]
    if vis.causal != "top_left":
        at = at + _used_keys(vis, Tk, device) - Tq
    return at, torch.arange(Tk, device=device)[None]


def _used_keys(vis: Visibility, Tk: int, device: torch.device | str) -> Tensor:
    """How many keys of each request are used, [B or 1, 1]."""
    lengths = torch.tensor([Tk]) if vis.lengths is None else vis.lengths.long()
    return lengths.to(device)[:, None]


def _bounds(vis: Visibility, at: Tensor) -> tuple[Tensor, Tensor]:
    """The least and greatest key position that a query at position *at* may see, saturating."""
    far = torch.iinfo(torch.int64)
    left, right = vis.window
    low = torch.full_like(at, far.min) if left is None else at.clamp(min=far.min + left) - left
    high = torch.full_like(at, far.max) if right is None else at.clamp(max=far.max - right) + right
    return low, (high if vis.causal == "none" else torch.minimum(high, at))


def check_visibility(vis: Visibility, shape: tuple[int, int, int, int]) -> None:
    """*vis* makes sense for (B, Hq, Tq, Tk), or a ValueError names field, got and expected."""
    B, _, Tq, Tk = shape
    if vis.causal not in get_args(Causal):
        raise _malformed("causal", repr(vis.causal), f"one of {', '.join(get_args(Causal))}")
    if len(vis.window) != 2 or any(side is not None and side < 0 for side in vis.window):
        raise _malformed("window", repr(vis.window), "(left, right), each None or at least 0")
    if vis.sinks < 0:
        raise _malformed("sinks", repr(vis.sinks), "at least 0")
    if vis.lengths is not None:
        _check_integers("lengths", vis.lengths, (B,))
        if bool(((vis.lengths < 0) | (vis.lengths > Tk)).any()):
            raise _malformed("lengths", repr(vis.lengths.tolist()), f"each within 0..{Tk} (Tk)")
    if vis.causal == "positions":
        q_positions, k_positions = _given_positions(vis)
        _check_integers("q_positions", q_positions, (B, Tq))
        _check_integers("k_positions", k_positions, (B, Tk))
    if vis.mask is not None:
        _check_mask(vis.mask, shape)


def _given_positions(vis: Visibility) -> tuple[Tensor, Tensor]:
    for name in ("q_positions", "k_positions"):
        if getattr(vis, name) is None:
            raise _malformed(name, "None", "a tensor, since causal is 'positions'")
    assert vis.q_positions is not None
    assert vis.k_positions is not None
    return vis.q_positions, vis.k_positions


def _check_integers(name: str, got: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(got.shape) != shape:
        raise _malformed(name, f"shape {tuple(got.shape)}", f"shape {shape}")
    if got.dtype not in (torch.int32, torch.int64):
        raise _malformed(name, str(got.dtype), "torch.int64 or torch.int32")


def _check_mask(mask: Tensor, shape: tuple[int, int, int, int]) -> None:
    if mask.dtype != torch.bool:
        raise _malformed("mask", str(mask.dtype), "torch.bool")
    if not fits(mask, shape):
        raise _malformed("mask", f"shape {tuple(mask.shape)}", f"broadcastable to {shape}")


def fits(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether x, of one axis or more, broadcasts to *shape*."""
    own = shape[len(shape) - x.ndim :]
    return 1 <= x.ndim <= len(shape) and all(
        n in (1, m) for n, m in zip(x.shape, own, strict=True)
    )


def _malformed(field: str, got: str, expected: str) -> ValueError:
    return ValueError(f"Visibility.{field}: got {got}, expected {expected}")
