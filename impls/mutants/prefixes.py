"""Faults of prefix caches: how blocks are named, when they may be hit, who holds them.

Ids such as A115 and S104 name reports in the project's catalogues of public faults.
"""

from dataclasses import replace
from functools import partial

from kernelassay.impls.contract import Capabilities, Prefixed
from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.torch_prefix"
TREE = "kernelassay.impls.radix_prefix"
_mutant = partial(Variant, base=BASE)
_tree = partial(Variant, base=TREE)

CHECKED = "if (label.before, label.tokens, label.scope) == (before, tokens, scope):"
TRUSTS = (CHECKED, "if label.name == name:")
NAME = "repr((before, tokens, tuple(scope)))"
DIGEST = 'return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")'
LIMIT = 'limit = len(tokens) - (self.convention.last == "computed")'
WHOLE = "range(len(own.labels), length // size)"
LET_GO = "for block in own.blocks[::-1]:"
BEGUN = "self.requests[request] = Request(scope, len(tokens), [*tokens[:n]], found, labels)"
ENDED = "            self.pool.drop(block)\n        self.requests[request] = None\n"
_UNTOLD = ("transactions.prefix_cold_run", "transactions.prefix_scope")
_PLAIN = ("transactions.prefix_cold_run",)


def trusting(c: Capabilities) -> Capabilities:
    """It takes no hashes from others, which could collide."""
    return replace(c, supports=c.supports - {"prefix.hash"})


_believer = partial(_mutant, capabilities=trusting)

NAMING = (
    _mutant(
        name="prefix_believes_a_hash",
        edits=(TRUSTS,),
        report="A115",
        hides="64 bits do not collide by chance.",
        law="transactions.prefix_collision",
        missed_by=_UNTOLD,
    ),
    _mutant(
        name="prefix_checks_tokens_of_one_block",
        edits=((CHECKED, "if (label.tokens, label.scope) == (tokens, scope):"),),
        report="A115",
        hides="The tokens are compared, but not those before them.",
        law="transactions.prefix_collision",
        missed_by=_UNTOLD,
    ),
    _mutant(
        name="prefix_checks_no_scope",
        edits=((CHECKED, "if (label.before, label.tokens) == (before, tokens):"),),
        report="A113",
        hides="The scope is part of the hash.",
        law="transactions.prefix_collision",
        missed_by=_UNTOLD,
    ),
    _believer(
        name="prefix_hash_of_one_block",
        edits=(TRUSTS, (NAME, "repr((tokens, tuple(scope)))")),
        report="A115",
        hides="Right where no two prompts have a block in common but at their beginning.",
        law="transactions.prefix_cold_run",
    ),
    _believer(
        name="prefix_hash_of_a_block_and_its_index",
        edits=(
            TRUSTS,
            (f"text = {NAME}", "index = 0 if before is None else before % 64 + 1\n    "
             "text = repr((index, tokens, tuple(scope)))"),
            (DIGEST, f"{DIGEST} * 64 + index"),
        ),
        report="A115",
        hides="Positions are right; entries depend on the tokens before them all the same.",
        law="transactions.prefix_cold_run",
    ),
    _believer(
        name="prefix_hash_in_any_order",
        edits=(
            TRUSTS,
            (NAME, "repr((tokens, tuple(scope)))"),
            (DIGEST, f"{DIGEST} ^ (before or 0)"),
        ),
        report="A115",
        hides="Right where blocks come in one order only.",
        law="transactions.prefix_cold_run",
    ),
    _believer(
        name="prefix_hash_without_salt",
        edits=(TRUSTS, (NAME, "repr((before, tokens, scope.adapter))")),
        report="A113",
        hides="What is read is right, and tells one tenant what another one asked.",
        law="transactions.prefix_scope",
    ),
    _believer(
        name="prefix_hash_without_adapter",
        edits=(TRUSTS, (NAME, "repr((before, tokens, scope.salt))")),
        report="A113",
        hides="Right where all requests use one adapter.",
        law="transactions.prefix_scope",
    ),
    _believer(
        name="prefix_hash_of_untagged_scope",
        edits=(TRUSTS, (NAME, "repr((before, tokens, [x for x in scope if x]))")),
        report="A113",
        hides="Right unless an adapter is named as a salt is.",
        law="transactions.prefix_scope",
        missed_by=_PLAIN,
    ),
)  # fmt: skip

