"""ONNX's reference evaluator, its Attention of opset 25: what the standard means, in numpy."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from kernelassay.impls.calls import refuse_unsupported
from kernelassay.impls.contract import AttendCall, AttendResult, Capabilities, Numerics
from kernelassay.impls.onnx_attention import FP32, asked, capabilities
from kernelassay.impls.onnx_models import Signature, model, narrow, signature

__all__ = ["Reference", "adapter", "literal"]

FLOAT = 1
"""`softmax_precision` as TensorProto.DataType numbers it: else it is that of the inputs."""


@lru_cache(maxsize=32)
def _evaluator(inputs: Signature, attributes: tuple[tuple[str, Any], ...]) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model("Attention", inputs, 1, 25, **dict(attributes)))


@dataclass(frozen=True)
class Reference:
    """The evaluator. *literal*: a mask of one row for all queries is given as such.

    With is_causal every query then gets the corner of the first: docs/findings.md. Otherwise
    masks are expanded.
    """

    name: str
    capabilities: Capabilities
    numerics: Mapping[str, Numerics]
    literal: bool = False
    needs: tuple[str, ...] = ("onnx",)

    def attend(self, call: AttendCall) -> AttendResult:
        """out of *call*."""
        refuse_unsupported(self.name, self.capabilities, call)
        inputs, attributes = asked(call, 25)
        if self.literal:
            inputs[3] = narrow(inputs[3])
        attributes["softmax_precision"] = FLOAT
        evaluator = _evaluator(signature(inputs), tuple(attributes.items()))
        feeds = {f"i{n}": x.numpy() for n, x in enumerate(inputs) if x is not None}
        return AttendResult(torch.from_numpy(evaluator.run(None, feeds)[0]))


# numpy: q and k are multiplied by sqrt(scale) and rounded, the softmax is done before P meets V.
# With fp16 inputs the scores are rounded to fp16 after q.k, after the quotient, the tanh and the
# product of the soft cap, and after the bias; P is rounded as well.
_FP32 = replace(FP32, scale_rounded=True, exp_u=2.0**-22, tanh_u=2.0**-22)
_FP16 = replace(_FP32, p="input", score="input", score_roundings=2, tanh_u=2.0**-11)

adapter = Reference(
    "onnx_reference",
    replace(
        capabilities("lengths", "window", "no_queries"), head_sizes=(1, 8, 16, 32, 64, 80, 128)
    ),
    {"fp16": _FP16, "fp32": _FP32},
)
literal = replace(adapter, name="onnx_reference_literal", literal=True)
