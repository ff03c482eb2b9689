"""The bundled kernels keep every law: one item for each, or a status that says why not."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from kernelassay.impls import torch_reference, torch_sdpa
from kernelassay.plan import BUNDLED_EXPECTATIONS
from kernelassay.properties.engine import Options, check
from kernelassay.properties.expectations import Expectations
from kernelassay.properties.property import select
from kernelassay.properties.records import STATUSES
from kernelassay.properties.subject import Subject

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NAMES = sorted(p.name for p in select())
LAWS = {p.name: p for p in select()}
DTYPES = ("fp16", "bf16", "fp32")
KNOWN = Expectations.load(*sorted(BUNDLED_EXPECTATIONS.glob("*.toml")))
"""Faults that PyTorch is known to have; their witnesses must still fail."""
SKIPS = ("declined", "undeclared", "not_applicable")


def _items(kernel: Any) -> Iterator[Any]:
    """Every law with one dtype, another from law to law and from kernel to kernel."""
    for n, name in enumerate(NAMES):
        dtype = DTYPES[(n + len(kernel.name)) % 3]
        yield pytest.param(kernel, name, dtype, id=f"{kernel.name}-{name}-{dtype}")


def _holds(kernel: Any, name: str, dtype: str, device: str, level: str) -> None:
    options = Options(level=level, seed=0, expectations=KNOWN)
    record = check(LAWS[name], Subject(kernel, dtype, device), options).record
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
    [*_items(torch_reference.adapter), *_items(torch_sdpa.math), *_items(torch_sdpa.flash_cpu)],
)
def test_a_bundled_kernel_keeps_the_law(kernel: Any, name: str, dtype: str) -> None:
    """At the pr level every law holds, with errors below what the numerics allow."""
    _holds(kernel, name, dtype, "cpu", "pr")


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 before Triton's import")
@pytest.mark.parametrize("name", NAMES)
def test_the_triton_kernel_keeps_the_law_interpreted(name: str) -> None:
    """At the smoke level, in the interpreter, in a dtype that differs from law to law."""
    from kernelassay.impls import triton_attention

    dtype = DTYPES[NAMES.index(name) % 3]
    _holds(triton_attention.adapter, name, dtype, "interpreter", "smoke")


@pytest.mark.skipif(INTERPRETED, reason="takes the mode in which Triton compiles")
def test_the_triton_kernel_refuses_the_cpu_when_not_interpreted() -> None:
    """Without the interpreter a call on the CPU is refused with what to set."""
    from kernelassay.impls import triton_attention

    record = check(
        LAWS["attention.value"], Subject(triton_attention.adapter, "fp32", "cpu"), Options()
    ).record
    assert (record.status, record.kind) == ("failed", "Refused")
    assert "set TRITON_INTERPRET=1 before Triton is imported" in record.reason
