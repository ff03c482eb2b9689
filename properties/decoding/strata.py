"""Strata of decode loops: small models, texts and limits; events are searched for.

Whether a draft is rejected or a stop token drawn depends on the models. A stratum of an event
draws a call of which it can be expected, and then takes the first of the variants (another model,
another noise) in which it happens by the oracle's account.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.decoding.domain import DecodeDomain
from kernelassay.properties.decoding.labels import happenings, models_in
from kernelassay.properties.domain import lacking

Strategy = st.SearchStrategy[DecodeCase]
Stratum = Callable[[DecodeDomain], Strategy | None]
Build = Callable[..., DecodeCase]

MOST_VARIANTS = 120
NOISES = 4
"""Variants of one model: its laws are known by then, another noise costs little."""
MANY = ("rejected_later", "draft_rolled_back", "stop_before_drafts_end", "minimum_in_round")
"""Events of rounds of two drafts or more."""
SEEDS = st.integers(0, 999)
MOST_DRAFTS = 3


def stratum(*features: str, event: str = "") -> Callable[[Build], Stratum]:
    """A stratum from a function (draw, domain) -> case, where all *features* are supported; of its
    variants the first in which the *event* happens."""

    def decorate(build: Build) -> Stratum:
        def built(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
            case = build(draw, domain)
            return searched(case, domain, event) if event else case

        made: Any = st.composite(built)

        def guarded(domain: DecodeDomain) -> Strategy | None:
            possible = domain.has(*features) and domain.drafts and can_happen(event, domain)
            return made(domain) if possible else None

        return guarded

    return decorate


def can_happen(event: str, domain: DecodeDomain) -> bool:
    """Whether the kernel's rounds can have the event."""
    if event in MANY and domain.most_drafts < 2:
        return False
    # Drafts that the budget has no room for are not made: it cuts no run.
    return not (event == "budget_inside" and domain.decoding.trimmed)


