"""Samplers of two common kinds under the contract of speculative verification, in a few lines.

    packed (vLLM)         function(drafts [N], ends [R], q [N, V] or None, p [N, V], bonus [R],
                                   accept [N], race [R, V] or None, K) -> tokens [R, K + 1]
    chains (FlashInfer)   function(q [R, K, V], drafts [R, K], p [R, K + 1, V], seeds or None)
                                   -> tokens [R, K + 1], accepted [R], emitted [R]

R requests have N drafts together, the most of one is K, over V tokens; q are the laws that drafts
were drawn from, p the target's. Tokens are int32, padded with -1. Neither kind knows greedy
requests, stop tokens or budgets: an engine sees to those around them.
"""

from collections.abc import Callable, Mapping
from typing import Any

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

__all__ = ["ChainVerify", "PackedVerify"]

Packed = Callable[..., Tensor]
Chain = Callable[..., tuple[Tensor, Tensor, Tensor]]
CHAIN = frozenset(("verify", "requests", "drafts.many", "draft_law"))
PACKED = CHAIN | {"drafts.ragged", "drafts.none", "draft_certain"}


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


def _capabilities(
    supports: frozenset[str], others: Mapping[str, Any], **given: Any
) -> Capabilities:
    """*given* and *others*; what is not supported is declined."""
    supported = frozenset(others.get("supports", supports))
    declared = {"supports": supported, "declines": frozenset(VERIFYING) - supported}
    return Capabilities(**{**given, **declared, **others})
