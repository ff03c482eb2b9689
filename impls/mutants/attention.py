"""Faults of attention planted in the PyTorch kernel: values, scores, LSE, empty rows, memory.

Ids such as A94 name a report in the project's catalogue of public faults.
"""

from functools import partial

from kernelassay.impls.contract import Numerics
from kernelassay.impls.variants import Variant

_mutant = partial(Variant, base="kernelassay.impls.torch_reference")

VALUES = (
    _mutant(
        name="scale_argument_ignored",
        edits=(
            ("1.0 / math.sqrt(D) if call.scale is None else call.scale", "1.0 / math.sqrt(D)"),
        ),
        report="A128",
        hides="Tests pass no scale, or the default one.",
        law="attention.value",
    ),
    _mutant(
        name="scale_of_zero_for_none",
        edits=(
            (
                "1.0 / math.sqrt(D) if call.scale is None else call.scale",
                "call.scale or 1.0 / math.sqrt(D)",
            ),
        ),
        report="docs/findings/onnxruntime_scale_zero.py",
        hides="Nobody asks for equal weights in this way.",
        law="attention.value",
        missed_by=("attention.extreme_scores", "alignment.causal_corner"),
    ),
    _mutant(
        name="scale_applied_twice",
        edits=(("z = z * scale\n", "z = z * scale * scale\n"),),
        report="A86",
        hides="A test with scale 1, or against a backend that scales twice as well, agrees.",
        law="attention.value",
    ),
    _mutant(
        name="scale_of_padded_head",
        edits=(("1.0 / math.sqrt(D) if", "1.0 / math.sqrt(1 << (D - 1).bit_length()) if"),),
        report="A88",
        hides="Head sizes in tests are powers of two, which are not padded.",
        law="attention.value",
    ),
    _mutant(
        name="first_64_channels",
        edits=(("queries @ k_tile.tr", "queries[..., :64] @ k_tile[..., :64].tr"),),
        report="A89",
        hides="D = 64 is the head size of the test.",
        law="attention.value",
    ),
    _mutant(
        name="kv_heads_tiled",
        edits=(("torch.arange(Hq, device=q.device) // group", "torch.arange(Hq) % Hkv"),),
        report="A82",
        hides="With one KV head, or as many as query heads, both mappings are the same.",
        law="attention.grouped_heads",
    ),
    _mutant(
        name="group_size_as_modulus",
        edits=(("(Hq, device=q.device) // group", "(Hq, device=q.device) // group % group"),),
        report="A83",
        hides="Right while there are no more KV heads than queries in a group, as in 64 / 8.",
        law="attention.grouped_heads",
    ),
    _mutant(
        name="probabilities_in_bf16",
        edits=(("p = p.to(v.dtype)", "p = p.to(torch.bfloat16)"),),
        report="A139",
        hides="One part in 512 is far below any tolerance that is typed in.",
        law="attention.value",
    ),
    _mutant(
        name="accumulator_in_fp16",
        edits=(("u = u + p.float() @ v_tile", "u = (u + p.float() @ v_tile).half().float()"),),
        report="A136",
        hides="Sums of a few dozen values near 1 do not overflow, and lose one part in 2048.",
        law="attention.value",
    ),
    _mutant(
        name="scores_in_fp16",
        edits=(("z = z * scale\n", "z = (z * scale).half().float()\n"),),
        report="A139",
        hides="Scores of N(0, 1) data are near 1, where fp16 has eleven bits.",
        law="attention.value",
    ),
    _mutant(
        name="exp_by_squaring",
        edits=(
            (
                "p = torch.exp(z - m_safe[..., None])",
                "p = (1 + (z - m_safe[..., None]).clamp(min=-512) / 512) ** 512",
            ),
        ),
        report="A139",
        hides="Nearly right where the weight is: the error grows with (z - m) squared.",
        law="attention.value",
    ),
    _mutant(
        name="epsilon_in_the_denominator",
        edits=(("l_safe = torch.where(empty, 1.0, l)", "l_safe = l + 1e-5"),),
        report="A38",
        hides="One part in 100 000 at most; empty rows come out as zeros.",
        law="attention.exact_counting",
        dtype="fp32",
    ),
)

