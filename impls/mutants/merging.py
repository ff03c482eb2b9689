"""Faults of merging planted in the PyTorch and the Triton kernel: weights, maxima, empty parts.

Ids such as A40 name a report in the project's catalogue of public faults.
"""

from functools import partial

from kernelassay.impls.variants import Variant

_mutant = partial(Variant, base="kernelassay.impls.torch_merge")
_triton = partial(Variant, base="kernelassay.impls.triton_merge")
_VALUE = ("merging.value",)

_EXP = 'exp = torch.exp if base == "e" else torch.exp2'
_LOG = 'log = torch.log if base == "e" else torch.log2'
_TOP = "top = m.amax(dim=0)"
_SAFE = "safe = torch.where(top == -math.inf, 0.0, top)"
_LOOP = "for i in range(len(m)):"
_PART = "part = torch.where(empty[i][..., None], 0.0, part)"
_WEIGHT = "weight = exp(m[i] - safe)"
_TOTAL = "total = total + weight * l[i]"
_SUM = "merged = merged + weight[..., None] * part"
_DENOMINATOR = "l_safe = torch.where(l == 0, 1.0, l)"
_LSE = "lse = m + log(l_safe)"
_ONES = "ones = torch.where(lses == -math.inf, 0.0, 1.0)"

_ADAPTER = 'TorchMerge("torch_merge", _OUTPUTS, _NUMERICS)'
_OF_STATES = (_ADAPTER, 'TorchMerge("torch_merge", _STATES, _OF_STATES)')
_IN_BASE_2 = (_ADAPTER, 'TorchMerge("torch_merge", _BASE2, _NUMERICS)')
_OF_PAIRS = (_ADAPTER, 'TorchMerge("torch_merge", _PAIRS, _NUMERICS)')

WEIGHTS = (
    _mutant(
        name="merge_weighs_parts_alike",
        edits=((_WEIGHT, "weight = torch.where(empty[i], 0.0, 1.0)"),),
        report="A49",
        hides="Parts of random keys have much the same mass.",
        law="merging.value",
    ),
    _mutant(
        name="merge_never_rescales_outputs",
        edits=((_SUM, "merged = merged + part"),),
        report="A49",
        hides="Right where all LSEs are the same.",
        law="merging.value",
    ),
    _mutant(
        name="merge_divides_at_each_step",
        edits=(
            (_SUM, "merged = (merged + weight[..., None] * part) / total.clamp_min(1)[..., None]"),
        ),
        report="A50",
        hides="Right where one part has all the mass.",
        law="merging.value",
    ),
    _mutant(
        name="merge_with_weights_of_request_0",
        edits=((_SUM, "merged = merged + weight[:1, ..., None] * part"),),
        report="A47",
        hides="A batch of one.",
        law="merging.value",
    ),
    _mutant(
        name="merge_with_weights_of_the_last_row",
        edits=((_SUM, "merged = merged + weight[..., -1:, None] * part"),),
        report="A46",
        hides="Decode has one row.",
        law="merging.value",
    ),
    _mutant(
        name="merge_with_weights_of_head_0",
        edits=((_SUM, "merged = merged + weight[:, :1, :, None] * part"),),
        report="A47",
        hides="One head, or heads alike.",
        law="merging.value",
    ),
    _mutant(
        name="merge_drops_the_last_part",
        edits=((_LOOP, "for i in range(max(1, len(m) - 1)):"),),
        report="A55",
        hides="The last part of a decode has few keys, or none.",
        law="merging.value",
    ),
    _mutant(
        name="merge_of_states_forgets_their_sums",
        edits=(_OF_STATES, (_TOTAL, "total = total + weight")),
        report="A50",
        hides="A part of one key has a sum of 1, and so has one with a single large score.",
        law="merging.value",
        dtype="fp32",
    ),
    _mutant(
        name="merge_exp_in_the_other_base",
        edits=(_IN_BASE_2, (_EXP, "exp = torch.exp")),
        report="A43",
        hides="Both bases give 1 for the largest part, and the same for equal parts.",
        law="merging.value",
    ),
    _mutant(
        name="merge_log_in_the_other_base",
        edits=(_IN_BASE_2, (_LOG, "log = torch.log")),
        report="A43",
        hides="Tests look at the output alone.",
        law="merging.value",
    ),
    _mutant(
        name="merge_log2_e_is_1_44",
        edits=((_WEIGHT, "weight = torch.exp2((m[i] - safe) * 1.44)"),),
        report="A43",
        hides="LSEs of parts of random keys differ by little.",
        law="merging.value",
        dtype="fp32",
    ),
    _mutant(
        name="merge_lse_without_the_sum",
        edits=((_LSE, "lse = m"),),
        report="A44",
        hides="The output is right, and so is the LSE where one part has all the mass.",
        law="merging.value",
    ),
)

