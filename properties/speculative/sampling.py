"""Samples of what a verification emits: requests of one kind, drafts drawn from their laws.

All chance comes from a seed that the case, the law and the stage give: a failure replays, and each
stage of a test has samples of its own. A kernel with noise of its own gets seeds made likewise.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from kernelassay.oracle.speculative import Prefix, Round
from kernelassay.properties.case import literal
from kernelassay.properties.speculative.answers import Verified, laid_out, verify
from kernelassay.properties.speculative.batches import Batch, sampling_of
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.domain import CELLS
from kernelassay.properties.speculative.laws_of import law_of_row
from kernelassay.properties.speculative.requests import laws_table, limits
from kernelassay.properties.subject import Subject


@dataclass(frozen=True)
class Emitted:
    """What n requests emitted: tokens [n, K + 1] as columns, -1 past the lengths [n]; accepted
    [n] of them are drafts."""

    tokens: np.ndarray
    accepted: np.ndarray
    lengths: np.ndarray

    def counted(self) -> Counter[Round]:
        """How often each round was emitted."""
        rows = np.concatenate([self.accepted[:, None], self.tokens], 1)
        found, counts = np.unique(rows, axis=0, return_counts=True)
        return Counter(
            {
                Round(int(a), tuple(int(x) for x in run if x != -1)): int(n)
                for (a, *run), n in zip(found, counts, strict=True)
            }
        )


def generator(*words: object) -> np.random.Generator:
    """A generator that these words seed."""
    digest = hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))


@dataclass(eq=False)
class Sampler:
    """Emits rounds of the requests of a case, which are all of one kind."""

    subject: Subject
    case: VerifyCase
    purpose: str

    def rounds(self, stage: str, look: int, n: int) -> Emitted:
        """What n requests emit, in as many calls as the kernel needs."""
        chance = generator(self.purpose, literal(self.case), stage, look)
        with own_generator(self.subject, chance):
            parts = [self.call(chance, m) for m in self.sizes(n)]
        return Emitted(*(np.concatenate(x) for x in zip(*parts, strict=True)))

    def sizes(self, n: int) -> Iterator[int]:
        """Requests of each call."""
        c = self.subject.capabilities
        each = CELLS[self.subject.device] // (self.case.vocabulary * (self.case.counts[0] + 1))
        most = max(1, min(each, c.max_requests if "requests" in c.supports else 1))
        for start in range(0, n, most):
            yield min(most, n - start)

    def call(self, chance: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
        """tokens, accepted and lengths of one call."""
        batch = drawn_batch(self.subject, self.case, chance, n)
        answer = verify(self.subject, laid_out(self.subject, batch))
        return as_columns(self.case, answer)


@contextmanager
def own_generator(subject: Subject, chance: np.random.Generator) -> Iterator[None]:
    """torch's default generators seeded for a kernel that draws from them, and restored."""
    devices = [torch.cuda.current_device()] if subject.home == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(chance.integers(2**62)))
        yield


def drawn_batch(subject: Subject, case: VerifyCase, chance: np.random.Generator, n: int) -> Batch:
    """n requests like the case's first, with drafts from q, uniforms and seeds."""
    k, W = case.counts[0], case.width
    turns = range(W) if case.chained else range(1)
    p_table = laws_table(case, [law_of_row(row, t) for row in case.p[: k + 1] for t in turns])
    q_table = None
    if case.q is not None:
        q_table = laws_table(case, [law_of_row(row, t) for row in case.q[:k] for t in turns])
    drafts = np.zeros((n, k), dtype=np.int64)
    at = np.zeros((n, k + 1), dtype=np.int64)
    for i in range(k):
        if case.q is None:
            drafts[:, i] = chance.integers(W, size=n)
        else:
            table = np.array([[float(w) for w in law_of_row(case.q[i], t)] for t in turns])
            drafts[:, i] = inverse_cdf(table[at[:, i]], chance.random(n))
        at[:, i + 1] = drafts[:, i] if case.chained else 0
    rows = torch.as_tensor(at + np.arange(k + 1) * len(turns))
    columns = torch.tensor(case.columns)
    bonus = np.array([[float(w) for w in law_of_row(case.p[k], t)] for t in turns])
    uniforms = chance.random((2, n, k + 1))
    # The largest float32 below 1 is the end of [0, 1) for a kernel that takes float32.
    uniforms = np.minimum(uniforms, 1 - 2.0**-24)
    return Batch(
        counts=torch.full((n,), k),
        drafts=columns[torch.as_tensor(drafts)],
        p_table=p_table,
        p_rows=rows,
        q_table=q_table,
        q_rows=rows[:, :k],
        accept=torch.as_tensor(uniforms[0, :, :k]),
        draw=torch.as_tensor(uniforms[1]),
        race=torch.as_tensor(chance.standard_exponential((n, case.vocabulary)).clip(2.0**-40))
        if sampling_of(subject.capabilities).draw == "race"
        else None,
        bonus=columns[torch.as_tensor(inverse_cdf(bonus[at[:, k]], chance.random(n)))],
        # One after the other, as requests are mostly numbered: streams must not overlap.
        seeds=torch.as_tensor(chance.integers(2**62) + np.arange(n)),
        q_above=case.q_above,
        **limits(case, [0] * n),
    )


def inverse_cdf(laws: np.ndarray, u: np.ndarray) -> np.ndarray:
    """A token of each law [n, W], never one of probability 0."""
    sums = laws.cumsum(1)
    tokens = (sums <= u[:, None] * sums[:, -1:]).sum(1)
    last = laws.shape[1] - 1 - (laws[:, ::-1] > 0).argmax(1)
    return np.asarray(np.minimum(tokens, last))


def as_columns(case: VerifyCase, answer: Verified) -> tuple[np.ndarray, ...]:
    """tokens as columns, accepted, lengths; a token that is no column's is below -1."""
    tokens, lengths = answer.tokens.numpy(), answer.lengths.numpy()
    at = np.full(case.vocabulary, -2)
    at[case.tokens] = np.arange(case.width).repeat(case.spread)
    there = np.arange(tokens.shape[1])[None] < lengths[:, None]
    return np.where(there, at[np.where(there, tokens, 0)], -1), answer.accepted.numpy(), lengths


def completed(case: VerifyCase, emitted: Emitted, chance: np.random.Generator) -> Counter[Prefix]:
    """The rounds' tokens, and after them draws from the target up to k + 1 tokens or a stop."""
    k, n = case.counts[0], len(emitted.tokens)
    tokens, ended = emitted.tokens.copy(), np.zeros(n, dtype=bool)
    stop = [] if case.stop is None else [*case.stop[0]]
    for i in range(k + 1):
        turns = tokens[:, i - 1] if case.chained and i else np.zeros(n, dtype=np.int64)
        table = np.array([[float(w) for w in law_of_row(case.p[i], t)] for t in range(case.width)])
        drawn = inverse_cdf(table[np.maximum(turns, 0)], chance.random(n))
        missing = (tokens[:, i] == -1) & ~ended
        tokens[missing, i] = drawn[missing]
        ended |= np.isin(tokens[:, i], stop)
    found, counts = np.unique(tokens, axis=0, return_counts=True)
    return Counter(
        {
            tuple(int(x) for x in run if x != -1): int(c)
            for run, c in zip(found, counts, strict=True)
        }
    )