def searched(case: DecodeCase, domain: DecodeDomain, event: str) -> DecodeCase:
    """The first variant of the case in which the event happens."""
    for i in range(MOST_VARIANTS):
        near = replace(case, model=case.model + i // NOISES, noise=case.noise + i)
        if event in happenings(models_in(domain, near)):
            return near
    return case


def plain(
    draw: st.DrawFn,
    domain: DecodeDomain,
    *,
    least: int = 1,
    most: int = 3,
    drafts: str | None = None,
    longest: int = 4,
    budget: tuple[int, int] = (2, 6),
) -> DecodeCase:
    """*least* to *most* requests, sampled where the kernel can, with one budget and schedule."""
    V = draw(st.sampled_from([v for v in (3, 4, 6) if v <= domain.vocabulary]))
    R = draw(st.integers(min(least, domain.most_requests), min(most, domain.most_requests)))
    sizes = [draw(st.integers(1, longest))] * R
    if domain.has("decode.ragged"):
        sizes = [draw(st.integers(1, longest)) for _ in range(R)]
    prompts = tuple(tuple(draw(st.integers(0, V - 1)) for _ in range(n)) for n in sizes)
    made = DecodeCase(
        model=draw(SEEDS),
        V=V,
        prompts=prompts,
        drafts=drafts or draw(st.sampled_from(domain.drafts)),
        schedule=(draw(st.integers(1, min(MOST_DRAFTS, domain.most_drafts))),),
        budget=(draw(st.integers(*budget)),) * R,
        noise=draw(SEEDS),
    )
    return made if domain.has("decode.sampled") else greedy_of(made)


def greedy_of(case: DecodeCase) -> DecodeCase:
    """The case with all requests greedy."""
    return replace(case, greedy=tuple(range(case.requests)))


def of_kind(drafts: str, *features: str, event: str = "", **options: Any) -> Stratum:
    """Runs with drafts of this kind, in which the event happens."""
    kind = "decode.lookup" if drafts == "lookup" else "decode.model"

    def build(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
        return plain(draw, domain, drafts=drafts, **options)

    return stratum(kind, *features, event=event)(build)


def _modelled(domain: DecodeDomain) -> str:
    return "near" if domain.has("decode.model") else "lookup"


def few_stops(draw: st.DrawFn, case: DecodeCase) -> tuple[tuple[int, ...], ...]:
    """One stop token of each request or two, of which a minimum must hold back both."""
    most = min(2, case.V - 1)  # some token has to be left
    some = st.lists(st.integers(0, case.V - 1), min_size=1, max_size=most, unique=True)
    return tuple(tuple(draw(some)) for _ in case.prompts)


def stopping(draw: st.DrawFn, case: DecodeCase, event: str) -> DecodeCase:
    """The case with a stop token or two of each request, or of some.

    Drafts are looked up where the prompt has them: x, y, x at the end of the last prompt, y a stop
    token if one is to be accepted.
    """
    tokens = st.lists(st.integers(0, case.V - 1), min_size=0, max_size=2, unique=True)
    rows = [tuple(draw(tokens)) for _ in range(case.requests)]
    stop = draw(st.integers(0, case.V - 1))
    x, other = ((stop + n) % case.V for n in (1, 2))
    first = [n for n in range(case.V) if n not in (stop, x, other)]
    ends: list[tuple[int, ...]] = [(stop,), *((n, stop) for n in first)]
    rows[-1] = draw(st.sampled_from(ends))
    case = replace(case, stop=tuple(rows))
    if case.drafts != "lookup":
        return case
    y = stop if event in ("stop_accepted", "stop_before_drafts_end") else other
    one_size = len({*map(len, case.prompts)}) == 1
    prompts = [(*p[:-1], x, y, x) if one_size else p for p in case.prompts[:-1]]
    return replace(case, prompts=(*prompts, (*case.prompts[-1][:-1], x, y, x)))


def with_stop(event: str, **options: Any) -> Stratum:
    """A stop token comes, as the event says."""

    def build(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
        case = plain(draw, domain, budget=(3, 6), **options)
        return stopping(draw, replace(case, schedule=(min(2, domain.most_drafts),)), event)

    return stratum("decode.stop", event=event)(build)


def with_budget(low: int, high: int, *features: str, event: str = "") -> Stratum:
    """Budgets of low to high tokens, 0 among them where that is the label."""

    def build(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
        case = plain(draw, domain, budget=(low, high))
        if high == 0 and case.requests > 1:  # another request goes on
            case = replace(case, budget=(*case.budget[:-1], 3))
        return case

    return stratum(*features, event=event)(build)


@stratum("decode.budget", "decode.requests")
def budgets_differ(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """Requests end one after the other: the first, then the last, then one between."""
    case = plain(draw, domain, least=3, budget=(6, 8))
    last = draw(st.integers(2, 3))
    return replace(case, budget=(1, *case.budget[1:-1], last)[-case.requests :])


@stratum("decode.budget", "decode.requests", event="ends_apart")
def ends_apart(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """The first request ends before the last one; both have limits of their own."""
    case = plain(draw, domain, least=2, budget=(5, 6))
    case = replace(case, budget=(draw(st.integers(1, 2)), *case.budget[1:]))
    if domain.has("decode.stop", "decode.minimum"):
        stop = few_stops(draw, case)
        minimum = (0, *[draw(st.integers(1, 4)) for _ in case.prompts[1:]])
        case = replace(case, stop=stop, minimum=minimum)
    return case


@stratum("decode.schedule")
def rounds_without_drafts(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """Rounds without drafts lie between rounds with some."""
    case = plain(draw, domain, budget=(5, 8))
    k = case.schedule[0]
    made = draw(st.sampled_from([(k, 0), (k, 0, k), (0, k), (k, 0, 0)]))
    return replace(case, schedule=made)


@stratum("decode.schedule", event="no_drafts_after_hole")
def no_drafts_after_hole(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """A round without drafts follows one that accepted all."""
    case = plain(draw, domain, drafts=_modelled(domain), budget=(5, 8))
    return replace(case, schedule=draw(st.sampled_from([(1, 0), (2, 0, 2)])))


@stratum("decode.stop", "decode.minimum")
def minimum(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """A likely stop token may not come for some tokens."""
    case = plain(draw, domain, budget=(3, 6))
    stop = few_stops(draw, case)
    least = tuple(draw(st.integers(1, min(4, n))) for n in case.budget)
    return replace(case, stop=stop, minimum=least)


@stratum("decode.stop", "decode.minimum", event="minimum_in_round")
def minimum_in_round(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """A round begins before the minimum and ends with a stop token after it."""
    case = plain(draw, domain, budget=(4, 6), drafts=_modelled(domain))
    stop = few_stops(draw, case)
    schedule = (min(MOST_DRAFTS, domain.most_drafts),)
    least = tuple(draw(st.integers(1, 2)) for _ in case.prompts)
    return replace(case, stop=stop, minimum=least, schedule=schedule)


@stratum("decode.ragged", "decode.requests")
def ragged_prompts(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """Prompts of different lengths, one token among them."""
    case = plain(draw, domain, least=2)
    long = (*case.prompts[0], *case.prompts[-1], 0)
    return replace(case, prompts=(long, *case.prompts[1:-1], case.prompts[-1][:1]))


@stratum()
def one_prompt_token(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """There is nothing to prefill."""
    return plain(draw, domain, longest=1)


@stratum("decode.greedy", "decode.sampled", "decode.requests")
def greedy_and_sampled(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """Greedy requests beside sampled ones."""
    case = plain(draw, domain, least=2, budget=(4, 6))
    if domain.has("decode.budget"):  # one goes on when the other has ended
        case = replace(case, budget=(draw(st.integers(1, 2)), *case.budget[1:]))
    return replace(case, greedy=(draw(st.integers(0, case.requests - 1)),))


@stratum("decode.requests")
def several_requests(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """Two requests or three."""
    return plain(draw, domain, least=2)


def clear(inner: Stratum) -> Stratum:
    """The same, all greedy, in a variant whose likeliest tokens lead clearly."""

    def guarded(domain: DecodeDomain) -> Strategy | None:
        found = inner(domain) if domain.has("decode.greedy") else None
        if found is None:
            return None
        return found.map(lambda case: searched(greedy_of(case), domain, "clear_greedy"))

    return guarded


def clear_event(event: str, build: Build, *features: str) -> Stratum:
    """Greedy requests in a variant in which the event happens; likeliest tokens mostly lead."""

    def greedy(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
        return greedy_of(build(draw, domain))

    return stratum("decode.greedy", *features, event=event)(greedy)


def _any(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    return plain(draw, domain, budget=(4, 8), drafts=_modelled(domain))


def _several(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """Rounds of two drafts or three, and many of them."""
    case = plain(draw, domain, budget=(6, 10), drafts=_modelled(domain))
    return replace(case, schedule=(draw(st.integers(2, min(MOST_DRAFTS, domain.most_drafts))),))


def _with_stop(event: str) -> Build:
    def build(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
        case = plain(draw, domain, budget=(3, 6), drafts=_modelled(domain))
        return stopping(draw, case, event)

    return build


def _some(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    return plain(draw, domain)


RUNS: dict[str, Stratum] = {
    "near_drafts": of_kind("near"),
    "rolled_back": stratum("decode.model", event="rolled_back")(_any),
    "draft_rolled_back": stratum("decode.model", event="draft_rolled_back")(_several),
    "hole": stratum("decode.model", event="hole")(_any),
    "rejected_later": stratum("decode.model", event="rejected_later")(_several),
    "same_drafts": of_kind("same"),
    "far_drafts": of_kind("far"),
    "lookup_match": of_kind("lookup", event="lookup_match", budget=(4, 8)),
    "lookup_no_match": of_kind("lookup", event="lookup_no_match"),
    "rounds_without_drafts": rounds_without_drafts,
    "no_drafts_after_hole": no_drafts_after_hole,
    "ragged_prompts": ragged_prompts,
    "one_prompt_token": one_prompt_token,
}
"""What any law of whole runs must see."""

LIMITED: dict[str, Stratum] = {
    "stop_accepted": with_stop("stop_accepted"),
    "stop_before_drafts_end": with_stop("stop_before_drafts_end"),
    "stop_corrected": with_stop("stop_corrected"),
    "stop_bonus": with_stop("stop_bonus"),
    "budget_inside": with_budget(2, 5, event="budget_inside"),
    "budget_at_end": with_budget(2, 5, event="budget_at_end"),
    "budget_of_one": with_budget(1, 1),
    "minimum": minimum,
    "minimum_in_round": minimum_in_round,
    "ends_apart": ends_apart,
    "no_budget": with_budget(0, 0, "decode.budget"),
}
"""The same under limits."""

GREEDY: dict[str, Stratum] = {
    "clear_greedy": clear(stratum()(_some)),
    "rolled_back": clear_event("rolled_back", _any, "decode.model"),
    "hole": clear_event("hole", _any, "decode.model"),
    "rounds_without_drafts": clear(rounds_without_drafts),
    "lookups": clear(of_kind("lookup")),
    "ragged_prompts": clear(ragged_prompts),
    "stop_accepted": clear_event("stop_accepted", _with_stop("stop_accepted"), "decode.stop"),
    "stop_corrected": clear_event("stop_corrected", _with_stop("stop_corrected"), "decode.stop"),
    "minimum": clear(minimum),
    "budgets_differ": clear(budgets_differ),
}


def one(event: str, *features: str, **fields: Any) -> Stratum:
    """One sampled request over few tokens, of which samples are taken."""

    def build(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
        V = 3 if domain.vocabulary < 4 or draw(st.booleans()) else 4
        case = DecodeCase(
            model=draw(SEEDS),
            V=V,
            prompts=(tuple(draw(st.integers(0, V - 1)) for _ in range(draw(st.integers(1, 3)))),),
            drafts=draw(st.sampled_from(domain.drafts)),
            schedule=(draw(st.integers(1, min(2, domain.most_drafts))),),
            budget=(draw(st.integers(3, 4)),),
            noise=draw(SEEDS),
        )
        made = {name: value(case) for name, value in fields.items()}
        return replace(case, **made)

    return stratum("decode.sampled", *features, event=event)(build)


SAMPLED: dict[str, Stratum] = {
    "run": one(""),
    "rolled_back": one("rolled_back", "decode.model", drafts=lambda c: "near"),
    "hole": one(
        "hole",
        "decode.model",
        drafts=lambda c: "near",
        schedule=lambda c: (1,),
        budget=lambda c: (4,),
    ),
    "lookup_match": one("lookup_match", "decode.lookup", drafts=lambda c: "lookup"),
    "minimum": one(
        "",
        "decode.stop",
        "decode.minimum",
        stop=lambda c: ((c.model % c.V,),),
        minimum=lambda c: (2,),
    ),
    "stop_tokens": one("", "decode.stop", stop=lambda c: ((c.model % c.V,),)),
}
"""Calls whose joint law is sampled."""

NEEDING = {
    "decode.requests": DecodeCase(prompts=((0,), (0,)), budget=(3, 3)),
    "decode.ragged": DecodeCase(prompts=((0,), (0, 1)), budget=(3, 3)),
    "decode.model": DecodeCase(),
    "decode.lookup": DecodeCase(drafts="lookup"),
    "decode.schedule": DecodeCase(schedule=(2, 0)),
    "decode.sampled": DecodeCase(),
    "decode.greedy": DecodeCase(greedy=(0,)),
    "decode.stop": DecodeCase(stop=((1,),)),
    "decode.budget": DecodeCase(budget=(0,)),
    "decode.minimum": DecodeCase(stop=((1,),), minimum=(2,)),
}
"""A case that needs the feature."""


def declined(domain: DecodeDomain) -> Strategy | None:
    """Cases that need a declined feature, and as few others that are not supported as can be."""
    found = [case for feature, case in NEEDING.items() if feature in domain.declines]
    # Where something plain is declined, other plain things are taken instead.
    swaps: list[dict[str, Any]] = [{}, {"drafts": "lookup"}, {"greedy": (0,)}]
    swaps.append({"drafts": "lookup", "greedy": (0,)})
    near = [replace(case, **swap) for case in found for swap in swaps]
    known = domain.supports | domain.declines

    def alone(case: DecodeCase) -> bool:
        missing = {*lacking(case, domain)}
        return bool(missing & domain.declines) and missing <= known

    return st.sampled_from([c for c in near if alone(c)] or found) if found else None


@stratum()
def malformed(draw: st.DrawFn, domain: DecodeDomain) -> DecodeCase:
    """A plain case, of which the law makes malformed calls."""
    return plain(draw, domain, most=2)
