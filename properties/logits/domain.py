"""What a kernel of laws can be given: sizes within its capabilities and what they may cost."""

from dataclasses import dataclass
from typing import Any

from kernelassay.impls.contract import Maps
from kernelassay.impls.logits import MAPS
from kernelassay.properties.domain import Features, domain_for, lacking
from kernelassay.properties.logits.case import LawCase
from kernelassay.properties.subject import Subject

_CELLS = {"cpu": 1 << 17, "cuda": 1 << 21, "interpreter": 1 << 15}
"""Most logits of a call: what the oracle and the budget take milliseconds for."""
_VOCABULARY = {"interpreter": 2100}
"""Largest vocabulary where a step takes about a millisecond: two tiles and a bit."""
_CUTS = ("top_k", "top_p", "min_p")


@dataclass(frozen=True)
class LawDomain(Features):
    """The sizes and features that rows may use."""

    maps: Maps
    most_rows: int
    vocabulary: int
    cells: int
    tiles: tuple[int, ...]
    dtype: str
    hidden: tuple[str, ...]
    """what a masked logit may hold."""

    @property
    def offered(self) -> tuple[str, ...]:
        """The maps that calls may use, in their order."""
        return tuple(name for name in self.maps.order if self.has(f"law.{name}"))

    def first(self, a: str, b: str) -> bool:
        """Whether map *a* comes before map *b*."""
        return self.maps.order.index(a) < self.maps.order.index(b)

    @property
    def mask_first(self) -> bool:
        """Whether no map has cut tokens before the mask does."""
        return all(self.first("mask", name) for name in _CUTS)

    @property
    def whole(self) -> int:
        """Up to this, whole numbers are exact in the dtype."""
        return {"bf16": 256, "fp16": 2048}.get(self.dtype, 1 << 24)


@domain_for("law")
def _laws(subject: Subject, level: str, seed: int) -> LawDomain:
    c = subject.capabilities
    cells = _CELLS[subject.device]
    finite = c.conventions.masked_content == "finite_only"
    return LawDomain(
        supports=subject.supports,
        declines=c.declines,
        maps=c.maps or Maps(),
        most_rows=min(c.max_requests, 128),
        vocabulary=min(c.max_vocabulary, cells, _VOCABULARY.get(subject.device, cells)),
        cells=cells,
        tiles=c.tiles,
        dtype=subject.dtype,
        hidden=("large",) if finite else ("large", "nan"),
    )


@lacking.register
def _(case: LawCase, domain: Any) -> list[str]:
    if not isinstance(domain, LawDomain):
        return ["law"]
    given = [name for name in MAPS if getattr(case, name) is not None]
    missing = [f"law.{name}" for name in given if not domain.has(f"law.{name}")]
    if case.vocabulary > domain.vocabulary:
        missing.append(f"V={case.vocabulary}")
    if max(case.height, case.copies) > domain.most_rows:
        missing.append(f"rows={max(case.height, case.copies)}")
    if case.hidden not in ("own", *domain.hidden):
        missing.append(f"hidden={case.hidden}")
    return missing
