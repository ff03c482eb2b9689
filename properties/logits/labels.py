"""Labels of rows of logits: what kind of input a case of laws is."""

import math
from typing import Any

from kernelassay.impls.logits import MAPS
from kernelassay.properties.domain import lacking
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.logits.case import LawCase
from kernelassay.properties.logits.domain import LawDomain
from kernelassay.properties.logits.orders import PAIRS, TEMPERATURES, differ

WIDE = 16
"""From here on levels are spread widely, whatever the step is."""
NEVER = -10000.0
"""A finite logit that stands for a token that must never come, at most."""
FAR = 1000.0
"""From here on a logit is far: no weight is left of one that is as far below another."""


@labels.register
def _(case: LawCase, domain: Any) -> set[str]:
    true = _facts(case) | _facts_of(case, domain)
    return {name for name, holds in true.items() if holds}


def _facts_of(case: LawCase, domain: LawDomain) -> dict[str, bool]:
    """What is true of the case for this kernel."""
    V = case.vocabulary
    return {
        "tile_edges": case.V is not None
        and any((V + d) % t == 0 for t in domain.tiles for d in (-1, 0, 1)),
        "declined": bool(set(lacking(case, domain)) & domain.declines),
        **{f"order_{a}_{b}": _order_matters(case, domain, a, b) for a, b in PAIRS},
    }


def _order_matters(case: LawCase, domain: LawDomain, a: str, b: str) -> bool:
    """Whether these are the maps of the case, and a row keeps other tokens in the other order."""
    given = {name for name in MAPS if getattr(case, name) is not None}
    exact = case.masses and case.absent is None and {*(case.temperature or ())} <= {*TEMPERATURES}
    if given != {a, b} or not exact:
        return False
    first, second = (a, b) if domain.first(a, b) else (b, a)
    steps = zip(case.rows, getattr(case, first), getattr(case, second), strict=True)
    return any(differ(row, (first, x), (second, y), domain.maps) for row, x, y in steps)


def _facts(case: LawCase) -> dict[str, bool]:
    rows, W, V = range(case.height), case.width, case.vocabulary
    given = [name for name in MAPS if getattr(case, name) is not None]
    left = [case.left(r) for r in rows]
    levels = [[case.rows[r][x] for x in left[r]] for r in rows]
    removed = [set() if case.mask is None else set(case.mask[r]) for r in rows]
    size = 1.0 if case.masses else case.step
    shares = [] if case.top_p is None else [*zip(levels, case.top_p, strict=True)]
    ratios = case.min_p or ()
    many = case.fill is not None and V > W
    wide = many and case.spread >= WIDE
    never = many and any(x[-1] * size <= NEVER < x[0] * size for x in levels)
    return {
        "logit_rows": True,
        "malformed": True,
        "softmax": not given,
        "mass_rows": case.masses,
        "all_maps": len(given) == len(MAPS),
        "own_parameters": any(len({*getattr(case, name)}) > 1 for name in given),
        "several_rows": case.height > 1,
        "many_copies": case.copies > 1,
        "mapped_copies": case.copies > 1 and bool(given),
        "tied_copies": case.copies > 7 and _ties_at_k(case, levels),
        "cold": min(case.temperature or (1,)) < 0.5,
        "hot": max(case.temperature or (1,)) > 2,
        "top_k_cuts": case.top_k is not None
        and any(k < len(x) for k, x in zip(case.top_k, left, strict=True)),
        "top_k_ties": _ties_at_k(case, levels),
        "top_k_one": 1 in (case.top_k or ()),
        "top_k_all": V in (case.top_k or ()),
        "top_p_cuts": any(p < 1 and len(x) > 1 for x, p in shares),
        "top_p_ties": any(p < 1 and len({*x}) < len(x) for x, p in shares),
        "top_p_all": 1 in (case.top_p or ()),
        "top_p_tiny": 0 < min(case.top_p or (1,)) < 0.001,
        "exact_share": any(
            p < 1 and len({*x}) == 1 and p * len(x) == int(p * len(x)) for x, p in shares
        ),
        "min_p_cuts": any(m > 0 for m in ratios),
        "min_p_keeps": any(
            len({*x}) > 1 and m > 0 and math.exp((x[-1] - x[0]) * size) > m
            for x, m in zip(levels, ratios, strict=False)
        ),
        "min_p_zero": 0 in ratios,
        "min_p_one": 1 in ratios,
        "masked": any(removed),
        "masked_likeliest": any(
            max(removed[r], key=case.rows[r].__getitem__, default=None) in _tops(case, r)
            for r in rows
        ),
        "one_token": any(len(x) == 1 for x in left) and not many,
        "hidden_garbage": case.hidden != "own" and any(removed),
        "minus_infinity": any(case.absent or ())
        or (case.masses and any(0 in x for x in case.rows)),
        "far_above": any(x * size >= FAR for row in levels for x in row),
        "far_below": any(x * size <= -FAR for row in levels for x in row),
        "equal_logits": any(len({*x}) == 1 < len(x) for x in levels) and not case.masses,
        "shifted": case.shift != 0,
        "large_vocabulary": V >= 16 * W,
        "spread_rows": wide,
        "spread_top_k": wide and case.top_k is not None,
        "spread_top_p": wide and case.top_p is not None,
        "spread_copies": wide and case.copies > 1 and bool(given),
        "never_rows": never,
        "never_top_k": never and case.top_k is not None,
        "never_top_p": never and case.top_p is not None,
        "last_token": V - 1 in case.columns and V > W,
    }


def _tops(case: LawCase, r: int) -> list[int]:
    """The columns of row r that nothing but a mask could take the first place from."""
    absent = set() if case.absent is None else set(case.absent[r])
    stay = [x for x in range(case.width) if x not in absent]
    top = max(case.rows[r][x] for x in stay)
    return [x for x in stay if case.rows[r][x] == top]


def _ties_at_k(case: LawCase, levels: list[list[int]]) -> bool:
    """Whether, of a row, the k-th likeliest and the next one are equally likely."""
    if case.top_k is None:
        return False
    return any(k < len(x) and x[k - 1] == x[k] for x, k in zip(levels, case.top_k, strict=True))


LABELS.update(_facts(LawCase()))
LABELS.update({"tile_edges", "declined", *(f"order_{a}_{b}" for a, b in PAIRS)})
