"""`kernelassay list`: the laws by family, the kernels and what they declare."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kernelassay.cli import NOTHING_WRONG, Unusable
from kernelassay.loading import Loaded, LoadError, load_kernel, published
from kernelassay.messages import WIDTH, paragraph
from kernelassay.properties.property import select

if TYPE_CHECKING:
    from kernelassay.impls.contract import Maps, Sampling


def main(args: argparse.Namespace) -> int:
    """Print both lists."""
    if not args.kernels:
        print(laws())
        print(
            "\nKernels that installed packages publish (entry-point group kernelassay.kernels)\n"
        )
    broken, shown = [], []
    for spec in args.kernels or published():
        try:
            shown += [described(k) for k in load_kernel(spec)]
        except LoadError as error:
            broken.append(str(error))
    print("\n\n".join([*shown, *(paragraph(message) for message in broken)]))
    if args.kernels and not shown:
        raise Unusable(*broken)
    return NOTHING_WRONG


def laws() -> str:
    """Every law with its sentence, by family."""
    found = select()
    lines = [f"{len(found)} laws"]
    for family in dict.fromkeys(p.family for p in found):
        lines += ["", family]
        for p in (p for p in found if p.family == family):
            lines += _hanging(f"  {p.name}", p.sentence, 34)
    return "\n".join(lines)


def described(kernel: Loaded) -> str:
    """One kernel: devices, dtypes, and each feature as supported, declined or undeclared."""
    c = kernel.adapter.capabilities
    named = kernel.name if kernel.name == kernel.spec else f"{kernel.name}  ({kernel.spec})"
    lines = [named]
    for what, values in (
        ("devices", c.devices),
        ("dtypes", c.dtypes),
        ("head sizes", map(str, c.head_sizes)),
        ("sampling", _said(c.sampling)),
        ("maps", _said(c.maps)),
        ("supports", sorted(c.supports)),
        ("declines", sorted(c.declines)),
        ("UNDECLARED", sorted(c.undeclared)),
    ):
        lines += _listed(what, values)
    return "\n".join(lines)


def _said(declared: "Sampling | Maps | None") -> list[str]:
    """What is declared of draws or maps, field by field."""
    return [] if declared is None else [f"{n}={v}" for n, v in vars(declared).items()]


def _listed(what: str, values: Iterable[str]) -> list[str]:
    text = ", ".join(values)
    return _hanging(f"  {what}", text, 14) if text else []


def _hanging(head: str, text: str, indent: int) -> list[str]:
    """Text beside a heading, wrapped in its own column."""
    import textwrap

    lines = textwrap.wrap(text, WIDTH - indent, break_long_words=False, break_on_hyphens=False)
    first = f"{head.ljust(indent - 1)} {lines[0]}"
    return [first, *(" " * indent + line for line in lines[1:])]
