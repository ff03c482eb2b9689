"""Faults of KV caches planted in Triton kernels: rows, tables, pages that are copied, moves."""

from functools import partial

from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.triton_cache"
_mutant = partial(Variant, base=BASE, law="transactions.contents")

PAGE = "tl.load(TABLE + r * most + j // size)"
WITHIN = (PAGE, f"tl.maximum({PAGE}, 0)")
"""Faults write to wrong slots, not past the pool, which would end the process."""
J = "j = tl.load(LENGTHS + r) - (tl.load(OFFSETS + 1 + r) - n)"

MUTANTS = (
    _mutant(
        name="triton_cache_row_of_the_request_before",
        edits=(("(ends <= n)", "(ends < n)"), WITHIN),
        report="S86",
        hides="Right for one request.",
    ),
    _mutant(
        name="triton_cache_lengths_of_request_0",
        edits=(
            (J, J.replace("LENGTHS + r", "LENGTHS").replace("j = ", "j = tl.maximum(") + ", 0)"),
            WITHIN,
        ),
        report="A160",
        hides="Right for one request, and where all are as long.",
    ),
    _mutant(
        name="triton_cache_rows_a_slot_early",
        edits=((J, J.replace("j = ", "j = tl.maximum(") + " - 1, 0)"),),
        report="S103",
        hides="All entries but the last are there, in order, from the second one on.",
    ),
    _mutant(
        name="triton_cache_table_has_another_stride",
        edits=((PAGE, f"tl.maximum({PAGE.replace('* most', '* (most - 1)')}, 0)"),),
        report="A140",
        hides="Right for the first request.",
    ),
    _mutant(
        name="triton_cache_table_of_request_0",
        edits=((PAGE, f"tl.maximum({PAGE.replace('r * most + ', '')}, 0)"),),
        report="A160",
        hides="Right for the first request.",
    ),
    _mutant(
        name="triton_cache_pages_of_powers_of_2",
        edits=(("+ j % size\n", "+ (j & (size - 1))\n"),),
        report="A106",
        hides="Right for every customary page size.",
    ),
    _mutant(
        name="triton_cache_leaves_out_the_last_row",
        edits=(("append_kernel[(N,)]", "append_kernel[(max(1, N - 1),)]"),),
        report="A127",
        hides="Right for single rows, and where a batch is padded.",
    ),
    _mutant(
        name="triton_cache_copies_half_a_page",
        edits=(("page = tl.load(POOL + source * C + c, mask=c < C)",
                "page = tl.load(POOL + source * C + c, mask=c < C // 2, other=0.0)"),),
        report="A119",
        hides="Right where the second half is not used yet.",
        law="transactions.copy_on_write",
    ),
    _mutant(
        name="triton_cache_copies_backwards",
        edits=(
            ("source = tl.load(PAIRS + 2 * pair)", "source = tl.load(PAIRS + 1 + 2 * pair)"),
            ("target = tl.load(PAIRS + 2 * pair + 1)", "target = tl.load(PAIRS + 2 * pair)"),
        ),
        report="A119",
        hides="Right where no page is shared when it is written to.",
        law="transactions.copy_on_write",
    ),
    _mutant(
        name="triton_cache_moves_the_last_entry_first",
        edits=(
            ("tl.load(PAIRS + 2 * i)", "tl.load(PAIRS + 2 * (n - 1 - i))"),
            ("tl.load(PAIRS + 2 * i + 1)", "tl.load(PAIRS + 2 * (n - 1 - i) + 1)"),
        ),
        report="S116",
        hides="Right where entries move further than their number.",
        law="transactions.compacted",
    ),
    _mutant(
        name="triton_cache_moves_keys_alone",
        edits=(("    for pool in (pools.k, pools.v):\n        C = pool[0, 0]",
                "    for pool in (pools.k,):\n        C = pool[0, 0]"),),
        report="S116",
        hides="Attention looks where it should.",
        law="transactions.compacted",
    ),
)  # fmt: skip