SCORES = (
    _mutant(
        name="no_maximum_subtracted",
        edits=(("torch.maximum(m, z.amax(dim=-1))", "torch.zeros_like(m)"),),
        report="A52",
        hides="exp does not overflow below scores of 88.",
        law="attention.extreme_scores",
    ),
    _mutant(
        name="maximum_of_the_first_tile",
        edits=(
            (
                "torch.maximum(m, z.amax(dim=-1))",
                "torch.where(m == -math.inf, z.amax(dim=-1), m)",
            ),
        ),
        report="A52",
        hides="Exact until a later score is 88 above the first tile's.",
        law="attention.extreme_scores",
    ),
    _mutant(
        name="products_rounded_before_the_sum",
        edits=(
            (
                "z = queries @ k_tile.transpose(-1, -2)",
                "z = (queries[..., :, None, :] * k_tile[..., None, :, :]).to(q.dtype).float()\n"
                "        z = z.sum(dim=-1)",
            ),
        ),
        report="docs/findings/sglang_decode_products.py",
        hides="What is rounded is off by no more than a prescaled q, as which it is declared.",
        numerics={"fp16": Numerics(l_from_p=False, q_prescaled=True, kstep=1)},
        law="attention.extreme_scores",
        dtype="fp16",
        missed_by=("attention.value",),
    ),
    _mutant(
        name="maximum_starts_finite",
        edits=(("(B, Hq, Tq), -math.inf, dtype", "(B, Hq, Tq), -1e4, dtype"),),
        report="A32",
        hides="No score of N(0, 1) data comes near -10 000.",
        law="attention.extreme_scores",
    ),
    _mutant(
        name="masked_with_minus_1e4",
        edits=(
            ("z = torch.where(keep, z, -math.inf)", "z = torch.where(keep, z, -1e4)"),
            ("empty = l == 0", "empty = (l == 0) | (m == -1e4)"),
        ),
        report="A31",
        hides="Right while every score lies far above the fill; empty rows are treated apart.",
        law="attention.extreme_scores",
    ),
    _mutant(
        name="masked_with_minus_5e4",
        edits=(
            ("z = torch.where(keep, z, -math.inf)", "z = torch.where(keep, z, -5e4)"),
            ("empty = l == 0", "empty = (l == 0) | (m == -5e4)"),
        ),
        report="A64",
        hides="The fill is the least round number of fp16; scores below it are not in tests.",
        law="attention.extreme_scores",
    ),
    _mutant(
        name="rescale_from_an_alias",
        edits=(("rescale = torch.exp(m - m_safe)", "m = m_new; rescale = torch.exp(m - m_safe)"),),
        report="A49",
        hides="Right in one tile, and where scores fall from tile to tile.",
        law="attention.extreme_scores",
    ),
    _mutant(
        name="denominator_not_rescaled",
        edits=(("l = l * rescale + p.sum(dim=-1)", "l = l + p.sum(dim=-1)"),),
        report="A50",
        hides="Right in one tile, and where the maximum comes in the first.",
        law="attention.extreme_scores",
    ),
)

LSE = (
    _mutant(
        name="lse_in_base_two",
        edits=(("lse = m + torch.log(l_safe)", "lse = m + torch.log2(l_safe)"),),
        report="A43",
        hides="Tests look at the output alone.",
        law="attention.lse",
        missed_by=("attention.value",),
    ),
    _mutant(
        name="lse_with_the_wrong_sign",
        edits=(("lse = m + torch.log(l_safe)", "lse = m - torch.log(l_safe)"),),
        report="A41",
        hides="Tests look at the output alone; with one visible key the LSE is right.",
        law="attention.lse",
        missed_by=("attention.value",),
    ),
    _mutant(
        name="lse_of_empty_rows_zero",
        edits=(
            ("lse = torch.where(empty, -math.inf, lse)", "lse = torch.where(empty, 0.0, lse)"),
        ),
        report="A58",
        hides="Only a merge with another part looks at the LSE of a row without keys.",
        law="attention.empty_rows",
        missed_by=("attention.value",),
    ),
    _mutant(
        name="lse_of_empty_rows_plus_infinity",
        edits=(
            (
                "lse = torch.where(empty, -math.inf, lse)",
                "lse = torch.where(empty, math.inf, lse)",
            ),
        ),
        report="A29",
        hides="A caller that accepts both signs is what it was tested with.",
        law="attention.empty_rows",
        missed_by=("attention.value",),
    ),
)

