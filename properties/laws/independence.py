"""Laws of independence: what must not matter to a row, and does not."""

from dataclasses import replace

import torch

from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.judge import budget_for, budget_of, seen_by
from kernelassay.properties.laws.equality import agree, of_row, request, rows_of
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


@law(
    "attention.unseen_content",
    "What no query sees changes nothing: garbage in masked keys and values, NaN beyond a length.",
    strata={
        "unseen_by_length": s.unseen_by_length,
        "unseen_by_mask": s.unseen_by_mask,
        "unseen_by_corner": s.unseen_by_corner,
    },
)
def unseen_content(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    clean = subject.attend(tensors)
    spoilt = subject.attend(_poisoned(subject, tensors))
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    agree(subject, "content that no query sees was replaced", clean, spoilt, budget)


def _poisoned(subject: Subject, tensors: Logical) -> Logical:
    """Unseen slots hold garbage: NaN where the declared convention says that it is harmless."""
    B, Hq, _, _ = tensors.q.shape
    Hkv, Tk = tensors.k.shape[1:3]
    seen = seen_by(tensors)
    seen = seen.expand(B, Hq, *seen.shape[2:]).any(2).view(B, Hkv, Hq // Hkv, Tk).any(2)
    garbage = torch.full_like(seen, 1000.0, dtype=tensors.k.dtype)
    harmless = subject.conventions.masked_content != "finite_only"
    beyond = torch.zeros_like(seen)
    if tensors.visibility.lengths is not None:
        slots = torch.arange(Tk, device=seen.device)
        beyond = (slots >= tensors.visibility.lengths[:, None, None]).expand_as(seen)
    garbage[beyond | harmless] = float("nan")
    hidden = ~seen[..., None]
    k = torch.where(hidden, garbage[..., None], tensors.k)
    return replace(tensors, k=k, v=torch.where(hidden, -garbage[..., None], tensors.v))


@law(
    "attention.grouped_heads",
    "Query head h uses KV head h // (Hq / Hkv): the same as attention with repeated KV heads.",
    requires=["gqa"],
    strata={"grouped": s.grouped},
)
def grouped_heads(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    group = case.Hq // case.Hkv
    repeated = replace(
        tensors,
        k=tensors.k.repeat_interleave(group, 1),
        v=tensors.v.repeat_interleave(group, 1),
    )
    agree(
        subject,
        "each KV head was repeated for its group",
        subject.attend(tensors),
        subject.attend(repeated),
        budget_for(case, subject.dtype, subject.place, subject.numerics),
    )


@law(
    "attention.batch_independence",
    "A request's output is the same alone as in a batch.",
    strata={"several_requests": s.several_requests, "ragged": s.ragged},
)
def batch_independence(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    b = case.at % case.B
    alone = request(tensors, b)
    whole = subject.attend(tensors)
    mine = replace(
        whole,
        out=whole.out[b : b + 1],
        lse=None if whole.lse is None else whole.lse[b : b + 1],
    )
    agree(
        subject,
        "the other requests left the batch",
        mine,
        subject.attend(alone),
        budget_of(alone, subject.numerics, generic=case.generic),
    )


@law(
    "attention.row_independence",
    "A query row's output does not depend on the other query rows.",
    strata={"several_rows": s.several_rows},
)
def row_independence(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    row = case.at % case.Tq
    others = tensors.q.flip(2) * 2  # any other content
    others[:, :, row] = tensors.q[:, :, row]
    changed = replace(tensors, q=others)
    first, second = (rows_of(subject.attend(t), row, row + 1) for t in (tensors, changed))
    agree(
        subject,
        f"every query but row {row} was replaced",
        first,
        second,
        of_row(budget_for(case, subject.dtype, subject.place, subject.numerics), row),
    )


@law(
    "attention.views",
    "Strides do not matter: a transposed, padded, interleaved, shifted or expanded view gives "
    "what contiguous tensors of the same content give.",
    requires=["strides"],
    strata=s.views,
)
def views(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    agree(
        subject,
        f"the same content was laid out {case.view}",
        subject.attend(subject.lay_out(tensors, "contiguous")),
        subject.attend(subject.lay_out(tensors, case.view)),
        budget_for(case, subject.dtype, subject.place, subject.numerics),
    )
