"""Rows of logits are what their cases say, verdicts agree with exact fractions, and right kernels
of any declared order pass the laws of logits that become laws.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from interpreted import lighter
from torch import Tensor

from kernelassay.impls import torch_law
from kernelassay.impls.contract import LOGITS, Capabilities, Conventions, LawCall, Maps, Numerics
from kernelassay.impls.interpreter import interpreting
from kernelassay.impls.logits import MAPS
from kernelassay.oracle import sampling_maps as twin
from kernelassay.properties.case import CaseError, case_from, case_id, parse_case, to_json
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.engine import Options, check
from kernelassay.properties.failures import (
    NonFinite,
    Refused,
    WrongDistribution,
    WrongDtype,
    WrongShape,
    WrongValue,
)
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.laws.logits import malformed_calls
from kernelassay.properties.logits.answers import laws_of
from kernelassay.properties.logits.batches import LARGE, batch_of, lay_out
from kernelassay.properties.logits.case import LawCase
from kernelassay.properties.logits.judge import bounds, exact_shares, judge, units_of
from kernelassay.properties.logits.orders import PAIRS, TEMPERATURES, differ, kept, telling
from kernelassay.properties.logits.strata_wide import (
    never_rows,
    never_top_k,
    never_top_p,
    nevers,
    spread_rows,
    spread_top_k,
    spread_top_p,
)
from kernelassay.properties.property import select
from kernelassay.properties.subject import Subject

LAWS = select("logits")
TRITON = pytest.mark.skipif(
    not interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported"
)
ORDERS = (
    MAPS,
    ("temperature", "top_k", "top_p", "min_p", "mask"),
    ("mask", "min_p", "top_p", "top_k", "temperature"),
    ("top_p", "temperature", "mask", "top_k", "min_p"),
)
DEFAULT, PLAIN = Maps(), Conventions()
EXACT = Numerics(out="fp32", exp_u=2.0**-22, div_u=2.0**-24)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(eq=False)
class Twin:
    """The float64 twins of the maps as a kernel, in the order that it declares."""

    capabilities: Capabilities
    name: str = "twin"
    numerics: Any = EXACT

    def law(self, call: LawCall) -> Tensor:
        """p [R, V], fp32."""
        maps = self.capabilities.maps or Maps()
        return torch.stack([self.row(call, maps, r) for r in range(len(call.logits))]).float()

    def row(self, call: LawCall, maps: Maps, r: int) -> Tensor:
        """The law of row r."""
        z = call.logits[r].double()
        for name in maps.order:
            if (values := getattr(call, name)) is None:
                continue
            if name == "mask":
                drops = self.capabilities.conventions.mask_polarity == "drop"
                z = twin.masked_logits(z, values[r] ^ drops)
            elif name == "temperature":
                z = twin.tempered_logits(z, values[r].item())
            elif name == "top_k":
                z = twin.top_k_logits(z, values[r].item(), maps.top_k_ties)
            elif name == "top_p":
                z = twin.top_p_logits(z, values[r].item(), maps.top_p_ties)
            else:
                z = twin.min_p_logits(z, values[r].item())
        return twin.law_of(z)


def twin_of(
    *features: str, maps: Maps = DEFAULT, conventions: Conventions = PLAIN, **sizes: Any
) -> Twin:
    """A twin with these maps, by default all."""
    supports = {"law", *(features or LOGITS)}
    return Twin(
        Capabilities(
            devices=("cpu",), dtypes=("fp32", "bf16"), supports=frozenset(supports), maps=maps,
            conventions=conventions, **sizes,
        )
    )  # fmt: skip


def subject_of(kernel: Any = torch_law.adapter, dtype: str = "fp32") -> Subject:
    """The kernel on the CPU."""
    return Subject(kernel, dtype, "cpu")


CASES = (
    LawCase(rows=((2, 1, 0),), top_p=(0.9,)),
    LawCase(rows=((3, 0), (1, 1)), masses=True, temperature=(0.5, 2.0), min_p=(0.0, 1.0)),
    LawCase(rows=((1, 2),), V=9, ids=(3, 8), fill=-1, top_k=(9,), mask=((0,),), hidden="nan"),
    LawCase(rows=((1, 2, 3),), absent=((0, 2),), step=0.25, shift=7, copies=9, at=4),
    LawCase(rows=((-(10**9), 2),), V=300, ids=(3, 299), fill=0, spread=24, top_p=(0.9,)),
)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_case_is_its_text(case: LawCase) -> None:
    """Python, JSON and the id agree; the fields fit together."""
    case.checked()
    assert parse_case(repr(case)) == case == case_from(to_json(case))
    assert case_id("logits.value", parse_case(repr(case))) == case_id("logits.value", case)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ("rows=()", "rows"),
        ("rows=((1, 2), (1,))", "rows"),
        ("rows=((1, -2),), masses=True", "rows"),
        ("rows=((0, 0),), masses=True", "rows"),
        ("rows=((1, 2),), mask=((0,),), absent=((1,),)", "rows"),
        ("step=0.0", "step"),
        ("V=1", "V"),
        ("V=4, ids=(3, 1)", "ids"),
        ("masses=True, V=4, ids=(1, 3), fill=-1", "fill"),
        ("V=4, ids=(1, 3), fill=0, spread=-1", "spread"),
        ("V=4, ids=(1, 3), spread=2", "spread"),
        ("masses=True, V=4, ids=(1, 3), fill=1, spread=2", "spread"),
        ("mask=((2,),)", "mask"),
        ("absent=((), ())", "absent"),
        ("temperature=(0.0,)", "temperature"),
        ("top_k=(0,)", "top_k"),
        ("top_k=(3,)", "top_k"),
        ("top_p=(1.5,)", "top_p"),
        ("top_p=(0.0,)", "top_p"),
        ("min_p=(0.1, 0.2)", "min_p"),
        ("hidden='zero'", "hidden"),
        ("copies=0", "copies"),
    ],
)
def test_a_wrong_case_is_refused_by_name(fields: str, named: str) -> None:
    """A message names the field that does not fit."""
    with pytest.raises(CaseError, match=f"field {named}: "):
        parse_case(f"LawCase({fields})")


def test_rows_are_laid_out() -> None:
    """Columns are where ids say; others hold the fill; masked and absent ones what is said."""
    case = LawCase(
        rows=((1, 2, 3, -4),), step=0.5, V=6, ids=(0, 2, 3, 5), fill=-2, absent=((1,),),
        mask=((2, 3),), hidden="large", top_k=(2,),
    )  # fmt: skip
    batch = batch_of(case, "fp16")
    assert batch.logits.dtype == torch.float16
    assert batch.logits.tolist() == [[0.5, -1.0, -math.inf, LARGE, -1.0, -LARGE]]
    assert batch.mask is not None
    assert batch.mask.tolist() == [[True, True, True, False, True, False]]
    assert batch_of(replace(case, hidden="nan"), "fp32").logits[0, 3].isnan()
    masses = batch_of(LawCase(rows=((8, 0, 1),), masses=True), "fp32").logits
    assert masses.exp()[0].tolist() == pytest.approx([8, 0, 1])
    given = lay_out(subject_of(), batch)
    given.call.logits[0, 0] = 7
    assert given.mutated() == ["logits"]


def test_other_tokens_are_spread() -> None:
    """From the fill down, by levels of the step; columns are where ids say."""
    case = LawCase(rows=((5, 9),), step=2.0, V=7, ids=(2, 6), fill=1, spread=3)
    assert batch_of(case, "fp32").logits.tolist() == [[2.0, -4.0, 10.0, 0.0, 2.0, -4.0, 18.0]]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_logit_that_stands_for_never_is_finite(dtype: str) -> None:
    """It is held as it is meant, the least number of the dtype among them."""
    cases = [LawCase(rows=((1, x),)) for x in nevers(dtype)]
    held = [float(batch_of(case, dtype).logits[0, 1]) for case in cases]
    assert torch.finfo(batch_of(cases[0], dtype).logits.dtype).min in held
    assert max(held) < -9900


@pytest.mark.parametrize("stratum", [spread_rows, spread_top_k, spread_top_p])
def test_spread_rows_end_far_below_ten_deviations(stratum: Any) -> None:
    """Next to exp(x - mean - 10 deviations) of the first thousand tokens nothing is left."""
    cases = drawn(stratum(domain_of(subject_of(), "smoke")), 20)
    far = 0
    for case in cases:
        x = batch_of(case, "fp32").logits[:, :1000].double()
        far += bool((x.mean(-1) + 10 * x.std(-1) - x.amax(-1) > 104).all())
    assert 2 * far > len(cases)


@pytest.mark.parametrize("stratum", [never_rows, never_top_k, never_top_p])
def test_never_rows_have_ends_that_no_few_steps_close(stratum: Any) -> None:
    """Eighteen halvings of the range leave more than the whole range of the other logits."""
    cases = drawn(stratum(domain_of(subject_of(), "smoke")), 20)
    wide = 0
    for case in cases:
        x = batch_of(case, "fp32").logits.double()
        wide += bool(((x.amax(-1) - x.amin(-1)) / 2**18 > 100).any())
    assert 3 * wide > len(cases)


def test_a_mask_may_say_what_to_drop() -> None:
    """A kernel that declares so gets the opposite mask, and the same verdict."""
    kernel = twin_of(conventions=Conventions(mask_polarity="drop"))
    batch = batch_of(LawCase(rows=((3, 2, 1),), mask=((0,),)), "fp32")
    given = lay_out(subject_of(kernel), batch)
    assert given.call.mask is not None
    assert given.call.mask.tolist() == [[True, False, False]]
    judge(subject_of(kernel), batch, laws_of(subject_of(kernel), batch).p)


def test_units_are_those_declared() -> None:
    """Each declared error reaches the budget; each map may divide once more."""
    batch = batch_of(LawCase(top_k=(1,), min_p=(0.5,)), "fp32")
    plain = units_of(EXACT, batch)
    assert (plain.exp_unit, plain.div_unit, plain.normalisations) == (2.0**-22, 2.0**-24, 3)
    assert units_of(replace(EXACT, acc_u=2.0**-11), batch).unit == 2.0**-11
    assert units_of(replace(EXACT, score="bf16"), batch).unit == 2.0**-8
    assert units_of(replace(EXACT, score="bf16"), batch).div_unit == 2.0**-8
    assert plain.prescaled
    assert not units_of(replace(EXACT, fma=True), batch).prescaled


@pytest.mark.parametrize("ties", ["index", "all"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8])
def test_exact_shares_are_those_of_fractions(n: int, ties: Any) -> None:
    """Equal tokens, 2^m of them, are cut as fractions say; other rows are left to the bounds."""
    maps, z = Maps(top_p_ties=ties), torch.full((1, n + 2), -math.inf, dtype=torch.float64)
    z[0, 1 : n + 1] = 2.5
    for eighths in range(1, 9):
        p = torch.tensor([eighths / 8])
        some, stays = exact_shares(z, p, maps)
        whole = (eighths * n) % 8 == 0
        assert bool(some[0, 0]) == (n in (1, 2, 4, 8) and whole)
        if some[0, 0]:
            law = twin.top_p([0, *[1] * n, 0], Fraction(eighths, 8), ties)
            assert stays[0].tolist() == [w > 0 for w in law]
    z[0, 1] = 2.25
    assert n == 1 or not exact_shares(z, torch.tensor([0.5]), maps)[0].any()


@pytest.mark.parametrize("maps", [Maps(), Maps(top_k_ties="index", top_p_ties="all")], ids=str)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_an_order_that_matters_is_decided(a: str, b: str, maps: Maps) -> None:
    """In either order the bounds leave what fractions leave, and condemn the other order."""
    subject = subject_of(twin_of(maps=maps))
    row = (3, 8, 2, 5)
    first, second = (a, b) if maps.order.index(a) < maps.order.index(b) else (b, a)
    options = telling(row, first, second, maps)
    assert options
    for x, y in options:
        values: dict[str, Any] = {first: (x,), second: (y,)}
        case = LawCase(rows=(row,), masses=True, **values)
        sure, gone = (t[0] for t in bounds(subject, batch_of(case, "fp32")))
        right = kept(row, [(first, x), (second, y)], maps)
        wrong = kept(row, [(second, y), (first, x)], maps)
        assert {int(v) for v in sure.nonzero()} == right
        assert {int(v) for v in (~gone).nonzero()} == right != wrong
        assert f"order_{a}_{b}" in labels(case, domain_of(subject))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("mask", (1,)), ("temperature", 0.5)),
        (("temperature", 0.25), ("top_k", 2)),
        (("top_k", 2), ("min_p", 0.5)),
    ],
)
def test_other_pairs_commute(first: tuple[str, Any], second: tuple[str, Any]) -> None:
    """Why no stratum is about them."""
    assert not differ((3, 8, 2, 5), first, second, Maps())
    assert {first[0], second[0]} not in [{*pair} for pair in PAIRS]


def domains() -> Iterator[tuple[str, Any]]:
    """Domains of bundled kernels, of other orders, of one map, of all but one, of few sizes."""
    for kernel in (torch_law.adapter, torch_law.ties):
        yield kernel.name, subject_of(kernel)
    for order in ORDERS[1:]:
        yield ", ".join(order), subject_of(twin_of(maps=Maps(order=order)))
    for name in MAPS:
        feature = f"law.{name}"
        yield f"only {name}", subject_of(twin_of(feature), "bf16")
        some = [x for x in LOGITS if x != feature]
        kernel = twin_of(*some)
        declining = replace(kernel.capabilities, declines=frozenset({feature}))
        yield f"all but {name}", subject_of(replace(kernel, capabilities=declining))
    yield "no map", subject_of(twin_of("law"))
    yield "small", subject_of(twin_of(max_vocabulary=4, max_requests=1, tiles=(4,)), "bf16")
    yield "interpreted", Subject(torch_law.adapter, "fp16", "interpreter")


@pytest.mark.parametrize("subject", [pytest.param(s, id=name) for name, s in domains()])
def test_strata_make_supported_cases_of_their_label(subject: Subject) -> None:
    """Whatever is supported: cases are well formed and within the domain, labels are known."""
    domain = domain_of(subject, "smoke")
    for law in LAWS:
        for label, stratum in law.strata.items():
            if (strategy := stratum(domain)) is not None:
                found = labels_of(strategy, subject, domain)
                assert label in found, f"{law.name} {label}"
                assert found <= LABELS


def drawn(strategy: Any, count: int) -> list[LawCase]:
    """Cases of a stratum."""
    cases: list[LawCase] = []

    @hypothesis.seed(1)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate])
    @hypothesis.given(case=strategy)
    def take(case: LawCase) -> None:
        cases.append(case)

    take()
    return cases


def labels_of(strategy: Any, subject: Subject, domain: Any) -> set[str]:
    """The labels of a few cases, each of which is looked at."""
    found: set[str] = set()

    @hypothesis.seed(1)
    @settings(
        max_examples=4,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=strategy)
    def look(case: LawCase) -> None:
        case.checked()
        missing = lacking(case, domain)
        assert set(missing) <= domain.declines, (case, missing)
        found.update(labels(case, domain))
        batch_of(case, subject.dtype)

    look()
    return found


@pytest.mark.parametrize("order", ORDERS, ids=",".join)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_right_kernel_of_any_order_passes(order: tuple[str, ...], dtype: str) -> None:
    """The twins in float64, with ties that differ from the default's."""
    kernel = twin_of(maps=Maps(order=order, top_k_ties="index", top_p_ties="all"))
    passed(kernel, dtype, "cpu", LAWS)


