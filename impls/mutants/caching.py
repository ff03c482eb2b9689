"""Faults of KV caches in pages: what is cut, shared, moved, freed and counted.

Ids such as S91 and A119 name reports in the project's catalogues of public faults.
"""

from functools import partial

from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.torch_cache"
_mutant = partial(Variant, base=BASE, law="transactions.contents")
_truncated = partial(Variant, base=BASE, law="transactions.truncated")
_forked = partial(Variant, base=BASE, law="transactions.copy_on_write")
_compacted = partial(Variant, base=BASE, law="transactions.compacted")
_counted = partial(Variant, base=BASE, law="transactions.accounting")
_exhausted = partial(Variant, base=BASE, law="transactions.exhausted")
_PLAIN = ("transactions.contents",)

CUT = "            self.pages_of.cut(r, n)\n"
KEPT = "enumerate(check_cut(self.pages_of.lengths, lengths))"
TO_COPY = "elif self.references[held[column]] > 1:"
DROPPED = "        for page in self.held[r][columns:]:\n            self.drop(page)\n"
FREED = "        if self.references[page] == 0:\n"
SLOTS = "slots += pages.slots(r, range(end - n, end))"
AT = "at = torch.tensor(slots, dtype=torch.int64, device=k.device)"
WRITTEN = "pool.flatten(0, 1)[at] = rows[: len(slots)]"
MOVED = "flat[targets] = flat[sources]"
SHARED = "        for page in self.held[child]:\n"

TRUNCATION = (
    _truncated(
        name="cache_keeps_rejected_entries",
        edits=((CUT, CUT.replace("n)", "self.pages_of.lengths[r] if n else 0)")),),
        report="S91",
        hides="Right where every draft is accepted; drafts are mostly what comes anyway.",
        missed_by=_PLAIN,
    ),
    _truncated(
        name="cache_cuts_all_requests_alike",
        edits=((KEPT, "enumerate([min(lengths.tolist())] * self.spec.R)"),),
        report="S91",
        hides="Right for one request, and where all accept as many.",
        missed_by=_PLAIN,
    ),
    _truncated(
        name="cache_keeps_one_entry_too_many",
        edits=((CUT, CUT.replace("n)", "min(n + 1, self.pages_of.lengths[r]))")),),
        report="S95",
        hides="Right where nothing is cut; what stays is one draft.",
    ),
    _truncated(
        name="cache_cuts_one_entry_too_many",
        edits=((CUT, CUT.replace("n)", "max(n - int(n < self.pages_of.lengths[r]), 0))")),),
        report="S95",
        hides="Right where nothing is cut; one entry of a long text is missing.",
    ),
    _truncated(
        name="cache_keeps_whole_pages",
        edits=(
            ("        self.lengths[r] = length\n", "        self.lengths[r] = min("
             "-(-length // self.size) * self.size, self.lengths[r])\n"),
        ),
        report="S94",
        hides="Right where a cut is at a page's end.",
    ),
    _truncated(
        name="cache_table_keeps_freed_pages",
        edits=(("        del self.held[r][columns:]\n", ""),),
        report="A125",
        hides="The entries are still there until another request gets the page.",
        missed_by=_PLAIN,
    ),
)  # fmt: skip

