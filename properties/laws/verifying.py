"""Exact laws of speculative verification: under given uniforms nothing is left to chance."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import torch

from kernelassay.impls.contract import Capabilities, Sampling
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
from kernelassay.properties.speculative.probes import (
    Probe,
    drawn_from,
    probes,
    slack_for,
    subtracted,
)
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


Asked = Callable[[VerifyCase, Probe], bool]
"""Which probes a law asks of a case."""


def everything(case: VerifyCase, probe: Probe) -> bool:
    """Every decision."""
    return True


def decisions(subject: Subject, case: VerifyCase, asked: Asked = everything) -> None:
    """Every probe's round is one of the right ones; captured weights are the right law."""
    sampling = sampling_of(subject.capabilities)
    every = [probe for probe in probes(case, sampling, subject.dtype) if asked(case, probe)]
    for some in launches(subject, case, every):
        answer = verify(subject, batch_of(case, some))
        for n, probe in enumerate(some):
            got = as_columns(case, answer.round(n))
            if got not in probe.right:
                raise wrong_round(subject, case, probe, got)
            if sampling.noise == "captured":
                check_weights(subject, case, probe, got, answer, n)


def judging(asked: Asked) -> Callable[[Subject, VerifyCase], None]:
    """The body of a law of those decisions that are *asked*."""
    return lambda subject, case: decisions(subject, case, asked)


def at_skipped(case: VerifyCase, probe: Probe) -> bool:
    """The decision at a draft of -1."""
    return probe.drafts[probe.at : probe.at + 1] == (-1,)


def greedy_or_beside(case: VerifyCase, probe: Probe) -> bool:
    """Those of greedy requests, and of those beside them what no end of [0, 1) decides.

    A sampled request must not be taken for a greedy one; what 0 means to it is the matter of
    speculative.decisions.
    """
    i, ends = probe.at, (0, 1 - GRID)
    plain = not any(u in ends for u in (*probe.accept[i : i + 1], probe.draw[i]))
    return plain or probe.request in case.greedy


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
    found = (at.get(x - x % case.spread, -2 - x) for x in came.tokens)
    return Round(came.accepted, tuple(found))


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
    q = subtracted(case, probe.request, sampling, run, probe.drafts[i] if i < k else None)
    expected = drawn_from(p, q)
    came = answer.came.weights[n].to("cpu", torch.float64)
    total = float(came.sum())
    near = slack_for(sampling, subject.dtype, spread=case.spread, q_above=case.q_above)
    allowed = float(near(i, p, q)[1])
    for y in range(case.width):
        weights = came[list(case.tokens_of(y))]
        share = float(weights.sum()) / total
        off = abs(share - float(expected[y]))
        subject.observe(off / allowed)
        if not off <= allowed or (p[y] == 0 and bool(weights.any())):
            raise WrongDistribution(
                f"after {i} accepted drafts token {named(case, y)} is drawn with probability "
                f"{share:.9g}; expected {expected[y]} within {allowed:.2g}",
                lines=described(case, probe, i, sampling),
            )


def wrong_round(subject: Subject, case: VerifyCase, probe: Probe, got: Round) -> WrongToken:
    """The failure: what came beside what is right, and the decision looked at."""
    best = min(probe.right, key=lambda right: (right.accepted != got.accepted, right.tokens))
    others = len(probe.right) - 1
    also = f", or {'another' if others == 1 else f'{others} others'}" if others else ""
    return WrongToken(
        f"request {probe.request} emitted {said(case, got)}; expected {said(case, best)}{also}",
        lines=described(
            case, probe, min(got.accepted, best.accepted), sampling_of(subject.capabilities)
        ),
    )


def said(case: VerifyCase, came: Round) -> str:
    """A round in words: the tokens, and how many of them are drafts."""
    tokens = ", ".join(named(case, x) if x >= 0 else str(-2 - x) for x in came.tokens)
    return f"[{tokens}] ({came.accepted} of them drafts)"


def named(case: VerifyCase, y: int) -> str:
    """The token of column y; of several the first and the last."""
    tokens = case.tokens_of(y)
    return str(tokens[0]) if len(tokens) == 1 else f"{tokens[0]}-{tokens[-1]}"


