"""jax.nn.dot_product_attention, compiled by jax.jit or called op by op, on the CPU.

`is_causal`, `local_window_size` and `key_value_seq_lengths` count from the first key (top-left);
another corner goes through a boolean mask. A row that sees no key gets the plain mean of all
values, or NaN where a bias of -inf hides them. The LSE comes in the dtype of the inputs.
"""

from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor
from torch.utils.dlpack import from_dlpack

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Capabilities,
    Conventions,
    Numerics,
    Scoring,
    Unsupported,
)
from kernelassay.impls.torch_reference import visible

__all__ = ["adapter", "eager"]

# What the function has no argument for; values must be of the size of keys.
NEVER = frozenset(
    ("causal.positions", "sink_tokens", "value_size", "softcap", "alibi", "sink_logits")
)
# JAX's arrays have no strides: a view of ours is copied on its way in. Declared neither way.
SUPPORTS = frozenset(FEATURES) - NEVER - {"strides"}

# Scores and softmax are fp32; P is divided by its sum, then cast to the inputs' dtype.
_NUMERICS = Numerics(
    l_from_p=False, p_normalised=True, acc_u=2.0**-24, acc_biased=False, kstep=1, lse="input"
)


@cache
def _jax() -> Any:
    return import_module("jax")


@cache
def _function(jitted: bool) -> Any:
    plain = _jax().nn.dot_product_attention
    settings = ("is_causal", "local_window_size", "return_residual", "implementation")
    return _jax().jit(plain, static_argnames=settings) if jitted else plain


def _to_jax(x: Tensor | None) -> Any:
    return None if x is None else _jax().dlpack.from_dlpack(x.contiguous())


def _from_jax(x: Any) -> Tensor:  # [B, T, H, ...] to [B, H, T, ...]
    return from_dlpack(x).transpose(1, 2)


@dataclass(frozen=True)
class Jax:
    """dot_product_attention with its XLA implementation."""

    name: str
    jitted: bool
    capabilities: Capabilities
    numerics: Numerics = _NUMERICS
    needs: tuple[str, ...] = ("jax",)

    def attend(self, call: AttendCall) -> AttendResult:
        """out and lse of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        if call.q.device.type != "cpu":
            raise Unsupported(f"{self.name}: it does not run on {call.q.device}")
        lengths = call.visibility.lengths
        q, k, v = (_to_jax(x.transpose(1, 2)) for x in (call.q, call.k, call.v))  # [B, T, H, D]
        out, lse = _function(self.jitted)(
            q, k, v,
            bias=_to_jax(call.scoring.bias),
            scale=call.scale,
            key_value_seq_lengths=_to_jax(None if lengths is None else lengths.int()),
            return_residual=True,
            implementation="xla",
            **_visibility(call),
        )  # fmt: skip
        return AttendResult(_from_jax(out), _from_jax(lse))


def _visibility(call: AttendCall) -> dict[str, Any]:
    """The arguments that say who sees whom, lengths aside."""
    see, (Tq, Tk) = call.visibility, (call.q.shape[2], call.k.shape[2])
    top_left = see.causal == "top_left" or (Tq == Tk and see.lengths is None)
    if top_left or (see.causal == "none" and see.window == (None, None)):
        sides = None
        if see.window != (None, None):
            sides = tuple(Tq + Tk if side is None else side for side in see.window)
        causal = see.causal != "none"
        return {"mask": _to_jax(see.mask), "is_causal": causal, "local_window_size": sides}
    keep = visible(replace(call, scoring=Scoring()), 0, Tk)
    return {"mask": _to_jax(keep)}


_CAPABILITIES = Capabilities(
    devices=("cpu",),
    dtypes=("fp16", "bf16", "fp32"),
    head_sizes=(1, 8, 16, 32, 64, 80, 128, 256),
    layouts=("BTHD",),
    supports=SUPPORTS,
    declines=NEVER,
    conventions=Conventions(empty_row="undefined", empty_lse="undefined"),
)
# Compiled for the CPU, JAX 0.10 raises for fp16 and, in bf16, where the product of q and k has a
# single element or D = 1. Each shape is a compilation: 0.3 s or more, five times that op by op.
_COMPILED = replace(
    _CAPABILITIES,
    dtypes=("bf16", "fp32"),
    head_sizes=_CAPABILITIES.head_sizes[1:],
    min_keys=2,
)

adapter = Jax("jax_attention", jitted=True, capabilities=_COMPILED)
eager = Jax("jax_attention_eager", jitted=False, capabilities=_CAPABILITIES)
