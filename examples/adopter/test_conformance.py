"""Every law on one kernel: `pytest examples/adopter -m "not gpu"`."""

from my_kernels import adapter

from kernelassay import parametrize_with_properties


@parametrize_with_properties([adapter])
def test_conformance(kernel, prop):
    """Each law holds on the kernel."""
    prop.check(kernel)
