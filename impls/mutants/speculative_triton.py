"""Faults of verification planted in the Triton kernel: tiles, rows, counters, stores.

Ids such as S37 name a report in the project's catalogue of public faults of speculative decoding.
"""

from functools import partial

from kernelassay.impls.mutants.speculative import drawing
from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.triton_verify"
_mutant = partial(Variant, base=BASE, law="speculative.decisions")
_seeded = partial(Variant, base=BASE, capabilities=partial(drawing, noise="seeded"))
_EXACT = ("speculative.decisions",)
_FIRST = ("speculative.first_token",)
_LENGTH = ("speculative.commit_length",)

BEFORE = "before += tl.sum(w, 1)"
SECOND = "# sum of the weights of earlier tiles\n    for start in range(0, end, TILE):"
ROW = "    row = n + r\n"
DRAWS = "draws = here & ~stopped & (a < limit)"
TILES = ("TILE = 1024\n", "TILE = 2\n")

TILING = (
    _mutant(
        name="triton_verify_sums_start_anew_at_a_tile",
        edits=(TILES, (BEFORE, "before += 0.0")),
        report="S41",
        hides="A vocabulary of one tile has one sum; here a tile has two tokens.",
    ),
    _mutant(
        name="triton_verify_sums_of_two_tiles_at_most",
        edits=(TILES, (BEFORE, "before = tl.sum(w, 1)")),
        report="S41",
        hides="Right for two tiles; here a tile has two tokens.",
    ),
    _mutant(
        name="triton_verify_drops_the_last_tile",
        edits=((SECOND, SECOND.replace("end", "tl.maximum(end - TILE, 1)")),),
        report="S38",
        hides="A vocabulary of one tile is whole, and the last tile is rarely drawn from.",
        missed_by=_FIRST,
        level="pr",
    ),
    _mutant(
        name="triton_verify_threshold_of_p",
        edits=(("tl.where(rejected, total, total_p)", "total_p"),),
        report="S40",
        hides="Right for the bonus, and where everything is rejected.",
    ),
    _mutant(
        name="triton_verify_weights_in_fp16",
        edits=(
            (
                "w = tl.where(rejected[:, None], excess, p)",
                "w = tl.where(rejected[:, None], excess, p).to(tl.float16).to(tl.float64)",
            ),
        ),
        report="S19",
        hides="An error of 2^-11 in a probability is small.",
    ),
    _mutant(
        name="triton_verify_greedy_takes_a_later_tile",
        edits=(TILES, ("largest > best", "largest >= best")),
        report="S43",
        hides="The first of equals in a tile, and laws of real models have one largest token.",
        law="speculative.greedy",
    ),
    _mutant(
        name="triton_verify_greedy_takes_the_last_of_a_tile",
        edits=(
            (
                "first = tl.min(tl.where(p == largest[:, None], v[None, :], V), 1)",
                "first = tl.max(tl.where(p == largest[:, None], v[None, :], -1), 1)",
            ),
        ),
        report="S43",
        hides="Laws of real models have one largest token.",
        law="speculative.greedy",
        missed_by=_EXACT,
    ),
)

