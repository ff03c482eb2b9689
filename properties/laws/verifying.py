"""Exact laws of speculative verification: under given uniforms nothing is left to chance."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch

from kernelassay.impls.contract import Capabilities
from kernelassay.oracle.decisions import GRID, SLACK
from kernelassay.oracle.speculative import Law, Round, residual
from kernelassay.properties.failures import WrongDistribution, WrongToken
from kernelassay.properties.property import law
from kernelassay.properties.speculative import strata as s
from kernelassay.properties.speculative.answers import Verified, verify
from kernelassay.properties.speculative.batches import sampling_of
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.domain import CELLS
from kernelassay.properties.speculative.laws_of import draft_chain, target_chain
from kernelassay.properties.speculative.probes import Probe, probes, slack_for
from kernelassay.properties.speculative.requests import Request, batch_of
from kernelassay.properties.subject import Subject


def _token_by_token(c: Capabilities) -> str | None:
    """Decisions are prescribed for token-wise verification under noise that the suite places."""
    if c.sampling is None or c.sampling.lossy:
        return f"declared lossy: {c.sampling.lossy}" if c.sampling else "declares no sampling"
    if c.sampling.rounds != "token":
        return 'rests on Sampling.rounds="token", which is not declared'
    if c.sampling.noise not in ("injected", "captured"):
        return "rests on injected or captured noise, which is not declared"
    return None


def decisions(subject: Subject, case: VerifyCase) -> None:
    """Every probe's round is one of the right ones; captured weights are the right law."""
    sampling = sampling_of(subject.capabilities)
    for some in launches(subject, case, probes(case, sampling, subject.dtype)):
        answer = verify(subject, batch_of(case, some))
        for n, probe in enumerate(some):
            got = as_columns(case, answer.round(n))
            if got not in probe.right:
                raise wrong_round(subject, case, probe, got)
            if sampling.noise == "captured":
                check_weights(subject, case, probe, got, answer, n)


def launches(
    subject: Subject, case: VerifyCase, every: Sequence[Probe]
) -> Iterator[Sequence[Probe]]:
    """The probes in calls of the size that the kernel takes."""
    c = subject.capabilities
    each = CELLS[subject.device] // (case.vocabulary * (max(case.counts) + 1))
    size = max(1, min(each, c.max_requests if "requests" in c.supports else 1))
    for start in range(0, len(every), size):
        yield every[start : start + size]


def as_columns(case: VerifyCase, came: Round) -> Round:
    """The round with columns for tokens; a token that is no column's stays, as below -1."""
    at = {token: column for column, token in enumerate(case.columns)}
    return Round(came.accepted, tuple(at.get(x, -2 - x) for x in came.tokens))


def check_weights(
    subject: Subject, case: VerifyCase, probe: Probe, got: Round, answer: Verified, n: int
) -> None:
    """What the token after the drafts was drawn with is its law, within the kernel's rounding."""
    sampling = sampling_of(subject.capabilities)
    i, k = got.accepted, case.counts[probe.request]
    if answer.came.weights is None or len(got.tokens) == i:
        return
    run = probe.drafts[:i]
    p = target_chain(case, probe.request)(run)
    made = i < k and probe.drafts[i] >= 0
    q = draft_chain(case, probe.request, probe.drafts)(run) if made else None
    expected = p if q is None else residual(p, q) or p
    came = answer.came.weights[n].to("cpu", torch.float64)
    total = float(came.sum())
    for y, token in enumerate(case.columns):
        off = abs(float(came[token]) / total - float(expected[y]))
        allowed = float(slack_for(sampling, subject.dtype)(i, p, q)[1])
        subject.observe(off / allowed)
        if not off <= allowed or (p[y] == 0 and float(came[token]) != 0):
            raise WrongDistribution(
                f"after {i} accepted drafts token {token} is drawn with probability "
                f"{float(came[token]) / total:.9g}; expected {expected[y]} within {allowed:.2g}",
                lines=described(case, probe, i),
            )


