"""Maps that do not commute: rows of masses of which either order keeps other tokens, exactly."""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product

from kernelassay.impls.contract import Maps
from kernelassay.oracle import sampling_maps as exact

PAIRS = (
    ("mask", "top_k"),
    ("mask", "top_p"),
    ("mask", "min_p"),
    ("temperature", "top_p"),
    ("temperature", "min_p"),
    ("top_k", "top_p"),
    ("top_p", "min_p"),
)
"""Of any other two maps both orders keep the same tokens."""
NEAR = Fraction(1, 100)
"""A share that moves by this much must keep the same tokens, so that no rounding decides."""
TEMPERATURES = (0.5, 0.25)
_SHARES = (0.15, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9)

Masses = tuple[int, ...]
Value = float | tuple[int, ...]
Step = tuple[str, Value]


def kept(masses: Masses, steps: Sequence[Step], maps: Maps) -> frozenset[int]:
    """The columns that are left after these maps in this order; a mask's value is what it removes.

    Temperatures are of `TEMPERATURES`, of which a mass has an exact power.
    """
    law: Sequence[Fraction | int] = masses
    for name, value in steps:
        if isinstance(value, tuple):
            allowed = [x not in value for x in range(len(law))]
            if not any(a and w for a, w in zip(allowed, law, strict=True)):
                return frozenset()
            law = exact.masked(law, allowed)
        elif name == "temperature":
            law = exact.tempered(law, Fraction(value))
        elif name == "top_k":
            law = exact.top_k(law, int(value), maps.top_k_ties)
        elif name == "top_p":
            law = exact.top_p(law, Fraction(value), maps.top_p_ties)
        else:
            law = exact.min_p(law, Fraction(value))
    return frozenset(x for x, w in enumerate(law) if w)


def differ(masses: Masses, first: Step, second: Step, maps: Maps) -> bool:
    """Whether the two orders keep different tokens, some in the first, by more than a rounding."""
    one, other = (
        {kept(masses, steps, maps) for steps in (order, *_moved(order))}
        for order in ((first, second), (second, first))
    )
    return len(one) == len(other) == 1 and one != other and frozenset() not in one


def _moved(steps: Sequence[Step]) -> list[list[Step]]:
    """The same maps, their shares a little more or less."""
    return [
        [(name, float(Fraction(x) + by) if name in ("top_p", "min_p") else x) for name, x in steps]  # type: ignore[arg-type]
        for by in (-NEAR, NEAR)
    ]


@lru_cache(1024)
def telling(masses: Masses, a: str, b: str, maps: Maps) -> tuple[tuple[Value, Value], ...]:
    """Values of maps *a* and *b*, *a* the first of the declared order, whose order matters."""
    options: dict[str, Sequence[Value]] = {
        "mask": [(x,) for x in range(len(masses))],
        "temperature": TEMPERATURES,
        "top_k": range(1, len(masses)),
        "top_p": _SHARES,
        "min_p": _SHARES,
    }
    found = product(options[a], options[b])
    return tuple((x, y) for x, y in found if differ(masses, (a, x), (b, y), maps))
