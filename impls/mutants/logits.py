"""Faults of logits made laws, planted in the PyTorch kernel: cuts, ties, orders, masks, tiles.

Ids such as S46 name a report in the project's catalogue of public faults.
"""

from dataclasses import replace
from functools import partial

from kernelassay.impls.contract import Capabilities
from kernelassay.impls.mutants import logits_controls, logits_triton
from kernelassay.impls.mutants.logits_lines import (
    BEFORE,
    DIFFERENCE,
    K_TIES,
    KTH,
    LAW,
    MASK,
    MIN_P,
    P_TIES,
    RUN,
    TEMPERATURE,
    TOP_P,
    WEIGHTS,
)
from kernelassay.impls.variants import Variant

_mutant = partial(Variant, base="kernelassay.impls.torch_law")
_VALUE = ("logits.value",)
_AGAIN = "torch.where(x == -math.inf, 0.0, scaled.exp())"
_COLD = "(x - x.amax(1, keepdim=True)).exp()"


def _without_min_p(c: Capabilities) -> Capabilities:
    """The same without min-p, which is declined."""
    name = frozenset({"law.min_p"})
    return replace(c, supports=c.supports - name, declines=c.declines | name)


CUTS = (
    _mutant(
        name="law_top_k_keeps_one_more",
        edits=(
            (KTH, "return x >= ordered.gather(1, k.long()[:, None].clamp_max(x.shape[1] - 1))"),
        ),
        report="S46",
        hides="k = V keeps all, as it should; a sample rarely shows the least likely token.",
        law="logits.top_k",
    ),
    _mutant(
        name="law_top_k_cuts_ties_by_rank",
        edits=((K_TIES, K_TIES.replace('"all"', '"never"')),),
        report="S44",
        hides="Random logits do not tie.",
        law="logits.top_k",
        missed_by=("logits.temperature", "logits.top_p"),
    ),
    _mutant(
        name="law_top_k_ties_depend_on_the_batch",
        edits=((K_TIES, K_TIES.replace("ties", "len(x) < 8 and ties")),),
        report="S43",
        hides="Each path is right by itself; small batches take one, large ones the other.",
        law="logits.rows",
        missed_by=(*_VALUE, "logits.top_k"),
    ),
    _mutant(
        name="law_top_k_counts_ties_once",
        edits=(
            (
                KTH,
                "falls = torch.zeros_like(x, dtype=torch.int64)\n"
                "        falls[:, 1:] = (ordered[:, 1:] < ordered[:, :-1]).cumsum(1)\n"
                "        return x >= ordered.where(falls < k[:, None], math.inf).amin(1, True)",
            ),
        ),
        report="S44",
        hides="Random logits do not tie.",
        law="logits.top_k",
    ),
    _mutant(
        name="law_top_p_keeps_one_more",
        edits=((BEFORE, "before = torch.cat((torch.zeros_like(sums[:, :2]), sums[:, :-2]), 1)"),),
        report="S46",
        hides="Samples rarely show the token that is too many.",
        law="logits.top_p",
    ),
    _mutant(
        name="law_top_p_goes_on_at_exactly_p",
        edits=((RUN, RUN.replace("before <", "before <=")),),
        report="S46",
        hides="Shares of random logits are never exactly p.",
        law="logits.top_p",
        missed_by=("logits.order", "logits.min_p"),
    ),
    _mutant(
        name="law_top_p_leaves_out_what_crosses",
        edits=((RUN, RUN.replace("before", "sums").replace("<", "<=") + " | (before == 0)"),),
        report="S46",
        hides="Kept are likely tokens, whose shares add up to less than p.",
        law="logits.top_p",
    ),
    _mutant(
        name="law_top_p_of_one_is_greedy",
        edits=(
            (
                RUN,
                "reached = sums > (p * sums[:, -1])[:, None]\n"
                "    last = reached.int().argmax(1, keepdim=True)\n"
                "    run = torch.arange(x.shape[1], device=x.device) <= last",
            ),
        ),
        report="S47",
        hides="p = 1 means off, and is not passed on by most callers.",
        law="logits.top_p",
        missed_by=("logits.order", "logits.min_p"),
    ),
    _mutant(
        name="law_top_p_looks_up_index_v",
        edits=(
            (
                RUN,
                "last = torch.searchsorted(sums, (p * sums[:, -1])[:, None], right=True)\n"
                "    run = x.gather(1, order) >= ordered.gather(1, last)",
            ),
        ),
        report="S37",
        hides="A cumulated sum reaches any p below 1.",
        law="logits.top_p",
    ),
    _mutant(
        name="law_top_p_keeps_all_ties",
        edits=((P_TIES, P_TIES.replace('ties == "all"', "ties")),),
        report="S44",
        hides="Random logits do not tie.",
        law="logits.top_p",
    ),
    _mutant(
        name="law_min_p_of_logits",
        edits=(
            (
                MIN_P,
                MIN_P.replace(
                    "w >= call.min_p[:, None]", "x >= call.min_p[:, None] * x.amax(1, True)"
                ),
            ),
        ),
        report="S49",
        hides="The likeliest token is kept where its logit is positive.",
        law="logits.min_p",
    ),
    _mutant(
        name="law_min_p_is_absolute",
        edits=(
            (
                MIN_P,
                MIN_P.replace("w >=", "(w >= w.amax(1, True)) | (w / w.sum(1, True) >=").replace(
                    "[:, None],", "[:, None]),"
                ),
            ),
        ),
        report="S50",
        hides="Where one token has nearly all the mass both are the same.",
        law="logits.min_p",
    ),
)

