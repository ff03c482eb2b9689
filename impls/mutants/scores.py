"""Faults of scoring planted in the PyTorch kernel: soft cap, ALiBi, bias, sink, value size.

Ids such as A94 name a report in the project's catalogue of public faults.
"""

from functools import partial

from kernelassay.impls.variants import Variant

_mutant = partial(Variant, base="kernelassay.impls.torch_reference")
_VALUE = ("attention.value",)

_CAP = "z = scoring.softcap * torch.tanh(z / scoring.softcap)"
_SLOPES = "scoring.alibi[:, None, None]"
_BIAS = "scoring.bias.expand(shape)[..., start:stop]"
_SINK = "call.scoring.sink_logits[None, :, None].expand"
_HIDDEN = "        z = torch.where(keep, z, -math.inf)\n"
_SCORED = "        z = scored(call, z, start, stop)\n"

SOFTCAP = (
    _mutant(
        name="softcap_times_the_score",
        edits=((_CAP, "z = z * torch.tanh(z / scoring.softcap)"),),
        report="A91",
        hides="Most models have no soft cap, and no test passes one.",
        law="attention.value",
    ),
    _mutant(
        name="softcap_not_multiplied",
        edits=((_CAP, "z = torch.tanh(z / scoring.softcap)"),),
        report="A91",
        hides="With a cap of 1 there is nothing to multiply.",
        law="attention.value",
    ),
    _mutant(
        name="softcap_is_a_clamp",
        edits=((_CAP, "z = z.clamp(-scoring.softcap, scoring.softcap)"),),
        report="A91",
        hides="Far below the cap and far above it a clamp is a tanh; N(0, 1) lies below 50.",
        law="attention.value",
    ),
    _mutant(
        name="softcap_tanh_in_fp16",
        edits=((_CAP, "z = scoring.softcap * torch.tanh((z / scoring.softcap).half()).float()"),),
        report="A139",
        hides="Eleven bits of the score, of which 1e-2 sees nothing.",
        law="attention.value",
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
        missed_by=_VALUE,
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
        law="attention.value",
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
        law="attention.value",
    ),
    _mutant(
        name="terms_before_the_scale",
        edits=(("        z = z * scale\n" + _SCORED, _SCORED + "        z = z * scale\n"),),
        report="A86",
        hides="With scale 1 the order does not matter.",
        law="attention.value",
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
        law="attention.value",
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
        law="attention.value",
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
        law="attention.value",
    ),
    _mutant(
        name="alibi_exponent_from_zero",
        edits=((_SLOPES, "2 ** (8 / shape[1]) * scoring.alibi[:, None, None]"),),
        report="A101",
        hides="The slopes fall as they should, each one step too late.",
        law="attention.value",
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
        law="attention.value",
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
        law="attention.value",
    ),
    _mutant(
        name="alibi_added",
        edits=((f"z = z - {_SLOPES}", f"z = z + {_SLOPES}"),),
        report="A101",
        hides="With slopes of 2^-8 the far keys are preferred by little.",
        law="attention.value",
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
        law="attention.value",
    ),
)

BIAS = (
    _mutant(
        name="bias_ignored_past_the_first_tile",
        edits=((f"{_BIAS}.float()", f"{_BIAS}.float() * (start == 0)"),),
        report="A71",
        hides="Small tests with a bias have one key tile.",
        law="attention.value",
    ),
    _mutant(
        name="bias_taken_as_a_boolean",
        edits=(("(bias[..., start:stop] > -math.inf)", "(bias[..., start:stop] == 0)"),),
        report="A68",
        hides="A bias of zeros, as fresh parameters are, hides nothing and adds nothing.",
        law="attention.value",
    ),
    _mutant(
        name="bias_minus_infinity_ignored",
        edits=(
            ("(bias[..., start:stop] > -math.inf)", "(bias[..., start:stop] < math.inf)"),
            (f"{_BIAS}.float()", f"{_BIAS}.float().nan_to_num(neginf=0.0)"),
        ),
        report="A67",
        hides="Masks are boolean in tests, and work.",
        law="alignment.visible_set",
    ),
    _mutant(
        name="bias_with_minus_infinity_is_a_mask",
        edits=(
            (
                f"        z = z + {_BIAS}.float()\n",
                f"        bias = {_BIAS}.float()\n"
                f"        z = z + torch.where(bias.isinf().any(), 0.0, bias)\n",
            ),
        ),
        report="A67",
        hides="A bias without minus infinity is right, and so is one of 0 and minus infinity.",
        law="attention.value",
    ),
    _mutant(
        name="bias_of_head_0",
        edits=((_BIAS, "scoring.bias.expand(shape)[:, :1, :, start:stop]"),),
        report="microsoft/onnxruntime#28963",
        hides="A bias is broadcast over heads in tests.",
        law="attention.value",
    ),
    _mutant(
        name="bias_of_request_0",
        edits=((_BIAS, "scoring.bias.expand(shape)[:1, ..., start:stop]"),),
        report="microsoft/onnxruntime#28963",
        hides="Batches of one, and a bias shared by the batch.",
        law="attention.value",
    ),
    _mutant(
        name="bias_of_query_0",
        edits=((_BIAS, "scoring.bias.expand(shape)[:, :, :1, start:stop]"),),
        report="A74",
        hides="A bias of keys alone is the same for every query.",
        law="attention.value",
    ),
    _mutant(
        name="bias_of_rows_left_out",
        edits=((f"{_BIAS}.float()", f"{_BIAS}.float() * (scoring.bias.shape[-1] > 1)"),),
        report="A44",
        hides="What is the same for all keys of a row cancels in the output.",
        law="attention.lse",
    ),
    _mutant(
        name="bias_after_the_maximum",
        edits=(
            (_SCORED, "        top = torch.where(keep, z, -math.inf).amax(dim=-1)\n" + _SCORED),
            ("torch.maximum(m, z.amax(dim=-1))", "torch.maximum(m, top)"),
        ),
        report="A52",
        hides="A bias of some units does not overflow.",
        law="attention.extreme_scores",
    ),
    _mutant(
        name="bias_added_in_fp16",
        edits=((f"z = z + {_BIAS}.float()", f"z = (z + {_BIAS}.float()).half().float()"),),
        report="A64",
        hides="The least number of fp16 and a score below -16 is minus infinity: a hidden row.",
        law="attention.extreme_scores",
    ),
    _mutant(
        name="bias_far_below_hides",
        edits=(("(bias[..., start:stop] > -math.inf)", "(bias[..., start:stop] > -3e4)"),),
        report="A22",
        hides="Beside other keys such a one has no weight; alone it has all of it.",
        law="attention.extreme_scores",
        missed_by=_VALUE,
    ),
    _mutant(
        name="masked_with_the_least_of_fp16",
        edits=(
            ("z = torch.where(keep, z, -math.inf)", "z = torch.where(keep, z, -65504.0)"),
            ("empty = l == 0", "empty = (l == 0) | (m == -65504.0)"),
        ),
        report="A64",
        hides="Right unless every key that is seen has the same number as its bias.",
        law="attention.extreme_scores",
        missed_by=_VALUE,
    ),
    _mutant(
        name="bias_doubled_in_place",
        edits=(
            (
                "    end = used_keys(call)\n",
                "    end = used_keys(call)\n    if call.scoring.bias is not None:\n"
                "        call.scoring.bias.mul_(2.0)\n",
            ),
            (f"{_BIAS}.float()", f"{_BIAS}.float() / 2.0"),
        ),
        report="A131",
        hides="The output is right, and the bias is not looked at again.",
        law="attention.memory",
        missed_by=_VALUE,
    ),
)

