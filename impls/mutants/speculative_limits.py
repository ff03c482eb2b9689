"""Faults of verification with greedy requests, skipped drafts, stop tokens and budgets.

Ids such as S25 name a report in the project's catalogue of public faults of speculative decoding.
"""

from functools import partial

from kernelassay.impls.mutants.speculative import BASE, DRAWS
from kernelassay.impls.variants import Variant

_EXACT = ("speculative.decisions",)
_greedy = partial(Variant, base=BASE, law="speculative.greedy", missed_by=_EXACT)
_skipped = partial(Variant, base=BASE, law="speculative.skipped", missed_by=_EXACT)
_stop = partial(Variant, base=BASE, law="speculative.stop", missed_by=_EXACT)
_budget = partial(Variant, base=BASE, law="speculative.budget", missed_by=_EXACT)

X = "x = torch.where(i[:K] < k, call.drafts.flatten()[n], -1)"
CHOICE = "choice = p.argmax(-1)[row]"
GREEDY_DRAFTS = "torch.where(call.greedy[:, None], token == choice[:, :K], accepted)"
GREEDY_TOKEN = "torch.where(call.greedy[:, None], choice.gather(1, a), y)"
MADE = "accepted &= x >= 0"
LIMIT = "torch.minimum(call.budget[:, None], k + 1)"
WITHIN = "accepted &= i[:K] < limit"
ENDS = "ends = (x[:, :, None] == call.stop[:, None, :]).any(-1)"
REACHED = "pad(accepted & ~ends, (1, 0), value=True)"
KEPT = "kept = reached[:, :K] & accepted"
REJECTS = "rejects = (pad(x, (0, 1), value=-1).gather(1, a) >= 0) & draws"

GREEDY = (
    _greedy(
        name="verify_samples_after_greedy_drafts",
        edits=((GREEDY_TOKEN, "y"),),
        report="S25",
        hides="Right where the law after a greedy request's drafts has one token.",
    ),
    _greedy(
        name="verify_judges_greedy_drafts_by_chance",
        edits=((GREEDY_DRAFTS, "accepted"),),
        report="S23",
        hides="A draft that is the target's choice is mostly accepted.",
    ),
    _greedy(
        name="verify_all_are_greedy_if_one_is",
        edits=(
            (GREEDY_DRAFTS, GREEDY_DRAFTS.replace("[:, None]", ".any()", 1)),
            (GREEDY_TOKEN, GREEDY_TOKEN.replace("[:, None]", ".any()")),
        ),
        report="S28",
        hides="Tests have greedy or sampled requests, not both.",
    ),
    _greedy(
        name="verify_is_greedy_as_request_0_is",
        edits=(
            (GREEDY_DRAFTS, GREEDY_DRAFTS.replace("[:, None]", "[:1, None]", 1)),
            (GREEDY_TOKEN, GREEDY_TOKEN.replace("[:, None]", "[:1, None]")),
        ),
        report="S25",
        hides="Right where all requests are greedy, or none.",
    ),
    _greedy(
        name="verify_greedy_takes_the_last_of_equals",
        edits=((CHOICE, "choice = (V - 1 - p.flip(-1).argmax(-1))[row]"),),
        report="S43",
        hides="Laws of real models have one largest token.",
    ),
    _greedy(
        name="verify_greedy_judges_by_q",
        edits=(
            (
                GREEDY_DRAFTS,
                GREEDY_DRAFTS.replace(
                    "choice[:, :K]", "(choice[:, :K] if q is None else q.argmax(-1)[n])"
                ),
            ),
        ),
        report="S23",
        hides="A good draft model has the same likeliest token.",
    ),
    _greedy(
        name="verify_greedy_draws_from_the_residual",
        edits=(
            (
                GREEDY_TOKEN,
                GREEDY_TOKEN.replace("choice.gather(1, a)", "weights.argmax(-1, True)"),
            ),
        ),
        report="S23",
        hides="The likeliest token of [p - q]+ is mostly that of p.",
    ),
)