def passed(kernel: Any, dtype: str, device: str, laws: Any) -> None:
    """No law fails at smoke, and most of them run."""
    ran = 0
    for law in laws:
        record = check(law, Subject(kernel, dtype, device), Options(level="smoke", seed=0)).record
        assert record.status in ("passed", "not_applicable"), (law.name, record.reason)
        ran += record.status == "passed"
    assert 2 * ran >= len(laws)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kernel", [torch_law.adapter, torch_law.ties], ids=lambda k: k.name)
def test_the_bundled_torch_kernels_pass(kernel: Any, dtype: str) -> None:
    """The whole family."""
    passed(kernel, dtype, "cpu", LAWS)


@TRITON
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_bundled_triton_kernel_passes(law: Any) -> None:
    """Interpreted."""
    from kernelassay.impls import triton_law

    subject = Subject(triton_law.adapter, "fp32", "interpreter")
    record = check(lighter(law), subject, Options(level="smoke", seed=0)).record
    assert record.status in ("passed", "not_applicable"), record.reason


@pytest.mark.parametrize(
    ("features", "statuses"),
    [
        (("law",), {"undeclared": ["logits.temperature", "logits.order", "logits.mask"]}),
        (("law.top_k",), {"undeclared": ["logits.top_p", "logits.masked_content"]}),
    ],
)
def test_laws_of_maps_that_are_not_declared_do_not_run(
    features: tuple[str, ...], statuses: dict[str, list[str]]
) -> None:
    """The others do."""
    kernel = twin_of(*features)
    for status, names in statuses.items():
        for name in names:
            (law,) = select(name)
            assert law.standing(subject_of(kernel))[0] == status
    passed(kernel, "fp32", "cpu", select("logits.value", "logits.extreme", "logits.support"))


