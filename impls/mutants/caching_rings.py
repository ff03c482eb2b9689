"""Faults of KV caches in rings: where a ring begins anew, what a window is, what is lost."""

from functools import partial

from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.torch_ring"
_mutant = partial(Variant, base=BASE, law="transactions.window")
_NO_WINDOW = ("transactions.contents", "transactions.truncated")

RING = "ring[r, at] = rows[first + n - kept : first + n]"
AT = "at = torch.arange(L + n - kept, L + n, device=k.device) % self.slots"

MUTANTS = (
    _mutant(
        name="ring_reads_in_order_of_storage",
        edits=(("at = j % self.slots\n", "at = j - j[:1]\n"),),
        report="A121",
        hides="Right until the ring is written around.",
    ),
    _mutant(
        name="ring_begins_anew_a_slot_late",
        edits=(
            (AT, "at = (torch.arange(L + n - kept, L + n) + int(L >= self.slots)) % self.slots"),
        ),
        report="A121",
        hides="Right until the ring is full.",
    ),
    _mutant(
        name="ring_window_of_one_more",
        edits=(("keep & (j > i - spec.window)", "keep & (j >= i - spec.window)"),),
        report="A121",
        hides="Right for texts that are no longer than the window.",
    ),
    _mutant(
        name="ring_window_of_the_last_query",
        edits=(("(j > i - spec.window)", "(j > L - 1 - spec.window)"),),
        report="S106",
        hides="Right for one query, and for texts no longer than the window.",
    ),
    _mutant(
        name="ring_has_no_room_for_drafts",
        edits=(("spec.window + spec.spare", "spec.window"),),
        report="S107",
        hides="Right until a draft is rejected after the ring is full.",
        missed_by=_NO_WINDOW,
    ),
    _mutant(
        name="ring_keeps_the_first_of_a_long_prompt",
        edits=((RING, "ring[r, at] = rows[first : first + kept]"),),
        report="A121",
        hides="Right for prompts that fit into the ring.",
    ),
    _mutant(
        name="ring_trims_by_what_is_stored",
        edits=(
            (
                "self.held = check_cut(self.held, lengths)",
                "kept = check_cut(self.held, lengths)\n        self.held = [n if n == L else "
                "min(n, self.slots)\n        for n, L in zip(kept, self.held, strict=True)]",
            ),
        ),
        report="A121",
        hides="Right until the ring is full: the logical length is what is stored.",
    ),
    _mutant(
        name="ring_writes_to_requests_before",
        edits=((RING, RING.replace("[r, at]", "[: r + 1, at]")),),
        report="A112",
        hides="Right for one request.",
        law="transactions.untouched",
    ),
    _mutant(
        name="ring_ignores_moves",
        edits=(
            (
                'raise Unsupported(f"a ring does not move entries; got {[*kept]} from {start} of '
                '{request}")',
                "check_steps(self.held, request, start, kept)",
            ),
        ),
        report="S109",
        hides="Nothing is said; the accepted path is the first one, mostly.",
        law="transactions.declines",
        missed_by=_NO_WINDOW,
    ),
)
