"""Faults of scores planted in the PyTorch kernel: soft cap, ALiBi, sizes of keys and values.

Ids such as A94 name a report in the project's catalogue of public faults.
"""

from functools import partial

from kernelassay.impls.variants import Variant

_mutant = partial(Variant, base="kernelassay.impls.torch_reference")
_VALUE = ("attention.value", "attention.score_terms")
_CAP = "z = scoring.softcap * torch.tanh(z / scoring.softcap)"
_SLOPES = "scoring.alibi[:, None, None]"
_BIAS = "scoring.bias.expand(shape)[..., start:stop]"
_HIDDEN = "        z = torch.where(keep, z, -math.inf)\n"
_SCORED = "        z = scored(call, z, start, stop)\n"

SOFTCAP = (
    _mutant(
        name="softcap_times_the_score",
        edits=((_CAP, "z = z * torch.tanh(z / scoring.softcap)"),),
        report="A91",
        hides="Most models have no soft cap, and no test passes one.",
        law="attention.score_terms",
    ),
    _mutant(
        name="softcap_not_multiplied",
        edits=((_CAP, "z = torch.tanh(z / scoring.softcap)"),),
        report="A91",
        hides="With a cap of 1 there is nothing to multiply.",
        law="attention.score_terms",
    ),
    _mutant(
        name="softcap_is_a_clamp",
        edits=((_CAP, "z = z.clamp(-scoring.softcap, scoring.softcap)"),),
        report="A91",
        hides="Far below the cap and far above it a clamp is a tanh; N(0, 1) lies below 50.",
        law="attention.score_terms",
    ),
    _mutant(
        name="softcap_tanh_in_fp16",
        edits=((_CAP, "z = scoring.softcap * torch.tanh((z / scoring.softcap).half()).float()"),),
        report="A139",
        hides="Eleven bits of the score, of which 1e-2 sees nothing.",
        law="attention.score_terms",
        dtype="fp32",
    ),
    _mutant(
        name="softcap_of_two_exponentials",
        edits=(
            (
                _CAP,
                "x = z / scoring.softcap\n        up, down = torch.exp(x), torch.exp(-x)\n"
                "        z = scoring.softcap * (up - down) / (up + down)",
            ),
        ),
        report="A92",
        hides="No score of a test is 88 times the cap.",
        law="attention.extreme_scores",
        missed_by=("attention.value",),
    ),
    _mutant(
        name="softcap_left_out_of_decode",
        edits=(
            (
                "    if scoring.softcap is not None:\n",
                "    if scoring.softcap is not None and shape[2] > 1:\n",
            ),
        ),
        report="vllm-project/vllm-metal#550",
        hides="Prefill is right; decode is a path of its own.",
        law="attention.score_terms",
    ),
    _mutant(
        name="softcap_after_the_mask",
        edits=((_SCORED + _HIDDEN, _HIDDEN + _SCORED),),
        report="onnx/onnx#7865",
        hides="A masked key comes back with the weight of -cap: e^-50, where the cap is 50.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="softcap_after_the_bias",
        edits=(
            (f"        {_CAP}\n", "        pass\n"),
            (
                f"        z = z + {_BIAS}.float()\n",
                f"        z = z + {_BIAS}.float()\n    if scoring.softcap:\n        {_CAP}\n",
            ),
        ),
        report="emmtrix/emx-onnx-cgen#731",
        hides="Cap and bias are each tested without the other.",
        law="attention.score_terms",
    ),
    _mutant(
        name="terms_before_the_scale",
        edits=(("        z = z * scale\n" + _SCORED, _SCORED + "        z = z * scale\n"),),
        report="A86",
        hides="With scale 1 the order does not matter.",
        law="attention.score_terms",
    ),
)

