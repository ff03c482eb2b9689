"""Samplers of three common kinds under the contract of speculative verification, in a few lines.

    packed (vLLM)         function(drafts [N], ends [R], q [N, V] or None, p [N, V], bonus [R],
                                   accept [N], race [R, V] or None, K) -> tokens [R, K + 1]
    chains (FlashInfer)   function(q [R, K, V], drafts [R, K], p [R, K + 1, V], seeds or None)
                                   -> tokens [R, K + 1], accepted [R], emitted [R]
    any sampler           function(p [N + R, V], seeds [R] or None) -> tokens [N + R]

R requests have N drafts together, the most of one is K, over V tokens; q are the laws that drafts
were drawn from, p the target's. Tokens are int32, padded with -1. No kind knows greedy requests,
stop tokens or budgets: an engine sees to those around them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import (
    VERIFYING,
    Capabilities,
    Sampling,
    Unsupported,
    VerifyCall,
    VerifyResult,
)
from kernelassay.impls.verify_calls import refuse_verify
from kernelassay.oracle.decisions import Rule

__all__ = ["ChainVerify", "MatchVerify", "PackedVerify", "Truncated", "truncated"]

Packed = Callable[..., Tensor]
Chain = Callable[..., tuple[Tensor, Tensor, Tensor]]
Sample = Callable[[Tensor, Tensor | None], Tensor]
CHAIN = frozenset(("verify", "requests", "drafts.many", "draft_law"))
PACKED = CHAIN | {"drafts.ragged", "drafts.none", "draft_certain"}
MATCH = PACKED | {"drafts.skipped"}
JUNK = 64


def _refuse(name: str, capabilities: Capabilities, call: VerifyCall) -> None:
    """An `Unsupported` if *call* needs a device, dtype or feature not in *capabilities*."""
    places = {"cpu" if device == "interpreter" else device for device in capabilities.devices}
    if (place := call.p.device.type) not in places:
        raise Unsupported(f"{name}: it does not run on {place}")
    refuse_verify(name, capabilities, call)


class PackedVerify:
    """A sampler whose drafts lie end to end; ends[r] is where those of request r end.

    A rejected draft's place is taken by argmax (weights / race[r]), race being exponential noise;
    the bonus token is drawn by someone else. *rule* is vLLM's by default. *sampling* holds more
    fields of `Sampling`, *others* are fields of `Capabilities`. A ContractError or ValueError
    says which is wrong.
    """

    def __init__(
        self,
        name: str,
        function: Packed,
        devices: tuple[str, ...] = ("cpu", "cuda"),
        dtypes: tuple[str, ...] = ("fp32",),
        *,
        rule: Rule = "p/q>=u",
        needs: tuple[str, ...] = (),
        sampling: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        fixed = {"noise": "injected", "draw": "race", "shared_draw": True, "bonus": "given"}
        drawn = Sampling(**{**fixed, "rule": rule, **(sampling or {})})
        self.name, self.function, self.needs = name, function, needs
        self.capabilities = _capabilities(
            PACKED, others, devices=devices, dtypes=dtypes, sampling=drawn
        )

    def verify(self, call: VerifyCall) -> VerifyResult:
        """tokens of *call*; `Unsupported` refuses it."""
        _refuse(self.name, self.capabilities, call)
        tokens = self.function(
            call.drafts, call.offsets[1:], call.q, call.p,
            call.bonus, call.accept, call.race, call.most,
        )  # fmt: skip
        return VerifyResult(tokens)


class ChainVerify:
    """A sampler of as many drafts for each request, which draws by itself.

    Of its counters the second is that of the drafts emitted; the first, of drafts that would be
    accepted each on its own, is no part of a round. Where *sampling* says noise="global", seeds
    is None. *sampling* holds fields of `Sampling`, *others* are fields of `Capabilities`. A
    ContractError or ValueError says which is wrong.
    """

    def __init__(
        self,
        name: str,
        function: Chain,
        devices: tuple[str, ...] = ("cpu", "cuda"),
        dtypes: tuple[str, ...] = ("fp32",),
        *,
        needs: tuple[str, ...] = (),
        sampling: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        self.name, self.function, self.needs = name, function, needs
        drawn = Sampling(**(sampling or {}))
        self.capabilities = _capabilities(
            CHAIN, others, devices=devices, dtypes=dtypes, sampling=drawn, packing="padded"
        )

    def verify(self, call: VerifyCall) -> VerifyResult:
        """tokens and accepted of *call*; `Unsupported` refuses it."""
        _refuse(self.name, self.capabilities, call)
        tokens, _, emitted = self.function(call.q, call.drafts, call.p, call.seeds)
        return VerifyResult(tokens, emitted)


class MatchVerify:
    """A sampler of one token from each law, whatever the drafts.

    A draft is accepted where it is the token that was drawn for its place, which is lossless: what
    is emitted are the sampler's tokens up to the first that no draft foresaw. So every law about
    what is emitted is one about the sampler. Of *sampling* "seeded" noise hands it seeds [R], and
    "global" None; *others* are fields of `Capabilities`. A ContractError or ValueError says which
    is wrong.
    """

    def __init__(
        self,
        name: str,
        function: Sample,
        devices: tuple[str, ...] = ("cpu", "cuda"),
        dtypes: tuple[str, ...] = ("fp32",),
        *,
        needs: tuple[str, ...] = (),
        sampling: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        self.name, self.function, self.needs = name, function, needs
        drawn = Sampling(**{"noise": "global", "rounds": "joint", **(sampling or {})})
        self.capabilities = _capabilities(
            MATCH, others, devices=devices, dtypes=dtypes, sampling=drawn
        )

    def verify(self, call: VerifyCall) -> VerifyResult:
        """tokens and accepted of *call*; `Unsupported` refuses it."""
        _refuse(self.name, self.capabilities, call)
        drawn = self.function(call.p, call.seeds).to(call.drafts.dtype)
        R, K, k = call.requests, call.most, call.counts[:, None].long()
        place = torch.arange(K + 1, device=drawn.device)
        start = call.offsets[:-1, None].long()
        row = start + torch.arange(R, device=drawn.device)[:, None] + torch.minimum(place, k)
        tokens = drawn[row]  # [R, K + 1]; past a request's drafts its last token again
        accepted = torch.zeros(R, dtype=torch.int64, device=drawn.device)
        if K:
            # A request without drafts may lie past the end of all of them.
            n = (start + place[:K]).clamp(max=max(0, len(call.drafts) - 1))
            there = place[:K] < k
            drafts = call.drafts[n] if len(call.drafts) else torch.full_like(tokens[:, :K], -1)
            accepted = ((drafts == tokens[:, :K]) & there).long().cumprod(1).sum(1)
        blank = torch.full_like(tokens, self.capabilities.sampling.placeholder)  # type: ignore[union-attr]
        return VerifyResult(torch.where(place <= accepted[:, None], tokens, blank), accepted)


@dataclass(frozen=True, eq=False)
class Truncated:
    """Laws p [rows, V] hidden in laws of more tokens, for a sampler that truncates.

    x [rows, V + 64] is p scaled down, and junk that any of the truncations removes: top-k of
    *top_k* [rows], int32, top-p of *top_p* [rows], min-p of *min_p* [rows]. What is left is p.
    """

    x: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def truncated(p: Tensor) -> Truncated:
    """p hidden so that each threshold lies far from rounding: in the middle of a gap of half the
    least probability."""
    wide = p.double()
    least = torch.where(wide > 0, wide, 1.0).amin(1, keepdim=True)
    # A junk token has a quarter of the least probability, all together an eighth at most.
    junk = torch.minimum(least * (JUNK / 4), torch.full_like(least, 1 / 8))
    x = torch.cat([wide * (1 - junk), (junk / JUNK).expand(-1, JUNK)], 1)
    half = least[:, 0] * (1 - junk[:, 0]) / 2
    return Truncated(
        x.float(),
        (wide > 0).sum(1).int(),
        (1 - junk[:, 0] - half).float(),
        (half / x.amax(1)).float(),
    )


def _capabilities(
    supports: frozenset[str], others: Mapping[str, Any], **given: Any
) -> Capabilities:
    """*given* and *others*; what is not supported is declined."""
    supported = frozenset(others.get("supports", supports))
    declared = {"supports": supported, "declines": frozenset(VERIFYING) - supported}
    return Capabilities(**{**given, **declared, **others})