ORDERS = (
    _mutant(
        name="law_top_p_before_temperature",
        edits=((TOP_P, TOP_P.replace("x, w,", f"x, torch.where(w > 0, {_COLD}, 0.0),")),),
        report="S49",
        hides="At T = 1 nothing differs.",
        law="logits.order",
        missed_by=("logits.temperature", "logits.top_p", "logits.min_p"),
    ),
    _mutant(
        name="law_top_p_before_top_k",
        edits=((TOP_P, TOP_P.replace("x, w,", f"x, {_AGAIN},")),),
        report="S49",
        hides="Each map by itself is right.",
        law="logits.order",
        missed_by=("logits.top_k", "logits.top_p"),
    ),
    _mutant(
        name="law_min_p_before_temperature",
        edits=((MIN_P, MIN_P.replace("w >=", f"{_COLD} >=")),),
        report="S49",
        hides="At T = 1 nothing differs.",
        law="logits.order",
        missed_by=("logits.temperature", "logits.min_p"),
    ),
    _mutant(
        name="law_min_p_of_what_top_p_renormalised",
        edits=((TOP_P, f"{TOP_P}\n        w = w / w.sum(1, keepdim=True)"),),
        report="S50",
        hides="Each map by itself is right: what min-p reads next has changed in place.",
        law="logits.order",
        missed_by=("logits.top_p", "logits.min_p"),
    ),
    _mutant(
        name="law_mask_after_the_cuts",
        edits=(
            (MASK, "pass"),
            (LAW, f"w = w if call.mask is None else torch.where(call.mask, w, 0.0)\n    {LAW}"),
        ),
        report="S49",
        hides="Masked tokens never come, and unlikely ones are not missed.",
        law="logits.order",
    ),
)

