"""The bundled kernels keep every law: one item for each, or a status that says why not."""

import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from interpreted import lighter

from kernelassay.impls import (
    torch_merge,
    torch_paged,
    torch_reference,
    torch_sdpa,
    torch_sdpa_lse,
    torch_split,
    torch_verify,
)
from kernelassay.impls.contract import OPERATIONS
from kernelassay.loading import load_kernel
from kernelassay.plan import BUNDLED_EXPECTATIONS
from kernelassay.properties.engine import Options, check
from kernelassay.properties.expectations import Expectations
from kernelassay.properties.property import Property, select
from kernelassay.properties.records import STATUSES
from kernelassay.properties.subject import Subject

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NAMES = sorted(p.name for p in select())
LAWS = {p.name: p for p in select()}
KNOWN = Expectations.load(*sorted(BUNDLED_EXPECTATIONS.glob("*.toml")))
"""Faults that PyTorch is known to have; their witnesses must still fail."""
SKIPS = ("declined", "undeclared", "not_applicable")
ALIKE = (torch_reference.adapter, torch_sdpa.math, torch_sdpa.flash_cpu)
"""Kernels that meet the laws of attention side by side."""


def _items(kernel: Any) -> Iterator[Any]:
    """Every law of what it does with one dtype, another from law to law and kernel to kernel."""
    dtypes = kernel.capabilities.dtypes
    for n, name in enumerate(NAMES):
        if LAWS[name].operation not in kernel.capabilities.operations:
            continue
        dtype = dtypes[(n + len(kernel.name)) % len(dtypes)]
        yield pytest.param(kernel, name, dtype, id=f"{kernel.name}-{name}-{dtype}")


def _holds(kernel: Any, law: Property, dtype: str, device: str, level: str) -> None:
    options = Options(level=level, seed=0, expectations=KNOWN)
    record = check(law, Subject(kernel, dtype, device), options).record
    assert record.status in ("passed", "expected", *SKIPS), (
        f"{record.kind}: {record.reason} {record.case}"
    )
    if record.status in SKIPS:
        assert record.reason
        assert record.status in STATUSES
        pytest.skip(f"{record.status}: {record.reason}")
    assert record.cases > 0
    assert record.worst is not None
    assert record.worst < 1


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"),
    [
        *(item for kernel in ALIKE for item in _items(kernel)),
        *_items(torch_merge.adapter),
        *_items(torch_verify.adapter),
    ],
)
def test_a_bundled_kernel_keeps_the_law(kernel: Any, name: str, dtype: str) -> None:
    """Every law holds, with errors below what the numerics allow; at the pr level for one of them.

    Cases are drawn alike for all kernels that attend. So each law has its many cases on one of
    those here, another from law to law; and on what is the only one of its operation.
    """
    alike = ALIKE if kernel in ALIKE else (kernel,)
    many = NAMES.index(name) % len(alike) == alike.index(kernel)
    _holds(kernel, LAWS[name], dtype, "cpu", "pr" if many else "smoke")


@pytest.mark.parametrize(
    ("kernel", "name", "dtype"),
    [
        *_items(torch_split.adapter),
        *_items(torch_paged.adapter),
        *_items(torch_sdpa_lse.flash_cpu),
        *_items(torch_merge.states),
        *_items(torch_merge.pairs),
        *_items(torch_merge.base2),
    ],
)
def test_another_kernel_keeps_the_law(kernel: Any, name: str, dtype: str) -> None:
    """The same at the smoke level, of kernels that are like others."""
    _holds(kernel, LAWS[name], dtype, "cpu", "smoke")


SOME = (
    "merging", "paged", "attention.value", "attention.empty_rows", "speculative.rounds",
    "speculative.possible", "speculative.requests_apart",
)  # fmt: skip


def _interpreted() -> Iterator[Any]:
    """Laws of the Triton kernels: all of some, of others those that say something new of them."""
    whole = ("triton_attention", "triton_merge", "triton_verify")
    others = ("triton_merge:states", "triton_paged", "triton_split", "triton_partial")
    for spec in (*whole, *others, "triton_verify:seeded"):
        for name in NAMES:
            if spec in whole or name.startswith(SOME):
                yield pytest.param(spec, name, id=f"{spec}-{name}")


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 before Triton's import")
@pytest.mark.parametrize(("spec", "name"), [*_interpreted()])
def test_a_triton_kernel_keeps_the_law_interpreted(spec: str, name: str) -> None:
    """In the interpreter, with few cases, in a dtype that differs from law to law."""
    module, _, attribute = spec.partition(":")
    kernel = getattr(import_module(f"kernelassay.impls.{module}"), attribute or "adapter")
    if LAWS[name].operation not in kernel.capabilities.operations:
        pytest.skip(f"{spec} does not offer {LAWS[name].operation}")
    dtypes = kernel.capabilities.dtypes
    dtype = dtypes[NAMES.index(name) % len(dtypes)]
    _holds(kernel, lighter(LAWS[name]), dtype, "interpreter", "smoke")


def test_make_verify_judges_every_operation() -> None:
    """The command that README begins with has a kernel for each."""
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    names = re.findall(r"--kernel (\S+)", makefile)
    kernels = [loaded.adapter for name in names for loaded in load_kernel(name)]
    done = frozenset().union(*(kernel.capabilities.operations for kernel in kernels))
    assert done == {*OPERATIONS, "pages", "splits"}


@pytest.mark.skipif(INTERPRETED, reason="takes the mode in which Triton compiles")
def test_the_triton_kernel_refuses_the_cpu_when_not_interpreted() -> None:
    """Without the interpreter a call on the CPU is refused with what to set."""
    from kernelassay.impls import triton_attention

    record = check(
        LAWS["attention.value"], Subject(triton_attention.adapter, "fp32", "cpu"), Options()
    ).record
    assert (record.status, record.kind) == ("failed", "Refused")
    assert "set TRITON_INTERPRET=1 before Triton is imported" in record.reason
