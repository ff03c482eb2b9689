"""Laws of causal alignment: which keys a query sees, read off exactly and by pairs of calls."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from kernelassay.properties import strata as s
from kernelassay.properties.answers import Attended
from kernelassay.properties.case import AttendCase
from kernelassay.properties.content import bits_per_column
from kernelassay.properties.failures import NonFinite, WrongValue
from kernelassay.properties.inputs import logical
from kernelassay.properties.judge import budget_for, budget_of, judge, seen_by
from kernelassay.properties.laws.equality import agree, chunk_of, of_row, rows_of
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


@law(
    "alignment.visible_set",
    "Query i sees exactly the keys that lengths, causal corner, window, sinks and mask say: read "
    "off bit by bit with equal weights.",
    strata={
        "bottom_right": s.reading(s.corner("bottom_right")),
        "partial_tile": s.reading(s.partial_tile),
        "full_mask": s.reading(s.full_mask),
        "ragged_corner": s.reading(s.ragged_corner),
        "causal_windows": s.reading(s.causal_windows),
        "positions": s.reading(s.positions),
        "ragged": s.reading(s.ragged),
        "boolean_mask": s.reading(s.boolean_mask),
        "sink_tokens": s.reading(s.sink_tokens),
        "wide_windows": s.reading(s.wide_windows),
        "long_context": s.reading(s.long_context),
        "top_left": s.reading(s.corner("top_left")),
        "windows": s.reading(s.windows),
        "more_queries": s.reading(s.more_queries),
        "masked_rows": s.reading(s.masked_rows),
        "softcap_and_mask": s.reading(s.softcap_and_mask),
        "bias_minus_infinity": s.reading(s.bias_minus_infinity),
        "ring": s.reading(s.ring),
        "ring_windows": s.reading(s.ring_windows),
    },
    weight=1.25,  # so many strata
)
def visible_set(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    seen = seen_by(tensors).expand(case.shape)
    width = bits_per_column(subject.numerics.out)
    for origin in range(0, case.Tk, width * case.D):
        part = replace(case, v=f"bits:{origin}:{width}")
        answer = subject.attend(part)
        read_off(subject, answer, seen, origin, width)
        judge(subject, part, answer)


def read_off(subject: Subject, answer: Attended, seen: Tensor, origin: int, width: int) -> None:
    """Compare the keys that an answer to a `bits` call shows with those that must be seen."""
    count = seen.sum(-1)
    if bool((~answer.out.isfinite() & (count > 0)[..., None]).any()):
        raise NonFinite("out is not finite though every visible value is", ratio=math.inf)
    keys = torch.arange(origin, min(seen.shape[-1], origin + width * answer.out.shape[-1]))
    expected = seen[..., keys.to(seen.device)]
    out = torch.where((count > 0)[..., None], answer.out.double(), 0.0)
    wrong = ((_spelt(out, count, len(keys), width) != expected) & (count > 0)[..., None]).any(-1)
    if bool(wrong.any()):
        b, h, i = (int(x) for x in wrong.nonzero()[0])
        lse = None if answer.lse is None else answer.lse[b, h, i]
        got = _row_read(subject, out[b, h, i], lse, int(count[b, h, i]), len(keys), width)
        must = expected[b, h, i]
        extra, lost = (keys[x.cpu()].tolist() for x in (got & ~must, must & ~got))
        raise WrongValue(
            f"request {b}, head {h}, query {i} must see {int(count[b, h, i])} of "
            f"{seen.shape[-1]} keys; {_told(extra, lost, int(count[b, h, i]))}",
            ratio=None,
            row=(b, h, i),
        )


def _spelt(out: Tensor, count: Tensor | int, keys: int, width: int) -> Tensor:
    """Which keys the numbers count * out [..., D] spell, [..., keys]."""
    numbers = (out * (count[..., None] if isinstance(count, Tensor) else count)).round().long()
    place = torch.arange(keys, device=out.device)
    return ((numbers[..., place // width] >> (place % width)) & 1).bool()


def _row_read(
    subject: Subject, out: Tensor, lse: Tensor | None, count: int, keys: int, width: int
) -> Tensor:
    """The keys that a wrong row saw. How many there were is in its LSE: log n for equal scores.

    Without one, n is the number nearest to the right one that spells n keys.
    """
    if lse is not None and 0 <= float(lse) < 20:
        base = 1.0 if subject.conventions.lse_base == "e" else math.log(2)
        return _spelt(out, round(math.exp(float(lse) * base)), keys, width)
    for n in sorted(range(1, 2 * keys), key=lambda n: abs(n - count)):
        shown = _spelt(out, n, keys, width)
        if int(shown.sum()) == n:
            return shown
    return _spelt(out, count, keys, width)


def _told(extra: list[int], lost: list[int], count: int) -> str:
    parts = [f"it also sees {spans(extra)}"] * bool(extra)
    parts += [f"it does not see {spans(lost)}"] * bool(lost)
    return ", ".join(parts) or f"its weights are not 1/{count} each"


def spans(keys: list[int]) -> str:
    """Key numbers as ranges: "keys 3-5, 9"."""
    runs: list[list[int]] = []
    for key in keys:
        if runs and key == runs[-1][1] + 1:
            runs[-1][1] = key
        else:
            runs.append([key, key])
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:6])
    more = f" and {len(runs) - 6} more runs" if len(runs) > 6 else ""
    return f"key{'s' if len(keys) > 1 else ''} {shown}{more}"


@law(
    "alignment.causal_corner",
    "Query i sees exactly the keys j <= i + (Tk - Tq) (bottom-right), or j <= i (top-left).",
    strata={
        "bottom_right": s.corner("bottom_right"),
        "whole_tiles": s.whole_tiles,
        "top_left": s.corner("top_left"),
        "needles": s.needles,
    },
)
def causal_corner(subject: Subject, case: AttendCase) -> None:
    judge(subject, case, subject.attend(case))


@law(
    "alignment.decode_is_last_row",
    "Decoding the last token alone gives the last row of the prefill.",
    requires=["causal.bottom_right", "unequal_lengths"],
    strata={"prefill": s.prefill, "scoring": s.with_scoring(s.prefill)},
)
def decode_is_last_row(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    step = chunk_of(tensors, case.Tq - 1, case.Tq)
    agree(
        subject,
        "the last query was decoded alone",
        rows_of(subject.attend(tensors), case.Tq - 1, case.Tq),
        subject.attend(step),
        budget_of(step, subject.numerics, generic=case.generic),
    )


@law(
    "alignment.chunked_is_whole",
    "A prefill in two chunks gives what it gives in one.",
    requires=["causal.bottom_right", "unequal_lengths"],
    strata={"prefill": s.prefill, "scoring": s.with_scoring(s.prefill)},
)
def chunked_is_whole(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    cut = 1 + case.at % (case.Tq - 1)
    whole = subject.attend(tensors)
    for start, stop in ((0, cut), (cut, case.Tq)):
        chunk = chunk_of(tensors, start, stop)
        agree(
            subject,
            f"queries {start}..{stop - 1} came as a chunk of their own",
            rows_of(whole, start, stop),
            subject.attend(chunk),
            budget_of(chunk, subject.numerics, generic=case.generic),
        )


@law(
    "alignment.no_future",
    "A row does not depend on later tokens: replacing them changes nothing.",
    strata={
        "bottom_right": s.with_future(s.corner("bottom_right")),
        "top_left": s.with_future(s.corner("top_left")),
        "scoring": s.with_future(s.with_scoring(s.corner("bottom_right"))),
    },
)
def no_future(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    row = case.at % case.Tq
    last = row + (case.Tk - case.Tq if case.causal == "bottom_right" else 0)
    later = torch.arange(case.Tk, device=tensors.k.device)[:, None] > last
    changed = replace(
        tensors,
        k=torch.where(later, -3 * tensors.k.flip(2), tensors.k),
        v=torch.where(later, 5 - tensors.v.flip(2), tensors.v),
    )
    agree(
        subject,
        f"keys and values after row {row} were replaced",
        rows_of(subject.attend(tensors), row, row + 1),
        rows_of(subject.attend(changed), row, row + 1),
        of_row(budget_for(case, subject.dtype, subject.place, subject.numerics), row),
    )
