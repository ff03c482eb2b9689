"""Schemes: joint recipes for q, k and v, each made to show something."""

import math
from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain
from kernelassay.properties.shapes import SEEDS, scales

LN2 = math.log(2)


@st.composite
def spots(draw: st.DrawFn, case: AttendCase) -> AttendCase:
    """Uniform weights and a value in a single place: the simplest content there is.

    The place is one draw: what takes the fewest draws is what a counterexample shrinks to.
    """
    place: list[int] = []
    shape = (case.D, max(case.Tk, 1), case.Hkv, case.B)
    at = draw(st.integers(0, math.prod(shape) - 1))
    for n in shape:
        at, index = divmod(at, n)
        place.insert(0, index)
    return replace(case, v="zeros;{},{},{},{}=1".format(*place))


@st.composite
def generic(draw: st.DrawFn, domain: Domain, case: AttendCase) -> AttendCase:
    """Independent random content; the sharper budget applies."""
    seed = draw(SEEDS)
    return replace(
        case,
        q=f"random:{3 * seed}",
        k=f"random:{3 * seed + 1}",
        v=f"random:{3 * seed + 2}",
        scale=draw(scales(domain, case.D)),
    )


@st.composite
def peaky(draw: st.DrawFn, domain: Domain, case: AttendCase) -> AttendCase:
    """Random content with scores of some tens: the softmax is close to one-hot."""
    made = draw(generic(domain, case))
    return replace(made, q=f"{made.q}:{draw(st.sampled_from([6.0, 20.0]))}", scale=None)


@st.composite
def injected(
    draw: st.DrawFn, domain: Domain, case: AttendCase, keys: st.SearchStrategy[str]
) -> AttendCase:
    """Scores put into column 0 of k directly, the same for every query; random values."""
    scale, first = (1.0, 1.0) if domain.has("scale") else (None, math.sqrt(case.D))
    return replace(
        case,
        q=f"first:{first}",
        k=draw(keys),
        v=f"around:{draw(SEEDS)}:{draw(st.sampled_from([0.0, 3.0]))}:1.0",
        scale=scale,
    )


def far(low: bool, dtype: str) -> st.SearchStrategy[str]:
    """Scores far from zero, on one side of it: -6e4, -110 or 99, 4500, 6e4."""
    centres = [-60000.0, -110.0] if low else [99.0, 4500.0, 60000.0]
    return st.builds("around:{}:{}:{}".format, SEEDS, st.sampled_from(centres), st.just(1.5))


def ramps(rising: bool) -> st.SearchStrategy[str]:
    """Scores that rise, or fall, from key to key: the maximum is in the last, or first, tile."""
    slope = 1 if rising else -1
    return st.sampled_from([3.0, 1.0, 0.25]).map(lambda x: f"ramp:{-2.0 * slope}:{slope * x}")


def spiked(domain: Domain, case: AttendCase) -> AttendCase:
    """Each row meets its maximum at another key; the mass before it balances the mass at it."""
    scale, amplitude = (1.0, 1.0) if domain.has("scale") else (None, math.sqrt(case.D))
    return replace(case, q=f"axis:{amplitude}", k="spike:-24.0", v="step", scale=scale)


@st.composite
def needle(draw: st.DrawFn, domain: Domain, case: AttendCase) -> AttendCase:
    """Query i aims at the key at its own position, the one before or the one after."""
    seed, aim = draw(SEEDS), draw(st.sampled_from([0, -1, 1]))
    amplitude = 8.0 / math.sqrt(case.D)
    return replace(
        case,
        q=f"seek:{seed}:{aim}:{amplitude}",
        k=f"signs:{seed}",
        v=f"random:{draw(SEEDS)}",
    )


@st.composite
def lattice(draw: st.DrawFn, domain: Domain, case: AttendCase) -> AttendCase:
    """Small integers throughout: few distinct scores, ties."""
    s = draw(SEEDS)
    return replace(case, q=f"lattice:{s}:1", k=f"lattice:{s + 1}:1", v=f"lattice:{s + 2}:3")
