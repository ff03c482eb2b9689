"""ONNX models of one node, and how ONNX Runtime is given torch's tensors; used by the adapters.

Tensors are passed by address and results written into torch's memory, so that guard zones are
next to what the library reads and writes. onnx and onnxruntime are imported when first used.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import AttendCall
from kernelassay.oracle.formats import name_of

__all__ = ["additive", "flat", "joined", "model", "narrow", "run", "signature", "whole"]

_NAMES = {"fp32": "FLOAT", "fp16": "FLOAT16"}
_INTEGERS = {torch.int64: "INT64", torch.int32: "INT32", torch.bool: "BOOL"}

Signature = tuple[tuple[int, tuple[int | None, ...]] | None, ...]
"""(element type, axes) of each input; None for one that is left out, and for a free axis."""


def signature(inputs: Sequence[Tensor | None]) -> Signature:
    """What a model must be told of its inputs; those left out at the end are dropped.

    All axes are free but H D, of three: its half-inferred shapes take a free one for 0.
    """
    import onnx

    def of(x: Tensor) -> tuple[int, tuple[int | None, ...]]:
        name = _INTEGERS.get(x.dtype) or _NAMES[name_of(x.dtype)]
        axes = [None] * x.ndim if x.ndim != 3 else [None, None, x.shape[2]]
        return onnx.TensorProto.DataType.Value(name), tuple(axes)

    given = [None if x is None else of(x) for x in inputs]
    while given[-1] is None:
        given.pop()
    return tuple(given)


def model(op: str, inputs: Signature, outputs: int, opset: int, **attributes: Any) -> Any:
    """A model of one node; inputs are called i0, i1 and so on, outputs o0, o1."""
    from onnx import helper

    domain, _, name = op.rpartition("::")
    named = [f"i{n}" if given else "" for n, given in enumerate(inputs)]
    made = [f"o{n}" for n in range(outputs)]
    assert inputs[0] is not None
    graph = helper.make_graph(
        [helper.make_node(name, named, made, domain=domain, **attributes)],
        name,
        [
            helper.make_tensor_value_info(f"i{n}", *given)
            for n, given in enumerate(inputs)
            if given
        ],
        [helper.make_tensor_value_info(o, inputs[0][0], None) for o in made],
    )
    sets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(domain, 1)] * bool(domain)
    return helper.make_model(graph, opset_imports=sets, ir_version=11)


@lru_cache(maxsize=32)  # a scale is an attribute: there is no end of sessions
def _session(op: str, inputs: Signature, outputs: int, opset: int, attributes: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it refuses, it raises as well
    options.intra_op_num_threads = 2  # so that work is divided
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made = model(op, inputs, outputs, opset, **dict(attributes))
    return onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(
    op: str,
    inputs: Sequence[Tensor | None],
    out: Tensor,
    *,
    outputs: int = 1,
    opset: int = 24,
    **attributes: Any,
) -> None:
    """Have ONNX Runtime's CPU provider write the first output into *out*, which is contiguous.

    *op* is "Name" or "domain::Name"; None leaves an input or an attribute out.
    """
    import onnxruntime

    given = signature(inputs)
    kept = tuple((name, value) for name, value in attributes.items() if value is not None)
    session = _session(op, given, outputs, opset, kept)
    binding = session.io_binding()
    held = [(n, x.numpy()) for n, x in enumerate(inputs) if x is not None]
    for n, x in held:
        binding.bind_cpu_input(f"i{n}", x)
    for n in range(outputs):
        if n or not out.numel():  # memory of its own
            binding.bind_output(f"o{n}", "cpu")
        else:
            kind, shape = held[0][1].dtype.type, tuple(out.shape)
            binding.bind_output("o0", "cpu", 0, kind, shape, out.data_ptr())
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    session.run_with_iobinding(binding, options)


def flat(x: Tensor) -> Tensor:
    """[B, H, T, D] as [B, T, H D]; a view where x lies in memory as BTHD."""
    B, H, T, D = x.shape
    return x.transpose(1, 2).reshape(B, T, H * D)


def whole(mask: Tensor, call: AttendCall) -> Tensor:
    """*mask* with four axes, the last two of Tq and Tk: what most of these operators want."""
    mask = mask[(None,) * (4 - mask.ndim)]
    return mask.expand(*mask.shape[:2], call.q.shape[2], call.k.shape[2])


def additive(call: AttendCall, keep: Tensor | None) -> Tensor | None:
    """The bias, whole, minus infinity where *keep* is False; None if there is neither."""
    bias = call.scoring.bias
    if keep is not None:
        hidden = torch.zeros(keep.shape, dtype=call.q.dtype).masked_fill(~keep, -torch.inf)
        bias = hidden if bias is None else hidden + bias
    return None if bias is None else whole(bias, call)


def narrow(mask: Tensor | None) -> Tensor | None:
    """*mask*, of one row where all queries have the same."""
    return mask[:, :, :1] if mask is not None and mask.stride(2) == 0 else mask


def joined(call: AttendCall, keep: Tensor | None) -> Tensor | None:
    """One mask, as the standard's operator takes it: boolean, or a number to add."""
    if call.scoring.bias is None and keep is not None:
        return whole(keep, call)
    return additive(call, keep)
