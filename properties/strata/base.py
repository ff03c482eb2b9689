"""What a stratum is, and how it depends on features."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain

Strategy = st.SearchStrategy[AttendCase]


Stratum = Callable[[Domain], Strategy | None]


def stratum(build: Callable[..., AttendCase]) -> Stratum:
    """A stratum from a function (draw, domain) -> case."""
    return st.composite(build)


COMPILED_APART = frozenset(
    {"mask", "causal.positions", "softcap", "alibi", "bias", "bias.minus_infinity", "sink_logits"}
)
"""Features for which kernels have a variant of their own, compiled for each head size anew."""


def narrowed(domain: Domain, features: Iterable[str]) -> Domain:
    """The domain with few head sizes, if one of *features* is compiled apart: seconds each."""
    apart = not COMPILED_APART.isdisjoint(features)
    return replace(domain, head_sizes=domain.few_head_sizes) if apart else domain


def requires(*features: str) -> Callable[[Stratum], Stratum]:
    """The stratum exists only where all *features* are supported."""

    def decorate(inner: Stratum) -> Stratum:
        def guarded(domain: Domain) -> Strategy | None:
            return inner(narrowed(domain, features)) if domain.has(*features) else None

        return guarded

    return decorate


def either(*features: str) -> Callable[[Stratum], Stratum]:
    """The stratum exists where any of *features* is supported."""

    def decorate(inner: Stratum) -> Stratum:
        def guarded(domain: Domain) -> Strategy | None:
            some = any(domain.has(f) for f in features)
            return inner(narrowed(domain, features)) if some else None

        return guarded

    return decorate


def where(holds: Callable[[Domain], bool]) -> Callable[[Stratum], Stratum]:
    """The stratum exists only for domains of which *holds* is true."""

    def decorate(inner: Stratum) -> Stratum:
        def guarded(domain: Domain) -> Strategy | None:
            return inner(domain) if holds(domain) else None

        return guarded

    return decorate