SKIPPED = (
    _skipped(
        name="verify_judges_a_skipped_draft_as_token_0",
        edits=((X, X.replace("[n]", "[n].clamp_min(0)")),),
        report="S83",
        hides="Token 0 has little mass, and is mostly rejected.",
    ),
    _skipped(
        name="verify_a_skipped_draft_is_the_last_token",
        edits=((X, X.replace("[n]", "[n] % V")),),
        report="S80",
        hides="In Python -1 is the last entry, of little mass.",
    ),
    _skipped(
        name="verify_accepts_skipped_drafts",
        edits=((MADE, "accepted &= i[:K] < k"),),
        report="S79",
        hides="Drafting is skipped in few steps, and then for all requests.",
    ),
    _skipped(
        name="verify_residual_of_a_skipped_draft",
        edits=((REJECTS, "rejects = (a < k) & draws"),),
        report="S79",
        hides="The draft is not accepted; the law of what comes instead is hard to see.",
    ),
    _skipped(
        name="verify_judges_drafts_after_a_skipped_one",
        edits=((REACHED, REACHED.replace("accepted & ~ends", "(accepted | (x == -1)) & ~ends")),),
        report="S79",
        hides="Drafting that is skipped is skipped for the rest of the step.",
    ),
)

STOP = (
    _stop(
        name="verify_goes_on_after_a_stop_token",
        edits=(
            (REACHED, REACHED.replace("accepted & ~ends", "accepted")),
            (DRAWS, "draws = a < limit"),
        ),
        report="S64",
        hides="Drafts of a text in full flow hold no stop token.",
    ),
    _stop(
        name="verify_draws_after_a_stop_token",
        edits=((DRAWS, "draws = a < limit"),),
        report="S64",
        hides="One token too many after the end; engines that cut the text do not show it.",
    ),
    _stop(
        name="verify_stop_tokens_of_request_0",
        edits=((ENDS, ENDS.replace("call.stop[:,", "call.stop[:1,")),),
        report="S67",
        hides="Requests of one model have one end of text.",
    ),
    _stop(
        name="verify_one_stop_token_each",
        edits=((ENDS, ENDS.replace("None, :]", "None, :1]")),),
        report="S67",
        hides="Most requests have one stop token.",
    ),
    _stop(
        name="verify_stop_padding_is_the_last_token",
        edits=((ENDS, ENDS.replace("call.stop[:, None, :]", "(call.stop % V)[:, None, :]")),),
        report="S80",
        hides="The last token of a vocabulary is padding, which no model emits.",
    ),
    _stop(
        name="verify_a_rejected_stop_token_ends",
        edits=((DRAWS, DRAWS.replace("kept & ends", "reached[:, :K] & ends")),),
        report="S68",
        hides="A draft model proposes the end rarely where the target would not.",
    ),
    _stop(
        name="verify_never_accepts_a_stop_token",
        edits=((KEPT, f"{KEPT} & ~ends"),),
        report="X6",
        hides="No request ends early, and a stop token may still be drawn.",
    ),
    _stop(
        name="verify_stops_before_the_stop_token",
        edits=(
            (KEPT, f"{KEPT} & ~ends"),
            (DRAWS, DRAWS.replace("kept &", "reached[:, :K] & accepted &")),
        ),
        report="S67",
        hides="Text is the same; the stop token is no part of it.",
    ),
)

BUDGET = (
    _budget(
        name="verify_ignores_the_budget",
        edits=((LIMIT, "k + 1"),),
        report="S70",
        hides="Only the last round of a request comes near its budget.",
    ),
    _budget(
        name="verify_budget_without_the_bonus",
        edits=((LIMIT, "torch.minimum(call.budget[:, None] + 1, k + 1)"),),
        report="S70",
        hides="One token too many, in the last round alone.",
    ),
    _budget(
        name="verify_draws_beyond_the_budget",
        edits=((DRAWS, DRAWS.replace("a < limit", "a <= limit")),),
        report="S70",
        hides="Drafts are cut rightly; a rejection within the budget hides it.",
    ),
    _budget(
        name="verify_no_budget_left_emits_one",
        edits=((LIMIT, "torch.minimum(call.budget[:, None].clamp_min(1), k + 1)"),),
        report="S70",
        hides="An engine takes a request off that has no budget left.",
    ),
    _budget(
        name="verify_budget_of_request_0",
        edits=((LIMIT, "torch.minimum(call.budget[:1, None], k + 1)"),),
        report="S70",
        hides="Requests in tests have one length.",
    ),
    _budget(
        name="verify_last_of_the_budget_is_drawn",
        edits=((WITHIN, "accepted &= (i[:K] < limit - 1) | (limit > k)"),),
        report="S71",
        hides="As many tokens come as should; the last is drawn from the residual without need.",
    ),
    _budget(
        name="verify_budget_cuts_all_requests_alike",
        edits=((LIMIT, "torch.minimum(call.budget.min(), k + 1)"),),
        report="S91",
        hides="Right for one request; the others only get slower.",
    ),
)

MUTANTS = (*GREEDY, *SKIPPED, *STOP, *BUDGET)