EMPTY_ROWS = (
    _mutant(
        name="empty_rows_are_nan",
        edits=(("l_safe = torch.where(empty, 1.0, l)", "l_safe = l"),),
        report="A37",
        hides="Every row of a causal square sees at least its own key.",
        law="attention.empty_rows",
    ),
    _mutant(
        name="empty_rows_are_the_mean",
        edits=(("z = torch.where(keep, z, -math.inf)", "z = torch.where(keep, z, -1e30)"),),
        report="A23",
        hides="Finite and plausible, and only in rows that see nothing.",
        law="attention.empty_rows",
    ),
    _mutant(
        name="empty_rows_not_stored",
        edits=(
            (
                "return out.to(q.dtype), lse",
                "held = torch.empty_like(out, dtype=q.dtype)\n"
                "    held[~empty] = out[~empty].to(q.dtype)\n"
                "    return held, lse",
            ),
        ),
        report="A35",
        hides="Fresh memory mostly holds zeros, which is the right answer.",
        law="attention.memory",
    ),
)

CONTENT = (
    _mutant(
        name="unseen_values_not_cleared",
        edits=(("torch.where(seen[..., None], v_tile, 0.0)", "v_tile + 0.0"),),
        report="A154",
        hides="Unused slots hold zeros or old numbers in tests; 0 x NaN needs a NaN.",
        law="attention.unseen_content",
        missed_by=("attention.value",),
    ),
    _mutant(
        name="mask_added_to_scores",
        edits=(
            (
                "z = torch.where(keep, z, -math.inf)",
                "z = z + torch.where(keep, 0.0, -math.inf)",
            ),
        ),
        report="A155",
        hides="NaN + -inf is NaN, a number + -inf is not.",
        law="attention.unseen_content",
        missed_by=("attention.value",),
    ),
    _mutant(
        name="maximum_before_the_mask",
        edits=(
            (
                "        z = torch.where(keep, z, -math.inf)\n",
                "        top = z.amax(dim=-1)\n        z = torch.where(keep, z, -math.inf)\n",
            ),
            ("torch.maximum(m, z.amax(dim=-1))", "torch.maximum(m, top)"),
        ),
        report="A158",
        hides="Any number may be subtracted from a row: only the rounding tells.",
        law="attention.unseen_content",
        missed_by=("attention.value",),
        dtype="fp32",
    ),
)

MEMORY = (
    _mutant(
        name="values_taken_as_contiguous",
        edits=(
            (
                "q, k, v = call.q, call.k, call.v\n",
                "q, k, v = call.q, call.k, call.v\n"
                "    v = v.as_strided(v.shape, (v[0].numel(), v[0, 0].numel(), v.shape[3], 1))\n",
            ),
        ),
        report="A77",
        hides="Tests make their tensors, and what they make is contiguous.",
        law="attention.views",
    ),
    _mutant(
        name="queries_scaled_in_place",
        edits=(
            ("q.float().contiguous()", "q.float().contiguous().mul_(scale)"),
            ("        z = z * scale\n", ""),
        ),
        report="A131",
        hides="The output is right, and inputs are not looked at again; 16-bit inputs are copied.",
        law="attention.memory",
        missed_by=("attention.value",),
        dtype="fp32",
    ),
    _mutant(
        name="tiles_in_any_order",
        edits=(
            ("TILE = 64", "CHANCE = random.Random(0)\nTILE = 64"),
            ("import math\n", "import math\nimport random\n"),
            (
                "in range(0, end, TILE):",
                "in CHANCE.sample(tiles := range(0, end, TILE), len(tiles)):",
            ),
        ),
        report="A151",
        hides="Every order is right to within rounding.",
        law="attention.deterministic",
        missed_by=("attention.value",),
    ),
    _mutant(
        name="malformed_calls_answered",
        edits=(("        check_attend(call)\n", ""),),
        report="A85",
        hides="Tests only make calls that are well formed.",
        law="attention.validates",
        missed_by=("attention.value",),
    ),
)

MUTANTS = (*VALUES, *SCORES, *LSE, *EMPTY_ROWS, *CONTENT, *MEMORY)
