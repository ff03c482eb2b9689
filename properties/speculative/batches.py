"""Rounds of many requests as tensors, and their place in memory as a kernel wants it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls.contract import Capabilities, Sampling, VerifyCall
from kernelassay.oracle.formats import format_of
from kernelassay.properties.memory import Placed, placed_small, placed_view

INTEGERS = {"int32": torch.int32, "int64": torch.int64}


def sampling_of(c: Capabilities) -> Sampling:
    """How a verification draws; the contract says that it declares that."""
    assert c.sampling is not None
    return c.sampling


@dataclass(frozen=True, eq=False)
class Batch:
    """R requests, padded to K drafts; what lies past a request's drafts is not looked at.

    Laws are numbers of rows in a table, as many requests share them.
    """

    counts: Tensor  # [R], int64
    drafts: Tensor  # [R, K], int64
    p_table: Tensor  # [rows, V], float64
    p_rows: Tensor  # [R, K + 1], int64
    q_table: Tensor | None  # [rows, V], float64
    q_rows: Tensor  # [R, K], int64
    accept: Tensor  # [R, K], float64 in [0, 1)
    draw: Tensor  # [R, K + 1], likewise
    race: Tensor | None = None  # [R, V], float64 > 0
    bonus: Tensor | None = None  # [R], int64
    seeds: Tensor | None = None  # [R], int64
    greedy: Tensor | None = None  # [R], bool
    stop: Tensor | None = None  # [R, S], int64, padded with -1
    budget: Tensor | None = None  # [R], int64
    q_above: int = 0  # units in the last place by which q is given larger

    @property
    def requests(self) -> int:
        """R."""
        return self.counts.shape[0]

    @property
    def most(self) -> int:
        """K."""
        return self.drafts.shape[1]

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.p_table.shape[1]

    @property
    def real(self) -> Tensor:
        """Which of the padded drafts there are [R, K]."""
        return torch.arange(self.most)[None] < self.counts[:, None]

    def some(self, rows: Tensor | slice) -> "Batch":
        """These requests alone, padded no further than they need."""
        given: dict[str, Any] = {
            name: x[rows]
            for name, x in vars(self).items()
            if isinstance(x, Tensor) and not name.endswith("_table")
        }
        K = int(given["counts"].max())
        for name, width in (("drafts", K), ("q_rows", K), ("accept", K)):
            given[name] = given[name][:, :width]
        for name in ("p_rows", "draw"):
            given[name] = given[name][:, : K + 1]
        return replace(self, **given)


@dataclass(frozen=True, eq=False)
class Given:
    """A call, its inputs' place in memory, and the batch that it is made of."""

    call: VerifyCall
    batch: Batch
    placed: Mapping[str, Placed] = field(default_factory=dict)

    def mutated(self) -> list[str]:
        """The inputs that changed, guard zones included."""
        return [name for name, placed in self.placed.items() if not placed.intact()]


def lay_out(batch: Batch, capabilities: Capabilities, dtype: str, home: str) -> Given:
    """The call of *batch*, laws rounded to *dtype*, every input watched.

    In padded packing drafts past a request's own are some token of the vocabulary; laws and
    uniforms there are NaN, or for an odd number of requests such as might be used unnoticed, since
    comparisons with NaN hide a kernel that looks there.
    """
    sampling = sampling_of(capabilities)
    flat, given_bonus = capabilities.packing == "flat", sampling.bonus == "given"
    token, floats = INTEGERS[sampling.tokens], format_of(dtype).dtype
    real = batch.real
    rows = torch.cat([torch.ones(batch.requests, 1, dtype=torch.bool), real], 1)  # [R, K + 1]
    if given_bonus:
        rows = real
    placed: dict[str, Placed] = {}
    law, uniform = (1 / batch.vocabulary, 0.0) if batch.requests % 2 else (torch.nan, torch.nan)

    def put(name: str, x: Tensor | None, where: Tensor | None = None, fill: Any = None) -> Any:
        """*x*, of which *where* says what is used: the rest is left out, or filled."""
        if x is None:
            return None
        if where is not None and flat:
            x = x[where]
        elif where is not None:
            shaped = where.reshape(where.shape + (1,) * (x.ndim - where.ndim))
            x = torch.where(shaped, x, torch.as_tensor(fill, dtype=x.dtype))
        guarded = x.dtype.is_floating_point
        made = placed_view(name, x, home, [*range(x.ndim)]) if guarded else None
        placed[name] = made or placed_small(name, x, home)
        return placed[name].view

    def laws(table: Tensor, at: Tensor, where: Tensor, name: str) -> Any:
        held = table.to(floats)
        if flat:
            return put(name, held[at[where]])
        return put(name, held[at.clamp(min=0)], where, law)

    q_table = batch.q_table
    if q_table is not None:
        q_table = q_table * (1 + batch.q_above * torch.finfo(floats).eps)
    width = batch.most if given_bonus else batch.most + 1
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), batch.counts.cumsum(0)])
    noise: dict[str, Any] = {}
    if sampling.noise in ("injected", "captured"):
        noise["accept"] = put("accept", batch.accept.float(), real, uniform)
    if sampling.noise == "injected":
        if sampling.draw == "race":
            noise["race"] = put("race", None if batch.race is None else batch.race.float())
        elif sampling.shared_draw:
            noise["draw"] = put("draw", batch.draw[:, 0].float())
        else:
            noise["draw"] = put("draw", batch.draw[:, :width].float(), rows, uniform)
    if sampling.noise == "seeded":
        noise["seeds"] = put("seeds", batch.seeds)
    if sampling.noise == "generators" and batch.seeds is not None:
        seeds = (int(seed) for seed in batch.seeds)
        noise["generators"] = tuple(torch.Generator(home).manual_seed(seed) for seed in seeds)
    call = VerifyCall(
        drafts=put("drafts", batch.drafts.to(token), real, batch.vocabulary - 1),
        offsets=put("offsets", offsets.to(torch.int32)),
        p=laws(batch.p_table, batch.p_rows[:, :width], rows, "p"),
        q=None if q_table is None else laws(q_table, batch.q_rows, real, "q"),
        bonus=put("bonus", batch.bonus.to(token) if given_bonus else None),  # type: ignore[union-attr]
        greedy=put("greedy", batch.greedy),
        stop=put("stop", None if batch.stop is None else batch.stop.to(token)),
        budget=put("budget", None if batch.budget is None else batch.budget.to(torch.int32)),
        most=batch.most,
        **noise,
    )
    return Given(call, batch, placed)
