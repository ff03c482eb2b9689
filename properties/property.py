"""A property is data: a law's name, sentence, needs, strata and body."""

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis.strategies import SearchStrategy

from kernelassay.impls.contract import OPERATIONS, Capabilities
from kernelassay.properties.conventions import taken
from kernelassay.properties.domain import domain_of
from kernelassay.properties.failures import Failure
from kernelassay.properties.subject import Subject

Stratum = Callable[[Any], SearchStrategy[Any] | None]
"""Of a domain: a strategy of cases, or None where the capabilities do not allow it."""
Body = Callable[[Subject, Any], None]
"""What a law does with a case of its operation's class."""


@dataclass(frozen=True, eq=False)
class Property:
    """One law.

    *requires*: features that must be supported. *rests_on*: says of the declared capabilities
    why the law does not apply, or None where it does. *here*: why it cannot run on this machine,
    or None. *strata*: label -> strategy of the domain. *operation*: of `Capabilities.operations`.
    *weight*: share of the level's cases, for laws whose case costs several launches.
    """

    name: str
    sentence: str
    body: Body
    strata: Mapping[str, Stratum]
    requires: frozenset[str] = frozenset({"attend"})
    rests_on: Callable[[Capabilities], str | None] = field(default=lambda capabilities: None)
    weight: float = 1.0
    here: Callable[[Subject], str | None] = field(default=lambda subject: None)
    operation: str = "attend"

    @property
    def family(self) -> str:
        """The part of the name before the dot."""
        return self.name.split(".")[0]

    def sentence_for(self, subject: Subject, failure: Failure) -> str:
        """The sentence, and the conventions of *subject* that it was judged by where it failed."""
        judged_by = taken(subject, failure, reads_lse="lse" in self.requires)
        return f"{self.sentence} {judged_by}".strip()

    def standing(self, subject: Subject) -> tuple[str, str]:
        """Whether the law runs on *subject*: (status, reason); status "" when it runs."""
        c = subject.capabilities
        if self.operation not in c.operations:
            return "not_applicable", f"the kernel does not offer {self.operation}"
        if missing := sorted(self.requires & c.declines):
            return "declined", f"declines {', '.join(missing)}"
        if missing := sorted(self.requires - subject.supports):
            return "undeclared", f"declares nothing of {', '.join(missing)}"
        if why := self.rests_on(c):
            return "not_applicable", why
        if why := self.here(subject):
            return "not_applicable", why
        return self._reach(domain_of(subject))

    def _reach(self, domain: Any) -> tuple[str, str]:
        """Whether any stratum can be generated from what is declared."""

        def any_stratum(supports: frozenset[str]) -> bool:
            wider = replace(domain, supports=supports)
            return any(build(wider) is not None for build in self.strata.values())

        if any_stratum(domain.supports):
            return "", ""
        if any_stratum(frozenset(OPERATIONS[offered(self.operation)]) - domain.declines):
            return "undeclared", "no case can be made of the declared features"
        return "declined", "every case needs a declined feature"


def offered(operation: str) -> str:
    """What an adapter must offer for *operation*: pages and splits are ways to attend."""
    return operation if operation in OPERATIONS else "attend"


REGISTRY: dict[str, Property] = {}


def law(
    name: str,
    sentence: str,
    *,
    strata: Mapping[str, Stratum],
    requires: Iterable[str] = (),
    rests_on: Callable[[Capabilities], str | None] = lambda capabilities: None,
    weight: float = 1.0,
    here: Callable[[Subject], str | None] = lambda subject: None,
    operation: str = "attend",
) -> Callable[[Body], Property]:
    """Register the decorated body as the law *name*."""

    def register(body: Body) -> Property:
        needs = frozenset({offered(operation), *requires})
        if name in REGISTRY and REGISTRY[name].body.__module__ != body.__module__:
            raise ValueError(f"law {name!r}: got a second one, expected a name of its own")
        made = Property(name, sentence, body, strata, needs, rests_on, weight, here, operation)
        REGISTRY[name] = made
        return made

    return register


def select(*patterns: str) -> list[Property]:
    """The laws whose name matches a pattern ("attention.*", "alignment"); all by default.

    A pattern that matches nothing is an error that names what there is.
    """
    from kernelassay.properties import laws  # noqa: F401 - they register themselves

    found: dict[str, Property] = {}
    for pattern in patterns or ("*",):
        wide = pattern if any(c in pattern for c in ".*?[") else f"{pattern}.*"
        here = [p for n, p in REGISTRY.items() if fnmatch.fnmatchcase(n, wide)]
        if not here:
            families = sorted({p.family for p in REGISTRY.values()})
            raise LookupError(
                f"law {pattern!r}: matches none of {len(REGISTRY)} laws; expected a pattern over "
                f"{', '.join(sorted(REGISTRY))}, or a family: {', '.join(families)}"
            )
        found.update({p.name: p for p in here})
    return list(found.values())
