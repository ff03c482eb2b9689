"""Prefix caches: programs of steps as cases, entries that encode all tokens up to their own.

Importing it makes the engine know the class of cases, its domain and its labels.
"""

from kernelassay.properties.prefixes import domain, labels

__all__ = ["domain", "labels"]
