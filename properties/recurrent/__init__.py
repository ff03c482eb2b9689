"""Recurrent states: programs of steps as cases, rows that show order and number, folds.

Importing it makes the engine know the class of cases, its domain and its labels.
"""

from kernelassay.properties.recurrent import domain, labels

__all__ = ["domain", "labels"]
