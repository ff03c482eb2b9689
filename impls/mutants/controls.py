"""Kernels that look wrong and are right: what they do is allowed by what they declare."""

from dataclasses import replace
from functools import partial
from typing import Any

from kernelassay.impls.contract import Capabilities, Numerics
from kernelassay.impls.variants import Variant

REFERENCE = "kernelassay.impls.torch_reference"
TRITON = "kernelassay.impls.triton_attention"

_SINK_LATER = (
    "    if call.scoring.sink_logits is not None:\n"
    "        m = call.scoring.sink_logits[None, :, None].expand(B, Hq, Tq)\n",
    "    sink = call.scoring.sink_logits\n    sink = m if sink is None else sink[:, None]\n",
)
"""The state starts without a sink; there is one of minus infinity where none is given."""
_PLAIN = Numerics(l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1, block=64)
_DTYPES = ("fp16", "bf16", "fp32")


def _with(base: Capabilities, **conventions: Any) -> Capabilities:
    return replace(base, conventions=replace(base.conventions, **conventions))


def _without(base: Capabilities, features: set[str], *, declined: bool = False) -> Capabilities:
    declines = base.declines | features if declined else base.declines
    return replace(base, supports=base.supports - features, declines=declines)


CONTROLS = (
    Variant(
        name="kept_cells_hold_one",
        base=REFERENCE,
        edits=(("torch.where(keep, z, -math.inf)", "torch.where(keep, z + 1, -math.inf)"),),
        report="tinygrad/tinygrad#2425",
        hides="A constant added to a row's scores moves its LSE alone, which is not offered.",
        capabilities=partial(_without, features={"lse", "sink_logits"}),
    ),
    Variant(
        name="keys_less_their_mean",
        base=REFERENCE,
        edits=(
            (
                "k_tile = k[:, kv_head, start:stop].float().contiguous()",
                "k_tile = (k.float() - k.float().nanmean(2, True))[:, kv_head, start:stop]",
            ),
        ),
        report="A44",
        hides="The mean key adds the same to all scores of a row; the LSE is not offered.",
        capabilities=partial(_without, features={"lse", "sink_logits", "softcap"}),
    ),
    Variant(
        name="empty_rows_are_nan_as_declared",
        base=REFERENCE,
        edits=(("out = u / l_safe[..., None]", "out = u / l[..., None]"),),
        report="A22",
        hides="What an empty row holds is a convention.",
        capabilities=partial(_with, empty_row="nan"),
    ),
    Variant(
        name="lse_in_base_two_as_declared",
        base=REFERENCE,
        edits=(("lse = m + torch.log(l_safe)", "lse = m / math.log(2) + torch.log2(l_safe)"),),
        report="A43",
        hides="The base of the LSE is a convention.",
        capabilities=partial(_with, lse_base="2"),
    ),
    Variant(
        name="last_tile_first",
        base=REFERENCE,
        edits=(("in range(0, end, TILE):", "in reversed(range(0, end, TILE)):"),),
        report="A10",
        hides="Softmax on line takes its keys in any order.",
    ),
    Variant(
        name="top_left_alone",
        base=REFERENCE,
        edits=(('see.causal == "top_left"', 'see.causal in ("top_left", "bottom_right")'),),
        report="Dao-AILab/flash-attention#282",
        hides="It knows one corner, says so, and refuses the other.",
        capabilities=partial(_without, features={"causal.bottom_right"}, declined=True),
    ),
    Variant(
        name="accumulator_in_fp16_as_declared",
        base=REFERENCE,
        edits=(("u = u + p.float() @ v_tile", "u = (u + p.float() @ v_tile).half().float()"),),
        report="A136",
        hides="Coarse arithmetic is allowed for where declared, at lengths that do not overflow.",
        capabilities=partial(replace, max_tokens=1024),
        numerics={dtype: replace(_PLAIN, acc_u=2.0**-11, kstep=64) for dtype in _DTYPES},
    ),
    Variant(
        name="probabilities_in_bf16_as_declared",
        base=REFERENCE,
        edits=(("p = p.to(v.dtype)", "p = p.to(torch.bfloat16)"),),
        report="A139",
        hides="Coarse arithmetic that is declared is allowed for.",
        numerics={dtype: replace(_PLAIN, p="bf16") for dtype in _DTYPES},
    ),
    Variant(
        name="mask_drops_as_declared",
        base=REFERENCE,
        edits=(("keep & mask[..., start:stop]", "keep & ~mask[..., start:stop]"),),
        report="A61",
        hides="What True means in a mask is a convention.",
        capabilities=partial(_with, mask_polarity="drop"),
    ),
    Variant(
        name="alibi_distance_from_the_next_row",
        base=REFERENCE,
        edits=(("- k_position).abs()[:, None]", "- k_position).abs()[:, None] + 1"),),
        report="vllm-project/vllm#945",
        hides="Every distance of a row grows by 1: its LSE alone moves, which is not offered.",
        capabilities=partial(_without, features={"lse", "sink_logits"}),
    ),
    Variant(
        name="softcap_by_an_exponential",
        base=REFERENCE,
        edits=(
            (
                "scoring.softcap * torch.tanh(z / scoring.softcap)",
                "scoring.softcap * (1 - 2 / (1 + torch.exp(2 * z / scoring.softcap)))",
            ),
        ),
        report="A92",
        hides="An exponential that overflows is right in the denominator: the quotient is 0.",
    ),
    Variant(
        name="sink_after_the_last_key",
        base=REFERENCE,
        edits=(
            _SINK_LATER,
            (
                "    empty = l == 0\n",
                "    top = torch.maximum(m, sink).clamp(min=-1e30)\n"
                "    u, l = u * torch.exp(m - top)[..., None], "
                "l * torch.exp(m - top) + torch.exp(sink - top)\n"
                "    m, empty = torch.maximum(m, sink), l == 0\n",
            ),
        ),
        report="Dao-AILab/flash-attention#2752",
        hides="The sink is one more term of the sum, and may come last as well as first.",
    ),
    Variant(
        name="sink_as_a_gate",
        base=REFERENCE,
        edits=(
            _SINK_LATER,
            (
                "    return out.to(q.dtype), lse\n",
                "    out = out * torch.sigmoid(lse - sink).nan_to_num(0.0)[..., None]\n"
                "    return out.to(q.dtype), torch.logaddexp(lse, sink)\n",
            ),
        ),
        report="pytorch/torchtitan#2211",
        hides="exp(lse) / (exp(lse) + exp(sink)) is a sigmoid: the same softmax in other words.",
    ),
    Variant(
        name="triton_tile_for_masks",
        base=TRITON,
        edits=(("BLOCK_N=BLOCK_N,", "BLOCK_N=BLOCK_N if mask is None else 2 * BLOCK_N,"),),
        report="A107",
        hides="Batch invariance is among calls that use the same features.",
    ),
    Variant(
        name="triton_tile_for_decode_as_declared",
        base=TRITON,
        edits=(("BLOCK_N=BLOCK_N,", "BLOCK_N=BLOCK_N if Tq > 1 else 16,"),),
        report="A107",
        hides="Another tile for another shape is right where batch invariance is not claimed.",
        capabilities=partial(_with, batch_invariant=False),
        numerics={
            dtype: Numerics(l_from_p=False, block=16)
            if dtype != "fp32"
            else Numerics(l_from_p=False, block=16, acc_u=2.0**-24, acc_biased=False, kstep=1)
            for dtype in _DTYPES
        },
    ),
)
