"""What a stratum is, and how it depends on features."""

from collections.abc import Callable

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain

Strategy = st.SearchStrategy[AttendCase]


Stratum = Callable[[Domain], Strategy | None]


def stratum(build: Callable[..., AttendCase]) -> Stratum:
    """A stratum from a function (draw, domain) -> case."""
    return st.composite(build)


def requires(*features: str) -> Callable[[Stratum], Stratum]:
    """The stratum exists only where all *features* are supported."""

    def decorate(inner: Stratum) -> Stratum:
        def guarded(domain: Domain) -> Strategy | None:
            return inner(domain) if domain.has(*features) else None

        return guarded

    return decorate


def either(*features: str) -> Callable[[Stratum], Stratum]:
    """The stratum exists where any of *features* is supported."""

    def decorate(inner: Stratum) -> Stratum:
        def guarded(domain: Domain) -> Strategy | None:
            return inner(domain) if any(domain.has(f) for f in features) else None

        return guarded

    return decorate
