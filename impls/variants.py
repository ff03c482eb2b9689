"""A kernel with a few lines of its text changed: how faults are planted, without fault switches.

A variant is (base module, edits). Each edit is an old text that occurs exactly once in the base
and a new text for it. The changed source is compiled as a module of its own, so a Triton kernel in
it runs interpreted and compiled like any other, and the base stays as it is.
"""

import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelassay.impls.contract import Capabilities, Numerics

__all__ = ["Variant", "build", "build_module", "changed_source"]

_PACKAGE = "kernelassay.impls.variants"


@dataclass(frozen=True, kw_only=True, eq=False)
class Variant:
    """A named change of a kernel: a mutant if a law must fail, a control if none may."""

    name: str
    """of the adapter, the module and the report; an identifier."""
    base: str
    """module of the kernel, such as "kernelassay.impls.triton_attention"; it has an `adapter`."""
    edits: tuple[tuple[str, str], ...]
    """(old, new) in order; old occurs exactly once in the text that the edits before it left. A
    control may have none: a kernel that looks wrong as it is."""
    report: str = ""
    """the public report that the fault imitates, or the script in docs/findings that shows it."""
    hides: str = ""
    """why customary tests do not see it."""
    law: str = ""
    """the law that must kill it; empty for a control."""
    missed_by: tuple[str, ...] = ()
    """laws that do not see it at the smoke level: what shows that *law* is needed beside them."""
    dtype: str = ""
    """the dtype that shows it; by default the first that the kernel declares."""
    level: str = "smoke"
    """the level whose number of cases shows it."""
    capabilities: Callable[[Capabilities], Capabilities] | None = None
    """what to declare in place of the base's capabilities."""
    numerics: Numerics | Mapping[str, Numerics] | None = None
    """what to declare in place of the base's numerics."""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"Variant.name: got {self.name!r}, expected an identifier")
        if not self.edits and self.law:
            raise ValueError(f"variant {self.name}: got no edits, expected at least one")


def build(variant: Variant) -> Any:
    """The adapter of *variant*: the base's, in a module of its own, under the variant's name."""
    adapter = build_module(variant).adapter
    adapter.name = variant.name
    if variant.capabilities is not None:
        adapter.capabilities = variant.capabilities(adapter.capabilities)
    if variant.numerics is not None:
        adapter.numerics = variant.numerics
    return adapter


@cache
def build_module(variant: Variant) -> ModuleType:
    """The module of *variant*, in `sys.modules`; its source is where `inspect` looks for it."""
    source = changed_source(variant)
    filename = f"<variant {variant.name} of {variant.base}>"
    code = compile(source, filename, "exec", dont_inherit=True)
    # Triton reads a kernel's text through inspect; an entry without a time is never dropped.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = ModuleType(f"{_PACKAGE}.{variant.name}", f"{variant.name}: see {variant.base}")
    module.__file__ = filename
    sys.modules[module.__name__] = module
    try:
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def changed_source(variant: Variant) -> str:
    """The base's source with the edits made; a `ValueError` unless each matches exactly once."""
    spec = find_spec(variant.base)
    if spec is None or spec.origin is None:
        raise ValueError(f"variant {variant.name}: base {variant.base} has no source")
    source = Path(spec.origin).read_text(encoding="utf-8")
    for old, new in variant.edits:
        if (count := source.count(old)) != 1:
            raise ValueError(
                f"variant {variant.name}: {old!r} occurs {count} times in {variant.base}, "
                f"expected once"
            )
        if old == new:
            raise ValueError(f"variant {variant.name}: the edit of {old!r} changes nothing")
        source = source.replace(old, new)
    return source
