"""The suite as shipped.

pytest --pyargs kernelassay.conformance --assay-kernel module:attribute
"""

from typing import Any

from kernelassay import parametrize_with_properties


@parametrize_with_properties(None)
def test_conformance(kernel: Any, prop: Any) -> None:
    """Every law that applies holds on the kernels of --assay-kernel."""
    prop.check(kernel)