ALIBI = (
    _mutant(
        name="alibi_slopes_of_local_heads",
        edits=(
            (_SLOPES, "scoring.alibi[torch.arange(shape[1]) % (-(-shape[1] // 2)), None, None]"),
        ),
        report="A100",
        hides="One rank alone, which is what tests run on, has all heads.",
        law="attention.score_terms",
    ),
    _mutant(
        name="alibi_slopes_of_kv_heads",
        edits=(
            (
                _SLOPES,
                "scoring.alibi[torch.arange(shape[1]) * call.k.shape[1] // shape[1], None, None]",
            ),
        ),
        report="A100",
        hides="Without grouped heads both numberings are the same.",
        law="attention.score_terms",
    ),
    _mutant(
        name="alibi_slopes_of_a_power_of_two",
        edits=(
            (
                f"        z = z - {_SLOPES} * distance\n",
                "        head = torch.arange(shape[1]) % (1 << shape[1].bit_length() - 1)\n"
                "        z = z - scoring.alibi[head][:, None, None] * distance\n",
            ),
        ),
        report="A101",
        hides="Numbers of heads are powers of two in tests.",
        law="attention.score_terms",
    ),
    _mutant(
        name="alibi_exponent_from_zero",
        edits=((_SLOPES, "2 ** (8 / shape[1]) * scoring.alibi[:, None, None]"),),
        report="A101",
        hides="The slopes fall as they should, each one step too late.",
        law="attention.score_terms",
    ),
    _mutant(
        name="alibi_of_the_row_number",
        edits=(
            (
                "(q_positions(call)[:, :, None] - k_position)",
                "(torch.arange(shape[2])[None, :, None] - k_position)",
            ),
        ),
        report="A14",
        hides="For Tq = Tk the row is the position.",
        law="attention.score_terms",
    ),
    _mutant(
        name="alibi_at_the_padded_length",
        edits=(
            (
                "        distance = (q_positions(call)[:, :, None] - k_position)",
                "        used = shape[3] if see.lengths is None else see.lengths[:, None, None]\n"
                "        k_position = k_position + used - shape[3]\n"
                "        distance = (q_positions(call)[:, :, None] - k_position)",
            ),
        ),
        report="A124",
        hides="Under a causal mask every distance of a row grows by the same: only the LSE moves.",
        law="attention.lse",
    ),
    _mutant(
        name="alibi_of_a_signed_distance",
        edits=(("- k_position).abs()[:, None]", "- k_position)[:, None]"),),
        report="A20",
        hides="Under a causal mask no visible key lies after its query.",
        law="attention.score_terms",
    ),
    _mutant(
        name="alibi_added",
        edits=((f"z = z - {_SLOPES}", f"z = z + {_SLOPES}"),),
        report="A101",
        hides="With slopes of 2^-8 the far keys are preferred by little.",
        law="attention.score_terms",
    ),
    _mutant(
        name="alibi_of_slots",
        edits=(
            (
                "            k_position = see.k_positions[:, None, start:stop]\n",
                "            pass\n",
            ),
        ),
        report="A121",
        hides="Until a ring buffer wraps, the slot of a key is its position.",
        law="attention.score_terms",
    ),
)

SIZES = (
    _mutant(
        name="scale_of_the_value_size",
        edits=(("1.0 / math.sqrt(D) if", "1.0 / math.sqrt(Dv) if"),),
        report="apple/coreai-torch#117",
        hides="Keys and values have the same size in most models.",
        law="attention.value",
    ),
    _mutant(
        name="values_as_wide_as_keys",
        edits=(
            (
                "v_tile = v[:, kv_head, start:stop].float().contiguous()",
                "v_tile = v[:, kv_head, start:stop].float() * (torch.arange(Dv) < D)",
            ),
        ),
        report="A164",
        hides="Keys and values have the same size in most models.",
        law="attention.value",
    ),
    _mutant(
        name="last_query_of_none",
        edits=(
            (
                "    end = used_keys(call)\n",
                "    end = min(used_keys(call), max(Tk, int(q_positions(call)[0, -1]) + 1))\n",
            ),
        ),
        report="A152",
        hides="Every request of a test has a query.",
        law="attention.memory",
    ),
)

MUTANTS = (*SOFTCAP, *ALIBI, *SIZES)
