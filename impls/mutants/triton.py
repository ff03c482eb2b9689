"""Faults planted in the Triton kernel: what only tiles, pointers and launch choices can get wrong.

The kernel declares `batch_invariant`, so a launcher that picks another tile for another batch,
group or query count breaks its word, though every answer lies within the budget. Such a choice
makes a served model's answers depend on who else is being served.
"""

from dataclasses import replace
from functools import partial

from kernelassay.impls.contract import Capabilities
from kernelassay.impls.variants import Variant


def _without_windows(base: Capabilities) -> Capabilities:
    return replace(base, supports=base.supports - _WINDOWS, declines=_WINDOWS)


_mutant = partial(Variant, base="kernelassay.impls.triton_attention")
_TILE = "BLOCK_N=BLOCK_N,"
_WINDOWS = frozenset(("window", "sink_tokens"))
_VALUE = ("attention.value",)

LAUNCH = (
    _mutant(
        name="triton_group_picks_tile",
        edits=((_TILE, "BLOCK_N=BLOCK_N if Hq == Hkv else 2 * BLOCK_N,"),),
        report="A107",
        hides="Both tiles are right; only the bits differ.",
        law="attention.grouped_heads",
        missed_by=_VALUE,
    ),
    _mutant(
        name="triton_batch_picks_tile",
        edits=((_TILE, "BLOCK_N=BLOCK_N if B == 1 else 2 * BLOCK_N,"),),
        report="A161",
        hides="Both tiles are right; only the bits differ.",
        law="attention.batch_independence",
        missed_by=_VALUE,
    ),
    _mutant(
        name="triton_decode_picks_tile",
        edits=((_TILE, "BLOCK_N=BLOCK_N if Tq > 1 else 2 * BLOCK_N,"),),
        report="A107",
        hides="Both tiles are right; only the bits differ.",
        law="alignment.decode_is_last_row",
        missed_by=_VALUE,
    ),
    _mutant(
        name="triton_chunk_picks_tile",
        edits=((_TILE, "BLOCK_N=BLOCK_N if Tq > 16 else 2 * BLOCK_N,"),),
        report="A161",
        hides="Both tiles are right; only the bits differ.",
        law="alignment.chunked_is_whole",
        missed_by=_VALUE,
    ),
    _mutant(
        name="triton_strides_pick_tile",
        edits=((_TILE, "BLOCK_N=BLOCK_N if k.is_contiguous() else 2 * BLOCK_N,"),),
        report="A76",
        hides="Both paths are right; only the bits differ.",
        law="attention.views",
        missed_by=_VALUE,
    ),
    _mutant(
        name="triton_window_ignored",
        edits=(
            ("        refuse_unsupported(self.name, self.capabilities, call)\n", ""),
            ("for n in see.window)", "for n in (None, None))"),
        ),
        capabilities=_without_windows,
        report="A31",
        hides="The caller believes that the window was applied; up to its length all is right.",
        law="attention.declines",
        missed_by=_VALUE,
    ),
)

KERNEL = (
    _mutant(
        name="triton_rows_share_a_maximum",
        edits=(("tl.maximum(m, tl.max(z, 1))", "tl.maximum(m, tl.max(tl.max(z, 1), 0))"),),
        report="A158",
        hides="Any number may be subtracted from a row: only the rounding tells.",
        law="attention.row_independence",
        dtype="fp32",
        missed_by=_VALUE,
    ),
    _mutant(
        name="triton_maximum_before_the_mask",
        edits=(
            (
                'z = tl.where(visible, z, float("-inf"))  # [M, N]',
                'top = tl.max(z, 1); z = tl.where(visible, z, float("-inf"))',
            ),
            ("tl.maximum(m, tl.max(z, 1))", "tl.maximum(m, top)"),
        ),
        report="A10",
        hides="Later tokens move a row by a rounding, no more.",
        law="alignment.no_future",
        dtype="fp32",
        missed_by=_VALUE,
    ),
    _mutant(
        name="triton_one_row_too_many_stored",
        edits=(
            (
                "tl.store(out_at, out, mask=(rows[:, None] < Tq)",
                "tl.store(out_at, out, mask=(rows[:, None] < Tq + 1)",
            ),
        ),
        report="A110",
        hides="The next head writes over it; after the last one lies memory nobody looks at.",
        law="attention.memory",
        missed_by=_VALUE,
    ),
    _mutant(
        name="triton_lse_rows_not_masked",
        edits=(
            (
                "tl.store(LSE + (b * Hq + h) * Tq + rows64, lse, mask=rows < Tq)",
                "tl.store(LSE + (b * Hq + h) * Tq + rows64, lse)",
            ),
        ),
        report="A46",
        hides="The next head writes over it; after the last one lies memory nobody looks at.",
        law="attention.memory",
        missed_by=_VALUE,
    ),
    _mutant(
        name="triton_log2e_is_1_44",
        edits=(("tl.exp(z - m_safe[:, None])", "tl.exp2((z - m_safe[:, None]) * 1.44)"),),
        report="A139",
        hides="Scores 0.2 % too small: every tolerance of 1e-2 lets it pass.",
        law="attention.exact_dyadic",
    ),
    _mutant(
        name="triton_accumulator_not_rescaled",
        edits=(("u = u * rescale[:, None]", "u = u * 1.0"),),
        report="A49",
        hides="Right in one tile, and where scores fall from tile to tile.",
        law="attention.extreme_scores",
    ),
    _mutant(
        name="triton_tiles_of_a_square",
        edits=(
            (
                "end = tl.max(high, 0) + 1\n",
                "end = tl.max(high, 0) + 1\n"
                "        if right == 0:\n"
                "            end = tl.minimum(end, row_tiles * BLOCK_M)\n",
            ),
        ),
        report="A14",
        hides="For Tq = Tk, and one row tile of cached keys, the range of tiles is right.",
        law="alignment.causal_corner",
    ),
    _mutant(
        name="triton_length_rounded_up",
        edits=(
            (
                "else see.lengths\n",
                "else ((see.lengths + BLOCK_N - 1) // BLOCK_N * BLOCK_N).clamp(max=Tk)\n",
            ),
        ),
        report="A106",
        hides="Lengths of tests are multiples of 32.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="triton_pad_channels_read",
        edits=(
            (
                "q = tl.load(q_at, mask=(rows[:, None] < Tq) & (d[None, :] < D), other=0.0)",
                "q = tl.load(q_at, mask=rows[:, None] < Tq, other=0.0)",
            ),
        ),
        report="A164",
        hides="Times the zeros of k: nothing, unless what lies after the last row is NaN.",
        law="attention.value",
    ),
    _mutant(
        name="triton_channels_taken_as_adjacent",
        edits=(("+ d[None, :] * v_d", "+ d[None, :]"),),
        report="A77",
        hides="The innermost stride is 1 in every test.",
        law="attention.views",
        missed_by=_VALUE,
    ),
)

OFFSETS = (
    _mutant(
        name="triton_keys_counted_in_32_bits",
        edits=(
            (
                "K + b * k_b + g * k_h + keys64[None, :] * k_t",
                "K + b * k_b + g * k_h + keys[None, :] * k_t",
            ),
        ),
        report="A80",
        hides="A key times its stride overflows where a cache holds 2**31 elements.",
        law="attention.far_offsets",
        missed_by=_VALUE,
    ),
)

MUTANTS = (*LAUNCH, *KERNEL, *OFFSETS)
