"""Parts, trees and pages hold what they say, and the laws about them pass right kernels."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelassay import AttendCase, Capabilities, Subject
from kernelassay.impls import torch_merge, torch_paged, torch_reference, torch_split
from kernelassay.impls.contract import AttendCall, MergeCall
from kernelassay.oracle.attention import attention
from kernelassay.oracle.merging import finish, merge, state_of
from kernelassay.properties.case import to_json
from kernelassay.properties.diagnosis import readings_of
from kernelassay.properties.engine import Options, Search, check
from kernelassay.properties.failures import WrongShape
from kernelassay.properties.inputs import Plan, logical
from kernelassay.properties.pages import paged
from kernelassay.properties.parts import spans, tree_of, true_parts
from kernelassay.properties.property import select
from kernelassay.script import repro_script

CONTENT: dict[str, Any] = {"D": 16, "q": "random:1", "k": "random:2", "v": "random:3"}


def test_parts_cover_the_keys() -> None:
    """Cuts may lie anywhere, past the end too; the order is that of the seed."""
    assert spans(Plan(cuts=(5, 2, 99)), 7) == [
        range(2), range(2, 5), range(5, 7), range(7, 7),
    ]  # fmt: skip
    assert spans(Plan(cuts=(3,), order=1), 7) == [range(3, 7), range(3)]
    shuffled = spans(Plan(cuts=(1, 2, 3, 4), order=5), 7)
    assert sorted(shuffled, key=lambda r: r.start) == spans(Plan(cuts=(1, 2, 3, 4)), 7) != shuffled


def test_trees_are_what_they_are_called() -> None:
    """All at once, from the left, from the right, in pairs of pairs."""
    cuts = (1, 2, 3)
    assert tree_of(Plan(cuts=cuts)) == (0, 1, 2, 3)
    assert tree_of(Plan(cuts=cuts, tree="left")) == (((0, 1), 2), 3)
    assert tree_of(Plan(cuts=cuts, tree="right")) == (0, (1, (2, 3)))
    assert tree_of(Plan(cuts=cuts, tree="balanced")) == ((0, 1), (2, 3))
    assert tree_of(Plan(cuts=())) == (0,)


PARTED = {
    "corner": {"causal": "bottom_right", "cuts": (3, 8)},
    "ragged": {"lengths": (11, 4), "cuts": (5, 5)},
    "mask": {"mask": "keep:1:40:bhqk", "cuts": (0, 6)},
    "sink": {"sink_logits": "random:1:4.0", "cuts": (0, 0, 6)},
    "bias": {"bias": "random:4:2.0:bhqk;fill:-inf:keep:5:60:qk", "cuts": (2,)},
    "ALiBi": {"alibi": "standard", "causal": "bottom_right", "cuts": (7,), "softcap": 2.0},
}


@pytest.mark.parametrize("name", PARTED)
def test_parts_are_those_of_the_whole(name: str) -> None:
    """Merged in float64 the true parts are attention over all keys; a sink is counted once."""
    fields: Any = {"B": 2, "Hq": 4, "Hkv": 2, "Tq": 5, "Tk": 11, **CONTENT, **PARTED[name]}
    for order in (0, 1, 7):
        t = logical(AttendCase(**fields, order=order), "fp32")
        out, lse = attention(t.q, t.k, t.v, t.softmax_scale, t.visibility, t.scoring)
        merged = finish(merge(*(state_of(*part) for part in true_parts(t))))
        assert torch.allclose(merged[0], out, rtol=1e-12, atol=1e-13)
        assert torch.allclose(merged[1], lse, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("how", ["ordered", "shuffled:3", "shared:3", "reserved:3"])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_pages_hold_the_keys(how: str, size: int) -> None:
    """Each key is where the table says; other slots hold garbage, other entries are -1."""
    case = AttendCase(B=2, Hq=2, Hkv=2, Tk=11, lengths=(11, 6), page=size, pages=how, **CONTENT)
    t = logical(case, "fp16")
    made = paged(t, torch_paged.adapter.capabilities)
    held = (11, 11) if how.startswith("reserved") else (11, 6)
    used = torch.zeros(made.k.shape[0], size, dtype=torch.bool)
    for b, n in enumerate(held):
        for j in range(n):
            page, slot = int(made.table[b, j // size]), j % size
            assert torch.equal(made.k[page, :, slot], t.k[b, :, j])
            assert torch.equal(made.v[page, :, slot], t.v[b, :, j])
            used[page, slot] = True
        assert bool((made.table[b, -(-n // size) :] == -1).all())
    assert bool(made.k[~used[:, None].expand(made.k.shape[:3])].isnan().all())
    assert made.lengths.tolist() == [11, 6]


def test_equal_pages_are_shared() -> None:
    """Two requests with the same keys need the pages of one."""
    case = AttendCase(B=2, Tk=11, view="expanded", page=4, **CONTENT)
    apart, shared = (
        paged(logical(replace(case, pages=how), "fp16"), torch_paged.adapter.capabilities)
        for how in ("shuffled:1", "shared:1")
    )
    assert (apart.k.shape[0], shared.k.shape[0]) == (2 * 3 + 2, 3 + 2)
    assert torch.equal(shared.table[0], shared.table[1])


def test_a_tree_is_as_many_calls() -> None:
    """A kernel that merges two is called once for each inner node."""
    subject = Subject(torch_merge.pairs, "fp32", "cpu")
    subject.attend(AttendCase(Tk=9, cuts=(2, 4, 6), tree="balanced", **CONTENT))
    assert subject.launches == 3


def test_layouts_of_a_merge() -> None:
    """A kernel gets its parts as it declares them to lie, with the same logical values."""
    found = []
    for layout, last in (("BHTD", 0), ("BTHD", 0), ("BTNHD", 2)):
        capabilities = replace(torch_merge.adapter.capabilities, layouts=(layout,))
        kernel = torch_merge.TorchMerge("laid", capabilities, torch_merge.adapter.numerics)
        case = AttendCase(B=2, Hq=3, Hkv=3, Tq=4, Tk=9, cuts=(4,), **CONTENT)
        call = Subject(kernel, "fp32", "cpu").prepare(case).call
        assert isinstance(call, MergeCall)
        order = sorted(range(5), key=lambda axis: -call.outs.stride(axis))
        assert order.index(0) == last
        found.append(call.outs.clone())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


class Broken:
    """A merge of two that goes wrong in one way."""

    name = "broken"
    capabilities = Capabilities(
        devices=("cpu",), dtypes=("fp32",), head_sizes=(16,), supports=frozenset({"merge"}),
        declines=frozenset({"merge.many"}), tiles=(16,),
    )  # fmt: skip
    numerics = torch_merge.adapter.numerics

    def __init__(self, how: str) -> None:
        self.how = how

    def merge(self, call: MergeCall) -> tuple[Tensor, ...]:
        """out and lse."""
        outs, lses = call.outs, call.lses
        if self.how == "three":
            return outs[0], lses[0], lses[0]
        if self.how == "alike":
            return outs.mean(0), torch.logsumexp(lses, 0)
        if self.how == "last":
            return outs[1], lses[1]
        if self.how == "base":
            return self._merged(outs, lses * math.log(2))
        if self.how == "seed":
            top = lses.amax(0).clamp_min(-5e4)
            w = torch.exp(lses - top)
            return (w[..., None] * outs).sum(0) / w.sum(0)[..., None], top + w.sum(0).log()
        return self._merged(outs, lses)

    def _merged(self, outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
        top = lses.amax(0)  # -inf - -inf where both are empty
        w = torch.exp(lses - top)
        return (w[..., None] * outs).sum(0) / w.sum(0)[..., None], top + w.sum(0).log()


READ = {
    "nan": ("merging.empty_parts", "subtracts -inf from -inf"),
    "alike": ("merging.value", "parts are averaged"),
    "last": ("merging.value", "one part is taken for the whole"),
    "base": ("merging.value", "LSEs of one base are taken for those of another"),
    "seed": ("merging.extreme", "starts at a finite number"),
}


@pytest.mark.parametrize("how", READ)
def test_faults_of_merges_are_found_and_read(how: str) -> None:
    """Both-empty parts that give NaN, and a first maximum of -5e4, among others."""
    law, words = READ[how]
    subject = Subject(Broken(how), "fp32", "cpu")
    outcome = check(select(law)[0], subject, Options(level="smoke"))
    assert outcome.record.status == "failed"
    assert outcome.found is not None
    fresh = Subject(Broken(how), "fp32", "cpu")
    readings = readings_of(fresh, outcome.found, Search())
    assert any(words in r.sentence for r in readings), [r.sentence for r in readings]


def test_a_script_of_parts_runs_the_law() -> None:
    """Who rebuilds the call by hand would have to lay out parts and pages as the suite does."""
    found = check(select("merging.value")[0], Subject(Broken("last"), "fp32", "cpu"), Options())
    script = repro_script(found.record.to_json(), "broken.py:kernel")
    assert "law.body(Subject(kernel, 'fp32', 'cpu'), case)" in script
    assert "cuts=" in script
    page = AttendCase(Tk=17, page=4, **CONTENT)
    record = found.record.to_json() | {"law": "attention.value", "case": to_json(page)}
    assert "law.body" in repro_script(record, "broken.py:kernel")


def test_an_answer_of_another_form_is_refused() -> None:
    """Three tensors where two are declared."""
    subject = Subject(Broken("three"), "fp32", "cpu")
    with pytest.raises(WrongShape, match="expected a tensor, a tuple"):
        subject.attend(AttendCase(Tk=4, cuts=(2,), **CONTENT))


def test_laws_of_merges_make_no_items_of_attention() -> None:
    """A law of what a kernel does not do is not applicable, and says so."""
    merging, of_attention = select("merging.value")[0], select("attention.value")[0]
    for prop, kernel in ((merging, torch_reference.adapter), (of_attention, torch_merge.adapter)):
        record = check(prop, Subject(kernel, "fp32", "cpu"), Options()).record
        assert record.status == "not_applicable"
        assert "does not offer" in record.reason


def test_splits_reach_the_kernel() -> None:
    """The number of splits of a case is that of the call."""
    case = AttendCase(Tk=9, splits=4, **CONTENT)
    call = Subject(torch_split.adapter, "fp32", "cpu").prepare(case).call
    assert isinstance(call, AttendCall)
    assert call.splits == 4
