"""Laws of alignment beside `alignment`: the edges of tiles and windows, corners put as masks."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from kernelassay.impls.contract import Visibility
from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.content import bits_per_column
from kernelassay.properties.inputs import Logical, logical
from kernelassay.properties.judge import budget_of, judge, seen_by, shape_of
from kernelassay.properties.laws.alignment import read_off
from kernelassay.properties.laws.comparing import Judged, answered, keep_budgets, kept, related
from kernelassay.properties.laws.equality import agree
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


@law(
    "alignment.last_tile",
    "At every length next to a multiple of a tile each query sees exactly its keys.",
    strata={"by_slicing": s.tile_edges, "by_length": s.tile_edges_by_length},
    weight=0.25,
)
def last_tile(subject: Subject, case: AttendCase) -> None:
    capabilities = subject.capabilities
    for length in edges(capabilities.tiles, capabilities.min_keys, case.Tk):
        part = up_to(case, length)
        width = bits_per_column(subject.numerics.out)
        span = width * part.value_size  # keys that one answer spells: those about the edge
        origin = max(0, min(part.Tk, length + span // 2) - span)
        part = replace(part, v=f"bits:{origin}:{width}")
        tensors = logical(part, subject.dtype, subject.place)
        answer = subject.attend(tensors)
        read_off(subject, answer, seen_by(tensors).expand(part.shape), origin, width)
        judge(subject, part, answer)


def edges(tiles: tuple[int, ...], least: int, most: int) -> Iterator[int]:
    """*most*, and one and two tiles of each size, one less and one more, within least..most."""
    near = {n * tile + off for tile in tiles for n in (1, 2) for off in (-1, 0, 1)}
    yield from sorted({length for length in near if max(1, least) <= length < most} | {most})


def up_to(case: AttendCase, length: int) -> AttendCase:
    """*case* with *length* keys: by a length, where it has lengths, else that many and no more."""
    if case.lengths is not None:
        return replace(case, lengths=(length,) * case.B)
    Tq = length if case.Tq == case.Tk else min(case.Tq, length)
    return replace(case, Tk=length, Tq=Tq)


@law(
    "alignment.corner_is_mask",
    "A causal corner, a window, lengths and positions are the mask that keeps what they let see.",
    requires=["mask"],
    strata={
        "random_content": s.any_corner,
        "bottom_right": s.corner("bottom_right"),
        "top_left": s.corner("top_left"),
        "windows": s.windows,
        "masked_corner": s.masked_corner,
        "masked_window": s.masked_window,
        "ragged_corner": s.ragged_corner,
        "positions": s.positions,
    },
    weight=0.4,
)
def corner_is_mask(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    if tensors.scoring.alibi is not None:
        return  # distances are counted from positions, which a mask does not have
    seen = seen_by(tensors)
    plain = replace(tensors, visibility=Visibility(mask=seen.contiguous()))
    agree(
        subject,
        "what each query sees came as a mask",
        kept(subject.attend(tensors)),
        subject.attend(plain),
        budget_of(tensors, subject.numerics, generic=case.generic),
        alike=False,
    )


@law(
    "alignment.window_truncation",
    "A window moves the output by at most twice the mass that it drops times the largest value.",
    requires=["window"],
    strata={
        "windows": s.windows,
        "causal_windows": s.causal_windows,
        "sink_tokens": s.sink_tokens,
    },
    weight=0.5,
)
def window_truncation(subject: Subject, case: AttendCase) -> None:
    tensors = logical(case, subject.dtype, subject.place)
    whole = replace(tensors, visibility=replace(tensors.visibility, window=(None, None), sinks=0))
    first, second = (answered(subject, t, generic=case.generic) for t in (whole, tensors))
    rows = second.rows
    reach = 2 * dropped_mass(subject, first, second, rows) * largest_norm(whole)
    allowed = (first.budget.out_allowed + second.budget.out_allowed).norm(dim=-1)
    moved = (second.answer.out.double() - first.answer.out.double()).norm(dim=-1)
    words = "moved further by a window than twice the dropped mass times the largest value"
    related(subject, "out", words, moved, torch.minimum(moved, reach), allowed, rows)
    keep_budgets(subject, first, second)


def dropped_mass(subject: Subject, whole: Judged, part: Judged, rows: Tensor) -> Tensor:
    """At most the weight, in the whole call, of what the part does not see, [B, Hq, Tq].

    By the kernel's own LSE, where it offers one.
    """
    (full, spare), (left, own) = whole.lse(subject), part.lse(subject)
    kept = torch.where(rows, left - full, 0.0).clamp(max=0.0)
    return -torch.expm1(kept - spare - own)


def largest_norm(tensors: Logical) -> Tensor:
    """The largest 2-norm of a visible value, [B, Hq, Tq]; 0 where there is none."""
    shape = shape_of(tensors)
    norms = tensors.v.double().norm(dim=-1)
    norms = norms.repeat_interleave(shape[1] // norms.shape[1], 1)[:, :, None]
    seen = seen_by(tensors).expand(shape)
    if not shape[3]:
        return norms.new_zeros(shape[:3])
    return torch.where(seen, norms, 0.0).amax(-1)
