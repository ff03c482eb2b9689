"""Decode loops: their cases, calls, what is expected of them, and how a run is shown.

Importing it makes the engine know the class of cases, its domain and its labels.
"""

from kernelassay.properties.decoding import domain, labels

__all__ = ["domain", "labels"]
