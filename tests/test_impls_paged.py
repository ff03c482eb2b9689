"""Paged kernels are attention, wherever the pages lie and whatever lies beside the keys."""

import dataclasses
import math
from random import Random
from typing import Any, Literal

import pytest
import torch
from attention_calls import (
    DTYPES,
    at,
    fields,
    lengths,
    make_call,
    numbers,
    over_budget,
    random_bias,
    random_mask,
)
from torch import Tensor
from toy_kernels import Toy

from kernelassay import AttendCase, Subject
from kernelassay.impls import torch_paged, torch_reference, torch_split, triton_paged
from kernelassay.impls.calls import check_attend, features_used
from kernelassay.impls.contract import (
    FEATURES,
    AttendCall,
    AttendResult,
    Pages,
    Unsupported,
    checked_adapter,
)
from kernelassay.impls.interpreter import interpreting
from kernelassay.oracle.attention import attention
from kernelassay.properties.engine import Options, check
from kernelassay.properties.property import select

plain, nhd, hnd = torch_paged.adapter, triton_paged.adapter, triton_paged.hnd
ADAPTERS = (plain, nhd, hnd)
interpreted = pytest.mark.skipif(
    not interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported"
)
KERNELS = [pytest.param(x, id=x.name, marks=() if x is plain else interpreted) for x in ADAPTERS]
each = pytest.mark.parametrize("kernel", KERNELS)
TRITON = [x for x in KERNELS if x.values[0] is not plain]
OUTSIDE = 2**30  # no page has that number: whoever follows it leaves the pool by far


