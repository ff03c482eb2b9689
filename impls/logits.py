"""The contract of logits-to-law kernels: temperature, top-k, top-p, min-p and masks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from torch import Tensor

__all__ = ["LOGITS", "LawCall", "Laws", "Maps"]

LOGITS: Mapping[str, str] = {
    "law": "logits become laws: law(call) -> p",
    "law.temperature": "a temperature for each row",
    "law.top_k": "the k likeliest tokens of each row",
    "law.top_p": "the likeliest tokens of each row that have a share of p",
    "law.min_p": "the tokens of each row that are at least m times as likely as the likeliest",
    "law.mask": "a boolean mask, True keeps a token",
}
"""What a logits-to-law kernel may support or decline, with what each name means."""

MAPS = ("mask", "temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, kw_only=True, eq=False)
class LawCall:
    """Rows of logits to be made laws: p [R, V], each row's sum 1, 0 where a token is removed.

    Maps are applied in the order that `Maps.order` declares; each sees the law that the ones
    before it left, renormalised. A map that is None changes nothing.
    """

    logits: Tensor  # [R, V]; -inf removes a token
    temperature: Tensor | None = None  # [R], fp32 > 0
    top_k: Tensor | None = None  # [R], int32, 1 to V
    top_p: Tensor | None = None  # [R], fp32 in (0, 1]
    min_p: Tensor | None = None  # [R], fp32 in [0, 1]
    mask: Tensor | None = None  # [R, V], bool


@runtime_checkable
class Laws(Protocol):
    """An adapter that makes laws of logits; its `capabilities.maps` is a `Maps`."""

    name: str

    def law(self, call: LawCall) -> Tensor:
        """p [R, V], fp32; `Unsupported` refuses the call."""


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Where correct logits-to-law kernels differ."""

    order: tuple[str, ...] = MAPS
    """the order of the maps."""
    top_k_ties: Literal["all", "index"] = "all"
    """of the tokens that tie with the k-th likeliest all are kept, or the lowest ids."""
    top_p_ties: Literal["all", "index"] = "index"
    """the lowest ids come first, or all tokens as likely as the last one kept are kept."""

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(MAPS):
            raise ValueError(
                f"Maps.order: got {self.order!r}, expected {', '.join(MAPS)} in some order"
            )
        for name in ("top_k_ties", "top_p_ties"):
            if (value := getattr(self, name)) not in get_args(Literal["all", "index"]):
                raise ValueError(f"Maps.{name}: got {value!r}, expected all or index")
