"""The contract: what an author declares is checked at once; messages say what is expected."""

from dataclasses import replace
from typing import Any

import pytest
from toy_kernels import REFERENCE, Toy, only

from kernelassay.impls.contract import (
    DTYPES,
    FEATURES,
    Attends,
    Capabilities,
    ContractError,
    Conventions,
    Numerics,
    checked_adapter,
    numerics_for,
)
from kernelassay.oracle.numerics import default_numerics

GOOD: dict[str, Any] = {
    "devices": ("cpu",),
    "dtypes": ("fp32",),
    "head_sizes": (64,),
    "supports": {"attend"},
}


def test_capabilities_are_frozen_collections() -> None:
    """Lists and sets become tuples and frozen sets; the rest has defaults."""
    c = Capabilities(
        devices=["cpu"], dtypes=["fp32"], head_sizes=[64, 80], supports=["attend", "gqa"],  # type: ignore[arg-type]
        declines=["mask"], tiles=[32],  # type: ignore[arg-type]
    )  # fmt: skip
    assert (c.devices, c.dtypes, c.head_sizes, c.tiles) == (("cpu",), ("fp32",), (64, 80), (32,))
    assert (c.supports, c.declines) == ({"attend", "gqa"}, {"mask"})
    assert c.layouts == ("BHTD",)
    assert c == replace(c)


def test_what_is_in_neither_set_is_undeclared() -> None:
    """Undeclared features are those neither supported nor declined."""
    c = Capabilities(**GOOD, declines=set(FEATURES) - {"attend", "mask", "lse"})
    assert c.undeclared == {"mask", "lse"}
    assert REFERENCE.undeclared == frozenset()


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "a device": ({"devices": ("gpu",)}, "devices: got 'gpu', expected some of cpu, cuda, interp"),
    "a dtype": ({"dtypes": ("fp23",)}, r"dtypes: got 'fp23', .*; did you mean 'fp"),
    "a long dtype": ({"dtypes": ("float32",)}, "dtypes: got 'float32', expected some of"),
    "fp64": ({"dtypes": ("fp64",)}, "dtypes: got 'fp64'"),
    "a layout": ({"layouts": ("THD",)}, "layouts: got 'THD', expected some of BHTD, BTHD"),
    "a feature": ({"supports": {"attend", "windows"}}, "'windows', .* did you mean 'window'"),
    "a declined one": ({"declines": {"maks"}}, r"declines: got 'maks', .*did you mean 'mask'"),
    "text for several": ({"supports": "attend"}, "supports: got 'attend', expected several"),
    "a number": ({"head_sizes": 64}, "head_sizes: got 64, expected several values"),
    "none": ({"devices": None}, "devices: got None, expected several values"),
    "no device": ({"devices": ()}, "devices: got nothing, expected at least one"),
    "no dtype": ({"dtypes": []}, "dtypes: got nothing, expected at least one"),
    "no head size": ({"head_sizes": ()}, "head_sizes: got nothing"),
    "no layout": ({"layouts": ()}, "layouts: got nothing"),
    "head sizes": ({"head_sizes": (64, 0)}, r"head_sizes: got \[0\], expected positive"),
    "text sizes": ({"head_sizes": ("64",)}, r"head_sizes: got \['64'\], expected positive"),
    "both": (
        {"supports": {"attend", "gqa", "mask"}, "declines": {"mask", "gqa"}},
        "gqa, mask is both supported and declined",
    ),
    "no tile": ({"tiles": ()}, "tiles: got nothing, expected at least one"),
    "tiles": ({"tiles": (16, -1)}, r"tiles: got \[-1\], expected positive integers"),
    "fractions": ({"tiles": (0.5,)}, r"tiles: got \[0.5\], expected positive integers"),
    "least keys": ({"min_keys": 0}, "min_keys: got 0, expected a positive integer"),
    "most tokens": ({"max_tokens": -4}, "max_tokens: got -4, expected a positive integer"),
    "work": ({"work_limit": {"gpu": 3}}, "work_limit: got 'gpu', expected some of cpu"),
    "work steps": ({"work_limit": {"interpreter": 0}}, "work_limit: got .*, expected a positive"),
    "conventions": ({"conventions": {}}, "conventions: got {}, expected Conventions"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MALFORMED))
def test_malformed_capabilities_say_what_is_wrong(name: str) -> None:
    """Each message names the field, what came, and what there is."""
    changes, words = MALFORMED[name]
    with pytest.raises(ContractError, match=words) as caught:
        Capabilities(**{**GOOD, **changes})
    assert str(caught.value).startswith("Capabilities")


