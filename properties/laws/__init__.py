"""The laws. Importing this folder registers them, family by family, in this order."""

from kernelassay.properties.laws import (  # isort: skip
    values,
    independence,
    conduct,
    extent,
    equivalents,
    relations,
    exactly,
    sequences,
    alignment,
    edges,
    merging,
    partials,
    paging,
    verifying,
    sampling,
)

__all__ = [
    "alignment",
    "conduct",
    "edges",
    "equivalents",
    "exactly",
    "extent",
    "independence",
    "merging",
    "paging",
    "partials",
    "relations",
    "sampling",
    "sequences",
    "values",
    "verifying",
]
