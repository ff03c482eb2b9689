"""PyTorch's operators give the out and the LSE of attention, by which partial results merge."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_calls import DTYPES, fields, make_call, over_budget, random_bias, random_mask

from kernelassay import Subject, Unsupported
from kernelassay.impls import torch_sdpa, torch_sdpa_lse
from kernelassay.impls.contract import AttendCall, checked_adapter
from kernelassay.plan import BUNDLED_EXPECTATIONS
from kernelassay.properties.engine import Options, check
from kernelassay.properties.expectations import Expectations
from kernelassay.properties.property import select

flash_cpu = torch_sdpa_lse.flash_cpu
ON_CUDA = (torch_sdpa_lse.flash, torch_sdpa_lse.efficient, torch_sdpa_lse.cudnn)
PUBLIC = (torch_sdpa.flash_cpu, torch_sdpa.flash, torch_sdpa.efficient, torch_sdpa.cudnn)
LAWS = {p.name: p for p in select()}
KNOWN = Expectations.load(BUNDLED_EXPECTATIONS / "pytorch.toml")

CALLS = {
    "square corner": fields(Tq=33, Tk=33, D=64, causal="bottom_right"),
    "top left": fields(B=2, Hq=4, Hkv=2, Tq=5, Tk=70, causal="top_left"),
    "bottom right": fields(Tq=5, Tk=70, D=80, causal="bottom_right", scale=0.7),
    "more queries": fields(Tq=40, Tk=17, causal="top_left"),
    "mask of keys": fields(Tq=3, Tk=50, mask=random_mask(1, 50)),
    "corner and mask": fields(Tq=9, Tk=40, causal="top_left", mask=torch.arange(40) % 3 == 0),
    "bias": fields(B=2, Hq=2, Tq=5, Tk=40, bias=random_bias(2, 1, 40), causal="bottom_right"),
    "negative scale": fields(Tq=3, Tk=40, scale=-0.3),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_out_and_lse_are_within_the_numerics(name: str, dtype: str) -> None:
    """Both differ from float64 by no more than the declared roundings."""
    assert over_budget(flash_cpu, make_call(**CALLS[name], dtype=dtype)) <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_output_is_that_of_the_public_function(dtype: str) -> None:
    """One backend, called by another way: the bits agree, also with a boolean mask as a bias."""
    for name, call in CALLS.items():
        given = make_call(**call, dtype=dtype)
        public = torch_sdpa.flash_cpu.attend(given).out
        assert torch.equal(flash_cpu.attend(given).out, public), name


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("law", ["attention.lse", "merging.of_partials"])
def test_partial_results_merge_by_the_lse(law: str, dtype: str) -> None:
    """The laws about the LSE hold."""
    record = check(LAWS[law], Subject(flash_cpu, dtype, "cpu"), Options(level="smoke")).record
    assert record.status == "passed", record.reason
    assert record.cases >= 10


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(
    "entry", [e for e in KNOWN.entries if e.kernel == flash_cpu.name], ids=lambda e: e.law
)
def test_a_known_fault_is_still_there(entry: Any, dtype: str) -> None:
    """The witness fails as recorded."""
    options = Options(level="replay", expectations=Expectations((entry,)))
    record = check(LAWS[entry.law], Subject(flash_cpu, dtype, "cpu"), options).record
    assert record.status == "expected", f"{record.kind}: {record.reason}"


def test_what_would_end_the_process_is_refused() -> None:
    """Without keys or queries the operator divides by zero: it is not called."""
    for sizes in ({"Tk": 0}, {"Tq": 0, "Tk": 3}):
        with pytest.raises(Unsupported, match=r"no_keys|no_queries"):
            flash_cpu.attend(make_call(**sizes))


@pytest.mark.parametrize("kernel", ON_CUDA, ids=lambda kernel: kernel.name)
def test_cuda_operators_refuse_the_cpu(kernel: Any) -> None:
    """The refusal names the kernel and the device."""
    with pytest.raises(Unsupported, match=f"{kernel.name}: it does not run on cpu"):
        kernel.attend(make_call(dtype="fp16"))


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 4, 32), (2, 4, 5, 1)])
def test_padding_and_a_last_axis_of_one_are_cut_off(shape: tuple[int, ...]) -> None:
    """However an operator gives it, the LSE is [B, Hq, Tq], the queries' own."""
    lse = torch.full(shape, torch.inf)
    lse.flatten(2)[..., :5] = torch.arange(5.0)

    def operator(call: AttendCall) -> tuple[torch.Tensor, ...]:
        return call.q, lse

    given = replace(flash_cpu, operator=operator).attend(make_call(B=2, Hq=4, Tq=5))
    assert given.lse is not None
    assert torch.equal(given.lse, torch.arange(5.0).expand(2, 4, 5))


@pytest.mark.parametrize("kernel", [flash_cpu, *ON_CUDA], ids=lambda kernel: kernel.name)
def test_adapters_keep_to_the_contract(kernel: Any) -> None:
    """Each declares the LSE, and else what the public function does of the same backend."""
    assert checked_adapter(kernel) is kernel
    assert set(kernel.numerics) == set(kernel.capabilities.dtypes)
    assert kernel.capabilities.undeclared == {"strides"}
    assert "lse" in kernel.capabilities.supports
    (public,) = (x for x in PUBLIC if x.name == kernel.name.replace("aten", "sdpa"))
    assert kernel.capabilities.dtypes == public.capabilities.dtypes
    assert kernel.capabilities.head_sizes == public.capabilities.head_sizes