COMMITTING = (
    _mutant(
        name="prefix_commits_drafts",
        edits=((WHOLE, WHOLE.replace("length", "len(own.tokens)")),),
        report="S104",
        hides="Right where nothing is kept back when a request commits.",
        law="transactions.prefix_uncommitted",
    ),
    _mutant(
        name="prefix_commits_blocks_begun",
        edits=((WHOLE, WHOLE.replace("length // size", "min(-(-length // size), "
                "len(own.tokens) // size)")),),
        report="S104",
        hides="Right where a block's tokens are all emitted at once.",
        law="transactions.prefix_uncommitted",
    ),
    _mutant(
        name="prefix_key_of_raw_output",
        edits=(
            ("    committed: int = 0\n", "    committed: int = 0\n    raw: list[int] = "
             "field(default_factory=list)\n"),
            ("        own.tokens += tokens\n", "        own.raw = own.raw or [*own.tokens]\n"
             "        own.tokens += tokens\n        own.raw += tokens\n"),
            ("part = tuple(own.tokens[j", "part = tuple(own.raw[j"),
        ),
        report="S104",
        hides="Right where no draft is rejected.",
        law="transactions.prefix_uncommitted",
    ),
    _mutant(
        name="prefix_commits_prompts_only",
        edits=((WHOLE, WHOLE.replace("length", "min(length, own.prompt)")),),
        report="S104",
        hides="Nothing wrong is read; what was generated is computed again.",
        law="transactions.prefix_found",
        missed_by=("transactions.prefix_cold_run", "transactions.prefix_uncommitted"),
    ),
    _mutant(
        name="prefix_commits_before_it_computes",
        edits=(
            (BEGUN, "more = -(-len(tokens) // self.spec.block) - len(found)\n        "
             "found += [self.pool.take() for _ in range(more)]\n        "
             f"own = {BEGUN.replace('[*tokens[:n]]', '[*tokens]')}"),
            ("        return n\n", "        self.commit(request, len(tokens))\n        "
             "own.tokens, own.committed = own.tokens[:n], 0\n        return n\n"),
        ),
        report="A116",
        hides="Right where requests begin one after the other.",
        law="transactions.prefix_uncommitted",
    ),
    _mutant(
        name="prefix_hits_part_of_a_block",
        edits=(
            (WHOLE, WHOLE.replace("length // size", "-(-length // size)")),
            ("range(size, limit + 1, size)", "range(size, limit + size, size)"),
        ),
        report="A116",
        hides="Right where prompts are no continuation of others, or of whole blocks.",
        law="transactions.prefix_whole_blocks",
    ),
    _mutant(
        name="prefix_block_stays_partial",
        edits=((WHOLE, WHOLE.replace("length // size", "-(-length // size)")),),
        report="A116",
        hides="Nothing wrong is read; a block committed in part is never known as a full one.",
        law="transactions.prefix_found",
    ),
    _mutant(
        name="prefix_hits_the_last_token",
        edits=((LIMIT, "limit = len(tokens)"),),
        report="S95",
        hides="Right where the length of a prompt is no multiple of the block size.",
        law="transactions.prefix_whole_blocks",
    ),
    _mutant(
        name="prefix_match_says_a_block_too_many",
        edits=(("return len(self.found(tokens, scope)) * self.spec.block",
                "return (len(self.found(tokens, scope)) + 1) * self.spec.block"),),
        report="S94",
        hides="Requests begin rightly; what a router is told is wrong.",
        law="transactions.prefix_match",
        missed_by=("transactions.prefix_found", "transactions.prefix_eviction"),
    ),
    _mutant(
        name="prefix_match_says_a_block_too_few",
        edits=(("return len(self.found(tokens, scope)) * self.spec.block",
                "return max(0, len(self.found(tokens, scope)) - 1) * self.spec.block"),),
        report="S94",
        hides="Nothing wrong is promised; a router sends requests elsewhere.",
        law="transactions.prefix_as_matched",
        missed_by=("transactions.prefix_found", "transactions.prefix_match"),
    ),
)  # fmt: skip

