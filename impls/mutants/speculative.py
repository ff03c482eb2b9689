"""Faults of verification that one decision shows: acceptance, residual, sums, rows, emission.

Ids such as S04 name a report in the project's catalogue of public faults of speculative decoding.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from kernelassay.impls.contract import Capabilities
from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.torch_verify"
_mutant = partial(Variant, base=BASE, law="speculative.decisions")
_FIRST = ("speculative.first_token",)
_LENGTH = ("speculative.commit_length",)
_SAMPLES = (*_FIRST, "speculative.rounds")

UNIFORMS = "u, v = call.accept.flatten()[n], call.draw.flatten()[row]"
TARGET = "p = call.p.reshape(-1, V)"
DRAFT = "q = None if call.q is None else call.q.reshape(-1, V)"
P_X = "p_x = p[row[:, :K], token].float()"
Q_X = "q_x = torch.ones_like(p_x) if q is None else q[n, token].float()"
RULE = "accepted = u * q_x < p_x"
COUNT = "a = kept.sum(1, keepdim=True)"
DRAWS = "draws = (a < limit) & ~(kept & ends).any(1, keepdim=True)"
WEIGHTS = "weights = p[row.gather(1, a)[:, 0]].double()"
CERTAIN = "scatter(1, token.gather(1, at), torch.inf)"
LAW = "law = q[n.gather(1, at)[:, 0]].double()"
EXCESS = "excess = (weights - law).clamp_min(0.0)"
EMPTY = "rejects &= (excess > 0).any(-1, keepdim=True)"
RESIDUAL = "weights = torch.where(rejects, excess, weights)"
SUMS = "sums = weights.cumsum(-1)"
ABOVE = "above = sums > v[:, None].double() * sums[:, -1:]"
FOUND = "return (above & (weights > 0)).int().argmax(-1)"
IN_ORDER = (
    (
        SUMS,
        "weights = weights.float()\n"
        "    sums = torch.from_numpy(weights.cpu().numpy().cumsum(-1)).to(weights.device)",
    ),
    (ABOVE, "above = sums > v[:, None] * weights.sum(-1, keepdim=True)"),
)
"""Sums in fp32, one term after the other as NumPy does it; their total as torch adds it up."""
FOUND_OR = (
    "found = above & (weights > 0)\n"
    "    return torch.where(found.any(-1), found.int().argmax(-1), {})"
)
DRAWN = "y = inverse_cdf(weights, v.gather(1, a)[:, 0])[:, None]"
TOKENS = "tokens = torch.where(i < a, pad(x, (0, 1)), torch.where(i == a, y, placeholder))"
ACCEPTED = "a[:, 0].to(call.drafts.dtype))"


def drawing(base: Capabilities, **fields: Any) -> Capabilities:
    """*base* with these fields of its `Sampling`."""
    assert base.sampling is not None
    return replace(base, sampling=replace(base.sampling, **fields))


ACCEPTANCE = (
    _mutant(
        name="verify_accepts_below_p",
        edits=((RULE, "accepted = u < p_x"),),
        report="S01",
        hides="Right where drafts are certain: q is 1 there.",
        missed_by=("speculative.certain",),
    ),
    _mutant(
        name="verify_accepts_probability_0",
        edits=((RULE, "accepted = u * q_x <= p_x"),),
        report="S35",
        hides="Only u = 0 shows it, once in 2^24 draws.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_accepts_the_likeliest_draft",
        edits=((RULE, "accepted = token == p.argmax(-1)[row][:, :K]"),),
        report="S20",
        hides="Right for a greedy target, of which most tests are.",
    ),
    _mutant(
        name="verify_accepts_certain_drafts_if_likeliest",
        edits=((RULE, f"{RULE} if q is not None else token == p.argmax(-1)[row][:, :K]"),),
        report="S22",
        hides="Right where drafts come with a law.",
        law="speculative.certain",
        missed_by=("speculative.decisions",),
    ),
    _mutant(
        name="verify_quotient_in_fp16",
        edits=((RULE, "accepted = (u * q_x).half() < p_x.half()"),),
        report="S19",
        hides="An error of 2^-11 in a probability is beyond what samples show.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_accepts_a_little_more",
        edits=((RULE, f"{RULE} * (1 + 2.0**-17)"),),
        report="S11",
        hides="An error of 2^-17 in a probability is beyond what samples show.",
        law="speculative.implied_law",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_uniforms_in_bf16",
        edits=((UNIFORMS, UNIFORMS.replace("()[n]", "()[n].bfloat16().float()")),),
        report="S34",
        hides="An error of 2^-9 in a probability is beyond what samples show.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_with_q_of_temperature_2",
        edits=((DRAFT, DRAFT + ".float().sqrt() / call.q.float().sqrt().sum(-1).reshape(-1, 1)"),),
        report="S17",
        hides="Right where the draft's temperature is 1; drafts are still mostly accepted.",
    ),
    _mutant(
        name="verify_with_q_not_normalised",
        edits=((DRAFT, DRAFT + " / call.q.amax(-1).reshape(-1, 1)"),),
        report="S17",
        hides="Right for a q of one token; quotients that are too small still accept many drafts.",
    ),
)

CORRECTION = (
    _mutant(
        name="verify_softmaxes_the_residual",
        edits=((EXCESS, f"{EXCESS}.softmax(-1)"),),
        report="S01",
        hides="The number of accepted drafts is right.",
        missed_by=_LENGTH,
    ),
    _mutant(
        name="verify_subtracts_q_at_the_draft_alone",
        edits=(
            (
                LAW,
                "law = torch.zeros_like(weights)"
                ".scatter(1, token.gather(1, at), q_x.gather(1, at).double())",
            ),
        ),
        report="S02",
        hides="Right for two tokens; the draft that was rejected never comes.",
        missed_by=_LENGTH,
    ),
    _mutant(
        name="verify_resamples_from_p",
        edits=((RESIDUAL, "weights = weights * 1.0"),),
        report="S04",
        hides="Every token that comes is possible under p.",
        missed_by=_LENGTH,
    ),
    _mutant(
        name="verify_draws_from_the_next_row",
        edits=(
            (WEIGHTS, "weights = p[row.gather(1, a + (a < k).int())[:, 0]].double()"),
            (RESIDUAL, "weights = weights * 1.0"),
        ),
        report="S05",
        hides="Text stays fluent: a word is left out, what follows it comes.",
        missed_by=_LENGTH,
    ),
    _mutant(
        name="verify_residual_is_a_distance",
        edits=((EXCESS, "excess = (weights - law).abs().nan_to_num(posinf=0.0)"),),
        report="S04",
        hides="Right where drafts are certain, or p has no token that q has, too.",
        missed_by=_LENGTH,
    ),
    _mutant(
        name="verify_empty_residual_is_token_0",
        edits=((RULE, "accepted = u.log() + q_x.log() < p_x.log()"), (EMPTY, "rejects &= True")),
        report="S10",
        hides="Where p = q only a uniform next to 1 is rejected, and only in logarithms.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_draws_from_an_empty_residual",
        edits=((EMPTY, "rejects &= True"),),
        report="S10",
        hides="Where p = q nothing is rejected, but where q was rounded up.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_reuses_the_acceptance_uniform",
        edits=(
            (DRAWN, DRAWN.replace("v.gather", "torch.where(i < k, pad(u, (0, 1)), v).gather")),
        ),
        report="S29",
        hides="Each token of the residual still comes, the first ones too rarely.",
        missed_by=_LENGTH,
    ),
    _mutant(
        name="verify_certain_residual_keeps_the_draft",
        edits=((CERTAIN, CERTAIN.replace("torch.inf", "0.0")),),
        report="S03",
        hides="The residual of drafts with a law is right.",
        law="speculative.certain",
        missed_by=("speculative.decisions",),
    ),
    _mutant(
        name="verify_certain_residual_is_uniform",
        edits=((EXCESS, f"{EXCESS} if q is not None else (weights > law).double()"),),
        report="S22",
        hides="Right where drafts come with a law; the draft that was rejected never comes.",
        law="speculative.certain",
        missed_by=("speculative.decisions",),
    ),
)

SUMMATION = (
    _mutant(
        name="verify_draws_against_1",
        edits=((ABOVE, "above = sums > v[:, None].double()"),),
        report="S37",
        hides="Right where weights add up to 1: for the bonus, and where everything is rejected.",
        missed_by=_LENGTH,
    ),
    _mutant(
        name="verify_searches_beyond_the_last_token",
        edits=((FOUND, "return (sums <= v[:, None].double()).sum(-1)"),),
        report="S40",
        hides="A sum that ends below 1 shows only for uniforms beyond it.",
    ),
    _mutant(
        name="verify_draws_the_last_token_if_no_sum_exceeds",
        edits=(*IN_ORDER, (FOUND, FOUND_OR.format("weights.shape[-1] - 1"))),
        report="docs/findings/sglang_chain_last_token.py",
        hides="Only many weights and a uniform next to 1 show it, once in 2^24 draws.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_sums_in_fp16",
        edits=((SUMS, "sums = weights.half().cumsum(-1).double()"),),
        report="S37",
        hides="An error of 2^-11 in a probability is beyond what samples show.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_draws_weight_0",
        edits=((ABOVE, ABOVE.replace(">", ">=")), (FOUND, "return above.int().argmax(-1)")),
        report="S35",
        hides="Only v = 0 shows it, once in 2^24 draws.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_draws_from_the_last_token_down",
        edits=(
            (SUMS, "sums = weights.flip(-1).cumsum(-1)"),
            (
                FOUND,
                "return weights.shape[-1] - 1 - (above & (weights.flip(-1) > 0)).int().argmax(-1)",
            ),
        ),
        report="S38",
        hides="The law is right; another token comes of the same uniform.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_drops_the_tail_of_the_vocabulary",
        edits=((SUMS, f"weights[:, 1024:] = 0.0\n    {SUMS}"),),
        report="S38",
        hides="Small vocabularies have no tail, and in large ones it is rarely drawn.",
        missed_by=_SAMPLES,
        level="pr",
    ),
    _mutant(
        name="verify_tokens_pass_through_bf16",
        edits=((DRAWN, f"{DRAWN}.bfloat16().long()"),),
        report="S38",
        hides="Tokens up to 256 are exact in bf16.",
        missed_by=_SAMPLES,
        level="pr",
    ),
)

ROWS = (
    _mutant(
        name="verify_judges_by_the_next_row",
        edits=((P_X, P_X.replace("[:, :K]", "[:, 1:]")),),
        report="S73",
        hides="Rows of a fluent text are alike.",
    ),
    _mutant(
        name="verify_judges_by_the_first_row",
        edits=((P_X, P_X.replace("[:, :K]", "[:, :1]")),),
        report="S74",
        hides="One draft has one row.",
        missed_by=_FIRST,
    ),
    _mutant(
        name="verify_q_of_the_draft_before",
        edits=((Q_X, Q_X.replace("q[n,", "q[torch.where(i[:K] > 0, n - 1, n),")),),
        report="S73",
        hides="The first draft is judged rightly.",
        missed_by=_FIRST,
    ),
    _mutant(
        name="verify_residual_with_the_first_q",
        edits=((LAW, "law = q[n[:, 0]].double()"),),
        report="S07",
        hides="Right for one draft.",
        missed_by=(*_FIRST, *_LENGTH),
    ),
    _mutant(
        name="verify_bonus_of_the_row_before",
        edits=(
            (
                WEIGHTS,
                "weights = p[row.gather(1, a - ((a == k) & (k > 0)).long())[:, 0]].double()",
            ),
        ),
        report="S73",
        hides="The first token is right, and so are all drafts.",
        missed_by=(*_FIRST, *_LENGTH),
    ),
    _mutant(
        name="verify_rows_by_the_number_of_drafts",
        edits=(("first_row = first + r\n", "first_row = first\n"),),
        report="S85",
        hides="Right for the first request.",
    ),
    _mutant(
        name="verify_no_more_drafts_than_the_request_before",
        edits=(
            (
                "k = call.counts[:, None]",
                "k = torch.minimum(call.counts, call.counts.roll(1))[:, None]",
            ),
        ),
        report="S86",
        hides="Right where all requests have as many drafts, and lossless everywhere.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_skips_requests_without_drafts",
        edits=((DRAWS, DRAWS.replace("(a < limit)", "(a < limit) & (k > 0)")),),
        report="S97",
        hides="Tests give every request a draft.",
        missed_by=_SAMPLES,
    ),
    _mutant(
        name="verify_padded_counts_are_all_the_largest",
        edits=(
            ("k = call.counts[:, None]", "k = torch.full_like(call.counts, call.most)[:, None]"),
            (RULE, "accepted = ~(u * q_x >= p_x)"),
        ),
        report="S113",
        hides="Right where all requests have as many drafts.",
        missed_by=_SAMPLES,
        capabilities=partial(replace, packing="padded"),
    ),
)

EMISSION = (
    _mutant(
        name="verify_emits_no_bonus",
        edits=((DRAWS, DRAWS.replace("limit", "torch.minimum(limit, k.clamp_min(1))")),),
        report="S71",
        hides="All tokens that come follow the target; only speed is lost.",
        missed_by=(*_FIRST, "speculative.sequence"),
    ),
    _mutant(
        name="verify_bonus_after_a_rejection",
        edits=(
            (
                TOKENS,
                f"{TOKENS}\n    more = (i == a + 1) & (a < k) & draws & (a + 1 < limit)\n"
                "    tokens = torch.where(more, p.argmax(-1)[row], tokens)",
            ),
        ),
        report="S05",
        hides="The first token is right.",
        missed_by=_FIRST,
    ),
    _mutant(
        name="verify_counts_without_the_prefix_rule",
        edits=((ACCEPTED, ACCEPTED.replace("a[:, 0]", "accepted.sum(1)")),),
        report="S77",
        hides="Tokens are right; right for one draft, too.",
        missed_by=(*_FIRST, "speculative.sequence", *_LENGTH),
    ),
    _mutant(
        name="verify_emits_drafts_after_a_rejected_one",
        edits=((COUNT, "a = accepted.sum(1, keepdim=True)"),),
        report="S77",
        hides="Right for one draft.",
    ),
    _mutant(
        name="verify_counts_what_is_emitted",
        edits=((ACCEPTED, ACCEPTED.replace("a[:, 0]", "(a + draws)[:, 0]")),),
        report="S76",
        hides="Tokens are right.",
        missed_by=(*_FIRST, "speculative.sequence", *_LENGTH),
    ),
    _mutant(
        name="verify_leaves_placeholders_inside",
        edits=((TOKENS, TOKENS.replace("i == a", "i == torch.where(draws, k, a)")),),
        report="S82",
        hides="Right where all drafts are accepted.",
    ),
    _mutant(
        name="verify_pads_with_token_0",
        edits=((TOKENS, TOKENS.replace("placeholder", "0")),),
        report="S83",
        hides="Right where all drafts are accepted; engines cut the row by the count.",
        missed_by=_FIRST,
    ),
)

MUTANTS = (*ACCEPTANCE, *CORRECTION, *SUMMATION, *ROWS, *EMISSION)
