"""Logits made laws: cases, their rows as tensors, which tokens must stay and how far p may be off.

Importing it makes the engine know the class of cases, its domain and its labels.
"""

from kernelassay.properties.logits import domain, labels

__all__ = ["domain", "labels"]
