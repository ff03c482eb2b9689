"""KV caches that look wrong and are right: other orders of pages, copies at once, spare room."""

from dataclasses import replace
from functools import partial

from kernelassay.impls.contract import Caching, Capabilities
from kernelassay.impls.mutants import caching, caching_rings
from kernelassay.impls.variants import Variant

_control = partial(Variant, base=caching.BASE)


def _in_reserve(c: Capabilities) -> Capabilities:
    """Requests may hold more pages than they need."""
    return replace(c, caching=Caching(pages="reserve"))


CONTROLS = (
    _control(
        name="cache_takes_the_last_pages_first",
        edits=(("list(range(pages))[::-1]", "list(range(pages))"),),
        report="S103",
        hides="Where a page lies is nobody's business.",
    ),
    _control(
        name="cache_takes_the_page_that_was_freed_first",
        edits=(("page = self.free.pop()", "page = self.free.pop(0)"),),
        report="A125",
        hides="Which free page comes next is nobody's business.",
    ),
    _control(
        name="cache_runs_out_of_memory",
        edits=(('raise ValueError(f"pool:', 'raise MemoryError(f"pool:'),),
        report="ovg-project/kvcached#364",
        hides="What is raised for want of pages is the cache's own affair.",
    ),
    _control(
        name="cache_copies_a_fork_at_once",
        edits=(
            (
                "        self.pages_of.fork(parent, child, length)\n",
                "        self.pages_of.fork(parent, child, length)\n"
                "        own = self.pages_of.written(child, 0, length)\n"
                "        self.device.copy(self.pool, own)\n",
            ),
        ),
        report="A119",
        hides="No page is ever shared; it says that it may hold more than it needs.",
        capabilities=_in_reserve,
    ),
    _control(
        name="cache_takes_a_page_ahead",
        edits=(("-(-high // self.size))", "-(-high // self.size) + 1)"),),
        report="S101",
        hides="A page without entries is held; it says that it may hold more than it needs.",
        capabilities=_in_reserve,
    ),
    _control(
        name="cache_moves_one_entry_after_the_other",
        edits=(
            (
                caching.MOVED,
                "for a, b in zip(sources, targets, strict=True):\n            flat[b] = flat[a]",
            ),
        ),
        report="S116",
        hides="In place, but in order: entries only move down.",
    ),
    _control(
        name="cache_leaves_rejected_entries_where_they_are",
        edits=(),
        report="S91",
        hides="Slots past a length still hold drafts; attention does not read them.",
    ),
    Variant(
        name="ring_of_one_slot_more",
        base=caching_rings.BASE,
        edits=(("spec.window + spec.spare", "spec.window + spec.spare + 1"),),
        report="S107",
        hides="More is kept than anybody asks for.",
    ),
)