def test_what_came_must_have_the_form_of_the_contract() -> None:
    """Shape, dtype, a tensor at all, no refusal of what is declared."""

    def answers(made: Any) -> None:
        kernel = twin_of()
        kernel.law = made  # type: ignore[method-assign]
        laws_of(subject_of(kernel), batch_of(LawCase(), "fp32"))

    with pytest.raises(WrongShape, match=r"p: got shape \(2, 1\)"):
        answers(lambda call: call.logits.T.contiguous())
    with pytest.raises(WrongShape, match="returned list"):
        answers(lambda call: [])
    with pytest.raises(WrongDtype, match="p: got dtype fp64"):
        answers(lambda call: call.logits.double())
    refusing = replace(torch_law.adapter.capabilities, supports=frozenset({"law"}))
    kernel = torch_law.TorchLaw("refusing", refusing, torch_law.adapter.numerics)
    with pytest.raises(Refused, match="declares to support"):
        laws_of(subject_of(kernel), batch_of(LawCase(top_k=(1,)), "fp32"))


def test_verdicts_name_the_token() -> None:
    """A token too many, one too few, NaN, and a number that is off."""
    subject = subject_of()
    batch = batch_of(LawCase(rows=((2, 1, 0),), top_k=(2,)), "fp32")
    right = laws_of(subject, batch).p
    judge(subject, batch, right)
    for p, kind, said in (
        (torch.tensor([[0.6, 0.3, 0.1]]), WrongDistribution, "expected 0, as the maps remove"),
        (torch.tensor([[1.0, 0.0, 0.0]]), WrongDistribution, "as the maps keep this token"),
        (torch.tensor([[math.nan, 0.0, 0.0]]), NonFinite, "is nan"),
        (right * 1.01, WrongValue, "differs from the float64 oracle"),
    ):
        with pytest.raises(kind, match=said):
            judge(subject, batch, p)


