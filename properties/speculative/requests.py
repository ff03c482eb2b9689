"""Requests of a case, with their drafts and noise, as one batch of tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from kernelassay.oracle.speculative import Law, Prefix
from kernelassay.properties.speculative.batches import Batch
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.laws_of import draft_chain, target_chain


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of the case with its drafts, as columns, -1 for a skipped one, and its noise."""

    request: int
    drafts: Prefix
    accept: tuple[Fraction, ...]
    draw: tuple[Fraction, ...]
    race: tuple[Fraction, ...] | None = None
    bonus: int | None = None
    seed: int = 0


class Table:
    """Laws as rows of a table, each once."""

    def __init__(self, case: VerifyCase) -> None:
        self.case = case
        self.rows: dict[Law, int] = {}

    def at(self, law: Law) -> int:
        """The number of a law's row."""
        return self.rows.setdefault(law, len(self.rows))

    def tensor(self) -> Tensor:
        """[rows, V], float64."""
        return laws_table(self.case, list(self.rows))


def laws_table(case: VerifyCase, laws: Sequence[Law]) -> Tensor:
    """Laws of columns as rows over the vocabulary [., V], float64; one row at least."""
    made = torch.zeros(max(1, len(laws)), case.vocabulary, dtype=torch.float64)
    if laws:
        held = [[float(w) for w in law] for law in laws]
        made[:, case.tokens] = spread_out(case, held)
    return made


def spread_out(case: VerifyCase, held: Sequence[Sequence[float]]) -> Tensor:
    """Numbers of columns [., W] as those of their tokens [., W spread], each in its share."""
    each = torch.tensor(held, dtype=torch.float64).repeat_interleave(case.spread, 1)
    if case.spread == 1:
        return each
    chance = np.random.default_rng(case.seed)
    shares = torch.tensor(chance.integers(1, 17, (case.width, case.spread)), dtype=torch.float64)
    return each * (shares / shares.sum(1, keepdim=True)).flatten()


def batch_of(case: VerifyCase, some: Sequence[Request]) -> Batch:
    """The requests of these requests as one batch."""
    K = max(case.counts[one.request] for one in some)
    tokens = [*case.columns, -1]  # a column's token; -1 stays
    p_table, q_table = Table(case), Table(case)
    p_rows, q_rows, drafts, accept, draw = [], [], [], [], []
    for one in some:
        k, made = case.counts[one.request], tuple(max(x, 0) for x in one.drafts)
        target = target_chain(case, one.request)
        rows = [p_table.at(target(made[:i])) for i in range(k + 1)]
        p_rows.append(_padded(rows, K + 1))
        if case.q is not None:
            chain = draft_chain(case, one.request)
            q_rows.append(_padded([q_table.at(chain(made[:i])) for i in range(k)], K))
        drafts.append(_padded([tokens[x] for x in one.drafts], K))
        accept.append(_padded([float(u) for u in one.accept], K))
        draw.append(_padded([float(u) for u in one.draw], K + 1))
    requests = [one.request for one in some]
    n = len(some)
    return Batch(
        counts=torch.tensor([case.counts[r] for r in requests]),
        drafts=torch.tensor(drafts, dtype=torch.int64).reshape(n, K),
        p_table=p_table.tensor(),
        p_rows=torch.tensor(p_rows).reshape(n, K + 1),
        q_table=None if case.q is None else q_table.tensor(),
        q_above=case.q_above,
        q_rows=torch.tensor(q_rows, dtype=torch.int64).reshape(n if q_rows else 0, K),
        accept=torch.tensor(accept, dtype=torch.float64).reshape(n, K),
        draw=torch.tensor(draw, dtype=torch.float64).reshape(n, K + 1),
        race=_races(case, some),
        bonus=torch.tensor([tokens[0 if one.bonus is None else one.bonus] for one in some]),
        seeds=torch.tensor([one.seed for one in some]),
        **limits(case, requests),
    )


def limits(case: VerifyCase, requests: Sequence[int]) -> dict[str, Tensor | None]:
    """Which of these requests are greedy, their stop tokens and budgets."""
    greedy = [r in case.greedy for r in requests]
    stop = budget = None
    if case.stop is not None:
        S = max(1, *(len(s) for s in case.stop))
        named = [[case.columns[x] for x in case.stop[r]] for r in requests]
        stop = torch.tensor([_padded(s, S, -1) for s in named], dtype=torch.int64)
    if case.budget is not None:
        budget = torch.tensor([case.budget[r] for r in requests])
    return {
        "greedy": torch.tensor(greedy) if case.greedy else None,
        "stop": stop,
        "budget": budget,
    }


def _races(case: VerifyCase, some: Sequence[Request]) -> Tensor | None:
    if some[0].race is None:
        return None
    made = torch.full((len(some), case.vocabulary), 2.0**-40, dtype=torch.float64)
    held = [[float(x) for x in one.race or ()] for one in some]
    made[:, case.tokens] = spread_out(case, held)
    return made


def _padded(values: Sequence[float], width: int, fill: float = 0) -> list[float]:
    return [*values, *[fill] * (width - len(values))]
