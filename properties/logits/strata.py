"""Strata of rows of logits by their maps: each alone, all at once, two whose order matters."""

from dataclasses import replace

from hypothesis import strategies as st

from kernelassay.properties.logits.case import LawCase, Rows
from kernelassay.properties.logits.domain import LawDomain
from kernelassay.properties.logits.orders import PAIRS, telling
from kernelassay.properties.logits.rows import (
    APART,
    COLD,
    HOT,
    LEVELS,
    RATIOS,
    SHARES,
    Strategy,
    Stratum,
    each,
    heights,
    levels,
    logits,
    mapped,
    masked,
    masses,
    plateaus,
    stratum,
    tied_at_k,
    widths,
)


@stratum()
def softmax(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """No map."""
    return logits(draw, domain)


@stratum()
def mass_rows(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Logits are logarithms of masses: laws are fractions."""
    R, W = draw(heights(domain)), draw(widths(domain))
    return LawCase(rows=masses(draw, R, W), masses=True)


@stratum("law.mask", "law.temperature", "law.top_k", "law.top_p", "law.min_p")
def all_maps(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Every map at once."""
    return mapped(draw, domain, logits(draw, domain))


def own_parameters(domain: LawDomain) -> Strategy | None:
    """Rows with equal logits and different parameters of one map."""
    names = [name for name in domain.offered if name != "mask"]
    return _own_parameters(domain, names) if names and domain.most_rows > 1 else None


@st.composite
def _own_parameters(draw: st.DrawFn, domain: LawDomain, names: list[str]) -> LawCase:
    R, W = draw(heights(domain, least=2)), draw(widths(domain, 3))
    row = levels(draw, 1, W)[0]
    name = draw(st.sampled_from(names))
    values: dict[str, list[float]] = {
        "temperature": [1.0, 0.5, 3.0, 0.1],
        "top_k": [*range(1, W + 1)],
        "top_p": [0.9, 0.5, 0.2, 1.0],
        "min_p": [0.1, 0.5, 0.0, 0.9],
    }
    given = draw(st.permutations(values[name]))[:R]
    made = tuple(given[n % len(given)] for n in range(R))
    return replace(LawCase(rows=(row,) * R), **{name: made})  # type: ignore[arg-type]


@stratum("law.temperature")
def cold(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Low temperatures, of which some are no power of two."""
    case = logits(draw, domain)
    return replace(case, temperature=each(draw, case, COLD))


@stratum("law.temperature")
def hot(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """High temperatures."""
    case = logits(draw, domain)
    return replace(case, temperature=each(draw, case, HOT))


@stratum("law.top_k")
def top_k_cuts(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Some tokens of each row are left out."""
    case = logits(draw, domain)
    return replace(case, top_k=each(draw, case, st.integers(1, case.width - 1)))


@stratum("law.top_k")
def top_k_ties(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Tokens tie with the k-th likeliest, before it and after."""
    return tied_at_k(draw, domain)


@stratum("law.top_k")
def top_k_one(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """The likeliest token alone."""
    case = logits(draw, domain)
    return replace(case, top_k=(1,) * case.height)


@stratum("law.top_k")
def top_k_all(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """k = V."""
    case = logits(draw, domain)
    return replace(case, top_k=(case.width,) * case.height)


@stratum("law.top_p")
def top_p_cuts(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """The likeliest tokens that have a share of p."""
    R, W = draw(heights(domain)), draw(widths(domain))
    case = LawCase(rows=_positive(draw, R, W), masses=True)
    return replace(case, top_p=each(draw, case, SHARES))


def _positive(draw: st.DrawFn, R: int, W: int) -> Rows:
    """Rows of masses of which none is 0."""
    return tuple(tuple(max(1, x) for x in row) for row in masses(draw, R, W))


@stratum("law.top_p")
def top_p_ties(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """The token that reaches p has equals."""
    R, W = draw(heights(domain)), draw(widths(domain, 3))
    case = LawCase(rows=plateaus(draw, R, W))
    return replace(case, top_p=each(draw, case, SHARES))


@stratum("law.top_p")
def top_p_all(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """p = 1 keeps all."""
    case = logits(draw, domain)
    return replace(case, top_p=(1.0,) * case.height)


@stratum("law.top_p")
def top_p_tiny(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """p keeps the likeliest token alone."""
    case = logits(draw, domain)
    return replace(case, top_p=each(draw, case, st.sampled_from([1e-4, 1e-6, 1e-30])))


@stratum("law.top_p")
def exact_share(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """A run of equal tokens has a share of exactly p: the token after it goes."""
    W = draw(st.sampled_from([w for w in (2, 4, 8) if w <= domain.vocabulary]))
    R = draw(heights(domain))
    case = LawCase(rows=((draw(LEVELS),) * W,) * R)
    return replace(case, top_p=each(draw, case, st.integers(1, W - 1).map(lambda n: n / W)))


@stratum("law.min_p")
def min_p_cuts(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Tokens far below the likeliest go."""
    case = logits(draw, domain)
    return replace(case, min_p=each(draw, case, RATIOS))


@stratum("law.min_p")
def min_p_keeps(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Many tokens are nearly as likely as the likeliest: all stay, each with a small share."""
    R, W = draw(heights(domain)), draw(widths(domain, 4))
    rows = tuple(tuple(draw(st.permutations([0, 0, *[-1] * (W - 2)]))) for _ in range(R))
    return LawCase(rows=rows, step=0.25, min_p=(0.5,) * R)


@stratum("law.min_p")
def min_p_zero(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """A share of 0 keeps all."""
    case = logits(draw, domain)
    return replace(case, min_p=(0.0,) * case.height)


@stratum("law.min_p")
def min_p_one(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """A share of 1 keeps what is as likely as the likeliest."""
    R, W = draw(heights(domain)), draw(widths(domain, 3))
    return LawCase(rows=plateaus(draw, R, W), min_p=(1.0,) * R)


def order_of(a: str, b: str) -> Stratum:
    """Two maps of which another order than the declared one keeps other tokens."""

    def build(domain: LawDomain) -> Strategy | None:
        if not domain.has(f"law.{a}", f"law.{b}") or domain.vocabulary < 4:
            return None
        first, second = (a, b) if domain.first(a, b) else (b, a)
        return _order_of(domain, first, second)

    return build


@st.composite
def _order_of(draw: st.DrawFn, domain: LawDomain, a: str, b: str) -> LawCase:
    row = tuple(draw(st.permutations(APART))[: draw(st.integers(4, min(6, domain.vocabulary)))])
    if not telling(row, a, b, domain.maps):
        row = (3, 8, 2, 5)
    options = telling(row, a, b, domain.maps)
    x, y = draw(st.sampled_from(options))
    return replace(LawCase(rows=(row,), masses=True), **{a: (x,), b: (y,)})  # type: ignore[arg-type]


ORDERS = {f"order_{a}_{b}": order_of(a, b) for a, b in PAIRS}


@stratum("law.mask")
def any_mask(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Some tokens of a row are masked, with other maps or without."""
    return _masked_some(draw, domain)


def _masked_some(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """A mask that removes something."""
    case = logits(draw, domain)
    case = mapped(draw, domain, case) if draw(st.booleans()) else masked(draw, domain, case)
    return case if any(case.mask or ()) else replace(case, mask=_one_masked(case))


def _one_masked(case: LawCase) -> Rows:
    """The least likely column of the first row."""
    return ((case.left(0)[-1],), *[()] * (case.height - 1))


def masked_likeliest(domain: LawDomain) -> Strategy | None:
    """The likeliest token is masked, as it may be where the mask comes before all cuts."""
    return _masked_likeliest(domain) if domain.has("law.mask") and domain.mask_first else None


@st.composite
def _masked_likeliest(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    case = logits(draw, domain)
    if draw(st.booleans()):
        case = replace(mapped(draw, domain, case), mask=None)
    return replace(case, mask=tuple((case.left(r)[0],) for r in range(case.height)))


@stratum("law.mask")
def one_left(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """A mask leaves one token."""
    case = logits(draw, domain)
    mask = []
    for r in range(case.height):
        stays = case.left(r)[0]
        if domain.mask_first:
            stays = draw(st.integers(0, case.width - 1))
        mask.append(tuple(x for x in range(case.width) if x != stays))
    return replace(case, mask=tuple(mask))


@stratum("law.mask")
def hidden_garbage(draw: st.DrawFn, domain: LawDomain) -> LawCase:
    """Masked logits hold large numbers or, where that is declared to be harmless, NaN."""
    return replace(_masked_some(draw, domain), hidden=draw(st.sampled_from(domain.hidden)))
