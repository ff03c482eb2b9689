"""Faults of recurrent states: what is folded, what a rejection leaves, who begins with what.

Ids such as S109 and A122 name reports in the project's catalogues of public faults.
"""

from functools import partial

from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.torch_recurrence"
REPLAY = "kernelassay.impls.replay_recurrence"
_mutant = partial(Variant, base=BASE)
_replay = partial(Variant, base=REPLAY)
_rejected = partial(_mutant, law="transactions.state_rolled_back")

FOLDED = "state = a[i] * self.past[r, 0] + b[i]"
SHIFTED = "self.past[r, 1:] = self.past[r, :-1].clone()\n                "
LATEST = "self.past[r, 0] = state"
DROPS = "enumerate(check_kept(self.spec, self.new, kept)):"
UNDONE = "            if d > 0:\n"
COUNTED = "        self.new = counts\n"

MUTANTS = (
    _mutant(
        name="state_of_request_0",
        edits=(("states = self.past[:, 0].clone()",
                "states = self.past[:1, 0].repeat(self.spec.R, 1, 1)"),),
        report="A122",
        hides="Right for one request.",
        law="transactions.state_fold",
    ),
    _mutant(
        name="state_folded_backwards",
        edits=(("for i in range(first, first + n):", "for i in range(first, first + n)[::-1]:"),),
        report="A121",
        hides="Right for one token at a time.",
        law="transactions.state_fold",
        missed_by=("transactions.state_one_by_one",),
    ),
    _mutant(
        name="state_begins_with_what_was_there",
        edits=(("torch.zeros((spec.R,", "torch.ones((spec.R,"),),
        report="A154",
        hides="Memory is mostly zero at first.",
        law="transactions.state_fold",
    ),
    _mutant(
        name="state_skips_steps_that_bring_a_request_nothing",
        edits=(("        first = 0\n", "        first = 0\n        if 0 in counts:\n"
                "            counts = [0] * len(counts)\n"),),
        report="S97",
        hides="Right where every request has drafts.",
        law="transactions.state_fold",
    ),
    _mutant(
        name="state_forgets_to_decay_for_single_tokens",
        edits=((FOLDED, FOLDED.replace("a[i] *", "a[i] ** int(n > 1) *")),),
        report="A107",
        hides="Right for prompts, and where a decay is near 1.",
        law="transactions.state_one_by_one",
    ),
    _rejected(
        name="state_keeps_rejected_drafts",
        edits=((UNDONE, UNDONE.replace("d > 0", "d > len(self.past[r])")),),
        report="S109",
        hides="Right where every draft is accepted; drafts are mostly what comes anyway.",
        missed_by=("transactions.state_one_by_one",),
    ),
    _rejected(
        name="state_rolled_back_by_one_too_few",
        edits=((UNDONE, f"            d -= 1\n{UNDONE}"),),
        report="S95",
        hides="One draft too many stays.",
        missed_by=("transactions.state_one_by_one",),
    ),
    _rejected(
        name="state_rolled_back_for_all_alike",
        edits=((DROPS, "enumerate([max(check_kept(self.spec, self.new, kept))] * self.spec.R):"),),
        report="S91",
        hides="Right for one request, and where all accept as many.",
        missed_by=("transactions.state_one_by_one",),
    ),
    _rejected(
        name="state_tail_keeps_rejected_drafts",
        edits=(("self.rows[r, d:] = self.rows[r, : len(self.rows[r]) - d].clone()", "pass"),),
        report="S110",
        hides="The recurrent part is right.",
        missed_by=("transactions.state_one_by_one",),
    ),
    _rejected(
        name="state_checkpoint_taken_after_the_token",
        edits=((f"{SHIFTED}{LATEST}", f"{LATEST}\n                {SHIFTED.rstrip()}"),),
        report="S92",
        hides="Right where every draft is accepted.",
        missed_by=("transactions.state_one_by_one",),
    ),
    _mutant(
        name="state_padding_goes_to_slot_minus_1",
        edits=((COUNTED, "        for row in b[first:]:\n            self.past[-1, 0] += row\n"
                f"{COUNTED}"),),
        report="S113",
        hides="Right where no batch is padded; -1 is the last request.",
        law="transactions.state_padding",
        missed_by=("transactions.state_fold", "transactions.state_rolled_back"),
    ),
    _mutant(
        name="state_of_a_freed_request_stays",
        edits=(("        self.past[request] = 0\n", ""),),
        report="S109",
        hides="Right until a request number is used again.",
        law="transactions.state_freed",
        missed_by=("transactions.state_rolled_back",),
    ),
    _mutant(
        name="state_tail_of_a_freed_request_stays",
        edits=(("        self.rows[request] = 0\n", ""),),
        report="S110",
        hides="The recurrent part is zero; the next request's first tokens see a stranger's.",
        law="transactions.state_freed",
        missed_by=("transactions.state_rolled_back",),
    ),
    _mutant(
        name="state_forked_without_its_tail",
        edits=(("        self.rows[child] = self.rows[parent]\n", ""),),
        report="S110",
        hides="The recurrent part is right; a few tokens later all is.",
        law="transactions.state_fork",
        missed_by=("transactions.state_rolled_back",),
    ),
    _mutant(
        name="state_clears_what_it_has_folded",
        edits=((COUNTED, f"{COUNTED}        b.zero_()\n"),),
        report="A131",
        hides="Rows are not looked at again in most models.",
        law="transactions.state_memory",
    ),
    _mutant(
        name="state_keeps_more_than_was_appended",
        edits=((DROPS, "enumerate(n - k for n, k in zip(self.new or (), kept.tolist())):"),),
        report="S107",
        hides="Callers keep what is there.",
        law="transactions.state_validates",
        missed_by=("transactions.state_fold", "transactions.state_rolled_back"),
    ),
    _replay(
        name="state_replayed_on_top_of_the_drafts",
        edits=(("folded(before, a, b", "folded(self.states, a, b"),),
        report="S109",
        hides="Right where no draft stays, and nothing was drafted.",
        law="transactions.state_rolled_back",
        missed_by=("transactions.state_one_by_one",),
    ),
    _replay(
        name="state_replayed_from_rows_that_are_gone",
        edits=(("a.clone(), b.clone()", "a, b"),),
        report="S92",
        hides="Right where the caller's buffers are not used again before the verdict.",
        law="transactions.state_rolled_back",
        missed_by=("transactions.state_one_by_one",),
    ),
    _replay(
        name="state_without_the_tail_that_was_asked_for",
        edits=(("if spec.tail:", "if spec.tail < 0:"),),
        report="A128",
        hides="The recurrent part is right.",
        law="transactions.state_declines",
    ),
    _mutant(
        name="state_opens_for_no_request",
        edits=(("        check_spec(spec)\n", ""),),
        report="inference-sim/inference-sim#508",
        hides="Sizes are right where a model says them.",
        law="transactions.state_validates",
        missed_by=("transactions.state_fold", "transactions.state_rolled_back"),
    ),
    _mutant(
        name="state_frees_the_last_request_for_minus_one",
        edits=(("        check_request(self.spec, request)\n", ""),),
        report="S80",
        hides="Python counts -1 from the end; nobody asks for it on purpose.",
        law="transactions.state_validates",
    ),
)  # fmt: skip

CONTROLS = (
    _mutant(
        name="state_with_a_checkpoint_more",
        edits=(("for n in (spec.drafts + 1,", "for n in (spec.drafts + 2,"),),
        report="S109",
        hides="More is kept than any rollback goes back.",
    ),
    _mutant(
        name="state_leaves_checkpoints_of_a_freed_request",
        edits=(("self.past[request] = 0", "self.past[request, 0] = 0"),),
        report="S109",
        hides="Checkpoints of tokens long gone are there, and are never gone back to.",
    ),
    _replay(
        name="state_replays_nothing_where_all_is_kept",
        edits=(("        before, a, b, counts = self.last\n", "        before, a, b, counts = "
                "self.last\n        if kept.tolist() == counts:\n            return\n"),),
        report="S97",
        hides="A rollback that drops nothing may leave all as it is.",
    ),
)  # fmt: skip
