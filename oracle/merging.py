"""States of the online softmax and how they are merged (Milakov and Gimelshein 2018).

The state of a row after some keys with scores z_j and values v_j is

    m = max z_j      l = sum exp(z_j - m)      u = sum exp(z_j - m) v_j

and after no keys the empty state m = -inf, l = 0, u = 0. States of disjoint sets of keys merge to
the state of the union, whatever the order:

    m = max(m_a, m_b)    l = e^(m_a - m) l_a + e^(m_b - m) l_b    u likewise

with the empty state as the neutral element. The finished row is out = u / l, lse = m + log l; from
(out, lse) the state is recovered up to a common factor as m = lse, l = 1, u = out.

Two twins: tensors in float64, and Fractions, where e^m is rational (scores are logs of rationals).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import torch
from torch import Tensor

from kernelassay.oracle.exact import log_fraction

T = TypeVar("T")
Tree = int | tuple["Tree", ...]
"""A number of a state, or the merge of some trees."""


@dataclass(frozen=True, eq=False)
class State:
    """m, l [...] and u [..., Dv], float64. Where l is 0 the row has seen no key."""

    m: Tensor
    l: Tensor  # noqa: E741 - the literature's name for the denominator
    u: Tensor


def state_of(out: Tensor, lse: Tensor) -> State:
    """The state with this output and log-sum-exp, any float dtype; lse -inf is the empty one.

    The output of an empty part counts for nothing, NaN included.
    """
    lse = lse.double()
    some = lse > -math.inf
    return State(lse, some.double(), torch.where(some[..., None], out.double(), 0.0))


def merge(*states: State) -> State:
    """The state of the union; rows and parts may be empty. At least one state."""
    m = torch.stack([s.m for s in states]).amax(0)
    safe = torch.where(m > -math.inf, m, 0.0)
    factors = [torch.exp(s.m - safe) for s in states]
    total = sum((f * s.l for f, s in zip(factors, states, strict=True)), torch.zeros_like(m))
    u = torch.zeros_like(states[0].u)
    for f, s in zip(factors, states, strict=True):
        u = u + torch.where(s.l[..., None] > 0, f[..., None] * s.u, 0.0)
    return State(m, total, u)


def finish(state: State) -> tuple[Tensor, Tensor]:
    """out [..., Dv] and lse [...]: zeros and -inf where no key was seen."""
    some = state.l > 0
    total = torch.where(some, state.l, 1.0)
    lse = torch.where(some, state.m + total.log(), -math.inf)
    return torch.where(some[..., None], state.u / total[..., None], 0.0), lse


@dataclass(frozen=True)
class ExactState:
    """top = e^m, l and u as Fractions; top 0 is the empty state."""

    top: Fraction
    l: Fraction  # noqa: E741
    u: tuple[Fraction, ...]

    @property
    def mass(self) -> Fraction:
        """e^lse: the sum of e^z over the keys."""
        return self.top * self.l

    @property
    def out(self) -> tuple[Fraction, ...] | None:
        """The finished output, None for the empty state."""
        return None if self.l == 0 else tuple(x / self.l for x in self.u)

    @property
    def lse(self) -> float:
        """log of the mass, -inf for the empty state."""
        return log_fraction(self.mass)


def exact_state(
    masses: Sequence[Fraction | int], values: Sequence[Sequence[Fraction | int]], width: int
) -> ExactState:
    """The state of keys with e^z = masses[j] > 0 and values[j] of *width* columns."""
    top = Fraction(max(masses, default=0))
    weights = [Fraction(w) / top for w in masses]
    columns = [[Fraction(row[c]) for row in values] for c in range(width)]
    u = (sum((w * x for w, x in zip(weights, xs, strict=True)), Fraction(0)) for xs in columns)
    return ExactState(top, sum(weights, Fraction(0)), tuple(u))


def exact_merge(*states: ExactState) -> ExactState:
    """The state of the union. At least one state."""
    top = max(s.top for s in states)
    if top == 0:
        return states[0]
    total = sum((s.top / top * s.l for s in states), Fraction(0))
    columns = zip(*([s.top / top * x for x in s.u] for s in states), strict=True)
    return ExactState(top, total, tuple(sum(xs, Fraction(0)) for xs in columns))


def fold(tree: Tree, states: Sequence[T], how: Callable[..., T]) -> T:
    """The states merged along *tree* by *how*."""
    if isinstance(tree, int):
        return states[tree]
    return how(*(fold(part, states, how) for part in tree))


def depth(tree: Tree) -> int:
    """The most merges that one state goes through."""
    return 0 if isinstance(tree, int) else 1 + max(depth(part) for part in tree)


def binary_trees(leaves: Sequence[int]) -> Iterator[Tree]:
    """Every way to merge these states in this order, two at a time (Catalan's number of them)."""
    if len(leaves) == 1:
        yield leaves[0]
    for cut in range(1, len(leaves)):
        for left in binary_trees(leaves[:cut]):
            for right in binary_trees(leaves[cut:]):
                yield (left, right)
