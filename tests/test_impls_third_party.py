"""JAX, transformers and FlexAttention agree with the oracle as declared, and refuse the rest."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from kernelassay import AttendCase, Imprecise, Subject, Unsupported
from kernelassay.impls import flex_attention, jax_attention, transformers_attention
from kernelassay.impls.contract import checked_adapter
from kernelassay.plan import BUNDLED_EXPECTATIONS
from kernelassay.properties.engine import Options, check
from kernelassay.properties.expectations import Expectations
from kernelassay.properties.judge import budget_for, judge, judge_empty
from kernelassay.properties.property import select
from kernelassay.properties.strata import NEEDING

ADAPTERS: dict[str, Any] = {
    a.name: a
    for a in (
        jax_attention.adapter,
        jax_attention.eager,
        transformers_attention.llama,
        transformers_attention.gemma2,
        transformers_attention.gpt_oss,
        flex_attention.eager,
        flex_attention.compiled,
    )
}
LAWS = {p.name: p for p in select()}
KNOWN = Expectations.load(*(BUNDLED_EXPECTATIONS / f"{name}.toml" for name in ("jax", "flex")))


def usable(name: str) -> Any:
    """The adapter *name*; the test is skipped where its library is not installed."""
    adapter = ADAPTERS[name]
    for module in getattr(adapter, "needs", ()):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'kernelassay[targets]'")
    return adapter


def random_case(**fields: Any) -> AttendCase:
    """A case of random content."""
    return AttendCase(**{"D": 16, "q": "random:1", "k": "random:2", "v": "random:3", **fields})


def items(calls: dict[str, list[tuple[str, AttendCase]]]) -> list[Any]:
    return [
        pytest.param(name, dtype, case, id=f"{name}-{dtype}-{n}")
        for name, cases in calls.items()
        for n, (dtype, case) in enumerate(cases)
    ]


GROUPED = {"B": 2, "Hq": 4, "Hkv": 2, "Tq": 5, "Tk": 9}
CORNER = random_case(**GROUPED, causal="bottom_right", scale=0.7)
WINDOW = random_case(Tq=9, Tk=9, window=(2, 1), mask="keep:1:70:qk")
BIAS = random_case(**GROUPED, bias="random:5:2.0:hqk;fill:-inf:suffix:2")
CAPPED = random_case(**GROUPED, causal="top_left", softcap=2.0, q="random:1:9.0")
RAGGED = random_case(**GROUPED, lengths=(9, 6), causal="bottom_right")
SINKS = random_case(**GROUPED, sink_logits="random:7:2.0", bias="random:8:1.0:bhqk")
EVERYTHING = random_case(
    **GROUPED, lengths=(9, 7), causal="bottom_right", window=(4, None), sinks=1, softcap=3.0,
    alibi="standard", bias="random:5:1.0:k", mask="keep:1:90:bqk", Dv=24, scale=0.6,
)  # fmt: skip
POSITIONS = random_case(**GROUPED, causal="positions", positions="gaps:3")

AGREE = {
    "jax_attention": [
        ("fp32", replace(WINDOW, causal="top_left", Tk=12)),
        ("bf16", replace(RAGGED, causal="top_left", window=(None, 2))),
        ("fp32", RAGGED),
        ("bf16", BIAS),
    ],
    "jax_attention_eager": [("fp16", BIAS)],
    "transformers_llama": [
        ("fp32", CORNER), ("bf16", WINDOW), ("fp16", replace(BIAS, causal="top_left")),
    ],
    "transformers_gemma2": [("fp32", CAPPED), ("bf16", CAPPED), ("fp16", CAPPED)],
    "transformers_gpt_oss": [("fp32", SINKS), ("fp32", CORNER)],
    "flex_eager": [("fp32", EVERYTHING), ("bf16", EVERYTHING), ("fp16", POSITIONS)],
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "case"), items(AGREE))
def test_it_agrees_with_the_oracle(name: str, dtype: str, case: AttendCase) -> None:
    """out, and lse where there is one, are within what the declared numerics allow."""
    subject = Subject(usable(name), dtype, "cpu")
    judge(subject, case, subject.attend(case))


@pytest.mark.parametrize("name", sorted(set(ADAPTERS) - {"flex_compiled"}))
def test_it_refuses_what_it_declines(name: str) -> None:
    """Each declined feature that a call can need is refused; keywords are never left out."""
    subject = Subject(usable(name), "fp32", "cpu")
    declined = sorted(set(NEEDING) & subject.capabilities.declines)
    assert declined
    for feature in declined:
        case = replace(random_case(Tq=4, Tk=4), **NEEDING[feature])  # type: ignore[arg-type]
        with pytest.raises(Unsupported, match=feature):
            subject.answer(subject.prepare(case).call)


@pytest.mark.parametrize("name", ADAPTERS)
def test_it_keeps_to_the_contract_without_its_library(name: str) -> None:
    """Declarations are read without the library that the adapter calls."""
    adapter = ADAPTERS[name]
    assert checked_adapter(adapter) is adapter


def test_a_compiled_kernel_is_left_to_its_device() -> None:
    """Compiling for the CPU returns no LSE: such a call is refused."""
    subject = Subject(flex_attention.compiled, "bf16", "cpu")
    assert subject.capabilities.compiled
    with pytest.raises(Unsupported, match="does not run on cpu"):
        subject.answer(subject.prepare(random_case(D=64)).call)


def test_flex_attention_keeps_its_switch() -> None:
    """The debugging switch is as it was after a call, also one that raises."""
    from torch.nn.attention import flex_attention as library

    subject = Subject(flex_attention.eager, "fp32", "cpu")
    assert library._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is False
    subject.attend(CORNER)
    call = subject.prepare(CORNER).call
    with pytest.raises(ValueError, match="embedding"):
        flex_attention.eager.attend(replace(call, q=call.q[..., :8]))
    assert library._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is False


def test_an_empty_row_of_flex_attention_is_zero() -> None:
    """As declared: 0, with an LSE of -inf."""
    subject = Subject(flex_attention.eager, "fp32", "cpu")
    case = random_case(Tq=3, Tk=2, causal="bottom_right")
    answer = subject.attend(case)
    judge_empty(subject, answer, budget_for(case, "fp32", "cpu", subject.numerics))
    assert answer.out[0, 0, 0].tolist() == [0.0] * 16


def test_scores_of_transformers_are_rounded() -> None:
    """The declared roundings are there: without them the errors are too large."""
    adapter = usable("transformers_llama")

    @dataclass(frozen=True)
    class Finer:
        name = "finer"
        capabilities = adapter.capabilities
        numerics = replace(adapter.numerics["bf16"], score="fp32")
        attend = staticmethod(adapter.attend)

    case = random_case(Hq=4, Hkv=4, Tq=33, Tk=65, D=64, scale=0.5)
    subject = Subject(Finer(), "bf16", "cpu")
    answer = subject.attend(case)
    judge(Subject(adapter, "bf16", "cpu"), case, answer)
    with pytest.raises(Imprecise):
        judge(subject, case, answer)


@pytest.mark.parametrize(
    "entry",
    [e for e in KNOWN.entries if e.kernel != "flex_compiled"],
    ids=lambda e: f"{e.kernel}-{e.law}",
)
def test_a_known_fault_is_still_there(entry: Any) -> None:
    """The witness fails as recorded; docs/findings.md tells of it."""
    subject = Subject(usable(entry.kernel), entry.dtype or "fp32", "cpu")
    options = Options(level="replay", expectations=Expectations((entry,)))
    record = check(LAWS[entry.law], subject, options).record
    assert record.status == "expected", f"{record.kind}: {record.reason}"
