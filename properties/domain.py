"""What a subject can be given: sizes within its capabilities and within the work it may cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, TypeVar

from kernelassay.impls.contract import OPERATIONS
from kernelassay.properties.case import AttendCase, Case
from kernelassay.properties.subject import Subject

_CELLS = {"cpu": 1 << 17, "cuda": 1 << 21, "interpreter": 1 << 17}
"""Most query-key pairs of a case: what the oracle and the budget take milliseconds for."""
_STEPS = {"interpreter": 16}
"""Most tile steps of one launch; an interpreted step takes about 6 ms whatever its size."""


@dataclass(frozen=True)
class Features:
    """The features that cases may use; sizes come with each operation."""

    supports: frozenset[str]
    declines: frozenset[str]

    def has(self, *features: str) -> bool:
        """Whether all these features are supported."""
        return all(f in self.supports for f in features)


@dataclass(frozen=True)
class Domain(Features):
    """The sizes and features that cases of attention and merges may use."""

    head_sizes: tuple[int, ...]
    few_head_sizes: tuple[int, ...]
    tiles: tuple[int, ...]
    min_keys: int
    max_tokens: int
    cells: int
    steps: int | None
    dtype: str
    out: str
    fp16_sums: bool = False
    """whether sums of products are kept in fp16, as far as the declared accumulator tells."""
    pages: tuple[int, ...] = ()
    splits: bool = False
    merge: bool = False

    @property
    def corners(self) -> list[str]:
        """The causal modes to choose from, the simplest first."""
        return ["none"] + [
            c for c in ("bottom_right", "top_left") if f"causal.{c}" in self.supports
        ]

    def heads(self) -> list[tuple[int, int]]:
        """Pairs (Hq, Hkv), the simplest first: grouped, non-square, no powers of two."""
        if not self.has("gqa"):
            return [(1, 1), (2, 2), (3, 3)]
        return [(1, 1), (2, 1), (2, 2), (4, 2), (6, 2), (3, 1), (6, 3)]

    def fits(self, B: int, Hq: int, Tq: int, Tk: int) -> bool:
        """Whether a launch of this size costs no more than it may."""
        if B * Hq * Tq * Tk > self.cells or max(Tq, Tk) > self.max_tokens:
            return False
        if self.steps is None:
            return True
        rows, keys = max(self.tiles), min(self.tiles)
        return B * Hq * max(1, -(-Tq // rows)) * max(1, -(-Tk // keys)) <= self.steps

    def affords(self, B: int, Hq: int, long: bool) -> bool:
        """Whether one tile for each head, or two where *long*, costs no more than it may."""
        return self.steps is None or B * Hq * (2 if long else 1) <= self.steps

    def most_square(self, B: int, Hq: int) -> int:
        """The largest Tq = Tk for which the launch fits; at least 2."""
        most = min(self.max_tokens, math.isqrt(self.cells // (B * Hq)))
        return next((n for n in range(most, 2, -1) if self.fits(B, Hq, n, n)), 2)

    def most_keys(self, B: int, Hq: int, Tq: int) -> int:
        """The largest Tk for which the launch fits; at least 2."""
        most = min(self.max_tokens, self.cells // max(1, B * Hq * Tq))
        if self.steps is not None:
            rows, keys = max(self.tiles), min(self.tiles)
            most = min(most, self.steps // (B * Hq * max(1, -(-Tq // rows))) * keys)
        return max(2, most)


def head_sizes_at(sizes: tuple[int, ...], level: str, seed: int) -> tuple[int, ...]:
    """The head sizes that a level uses: 2 at smoke, 4 at pr, all of them beyond.

    Each is a compilation of its own for most kernels. Half of them are no powers of two, where
    there are such; other run seeds take others.
    """
    each = {"smoke": 1, "pr": 2}.get(level, len(sizes))
    plain = [n for n in sizes if n & (n - 1) == 0]
    padded = [n for n in sizes if n & (n - 1)]
    if not padded or not plain:
        each *= 2

    def some(of: list[int]) -> list[int]:
        step = -(-len(of) // each) if of else 1
        return [of[(seed + i * step) % len(of)] for i in range(min(each, len(of)))]

    return tuple(sorted({*some(plain), *some(padded)}))


Build = Callable[[Subject, str, int], Any]
B = TypeVar("B", bound=Build)
_DOMAINS: dict[str, Build] = {}


def domain_for(*operations: str) -> Callable[[B], B]:
    """The decorated function makes the domains of kernels that do these *operations*."""

    def register(build: B) -> B:
        _DOMAINS.update(dict.fromkeys(operations, build))
        return build

    return register


def domain_of(subject: Subject, level: str = "nightly", seed: int = 0) -> Any:
    """The domain of *subject*: capabilities, the work limit of its device, the level's sizes."""
    (operation,) = subject.capabilities.operations & set(OPERATIONS)
    return _DOMAINS[operation](subject, level, seed)


