"""Where a law fails, its sentence names the conventions that the case makes use of."""

import math
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest
from torch import Tensor

from kernelassay import AttendCase, Capabilities, Conventions, Subject
from kernelassay.impls import torch_merge, torch_reference
from kernelassay.impls.contract import MergeCall
from kernelassay.properties.conventions import SAID, USUAL
from kernelassay.properties.engine import Options, check
from kernelassay.properties.failures import (
    Failure,
    Imprecise,
    NonFinite,
    Place,
    Raised,
    WrongShape,
    WrongValue,
)
from kernelassay.properties.property import select

CONTENT = {"Tk": 4, "D": 16, "q": "random:1", "k": "random:2", "v": "random:3"}
EMPTY = {"Tq": 3, "Tk": 2, "causal": "bottom_right"}
"""Row 0 sees no key."""
MASK, CUTS = {"mask": "prefix:1"}, {"cuts": (1,)}

PARTS = "a part is an output with its LSE (state)"
STATES = "a part is a state (u, m, l) with natural m and l (state)"
BASE_E, BASE_2 = "LSEs are in base e (lse_base)", "LSEs are in base 2 (lse_base)"
KEEPS, REMOVES = (f"True in a mask {does} a key (mask_polarity)" for does in ("keeps", "removes"))
ZEROS, NANS = (f"the output of a row without keys is {x} (empty_row)" for x in ("0", "NaN"))
MINUS, PLUS = (f"the LSE of a row without keys is {sign}inf (empty_lse)" for sign in "-+")


class Silent:
    """Attention or a merge that is never called."""

    name = "silent"

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities


def attends(**declared: Any) -> Subject:
    """Attention with conventions of its own."""
    of = torch_reference.adapter.capabilities
    return Subject(Silent(replace(of, conventions=Conventions(**declared))), "fp32", "cpu")


def merges(state: Any = "out_lse", **declared: Any) -> Subject:
    """A merge, likewise."""
    of = torch_merge.adapter.capabilities
    own = replace(of, state=state, conventions=Conventions(**declared))
    return Subject(Silent(own), "fp32", "cpu")


Named = tuple[str, Subject, dict[str, Any], list[str], list[str]]
NAMED: list[Named] = [
    ("attention.value", attends(), {}, [], []),
    ("attention.value", attends(mask_polarity="drop"), {}, [], []),
    ("attention.value", attends(), MASK, [], [KEEPS]),
    ("attention.value", attends(mask_polarity="drop"), MASK, [REMOVES], []),
    ("attention.value", attends(), EMPTY, [], [ZEROS]),
    ("attention.lse", attends(), {}, [], [BASE_E]),
    ("attention.lse", attends(lse_base="2"), {}, [BASE_2], []),
    ("attention.lse", attends(empty_lse="+inf"), EMPTY, [PLUS], [BASE_E, ZEROS]),
    ("attention.lse", attends(empty_row="nan"), EMPTY | MASK, [NANS], [BASE_E, KEEPS, MINUS]),
    ("merging.of_partials", attends(), {}, [], [BASE_E]),
    ("merging.value", merges(), CUTS, [], [PARTS, BASE_E]),
    ("merging.value", merges(lse_base="2"), CUTS | MASK, [BASE_2], [PARTS]),
    ("merging.value", merges("mlu"), CUTS, [STATES], []),
    ("merging.empty_parts", merges("mlu"), CUTS | EMPTY, [STATES], [ZEROS, MINUS]),
]
"""A law, a kernel, a case; what is said to be declared, and what to be the default."""


@pytest.mark.parametrize("kind", [WrongValue, Imprecise, NonFinite])
@pytest.mark.parametrize(("law", "subject", "case", "declared", "usual"), NAMED)
def test_conventions_that_a_case_uses_are_named(
    law: str,
    subject: Subject,
    case: dict[str, Any],
    declared: list[str],
    usual: list[str],
    kind: type[Failure],
) -> None:
    """Each once, with its field, under what was declared or under the defaults."""
    (prop,) = select(law)
    words = prop.sentence
    if declared:
        words += f" As declared: {', '.join(declared)}."
    if usual:
        words += f" As nothing else is declared: {', '.join(usual)}."
    failure = kind("off", case=AttendCase(**CONTENT | case))
    assert prop.sentence_for(subject, failure) == words


def test_the_base_is_named_where_an_lse_is_wrong() -> None:
    """Whichever law looked at it."""
    (prop,) = select("alignment.visible_set")
    place = Place("lse", (0, 0, 0), 1.0, 2.0, 0.0, 1, 1)
    for tensor, words in (("lse", f" As nothing else is declared: {BASE_E}."), ("out", "")):
        failure = WrongValue("off", place=replace(place, tensor=tensor), case=AttendCase())
        assert prop.sentence_for(attends(), failure) == prop.sentence + words


@pytest.mark.parametrize(
    "failure", [Raised("no", case=AttendCase(**CUTS)), WrongShape("no"), WrongValue("no")]
)
def test_no_convention_explains_a_failure_without_values(failure: Failure) -> None:
    """Nor one without a case."""
    (prop,) = select("merging.value")
    assert prop.sentence_for(merges(), failure) == prop.sentence


def test_each_value_of_a_convention_has_words() -> None:
    """All that the contract allows, the default among them."""
    hints = get_type_hints(Capabilities) | get_type_hints(Conventions)
    for name, words in SAID.items():
        assert tuple(words) == get_args(hints[name])
        assert USUAL[name] in words


class Undeclared(Silent):
    """A merge in base 2 that does not say so."""

    def merge(self, call: MergeCall) -> tuple[Tensor, ...]:
        """out and lse of two parts."""
        natural = replace(call, lses=call.lses * math.log(2))
        out, lse = torch_merge.adapter.merge(natural)
        return out, lse / math.log(2)


def test_a_merge_in_another_base_than_was_declared() -> None:
    """The failure that a run ends with has a case, and so its conventions."""
    (prop,) = select("merging.value")
    subject = Subject(Undeclared(torch_merge.adapter.capabilities), "fp32", "cpu")
    outcome = check(prop, subject, Options(case=AttendCase(**CONTENT | CUTS)))
    assert outcome.found is not None
    said = prop.sentence_for(subject, outcome.found.failure)
    assert said == f"{prop.sentence} As nothing else is declared: {PARTS}, {BASE_E}."
