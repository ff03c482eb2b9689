"""Eager attention of Hugging Face transformers, as Llama, Gemma 2 and gpt-oss models call it.

Unfused: scores are rounded to the inputs' dtype after q.k and again after the scale; the softmax
is fp32, its result rounded before it meets v. Who sees whom comes as an additive mask, made by
the library's own mask functions: hidden keys get the dtype's lowest number added to their score,
so that a row that sees no key attends to all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
)

__all__ = ["gemma2", "gpt_oss", "llama"]

# The functions return no LSE; their masks know neither positions nor a length for each request.
NEVER = frozenset(("lse", "causal.positions", "sink_tokens", "lengths", "alibi"))
OPTIONS = frozenset(("softcap", "sink_logits"))


@dataclass(frozen=True)
class Eager:
    """The eager_attention_forward of one model."""

    model: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]
    needs: tuple[str, ...] = ("transformers",)

    @property
    def name(self) -> str:
        """transformers_<model>."""
        return f"transformers_{self.model}"

    def attend(self, call: AttendCall) -> AttendResult:
        """out of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        library = import_module(f"transformers.models.{self.model}.modeling_{self.model}")
        q, k, v, scoring = call.q, call.k, call.v, call.scoring
        module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False)
        if self.model == "gpt_oss":  # without a sink: one of weight exp(-inf)
            none = q.new_full((q.shape[1],), -torch.inf)
            module.sinks = none if scoring.sink_logits is None else scoring.sink_logits.to(q.dtype)
        options = {} if scoring.softcap is None else {"softcap": scoring.softcap}
        out, _ = library.eager_attention_forward(
            module, q, k, v, additive_mask(call), scaling=call.softmax_scale, **options
        )
        return AttendResult(out.transpose(1, 2))


def additive_mask(call: AttendCall) -> Tensor | None:
    """Bias where a query sees a key, the dtype's lowest number where not; None if nothing does."""
    q, see, bias = call.q, call.visibility, call.scoring.bias
    keep = visible(call)
    if see.mask is not None:
        keep = see.mask if keep is None else keep & see.mask
    if keep is None:
        return bias
    shown = q.new_zeros(()) if bias is None else bias
    return torch.where(keep, shown, torch.finfo(q.dtype).min)


def visible(call: AttendCall) -> Tensor | None:
    """The causal corner and window as the library's boolean mask [B, 1, Tq, Tk], if any."""
    masks: Any = import_module("transformers.masking_utils")
    see, (B, _, Tq, _), Tk = call.visibility, call.q.shape, call.k.shape[2]
    left, right = see.window
    functions = [] if see.causal == "none" else [masks.causal_mask_function]
    if left is not None:
        functions.append(masks.sliding_window_overlay(left + 1))
    if right is not None:
        functions.append(lambda b, h, i, j: j <= i + right)
    if not functions:
        return None
    made: Tensor = masks.sdpa_mask(
        B, Tq, Tk,
        q_offset=0 if see.causal == "top_left" else Tk - Tq,
        mask_function=masks.and_masks(*functions),
        allow_is_causal_skip=False,
        device=call.q.device,
    )  # fmt: skip
    return made


# With a soft cap the score is rounded after the division, the tanh and the product as well.
# acc_u and kstep hold for the CPU (fp32, to nearest) and for matrix units (truncating) alike.
_SIXTEEN_BIT = Numerics(
    score="input", score_roundings=2, l_from_p=False, p_normalised=True, kstep=1
)
_FP32 = replace(_SIXTEEN_BIT, acc_u=2.0**-24, acc_biased=False)
_LLAMA = {"fp16": _SIXTEEN_BIT, "bf16": _SIXTEEN_BIT, "fp32": _FP32}


def _capabilities(*dtypes: str, option: str = "") -> Capabilities:
    missing = NEVER | (OPTIONS - {option})
    return Capabilities(
        devices=("cpu", "cuda"),
        dtypes=dtypes,
        head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
        layouts=("BHTD", "BTHD"),
        supports=frozenset(FEATURES) - missing,
        declines=missing,
        conventions=Conventions(empty_row="undefined"),
    )


llama = Eager("llama", _capabilities(*_LLAMA), _LLAMA)
gemma2 = Eager("gemma2", _capabilities(*_LLAMA, option="softcap"), _LLAMA)
# In 16 bit it also rounds the score less the row's maximum, which `Numerics` cannot say.
gpt_oss = Eager("gpt_oss", _capabilities("fp32", option="sink_logits"), {"fp32": _FP32})
