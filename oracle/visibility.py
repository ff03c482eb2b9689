"""Which keys a query sees, in integers."""

from dataclasses import dataclass
from typing import Literal

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
