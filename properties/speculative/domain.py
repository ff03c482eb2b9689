"""What a verification can be given: sizes within its capabilities and the work they may cost."""

from dataclasses import dataclass
from typing import Any

from kernelassay.impls.verification import Sampling
from kernelassay.properties.domain import Features, domain_for, lacking
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.subject import Subject

CELLS = {"cpu": 1 << 21, "cuda": 1 << 25, "interpreter": 1 << 20}
"""Most numbers of p in one launch: what is laid out in some milliseconds."""


@dataclass(frozen=True)
class VerifyDomain(Features):
    """The sizes and features that rounds may use."""

    sampling: Sampling
    most_drafts: int
    most_requests: int
    vocabulary: int
    tiles: tuple[int, ...]
    dtype: str

    @property
    def dyadic(self) -> bool:
        """Whether laws must be multiples of a power of two, to be exact in the dtype."""
        return self.dtype != "fp32"


@domain_for("verify")
def _verification(subject: Subject, level: str, seed: int) -> VerifyDomain:
    c = subject.capabilities
    assert c.sampling is not None  # the contract says so
    return VerifyDomain(
        supports=subject.supports,
        declines=c.declines,
        sampling=c.sampling,
        most_drafts=c.max_drafts if "drafts.many" in c.supports else 1,
        most_requests=c.max_requests if "requests" in c.supports else 1,
        vocabulary=c.max_vocabulary,
        tiles=c.tiles,
        dtype=subject.dtype,
    )


@lacking.register
def _(case: VerifyCase, domain: Any) -> list[str]:
    if not isinstance(domain, VerifyDomain):
        return ["verify"]
    needs = {
        "requests": case.requests > 1,
        "drafts.many": max(case.counts) > 1,
        "drafts.ragged": len({*case.counts}) > 1,
        "drafts.none": max(case.counts) == 0,
        "drafts.skipped": bool(case.skipped),
        "draft_law": case.q is not None,
        "draft_certain": case.q is None,
        "greedy": bool(case.greedy),
        "stop": case.stop is not None,
        "budget": case.budget is not None,
    }
    missing = [name for name, needed in needs.items() if needed and not domain.has(name)]
    if max(case.counts) > domain.most_drafts:
        missing.append(f"counts={case.counts}")
    if case.vocabulary > domain.vocabulary:
        missing.append(f"V={case.vocabulary}")
    return missing