HOLDING = (
    _mutant(
        name="prefix_evicted_block_keeps_its_hash",
        edits=(("        self.forget(block)\n        self.references[block] = 1\n",
                "        self.references[block] = 1\n"),),
        report="A116",
        hides="Right until the pool is full; then the old prefix finds what was written since.",
        law="transactions.prefix_eviction",
    ),
    _mutant(
        name="prefix_goes_on_past_an_evicted_block",
        edits=(
            TRUSTS,
            ("break\n            serial", "continue\n            serial"),
            (LET_GO, "for block in own.blocks:"),
        ),
        report="A116",
        hides="Right where blocks are evicted from the end of a prefix.",
        law="transactions.prefix_eviction",
        capabilities=trusting,
    ),
    _mutant(
        name="prefix_evicts_what_was_hit",
        edits=(("        self.idle.pop(block, None)\n", ""),),
        report="A119",
        hides="Right until the pool is full.",
        law="transactions.prefix_pinned",
    ),
    _mutant(
        name="prefix_first_to_end_lets_go_for_all",
        edits=(("        if self.references[block] == 0:\n            self.idle",
                "        if self.references[block] <= 1:\n            self.idle"),),
        report="A119",
        hides="Right where no two requests run on one block.",
        law="transactions.prefix_pinned",
    ),
    _mutant(
        name="prefix_row_keeps_blocks_of_the_last_request",
        edits=(
            (ENDED, ENDED.replace("drop(block)\n", "drop(block)\n        self.stale = {request: "
             "own.blocks}\n")),
            (BEGUN, BEGUN.replace("found,", "found + getattr(self, 'stale', {}).pop(request, [])"
             "[len(found) :],")),
        ),
        report="A125",
        hides="Right where a request number is not used again.",
        law="transactions.prefix_pinned",
    ),
    _mutant(
        name="prefix_counts_holders_of_committed_blocks_up_only",
        edits=((LET_GO, "for block in own.blocks[len(own.labels) :][::-1]:"),),
        report="S101",
        hides="What is read is right; the pool shrinks.",
        law="transactions.prefix_capacity",
    ),
    _mutant(
        name="prefix_keeps_blocks_of_rejected_drafts",
        edits=(
            ("for block in own.blocks[columns:]:", "for block in own.blocks[len(own.blocks) :]:"),
        ),
        report="S101",
        hides="What is read is right; the pool shrinks.",
        law="transactions.prefix_capacity",
        missed_by=("transactions.prefix_scope", "transactions.prefix_eviction"),
    ),
    _mutant(
        name="prefix_reset_keeps_the_table",
        edits=(("            self.pool.forget(block)\n", "            self.pool.idle.move_to_end("
                "block, last=False)\n"),),
        report="A116",
        hides="Right until weights change: entries of the old ones are hit.",
        law="transactions.prefix_reset",
    ),
    _mutant(
        name="prefix_says_only_committed_blocks",
        edits=(("BlockUse(tuple(tuple(own.blocks)", "BlockUse(tuple(tuple(own.blocks[: len("
                "own.labels)])"),),
        report="S101",
        hides="What is read is right.",
        law="transactions.prefix_accounting",
        missed_by=(*_UNTOLD, "transactions.prefix_found"),
    ),
    _mutant(
        name="prefix_commits_what_is_not_there",
        edits=(("        check_length(own.committed, len(own.tokens), length)\n", ""),),
        report="S107",
        hides="Callers commit what is there.",
        law="transactions.prefix_validates",
        missed_by=(*_UNTOLD, "transactions.prefix_found"),
    ),
    _mutant(
        name="prefix_opens_without_blocks",
        edits=(("        check_spec(spec)\n", ""),),
        report="vllm-project/vllm#43900",
        hides="Nobody asks for a pool of nothing on purpose.",
        law="transactions.prefix_validates",
        missed_by=(*_UNTOLD, "transactions.prefix_found"),
    ),
    _mutant(
        name="prefix_takes_minus_one_for_the_last_request",
        edits=(("        check_running(self.spec, self.runs(), request)\n", ""),),
        report="S80",
        hides="Python counts -1 from the end; nobody asks for it on purpose.",
        law="transactions.prefix_validates",
        missed_by=(*_UNTOLD, "transactions.prefix_found"),
    ),
    _mutant(
        name="prefix_clears_what_it_has_ingested",
        edits=(("[at] = rows\n", "[at] = rows\n            rows.zero_()\n"),),
        report="A131",
        hides="Keys and values are not looked at again in most models.",
        law="transactions.prefix_memory",
    ),
    _mutant(
        name="prefix_single_entries_go_to_the_block_before",
        edits=(("at = self.slots(own)[L:]", "at = self.slots(own)[L:] if len(tokens) > 1 or L % "
                "size or not L else self.slots(own)[L - 1 : L]"),),
        report="A107",
        hides="Right for prompts, and for all tokens of a block but the first.",
        law="transactions.prefix_one_by_one",
    ),
)  # fmt: skip

