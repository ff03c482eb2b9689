"""Calls that must agree: how two answers are compared, and parts of calls and answers."""

from dataclasses import fields, replace

from torch import Tensor

from kernelassay.oracle.budget import Budget
from kernelassay.properties.answers import Attended
from kernelassay.properties.failures import Different
from kernelassay.properties.inputs import Logical
from kernelassay.properties.judge import difference, judge_lse, judge_out
from kernelassay.properties.memory import same_bits
from kernelassay.properties.subject import Subject


def agree(
    subject: Subject,
    what: str,
    first: Attended,
    second: Attended,
    budget: Budget,
    *,
    alike: bool = True,
) -> None:
    """Two answers that must be equal are: bit for bit where the kernel declares `batch_invariant`,
    within the budget of the common truth elsewhere, and where the calls are not *alike*.

    Calls are alike that use the same features. A kernel may have a path for masks, another for
    lengths: each right, and rounding in another order.
    """
    if not (alike and subject.conventions.batch_invariant):
        for answer in (first, second):
            judge_out(subject, answer.out, budget, generic=False)
            if answer.lse is not None:
                judge_lse(subject, answer.lse, budget)
        return
    pairs = [("out", first.out, second.out)]
    if first.lse is not None and second.lse is not None:
        pairs.append(("lse", first.lse, second.lse))
    for name, a, b in pairs:
        if not same_bits(a, b):
            raise Different(
                f"{name} changed when {what}, which must not matter: {difference(a, b)}",
                tensor=name,
            )


def rows_of(answer: Attended, start: int, stop: int) -> Attended:
    """Query rows start..stop of an answer."""
    lse = answer.lse
    return replace(
        answer,
        out=answer.out[:, :, start:stop],
        lse=None if lse is None else lse[:, :, start:stop],
    )


def of_row(budget: Budget, row: int) -> Budget:
    """The part of a budget that is about query *row*."""
    one = slice(row, row + 1)
    return Budget(**{f.name: getattr(budget, f.name)[:, :, one] for f in fields(budget)})


def _part(x: Tensor | None, axis: int, part: slice) -> Tensor | None:
    """The part of a mask or bias along an axis that it may be broadcast over."""
    if x is None or x.shape[axis] == 1:
        return x
    index = [slice(None)] * 4
    index[axis] = part
    return x[tuple(index)]


def request(tensors: Logical, b: int) -> Logical:
    """Request *b* alone."""
    vis = tensors.visibility
    one = slice(b, b + 1)
    alone = replace(
        vis,
        mask=_part(vis.mask, 0, one),
        lengths=None if vis.lengths is None else vis.lengths[one],
        q_positions=None if vis.q_positions is None else vis.q_positions[one],
        k_positions=None if vis.k_positions is None else vis.k_positions[one],
    )
    return replace(
        tensors,
        q=tensors.q[one],
        k=tensors.k[one],
        v=tensors.v[one],
        visibility=alone,
        scoring=replace(tensors.scoring, bias=_part(tensors.scoring.bias, 0, one)),
    )


def chunk_of(tensors: Logical, start: int, stop: int) -> Logical:
    """Queries start..stop with the keys up to the last one that they may see (bottom-right)."""
    Tq, Tk = tensors.q.shape[2], tensors.k.shape[2]
    last = Tk - Tq + stop

    def part(x: Tensor | None) -> Tensor | None:
        return _part(_part(x, 2, slice(start, stop)), 3, slice(0, last))

    return replace(
        tensors,
        visibility=replace(tensors.visibility, mask=part(tensors.visibility.mask)),
        scoring=replace(tensors.scoring, bias=part(tensors.scoring.bias)),
        q=tensors.q[:, :, start:stop],
        k=tensors.k[:, :, :last],
        v=tensors.v[:, :, :last],
    )