WRITING = (
    _mutant(
        name="cache_slots_go_on_past_the_page",
        edits=(
            (SLOTS, "slots += [pages.slots(r, [end - n])[0] + i for i in range(n)] if n else []"),
            (AT, AT.replace("slots,", "[s % len(pools.k.flatten(0, 1)) for s in slots],")),
        ),
        report="S103",
        hides="Pages of a fresh pool lie in order: requests that come one by one are right.",
    ),
    _mutant(
        name="cache_appends_at_the_start_of_the_page",
        edits=((SLOTS, "low = (end - n) // pages.size * pages.size\n        "
                "slots += pages.slots(r, range(low, low + n))"),),
        report="S112",
        hides="Right for prompts, and where every append fills whole pages.",
    ),
    _mutant(
        name="cache_skips_steps_that_bring_a_request_nothing",
        edits=(("        copies = []\n", "        copies = []\n        if 0 in counts:\n"
                "            counts = [0] * len(counts)\n"),),
        report="S97",
        hides="Right where every request has drafts.",
    ),
    _mutant(
        name="cache_reads_the_table_of_another_request",
        edits=(("for held in self.held]", "for held in (*self.held[1:], self.held[0])]"),),
        report="A122",
        hides="Right for one request.",
    ),
    _mutant(
        name="cache_ingests_rows_from_the_end",
        edits=((WRITTEN, WRITTEN.replace("[: len(slots)]", "[len(rows) - len(slots) :]")),),
        report="A110",
        hides="Right where no batch is padded.",
        law="transactions.padding",
        missed_by=_PLAIN,
    ),
    _mutant(
        name="cache_writes_padded_rows_to_slot_minus_1",
        edits=(
            (AT, AT.replace("slots,", "slots + [-1] * (len(k) - len(slots)),")),
            (WRITTEN, WRITTEN.replace("[: len(slots)]", "")),
        ),
        report="S113",
        hides="-1 is the last slot of the pool, which is rarely held.",
        law="transactions.padding",
    ),
    _mutant(
        name="cache_single_entries_miss_a_new_page",
        edits=((SLOTS, SLOTS.replace("range(end - n, end)", "[j - (n == 1 and j > 0 and "
                "j % pages.size == 0)\n            for j in range(end - n, end)]")),),
        report="A107",
        hides="Right for prompts, and for all tokens of a page but the first.",
        law="transactions.entry_by_entry",
    ),
    _mutant(
        name="cache_rounds_values_to_whole_numbers",
        edits=((WRITTEN, WRITTEN.replace("rows[", "rows.round()[")),),
        report="A133",
        hides="Values of some hundreds lose little.",
        law="transactions.bits",
        missed_by=("transactions.contents", "transactions.visible"),
    ),
    _mutant(
        name="cache_adds_to_what_a_slot_held",
        edits=((WRITTEN, WRITTEN.replace("= rows", "= pool.flatten(0, 1)[at] * 0 + rows")),),
        report="A154",
        hides="0 x anything is 0, but for NaN.",
        law="transactions.poison",
    ),
    _mutant(
        name="cache_clears_what_it_has_ingested",
        edits=((WRITTEN, f"{WRITTEN}\n        rows.zero_()"),),
        report="A131",
        hides="Keys and values are not looked at again in most models.",
        law="transactions.memory",
    ),
)  # fmt: skip

SHARING = (
    _forked(
        name="cache_shares_pages_that_are_written_to",
        edits=((TO_COPY, TO_COPY.replace("> 1", "> len(self.references)")),),
        report="A119",
        hides="Right where only one of the two goes on.",
        missed_by=_PLAIN,
    ),
    _forked(
        name="cache_copies_only_keys_on_write",
        edits=(("        pools.v[target] = pools.v[source]\n", ""),),
        report="A119",
        hides="Attention looks where it should.",
    ),
    _forked(
        name="cache_copies_the_second_half_of_a_page",
        edits=(
            ("pools.k[target] = pools.k[source]", "half = pools.k.shape[1] // 2\n"
             "        pools.k[target, half:] = pools.k[source, half:]"),
            ("pools.v[target] = pools.v[source]",
             "pools.v[target, half:] = pools.v[source, half:]"),
        ),
        report="A119",
        hides="Right where a page has one slot.",
    ),
    _forked(
        name="cache_does_not_count_the_last_shared_page",
        edits=((SHARED, SHARED.replace("[child]", "[child][:-1]")),),
        report="A119",
        hides="Whole pages before it are shared rightly.",
    ),
    _forked(
        name="cache_forks_request_0",
        edits=(("self.held[child] = self.held[parent]", "self.held[child] = self.held[0]"),),
        report="A122",
        hides="Right where request 0 is the parent.",
    ),
    _forked(
        name="cache_forks_whole_pages_only",
        edits=(("        self.lengths[child] = length\n", "        self.lengths[child] = "
                "-(-length // self.size) * self.size\n"),),
        report="S98",
        hides="Right where a fork is at a page's end.",
    ),
    _counted(
        name="cache_counts_a_fork_twice",
        edits=(("self.references[page] += 1", "self.references[page] += 2"),),
        report="S101",
        hides="What is read is right; the pool shrinks.",
        missed_by=_PLAIN,
    ),
    _counted(
        name="cache_child_leaks_its_pages",
        edits=(("        self.cut(child, 0)\n", ""),),
        report="S101",
        hides="Right where the child was empty.",
    ),
)  # fmt: skip

MOVING = (
    _compacted(
        name="cache_takes_the_first_nodes_of_a_tree",
        edits=(("            self.device.move(self.pool, sources, targets)\n", ""),),
        report="S116",
        hides="Right where the accepted nodes are a dense prefix.",
        missed_by=_PLAIN,
    ),
    _compacted(
        name="cache_moves_from_the_wrong_start",
        edits=(("[start + kept[i] for i in moved]", "[kept[i] for i in moved]"),),
        report="S119",
        hides="Right where everything is a draft.",
    ),
    _compacted(
        name="cache_moves_heads_in_reverse",
        edits=((MOVED, f"{MOVED}.flip(1)"),),
        report="S116",
        hides="Right for one KV head.",
    ),
    _compacted(
        name="cache_moves_over_what_is_to_move",
        edits=((MOVED, "for a, b in reversed([*zip(sources, targets, strict=True)]):\n"
                "            flat[b] = flat[a]"),),
        report="S116",
        hides="Right where entries move further than their number.",
    ),
    _compacted(
        name="cache_moves_within_shared_pages",
        edits=(("span = (request, start + moved[0], end)", "span = (request, end, end)"),),
        report="A119",
        hides="Right where nobody else holds the page.",
    ),
)  # fmt: skip

