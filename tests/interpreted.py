"""What laws a kernel in Triton's interpreter can afford."""

from dataclasses import replace

from kernelassay.properties.property import Property


def lighter(law: Property) -> Property:
    """*law* with half of its cases, though at least one of each stratum.

    An interpreted launch takes about a tenth of a second, all of it Python. Half of the cases
    still show that the kernel's text computes what the law says on every kind of case; their
    number is for the compiled kernel, which meets all of them.
    """
    return replace(law, weight=law.weight / 2)
