"""Speculative verification under the laws: a sampler of one's own is an adapter in one line.

    kernelassay run --kernel examples/verify_adapter.py:right      # passes
    kernelassay run --kernel examples/verify_adapter.py:faulty     # two faults that shipped

Drafts of R requests lie end to end, drafts [N] int32; those of request r end before ends[r].
target [N, V] and draft [N, V] hold the laws p and q for the place of each, accept [N] a uniform.
race [R, V] is exponential noise, one row for each request: argmax (w / race) has the law of the
weights w. The bonus token comes drawn. Where drafts were certain, draft is None.
"""

from functools import partial

import torch
from torch import Tensor

from kernelassay.impls.verify_shims import PackedVerify


def ratio(p: Tensor, q: Tensor, u: Tensor) -> Tensor:
    """A draft of probability p is kept if p / q >= u; never one of p = 0, even at u = 0."""
    return (p > 0) & (p / q >= u)


def excess(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """[p - q]+: what is drawn from after a rejection."""
    return (p - q).clamp(min=0)


def verify(
    drafts: Tensor, ends: Tensor, draft: Tensor | None, target: Tensor,
    bonus: Tensor, accept: Tensor, race: Tensor, most: int,
    keeps=ratio, weights=excess,
) -> Tensor:  # fmt: skip
    """tokens [R, most + 1]: accepted drafts, the token after them, then -1."""
    rows = torch.arange(len(drafts), device=drafts.device)
    counts = ends.long().diff(prepend=ends.new_zeros(1).long())
    request = torch.repeat_interleave(counts)
    place = rows - (ends - counts)[request]
    if draft is None:
        draft = torch.zeros_like(target)
        draft[rows, drafts.long()] = 1.0
    p, q = target[rows, drafts.long()], draft[rows, drafts.long()]
    stands = torch.where(keeps(p, q, accept), most, place)  # the place of each rejection
    accepted = counts.scatter_reduce(0, request, stands, "amin")
    kept, lost = place < accepted[request], place == accepted[request]

    tokens = drafts.new_full((len(ends), most + 1), -1)
    tokens[request[kept], place[kept]] = drafts[kept]
    corrected = (weights(target, draft, drafts) / race[request]).argmax(-1).int()
    last = bonus.clone()
    last[request[lost]] = corrected[lost]
    tokens[torch.arange(len(ends), device=drafts.device), accepted] = last
    return tokens


def ratio_alone(p: Tensor, q: Tensor, u: Tensor) -> Tensor:
    """At u = 0 a draft that a mask forbids is kept, as by transformers 5.24: 0 / q >= 0."""
    return p / q >= u


def excess_at_the_draft(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """q is subtracted at the rejected token alone. SafeAILab/EAGLE#20."""
    rows = torch.arange(len(x), device=x.device), x.long()
    w = p.clone()
    w[rows] = (p - q)[rows].clamp(min=0)
    return w


right = PackedVerify("my_verify", verify)
faulty = [
    PackedVerify("verify_zero_probability", partial(verify, keeps=ratio_alone)),
    PackedVerify("verify_one_difference", partial(verify, weights=excess_at_the_draft)),
]
