"""Faults of logits made laws, planted in the Triton kernel, and changes that are none.

Ids such as S46 name a report in the project's catalogue of public faults.
"""

from functools import partial

from kernelassay.impls.variants import Variant

_triton = partial(Variant, base="kernelassay.impls.triton_law")

MUTANTS = (
    _triton(
        name="triton_law_top_k_keeps_one_more",
        edits=(
            (
                "high = tl.where(count >= k, high, t - 1)\n"
                "        least = tl.where(count >= k, t, least)",
                "high = tl.where(count > k, high, t - 1)\n"
                "        least = tl.where(count > k, t, least)",
            ),
        ),
        report="S46",
        hides="k = V keeps all, as it should; a sample rarely shows the least likely token.",
        law="logits.top_k",
    ),
    _triton(
        name="triton_law_top_p_keeps_all_ties",
        edits=(
            ("(token <= last[:, None])", "(token < V_MOST)"),
            ("LOWEST = tl", "V_MOST = tl.constexpr(2**31 - 1)\nLOWEST = tl"),
        ),
        report="S44",
        hides="Random logits do not tie.",
        law="logits.top_p",
        missed_by=("logits.temperature", "logits.min_p"),
    ),
    _triton(
        name="triton_law_orders_negative_logits_backwards",
        edits=(("tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)", "bits"),),
        report="S44",
        hides="Right among positive logits.",
        law="logits.top_k",
        missed_by=("logits.temperature",),
    ),
    _triton(
        name="triton_law_drops_the_last_tile",
        edits=(
            (
                "seen = here[:, None] & (token < V)",
                "seen = here[:, None] & (token < V - (V > BLOCK) * (V % BLOCK))",
            ),
        ),
        report="S41",
        hides="A vocabulary of whole tiles, or of one.",
        law="logits.vocabulary",
        missed_by=("logits.temperature",),
    ),
    _triton(
        name="triton_law_p_of_the_neighbour",
        edits=(("tl.load(TOP_P + row * p_r,", "tl.load(TOP_P + (row + 1) % R * p_r,"),),
        report="S88",
        hides="Tests give all rows one p.",
        law="logits.value",
        missed_by=("logits.temperature",),
    ),
    _triton(
        name="triton_law_reads_under_the_mask",
        edits=(
            (
                'mask=seen, other=float("-inf"))',
                'mask=here[:, None] & (token < V), other=float("-inf"))\n'
                '    x += tl.where(seen, 0.0, float("-inf"))',
            ),
            (
                "tl.where(kept & (w >= ratio[:, None]), w, 0.0)",
                "w * (kept & (w >= ratio[:, None])).to(tl.float32)",
            ),
        ),
        report="S16",
        hides="What is masked is finite in tests.",
        law="logits.masked_content",
        missed_by=("logits.mask",),
    ),
    _triton(
        name="triton_law_writes_a_token_too_many",
        edits=(
            (
                "tl.store(out_at, w / l[:, None], mask=here[:, None] & (token < V))",
                "tl.store(out_at, w / l[:, None], mask=here[:, None] & (token < V + 1))",
            ),
        ),
        report="S40",
        hides="The next row writes over it; after the last one lies memory that nobody looks at.",
        law="logits.memory",
        missed_by=("logits.temperature",),
    ),
    _triton(
        name="triton_law_min_p_before_temperature",
        edits=(
            (
                "tl.where(kept & (w >= ratio[:, None]), w, 0.0)",
                "tl.where(kept & (weight_of(x, m, 1.0 + 0.0 * temperature) >= ratio[:, None]),"
                " w, 0.0)",
            ),
        ),
        report="S49",
        hides="At T = 1 nothing differs.",
        law="logits.order",
        missed_by=("logits.min_p",),
    ),
    _triton(
        name="triton_law_sums_by_the_batch",
        edits=(
            (
                "    rows = TILE // block\n",
                "    block = 4 if R < 4 else block\n    rows = TILE // block\n",
            ),
        ),
        report="S43",
        hides="Each size of tile is right; only bits differ, from batch to batch.",
        law="logits.rows",
        missed_by=("logits.temperature",),
    ),
)

CONTROLS = (
    _triton(
        name="triton_law_in_base_2",
        edits=(("tl.exp(scaled)", "tl.exp2(scaled * 1.4426950408889634)"),),
        report="S19",
        hides="That is what an exponential is on a GPU.",
    ),
    _triton(
        name="triton_law_in_blocks_of_256",
        edits=(("BLOCK = 1024\n", "BLOCK = 256\n"),),
        report="S43",
        hides="The size of a tile is the same for all batches.",
    ),
)
