"""Speculative verification: its cases, their batches, what is expected of them.

Importing it makes the engine know the class of cases, its domain and its labels.
"""

from kernelassay.properties.speculative import domain, labels

__all__ = ["domain", "labels"]
