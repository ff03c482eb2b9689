"""Verifications that look wrong and are right: lossless by another rule, or as they declare."""

from functools import partial

from kernelassay.impls.mutants import speculative as own
from kernelassay.impls.mutants.speculative import BASE, drawing
from kernelassay.impls.mutants.speculative_block import BASE as BLOCK
from kernelassay.impls.mutants.speculative_chance import GIVEN, U, V, declining
from kernelassay.impls.mutants.speculative_limits import CHOICE, REJECTS
from kernelassay.impls.mutants.speculative_triton import BASE as TRITON
from kernelassay.impls.variants import Variant

_control = partial(Variant, base=BASE)
_triton = partial(Variant, base=TRITON)
_SEEDED = partial(drawing, noise="seeded")
_ROWS = (
    "    first_row = first + r\n"
    "    n = torch.where(i[:K] < k, first + i[:K], 0)  # [R, K]: where a draft and its law are\n"
    "    row = torch.where(i <= k, first_row + i, 0)  # [R, K + 1]: where the target's law is\n"
    "    p = call.p.reshape(-1, V)\n"
)
_JOINT = partial(drawing, rounds="joint")

LOSSLESS = (
    _control(
        name="verify_by_equality_with_a_draw",
        edits=(
            (
                own.RULE,
                "drawn = inverse_cdf(p[row[:, :K]].double().flatten(0, 1), v[:, :K].flatten())\n"
                "    accepted = token == drawn.view(R, K)",
            ),
            (own.RESIDUAL, "weights = weights * 1.0"),
        ),
        report="X1",
        hides="y ~ p comes either way: where the draft equals it, and where it does not.",
        capabilities=_JOINT,
    ),
    _control(
        name="verify_drafts_as_if_certain",
        edits=((own.DRAFT, "q = None"),),
        report="X2",
        hides="Accepted with p(x), else drawn from p without x: p comes, whatever q is.",
        capabilities=_JOINT,
    ),
    Variant(
        name="verify_by_blocks",
        base=BLOCK,
        edits=(),
        report="X5",
        hides="A draft may be accepted after one whose own test failed.",
    ),
    _control(
        name="verify_residual_kept_in_place",
        edits=((own.RESIDUAL, "weights[rejects[:, 0]] = excess[rejects[:, 0]]"),),
        report="X4",
        hides="It looks like a draw from p; the array holds the residual by then.",
    ),
    _control(
        name="verify_residual_normalised_first",
        edits=(
            (
                own.EXCESS,
                f"{own.EXCESS}\n"
                "        excess = excess / excess.sum(-1, True).clamp_min(2.0**-99)",
            ),
        ),
        report="S01",
        hides="Weights count to a factor.",
    ),
    _control(
        name="verify_seeds_mean_nothing_to_greedy_requests",
        edits=(
            (
                U,
                f"{U}\n        if call.greedy is not None:\n"
                "            u = u.masked_fill(call.greedy[:, None], 0.0)",
            ),
        ),
        report="X7",
        hides="What a greedy request emits does not depend on chance.",
        capabilities=_SEEDED,
    ),
    _control(
        name="verify_seeded_from_the_last_token_down",
        edits=(
            (own.SUMS, "weights = weights.flip(-1)\n    sums = weights.cumsum(-1)"),
            (own.FOUND, "return weights.shape[-1] - 1 - (above & (weights > 0)).int().argmax(-1)"),
        ),
        report="S38",
        hides="Which token a uniform means is the kernel's own affair where it draws that itself.",
        capabilities=_SEEDED,
    ),
    _control(
        name="verify_seeded_counters_overlap",
        edits=((U, U.replace("2 * i[:K]", "i[:K]")), (V, V.replace("2 * i + 1", "i + 1"))),
        report="S29",
        hides="The draw after draft i has the uniform of draft i + 1, which is not judged then.",
        capabilities=_SEEDED,
    ),
)

