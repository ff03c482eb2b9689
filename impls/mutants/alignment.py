"""Faults of visibility planted in the PyTorch kernel: corners, lengths, masks, windows, tiles.

Ids such as A94 name a report in the project's catalogue of public faults.
"""

from functools import partial

from kernelassay.impls.variants import Variant

_mutant = partial(Variant, base="kernelassay.impls.torch_reference")

CORNERS = (
    _mutant(
        name="corner_top_left",
        edits=(("    offset = used - Tq\n", "    offset = used - used\n"),),
        report="A01",
        hides="For Tq = Tk both corners are the same.",
        law="alignment.causal_corner",
    ),
    _mutant(
        name="decode_loses_the_cache",
        edits=(("    offset = used - Tq\n", "    offset = (used - Tq) * (Tq > 1)\n"),),
        report="A07",
        hides="Prefill is right; the step has to be compared with it.",
        law="alignment.decode_is_last_row",
    ),
    _mutant(
        name="causal_off_by_one",
        edits=(("(k_position <= q_position)", "(k_position < q_position)"),),
        report="A13",
        hides="One key of many, where the mean over keys is what is looked at.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="future_seen_past_one_tile",
        edits=(("(k_position <= q_position)", "(k_position <= q_position + (Tk - Tq >= TILE))"),),
        report="A10",
        hides="Right until the cached history is as long as a key tile.",
        law="alignment.no_future",
    ),
    _mutant(
        name="causal_only_with_a_mask",
        edits=(
            (
                '    if see.causal != "none":\n',
                '    if see.causal != "none" and see.mask is not None:\n',
            ),
        ),
        report="A19",
        hides="Every test of causality gave a mask as well.",
        law="alignment.causal_corner",
    ),
    _mutant(
        name="causal_lost_in_whole_tiles",
        edits=(
            ('    if see.causal != "none":\n', '    if see.causal != "none" and Tk % TILE:\n'),
        ),
        report="A166",
        hides="Lengths that no tile divides are right.",
        law="alignment.causal_corner",
    ),
    _mutant(
        name="corner_of_request_0",
        edits=(("    return row + offset[:, None]\n", "    return row + offset[:1, None]\n"),),
        report="A11",
        hides="Batches of one, and of equal lengths, have one offset.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="lengths_of_request_0",
        edits=(("see.lengths[:, None, None]", "see.lengths[:1, None, None]"),),
        report="A124",
        hides="Tests use equal lengths.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="lengths_are_one_maximum",
        edits=(("see.lengths[:, None, None]", "see.lengths.max()"),),
        report="A124",
        hides="Tests use equal lengths.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="positions_of_request_0",
        edits=(("return see.q_positions\n", "return see.q_positions[:1].expand(B, Tq)\n"),),
        report="A11",
        hides="Requests of one batch start at the same position in tests.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="slots_taken_as_positions",
        edits=(
            ("\n        k_position = see.k_positions[:, None, start:stop]\n", "\n        pass\n"),
        ),
        report="A121",
        hides="Until a ring buffer wraps, the slot of a key is its position.",
        law="alignment.visible_set",
    ),
)

MASKS = (
    _mutant(
        name="mask_polarity",
        edits=(("keep & mask[..., start:stop]", "keep & ~mask[..., start:stop]"),),
        report="A61",
        hides="A random mask of one half is as good either way round.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="mask_of_request_0",
        edits=(("keep & mask[..., start:stop]", "keep & mask[:1, ..., start:stop]"),),
        report="A47",
        hides="Batches of one, and masks shared by the batch.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="mask_of_query_0",
        edits=(("keep & mask[..., start:stop]", "keep & mask[:, :, :1, start:stop]"),),
        report="A74",
        hides="Padding masks are the same for every query.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="mask_of_head_0",
        edits=(("keep & mask[..., start:stop]", "keep & mask[:, :1, :, start:stop]"),),
        report="A70",
        hides="Masks are broadcast over heads in tests.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="mask_ignored_past_512",
        edits=(
            ("    if see.mask is not None:\n", "    if see.mask is not None and start < 512:\n"),
        ),
        report="A71",
        hides="Shapes of tests end at 512 keys.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="mask_ignored_past_the_first_tile",
        edits=(
            ("    if see.mask is not None:\n", "    if see.mask is not None and start == 0:\n"),
        ),
        report="A16",
        hides="Small masked tests have one key tile.",
        law="alignment.visible_set",
    ),
)

WINDOWS = (
    _mutant(
        name="window_plus_one",
        edits=(("k_position >= q_position - left", "k_position >= q_position - left - 1"),),
        report="A94",
        hides="Nothing differs while the window is longer than the sequence.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="window_minus_one",
        edits=(("k_position >= q_position - left", "k_position > q_position - left"),),
        report="A94",
        hides="One key at the far end of a window of thousands.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="window_to_the_right_when_causal",
        edits=(
            ("(k_position <= q_position)", "(k_position <= q_position + (see.window[0] or 0))"),
        ),
        report="A98",
        hides="Layers without a window are right.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="wide_right_window_clipped",
        edits=(
            ("k_position <= q_position + right)", "k_position <= q_position + min(right, Tk))"),
        ),
        report="A95",
        hides="Only with fewer keys than queries is the clipped window too small.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="sinks_dropped",
        edits=(("keep & (within | sink)", "keep & within"),),
        report="kekzl/imp#1303",
        hides="Sinks were tested on another path of the kernel.",
        law="alignment.visible_set",
    ),
)

TILES = (
    _mutant(
        name="tail_tile_dropped",
        edits=(
            ("for start in range(0, end, TILE):", "for start in range(0, end - TILE + 1, TILE):"),
        ),
        report="A55",
        hides="Lengths of tests are multiples of the tile.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="key_counted_twice",
        edits=(("min(start + TILE, Tk)", "min(start + TILE + 1, Tk)"),),
        report="A56",
        hides="One key of many; the values at hand average it away.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="chunk_offset_of_a_whole_prompt",
        edits=(("    offset = used - Tq\n", "    offset = (used - Tq) // 2 * 2\n"),),
        report="A14",
        hides="Chunks of even size, as all chunks in tests are.",
        law="alignment.chunked_is_whole",
    ),
)

RING = (
    _mutant(
        name="keys_end_at_the_last_query",
        edits=(
            (
                "    end = used_keys(call)\n",
                '    end = used_keys(call)\n    if call.visibility.causal == "positions":\n'
                "        end = min(end, int(q_positions(call).max()) + 1)\n",
            ),
        ),
        report="A121",
        hides="In order of storage no key after the last query's position is seen.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="sink_tokens_by_position",
        edits=(("sink = key < see.sinks", "sink = k_position < see.sinks"),),
        report="A121",
        hides="Until a ring buffer wraps, the slot of a key is its position.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="window_of_slots",
        edits=(("within = k_position >= q_position - left", "within = key >= q_position - left"),),
        report="A121",
        hides="Until a ring buffer wraps, the slot of a key is its position.",
        law="alignment.visible_set",
    ),
)

MUTANTS = (*CORNERS, *MASKS, *WINDOWS, *TILES, *RING)
