"""Laws of conduct: memory, determinism, what must be refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendCall, Capabilities, Scoring, Unsupported
from kernelassay.properties import strata as s
from kernelassay.properties.answers import Attended
from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.failures import Accepted, InputMutated, NonDeterministic, Raised
from kernelassay.properties.judge import difference
from kernelassay.properties.laws.comparing import kept
from kernelassay.properties.memory import check_written, same_bits
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject

EQUAL_CALLS = 4  # threads that race often agree twice: an order of two parts, every other time


@law(
    "attention.memory",
    "Inputs are unchanged, nothing is written outside the outputs, every element is written.",
    strata={
        "partial_tile": s.partial_tile,
        "ragged": s.ragged,
        "masked_rows": s.masked_rows,
        "more_queries": s.more_queries,
        "no_keys": s.no_keys,
        "no_queries": s.no_queries,
        "value_size": s.value_size,
        "bias": s.bias,
        "sink_logits": s.sink_logits,
        "plain": s.plain,
        **s.views,
    },
)
def memory(subject: Subject, case: AttendCase) -> None:
    given = subject.prepare(case)
    answer = subject.attend(given)
    if changed := given.mutated():
        raise InputMutated(
            f"{', '.join(changed)} changed during the call; expected every input, and the guard "
            f"zones around it, to be left alone"
        )
    answer.check_guards()
    if answer.watched != "opaque":
        for name, x in named(answer):
            check_written(name, x)


def named(answer: Attended) -> list[tuple[str, Tensor]]:
    """What the kernel gave, with names: out and lse, or the u, m and l of a state."""
    return list(zip("uml" if answer.raw else ("out", "lse"), answer.state, strict=False))


def _declares(convention: str) -> Callable[[Capabilities], str | None]:
    def why(capabilities: Capabilities) -> str | None:
        if getattr(capabilities.conventions, convention):
            return None
        return f"rests on Conventions.{convention}, which is not declared"

    return why


@law(
    "attention.deterministic",
    "The same call gives the same bits.",
    rests_on=_declares("deterministic"),
    strata={"random_content": s.random_content, "decode": s.decode},
    weight=0.5,
)
def deterministic(subject: Subject, case: AttendCase) -> None:
    first = kept(subject.attend(case))
    for _ in range(EQUAL_CALLS - 1):
        again = subject.attend(case)
        for (name, a), (_, b) in zip(named(first), named(again), strict=True):
            if not same_bits(a, b):
                raise NonDeterministic(
                    f"{name} of two equal calls differs in {difference(a, b)}; the kernel "
                    f"declares Conventions.deterministic"
                )


@law(
    "attention.declines",
    "A call that needs a declined feature is refused with Unsupported, never answered.",
    rests_on=lambda c: (
        None if c.declines & set(s.NEEDING) else "declines nothing that a call could need"
    ),
    strata={"declined": s.declined},
)
def declines(subject: Subject, case: AttendCase) -> None:
    given = subject.prepare(case)
    try:
        subject.answer(given.call)
    except Unsupported:
        return
    domain = domain_of(subject)
    needed = ", ".join(f for f in lacking(case, domain) if f in domain.declines)
    raise Accepted(
        f"{subject.name} answered a call that needs {needed}, which it declines; "
        f"expected Unsupported. Refuse it, or declare it as supported"
    )


@law(
    "attention.validates",
    "Malformed calls raise.",
    rests_on=_declares("validates_calls"),
    strata={"malformed": s.malformed},
)
def validates(subject: Subject, case: AttendCase) -> None:
    given = subject.prepare(case).call
    assert isinstance(given, AttendCall), "the law is of attend"
    what, call = malformed_call(given, case.at, subject.capabilities.supports)
    try:
        subject.answer(call)
    except (Unsupported, Raised):
        return
    raise Accepted(
        f"{subject.name} answered a malformed call: {what}; expected an exception, since it "
        f"declares Conventions.validates_calls"
    )


def malformed_call(
    call: AttendCall, which: int, supports: frozenset[str] = frozenset()
) -> tuple[str, AttendCall]:
    """What is wrong with the call, and the call; one of those that *supports* allows to ask."""
    q, k, v = call.q, call.k, call.v
    other = torch.float64 if q.dtype != torch.float64 else torch.float32
    table: dict[str, dict[str, Any]] = {
        "q has three dimensions": {"q": q[0]},
        "k has one key less than v": {"k": k[:, :, :-1]},
        "q and k differ in head size": {"k": k[..., :-1]},
        "q and v differ in dtype": {"v": v.to(other)},
        "k has one request more than q": {"k": torch.cat([k, k[:1]])},
        "3 query heads over 2 KV heads": {
            "q": q[:, :1].expand(-1, 3, -1, -1),
            "k": k[:, :1].expand(-1, 2, -1, -1),
            "v": v[:, :1].expand(-1, 2, -1, -1),
        },
    }
    table |= {
        what: {"scoring": scoring}
        for feature, what, scoring in _malformed_scorings(call)
        if feature in supports
    }
    what = list(table)[which % len(table)]
    return what, replace(call, **table[what])


def _malformed_scorings(call: AttendCall) -> list[tuple[str, str, Scoring]]:
    """(the feature it is about, what is wrong with it, the scoring)."""
    Hq, Tq, Tk = call.q.shape[1], call.q.shape[2], call.k.shape[2]
    one_more = call.q.new_zeros(Hq + 1, dtype=torch.float32)
    bias = call.q.new_zeros(1, 1, Tq + 1, Tk)
    return [
        ("softcap", "the soft cap is 0", Scoring(softcap=0.0)),
        ("alibi", f"{Hq + 1} slopes for Hq={Hq}", Scoring(alibi=one_more)),
        ("bias", f"a bias of {Tq + 1} queries for Tq={Tq}", Scoring(bias=bias)),
        ("sink_logits", f"{Hq + 1} sinks for Hq={Hq}", Scoring(sink_logits=one_more)),
    ]
