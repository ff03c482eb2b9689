"""Decode loops that look wrong and are right: slower, or as they declare."""

from functools import partial

from kernelassay.impls.mutants.decoding import (
    BASE,
    CHOSEN,
    INGEST,
    KEEP,
    LOOKED,
    NOTE,
    PREFILL,
    TRUNCATE,
    decoding,
)
from kernelassay.impls.variants import Variant

_control = partial(Variant, base=BASE)
_PREFIX = partial(decoding, caches="prefix")
_SCHEDULED = "k = torch.where(self.live, self.call.schedule[self.t % len(self.call.schedule)], 0)"
_DRAFT_LAWS = "q=None if q is None or K == 0 else q[:, :K][made],"
_DRAW = "draw = uniforms.draw[:, self.t, : K + 1][rows].float()"
_TARGET = "logits, offsets = self.target.see(self.text, torch.where(self.live, self.n + k, 0))"

_LAW = "q = logits[offsets[1:][here].long() - 1].softmax(-1).float()"

CONTROLS = (
    _control(
        name="decode_rules_stop_tokens_out_of_drafts_too",
        edits=(
            (
                _LAW,
                "out = (self.stop[here, :, None] == torch.arange(V)).any(1)\n"
                "            out &= (self.n - self.first + i < self.minimum)[here, None]\n"
                f"            {_LAW.replace('.soft', '.masked_fill(out, -torch.inf).soft')}",
            ),
        ),
        report="X6",
        hides="Drafts are of another law than the draft model's; judged with it, all is well.",
        capabilities=partial(decoding, drafts_processed=True),
    ),
    _control(
        name="decode_greedy_requests_draw_their_drafts",
        edits=((CHOSEN, "drawn"),),
        report="S20",
        hides="A greedy target accepts what it would have taken, whatever proposed it.",
    ),
    _control(
        name="decode_drafts_anew_each_round",
        edits=(
            (
                NOTE,
                f"for one in self.both[1:]:\n            one.keep(self.n * 0)\n        {NOTE}",
            ),
        ),
        report="S95",
        hides="The draft cache is empty after every round; drafts are the same.",
        capabilities=_PREFIX,
    ),
    _control(
        name="decode_prefills_anew_each_round",
        edits=(
            (KEEP, KEEP + "        self.target.keep(self.n * 0)\n"),
            (_TARGET, f"self.target.see(self.text, self.n - 1)\n        {_TARGET}"),
        ),
        report="S91",
        hides="No cache outlives a round.",
        capabilities=_PREFIX,
    ),
    _control(
        name="decode_draft_lags_and_says_so",
        edits=((INGEST, f"if not int(k.max()):\n            return laws\n        {INGEST}"),),
        report="S97",
        hides="Rounds without drafts leave the draft cache behind, until drafts are made again.",
        capabilities=_PREFIX,
    ),
    _control(
        name="decode_prefills_the_draft_in_the_first_round",
        edits=(
            (
                PREFILL,
                PREFILL.replace("self.both:", "self.both[:1]:"),
            ),
        ),
        report="S95",
        hides="The draft cache is empty after prefill.",
    ),
    _control(
        name="decode_keeps_garbage_behind_its_lengths",
        edits=(
            (
                TRUNCATE,
                f"{TRUNCATE}\n            cache.k[:, -1] = cache.v[:, -1] = 1e3",
            ),
        ),
        report="S91",
        hides="What is rejected stays in memory, and is never read.",
    ),
    _control(
        name="decode_judges_drafts_as_if_certain",
        edits=((_DRAFT_LAWS, "q=None,"),),
        report="X2",
        hides="Accepted with p(x), else drawn from p without x: p comes, whatever q is.",
        capabilities=partial(decoding, rounds="joint"),
    ),
    _control(
        name="decode_finds_nothing_to_look_up",
        edits=((LOOKED, "()"),),
        report="S83",
        hides="All rounds of such requests are without drafts.",
        capabilities=partial(decoding, lookup="other"),
    ),
    _control(
        name="decode_looks_up_the_earliest",
        edits=(("range(len(text) - n - 1, -1, -1)", "range(len(text) - n)"),),
        report="S22",
        hides="Another occurrence is followed, as it declares.",
        capabilities=partial(decoding, lookup="earliest"),
    ),
    _control(
        name="decode_drafts_no_more_than_there_is_room_for",
        edits=(
            (
                _SCHEDULED,
                f"{_SCHEDULED}\n        room = self.budget - self.n + self.first - 1\n"
                "        k = torch.minimum(k, room.clamp_min(0))",
            ),
        ),
        report="S71",
        hides="The last rounds have fewer drafts, or none.",
        capabilities=partial(decoding, trimmed=True),
    ),
    _control(
        name="decode_draws_with_one_uniform_a_round",
        edits=(
            (
                _DRAW,
                "draw = uniforms.draw[:, self.t, :1].expand(-1, K + 1)[rows].float()",
            ),
        ),
        report="S29",
        hides="Only one token of a round is drawn: any uniform of the round will do.",
        capabilities=partial(decoding, shared_draw=True),
    ),
    _control(
        name="decode_logprobs_of_the_model_itself",
        edits=(
            (
                "return logits.masked_fill",
                "self.raw = logits.softmax(-1)\n        return logits.masked_fill",
            ),
            ("p.double().log().tolist()", "self.raw.double().log().tolist()"),
        ),
        report="S89",
        hides="They leave out that stop tokens were ruled out, as it declares.",
        capabilities=partial(decoding, logprobs="raw"),
    ),
)
