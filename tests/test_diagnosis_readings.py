"""A fault is named where a model of it says what came, not where nothing speaks against it."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from toy_kernels import hide, right, without_tail

from kernelassay.impls import torch_merge
from kernelassay.impls.contract import AttendCall, AttendResult, Capabilities, MergeCall, Numerics
from kernelassay.properties.case import AttendCase
from kernelassay.properties.diagnosis import readings_of
from kernelassay.properties.engine import Search
from kernelassay.properties.failures import Failure, Found
from kernelassay.properties.subject import Subject

R: dict[str, Any] = {"q": "random:1", "k": "random:2", "v": "random:3"}
LARGE: dict[str, Any] = {"q": "level:1", "k": "level:5e3", "v": "random:3"}
SUPPORTED = frozenset({"attend", "lse", "unequal_lengths", "causal.bottom_right", "no_keys"})


class Attention:
    """A function of the call with what a first adapter declares."""

    name = "attention"
    capabilities = Capabilities(
        devices=("cpu",), dtypes=("fp16", "fp32"), head_sizes=(16,), supports=SUPPORTED
    )
    numerics = Numerics(p="fp32", acc_u=2.0**-24, acc_biased=False, kstep=1)

    def __init__(self, run: Callable[[AttendCall], AttendResult]) -> None:
        self.attend = run


class Merge:
    """The textbook merge without a guard: -inf - -inf where all parts are empty."""

    name = "merge"
    capabilities = replace(torch_merge.adapter.capabilities, tiles=(16,))
    numerics = torch_merge.adapter.numerics

    def __init__(self, lse: str) -> None:
        self.lse = lse

    def merge(self, call: MergeCall) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse."""
        top = call.lses.amax(0)
        w = torch.exp(call.lses - top)
        out = (w[..., None] * call.outs.float()).sum(0) / w.sum(0)[..., None]
        lse = torch.logsumexp(call.lses, 0) if self.lse == "right" else top + w.sum(0).log()
        return out.to(call.outs.dtype), lse


def read(kernel: Any, case: AttendCase, dtype: str = "fp32") -> list[str]:
    """Names of the faults that are read into the kernel's answer to *case*."""
    found = Found(Failure("wrong"), case)
    return [r.name for r in readings_of(Subject(kernel, dtype, "cpu"), found, Search())]


def overflows(call: AttendCall) -> AttendResult:
    """Products summed in fp16: beyond 65504 they are inf, and inf - inf is NaN."""
    made = right(call)
    z = (call.q.float() @ call.k.float().transpose(-1, -2)).half()
    lost = z.isinf().any(-1)
    out = torch.where(lost[..., None], math.nan, made.out)
    lse = None if made.lse is None else torch.where(lost, math.nan, made.lse)
    return AttendResult(out, lse)


def nan_row(call: AttendCall) -> AttendResult:
    """NaN in the last row, for no reason."""
    made = right(call)
    out = made.out.clone()
    out[:, :, -1:] = math.nan
    return AttendResult(out, made.lse)


def zero_row(call: AttendCall) -> AttendResult:
    """0 and an LSE of -inf in every row: nothing was computed."""
    made = right(call)
    return AttendResult(torch.zeros_like(made.out), torch.full(made.out.shape[:3], -math.inf))


def divides_by_zero(call: AttendCall) -> AttendResult:
    """The last partial tile is dropped, and what sees nothing then is 0/0."""
    Tk = call.k.shape[2]
    made = right(hide(call, torch.arange(Tk) < Tk // 16 * 16))
    out = made.out / (0.0 if Tk < 16 else 1.0)
    return AttendResult(out, made.lse)


@pytest.mark.parametrize("Tk", [1, 2, 15])
def test_an_overflow_is_no_dropped_tile(Tk: int) -> None:
    """NaN of a row is not said by a model in which the row sees nothing."""
    case = AttendCase(Tk=Tk, D=16, **LARGE)
    assert read(Attention(overflows), case, "fp16") == []


@pytest.mark.parametrize("Tk", [1, 3])
@pytest.mark.parametrize("Tq", [1, 2])
def test_a_row_of_nan_is_not_explained_by_chance(Tq: int, Tk: int) -> None:
    """No model says it."""
    assert read(Attention(nan_row), AttendCase(Tq=Tq, Tk=Tk, D=16, **R)) == []


def test_nothing_computed_is_not_one_of_many_at_random() -> None:
    """All rows are 0: what fits is every model that hides all keys, so none of these is named."""
    names = read(Attention(zero_row), AttendCase(D=16, **R))
    assert names in ([], ["zeros"])


def test_a_dropped_tile_shows_by_its_numbers() -> None:
    """Where a longer case has numbers that only the model gives, its empty rows are NaN."""
    kernel = Attention(divides_by_zero)
    assert read(kernel, AttendCase(Tk=37, D=16, **R)) == ["tail tile dropped"]
    assert read(Attention(without_tail), AttendCase(Tk=37, D=16, **R)) == ["tail tile dropped"]


@pytest.mark.parametrize(("lse", "names"), [("nan", ["empty with empty"]), ("right", [])])
def test_two_empty_parts_have_one_reading(lse: str, names: list[str]) -> None:
    """NaN in both outputs is said by one model; a right LSE beside it by several."""
    case = AttendCase(Tk=4, D=16, lengths=(0,), cuts=(2,), **R)
    assert read(Merge(lse), case) == names
