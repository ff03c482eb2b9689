"""What a prefix cache can be given: sizes within its capabilities, features that steps need."""

from dataclasses import dataclass
from typing import Any

from kernelassay.impls.contract import Prefixed
from kernelassay.properties.domain import Features, domain_for, head_sizes_at, lacking
from kernelassay.properties.prefixes.case import PrefixCase
from kernelassay.properties.subject import Subject

REQUESTS = 3
"""Most requests at a time."""
BLOCKS = 6
"""Most blocks of a request, about."""


@dataclass(frozen=True)
class PrefixDomain(Features):
    """The sizes and features that programs may use."""

    requests: int
    tokens: int
    blocks: tuple[int, ...]
    """block sizes."""
    head_sizes: tuple[int, ...]
    last: int
    """how many of the last tokens of a prompt are never hit."""


@domain_for("prefix")
def _prefix(subject: Subject, level: str, seed: int) -> PrefixDomain:
    c = subject.capabilities
    sizes = tuple(n for n in c.head_sizes if n >= 8)
    return PrefixDomain(
        supports=subject.supports,
        declines=c.declines,
        requests=min(REQUESTS, c.max_requests) if subject.has("prefix.requests") else 1,
        tokens=min(96, c.max_tokens),
        blocks=tuple(n for n in c.pages if n * BLOCKS <= min(96, c.max_tokens)) or (1,),
        head_sizes=head_sizes_at(sizes, "smoke", seed) if level != "nightly" else sizes,
        last=int((c.prefixing or Prefixed()).last == "computed"),
    )


@lacking.register
def _(case: PrefixCase, domain: Any) -> list[str]:
    if not isinstance(domain, PrefixDomain):
        return ["prefix"]
    states = case.states()
    names = {step[0] for step in case.steps}
    scopes = [step[-2:] for step in case.steps if step[0] in ("begin", "look")]
    needs = {
        "prefix.requests": max(sum(map(bool, state.requests)) for state in states) > 1,
        "prefix.salt": any(salt for salt, _ in scopes),
        "prefix.adapter": any(adapter for _, adapter in scopes),
        "prefix.truncate": "truncate" in names,
        "prefix.hash": case.hash != "own",
        "prefix.match": "look" in names,
        "prefix.reset": "reset" in names,
        "prefix.value_size": case.value_size != case.D,
    }
    missing = [name for name, needed in needs.items() if needed and not domain.has(name)]
    if domain.requests < case.R and domain.has("prefix.requests"):
        missing.append(f"R={case.R}")
    if case.block not in domain.blocks:
        missing.append(f"block={case.block}")
    for size in {case.D, case.value_size} - {*domain.head_sizes}:
        missing.append(f"D={size}")
    if states[-1].longest > domain.tokens:
        missing.append(f"tokens={states[-1].longest}")
    return missing
