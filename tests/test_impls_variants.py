"""A text variant is the base with its edits made, in a module of its own."""

import inspect
import sys
from dataclasses import replace
from typing import Any

import pytest
from attention_calls import make_call, over_budget

from kernelassay.impls import torch_reference
from kernelassay.impls.contract import Capabilities, Numerics
from kernelassay.impls.interpreter import interpreting
from kernelassay.impls.variants import Variant, build, build_module, changed_source

REFERENCE = "kernelassay.impls.torch_reference"
TRITON = "kernelassay.impls.triton_attention"

CORNER = Variant(
    name="reference_corner",
    base=REFERENCE,
    edits=(("    offset = used - Tq\n", "    offset = used - used\n"),),
    law="attention.causal_alignment",
)
NO_RESCALE = Variant(
    name="triton_no_rescale",
    base=TRITON,
    edits=(("u = u * rescale[:, None]", "u = u * 1.0"),),
)
CALL = make_call(Tq=5, Tk=70, causal="bottom_right")


def test_a_variant_of_the_reference_has_the_fault_and_the_base_has_not() -> None:
    """The planted corner shows in the variant alone."""
    mutant = build(CORNER)
    assert mutant.name == "reference_corner"
    assert over_budget(mutant, CALL) > 1.0
    assert over_budget(torch_reference.adapter, CALL) <= 1.0
    assert torch_reference.adapter.name == "torch_reference"


@pytest.mark.skipif(not interpreting(), reason="needs TRITON_INTERPRET=1 before Triton's import")
def test_a_variant_of_a_triton_kernel_runs_interpreted() -> None:
    """The planted fault shows in the interpreter, and only where a maximum rises late."""
    mutant = build(NO_RESCALE)
    assert over_budget(mutant, CALL) > 1.0
    assert over_budget(mutant, make_call(Tq=5, Tk=5)) <= 1.0


def test_a_variant_is_a_module_with_a_source() -> None:
    """`inspect` finds the changed text of a function, as Triton needs it."""
    module = build_module(CORNER)
    assert sys.modules["kernelassay.impls.variants.reference_corner"] is module
    assert "offset = used - used" in inspect.getsource(module.q_positions)
    assert module.TorchReference is not torch_reference.TorchReference


def test_a_variant_is_built_once() -> None:
    """Two builds of one variant share a module, so that its kernels compile once."""
    assert build(CORNER) is build(CORNER)


def test_a_variant_may_declare_otherwise() -> None:
    """Capabilities and numerics of the variant replace the base's."""

    def no_masks(base: Capabilities) -> Capabilities:
        return replace(base, supports=base.supports - {"mask"}, declines={"mask"})

    exact = Numerics(p="fp32")
    control = build(replace(CORNER, name="control", capabilities=no_masks, numerics=exact))
    assert control.capabilities.declines == {"mask"}
    assert control.numerics is exact
    assert "mask" in torch_reference.adapter.capabilities.supports


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("no such text", ""), "variant broken: 'no such text' occurs 0 times in .*torch_refer"),
        (("return", "return "), "'return' occurs [0-9]+ times in .*, expected once"),
        (("m = m_new\n", "m = m_new\n"), "changes nothing"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(edit: tuple[str, str], words: str) -> None:
    """An edit must match exactly once and change something; the error names variant and text."""
    with pytest.raises(ValueError, match=words):
        build(Variant(name="broken", base=REFERENCE, edits=(edit,)))


def test_edits_apply_in_order() -> None:
    """A later edit sees the text that the earlier ones left."""
    twice = Variant(
        name="twice",
        base=REFERENCE,
        edits=(("TILE = 64 ", "TILE = 8 "), ("TILE = 8 ", "TILE = 4 ")),
    )
    assert build_module(twice).TILE == 4
    assert "TILE = 4 " in changed_source(twice)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "not a name"}, "expected an identifier"),
        ({"edits": ()}, "got no edits"),
    ],
)
def test_a_variant_needs_a_name_and_an_edit(fields: dict[str, Any], words: str) -> None:
    """A variant that could not be told from another, or from its base, is refused."""
    with pytest.raises(ValueError, match=words):
        replace(CORNER, **fields)


def test_a_base_without_source_is_an_error() -> None:
    """A base that does not exist is named."""
    with pytest.raises(ValueError, match=r"base kernelassay\.impls\.nothing has no source"):
        build(replace(CORNER, base="kernelassay.impls.nothing"))


def test_a_broken_variant_leaves_no_module() -> None:
    """A variant whose text does not run is not left in sys.modules."""
    broken = Variant(name="crashes", base=REFERENCE, edits=(("TILE = 64 ", "TILE = 1 // 0 "),))
    with pytest.raises(ZeroDivisionError):
        build(broken)
    assert "kernelassay.impls.variants.crashes" not in sys.modules