@domain_for("attend", "merge")
def _attention(subject: Subject, level: str, seed: int) -> Domain:
    c = subject.capabilities
    return Domain(
        supports=subject.supports,
        declines=c.declines,
        head_sizes=head_sizes_at(c.head_sizes, level, seed),
        few_head_sizes=head_sizes_at(c.head_sizes, "smoke" if level == "pr" else level, seed),
        tiles=c.tiles,
        min_keys=c.min_keys,
        max_tokens=c.max_tokens,
        cells=_CELLS[subject.device],
        steps=c.work_limit.get(subject.device, _STEPS.get(subject.device)),
        dtype=subject.dtype,
        out=subject.numerics.out,
        fp16_sums=subject.dtype == "fp16" and subject.numerics.acc_u >= 2.0**-11,
        pages=c.pages,
        splits=c.splits,
        merge=subject.merges,
    )


@singledispatch
def lacking(case: Case, domain: Any) -> list[str]:
    """Features and sizes that *case* needs and the domain lacks."""
    raise NotImplementedError(f"cases of class {type(case).__name__}")


@lacking.register
def _(case: AttendCase, domain: Any) -> list[str]:
    if not isinstance(domain, Domain):
        return ["attend"]
    needs = {
        "gqa": case.Hq != case.Hkv,
        "unequal_lengths": case.Tq != case.Tk,
        "more_queries": case.Tk < case.Tq,
        "no_keys": case.Tk == 0,
        "window": case.window != (None, None),
        "sink_tokens": case.sinks > 0,
        "lengths": case.lengths is not None,
        "mask": case.mask is not None,
        "scale": case.scale is not None,
        "scale.nonpositive": case.scale is not None and case.scale <= 0,
        "no_queries": case.Tq == 0,
        "value_size": case.value_size != case.D,
        "softcap": case.softcap is not None,
        "alibi": case.alibi is not None,
        "bias": case.bias is not None,
        "bias.minus_infinity": case.bias is not None and "-inf" in case.bias,
        "sink_logits": case.sink_logits is not None,
        # In pages equal requests are no view of one another: their pages may be shared.
        "strides": case.view not in ("contiguous", *(["expanded"] if domain.pages else [])),
        f"causal.{case.causal}": case.causal != "none",
        "merge.many": case.cuts is not None and case.tree == "flat" and len(case.cuts) != 1,
    }
    missing = [name for name, needed in needs.items() if needed and not domain.has(name)]
    if domain.merge != (case.cuts is not None):
        missing.append("cuts" if domain.merge else "merge")
    if case.page is not None and case.page not in domain.pages:
        missing.append(f"page={case.page}")
    if case.splits is not None and not domain.splits:
        missing.append("splits")
    if 0 < case.Tk < domain.min_keys:
        missing.append(f"Tk={case.Tk}")
    if case.D not in domain.head_sizes:
        missing.append(f"D={case.D}")
    return missing