SINKS = (
    _mutant(
        name="sink_left_out_of_decode",
        edits=(
            (
                "    if call.scoring.sink_logits is not None:\n",
                "    if call.scoring.sink_logits is not None and Tq > 1:\n",
            ),
        ),
        report="kekzl/imp#1303",
        hides="Sinks were tested on another path of the kernel.",
        law="attention.value",
    ),
    _mutant(
        name="sink_in_every_tile",
        edits=(
            (
                "        u = u * rescale[..., None]\n",
                "        u = u * rescale[..., None]\n"
                "        if call.scoring.sink_logits is not None and start:\n"
                "            l = l + torch.exp(call.scoring.sink_logits[:, None] - m_safe)\n",
            ),
        ),
        report="ROCm/rocm-libraries#12227",
        hides="Right in one tile.",
        law="attention.value",
    ),
    _mutant(
        name="sink_scaled_as_a_score",
        edits=((f"m = {_SINK}", f"m = scale * {_SINK}"),),
        report="ROCm/rocm-libraries#12227",
        hides="With a sink of 0, as fresh parameters have, or scale 1 nothing is wrong.",
        law="attention.value",
    ),
    _mutant(
        name="sink_in_base_two",
        edits=((f"m = {_SINK}", f"m = math.log(2) * {_SINK}"),),
        report="A43",
        hides="With a sink of 0 the base does not matter.",
        law="attention.value",
    ),
    _mutant(
        name="sink_of_the_kv_head",
        edits=((_SINK, "call.scoring.sink_logits[kv_head][None, :, None].expand"),),
        report="Dao-AILab/flash-attention#2752",
        hides="Without grouped heads both numberings are the same.",
        law="attention.value",
    ),
    _mutant(
        name="sink_only_with_keys",
        edits=(("    empty = l == 0\n", "    empty = (u == 0).all(dim=-1)\n"),),
        report="ROCm/rocm-libraries#12227",
        hides="The output of a row without keys is 0 either way.",
        law="attention.empty_rows",
        missed_by=_VALUE,
    ),
    _mutant(
        name="sink_missing_from_the_lse",
        edits=(
            (
                "    lse = m + torch.log(l_safe)\n",
                "    sink = call.scoring.sink_logits\n"
                "    sink = 0.0 if sink is None else torch.exp(sink[:, None] - m)\n"
                "    lse = m + torch.log(l_safe - sink)\n",
            ),
        ),
        report="A44",
        hides="Tests look at the output alone.",
        law="attention.lse",
        missed_by=_VALUE,
    ),
    _mutant(
        name="sink_not_in_the_maximum",
        edits=(
            (f"        m = {_SINK}(B, Hq, Tq)\n", "        pass\n"),
            (
                "    empty = l == 0\n",
                "    if call.scoring.sink_logits is not None:\n"
                "        l = l + torch.exp(call.scoring.sink_logits[:, None] - m)\n"
                "    empty = l == 0\n",
            ),
        ),
        report="Dao-AILab/flash-attention#2752",
        hides="A sink near the scores does not overflow; far above them the output is 0 anyhow.",
        law="attention.extreme_scores",
        missed_by=_VALUE,
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

MUTANTS = (*SOFTCAP, *ALIBI, *BIAS, *SINKS, *SIZES, *RING)