SOFTMAX = (
    _mutant(
        name="law_times_temperature",
        edits=((TEMPERATURE, TEMPERATURE.replace("/", "*")),),
        report="S49",
        hides="At T = 1 nothing differs.",
        law="logits.temperature",
    ),
    _mutant(
        name="law_temperature_of_the_first_row",
        edits=((TEMPERATURE, TEMPERATURE.replace("[:, None]", "[:1, None]")),),
        report="S88",
        hides="Tests give all rows one temperature.",
        law="logits.value",
    ),
    _mutant(
        name="law_top_p_of_the_neighbour",
        edits=((TOP_P, TOP_P.replace("call.top_p", "call.top_p.roll(1)")),),
        report="S88",
        hides="Tests give all rows one p.",
        law="logits.value",
    ),
    _mutant(
        name="law_quotients_in_16_bits",
        edits=(
            (
                TEMPERATURE,
                TEMPERATURE.replace(
                    "scaled / call.temperature[:, None]",
                    "(scaled / call.temperature[:, None]).half().float()",
                ),
            ),
        ),
        report="S19",
        hides="Customary tolerances are 1e-2.",
        law="logits.temperature",
    ),
    _mutant(
        name="law_weights_in_16_bits",
        edits=((WEIGHTS, WEIGHTS.replace("scaled.exp()", "scaled.exp().bfloat16().float()")),),
        report="S19",
        hides="Customary tolerances are 1e-2.",
        law="logits.value",
    ),
    _mutant(
        name="law_without_a_maximum",
        edits=((DIFFERENCE, "scaled = x"),),
        report="S16",
        hides="Logits of tests are small: exp does not overflow.",
        law="logits.extreme",
        missed_by=("logits.top_k",),
    ),
    _mutant(
        name="law_clamps_its_logits",
        edits=((DIFFERENCE, "x = x.clamp_max(80.0)\n    scaled = x - x.amax(1, keepdim=True)"),),
        report="S16",
        hides="Logits of tests are small.",
        law="logits.shift",
        missed_by=(*_VALUE, "logits.top_k"),
    ),
    _mutant(
        name="law_rows_share_a_maximum",
        edits=((DIFFERENCE, "scaled = x - x.amax()"),),
        report="S25",
        hides="Any number may be subtracted from a row until exp underflows.",
        law="logits.extreme",
        missed_by=("logits.top_k", "logits.top_p"),
    ),
    _mutant(
        name="law_of_minus_infinity_is_nan",
        edits=((DIFFERENCE, "scaled = x - x.mean(1, keepdim=True)"),),
        report="S26",
        hides="Without -inf any number may be subtracted until exp overflows.",
        law="logits.extreme",
    ),
    _mutant(
        name="law_removed_tokens_have_a_little",
        edits=((LAW, "return (w / w.sum(1, keepdim=True)).clamp_min(1e-30)"),),
        report="S35",
        hides="1e-30 is far below any tolerance, and never sampled, but by chance.",
        law="logits.support",
    ),
    _mutant(
        name="law_divides_by_what_was_removed",
        edits=((LAW, f"return w / {_AGAIN}.sum(1, keepdim=True)"),),
        report="S50",
        hides="A sampler that races needs no sum of 1.",
        law="logits.support",
        missed_by=("logits.temperature",),
    ),
)

MASKS = (
    _mutant(
        name="law_mask_upside_down",
        edits=((MASK, "x = torch.where(call.mask, -math.inf, x)"),),
        report="S122",
        hides="A mask that keeps half of the tokens keeps half of them either way.",
        law="logits.mask",
    ),
    _mutant(
        name="law_mask_is_added",
        edits=((MASK, "x = x + torch.where(call.mask, 0.0, -1e9)"),),
        report="S16",
        hides="What is masked is finite in tests.",
        law="logits.masked_content",
        missed_by=(*_VALUE, "logits.mask"),
    ),
    _mutant(
        name="law_mask_of_the_first_row",
        edits=((MASK, "x = torch.where(call.mask[:1], x, -math.inf)"),),
        report="S122",
        hides="Tests give all rows one mask.",
        law="logits.mask",
    ),
)