def paged(
    call: AttendCall,
    size: int,
    layout: Literal["NHD", "HND"] = "NHD",
    *,
    seed: int = 0,
    poison: float = torch.nan,
) -> AttendCall:
    """*call* with its keys in pages of *size*, in random order among unused ones.

    *poison* lies in every slot that holds no key. Past a request's pages the table holds -1, and
    past its columns numbers of no page.
    """
    B, Hkv, Tk, _ = call.k.shape
    used = call.visibility.lengths
    used = torch.full((B,), Tk) if used is None else used
    counts = [-(-int(n) // size) for n in used]
    pages = list(range(sum(counts) + 2))
    Random(seed).shuffle(pages)
    table = torch.full((B, max(counts, default=0) + 2), OUTSIDE, dtype=torch.int32)
    pools = []
    for x in (call.k, call.v):
        pools.append(torch.full((len(pages), size, Hkv, x.shape[-1]), poison, dtype=x.dtype))
    for b, count in enumerate(counts):
        table[b, :-1] = -1
        for n in range(count):
            table[b, n] = pages.pop()
            for pool, x in zip(pools, (call.k, call.v), strict=True):
                keys = x[b, :, n * size : min((n + 1) * size, int(used[b]))]
                pool[int(table[b, n]), : keys.shape[1]] = keys.transpose(0, 1)
    k, v = (x.transpose(1, 2).contiguous() if layout == "HND" else x for x in pools)
    see = dataclasses.replace(call.visibility, lengths=used)
    given = Pages(table=table[:, :-1], size=size, layout=layout)
    return dataclasses.replace(call, k=k, v=v, visibility=see, pages=given)


@dataclasses.dataclass(frozen=True)
class Through:
    """A paged kernel as one of plain tensors: their keys are put into pages first."""

    kernel: Any
    size: int

    @property
    def numerics(self) -> Any:
        """Those of the kernel."""
        return self.kernel.numerics

    def attend(self, call: AttendCall) -> AttendResult:
        """The kernel's answer for the pages of *call*."""
        answer: AttendResult = self.kernel.attend(
            paged(call, self.size, self.kernel.capabilities.page_layout)
        )
        return answer


CALLS: dict[str, dict[str, Any]] = {
    "decode": fields(B=2, Hq=4, Hkv=2, Tq=1, Tk=40, causal="bottom_right", D=64),
    "prefill": fields(Hq=1, Tq=70, Tk=70, causal="bottom_right"),
    "chunk": fields(Hq=1, Tq=9, Tk=40, causal="bottom_right"),
    "not causal": fields(Hq=3, Hkv=1, Tq=3, Tk=33),
    "ragged": fields(
        B=4, Hq=1, Tq=2, Tk=40, lengths=lengths(0, 40, 5, 33), causal="bottom_right"
    ),
    "ragged, 32 bits": fields(B=3, Hq=1, Tq=4, Tk=40, lengths=lengths(17, 0, 32).int()),
    "fewer keys": fields(Hq=1, Tq=40, Tk=10, causal="bottom_right"),
    "top left": fields(Hq=1, Tq=20, Tk=40, causal="top_left"),
    "window": fields(Hq=1, Tq=9, Tk=70, window=(7, None), causal="bottom_right"),
    "window of both sides": fields(Hq=1, Tq=30, Tk=40, window=(3, 2)),
    "window and first keys": fields(
        B=2, Hq=1, Tq=9, Tk=70, window=(3, None), sinks=2, causal="bottom_right",
        lengths=lengths(7, 70),
    ),
    "windows that hide nothing": fields(
        Hq=1, Tq=4, Tk=9, window=(2**31 - 1, 2**63 - 1), sinks=2**40
    ),
    "soft cap": fields(Hq=1, Tq=2, Tk=40, softcap=2.0, scale=1.0),
    "slopes": fields(
        B=2, Tq=5, Tk=40, alibi=numbers(1.0, 0.3), causal="bottom_right", lengths=lengths(7, 40)
    ),
    "slopes of the top left corner": fields(
        Tq=5, Tk=40, alibi=numbers(1.0, 0.3), causal="top_left"
    ),
    "sinks": fields(Tq=2, Tk=40, sink_logits=numbers(0.3, 2.0)),
    "sinks and empty rows": fields(
        Tq=9, Tk=4, sink_logits=numbers(0.3, -math.inf), causal="bottom_right"
    ),
    "odd sizes": fields(Hq=3, Hkv=1, Tq=2, Tk=33, D=40, Dv=24, scale=-1.5),
    "large sizes": fields(Hq=1, Tq=2, Tk=33, D=256, Dv=200),
    "no keys": fields(B=2, Tq=3, Tk=0, causal="bottom_right"),
    "no queries": fields(Tq=0, Tk=3),
    "no requests": fields(B=0, Tq=2),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_torch_is_within_its_numerics(name: str, dtype: str) -> None:
    """out and lse differ from float64 by no more than the declared roundings."""
    call = make_call(**CALLS[name], dtype=dtype)
    for size in (1, 4, 7, 16, 64):
        assert over_budget(Through(plain, size), call) <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kernel", TRITON)
def test_triton_is_within_its_numerics(kernel: Any, name: str, dtype: str) -> None:
    """The same for both layouts of pages."""
    size = kernel.capabilities.pages[0]
    assert over_budget(Through(kernel, size), make_call(**CALLS[name], dtype=dtype)) <= 1.0


def differs(result: AttendResult, call: AttendCall) -> float:
    """How far out and lse are from the oracle at most; an infinite lse is right or off by inf."""
    given = (call.softmax_scale, call.visibility, call.scoring)
    out, lse = attention(call.q, call.k, call.v, *given)
    assert result.lse is not None
    lse_error = torch.where(result.lse == lse, 0.0, (result.lse - lse).abs())
    return max(float((result.out - out).abs().max()), float(lse_error.max()))


@each
@pytest.mark.parametrize("size", [1, 3, 4, 16, 31, 64])
def test_any_page_size_gives_the_keys_in_order(kernel: Any, size: int) -> None:
    """fp32 agrees with the oracle, whatever the size of a page; powers of two or not."""
    call = make_call(
        B=2, Hq=2, Hkv=1, Tq=3, Tk=70, window=(40, None), sinks=1, causal="bottom_right",
        lengths=lengths(70, 33), alibi=numbers(0.1, 0.02),
    )  # fmt: skip
    assert differs(Through(kernel, size).attend(call), call) < 1e-5


@each
def test_order_of_pages_and_what_they_held_change_no_bit(kernel: Any) -> None:
    """Other pages, and other garbage beside the keys, give the same bits."""
    call = make_call(B=2, Hq=2, Hkv=1, Tq=3, Tk=40, lengths=lengths(40, 21))
    layout = kernel.capabilities.page_layout
    first = kernel.attend(paged(call, 8, layout))
    for seed, poison in ((1, torch.nan), (2, torch.inf), (3, 6e4)):
        other = kernel.attend(paged(call, 8, layout, seed=seed, poison=poison))
        assert torch.equal(first.out, other.out)
        assert torch.equal(first.lse, other.lse)


@each
def test_keys_that_no_query_sees_may_hold_anything(kernel: Any) -> None:
    """NaN and infinities in keys left of every window, or right of every corner, change no bit."""
    for given in (
        fields(window=(2, None), causal="bottom_right"),
        fields(window=(2, None), sinks=1, causal="bottom_right"),
        fields(causal="top_left"),
    ):
        call = make_call(Hq=1, Tq=3, Tk=70, **given)
        clean = Through(kernel, 16).attend(call)
        hidden = slice(3, None) if given["causal"] == "top_left" else slice(1, 65)
        for poison in (torch.nan, torch.inf):
            call.k[:, :, hidden] = call.v[:, :, hidden] = poison
            spoilt = Through(kernel, 16).attend(call)
            assert torch.equal(clean.out, spoilt.out)
            assert torch.equal(clean.lse, spoilt.lse)


@each
def test_requests_may_share_pages(kernel: Any) -> None:
    """Two requests with one page in common read the same keys from it."""
    call = make_call(B=2, Hq=1, Tq=2, Tk=20, lengths=lengths(20, 13), causal="bottom_right")
    call.k[1, :, :8], call.v[1, :, :8] = call.k[0, :, :8], call.v[0, :, :8]
    alone = paged(call, 8, kernel.capabilities.page_layout)
    shared = alone.pages.table.clone()
    shared[1, 0] = shared[0, 0]
    pages = dataclasses.replace(alone.pages, table=shared)
    first, second = kernel.attend(alone), kernel.attend(dataclasses.replace(alone, pages=pages))
    assert torch.equal(first.out, second.out)


def every_other(x: Tensor) -> Tensor:
    """*x* as every other element of a larger tensor."""
    return torch.stack((x, torch.zeros_like(x)), -1).flatten(-2)[..., ::2]


@each
def test_tensors_of_any_strides_give_the_same_bits(kernel: Any) -> None:
    """Queries, pools, tables and lengths are read where their strides say."""
    call = make_call(B=2, Hq=2, Hkv=1, Tq=3, Tk=40, dtype="bf16", lengths=lengths(40, 21))
    call = paged(call, 8, kernel.capabilities.page_layout)
    see, pages = call.visibility, call.pages
    strided = dataclasses.replace(
        call,
        q=call.q.transpose(1, 2).contiguous().transpose(1, 2),
        k=every_other(call.k),
        v=call.v.transpose(0, 3).contiguous().transpose(0, 3),
        visibility=dataclasses.replace(see, lengths=every_other(see.lengths)),
        pages=dataclasses.replace(pages, table=every_other(pages.table)),
    )
    first, second = kernel.attend(call), kernel.attend(strided)
    assert torch.equal(first.out, second.out)
    assert torch.equal(first.lse, second.lse)


@pytest.mark.parametrize("kernel", TRITON)
def test_a_row_does_not_depend_on_the_others(kernel: Any) -> None:
    """A row's bits are the same alone, with other rows and in another batch."""
    call = make_call(
        B=2, Tq=70, Tk=80, D=32, window=(50, None), sinks=1, causal="bottom_right", dtype="fp16"
    )  # fmt: skip
    call = paged(call, 16, kernel.capabilities.page_layout)
    whole = kernel.attend(call)
    see = dataclasses.replace(call.visibility, lengths=lengths(80))
    pages = dataclasses.replace(call.pages, table=call.pages.table[1:])
    tail = dataclasses.replace(call, q=call.q[1:, :, 67:], visibility=see, pages=pages)
    alone = kernel.attend(tail)
    assert torch.equal(whole.out[1:, :, 67:], alone.out)
    assert torch.equal(whole.lse[1:, :, 67:], alone.lse)


@each
def test_inputs_are_left_alone_and_answers_repeat(kernel: Any) -> None:
    """A call changes none of its tensors and gives the same bits again."""
    call = paged(make_call(Hq=1, Tq=2, Tk=40), 8, kernel.capabilities.page_layout, poison=3.0)
    tensors = (call.q, call.k, call.v, call.pages.table, call.visibility.lengths)
    before = [x.clone() for x in tensors]
    first, second = kernel.attend(call), kernel.attend(call)
    assert all(map(torch.equal, before, tensors))
    assert torch.equal(first.out, second.out)
    assert torch.equal(first.lse, second.lse)


def test_torch_reads_both_layouts() -> None:
    """The PyTorch function takes pages of either layout, with the same bits."""
    call = make_call(B=2, Hq=4, Hkv=2, Tq=3, Tk=40, lengths=lengths(40, 21))
    results = []
    for layout in ("NHD", "HND"):
        made = paged(call, 8, layout)
        results.append(torch_paged.attention(made, made.pages, made.visibility.lengths)[0])
    assert torch.equal(*results)


def test_every_feature_occurs_in_a_call_above() -> None:
    """Each feature that is supported is used, by all kernels alike; the rest is about memory."""
    used = {"lse", "strides"}.union(
        *(features_used(paged(make_call(**x), 4)) for x in CALLS.values())
    )
    for kernel in ADAPTERS:
        assert used == kernel.capabilities.supports
        assert kernel.capabilities.supports | kernel.capabilities.declines == set(FEATURES)


def test_features_of_a_paged_call_are_those_of_its_longest_request() -> None:
    """Lengths say how many keys there are, since pools do not."""
    for Tq, used, expected in (
        (3, (3, 1), set()),
        (3, (2, 1), {"unequal_lengths", "more_queries"}),
        (1, (4, 0), {"unequal_lengths"}),
        (2, (0, 0), {"unequal_lengths", "more_queries", "no_keys"}),
    ):
        call = paged(make_call(B=2, Tq=Tq, Tk=4, lengths=lengths(*used)), 2)
        assert features_used(call) == expected | {"attend", "lengths"}


def wrong(**changes: Any) -> AttendCall:
    """A call of B2 H2 Tq3 D16, 5 and 9 keys in pages of 4, with *changes*."""
    call = paged(make_call(B=2, Tq=3, Tk=9, lengths=lengths(5, 9)), 4)
    pages = {n: changes.pop(n) for n in ("table", "size", "layout") if n in changes}
    see = {n: changes.pop(n) for n in ("lengths",) if n in changes}
    return dataclasses.replace(
        call,
        pages=dataclasses.replace(call.pages, **pages),
        visibility=dataclasses.replace(call.visibility, **see),
        **changes,
    )


def numbered(*pages: tuple[int, ...]) -> Tensor:
    """A block table."""
    return torch.tensor(pages, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (wrong(layout="NDH"), "pages.layout: got 'NDH', expected one of NHD, HND"),
        (wrong(size=0), "pages.size: got 0, expected a whole number above 0"),
        (wrong(size=5), r"k: got shape .7, 4, 2, 16., expected size = 5 and D = 16"),
        (wrong(layout="HND"), "k: got shape .* expected size = 4"),
        (wrong(k=torch.zeros(7, 4, 16)), r"k: got 3 axes, expected 4: .pages, size, Hkv, D."),
        (wrong(k=torch.zeros(7, 4, 2, 8)), "k: got shape .* D = 16"),
        (wrong(v=torch.zeros(6, 4, 2, 16)), r"v: got shape .* expected .7, 4, 2. before Dv"),
        (wrong(q=torch.zeros(2, 3, 3, 16)), "q: got 3 heads, expected a multiple of the 2 of k"),
        (wrong(lengths=None), "lengths: got None, expected a tensor, since keys come in pages"),
        (wrong(lengths=lengths(5, 17)), "lengths: got .5, 17., expected 0 to slots = 16"),
        (wrong(lengths=lengths(5, -1)), "lengths: got .5, -1."),
        (wrong(lengths=lengths(5)), r"lengths: got shape .1,., expected .2,."),
        (wrong(table=numbered((0, 1, 2))), r"pages.table: got torch.int32 .1, 3., expected"),
        (wrong(table=numbered((0, 1, 2), (3, 4, 5)).long()), "pages.table: got torch.int64"),
        (
            wrong(table=numbered((0, 1, -1), (3, 4, -1))),
            "pages.table: got -1 as page 2 of request 1, expected 0 to 6",
        ),
        (
            wrong(table=numbered((0, 7, -1), (3, 4, 5))),
            "pages.table: got 7 as page 1 of request 0, expected 0 to 6",
        ),
        (wrong(table=torch.zeros(2, 3).int().to("meta")), "pages.table: got meta, expected cpu"),
    ],
)
def test_malformed_pages_raise(call: AttendCall, words: str) -> None:
    """What does not fit is a ValueError that names the argument, what came and what fits."""
    with pytest.raises(ValueError, match=words):
        plain.attend(call)


def test_entries_past_the_last_page_are_nobodys_business() -> None:
    """The call that the wrong ones are made of is right, whatever its table holds at the end."""
    check_attend(wrong())
    check_attend(wrong(table=numbered((0, 1, OUTSIDE), (2, 3, 4))))
    check_attend(wrong(lengths=lengths(0, 0), table=numbered((), ())))


@each
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (fields(mask=random_mask(3, 9)), "mask"),
        (fields(bias=random_bias(3, 9)), "bias"),
        (fields(bias=random_bias(3, 9, hides=True)), "bias, bias.minus_infinity"),
        (
            fields(causal="positions", q_positions=at((1, 2, 3)), k_positions=at(tuple(range(9)))),
            "causal.positions",
        ),
    ],
)
def test_what_is_declined_is_refused_by_name(
    kernel: Any, changes: dict[str, Any], words: str
) -> None:
    """Masks, biases and positions are refused with `Unsupported`, before Triton starts."""
    call = paged(make_call(Tq=3, Tk=9, **changes), 4, kernel.capabilities.page_layout)
    with pytest.raises(Unsupported, match=f"needs {words}$"):
        kernel.attend(call)