READS = (
    _mutant(
        name="triton_verify_judges_by_the_next_row",
        edits=(("P + (n + r) * p_n + x", "P + (n + r + 1) * p_n + x"),),
        report="S73",
        hides="Rows of a fluent text are alike.",
    ),
    _mutant(
        name="triton_verify_rows_by_the_number_of_drafts",
        edits=((ROW, "    row = n\n"),),
        report="S85",
        hides="Right for the first request.",
        missed_by=_LENGTH,
    ),
    _mutant(
        name="triton_verify_bonus_of_the_row_before",
        edits=((ROW, "    row = n + r - tl.where((a == k) & (k > 0), 1, 0)\n"),),
        report="S73",
        hides="The first token is right, and so are all drafts.",
        missed_by=(*_FIRST, *_LENGTH),
    ),
    _mutant(
        name="triton_verify_residual_is_a_distance",
        edits=(("tl.where(p > q, p - q, 0.0)", "tl.abs(p - q)"),),
        report="S04",
        hides="Right where p has no token that q has, too.",
        missed_by=("speculative.certain", *_LENGTH),
    ),
    _mutant(
        name="triton_verify_certain_residual_keeps_the_draft",
        edits=(("tl.where(v[None, :] == x[:, None], 0.0, p)", "p"),),
        report="S03",
        hides="The residual of drafts with a law is right.",
        law="speculative.certain",
        missed_by=_EXACT,
    ),
    _mutant(
        name="triton_verify_residual_of_a_skipped_draft",
        edits=(("rejected = draws & (x >= 0)", "rejected = draws & (a < k)"),),
        report="S79",
        hides="The draft is not accepted; the law of what comes instead is hard to see.",
        law="speculative.skipped",
        missed_by=_EXACT,
    ),
    _mutant(
        name="triton_verify_stop_tokens_of_request_0",
        edits=(("STOP + r * S + s", "STOP + r * 0 + s"),),
        report="S67",
        hides="Requests of one model have one end of text.",
        law="speculative.stop",
        missed_by=_EXACT,
    ),
    _mutant(
        name="triton_verify_draws_after_a_stop_token",
        edits=((DRAWS, "draws = here & (a < limit)"),),
        report="S64",
        hides="One token too many after the end; engines that cut the text do not show it.",
        law="speculative.stop",
        missed_by=_EXACT,
    ),
    _mutant(
        name="triton_verify_budget_of_request_0",
        edits=(("tl.load(BUDGET + r,", "tl.load(BUDGET + r * 0,"),),
        report="S70",
        hides="Requests in tests have one length.",
        law="speculative.budget",
        missed_by=_EXACT,
    ),
)

NOISE = (
    _seeded(
        name="triton_verify_seeded_by_request_0",
        edits=(("tl.load(SEEDS + r,", "tl.load(SEEDS + r * 0,"),),
        report="S32",
        hides="Every request has the right law.",
        law="speculative.independent",
    ),
    _seeded(
        name="triton_verify_seeded_draw_reuses_the_acceptance_uniform",
        edits=(("tl.rand(seed, 2 * a + 1)", "tl.rand(seed, tl.where(a < k, 2 * a, 2 * a + 1))"),),
        report="S29",
        hides="Total variation of the first token is some hundredths.",
        law="speculative.branches",
        missed_by=_LENGTH,
    ),
    _seeded(
        name="triton_verify_seeded_by_program",
        edits=(
            (
                "tl.load(SEEDS + r, mask=here, other=0)",
                "tl.load(SEEDS + r, mask=here, other=0) + r",
            ),
        ),
        report="S130",
        hides="The law is right, and the same batch gives the same tokens.",
        law="speculative.requests_apart",
        missed_by=("speculative.independent", "speculative.deterministic"),
    ),
)

STORES = (
    _mutant(
        name="triton_verify_goes_on_after_a_rejection",
        edits=(("on = accepted & ~stopped", "on = on & ~stopped"),),
        report="S77",
        hides="Right for one draft.",
    ),
    _mutant(
        name="triton_verify_counts_what_is_emitted",
        edits=(("ACCEPTED + r, a, mask", "ACCEPTED + r, a + draws.to(tl.int32), mask"),),
        report="S76",
        hides="Tokens are right.",
        missed_by=(*_FIRST, "speculative.sequence", *_LENGTH),
    ),
    _mutant(
        name="triton_verify_leaves_the_rest_unwritten",
        edits=(("token, mask=here)", "token, mask=here & (i <= a))"),),
        report="S82",
        hides="Fresh memory often holds what it held before: a placeholder.",
        law="speculative.memory",
    ),
    _mutant(
        name="triton_verify_rows_of_tokens_overlap",
        edits=(("TOKENS + r * (K + 1) + i", "TOKENS + r * K + i"),),
        report="S41",
        hides="Right for one request.",
    ),
)

MUTANTS = (*TILING, *READS, *NOISE, *STORES)
