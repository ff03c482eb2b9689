"""Faults of splits and pages planted in the PyTorch kernels: combines, block tables, last pages.

Ids such as A47 name a report in the project's catalogue of public faults.
"""

from functools import partial

from kernelassay.impls.variants import Variant

_split = partial(Variant, base="kernelassay.impls.torch_split")
_paged = partial(Variant, base="kernelassay.impls.torch_paged")
_VALUE = ("attention.value",)

_SIZE = "size = math.ceil(Tk / splits)"
_STOP = "stop = min(start + size, Tk)"
_PART = "parts.append(partial(call, start, stop))"
_WEIGHT = "weight = torch.exp(m - top_safe)  # [S, B, Hq, Tq]"
_SINK = "total = total + torch.exp(sink - top_safe)  # once, however many parts there are"
_USED = "used = key < lengths[:, None]  # [B, tile]"
_PAGE = "page = pages.table[:, column]  # [B, tile]"
_SLOT = "slot = key % pages.size"
_COLUMN = "column = key // pages.size"
_KEEP = "keep = k_position < lengths[:, None, None]"
_STALE = "v_tile = torch.where(seen, v_tile, 0.0)  # what no row sees may be NaN: 0 x NaN"
_TILE = "tile[used] = pool[page[used], slot[used]]"

SPLITS = (
    _split(
        name="split_size_rounded_down",
        edits=((_SIZE, "size = Tk // splits"),),
        report="A55",
        hides="Lengths that the number of splits divides.",
        law="merging.splits",
    ),
    _split(
        name="split_parts_overlap",
        edits=((_STOP, "stop = min(start + size + 1, Tk)"),),
        report="A127",
        hides="One key in each part counts twice: a few per cent of a long context.",
        law="merging.splits",
    ),
    _split(
        name="split_weights_alike",
        edits=((_WEIGHT, "weight = torch.ones_like(m)"),),
        report="A49",
        hides="Right where the maxima of the parts are equal, as for q = 0.",
        law="merging.splits",
    ),
    _split(
        name="split_last_part_alone",
        edits=((_PART, "parts = [partial(call, start, stop)]"),),
        report="A41",
        hides="Right where there is one part.",
        law="merging.splits",
    ),
    _split(
        name="split_sink_in_each_part",
        edits=((_SINK, "total = total + len(m) * torch.exp(sink - top_safe)"),),
        report="ROCm/rocm-libraries#12227",
        hides="Right where there is one part, or no sink.",
        law="merging.splits",
    ),
    _split(
        name="split_grid_of_four",
        edits=(
            ("    for split in range(splits):\n", "    for split in range(min(splits, 4)):\n"),
        ),
        report="A127",
        hides="Up to four splits; or fewer keys than make a fifth part.",
        law="merging.splits",
    ),
    _split(
        name="split_combine_of_request_0",
        edits=((_WEIGHT, "weight = torch.exp(m[:, :1] - top_safe[:1]).expand_as(m)"),),
        report="A47",
        hides="A batch of one.",
        law="attention.batch_independence",
    ),
    _split(
        name="split_empty_part_is_nan",
        edits=(
            (
                _WEIGHT,
                "row = m.amax(dim=-1, keepdim=True)\n"
                "    weight = torch.exp(m - row + row - top_safe)",
            ),
        ),
        report="A40",
        hides="Parts that hold keys for every row.",
        law="merging.splits",
    ),
    _split(
        name="split_partials_in_bf16",
        edits=(
            (
                "    return m, l, u\n",
                "    rounded = (u / l.clamp_min(1e-30)[..., None]).bfloat16()\n"
                "    return m, l, rounded.float() * l[..., None]\n",
            ),
        ),
        report="A53",
        hides="Eight bits of each part, of which 1e-2 sees nothing.",
        law="attention.value",
        dtype="fp32",
    ),
    _split(
        name="split_lse_of_the_last_part",
        edits=(
            (
                "    lse = top + torch.log(total_safe)\n",
                "    lse = m[-1] + torch.log(l[-1].clamp_min(1e-30))\n",
            ),
        ),
        report="A41",
        hides="Outputs are right; nobody looks at the LSE but the next merge.",
        law="attention.lse",
    ),
    _split(
        name="split_maximum_from_zero",
        edits=(("    top = m.amax(dim=0)\n", "    top = m.amax(dim=0).clamp_min(0.0)\n"),),
        report="A40",
        hides="Scores near 0.",
        law="attention.extreme_scores",
    ),
)