def test_keys_in_a_form_that_a_kernel_does_not_take_are_refused() -> None:
    """Pages, their absence, another layout and parts are refused by who did not declare them."""
    dense = make_call(Tq=3, Tk=9)
    pages = {layout: paged(dense, 4, layout) for layout in ("NHD", "HND")}
    for kernel, call, words in (
        (torch_reference.adapter, pages["NHD"], "come in NHD pages; it takes no pages"),
        (torch_split.adapter, pages["HND"], "come in HND pages; it takes no pages"),
        (torch_reference.adapter, dataclasses.replace(dense, splits=2), "splits = 2"),
        (plain, dataclasses.replace(pages["NHD"], splits=2), "splits = 2"),
        (plain, dense, "come in no pages; it takes NHD pages"),
        (plain, pages["HND"], "come in HND pages; it takes NHD pages"),
        (hnd, pages["NHD"], "come in NHD pages; it takes HND pages"),
    ):
        with pytest.raises(Unsupported, match=words):
            kernel.attend(call)


@interpreted
def test_sizes_beyond_what_triton_does_are_refused() -> None:
    """What the kernel does not do is refused with `Unsupported`, which says what was asked."""
    for call, size, words in (
        (make_call(D=257), 4, "D = 257; at most 256"),
        (make_call(), 65, "page size = 65; at most 64"),
    ):
        with pytest.raises(Unsupported, match=words):
            nhd.attend(paged(call, size))


