"""The laws. Importing this folder registers them, family by family, in this order."""

from kernelassay.properties.laws import (  # isort: skip
    values,
    independence,
    conduct,
    alignment,
)

__all__ = ["alignment", "conduct", "independence", "values"]