def wrong_round(subject: Subject, case: VerifyCase, probe: Probe, got: Round) -> WrongToken:
    """The failure: what came beside what is right, and the decision looked at."""
    best = min(probe.right, key=lambda right: (right.accepted != got.accepted, right.tokens))
    also = f", or {len(probe.right) - 1} others" if len(probe.right) > 1 else ""
    return WrongToken(
        f"request {probe.request} emitted {said(case, got)}; expected {said(case, best)}{also}",
        lines=described(case, probe, min(got.accepted, best.accepted)),
    )


def said(case: VerifyCase, came: Round) -> str:
    """A round in words: the tokens, and how many of them are drafts."""
    tokens = [case.columns[x] if x >= 0 else -2 - x for x in came.tokens]
    return f"{tokens} ({came.accepted} of them drafts)"


def described(case: VerifyCase, probe: Request, i: int) -> list[str]:
    """The decision at place i: laws, draft, uniforms, each beside what it is compared with."""
    r, k = probe.request, case.counts[probe.request]
    run = tuple(max(x, 0) for x in probe.drafts[:i])
    p = target_chain(case, r)(run)
    lines = [f"Decision at place {i} of request {r}, which has {k} drafts"]
    tokens = [case.columns[x] if x >= 0 else x for x in probe.drafts]
    lines.append(f"  drafts {tokens}" + ("   greedy" if r in case.greedy else ""))
    lines.append(f"  p = {shown(p)}")
    if i < k and probe.drafts[i] >= 0:
        q = draft_chain(case, r, probe.drafts)(run)
        x = probe.drafts[i]
        lines.append(f"  q = {shown(q)}")
        t = min(Fraction(1), p[x] / q[x]) if q[x] else Fraction(0)
        lines.append(
            f"  draft {case.columns[x]}: accepted below min(1, p/q) = {t}; its uniform "
            f"{near(probe.accept[i], t)}"
        )
        if (rest := residual(p, q)) is not None:
            lines.append(f"  else drawn from [p - q]+ / Z = {shown(rest)}")
    lines.append(f"  uniform of the draw {float(probe.draw[i]):.9g}")
    if case.stop is not None and case.stop[r]:
        lines.append(f"  stop tokens {[case.columns[x] for x in case.stop[r]]}")
    if case.budget is not None:
        lines.append(f"  budget {case.budget[r]}")
    return lines


def shown(law: Law) -> str:
    """A law as fractions, eight of them at most."""
    text = " ".join(str(w) for w in law[:8])
    return text + (" ..." if len(law) > 8 else "")


def near(u: Fraction, edge: Fraction) -> str:
    """A uniform, as what it is: beside the breakpoint, at an end, or a number."""
    if u == 0:
        return "0"
    if u == 1 - GRID:
        return "1 - 2^-24, the largest float32 below 1"
    if 0 < abs(u - edge) < 2 * SLACK:
        return (
            f"{float(u):.9g}, {'above' if u > edge else 'below'} it by {abs(float(u - edge)):.2g}"
        )
    return f"{float(u):.9g}"


_LAWS: dict[str, tuple[str, dict[str, s.Stratum]]] = {
    "decisions": (
        "Draft x is accepted below min(1, p(x)/q(x)); after a rejection the token is drawn from "
        "[p - q]+ / Z, after all drafts from the bonus row.",
        s.EXACT,
    ),
    "certain": (
        "A certain draft x is accepted below p(x), else the token is drawn from p without x.",
        {"certain_drafts": s.certain_drafts},
    ),
    "skipped": (
        "A draft of -1 is not accepted, nor anything after it; the token is drawn from p.",
        {"skipped_drafts": s.skipped_drafts},
    ),
    "stop": (
        "Nothing follows a stop token, accepted or drawn.",
        {"stop_tokens": s.stop_tokens},
    ),
    "budget": (
        "No request emits more than its budget.",
        {"budget_cuts": s.budget_cuts, "no_budget_left": s.no_budget_left},
    ),
    "greedy": (
        "A greedy request emits what the target alone would: its likeliest tokens.",
        {
            "all_greedy": s.all_greedy,
            "greedy_and_sampled": s.greedy_and_sampled,
            "greedy_ties": s.greedy_ties,
        },
    ),
}
for _name, (_sentence, _strata) in _LAWS.items():
    law(
        f"speculative.{_name}",
        _sentence,
        operation="verify",
        rests_on=_token_by_token,
        strata=_strata,
    )(decisions)