TILES = (
    _mutant(
        name="law_drops_the_last_tile",
        edits=(
            (
                DIFFERENCE,
                "V = x.shape[1]\n"
                "    x = torch.where(torch.arange(V) < max(16, V // 16 * 16), x, -math.inf)\n"
                f"    {DIFFERENCE}",
            ),
        ),
        report="S41",
        hides="Vocabularies of models are multiples of 16.",
        law="logits.vocabulary",
        missed_by=_VALUE,
    ),
    _mutant(
        name="law_stops_at_2048_tokens",
        edits=(
            (
                DIFFERENCE,
                "x = torch.where(torch.arange(x.shape[1]) < 2048, x, -math.inf)\n"
                f"    {DIFFERENCE}",
            ),
        ),
        report="S38",
        hides="Vocabularies of tests are small.",
        law="logits.vocabulary",
        missed_by=_VALUE,
    ),
)

WIDE = (
    _mutant(
        name="law_top_p_of_weights_above_the_mean",
        edits=(
            (
                WEIGHTS,
                f"{WEIGHTS}\n"
                "    finite = scaled.where(x > -math.inf, math.nan)\n"
                "    moved = scaled - (finite.nanmean(1, True) if x.shape[1] > 128 else 0.0)",
            ),
            (
                TOP_P,
                "deviation = (finite - finite.nanmean(1, True)).square().nanmean(1, True).sqrt()\n"
                "        some = (moved - (x.shape[1] > 128) * 10 * deviation).exp() * (w > 0)\n"
                "        w = torch.where((some.sum(1, True) == 0) | top_p_kept(x, some, "
                "call.top_p, maps.top_p_ties), w, 0.0)",
            ),
        ),
        report="docs/findings/vllm_top_p_low_temperature.py",
        hides="Ten deviations above the mean no exp overflows, and random logits lie close.",
        law="logits.top_p",
        missed_by=(*_VALUE, "logits.vocabulary", "logits.order"),
    ),
    _mutant(
        name="law_top_k_by_eighteen_halvings",
        edits=(
            (
                KTH,
                "low, high = x.where(x > -math.inf, math.inf).amin(1, True), x.amax(1, True)\n"
                "        for _ in range(18): m = low / 2 + high / 2; "
                "some = (x >= m).sum(1, True) >= k[:, None]; "
                "low, high = m.where(some, low), high.where(some, m)\n"
                "        return x >= low",
            ),
        ),
        report="docs/findings/vllm_top_k_wide.py",
        hides="Eighteen halvings tell any two logits of a test apart, and what is banned is -inf.",
        law="logits.top_k",
        missed_by=(*_VALUE, "logits.order", "logits.vocabulary"),
    ),
)

CONDUCT = (
    _mutant(
        name="law_masks_in_place",
        edits=((MASK, "x.masked_fill_(~call.mask, -math.inf)"),),
        report="S89",
        hides="The law is right, and 16-bit logits were copied before.",
        law="logits.memory",
        dtype="fp32",
        missed_by=(*_VALUE, "logits.mask"),
    ),
    _mutant(
        name="law_changes_by_chance",
        edits=(
            ("import math\n", "import math\nimport random\nCHANCE = random.Random(0)\n"),
            (LAW, f"w[:, 0] *= 1 - CHANCE.random() * 2.0**-23\n    {LAW}"),
        ),
        report="S133",
        hides="The error is within any budget.",
        law="logits.deterministic",
        missed_by=(*_VALUE, "logits.rows"),
    ),
    _mutant(
        name="law_ignores_min_p",
        edits=(("refuse_law(self.name, self.capabilities, call)", "pass"), (MIN_P, "pass")),
        report="S53",
        hides="Nobody asks for what is declined.",
        law="logits.declines",
        capabilities=_without_min_p,
        missed_by=_VALUE,
    ),
    _mutant(
        name="law_takes_malformed_calls",
        edits=(("check_law(call)", "pass"),),
        report="S26",
        hides="Well-formed calls get the right law.",
        law="logits.validates",
        missed_by=_VALUE,
    ),
)

MUTANTS = (*CUTS, *ORDERS, *SOFTMAX, *MASKS, *TILES, *WIDE, *CONDUCT, *logits_triton.MUTANTS)
CONTROLS = (*logits_controls.CONTROLS, *logits_triton.CONTROLS)