ROUNDING = (
    _mutant(
        name="merge_sums_in_16_bits",
        edits=((_SUM, "merged = (merged + weight[..., None] * part).to(u.dtype).float()"),),
        report="A53",
        hides="Two parts round once more than one; the error grows with their number.",
        law="merging.value",
    ),
    _mutant(
        name="merge_weights_in_16_bits",
        edits=((_WEIGHT, "weight = exp((m[i] - safe).half().float())"),),
        report="A53",
        hides="Equal LSEs have weights that are exact.",
        law="merging.value",
        dtype="fp32",
    ),
    _mutant(
        name="merge_lse_in_16_bits",
        edits=((_LSE, "lse = (m + log(l_safe)).half().float()"),),
        report="A53",
        hides="The output is right; customary tolerances for an LSE are 1e-2.",
        law="merging.value",
    ),
)

MAXIMA = (
    _mutant(
        name="merge_without_a_maximum",
        edits=((_TOP, "top = torch.where((m == -math.inf).all(0), -math.inf, 0.0)"),),
        report="A52",
        hides="LSEs of random keys are small: exp does not overflow.",
        law="merging.extreme",
        missed_by=_VALUE,
    ),
    _mutant(
        name="merge_relative_to_the_first_part",
        edits=((_TOP, "top = torch.where(m[0] == -math.inf, m.amax(dim=0), m[0])"),),
        report="A52",
        hides="Right until a later part is larger by 88.",
        law="merging.extreme",
        missed_by=_VALUE,
    ),
    _mutant(
        name="merge_maximum_starts_at_zero",
        edits=((_SAFE, "safe = top.clamp_min(0.0)"), (_LSE, "lse = m.clamp_min(0.0) + log(l)")),
        report="A28",
        hides="LSEs of many keys are positive.",
        law="merging.extreme",
    ),
    _mutant(
        name="merge_maximum_starts_at_minus_5e4",
        edits=(
            (_SAFE, "safe = top.clamp_min(-5e4)"),
            ("return merged, top, total", "return merged, top.clamp_min(-5e4), total"),
            (_LSE, "lse = torch.where(l == 0, -math.inf, m + log(l_safe))"),
        ),
        report="flashinfer-ai/flashinfer#4267",
        hides="Scores of trained models do not get there; a bias of the least fp16 does.",
        law="merging.extreme",
        missed_by=_VALUE,
    ),
    _mutant(
        name="merge_takes_far_below_for_empty",
        edits=(("empty = l == 0  #", "empty = (l == 0) | (m < -1e4)  #"),),
        report="A28",
        hides="LSEs of real rows are not that low.",
        law="merging.extreme",
        missed_by=_VALUE,
    ),
    _mutant(
        name="merge_over_the_mean",
        edits=(
            (
                _TOP,
                "top = m.amax(dim=0) if len(m) < 2 else m.nan_to_num(neginf=0.0).mean(dim=0)",
            ),
        ),
        report="A52",
        hides="Any number may be subtracted until exp overflows.",
        law="merging.extreme",
    ),
)

EMPTY = (
    _mutant(
        name="merge_of_nothing_is_nan",
        edits=((_SAFE, "safe = top"),),
        report="A40",
        hides="Rows that no part sees are rare, and never in tests.",
        law="merging.empty_parts",
    ),
    _mutant(
        name="merge_of_nothing_divides_by_zero",
        edits=((_DENOMINATOR, "l_safe = l"),),
        report="A59",
        hides="Rows that no part sees are rare, and never in tests.",
        law="merging.empty_parts",
    ),
    _mutant(
        name="merge_of_nothing_has_lse_0",
        edits=(("return merged, top, total", "return merged, safe, total"),),
        report="A58",
        hides="The output is right.",
        law="merging.empty_parts",
    ),
    _mutant(
        name="merge_counts_empty_parts",
        edits=(
            (_ONES, "ones = torch.ones_like(lses)"),
            (
                "merge_states(outs, lses, ones",
                "merge_states(outs, lses.nan_to_num(neginf=0.0), ones",
            ),
        ),
        report="A41",
        hides="An empty part whose output is 0 beside parts of large mass.",
        law="merging.empty_parts",
    ),
    _mutant(
        name="merge_lets_empty_parts_raise_the_maximum",
        edits=(("m = torch.where(empty, -math.inf, m)", "m = torch.where(empty, 0.0, m)"),),
        report="A41",
        hides="A maximum that is too large by less than 88 changes a rounding.",
        law="merging.empty_parts",
    ),
    _mutant(
        name="merge_reads_what_is_empty",
        edits=((_PART, "part = part * 1.0"),),
        report="flashinfer-ai/flashinfer#4484",
        hides="Empty parts of tests hold zeros: 0 x NaN never happens.",
        law="merging.unused_values",
        missed_by=(*_VALUE, "merging.empty_parts"),
    ),
    _mutant(
        name="merge_of_two_takes_the_other_if_one_is_empty",
        edits=(
            (
                _ONES,
                f"{_ONES}\n    if len(outs) == 2 and (lses[0] == -math.inf).any():\n"
                f"        return outs[1], lses[1]",
            ),
        ),
        report="A41",
        hides="Right if the first part is empty for all rows, or for one request alone.",
        law="merging.empty_parts",
    ),
)