PAGES = (
    _paged(
        name="page_of_request_0",
        edits=((_PAGE, "page = pages.table[:1, column].expand(B, -1)"),),
        report="A47",
        hides="A batch of one, or requests that share a prefix.",
        law="attention.value",
    ),
    _paged(
        name="page_table_ignored",
        edits=((_PAGE, "page = torch.arange(B)[:, None] * (pages.table.shape[1] - 1) + column"),),
        report="A122",
        hides="Right where pages are handed out in order and requests are equally long.",
        law="paged.page_order",
    ),
    _paged(
        name="page_first_entry_only",
        edits=((_PAGE, "page = pages.table[:, column * 0]"),),
        report="A122",
        hides="Contexts of one page.",
        law="attention.value",
    ),
    _paged(
        name="page_slot_of_16",
        edits=((_COLUMN, "column = key // 16"), (_SLOT, "slot = key % 16 % pages.size")),
        report="A131",
        hides="Pages of 16, which is the usual size.",
        law="paged.page_size",
    ),
    _paged(
        name="page_last_one_whole",
        edits=(
            (
                _KEEP,
                "size = call.pages.size\n"
                "    keep = k_position < ((lengths + size - 1) // size * size)[:, None, None]",
            ),
            (
                _USED,
                "used = key < ((lengths + pages.size - 1) // pages.size * pages.size)[:, None]",
            ),
        ),
        report="A106",
        hides="Lengths that are multiples of a page; fresh pages hold zeros.",
        law="paged.stale_slots",
    ),
    _paged(
        name="page_last_one_dropped",
        edits=(
            (
                _KEEP,
                "size = call.pages.size\n"
                "    keep = k_position < (lengths // size * size)[:, None, None]",
            ),
        ),
        report="A106",
        hides="Lengths that are multiples of a page.",
        law="attention.value",
    ),
    _paged(
        name="page_lengths_of_the_longest",
        edits=(
            (
                _KEEP,
                "keep = (k_position < lengths.max()).expand(lengths.shape[0], 1, -1)",
            ),
        ),
        report="A124",
        hides="Requests of one length.",
        law="attention.value",
    ),
    _paged(
        name="page_table_says_the_length",
        edits=(
            (
                _KEEP,
                "held = (call.pages.table >= 0).sum(1) * call.pages.size\n"
                "    keep = k_position < held[:, None, None]",
            ),
            (_USED, "used = key < ((pages.table >= 0).sum(1) * pages.size)[:, None]"),
        ),
        report="A104",
        hides="Whole pages, none in reserve.",
        law="paged.reserved_pages",
    ),
    _paged(
        name="page_boundary_one_late",
        edits=((_COLUMN, "column = ((key - 1).clamp_min(0)) // pages.size"),),
        report="A110",
        hides="The first key of each page but the first is read from the page before.",
        law="attention.value",
    ),
    _paged(
        name="page_keys_of_head_0",
        edits=(
            (
                "    k_tile = k_tile[:, kv_head].float()  # [B, Hq, tile, D]\n",
                "    k_tile = k_tile[:, kv_head * 0].float()\n",
            ),
        ),
        report="A83",
        hides="One KV head.",
        law="attention.value",
    ),
    _paged(
        name="page_corner_of_the_longest",
        edits=(
            (
                "    offset = lengths.long() - Tq\n",
                "    offset = lengths.long().max().expand(B) - Tq\n",
            ),
        ),
        report="A31",
        hides="Requests of one length.",
        law="alignment.visible_set",
    ),
    _paged(
        name="page_stale_values_times_zero",
        edits=(
            (_USED, "used = (key < (pages.table >= 0).sum(1)[:, None] * pages.size)"),
            (
                _STALE,
                "v_tile = v_tile",
            ),
        ),
        report="A104",
        hides="Fresh pages hold zeros.",
        law="paged.stale_slots",
    ),
    _paged(
        name="page_shared_ones_cleared",
        edits=(
            (
                _TILE,
                "tile[used] = pool[page[used], slot[used]]\n"
                "    for b in range(1, B):\n"
                "        tile[b, used[b] & torch.isin(page[b], page[:b][used[:b]])] = 0",
            ),
        ),
        report="A119",
        hides="Requests that share no page.",
        law="paged.shared_pages",
    ),
    _paged(
        name="page_pool_zeroed_past_the_end",
        edits=(
            (
                _TILE,
                "tile[used] = pool[page[used], slot[used]]\n"
                "    last = int(lengths[0]) - 1\n"
                "    pool[pages.table[0, last // pages.size], last % pages.size + 1 :] = 0",
            ),
        ),
        report="A125",
        hides="The answer is right; what others wrote there is gone.",
        law="attention.memory",
        missed_by=_VALUE,
    ),
)

MUTANTS = (*SPLITS, *PAGES)
