"""The budget of laws: its ends are reached, fp32 keeps it, what is too coarse does not."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import permutations, product

import mpmath
import pytest
import torch
from torch import Tensor

from kernelassay.oracle.budget_law import LawUnits, boundary, law_budget, scaled_logits
from kernelassay.oracle.sampling_maps import (
    Ties,
    law_of,
    masked_logits,
    min_p_logits,
    tempered_logits,
    top_k_logits,
    top_p_logits,
)
from kernelassay.oracle.speculative import normalised

U = 2.0**-24
EXP = 2.0**-22
LOG2E = math.log2(math.e)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def everything(x: Tensor) -> Tensor:
    """No token removed, but those that are -inf."""
    return x > -math.inf


@pytest.mark.parametrize(
    "row", [[0.0, 0.0], [0.0, -1.0, -9.0], [5.0, 4.0, 4.0, -60.0], [1e4, 1e4]]
)
def test_the_ends_of_an_entry_are_reached(row: list[float]) -> None:
    """With all but exponentials exact, weights off by 1 / (1 - u_exp) and 1 - u_exp meet them."""
    off = 2.0**-6
    units = LawUnits(unit=2.0**-200, div_unit=2.0**-200, exp_unit=off)
    z = torch.tensor([row], dtype=torch.float64)
    (budget,) = law_budget(z, None, everything(z), units=units).tolist()
    with mpmath.workprec(200):
        w = [mpmath.exp(v - max(row)) for v in row]
        for i, allowed in enumerate(budget):
            true, up = w[i] / sum(w), 1 / (1 - mpmath.mpf(off))
            farthest = max(
                abs(w[i] * f / (w[i] * f + sum(v / f for j, v in enumerate(w) if j != i)) - true)
                for f in (up, 1 / up)
            )
            assert allowed == pytest.approx(float(farthest), rel=1e-9, abs=1e-36)


def test_an_alone_token_is_certain() -> None:
    """Its entry is off by the quotient's rounding at most; removed tokens are exactly 0."""
    z = torch.tensor([[3.0, -math.inf, 7.0]])
    kept = torch.tensor([[True, True, False]])
    budget = law_budget(z, torch.tensor([0.3]), kept)
    assert 0 < budget[0, 0] <= 1.001 * U
    assert budget[0, 1:].tolist() == [0, 0]
    with pytest.raises(ValueError, match="a row that keeps nothing"):
        law_budget(z, None, torch.zeros(1, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    "masses", [[1, 1], [1, 2, 3, 4, 5], [1, 10**6], [7] * 12, [1, 0, 10**9, 3]]
)
def test_adversaries_in_rational_arithmetic_stay_inside(masses: list[int]) -> None:
    """Every operation off by the largest relative error allowed, in every direction."""
    z = torch.tensor([[math.log(m) if m else -math.inf for m in masses]], dtype=torch.float64)
    (budget,) = law_budget(z, None, everything(z)).tolist()
    truth, u, e = normalised(masses), Fraction(U), Fraction(EXP)
    used = Fraction(0)
    for own, exp, add, div in product(range(len(masses)), *[(-1, 1)] * 3):
        signs = [exp if j == own else -exp for j in range(len(masses))]
        w = [m * (1 + s * e) for m, s in zip(masses, signs, strict=True)]
        total = Fraction(w[0])
        for v in w[1:]:
            total = (total + v) * (1 + add * u) if v else total
        for v, p, allowed in zip(w, truth, budget, strict=True):
            off = abs(v / total * (1 + div * u) - p)
            assert off <= allowed
            used = max(used, off / Fraction(allowed)) if allowed else used
    assert used > Fraction(1, 2)


def scaled_first(z: Tensor, t: Tensor) -> Tensor:
    """Quotient, difference, exponential, sum, quotient."""
    x = z / t[:, None]
    w = (x - x.amax(1, keepdim=True)).exp()
    return w / w.sum(1, keepdim=True)


def reciprocal_first(z: Tensor, t: Tensor) -> Tensor:
    """Products with 1 / T and log2 e before the difference."""
    x = z * (1 / t)[:, None] * torch.tensor(LOG2E)
    w = (x - x.amax(1, keepdim=True)).exp2()
    return w / w.sum(1, keepdim=True)


def difference_first(z: Tensor, t: Tensor) -> Tensor:
    """The difference before the quotient; terms are added one by one."""
    w = ((z - z.amax(1, keepdim=True)) / t[:, None]).exp()
    total = torch.zeros_like(w[:, 0])
    for v in w.unbind(1):
        total = total + v
    return w / total[:, None]


def normalised_again(z: Tensor, t: Tensor) -> Tensor:
    """A law made a law once more."""
    p = scaled_first(z, t)
    return p / p.sum(1, keepdim=True)


PIPELINES: dict[Callable[[Tensor, Tensor], Tensor], LawUnits] = {
    scaled_first: LawUnits(),
    # Two roundings before the difference, and the error of 1 / T is relative to it.
    reciprocal_first: LawUnits(prescaled=True, div_unit=2 * U),
    difference_first: LawUnits(),
    normalised_again: LawUnits(normalisations=2),
}


def hard_rows(V: int, seed: int) -> Tensor:
    """[1400, V] fp32 logits: near 0, tiny, huge, equal, nearly equal, falling, two far apart."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(7, 200, V, generator=g)
    x[1] *= 1e-3
    x[2] *= 1e4
    x[3] = x[3, :, :1]
    x[4] = 100 + 1e-5 * x[4]
    x[5] = -torch.arange(V) * x[5, :, :1].abs()
    x[6] = 30 * x[6].sign()
    return x.flatten(0, 1)


def temperatures(n: int, seed: int) -> Tensor:
    """[n] from 1e-3 to 100, some of them powers of two."""
    g = torch.Generator().manual_seed(seed)
    t = 10 ** (5 * torch.rand(n, generator=g) - 3)
    return torch.where(torch.arange(n) % 3 == 0, 2.0 ** t.log2().round(), t)


def used(z: Tensor, t: Tensor, p: Tensor, units: LawUnits) -> Tensor:
    """The largest share of its budget that an entry of each row uses."""
    budget = law_budget(z, t, everything(z), units=units)
    return ((p.double() - law_of(scaled_logits(z, t))).abs() / budget).amax(1)


@pytest.mark.parametrize("V", [1, 2, 9, 64, 300])
@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda f: f.__name__)
def test_fp32_stays_inside(pipeline: Callable[[Tensor, Tensor], Tensor], V: int) -> None:
    """1400 hard rows at temperatures of five decades."""
    z, t = hard_rows(V, V), temperatures(1400, V)
    assert float(used(z, t, pipeline(z, t), PIPELINES[pipeline]).max()) <= 1


def test_fp32_uses_a_good_part() -> None:
    """Of rows near 0, in any order of sums the median uses a fiftieth, of known depth a tenth."""
    z, t = hard_rows(64, 1)[:200], temperatures(200, 2).clamp(0.3, 3)
    p = scaled_first(z, t)
    assert 1 / 50 <= float(used(z, t, p, LawUnits()).median()) <= 1
    assert 1 / 10 <= float(used(z, t, p, LawUnits(adds=6)).median()) <= 1


@pytest.mark.parametrize(
    "fault",
    [
        lambda z, t: scaled_first(z, t.bfloat16().float()),
        lambda z, t: scaled_first(z.bfloat16().float(), t),
        lambda z, t: scaled_first(z, t) * (1 + 2.0**-17),
        lambda z, t: scaled_first(z, t).half().float(),
        lambda z, t: scaled_first(z, t * (1 + 2.0**-16)),
        lambda z, t: (lambda p: torch.where(p > 2.0**-20, p, 0.0))(scaled_first(z, t)),
    ],
)
def test_what_is_coarser_is_seen(fault: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Temperatures or logits in bf16, laws in fp16 or off by 2^-17, light tokens at 0."""
    z, t = 8 * hard_rows(64, 3)[:200], temperatures(200, 3).clamp(0.3, 3)
    assert float(used(z, t, fault(z, t), LawUnits()).max()) > 1


Params = dict[str, Tensor | None]


def twin(z: Tensor, maps: Params, order: tuple[str, ...], ties: tuple[Ties, Ties]) -> Tensor:
    """The tokens [R, V] that the float64 twin keeps of logits z [R, V]."""
    kept = []
    for r, row in enumerate(z):
        for name in order:
            value = maps[name]
            if value is None:
                continue
            if name == "mask":
                row = masked_logits(row, value[r])
            elif name == "temperature":
                row = tempered_logits(row, float(value[r]))
            elif name == "top_k":
                row = top_k_logits(row, int(value[r]), ties[0])
            elif name == "top_p":
                row = top_p_logits(row, float(value[r]), ties[1])
            else:
                row = min_p_logits(row, float(value[r]))
        kept.append(row > -math.inf)
    return torch.stack(kept)


def some_maps(R: int, V: int, g: torch.Generator) -> Params:
    """Parameters [R] of all maps; some are off."""
    return {
        "mask": (torch.rand(R, V, generator=g) < 0.8) | (torch.arange(V) == V // 2),
        "temperature": 0.3 + 2 * torch.rand(R, generator=g),
        "top_k": torch.randint(1, V + 1, (R,), generator=g, dtype=torch.int32),
        "top_p": 0.2 + 0.8 * torch.rand(R, generator=g),
        "min_p": 0.2 * torch.rand(R, generator=g) ** 2,
    }


@pytest.mark.parametrize("ties", [*product(("all", "index"), repeat=2)], ids=str)
def test_perturbed_twins_lie_between(ties: tuple[Ties, Ties]) -> None:
    """Logits off by as much as a coarse exponential: the float64 twin keeps what may be kept.

    Equal logits stay equal, as in a kernel. Maps come in any order of the last four.
    """
    units = LawUnits(exp_unit=2.0**-4)
    off = -math.log1p(-units.exp_unit)
    moved = unsure = 0
    for seed, rest in enumerate(permutations(("temperature", "top_k", "top_p", "min_p"))):
        g = torch.Generator().manual_seed(seed)
        order = ("mask", *rest)
        z = (2 * torch.randn(60, 12, generator=g)).mul(8).round() / 8
        maps = some_maps(60, 12, g)
        sure, gone = boundary(
            z, **maps, order=order, top_k_ties=ties[0], top_p_ties=ties[1], units=units
        )  # type: ignore[arg-type]
        assert not (sure & gone).any()
        straight = twin(z.double(), maps, order, ties)
        for _ in range(3):
            noise = off * (2 * torch.rand(400, generator=g, dtype=torch.float64) - 1)
            # Before the temperature a weight's error is that of z, after it that of z / T.
            scale = maps["temperature"].clamp_max(1)[:, None]  # type: ignore[union-attr]
            kept = twin(z + scale * noise[(8 * z).long() + 200], maps, order, ties)
            assert not (kept & gone).any(), order
            assert not (sure & ~kept).any(), order
            moved += int((kept != straight).sum())
        unsure += int((~sure & ~gone).sum())
    assert moved > 20
    assert unsure < 24 * 60 * 12 / 5


def test_few_tokens_are_unsure_in_fp32() -> None:
    """Of 300 rows of 64 tokens one in a thousand at most; the float64 twin is always between."""
    g = torch.Generator().manual_seed(5)
    z, maps = 3 * torch.randn(300, 64, generator=g), some_maps(300, 64, g)
    sure, gone = boundary(z, **maps)  # type: ignore[arg-type]
    kept = twin(
        z.double(), maps, ("mask", "temperature", "top_k", "top_p", "min_p"), ("all", "index")
    )
    assert not (kept & gone).any()
    assert not (sure & ~kept).any()
    assert int((~sure & ~gone).sum()) <= 300 * 64 / 1000


def states(sets: tuple[Tensor, Tensor]) -> list[str]:
    """'k' kept, '-' removed, '?' either, of one row."""
    sure, gone = (x[0].tolist() for x in sets)
    return ["k" if s else "-" if r else "?" for s, r in zip(sure, gone, strict=True)]


def test_boundaries_by_hand() -> None:
    """Four tokens of shares 1/2, 1/4, 1/8, 1/8: a share p at a sum leaves one token unsure."""
    z = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
    one = torch.ones(1)
    assert states(boundary(z, top_p=0.5 * one)) == ["k", "?", "-", "-"]
    assert states(boundary(z, top_p=0.5001 * one)) == ["k", "k", "-", "-"]
    assert states(boundary(z, top_p=0.875 * one)) == ["k", "k", "k", "?"]
    assert states(boundary(z, top_p=0.875 * one, top_p_ties="all")) == ["k", "k", "k", "k"]
    assert states(boundary(z, top_p=1e-30 * one)) == ["k", "-", "-", "-"]
    assert states(boundary(z, min_p=0.25 * one)) == ["k", "k", "?", "?"]
    assert states(boundary(z, min_p=0 * one)) == ["k"] * 4
    assert states(boundary(z[:, 2:], min_p=one)) == ["k", "k"]
    assert states(boundary(z, top_k=3 * one.int())) == ["k"] * 4
    assert states(boundary(z, top_k=3 * one.int(), top_k_ties="index")) == ["k", "k", "k", "-"]


def test_quotients_may_tie_where_logits_do_not() -> None:
    """2 - 2^-23 and 2 - 2^-22 over 1.9 are one fp32 number: top-k of quotients keeps either."""
    z = torch.tensor([[2 - 2.0**-22, 2 - 2.0**-23, 0.0]])
    t, k = torch.tensor([1.9]), torch.tensor([1], dtype=torch.int32)
    quotients = (z / t[:, None])[0]
    assert quotients[0] == quotients[1]
    assert states(boundary(z, t, top_k=k, top_k_ties="index")) == ["?", "?", "-"]
    assert states(boundary(z, t, top_k=k, top_k_ties="index", exact_top_k=True)) == ["-", "k", "-"]


def test_what_underflows_is_not_surely_positive() -> None:
    """A token of weight e^-100 is kept, but fp32 may flush it; -inf and masked NaN are gone."""
    z = torch.tensor([[0.0, -100.0, -math.inf, math.nan]])
    mask = torch.tensor([[True, True, True, False]])
    assert states(boundary(z, mask=mask)) == ["k", "?", "-", "-"]
