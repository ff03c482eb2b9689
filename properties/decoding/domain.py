"""What a decode loop can be given: sizes within its capabilities and the work they may cost."""

from dataclasses import dataclass
from typing import Any

from kernelassay.impls.decoding import Decoding
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.domain import Features, domain_for, lacking
from kernelassay.properties.subject import Subject


@dataclass(frozen=True)
class DecodeDomain(Features):
    """The sizes and features that calls may use, and whose models they are about."""

    kernel: Any
    decoding: Decoding
    most_drafts: int
    most_requests: int
    vocabulary: int
    device: str
    dtype: str

    @property
    def drafts(self) -> list[str]:
        """The kinds of drafts, the simplest first."""
        model = ["near", "far", "same"] if self.has("decode.model") else []
        return model + ["lookup"] * self.has("decode.lookup")


@domain_for("decode")
def _decoding(subject: Subject, level: str, seed: int) -> DecodeDomain:
    c = subject.capabilities
    assert c.decoding is not None  # the contract says so
    return DecodeDomain(
        supports=subject.supports,
        declines=c.declines,
        kernel=subject.kernel,
        decoding=c.decoding,
        most_drafts=c.max_drafts,
        most_requests=c.max_requests if "decode.requests" in c.supports else 1,
        vocabulary=c.max_vocabulary,
        device=subject.home,
        dtype=subject.dtype,
    )


@lacking.register
def _(case: DecodeCase, domain: Any) -> list[str]:
    if not isinstance(domain, DecodeDomain):
        return ["decode"]
    R = case.requests
    needs = {
        "decode.requests": R > 1,
        "decode.ragged": len({*map(len, case.prompts)}) > 1,
        "decode.model": case.drafts != "lookup",
        "decode.lookup": case.drafts == "lookup",
        "decode.schedule": len({*case.schedule}) > 1 or 0 in case.schedule,
        "decode.sampled": len({*case.greedy}) < R,
        "decode.greedy": bool(case.greedy),
        "decode.stop": case.stop is not None and any(case.stop),
        "decode.budget": len({*case.budget}) > 1 or 0 in case.budget,
        "decode.minimum": case.minimum is not None and any(case.minimum),
    }
    missing = [name for name, needed in needs.items() if needed and not domain.has(name)]
    if max(case.schedule) > domain.most_drafts:
        missing.append(f"schedule={case.schedule}")
    if domain.vocabulary < case.V:
        missing.append(f"V={case.V}")
    return missing
