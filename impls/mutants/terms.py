"""Faults of what is added planted in the PyTorch kernel: a bias to the score, a sink to the sum.

Ids such as A94 name a report in the project's catalogue of public faults.
"""

from functools import partial

from kernelassay.impls.variants import Variant

_mutant = partial(Variant, base="kernelassay.impls.torch_reference")
_VALUE = ("attention.value", "attention.score_terms")
_BIAS = "scoring.bias.expand(shape)[..., start:stop]"
_SINK = "call.scoring.sink_logits[None, :, None].expand"
_SCORED = "        z = scored(call, z, start, stop)\n"

BIAS = (
    _mutant(
        name="bias_ignored_past_the_first_tile",
        edits=((f"{_BIAS}.float()", f"{_BIAS}.float() * (start == 0)"),),
        report="A71",
        hides="Small tests with a bias have one key tile.",
        law="attention.score_terms",
    ),
    _mutant(
        name="bias_taken_as_a_boolean",
        edits=(("(bias[..., start:stop] > -math.inf)", "(bias[..., start:stop] == 0)"),),
        report="A68",
        hides="A bias of zeros, as fresh parameters are, hides nothing and adds nothing.",
        law="attention.score_terms",
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
        law="attention.score_terms",
    ),
    _mutant(
        name="bias_of_head_0",
        edits=((_BIAS, "scoring.bias.expand(shape)[:, :1, :, start:stop]"),),
        report="microsoft/onnxruntime#28963",
        hides="A bias is broadcast over heads in tests.",
        law="attention.score_terms",
    ),
    _mutant(
        name="bias_of_request_0",
        edits=((_BIAS, "scoring.bias.expand(shape)[:1, ..., start:stop]"),),
        report="microsoft/onnxruntime#28963",
        hides="Batches of one, and a bias shared by the batch.",
        law="attention.score_terms",
    ),
    _mutant(
        name="bias_of_query_0",
        edits=((_BIAS, "scoring.bias.expand(shape)[:, :, :1, start:stop]"),),
        report="A74",
        hides="A bias of keys alone is the same for every query.",
        law="attention.score_terms",
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
        law="attention.score_terms",
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
        law="attention.score_terms",
    ),
    _mutant(
        name="sink_scaled_as_a_score",
        edits=((f"m = {_SINK}", f"m = scale * {_SINK}"),),
        report="ROCm/rocm-libraries#12227",
        hides="With a sink of 0, as fresh parameters have, or scale 1 nothing is wrong.",
        law="attention.score_terms",
    ),
    _mutant(
        name="sink_in_base_two",
        edits=((f"m = {_SINK}", f"m = math.log(2) * {_SINK}"),),
        report="A43",
        hides="With a sink of 0 the base does not matter.",
        law="attention.score_terms",
    ),
    _mutant(
        name="sink_of_the_kv_head",
        edits=((_SINK, "call.scoring.sink_logits[kv_head][None, :, None].expand"),),
        report="Dao-AILab/flash-attention#2752",
        hides="Without grouped heads both numberings are the same.",
        law="attention.score_terms",
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

MUTANTS = (*BIAS, *SINKS)
