"""KV caches: programs of steps as cases, entries that encode what they are, what attention reads.

Importing it makes the engine know the class of cases, its domain and its labels.
"""

from kernelassay.properties.caching import domain, labels

__all__ = ["domain", "labels"]