def test_each_malformed_call_is_malformed() -> None:
    """The bundled kernel, which validates its calls, refuses each; of each map some are there."""
    every: dict[str, Any] = dict.fromkeys(("temperature", "top_p", "min_p"), (0.5,))
    case = LawCase(rows=((2, 1, 0),), top_k=(2,), mask=((2,),), **every)
    call = lay_out(subject_of(), batch_of(case, "fp32")).call
    torch_law.adapter.law(call)
    made = malformed_calls(call)
    for name in MAPS:
        assert any(name in what for what in made)
    for what, wrong in made.items():
        with pytest.raises(ValueError, match=r"got|expected"):
            raise_unless_refused(what, wrong)


def raise_unless_refused(what: str, call: LawCall) -> None:
    """A ValueError of the kernel, or an AssertionError."""
    torch_law.adapter.law(call)
    raise AssertionError(what)


def test_temperatures_have_exact_powers() -> None:
    """Those of the strata of orders: 1 / T is whole."""
    assert all((1 / Fraction(t)).denominator == 1 for t in TEMPERATURES)


def test_the_report_shows_the_token_that_is_wrong() -> None:
    """Also where it is none of the likeliest, which are shown in any case."""
    from kernelassay.impls.mutants import MUTANTS
    from kernelassay.impls.variants import build

    (mutant,) = [m for m in MUTANTS if m.name == "law_top_k_by_eighteen_halvings"]
    levels = ((-1_000_000_000, 0),)
    case = LawCase(rows=levels, V=300, ids=(0, 299), fill=0, spread=9, top_k=(2,))
    (prop,) = select("logits.top_k")
    found = check(prop, subject_of(build(mutant)), Options(case=case)).found
    assert found is not None
    assert found.failure.message.startswith("p[0, 1] = ")
    tokens = [line.split()[0] for line in found.failure.facts["lines"][2:]]
    assert tokens == ["10", "20", "30", "40", "50", "60", "70", "80", "1"]
