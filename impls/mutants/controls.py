"""Kernels that look wrong and are right: what they do is allowed by what they declare."""

from dataclasses import replace
from functools import partial
from typing import Any

from kernelassay.impls.contract import Capabilities, Numerics
from kernelassay.impls.variants import Variant

REFERENCE = "kernelassay.impls.torch_reference"
TRITON = "kernelassay.impls.triton_attention"

_PLAIN = Numerics(l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1, block=64)
_DTYPES = ("fp16", "bf16", "fp32")


def _with(base: Capabilities, **conventions: Any) -> Capabilities:
    return replace(base, conventions=replace(base.conventions, **conventions))


def _without(base: Capabilities, feature: str, *, declined: bool = False) -> Capabilities:
    declines = base.declines | {feature} if declined else base.declines
    return replace(base, supports=base.supports - {feature}, declines=declines)


CONTROLS = (
    Variant(
        name="kept_cells_hold_one",
        base=REFERENCE,
        edits=(("torch.where(keep, z, -math.inf)", "torch.where(keep, z + 1, -math.inf)"),),
        report="tinygrad/tinygrad#2425",
        hides="A constant added to a row's scores moves its LSE alone, which is not offered.",
        capabilities=partial(_without, feature="lse"),
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
        capabilities=partial(_without, feature="lse"),
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
        capabilities=partial(_without, feature="causal.bottom_right", declined=True),
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
