"""Shapes and visibility of cases: small integers near tiles, nothing filtered."""

import math
from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain

SEEDS = st.integers(0, 255)


def near_tiles(domain: Domain, most: int, least: int = 1) -> st.SearchStrategy[int]:
    """Lengths in least..most: multiples of a tile plus 0, 1, -1 or 7, mixed with plain ones."""
    edges = sorted(
        {
            n * tile + off
            for tile in (4, *domain.tiles)
            for n in (1, 2, 3)
            for off in (0, 1, -1, 7)
            if least <= n * tile + off <= most
        }
    )
    plain = st.integers(least, max(least, min(most, 40)))
    return plain if not edges else st.one_of(plain, st.sampled_from(edges), st.sampled_from(edges))


def past_tile(domain: Domain, most: int) -> st.SearchStrategy[int]:
    """Lengths just past or short of a tile: the last tile is partial and not the only one."""
    lengths = {
        n * tile + off
        for tile in domain.tiles
        for n in (1, 2, 3)
        for off in (1, -1, 7)
        if tile < n * tile + off <= most
    }
    return st.sampled_from(sorted(lengths) or [min(most, 17)])


def affordable(
    domain: Domain, heads: list[tuple[int, int]], B: int, long: bool
) -> list[tuple[int, int]]:
    """Those of *heads* that are supported and, where work is limited, leave room for two tiles."""
    known = [h for h in heads if h[0] == h[1] or domain.has("gqa")]
    return [h for h in known if domain.affords(B, h[0], long)] or [min(known)]