MEMORY = (
    _mutant(
        name="merge_cleans_its_input",
        edits=((_ONES, f"{_ONES}\n    outs.masked_fill_((lses == -math.inf)[..., None], 0.0)"),),
        report="A131",
        hides="The result is right, and what was empty is not looked at again.",
        law="merging.memory",
        missed_by=(*_VALUE, "merging.empty_parts"),
    ),
    _mutant(
        name="merge_sums_into_the_first_part",
        edits=((_ONES, f"{_ONES}\n    lses.sub_(lses.amax(0).clamp_min(0.0))"),),
        report="A131",
        hides="Parts are merged once; the output is right.",
        law="merging.memory",
    ),
)

KERNEL = (
    _triton(
        name="triton_merge_reads_what_is_empty",
        edits=(("mask=some[:, None] & (d < Dv)", "mask=here[:, None] & (d < Dv)"),),
        report="flashinfer-ai/flashinfer#4484",
        hides="Empty parts of tests hold zeros: 0 x NaN never happens.",
        law="merging.unused_values",
        missed_by=_VALUE,
    ),
    _triton(
        name="triton_merge_of_nothing_is_nan",
        edits=(("weight = tl.exp(m_i - m_safe)", "weight = tl.exp(m_i - m)"),),
        report="A40",
        hides="Rows that no part sees are rare, and never in tests.",
        law="merging.empty_parts",
    ),
    _triton(
        name="triton_merge_requests_have_no_stride",
        edits=(("(b * outs_b + h * outs_h", "(0 * outs_b + h * outs_h"),),
        report="A47",
        hides="A batch of one.",
        law="merging.value",
    ),
    _triton(
        name="triton_merge_one_channel_too_many",
        edits=(
            (
                "u.to(OUT.dtype.element_ty), mask=here[:, None] & (d < Dv)",
                "u.to(OUT.dtype.element_ty), mask=here[:, None] & (d < Dv + 1)",
            ),
        ),
        report="A110",
        hides="The next row writes over it; where Dv is a power of two there is no such channel.",
        law="merging.memory",
        missed_by=_VALUE,
    ),
    _triton(
        name="triton_merge_writes_past_the_last_row",
        edits=(("tl.store(LSE + row, m, mask=here)", "tl.store(LSE + row, m)"),),
        report="A110",
        hides="After the last row lies memory that nobody looks at.",
        law="merging.memory",
        missed_by=_VALUE,
    ),
    _triton(
        name="triton_merge_rows_share_a_maximum",
        edits=(("m = tl.maximum(m, m_i)", "m = tl.maximum(m, tl.max(m_i, 0))"),),
        report="A158",
        hides="Any number may be subtracted from a row that sees a key, until exp underflows.",
        law="merging.empty_parts",
        missed_by=_VALUE,
    ),
)

REFUSALS = (
    _mutant(
        name="merge_of_two_takes_three",
        edits=(_OF_PAIRS, ("refuse_merge(self.name, self.capabilities, call)", "pass")),
        report="A85",
        hides="Nobody asks for what is declined.",
        law="merging.declines",
        missed_by=_VALUE,
    ),
    _mutant(
        name="merge_takes_malformed_calls",
        edits=(("check_merge(call, self.capabilities.state)", "pass"),),
        report="A124",
        hides="Well-formed calls are merged as they should be.",
        law="merging.validates",
        missed_by=_VALUE,
    ),
    Variant(
        name="partial_lse_in_base_two",
        base="kernelassay.impls.torch_reference",
        edits=(
            (
                "    lse = torch.where(empty, -math.inf, lse)\n",
                "    lse = torch.where(empty, -math.inf, lse / math.log(2))\n",
            ),
        ),
        report="A43",
        hides="Outputs are right; the LSE is seen by the next merge alone.",
        law="merging.of_partials",
    ),
)

