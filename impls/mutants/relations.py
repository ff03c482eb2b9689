"""Faults that show in a pair of calls, or in what is exact whatever the scores.

Ids such as A94 name a report in the project's catalogue of public faults.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from kernelassay.impls.contract import Capabilities, Numerics
from kernelassay.impls.variants import Variant

REFERENCE = "kernelassay.impls.torch_reference"
_mutant = partial(Variant, base=REFERENCE)
_triton = partial(Variant, base="kernelassay.impls.triton_attention")
_VALUE = ("attention.value",)

_TILE = "BLOCK_N=BLOCK_N,"
_KEYS = "k_tile = k[:, kv_head, start:stop].float().contiguous()"
_END = "    end = used_keys(call)\n"
_STOP = "        stop = min(start + TILE, Tk)\n"
_HELD = ("TILE = 64  # keys a step\n", "TILE = 64  # keys a step\nHELD: dict = {}\n")
"""What a kernel keeps from call to call."""


def _no_lse(base: Capabilities) -> Capabilities:
    return replace(base, supports=base.supports - {"lse"})


_BF16_SCORES: Mapping[str, Numerics] = {
    dtype: Numerics(
        score="bf16", l_from_p=False, acc_u=2.0**-24, acc_biased=False, kstep=1, block=64
    )
    for dtype in ("fp16", "bf16", "fp32")
}

HEADS = (
    _mutant(
        name="heads_share_a_maximum",
        edits=(
            (
                "torch.maximum(m, z.amax(dim=-1))",
                "torch.maximum(m, z.amax(dim=-1).amax(dim=1, keepdim=True) "
                "if call.scoring.plain else z.amax(dim=-1))",
            ),
        ),
        report="A158",
        hides="Any number may be subtracted, until another head's scores lie 88 above.",
        law="attention.head_independence",
        missed_by=_VALUE,
    ),
)

ORDER = (
    _mutant(
        name="end_at_the_last_slots_position",
        edits=(
            (
                _END,
                _END + '    if call.visibility.causal == "positions":\n'
                "        end = min(end, int(call.visibility.k_positions[:, -1].max()) + 1)\n",
            ),
        ),
        report="A121",
        hides="In order of storage the last slot has the last position.",
        law="attention.key_permutation",
    ),
    _mutant(
        name="tile_skipped_by_its_last_position",
        edits=(
            (
                _STOP,
                _STOP + "        see, at = call.visibility, call.visibility.k_positions\n"
                "        if at is not None and see.window[0] and bool((at[:, stop - 1] "
                "+ see.window[0] < see.q_positions.amin(-1)).all()): continue\n",
            ),
        ),
        report="A121",
        hides="In order of storage the last slot of a tile has its last position.",
        law="attention.key_permutation",
        missed_by=_VALUE,
    ),
)

SHIFTS = (
    _mutant(
        name="scores_clamped",
        edits=(("z = z * scale\n", "z = (z * scale).clamp(-80, 80)\n"),),
        report="A52",
        hides="Scores of N(0, 1) data never come near; exp no longer overflows.",
        law="attention.score_shift",
        missed_by=_VALUE,
    ),
    _mutant(
        name="keys_centred_by_their_mean",
        edits=(
            (
                _KEYS,
                "k_tile = k.float() - call.scoring.plain * k.float().nanmean(2, True)\n"
                "        k_tile = k_tile[:, kv_head, start:stop]",
            ),
        ),
        report="A44",
        hides="The output is the same; the LSE is another one, as the first merge will show.",
        law="attention.score_shift",
        missed_by=_VALUE,
    ),
    _mutant(
        name="explicit_scale_on_top_of_the_default",
        edits=(("if call.scale is None else call.scale", "* (call.scale or 1.0)"),),
        report="A86",
        hides="A test without a scale is right, and so is one with a scale of 1.",
        law="attention.default_scale",
    ),
)

HULL = (
    _mutant(
        name="masked_with_minus_1e4_beside_bf16_scores",
        edits=(
            ("z = z * scale\n", "z = (z * scale).bfloat16().float()\n"),
            ("z = torch.where(keep, z, -math.inf)", "z = torch.where(keep, z, -1e4)"),
            ("empty = l == 0", "empty = ~visible(call, 0, Tk).any(dim=-1)"),
        ),
        report="A31",
        hides="Scores of -60,000 in bf16 are off by 100: the budget allows any weights.",
        law="attention.hull",
        missed_by=(*_VALUE, "attention.extreme_scores"),
        capabilities=_no_lse,
        numerics=_BF16_SCORES,
    ),
    _mutant(
        name="log2e_to_four_digits",
        edits=(
            (
                "p = torch.exp(z - m_safe[..., None])",
                "p = torch.exp2(1.443 * (z - m_safe[..., None]))",
            ),
        ),
        report="A139",
        hides="Weights are off by parts in ten thousand.",
        law="attention.integer_masses",
        dtype="fp32",
    ),
)

TERMS = (
    _mutant(
        name="lse_of_the_whole_context",
        edits=(
            (
                "    lse = m + torch.log(l_safe)\n",
                "    from dataclasses import replace\n    see = call.visibility\n"
                "    lse = m + torch.log(l_safe) if see.window == (None, None) else "
                "attention(replace(call, visibility=replace(see, window=(None, None))))[1]\n",
            ),
        ),
        report="A31",
        hides="The output is right; the LSE is that of another pass over all keys.",
        law="alignment.window_truncation",
        missed_by=(*_VALUE, "attention.lse"),
    ),
    _mutant(
        name="sink_only_past_one_tile",
        edits=(
            (
                "    if call.scoring.sink_logits is not None:\n",
                "    if call.scoring.sink_logits is not None and Tk > TILE:\n",
            ),
        ),
        report="kekzl/imp#1303",
        hides="Sinks were tested on another path of the kernel.",
        law="attention.sink_relation",
    ),
    _mutant(
        name="no_sink_is_a_sink_of_zero",
        edits=(
            (
                "m = call.scoring.sink_logits[None, :, None]",
                "m = call.scoring.sink_logits.nan_to_num(neginf=0.0)[None, :, None]",
            ),
        ),
        report="A38",
        hides="Every head of a test has a sink.",
        law="attention.sink_relation",
        missed_by=_VALUE,
    ),
    _mutant(
        name="minus_infinity_added_as_minus_1e4",
        edits=(
            ("(bias[..., start:stop] > -math.inf)", "(bias[..., start:stop] < math.inf)"),
            ("[..., start:stop].float()\n", "[..., start:stop].float().clamp(min=-1e4)\n"),
        ),
        report="A64",
        hides="Right unless a score that is hidden lies 10,000 above those that are seen.",
        law="attention.bias_is_mask",
        missed_by=_VALUE,
    ),
    _mutant(
        name="window_ignored_beside_a_mask",
        edits=(("    if left is not None:\n", "    if left is not None and see.mask is None:\n"),),
        report="A31",
        hides="Windows and masks are each tested without the other.",
        law="alignment.corner_is_mask",
        missed_by=(*_VALUE, "alignment.visible_set"),
    ),
)

LENGTHS = (
    _mutant(
        name="mean_of_all_slots",
        edits=(
            (
                _KEYS,
                "k_tile = k.float() - call.scoring.plain * k.float().mean(2, True)\n"
                "        k_tile = k_tile[:, kv_head, start:stop]",
            ),
        ),
        report="A44",
        hides="The mean key adds the same to all scores, until a slot beyond a length holds NaN.",
        law="attention.padding",
        missed_by=_VALUE,
        capabilities=_no_lse,
    ),
    _mutant(
        name="key_lost_at_exactly_two_tiles",
        edits=(
            (
                "min(start + TILE, Tk)",
                "min(start + TILE - (end == 2 * TILE and start == TILE), Tk)",
            ),
        ),
        report="A107",
        hides="Wrong at one length, where another path takes over.",
        law="alignment.last_tile",
    ),
)

MEMORY = (
    _mutant(
        name="lengths_of_the_first_call",
        edits=(
            _HELD,
            (
                "see.lengths[:, None, None]",
                "HELD.setdefault((B, Hq, Tq, Tk), see.lengths)[:, None, None]",
            ),
        ),
        report="A160",
        hides="Kept for each shape: a test that makes one call of each is right.",
        law="attention.second_call",
    ),
    _mutant(
        name="strides_of_the_first_call",
        edits=(
            _HELD,
            (
                "q, k, v = call.q, call.k, call.v\n",
                "q, k, v = call.q, call.k, call.v\n"
                "    strides = HELD.setdefault((q.shape, v.shape, v.dtype), v.stride())\n"
                "    v = v.as_strided(v.shape, strides, v.storage_offset())\n",
            ),
        ),
        report="A131",
        hides="Kept for each shape: a test that makes one call of each is right.",
        law="attention.second_call",
        missed_by=_VALUE,
    ),
    _mutant(
        name="mask_of_the_first_call",
        edits=(
            _HELD,
            (
                "mask = see.mask.expand(B, Hq, Tq, Tk)",
                "mask = HELD.setdefault((see.mask.shape, B, Hq, Tq, Tk), see.mask)"
                ".expand(B, Hq, Tq, Tk)",
            ),
        ),
        report="A160",
        hides="Kept for each shape: a test that makes one call of each is right.",
        law="attention.second_call",
    ),
    _mutant(
        name="slopes_by_the_number_of_heads",
        edits=(
            _HELD,
            (
                "scoring.alibi[:, None, None]",
                "HELD.setdefault(shape[1], scoring.alibi)[:, None, None]",
            ),
        ),
        report="A101",
        hides="A model has one number of heads, and one set of slopes.",
        law="attention.second_call",
    ),
    _mutant(
        name="output_added_to_the_last_one",
        edits=(
            _HELD,
            (
                "    return out.to(q.dtype), lse\n",
                "    out = out + HELD.get(key := (q.shape, k.shape, q.dtype), 0.0)\n"
                "    HELD[key] = out\n    return out.to(q.dtype), lse\n",
            ),
        ),
        report="A167",
        hides="The first call into fresh memory is right.",
        law="attention.second_call",
    ),
)

LAUNCH = (
    _triton(
        name="triton_slots_pick_tile",
        edits=((_TILE, "BLOCK_N=BLOCK_N if Tk % 2 else 2 * BLOCK_N,"),),
        report="A161",
        hides="Both tiles are right; only the bits differ.",
        law="attention.padding",
        dtype="fp32",
        missed_by=_VALUE,
    ),
)

MUTANTS = (*HEADS, *ORDER, *SHIFTS, *HULL, *TERMS, *LENGTHS, *MEMORY, *LAUNCH)

CONTROLS = (
    Variant(
        name="scores_in_bf16_as_declared",
        base=REFERENCE,
        edits=(("z = z * scale\n", "z = (z * scale).bfloat16().float()\n"),),
        report="A139",
        hides="Coarse scores change the weights of a softmax; a softmax it stays.",
        numerics=_BF16_SCORES,
    ),
)
