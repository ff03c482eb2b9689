"""Declared numerics: validation and resolution."""

from typing import Any

import pytest

from kernelassay.oracle.formats import format_of
from kernelassay.oracle.numerics import Numerics, default_numerics


@pytest.mark.parametrize("name", ["out", "p", "score", "lse"])
def test_an_unknown_format_is_named_with_those_there_are(name: str) -> None:
    """The message says which field, what came and what is expected."""
    with pytest.raises(ValueError, match=rf"Numerics\.{name}: got 'half'.*fp16.*bf16"):
        Numerics(**{name: "half"})


@pytest.mark.parametrize("value", [0, -1, float("nan")])
@pytest.mark.parametrize(
    "name",
    ["acc_u", "exp_u", "tanh_u", "div_u", "p_scale", "kstep", "block", "score_roundings"],
)
def test_sizes_and_errors_are_positive(name: str, value: Any) -> None:
    """Zero, negative numbers and NaN are refused by name."""
    with pytest.raises(ValueError, match=rf"Numerics\.{name}: got .*more than 0"):
        Numerics(**{name: value})


def test_resolved_names_the_input_dtype() -> None:
    """ "input" becomes the dtype; what is declared stays."""
    got = Numerics(p="fp32", score="input").resolved("bf16")
    assert (got.out, got.p, got.score, got.lse) == ("bf16", "fp32", "bf16", "fp32")
    assert got.resolved("fp16") == got


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_defaults_resolve_to_known_formats(dtype: str) -> None:
    """The default of each dtype casts P and the output to formats that have a unit roundoff."""
    got = default_numerics(dtype).resolved(dtype)
    assert format_of(got.p).unit == format_of(got.out).unit == format_of(dtype).unit


def test_fp32_defaults_are_true_fp32() -> None:
    """An undeclared fp32 kernel is held to rounded fp32 accumulation, not to tf32."""
    got = default_numerics("fp32")
    assert (got.dot, got.acc_biased, got.acc_u) == ("exact", False, format_of("fp32").unit)