SHAPES = (
    _mutant(
        name="merge_stops_at_eight_parts",
        edits=((_LOOP, "for i in range(min(8, len(m))):"),),
        report="A56",
        hides="Short contexts have few parts.",
        law="merging.trees",
    ),
    _mutant(
        name="merge_in_any_order",
        edits=(
            ("State = tuple", "CHANCE = random.Random(0)\nState = tuple"),
            ("import math\n", "import math\nimport random\n"),
            (_LOOP, "for i in CHANCE.sample(range(len(m)), len(m)):"),
        ),
        report="A167",
        hides="All orders are right; only the bits differ, and of two parts not even they.",
        law="merging.deterministic",
        dtype="fp32",
        missed_by=_VALUE,
    ),
    _mutant(
        name="merge_of_one_copies_it",
        edits=((_ONES, f"{_ONES}\n    if len(outs) == 1:\n        return outs[0], lses[0]"),),
        report="flashinfer-ai/flashinfer#4484",
        hides="One part is the result, unless it is empty: then its output is garbage.",
        law="merging.single",
        missed_by=_VALUE,
    ),
    _triton(
        name="triton_merge_lses_as_if_packed",
        edits=(("lses_at = b * lses_b + h * lses_h + t * lses_t", "lses_at = row"),),
        report="A76",
        hides="Right where the LSEs of a part lie one after the other.",
        law="merging.value",
    ),
)

MUTANTS = (*WEIGHTS, *ROUNDING, *MAXIMA, *EMPTY, *MEMORY, *KERNEL, *REFUSALS, *SHAPES)

CONTROLS = (
    _mutant(
        name="merge_from_the_last_part",
        edits=((_LOOP, "for i in reversed(range(len(m))):"),),
        report="A167",
        hides="Another order is right; only the bits differ.",
    ),
    _mutant(
        name="merge_with_weights_made_anew",
        edits=(
            (
                "    out, lse = finish(u, m, l, base)\n",
                "    _, lse = finish(u, m, l, base)\n"
                "    weights = torch.exp(lses - lse.nan_to_num(neginf=0.0))[..., None]\n"
                "    out = (weights * torch.where(weights == 0, 0.0, outs)).sum(0)\n",
            ),
        ),
        report="A50",
        hides="Weights exp(lse_i - lse) add up to 1, and need no division at the end.",
    ),
    _mutant(
        name="merge_with_a_running_maximum",
        edits=(
            (_TOP, "top = torch.full_like(m[0], -math.inf)"),
            (
                f"        {_WEIGHT}\n",
                "        old, top = top, torch.maximum(top, m[i])\n"
                "        safe = torch.where(top == -math.inf, 0.0, top)\n"
                "        weight, old = exp(m[i] - safe), exp(old - safe)\n",
            ),
            (
                f"{_TOTAL}\n        {_SUM}",
                "total = total * old + weight * l[i]\n"
                "        merged = merged * old[..., None] + weight[..., None] * part",
            ),
        ),
        report="A49",
        hides="A state that is rescaled at each part is right, too.",
    ),
    _mutant(
        name="merge_replaces_what_is_empty",
        edits=((_PART, "part = part.nan_to_num(0.0, 0.0, 0.0)"),),
        report="flashinfer-ai/flashinfer#4484",
        hides="Finite garbage times 0 is 0; only NaN and infinities have to go.",
    ),
    _triton(
        name="triton_merge_in_base_2",
        edits=(("tl.exp(m_i - m_safe)", "tl.exp2((m_i - m_safe) * 1.4426950408889634)"),),
        report="A43",
        hides="That is what an exponential is on a GPU.",
    ),
    _triton(
        name="triton_merge_in_blocks_of_8",
        edits=(("BLOCK = 32  #", "BLOCK = 8  #"),),
        report="A161",
        hides="How many rows a program has changes no bit of any.",
    ),
    _mutant(
        name="merge_in_float64",
        edits=((_WEIGHT, "weight = exp((m[i] - safe).double()).float()"),),
        report="A53",
        hides="More digits than declared are no fault.",
    ),
)
