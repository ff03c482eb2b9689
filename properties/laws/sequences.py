"""The law of calls in a row: a kernel remembers nothing of the calls before."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.failures import NonDeterministic
from kernelassay.properties.judge import difference, judge
from kernelassay.properties.laws.comparing import kept
from kernelassay.properties.memory import same_bits
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


@law(
    "attention.second_call",
    "A call does not depend on the calls before it: of other lengths, masks, strides, shapes or "
    "dtype, on another stream.",
    strata={
        "random_content": s.any_corner,
        "ragged": s.ragged,
        "boolean_mask": s.full_mask,
        "alibi": s.sloped_heads,
        "scoring": s.scored_heads,
    },
    weight=0.25,
)
def second_call(subject: Subject, case: AttendCase) -> None:
    first = kept(subject.attend(case))
    judge(subject, case, first)
    for other, given in calls_between(subject, case):
        before = other.launches
        with elsewhere(subject):
            answer = kept(other.attend(given))
        judge(other, given, answer)
        subject.launches += other.launches - before if other is not subject else 0
    again = subject.attend(case)
    if not subject.conventions.deterministic:
        judge(subject, case, again)
        return
    for name, a, b in (("out", first.out, again.out), ("lse", first.lse, again.lse)):
        if a is not None and b is not None and not same_bits(a, b):
            raise NonDeterministic(
                f"{name} of a call changed after calls of another kind: {difference(a, b)}. Look "
                f"for what the kernel keeps from call to call"
            )


@contextmanager
def elsewhere(subject: Subject) -> Iterator[None]:
    """On a GPU another stream, after all that was begun; what follows waits for it."""
    if subject.home != "cuda":
        yield
        return
    here = torch.cuda.current_stream()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's is untyped
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        yield
    here.wait_stream(stream)


def calls_between(subject: Subject, case: AttendCase) -> Iterator[tuple[Subject, AttendCase]]:
    """The same shape with all else changed, another shape, the same call in another dtype."""
    twin = other_content(case)
    if subject.has("strides"):
        twin = replace(twin, view="padded" if case.view == "contiguous" else "contiguous")
    yield subject, twin
    yield subject, other_shape(subject, twin)
    dtypes = subject.capabilities.dtypes
    other = dtypes[(dtypes.index(subject.dtype) + 1) % len(dtypes)]
    if other != subject.dtype:
        yield replace(subject, dtype=other), case


def other_content(case: AttendCase) -> AttendCase:
    """The same shapes and features; every recipe has another seed, every length is another."""
    recipes = ("q", "k", "v", "mask", "alibi", "bias", "sink_logits", "positions")
    changes: dict[str, object] = {
        name: reseeded(recipe) for name in recipes if (recipe := getattr(case, name)) is not None
    }
    if case.lengths is not None:
        changes["lengths"] = tuple((n + 1) % (case.Tk + 1) for n in case.lengths)
    return replace(case, **changes)  # type: ignore[arg-type]


def reseeded(recipe: str) -> str:
    """A recipe whose seed, the first number in it, is another one."""
    if recipe == "standard":
        return "hashed:1"
    return re.sub(r"\d+", lambda seed: str(int(seed.group()) + 1000), recipe, count=1)


def other_shape(subject: Subject, case: AttendCase) -> AttendCase:
    """About half the keys; no more queries than keys."""
    Tk = max(subject.capabilities.min_keys, case.Tk // 2)
    Tq = Tk if case.Tq == case.Tk else min(case.Tq, Tk)
    lengths = None if case.lengths is None else tuple(min(n, Tk) for n in case.lengths)
    return replace(case, Tq=Tq, Tk=Tk, lengths=lengths)