@st.composite
def shapes(
    draw: st.DrawFn,
    domain: Domain,
    *,
    B: st.SearchStrategy[int] | int = st.sampled_from([1, 1, 2, 3]),  # noqa: B008 - a constant
    heads: list[tuple[int, int]] | None = None,
    Tq: st.SearchStrategy[int] | int | None = None,
    long: bool = False,
    square: bool = False,
    fewest: int = 1,
) -> AttendCase:
    """A case with shapes only. *long*: the keys end in a partial tile that is not the first.

    Where work is limited there may be fewer requests than drawn, but no fewer than *fewest*.
    """
    b = B if isinstance(B, int) else draw(B)
    pairs = affordable(domain, heads or domain.heads(), b, long)
    while not isinstance(B, int) and b > fewest and not domain.affords(b, pairs[0][0], long):
        b -= 1
    Hq, Hkv = draw(st.sampled_from(pairs))
    rows = max(domain.tiles) if domain.steps is not None else 130
    most_q = max(1, min(rows, domain.max_tokens, domain.cells // (b * Hq * 256)))
    if isinstance(Tq, int):
        tq = Tq
    else:
        few = st.sampled_from([1, 2, 3])
        tq = draw(Tq if Tq is not None else st.one_of(few, near_tiles(domain, most_q)))
    tq = min(tq, most_q)
    most = domain.most_keys(b, Hq, tq)
    if square or not domain.has("unequal_lengths"):
        if long:
            tq = draw(past_tile(domain, domain.most_square(b, Hq)))
        tk = tq = max(min(tq, domain.most_square(b, Hq)), domain.min_keys)
    else:
        least = domain.min_keys if domain.has("more_queries") else min(tq, most)
        tk = draw(past_tile(domain, most) if long else near_tiles(domain, most, least))
        tk = max(tk, least)
    D = draw(st.sampled_from(domain.head_sizes))
    return draw(planned(domain, AttendCase(B=b, Hq=Hq, Hkv=Hkv, Tq=tq, Tk=tk, D=D)))


@st.composite
def planned(draw: st.DrawFn, domain: Domain, case: AttendCase) -> AttendCase:
    """*case* with a page size, a number of splits or parts to merge, where the kernel has such."""
    changes: dict[str, object] = {}
    if domain.pages:
        changes["page"] = draw(st.sampled_from(domain.pages))
        changes["pages"] = f"shuffled:{draw(SEEDS)}"
    if domain.splits:
        changes["splits"] = draw(st.sampled_from([2, 3, 1, 5, 8, 17]))
    if domain.merge:
        n = 2
        if domain.has("merge.many"):
            n = draw(st.sampled_from([2, 3, 5, 1, 8]))
        changes["cuts"] = tuple(draw(st.integers(0, case.Tk)) for _ in range(n - 1))
    return replace(case, **changes)  # type: ignore[arg-type]


@st.composite
def scales(draw: st.DrawFn, domain: Domain, D: int) -> float | None:
    """The default, or a scale that is neither 1 nor 1/sqrt(D)."""
    if not domain.has("scale"):
        return None
    return draw(st.sampled_from([None, None, 0.5 / math.sqrt(D), 0.3, 1.7 / math.sqrt(D)]))


@st.composite
def masked(
    draw: st.DrawFn, domain: Domain, case: AttendCase, *, always: bool = False
) -> AttendCase:
    """*case* with a causal corner and, sometimes (or *always* one of them), lengths or a mask."""
    changes: dict[str, object] = {"causal": draw(st.sampled_from(domain.corners))}
    extra = [f for f in ("lengths", "mask") if domain.has(f)]
    pick = draw(st.sampled_from((extra if always else ["", "", *extra]) or [""]))
    if pick == "lengths":
        changes["lengths"] = tuple(draw(st.integers(0, case.Tk)) for _ in range(case.B))
    if pick == "mask":
        changes["mask"] = draw(mask_recipes(case))
    return replace(case, **changes)  # type: ignore[arg-type]


@st.composite
def mask_recipes(draw: st.DrawFn, case: AttendCase) -> str:
    """A boolean mask: padding, or hashed over some of the axes."""
    return draw(
        st.one_of(
            st.integers(0, case.Tk).map("prefix:{}".format),
            st.builds(
                "keep:{}:{}:{}".format,
                SEEDS,
                st.sampled_from([80, 50, 25]),
                st.sampled_from(["k", "qk", "bk", "hk", "bhqk", "bqk"]),
            ),
        )
    )


caps = st.sampled_from([3.0, 5.0, 2.0, 1.0])
"""Soft caps that bite on scores of some tens; the first is not 1, which need not be multiplied."""

alibi_recipes = st.one_of(st.just("standard"), SEEDS.map("hashed:{}".format))
"""Slopes: the usual ones, or hashed ones."""

BIAS_AXES = [
    "bhqk", "k", "qk", "hqk", "bk", "hk", "bqk", "bhk", "q", "h", "b", "hq", "bq", "bh", "bhq", "",
]  # fmt: skip
"""The axes that a bias varies on: all of them first, then each subset."""

bias_recipes = st.builds("random:{}:2.0:{}".format, SEEDS, st.sampled_from(BIAS_AXES))
"""A random bias, broadcast over the axes that it does not vary on."""

sink_recipes = SEEDS.map("random:{}:4.0".format)
"""Sinks near the log-sum-exp of a few dozen scores, another one for each head."""


@st.composite
def scored(
    draw: st.DrawFn, domain: Domain, case: AttendCase, *, always: bool = False
) -> AttendCase:
    """*case* with, sometimes (or *always*), a soft cap, ALiBi, a bias or a sink."""
    extra = [f for f in ("softcap", "alibi", "bias", "sink_logits") if domain.has(f)]
    pick = draw(st.sampled_from((extra if always else ["", *extra]) or [""]))
    changes: dict[str, object] = {}
    if pick == "softcap":
        changes["softcap"] = draw(caps)
    if pick == "alibi":
        changes["alibi"] = draw(alibi_recipes)
    if pick == "bias":
        changes["bias"] = draw(bias_recipes)
    if pick == "sink_logits":
        changes["sink_logits"] = draw(sink_recipes)
    return replace(case, **changes)  # type: ignore[arg-type]