@pytest.mark.parametrize("field", ["devices", "dtypes", "head_sizes", "supports"])
def test_the_domain_has_no_default(field: str) -> None:
    """Devices, dtypes, head sizes and features must be said."""
    with pytest.raises((TypeError, ContractError), match=field):
        Capabilities(**{k: v for k, v in GOOD.items() if k != field})


CONVENTIONS = [
    ("empty_row", "zero", "zeros, nan, undefined"),
    ("empty_lse", "inf", "-inf, \\+inf, undefined"),
    ("lse_base", 2, "e, 2"),
    ("mask_polarity", "true", "keep, drop"),
    ("masked_content", "safe", "finite_only, nan_safe, never_read"),
    ("deterministic", "yes", "True or False"),
]


@pytest.mark.parametrize(("name", "value", "expected"), CONVENTIONS)
def test_conventions_are_known(name: str, value: Any, expected: str) -> None:
    """A convention that there is none of is an error that lists those there are."""
    with pytest.raises(ContractError, match=f"Conventions.{name}: got .*{expected}"):
        Conventions(**{name: value})


class Nameless:
    capabilities = only()

    def attend(self, call: Any) -> Any: ...


class Unattending:
    name = "unattending"
    capabilities = only()


class Hidden(Nameless):
    name = "hidden"
    capabilities = Capabilities(**{**GOOD, "supports": {"lse"}})


def _with(base: type = Nameless, **attributes: Any) -> Any:
    return type("Adapter", (base,), {"name": "adapter", **attributes})()


ADAPTERS: dict[str, tuple[Any, str]] = {
    "a class": (Toy, "the object: got the class Toy, expected an instance; call it"),
    "a module": (pytest, "name: got None, expected a non-empty string"),
    "no name": (Nameless(), "name: got None, expected a non-empty string"),
    "an empty name": (_with(name=""), "name: got '', expected a non-empty string"),
    "a name of bytes": (_with(name=b"a"), "name: got b'a', expected a non-empty string"),
    "no capabilities": (_with(capabilities=None), "capabilities: got none, expected kernelassay"),
    "other capabilities": (_with(capabilities={}), "capabilities: got dict, expected kernelassay"),
    "no method": (Unattending(), r"attend: got None, expected a method attend\(call\)"),
    "no method but a value": (_with(Unattending, attend=3), "attend: got 3, expected a method"),
    "a method not declared": (Hidden(), "supports: got no 'attend' beside a method attend"),
    "numerics": (_with(numerics="fp32"), r"numerics \(every dtype\): got str, expected kernel"),
    "numerics of a dtype": (_with(numerics={"fp32": 3}), r"numerics \(fp32\): got int"),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_malformed_adapters_say_what_is_wrong(name: str) -> None:
    """The message says where the adapter is from, what came and what is expected."""
    adapter, words = ADAPTERS[name]
    with pytest.raises(ContractError, match=words) as caught:
        checked_adapter(adapter, "my_module:adapter")
    assert str(caught.value).startswith("my_module:adapter: ")


def test_a_good_adapter_is_returned_itself() -> None:
    """Three attributes and a method are enough; there is no base class."""
    good = _with()
    assert checked_adapter(good) is good
    assert isinstance(good, Attends)
    assert checked_adapter(_with(numerics={"fp32": None})).numerics == {"fp32": None}


def test_numerics_are_declared_or_assumed_for_each_dtype() -> None:
    """One for all dtypes, one for each, or the default: resolved to the dtype, and marked."""
    one, none = _with(numerics=Numerics(p="fp32")), _with()
    each = _with(numerics={"fp16": Numerics(out="bf16")})
    numerics, declared = numerics_for(one, "bf16")
    assert (numerics.p, numerics.out, declared) == ("fp32", "bf16", True)
    numerics, declared = numerics_for(each, "fp16")
    assert (numerics.out, numerics.p, declared) == ("bf16", "fp16", True)
    for adapter in (each, none):
        numerics, declared = numerics_for(adapter, "fp32")
        assert (numerics, declared) == (default_numerics("fp32").resolved("fp32"), False)


def test_features_and_dtypes_have_names_and_meanings() -> None:
    """Every feature says in words what it means; tf32 is no dtype of a tensor."""
    assert all(FEATURES.values())
    assert set(DTYPES) == {"fp16", "bf16", "fp32", "e4m3", "e5m2"}