TREES = (
    _tree(
        name="prefix_tree_takes_a_hash_in_silence",
        edits=(("if spec.hash is not None:", "if spec.hash is not None and spec.blocks < 0:"),),
        report="A128",
        hides="It is right; whoever gave the hash believes that it is used.",
        law="transactions.prefix_declines",
    ),
    _tree(
        name="prefix_tree_evicts_inner_nodes",
        edits=(("if not n.below and not n.holders]", "if not n.holders]"),),
        report="S101",
        hides="Blocks behind an evicted one are lost; the pool shrinks.",
        law="transactions.prefix_eviction",
    ),
    _tree(
        name="prefix_tree_evicts_held_leaves",
        edits=(("if not n.below and not n.holders]", "if not n.below]"),),
        report="A119",
        hides="Right until the pool is full.",
        law="transactions.prefix_pinned",
    ),
    _tree(
        name="prefix_tree_of_all_scopes",
        edits=(("self.roots.setdefault(scope,", "self.roots.setdefault(Scope(),"),),
        report="A113",
        hides="Right for one tenant and one adapter.",
        law="transactions.prefix_scope",
    ),
    _tree(
        name="prefix_tree_frees_the_twin_in_use",
        edits=(("                self.free.append(block)\n            else:",
                "                self.free.append(above.below[part].block)\n            else:"),),
        report="A119",
        hides="Right where no two requests compute the same prompt side by side.",
        law="transactions.prefix_cold_run",
    ),
)  # fmt: skip

MUTANTS = (*NAMING, *COMMITTING, *HOLDING, *TREES)


def _forgetful(c: Capabilities) -> Capabilities:
    """Anything may be forgotten."""
    return replace(c, prefixing=Prefixed(hits="some"))


def _whole(c: Capabilities) -> Capabilities:
    """Prompts may be hit to their last token."""
    return replace(c, prefixing=Prefixed(last="hit"))


CONTROLS = (
    _mutant(
        name="prefix_never_hits",
        edits=((LIMIT, "limit = 0"),),
        report="S104",
        hides="Everything is computed; it says that anything may be forgotten.",
        capabilities=_forgetful,
    ),
    _mutant(
        name="prefix_hits_a_block_less",
        edits=((LIMIT, f"{LIMIT} - size"),),
        report="S104",
        hides="It computes more than it needs to, and says so.",
        capabilities=_forgetful,
    ),
    _mutant(
        name="prefix_evicts_at_random",
        edits=(
            ("import hashlib\n", "import hashlib\nimport random\n"),
            ("        self.references = [0] * blocks\n", "        self.references = [0] * blocks\n"
             "        self.chance = random.Random(7)\n"),
            ("block = self.idle.popitem(last=False)[0]",
             "block = self.chance.choice([*self.idle])\n        del self.idle[block]"),
        ),
        report="A116",
        hides="Blocks inside a prefix go before its end, which is then not reached.",
        capabilities=_forgetful,
    ),
    _mutant(
        name="prefix_evicts_beginnings_first",
        edits=((LET_GO, "for block in own.blocks:"),),
        report="A116",
        hides="Ends of prefixes outlive their beginnings, and are not reached.",
    ),
    _mutant(
        name="prefix_believes_its_own_hash",
        edits=(TRUSTS,),
        report="A115",
        hides="64 bits of a chain over all tokens and the scope; it takes no other hash.",
        capabilities=trusting,
    ),
    _mutant(
        name="prefix_hits_whole_prompts",
        edits=(),
        report="S95",
        hides="Whoever needs logits of the last token computes it again; it says that it hits it.",
        capabilities=_whole,
    ),
    _tree(
        name="prefix_tree_that_leaves_the_last_token",
        edits=(),
        report="S95",
        hides="Declared as computed.",
        capabilities=lambda c: replace(c, prefixing=Prefixed(last="computed")),
    ),
    _tree(
        name="prefix_tree_that_evicts_the_newest",
        edits=(("leaf = min(leaves", "leaf = max(leaves"),),
        report="A116",
        hides="Which leaf goes is nobody's business.",
    ),
)  # fmt: skip