def described(case: VerifyCase, probe: Request, i: int, sampling: Sampling) -> list[str]:
    """The decision at place i: laws, draft, uniforms, each beside what it is compared with."""
    r, k = probe.request, case.counts[probe.request]
    run = tuple(max(x, 0) for x in probe.drafts[:i])
    p = target_chain(case, r)(run)
    lines = [f"Decision at place {i} of request {r}, which has {k} drafts"]
    tokens = [case.columns[x] if x >= 0 else x for x in probe.drafts]
    lines.append(f"  drafts {tokens}" + ("   greedy" if r in case.greedy else ""))
    if case.spread > 1:
        lines.append(f"  laws are of {case.width} times {case.spread} tokens, which share a mass")
    lines.append(f"  p = {shown(p)}")
    if i < k and probe.drafts[i] >= 0:
        q = draft_chain(case, r, probe.drafts)(run)
        x = probe.drafts[i]
        lines.append(f"  q = {shown(q)}")
        if case.q_above:
            lines.append(f"  as given, larger by {case.q_above} in the last place")
        t = min(Fraction(1), p[x] / q[x]) if q[x] else Fraction(0)
        lines.append(
            f"  draft {case.columns[x]}: accepted below min(1, p/q) = {t}; its uniform "
            f"{near(probe.accept[i], t)}"
        )
        if (rest := residual(p, q)) is not None:
            lines.append(f"  else drawn from [p - q]+ / Z = {shown(rest)}")
    elif i < k and r not in case.greedy:
        lines += skipped_draft(sampling, p, subtracted(case, r, sampling, run, -1))
    lines.append(f"  uniform of the draw {float(probe.draw[i]):.9g}")
    if case.stop is not None and case.stop[r]:
        lines.append(f"  stop tokens {[case.columns[x] for x in case.stop[r]]}")
    if case.budget is not None:
        lines.append(f"  budget {case.budget[r]}")
    return lines


def skipped_draft(sampling: Sampling, p: Law, q: Law | None) -> list[str]:
    """What a draft of -1 means, and the law of the token that comes in its place."""
    means = f'  draft -1: Sampling.skipped="{sampling.skipped}"'
    if q is None:
        return [f"{means}: the token is drawn from p"]
    rest = residual(p, q)
    law = "p, as [p - q]+ is 0" if rest is None else f"[p - q]+ / Z = {shown(rest)}"
    return [f"{means}: the token is drawn from {law}", f"  q = {shown(q)}"]


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


_LAWS: dict[str, tuple[str, dict[str, s.Stratum], Asked]] = {
    "decisions": (
        "Draft x is accepted below min(1, p(x)/q(x)); after a rejection the token is drawn from "
        "[p - q]+ / Z, after all drafts from the bonus row.",
        s.EXACT,
        everything,
    ),
    "certain": (
        "A certain draft x is accepted below p(x), else the token is drawn from p without x.",
        {"certain_drafts": s.certain_drafts},
        everything,
    ),
    "skipped": (
        "A draft of -1 is not accepted, nor anything after it; the token is drawn from p, or from "
        '[p - q]+ / Z where Sampling.skipped="rejected" is declared.',
        {"skipped_drafts": s.skipped_drafts},
        at_skipped,
    ),
    "stop": (
        "Nothing follows a stop token, accepted or drawn.",
        {"stop_tokens": s.stop_tokens},
        everything,
    ),
    "budget": (
        "No request emits more than its budget.",
        {"budget_cuts": s.budget_cuts, "no_budget_left": s.no_budget_left},
        everything,
    ),
    "greedy": (
        "A greedy request emits what the target alone would: its likeliest tokens.",
        {
            "all_greedy": s.all_greedy,
            "greedy_and_sampled": s.greedy_and_sampled,
            "greedy_ties": s.greedy_ties,
        },
        greedy_or_beside,
    ),
}
for _name, (_sentence, _strata, _asked) in _LAWS.items():
    law(
        f"speculative.{_name}",
        _sentence,
        operation="verify",
        rests_on=_token_by_token,
        strata=_strata,
    )(judging(_asked))
