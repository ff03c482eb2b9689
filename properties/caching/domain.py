"""What a KV cache can be given: sizes within its capabilities, features that steps need."""

from dataclasses import dataclass
from typing import Any

from kernelassay.properties.caching.case import CacheCase
from kernelassay.properties.domain import Features, domain_for, head_sizes_at, lacking
from kernelassay.properties.subject import Subject

_ROOM = {"cpu": (3, 40), "cuda": (4, 56), "interpreter": (2, 14)}
"""Most requests, and most entries of one: each entry is read by a query of its own."""
_PROGRAMS = {"interpreter": 4}
"""Most query heads of all requests where each costs milliseconds."""


@dataclass(frozen=True)
class CacheDomain(Features):
    """The sizes and features that programs may use."""

    requests: int
    entries: int
    pages: tuple[int, ...]
    """page sizes, or none."""
    head_sizes: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    """pairs (Hq, Hkv), the simplest first."""


@domain_for("cache")
def _cache(subject: Subject, level: str, seed: int) -> CacheDomain:
    c = subject.capabilities
    requests, entries = _ROOM[subject.device]
    heads = [(1, 1), (2, 1), (2, 2), (4, 2), (3, 3), (6, 2)]
    most = _PROGRAMS.get(subject.device, 64)
    heads = [(q, k) for q, k in heads if q * requests <= most]
    if not subject.has("cache.gqa"):
        heads = [(q, k) for q, k in heads if q == k]
    sizes = tuple(n for n in c.head_sizes if n >= 8)
    return CacheDomain(
        supports=subject.supports,
        declines=c.declines,
        requests=min(requests, c.max_requests) if subject.has("cache.requests") else 1,
        entries=min(entries, c.max_tokens),
        pages=c.pages,
        head_sizes=head_sizes_at(sizes, "smoke", seed) if level != "nightly" else sizes,
        heads=tuple(heads),
    )


@lacking.register
def _(case: CacheCase, domain: Any) -> list[str]:
    if not isinstance(domain, CacheDomain):
        return ["cache"]
    names = {step[0] for step in case.steps}
    states = case.states()
    ragged = any(len({*state.lengths}) > 1 for state in states)
    needs = {
        "cache.requests": case.R > 1,
        "cache.ragged": ragged,
        "cache.gqa": case.Hq != case.Hkv,
        "cache.value_size": case.value_size != case.D,
        "cache.truncate": "truncate" in names,
        "cache.compact": "compact" in names,
        "cache.fork": "fork" in names,
        "cache.free": "free" in names,
        "cache.window": case.window is not None,
        "cache.padding": case.padding > 0,
    }
    missing = [name for name, needed in needs.items() if needed and not domain.has(name)]
    if domain.requests < case.R and domain.has("cache.requests"):
        missing.append(f"R={case.R}")
    if case.page not in (domain.pages or (None,)):
        missing.append(f"page={case.page}")
    for size in {case.D, case.value_size} - {*domain.head_sizes}:
        missing.append(f"D={size}")
    if (most := max(max(state.lengths) for state in states)) > domain.entries:
        missing.append(f"entries={most}")
    return missing
