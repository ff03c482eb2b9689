"""Uniforms and seeds of a case: a pure function of its seed, the request, the round, the place."""

from fractions import Fraction

import numpy as np
import torch

from kernelassay.impls.decoding import Uniforms
from kernelassay.oracle import decoding as oracle
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.speculative.sampling import generator

GRID = 2**24


def uniforms_of(case: DecodeCase, some: list[tuple[int, int]]) -> Uniforms:
    """The noise of these requests, each with the number of its run; T and K as the case's largest
    budget and schedule need."""
    T, K = max(case.budget), max(case.schedule)
    made = []
    for r, run in some:
        chance = generator("uniforms", case.noise, r, run)
        # One block of numbers for each round: a longer budget adds rounds, and changes none.
        made.append([chance.integers(GRID, size=3 * K + 1) for _ in range(T)])
    u = np.array(made, dtype=np.float64).reshape(len(some), T, 3 * K + 1) / GRID
    draft, accept, draw = map(torch.as_tensor, np.split(u, [K, 2 * K], axis=-1))
    return Uniforms(draft=draft, accept=accept, draw=draw)


def seed_of(case: DecodeCase, r: int, run: int) -> int:
    """The seed of request r in a run."""
    return int(generator("seed", case.noise, r, run).integers(2**62))


def exactly(noise: Uniforms, r: int, shared: bool) -> oracle.Uniforms:
    """Row r of the noise as Fractions; the first draw of a round for all places if *shared*."""

    def rows(x: torch.Tensor) -> list[list[Fraction]]:
        return [[Fraction(u) for u in row] for row in x[r].tolist()]

    draw = rows(noise.draw)
    if shared:
        draw = [[row[0]] * len(row) for row in draw]
    return oracle.Uniforms(rows(noise.draft), rows(noise.accept), draw)