@pytest.mark.parametrize("kernel", ADAPTERS, ids=lambda kernel: kernel.name)
def test_adapters_keep_to_the_contract(kernel: Any) -> None:
    """Each adapter has what the contract asks for and numerics for each of its dtypes."""
    assert checked_adapter(kernel) is kernel
    assert kernel.capabilities.pages
    assert set(kernel.numerics) == set(kernel.capabilities.dtypes)


def test_what_is_compiled_without_a_device_is_all_there_is_to_say() -> None:
    """Each spec types every argument of the kernel; each optional one is there and is absent."""
    absent = []
    for kernel, signature, constexprs, _ in triton_paged.compile_specs():
        assert set(signature) == set(kernel.arg_names)
        absent.append({name for name, value in constexprs.items() if value is None})
    assert set() in absent
    assert set.union(*absent) in absent


@pytest.mark.parametrize("polarity", ["keep", "drop"])
def test_a_call_over_pages_says_what_one_without_says(polarity: Any) -> None:
    """Splits, and the mask as the kernel reads it, reach a kernel with pages, too."""
    case = AttendCase(
        B=2, Tq=3, Tk=9, D=16, mask="rows:0:70:qk", lengths=(9, 9), splits=3, q="random:0",
        k="random:1", v="random:2",
    )  # fmt: skip
    said = []
    for kernel, given in (
        (torch_reference, case),
        (torch_paged, dataclasses.replace(case, page=4)),
    ):
        capabilities = kernel.adapter.capabilities
        conventions = dataclasses.replace(capabilities.conventions, mask_polarity=polarity)
        declared = dataclasses.replace(capabilities, splits=True, conventions=conventions)
        said.append(Subject(Toy(capabilities=declared), "fp32", "cpu").prepare(given).call)
    dense, over = said
    assert dense.splits == over.splits == 3
    assert dense.visibility.mask is not None
    assert torch.equal(dense.visibility.mask, over.visibility.mask[..., :9])


def test_splits_of_a_kernel_with_pages_are_judged() -> None:
    """One that loses the keys of its last split fails; whoever drops no key passes."""

    def without_the_last(call: AttendCall) -> AttendResult:
        used, n = call.visibility.lengths, call.splits or 1
        assert used is not None
        kept = used - used // n if n > 1 else used
        see = dataclasses.replace(call.visibility, lengths=kept)
        return plain.attend(dataclasses.replace(call, visibility=see, splits=None))

    def whole(call: AttendCall) -> AttendResult:
        return plain.attend(dataclasses.replace(call, splits=None))

    declared = dataclasses.replace(plain.capabilities, splits=True)
    (law,) = select("merging.splits")
    for run, status in ((without_the_last, "failed"), (whole, "passed")):
        subject = Subject(Toy(run, capabilities=declared), "fp32", "cpu")
        record = check(law, subject, Options(shrink=False)).record
        assert record.status == status, record.reason