COUNTING = (
    _counted(
        name="cache_keeps_pages_of_rejected_entries",
        edits=((DROPPED, ""),),
        report="S101",
        hides="What is read is right; the pool shrinks.",
    ),
    _counted(
        name="cache_frees_a_page_twice",
        edits=(("        self.pages_of.cut(request, 0)\n", "        self.pages_of.free += "
                "self.pages_of.held[request]\n        self.pages_of.cut(request, 0)\n"),),
        report="S101",
        hides="Right until two requests get the same page.",
    ),
    _mutant(
        name="cache_frees_pages_that_others_hold",
        edits=((FREED, FREED.replace("== 0", ">= 0")),),
        report="A119",
        hides="Right until somebody gets the page.",
        law="transactions.freed",
        missed_by=_PLAIN,
    ),
    _mutant(
        name="cache_says_lengths_in_whole_pages",
        edits=(("return list(self.pages_of.lengths)", "return [len(held) * self.pages_of.size "
                "for held in self.pages_of.held]"),),
        report="S94",
        hides="What is read is right.",
        law="transactions.lengths",
        missed_by=_PLAIN,
    ),
    _mutant(
        name="cache_sees_whole_pages",
        edits=(("lengths = torch.tensor(self.pages_of.lengths, device=q.device)",
                "lengths = torch.tensor([len(held) * self.pages_of.size for held in "
                "self.pages_of.held])"),),
        report="A124",
        hides="Right where every request fills its pages.",
        law="transactions.visible",
    ),
    _mutant(
        name="cache_takes_lengths_beyond_what_is_held",
        edits=((KEPT, "enumerate(lengths.tolist())"),),
        report="S107",
        hides="Callers pass lengths that are there.",
        law="transactions.validates",
        missed_by=_PLAIN,
    ),
    _mutant(
        name="cache_frees_the_last_request_for_minus_one",
        edits=(("        check_steps(self.pages_of.lengths, request, 0, ())\n", ""),),
        report="S80",
        hides="Python counts -1 from the end; nobody asks for it on purpose.",
        law="transactions.validates",
        missed_by=_PLAIN,
    ),
    _mutant(
        name="cache_opens_for_heads_that_do_not_divide",
        edits=(("        check_spec(spec)\n", ""),),
        report="A85",
        hides="Models have head counts that divide.",
        law="transactions.validates",
        missed_by=_PLAIN,
    ),
    _exhausted(
        name="cache_takes_pages_until_there_are_none",
        edits=(("        self.pages_of.check_room(spans)\n", ""),),
        report="ovg-project/kvcached#364",
        hides="A pool that is large enough never runs out; what is taken by then is lost.",
        missed_by=(*_PLAIN, "transactions.accounting", "transactions.validates"),
    ),
    _exhausted(
        name="cache_counts_pages_that_are_held_as_free",
        edits=(("if need > len(self.free):", "if need > len(self.references):"),),
        report="inference-sim/inference-sim#200",
        hides="Right until pages are held, and a pool that is large enough never runs out.",
        missed_by=(*_PLAIN, "transactions.accounting", "transactions.validates"),
    ),
    _exhausted(
        name="cache_counts_no_copies_when_it_looks_for_room",
        edits=(("has the page to itself\n                    need += 1\n", "copies\n"),),
        report="inference-sim/inference-sim#200",
        hides="Right until a page is shared and none is free.",
        missed_by=(*_PLAIN, "transactions.accounting", "transactions.validates"),
    ),
    _exhausted(
        name="cache_writes_over_the_first_page_when_there_is_no_other",
        edits=(
            ("        self.pages_of.check_room(spans)\n", ""),
            ("page = self.free.pop()", "page = self.free.pop() if self.free else 0"),
        ),
        report="gittensor-ai-lab/sparkinfer#110",
        hides="Nothing raises: somebody's entries are gone.",
        missed_by=(*_PLAIN, "transactions.accounting", "transactions.validates"),
    ),
)  # fmt: skip

MUTANTS = (*TRUNCATION, *WRITING, *SHARING, *MOVING, *COUNTING)