DECLARED = (
    _control(
        name="verify_accepts_equality_as_declared",
        edits=((own.RULE, "accepted = (u * q_x <= p_x) & (p_x > 0)"),),
        report="S35",
        hides="At a breakpoint itself either rule is right; p(x) = 0 is never accepted.",
        capabilities=partial(drawing, rule="u*q<=p"),
    ),
    _control(
        name="verify_compares_the_quotient_as_declared",
        edits=((own.RULE, "accepted = (p_x / q_x >= u) & (p_x > 0)"),),
        report="S35",
        hides="The quotient is rounded once, as the product is.",
        capabilities=partial(drawing, rule="p/q>=u"),
    ),
    _control(
        name="verify_compares_logarithms_as_declared",
        edits=((own.RULE, "accepted = (u.log() + q_x.log() < p_x.log()) | (p_x >= q_x)"),),
        report="S11",
        hides="Logarithms are coarser, by what is declared; where p = q they are not asked.",
        capabilities=partial(drawing, unit=2.0**-21),
    ),
    _control(
        name="verify_takes_the_last_of_equals_as_declared",
        edits=((CHOICE, "choice = (V - 1 - p.flip(-1).argmax(-1))[row]"),),
        report="S43",
        hides="Which of equals a greedy request takes is a convention.",
        capabilities=partial(drawing, ties="last"),
    ),
    _control(
        name="verify_takes_any_of_equals_as_declared",
        edits=((CHOICE, "choice = (V - 1 - p.flip(-1).argmax(-1))[row]"),),
        report="S44",
        hides="Which of equals a greedy request takes is left open.",
        capabilities=partial(drawing, ties="any"),
    ),
    _control(
        name="verify_first_sum_that_reaches_as_declared",
        edits=((own.ABOVE, own.ABOVE.replace("sums >", "sums >=")),),
        report="S37",
        hides="At a sum itself either token is right.",
        capabilities=partial(drawing, closed_draw=True),
    ),
    _control(
        name="verify_by_a_race_as_declared",
        edits=(
            (
                GIVEN,
                "        assert call.accept is not None\n        u = call.accept.flatten()[n]\n",
            ),
            (own.DRAWN, "y = (weights / call.race).argmax(-1)[:, None]"),
        ),
        report="S35",
        hides="argmax of weight / exponential noise has the law of the weights.",
        capabilities=partial(drawing, draw="race", shared_draw=True),
    ),
    _control(
        name="verify_one_draw_for_a_request_as_declared",
        edits=(
            (own.UNIFORMS, "u, v = call.accept.flatten()[n], call.draw[:, None].expand(R, K + 1)"),
        ),
        report="S29",
        hides="Of a request's draws only one is used.",
        capabilities=partial(drawing, shared_draw=True),
    ),
    _control(
        name="verify_is_given_the_bonus_as_declared",
        edits=(
            (
                _ROWS,
                "    n = torch.where(i[:K] < k, first + i[:K], 0)\n"
                "    row = torch.where(i < k, first + i, 0)\n"
                "    p = pad(call.p.reshape(-1, V), (0, 0, 0, 1))\n",
            ),
            (own.UNIFORMS, own.UNIFORMS.replace("call.draw.flatten()", "pad(call.draw, (0, 1))")),
            (own.DRAWN, f"{own.DRAWN}\n    y = torch.where(a == k, call.bonus[:, None], y)"),
        ),
        report="S05",
        hides="There is no bonus row: the bonus has been drawn before.",
        capabilities=lambda base: declining(drawing(base, bonus="given"), "greedy"),
    ),
    _control(
        name="verify_hands_out_its_weights_as_declared",
        edits=(
            (
                GIVEN,
                "        u = call.accept.flatten()[n]\n"
                "        v = torch.full((R, K + 1), 0.5, device=device)\n",
            ),
            (own.ACCEPTED, f"{own.ACCEPTED[:-1]}, weights)"),
        ),
        report="S29",
        hides="What it draws from is looked at, not what it takes.",
        capabilities=partial(drawing, noise="captured"),
    ),
    _control(
        name="verify_draws_from_the_default_generator_as_declared",
        edits=(
            (
                GIVEN,
                "        u, v = (torch.rand(R, x, device=device) for x in (K, K + 1))\n",
            ),
        ),
        report="S131",
        hides="Where no seed is declared there is none to ignore.",
        capabilities=partial(drawing, noise="global"),
    ),
    _control(
        name="verify_tokens_in_int64_as_declared",
        edits=((own.TOKENS, f"{own.TOKENS}.long()"),),
        report="S38",
        hides="How wide a token is is a convention.",
        capabilities=partial(drawing, tokens="int64"),
    ),
    _control(
        name="verify_placeholder_is_minus_100_as_declared",
        edits=((own.TOKENS, own.TOKENS.replace("placeholder", "-100")),),
        report="S82",
        hides="What stands after the last token is a convention.",
        capabilities=partial(drawing, placeholder=-100),
    ),
    _control(
        name="verify_products_in_fp64",
        edits=((own.RULE, "accepted = u.double() * q_x.double() < p_x.double()"),),
        report="S19",
        hides="More digits than declared are no fault.",
    ),
    _control(
        name="verify_sums_in_fp32",
        edits=((own.SUMS, "weights = weights.float()\n    sums = weights.cumsum(-1)"),),
        report="S37",
        hides="An error of 2^-24 in a sum is what is declared.",
    ),
    _control(
        name="verify_residual_of_a_skipped_draft_as_declared",
        edits=((REJECTS, "rejects = (a < k) & draws"),),
        report="S79",
        hides="A draft that a grammar forbids was drawn from q, and -1 stands for it.",
        capabilities=partial(drawing, skipped="rejected"),
    ),
    _control(
        name="verify_draws_the_last_possible_token_if_no_sum_exceeds",
        edits=(
            *own.IN_ORDER,
            (
                own.FOUND,
                own.FOUND_OR.format(
                    "weights.shape[-1] - 1 - (weights.flip(-1) > 0).int().argmax(-1)"
                ),
            ),
        ),
        report="docs/findings/sglang_chain_last_token.py",
        hides="A uniform beyond every sum means the last token that has a weight.",
    ),
    _control(
        name="verify_typical_acceptance_as_declared",
        edits=(
            (
                own.RULE,
                "entropy = torch.special.entr(p.float()).sum(-1)[row[:, :K]]\n"
                "    accepted = p_x > (0.3 * torch.exp(-entropy)).clamp_max(0.09)",
            ),
            (own.RESIDUAL, "weights = weights * 1.0"),
        ),
        report="S118",
        hides="It does not mean to follow the target's law, and says so.",
        capabilities=partial(drawing, lossy="typical acceptance"),
    ),
)

KERNEL = (
    _triton(
        name="triton_verify_in_tiles_of_64",
        edits=(("TILE = 1024\n", "TILE = 64\n"),),
        report="S41",
        hides="How many tokens one step has changes none.",
    ),
    _triton(
        name="triton_verify_draws_for_greedy_requests_too",
        edits=(("sampled = draws & ~greedy", "sampled = draws"),),
        report="S25",
        hides="What was drawn for a greedy request is thrown away.",
    ),
    _triton(
        name="triton_verify_of_few_requests_a_program",
        edits=(("INTERPRETED_BLOCK = 1 << 17", "INTERPRETED_BLOCK = 1 << 13"),),
        report="S113",
        hides="How many requests a program has changes none.",
    ),
)

CONTROLS = (*LOSSLESS, *DECLARED, *KERNEL)
