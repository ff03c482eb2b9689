"""Faults of decode loops: what caches keep, where a text ends, which row is whose.

Ids such as S91 name a report in the project's catalogue of public faults of speculative decoding.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from kernelassay.impls.contract import Capabilities
from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.speculative_decoder"
_greedy = partial(Variant, base=BASE, law="transactions.greedy")
_given = partial(Variant, base=BASE, law="transactions.injected")
_trace = partial(Variant, base=BASE, law="transactions.trace")
_stop = partial(Variant, base=BASE, law="transactions.stop")
_budget = partial(Variant, base=BASE, law="transactions.budget")
_apart = partial(Variant, base=BASE, law="transactions.requests_apart")
_chance = partial(Variant, base=BASE, law="transactions.sequence")
_GREEDY = ("transactions.greedy",)
_LENGTHS = ("transactions.trace",)

ADAPTER = 'adapter = SpeculativeDecoder("speculative_decoder", _INJECTED, torch_verify.adapter)'
SEEDED = (ADAPTER, ADAPTER.replace("_INJECTED", "_SEEDED").replace(".adapter", ".seeded"))
HELD = "self.held = torch.minimum(self.held, most)"
TRUNCATE = "cache.truncate(self.held.int())"
SAFELY = "cache.truncate(torch.minimum(self.held, cache.lengths).int())"
SEEN = "logits = cached_logits(self.model, text[new], offsets, self.held, self.caches)"
KEEP = "        for one in self.both:\n            one.keep(self.n - 1)\n"
PREFILL = "        for one in self.both:\n            one.see(self.text, self.n - 1)\n"
NOTE = "self.note(k, drafts, p, tokens, accepted)"
PREFILLED = "one.see(self.text, self.n - 1)"
INGEST = "logits, offsets = draft.see(self.text, torch.where(self.live, self.n, 0))"
LOOKED = "looked_up(tuple(self.text[r, :n].tolist()), most, self.longest)"
CHOSEN = "torch.where(self.greedy[here], q.argmax(-1), drawn)"
PLACE = "emitted = (self.n - self.first)[owner] + place"
EARLY = "early = emitted < self.minimum[owner]"
MASKED = "logits.masked_fill(early[:, None] & stops, -torch.inf)"
STOP = "stop=self.stop[live],"
LEFT = "budget=(self.budget - self.n + self.first)[live].int(),"
COMMIT = "ends = self.commit(tokens)"
SPENT = "spent = (self.n - self.first >= self.budget)[self.live]"


def decoding(base: Capabilities, **fields: Any) -> Capabilities:
    """*base* with these fields of its `Decoding`."""
    assert base.decoding is not None
    return replace(base, decoding=replace(base.decoding, **fields))


def declining(base: Capabilities, features: tuple[str, ...]) -> Capabilities:
    """*base* with these features declined."""
    gone = frozenset(features)
    return replace(base, supports=base.supports - gone, declines=base.declines | gone)


CACHES = (
    _greedy(
        name="decode_keeps_rejected_entries",
        edits=((TRUNCATE, "pass"),),
        report="S91",
        hides="Right while drafts are accepted; lengths are right, what lies there is not.",
        missed_by=_LENGTHS,
    ),
    _greedy(
        name="decode_keeps_one_rejected_entry",
        edits=((TRUNCATE, "cache.truncate(torch.minimum(self.held + 1, cache.lengths).int())"),),
        report="S94",
        hides="The pending token is taken for one that the cache holds.",
        missed_by=_LENGTHS,
    ),
    _greedy(
        name="decode_drops_one_entry_too_many",
        edits=((TRUNCATE, "cache.truncate((self.held - 1).clamp_min(0).int())"),),
        report="S95",
        hides="One token of the context is missing: texts stay plausible.",
        missed_by=_LENGTHS,
    ),
    _greedy(
        name="decode_cuts_all_requests_alike",
        edits=(
            (
                HELD,
                f"cut = (self.held - most).clamp_min(0).min()\n        {HELD}",
            ),
            (TRUNCATE, "cache.truncate((cache.lengths - cut).int())"),
        ),
        report="S91",
        hides="Right for one request, and where all accept alike.",
        missed_by=_LENGTHS,
    ),
    _greedy(
        name="decode_positions_not_rolled_back",
        edits=(
            (SEEN, SEEN.replace("self.held", "torch.maximum(self.held, self.far)")),
            ("        self.held = upto\n", "        self.held = self.far = upto\n"),
            (
                "    held: Tensor\n",
                "    held: Tensor\n    far = torch.zeros((), dtype=torch.long)\n",
            ),
        ),
        report="S91",
        hides="Keys are right, and turned too far: nothing but attention shows it.",
        missed_by=_LENGTHS,
    ),
    _given(
        name="decode_draft_keeps_rejected_entries",
        edits=(
            (
                KEEP,
                "        self.target.keep(self.n - 1)\n        if self.draft is not None:\n"
                "            self.draft.held = torch.minimum(self.draft.held, self.n - 1)\n",
            ),
        ),
        report="S95",
        hides="Texts follow the target's law whatever is drafted; acceptance decays.",
        missed_by=_LENGTHS,
    ),
    _given(
        name="decode_leaves_a_hole_after_full_acceptance",
        edits=((HELD, "self.held = most"), (TRUNCATE, SAFELY)),
        report="S95",
        hides="Texts are right: all that is worse are the drafts, of a model that missed a token.",
        missed_by=("transactions.greedy",),
    ),
    _trace(
        name="decode_draft_trims_by_the_wrong_count",
        edits=(
            (
                NOTE,
                "for one in self.both[1:]:\n            one.keep((self.n - 2).clamp_min(0))\n"
                f"        {NOTE}",
            ),
        ),
        report="S95",
        hides="What is missing is drafted with again: it costs time only.",
        missed_by=_GREEDY,
    ),
    _given(
        name="decode_round_without_drafts_ingests_nothing",
        edits=(
            (
                INGEST,
                f"{INGEST.replace('self.live', 'self.live & (k > 0)')}\n"
                "        draft.held = torch.where(self.live, self.n, draft.held)",
            ),
            (TRUNCATE, SAFELY),
        ),
        report="S97",
        hides="Needs a round without drafts between others.",
        missed_by=_GREEDY,
    ),
    _trace(
        name="decode_draft_lags_behind_rounds_without_drafts",
        edits=((INGEST, f"if not int(k.max()):\n            return laws\n        {INGEST}"),),
        report="S97",
        hides="The rest is made up for later; lengths say that it was not there in time.",
        missed_by=_GREEDY,
    ),
)

DRAFTS = (
    _chance(
        name="decode_judges_greedy_drafts_as_drawn",
        edits=((CHOSEN, "q.argmax(-1)"),),
        report="S20",
        hides="Drafting is faster, more is accepted, and texts are good.",
    ),
    _given(
        name="decode_keeps_the_last_round_s_drafts",
        edits=(
            (
                CHOSEN,
                f"self.text[here, self.n[here] + i] if i and self.t else {CHOSEN}",
            ),
        ),
        report="S05",
        hides="Drafts behind the first are the ones that were rejected with it.",
    ),
    _trace(
        name="decode_looks_up_behind_the_end",
        edits=((LOOKED, LOOKED.replace(":n]", ": n + 1]")),),
        report="S56",
        hides="A rejected draft is part of the history: drafts are poor, texts are right.",
    ),
    _trace(
        name="decode_looks_up_in_the_prompt_alone",
        edits=((LOOKED, LOOKED.replace(":n]", ": self.first[r]]")),),
        report="S56",
        hides="Prompts hold most of what repeats.",
    ),
    _trace(
        name="decode_looks_up_its_own_end",
        edits=(("range(len(text) - n - 1, -1, -1)", "range(len(text) - n, -1, -1)"),),
        report="S56",
        hides="The end of the text always matches itself, with nothing behind it.",
    ),
)

ENDS = (
    _stop(
        name="decode_stop_token_in_drafts_is_passed_over",
        edits=((STOP, "stop=None,"),),
        report="S64",
        hides="Only the last token of a round is looked at.",
    ),
    _stop(
        name="decode_bonus_after_a_stop_token",
        edits=(
            (STOP, "stop=None,"),
            (
                COMMIT,
                "stops = (tokens[:, :, None] == self.stop[self.live][:, None]).any(-1)\n"
                "        tokens = tokens.masked_fill(stops.cumsum(1).cumsum(1) > 2, -1)\n"
                f"        {COMMIT} | stops.any(1)",
            ),
        ),
        report="S64",
        hides="One token after the end; a text that is cut at it does not show it.",
    ),
    _stop(
        name="decode_ends_with_a_rejected_stop_token",
        edits=(
            (
                COMMIT,
                "stops = (self.text[:, :, None] == self.stop[:, None]).any(-1)\n"
                "        drafted = (stops & self.behind(k)).any(1)\n"
                f"        {COMMIT} | drafted[self.live]",
            ),
        ),
        report="S68",
        hides="A draft model seldom drafts the end where the target does not want it.",
    ),
    _stop(
        name="decode_stop_tokens_of_the_first_requests",
        edits=((STOP, "stop=self.stop[: int(live.sum())],"),),
        report="S85",
        hides="Right until a request ends before another, and where stop tokens are the same.",
        level="pr",
    ),
    _budget(
        name="decode_budget_is_looked_at_between_rounds",
        edits=((LEFT, "budget=None,"),),
        report="S70",
        hides="Too long by the drafts of one round, at most.",
    ),
    _budget(
        name="decode_ends_where_a_whole_round_has_no_room",
        edits=(
            (SPENT, SPENT.replace("self.budget)", "(self.budget - self.call.most).clamp_min(1))")),
        ),
        report="S71",
        hides="The last tokens are missing; tests look at how texts begin.",
    ),
    _budget(
        name="decode_budgets_of_the_first_requests",
        edits=((LEFT, LEFT.replace("[live]", "[: int(live.sum())].clamp_min(1)")),),
        report="S85",
        hides="Right until a request ends before another.",
    ),
    _budget(
        name="decode_counts_drafts_as_emitted",
        edits=((SPENT, SPENT.replace(">=", "+ (self.t + 1) * (self.call.most - 1) >=")),),
        report="S104",
        hides="Texts are short, and nothing in them is wrong.",
    ),
)

ROWS = (
    _greedy(
        name="decode_judges_by_the_next_row",
        edits=((MASKED, MASKED.replace("logits", "logits.roll(-1, 0)")),),
        report="S73",
        hides="The next row is a good law of the same text, one token on.",
        missed_by=_LENGTHS,
    ),
    _apart(
        name="decode_greedy_flags_of_the_first_requests",
        edits=(("greedy=self.greedy[live],", "greedy=self.greedy[: int(live.sum())],"),),
        report="S25",
        hides="Right until a request ends before another.",
    ),
    _apart(
        name="decode_draws_with_the_noise_of_another_request",
        edits=(
            (
                "draw = uniforms.draw[:, self.t, : K + 1][rows].float()",
                "draw = uniforms.draw[: int(live.sum()), self.t, : K + 1][rows[live]].float()",
            ),
        ),
        report="S130",
        hides="Any uniform will do, for the law of one request.",
        missed_by=("transactions.sequence",),
    ),
    Variant(
        name="decode_minimum_in_the_first_row_alone",
        base=BASE,
        law="transactions.minimum",
        edits=((EARLY, f"{EARLY[:8]}(place == 0) & ({EARLY[8:]})"),),
        report="S52",
        hides="Drafts hold a stop token seldom, and hardly before the minimum.",
    ),
    Variant(
        name="decode_minimum_holds_back_the_first_stop_token",
        base=BASE,
        law="transactions.minimum",
        edits=(
            ("(self.stop[owner, :, None] == tokens)", "(self.stop[owner, :1, None] == tokens)"),
        ),
        report="huggingface/transformers#21959",
        hides="Right where a request has one stop token.",
    ),
    Variant(
        name="decode_ends_at_the_first_stop_token_alone",
        base=BASE,
        law="transactions.stop",
        edits=(
            ("(last == self.stop[self.live]).any(1)", "last[:, 0] == self.stop[self.live, 0]"),
        ),
        report="sgl-project/sglang#31378",
        hides="Right where a request has one stop token.",
    ),
    _given(
        name="decode_minimum_counts_from_the_round_s_start",
        edits=((PLACE, "emitted = (self.n - self.first)[owner]"),),
        report="S122",
        hides="No stop token comes too early; some come too late.",
        missed_by=("transactions.minimum",),
    ),
    Variant(
        name="decode_logprobs_forget_the_bonus_row",
        base=BASE,
        law="transactions.logprobs",
        edits=(("n, row = n + own, row + own + 1", "n, row = n + own, row + own"),),
        report="S88",
        hides="Right for the first request of a call.",
    ),
    Variant(
        name="decode_logprobs_before_the_minimum",
        base=BASE,
        law="transactions.logprobs",
        edits=(
            (
                "return logits.masked_fill",
                "self.raw = logits.softmax(-1)\n        return logits.masked_fill",
            ),
            ("p.double().log().tolist()", "self.raw.double().log().tolist()"),
        ),
        report="S89",
        hides="The same but where a stop token was ruled out.",
    ),
)

CHANCE = (
    _chance(
        name="decode_draws_alike_in_every_round",
        edits=(SEEDED, ("* MIX + 2 * self.t + purpose", "* MIX + purpose")),
        report="S32",
        hides="Each token follows its law; together they do not.",
    ),
    _chance(
        name="decode_drafts_and_accepts_with_one_uniform",
        edits=(
            SEEDED,
            ("torch.full_like(self.n, i))", "torch.full_like(self.n, 2 * i))"),
            ("DRAFTING, VERIFYING = 0, 1", "DRAFTING, VERIFYING = 0, 0"),
        ),
        report="S29",
        hides="Two draws look independent; the uniform that made a draft accepts it.",
    ),
    _given(
        name="decode_draws_with_round_0_s_uniforms",
        edits=(("uniforms.draw[:, self.t, : K + 1]", "uniforms.draw[:, 0, : K + 1]"),),
        report="S32",
        hides="Each token follows its law; together they do not.",
    ),
    Variant(
        name="decode_drafts_from_a_colder_law",
        base=BASE,
        law="transactions.commit_length",
        edits=(
            (
                "drawn = inverse_cdf(q.double(),",
                "q = q.square() / q.square().sum(-1, True)\n"
                "            drawn = inverse_cdf(q.double(),",
            ),
        ),
        report="S17",
        hides="Judged with what was drawn from, it is lossless; fewer drafts are accepted.",
        missed_by=("transactions.sequence",),
    ),
)

CALLS = (
    Variant(
        name="decode_takes_an_empty_prompt",
        base=BASE,
        law="transactions.decode_validates",
        edits=(("check_decode(call)\n", "pass\n"),),
        report="S71",
        hides="Callers bring well-formed calls.",
    ),
    Variant(
        name="decode_answers_what_it_declines",
        base=BASE,
        law="transactions.decode_declines",
        edits=(("refuse_decode(self.name, self.capabilities, call)", "pass"),),
        report="S52",
        hides="The answer is right here; elsewhere it need not be.",
        capabilities=partial(declining, features=("decode.minimum",)),
    ),
    Variant(
        name="decode_prefill_leaves_out_the_middle",
        base=BASE,
        law="transactions.one_by_one",
        edits=(
            (
                PREFILLED,
                f"{PREFILLED}\n            for cache in one.caches:\n"
                "                cache.truncate(cache.lengths.clamp_max(1))",
            ),
            (TRUNCATE, SAFELY),
        ),
        report="A127",
        hides="Right for short prompts; later tokens are all there.",
    ),
)

MUTANTS = (*CACHES, *DRAFTS, *ENDS, *ROWS, *CHANCE, *CALLS)
