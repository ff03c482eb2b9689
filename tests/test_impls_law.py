"""The bundled logits-to-law kernels against the twins of the maps, within the budget of laws."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelassay.impls import torch_law
from kernelassay.impls.contract import (
    LOGITS,
    LawCall,
    Unsupported,
    checked_adapter,
    numerics_for,
)
from kernelassay.impls.interpreter import interpreting
from kernelassay.oracle.budget_law import LawUnits, boundary, law_budget
from kernelassay.oracle.exact import log_fraction
from kernelassay.oracle.formats import name_of
from kernelassay.oracle.sampling_maps import (
    law_of,
    masked,
    masked_logits,
    min_p,
    min_p_logits,
    tempered,
    tempered_logits,
    top_k,
    top_k_logits,
    top_p,
    top_p_logits,
    top_p_margin,
)

try:
    from kernelassay.impls import triton_law
except ImportError:  # Triton is for Linux
    triton_law = None  # type: ignore[assignment]

TRITON = pytest.mark.skipif(
    not interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported"
)
KERNELS = [
    pytest.param(torch_law.adapter, id="torch_law"),
    pytest.param(torch_law.ties, id="torch_law_ties"),
    pytest.param(getattr(triton_law, "adapter", None), id="triton_law", marks=TRITON),
]
EVERY = pytest.mark.parametrize("kernel", KERNELS)
OFF = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0}
"""Values of the maps that change nothing; that of top-k is V."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def twin(kernel: Any, call: LawCall) -> Tensor:
    """The law [R, V] of *call* in float64, row by row, map by map."""
    maps, laws = kernel.capabilities.maps, []
    for r in range(len(call.logits)):
        z = call.logits[r].double()
        for name in maps.order:
            if (values := getattr(call, name)) is None:
                continue
            if name == "mask":
                z = masked_logits(z, values[r])
            elif name == "temperature":
                z = tempered_logits(z, values[r].item())
            elif name == "top_k":
                z = top_k_logits(z, values[r].item(), maps.top_k_ties)
            elif name == "top_p":
                z = top_p_logits(z, values[r].item(), maps.top_p_ties)
            else:
                z = min_p_logits(z, values[r].item())
        laws.append(law_of(z))
    return torch.stack(laws)


def units_of(kernel: Any, dtype: torch.dtype) -> LawUnits:
    """The errors that the author declared; sums are in any order."""
    numerics, declared = numerics_for(kernel, name_of(dtype))
    assert declared
    return LawUnits(exp_unit=numerics.exp_u, div_unit=numerics.div_u)


def judged(kernel: Any, call: LawCall, law: Tensor | None = None) -> tuple[float, int]:
    """The largest share of its budget that an entry uses, and how many tokens were unsure.

    The kernel's kept set must lie between the surely kept and the surely removed tokens, as must
    the twin's; the error is that of a law over the kernel's own set.
    """
    law = kernel.law(call) if law is None else law
    assert law.dtype == torch.float32
    assert law.shape == call.logits.shape
    maps, units = kernel.capabilities.maps, units_of(kernel, call.logits.dtype)
    sure, gone = boundary(
        call.logits,
        call.temperature,
        mask=call.mask,
        top_k=call.top_k,
        top_p=call.top_p,
        min_p=call.min_p,
        top_k_ties=maps.top_k_ties,
        top_p_ties=maps.top_p_ties,
        exact_top_k=True,
        units=units,
    )
    for kept in (law > 0, twin(kernel, call) > 0):
        assert not (kept & gone).any()
        assert not (sure & ~kept).any()
    assert torch.equal(law[gone], torch.zeros_like(law[gone]))
    kept = law > 0
    z = call.logits.double().masked_fill(~kept, -math.inf)
    heat = 1.0 if call.temperature is None else call.temperature.double()[:, None]
    budget = law_budget(call.logits, call.temperature, kept, units=units)
    off = (law.double() - law_of(z / heat)).abs()
    ratio = torch.where(kept, off / budget, torch.where(off == 0, 0.0, math.inf))
    z = call.logits if call.mask is None else masked_logits(call.logits, call.mask)
    unsure = ~sure & ~gone & (law_of(z.double() / heat) > 2.0**-120)  # fp32 does not flush it
    return float(ratio.nan_to_num(math.inf).max()), int(unsure.sum())


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: 3 * x,
    "ties": lambda x: (2 * x).round() / 2,
    "all equal": lambda x: x[:, :1].expand_as(x),
    "both zeros": lambda x: 0.0 * x,
    "positive": lambda x: x.abs() + 1,
    "negative": lambda x: -x.abs() - 1,
    "extreme": lambda x: 1e4 * x.sign(),
    "large": lambda x: 1e4 * x,
    "nearly equal": lambda x: 8 + 1e-5 * x,
    "holes": lambda x: torch.where(
        (x < 0.5) & (torch.arange(x.shape[1]) != x.shape[1] // 2), -math.inf, x
    ),
    "one left": lambda x: torch.where(torch.arange(x.shape[1]) == x.shape[1] // 2, x, -math.inf),
}
"""What is made of normal logits [R, V]; the middle token always stays."""


def make_call(
    V: int, seed: int, *, rows: int = 4, dtype: torch.dtype = torch.float32, maps: str = "all"
) -> LawCall:
    """*rows* rows of each kind; parameters of all maps, some off, or of those named."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.cat([kind(torch.randn(rows, V, generator=g)) for kind in KINDS.values()])
    R = len(logits)

    def or_off(values: Tensor, off: float) -> Tensor:
        return torch.where(torch.rand(R, generator=g) < 0.2, off, values).to(values.dtype)

    mask = torch.rand(R, V, generator=g) < 0.8
    mask[:, V // 2] = True
    parameters = {
        "temperature": or_off(10 ** (3 * torch.rand(R, generator=g) - 1.5), 1.0),
        "top_k": or_off(torch.randint(1, V + 1, (R,), generator=g, dtype=torch.int32), V),
        "top_p": or_off((0.01 + torch.rand(R, generator=g)).clamp_max(1), 1.0),
        "min_p": or_off(0.3 * torch.rand(R, generator=g) ** 2, 0.0),
        "mask": mask,
    }
    given = {k: v for k, v in parameters.items() if maps == "all" or k in maps.split()}
    return LawCall(logits=logits.to(dtype), **given)


@EVERY
@pytest.mark.parametrize(
    ("V", "rows", "dtype", "maps"),
    [
        (1, 2, torch.float32, "all"),
        (2, 8, torch.float32, "all"),
        (17, 8, torch.float32, "all"),
        (64, 24, torch.float32, "all"),
        (64, 4, torch.bfloat16, "all"),
        (64, 4, torch.float16, "mask top_k top_p"),
        (100, 2, torch.float32, "top_p"),
        (100, 2, torch.float32, "temperature min_p"),
        (100, 2, torch.float32, ""),
        (1023, 1, torch.float32, "temperature top_k"),
        (1025, 1, torch.float32, "all"),
    ],
    ids=str,
)
def test_laws_are_those_of_the_twin(
    kernel: Any, V: int, rows: int, dtype: torch.dtype, maps: str
) -> None:
    """Each kind of row at once, all maps or some: kept sets, entries, and sums of 1."""
    call = make_call(V, V, rows=rows, dtype=dtype, maps=maps)
    law = kernel.law(call)
    used, unsure = judged(kernel, call, law)
    assert used <= 1
    assert unsure <= 0.02 * law.numel()
    torch.testing.assert_close(law.double().sum(1), torch.ones(len(law)).double())
    if maps == "all" and V == 64 and dtype == torch.float32:
        assert used > 1 / 50  # the budget has not become a blank cheque


def exact_law(kernel: Any, masses: list[int], values: dict[str, Any], mask: list[bool]) -> Any:
    """The law of integer masses as Fractions; None where p or the ratio is at a breakpoint."""
    maps = kernel.capabilities.maps
    law = tempered(masked(masses, mask), values["temperature"])
    law = top_k(law, values["top_k"], maps.top_k_ties)
    if values["top_p"] < 1 and top_p_margin(law, values["top_p"]) < Fraction(1, 10**4):
        return None
    law = top_p(law, values["top_p"], maps.top_p_ties)
    ratios = [abs(w / max(law) - values["min_p"]) for w in law if w]
    if values["min_p"] and min(ratios) < Fraction(1, 10**4):
        return None
    return min_p(law, values["min_p"])


@EVERY
def test_laws_of_integer_masses_are_the_exact_ones(kernel: Any) -> None:
    """Logits log m; temperatures 1 and 1/2; parameters that are fp32 numbers: Fractions decide."""
    g = torch.Generator().manual_seed(7)
    rows = torch.randint(0, 6, (120, 8), generator=g).tolist()
    rows = [[*row[:-1], row[-1] + 1] for row in rows]
    drawn = torch.randint(0, 64, (120, 4), generator=g).tolist()
    masks = torch.rand(120, 8, generator=g) < 0.8
    masks[:, -1] = True
    values = [
        {
            "temperature": Fraction(1, 1 + a % 2),
            "top_k": 1 + b % 8,
            "top_p": Fraction(c + 1, 64),
            "min_p": Fraction(d % 32, 128),
        }
        for a, b, c, d in drawn
    ]
    given = {
        name: torch.tensor([float(v[name]) for v in values])
        for name in ("temperature", "top_p", "min_p")
    }
    logits = torch.tensor([[log_fraction(Fraction(m)) for m in row] for row in rows])
    call = LawCall(
        logits=logits,
        mask=masks,
        top_k=torch.tensor([v["top_k"] for v in values], dtype=torch.int32),
        **given,
    )
    law, compared = kernel.law(call), 0
    for r, row in enumerate(rows):
        true = exact_law(kernel, row, values[r], masks[r].tolist())
        if true is not None:
            compared += 1
            assert [w > 0 for w in law[r].tolist()] == [w > 0 for w in true], (row, values[r])
            assert law[r].tolist() == pytest.approx([float(w) for w in true], rel=4e-6)
    assert compared > 60


@EVERY
def test_maps_that_are_off_change_no_bit(kernel: Any) -> None:
    """k = V, p = 1, a ratio of 0, T = 1, a mask of True: the plain softmax, light tokens too."""
    z = make_call(40, 3, rows=2, maps="").logits
    z[:, 7] = z[:, 20] - 60  # it does not change a sum
    plain = kernel.law(LawCall(logits=z))
    assert (plain[z > z.amax(1, keepdim=True) - 80] > 0).all()
    R = len(z)
    off = LawCall(
        logits=z,
        mask=torch.ones_like(z, dtype=torch.bool),
        top_k=torch.full((R,), 40, dtype=torch.int32),
        **{name: torch.full((R,), value) for name, value in OFF.items()},
    )
    assert torch.equal(kernel.law(off), plain)


@EVERY
def test_ties_are_broken_as_declared(kernel: Any) -> None:
    """Both zeros tie. Of 1 1 2 1 1 three are asked for; of 1 1 1 1 a share of 1/2 is just met."""
    maps = kernel.capabilities.maps
    z = torch.tensor([[0.0, -0.0, math.log(2), 0.0, -0.0]])
    law = kernel.law(LawCall(logits=z, top_k=torch.tensor([3], dtype=torch.int32)))
    expected = top_k([1, 1, 2, 1, 1], 3, maps.top_k_ties)
    assert (law > 0).tolist() == [[w > 0 for w in expected]]
    for p in (0.1, 0.5, 0.6):
        law = kernel.law(LawCall(logits=z[:, [0, 1, 3, 4]], top_p=torch.tensor([p])))
        expected = top_p([1, 1, 1, 1], Fraction(p), maps.top_p_ties)
        assert law.tolist() == [pytest.approx([float(w) for w in expected], rel=1e-6)]


@EVERY
def test_edges_of_the_parameters(kernel: Any) -> None:
    """k = 1, a tiny p and a ratio of 1 keep the likeliest; temperatures at the ends of fp32."""
    z = torch.tensor([[1.0, 5.0, 3.0, 4.9]]).expand(3, 4)
    ones = torch.ones(3)
    certain = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).expand(3, 4)
    tiny = torch.finfo(torch.float32).tiny
    for given in (
        {"top_k": torch.ones(3, dtype=torch.int32)},
        {"top_p": 1e-30 * ones},
        {"top_p": torch.tensor([2.0**-149] * 3)},
        {"min_p": ones},
        {"temperature": tiny * ones},
    ):
        assert torch.equal(kernel.law(LawCall(logits=z, **given)), certain), given
    hot = kernel.law(LawCall(logits=z, temperature=3e38 * ones))
    assert torch.equal(hot, torch.full((3, 4), 0.25))
    far = torch.tensor([[3e38, -3e38, 3e38, -math.inf]])
    for t in (1e-3, 1.0, 100.0):
        law = kernel.law(LawCall(logits=far, temperature=torch.tensor([t])))
        assert law.tolist() == [[0.5, 0.0, 0.5, 0.0]]


@EVERY
def test_a_near_tie_is_none_under_a_temperature(kernel: Any) -> None:
    """Two logits whose quotients are one fp32 number: top-k keeps the larger."""
    z = torch.tensor([[2 - 2.0**-22, 2 - 2.0**-23, 0.0]])
    call = LawCall(
        logits=z, temperature=torch.tensor([1.9]), top_k=torch.tensor([1], dtype=torch.int32)
    )
    assert kernel.law(call).tolist() == [[0.0, 1.0, 0.0]]


@EVERY
def test_what_the_mask_removes_may_be_anything(kernel: Any) -> None:
    """NaN and infinities under the mask change nothing, nor do strides; where declared no bit."""
    call = make_call(33, 11, rows=1)
    assert call.mask is not None
    plain = kernel.law(call)
    odd = torch.tensor([math.nan, math.inf, -math.inf, 3e38])[torch.arange(33) % 4]
    wide = torch.full((len(plain), 66), math.nan)
    wide[:, ::2] = torch.where(call.mask, call.logits, odd)
    spread = dataclasses.replace(
        call, logits=wide[:, ::2], mask=call.mask.T.contiguous().T, top_k=_strided(call.top_k)
    )
    law = kernel.law(spread)
    assert torch.equal(law > 0, plain > 0)
    torch.testing.assert_close(law, plain, rtol=4e-6, atol=0)
    if kernel.capabilities.conventions.batch_invariant:
        assert torch.equal(law, plain)


def _strided(x: Tensor | None) -> Tensor:
    assert x is not None
    return torch.stack((x, torch.full_like(x, -7)), 1)[:, 0]


@TRITON
def test_a_row_does_not_depend_on_the_others() -> None:
    """Triton's rows alone, in another batch or of a tile that is not full: the same bits."""
    call = make_call(40, 5, rows=3)
    whole = triton_law.adapter.law(call)
    for rows in (slice(0, 1), slice(5, 12)):
        some = {
            f.name: x[rows] if (x := getattr(call, f.name)) is not None else None
            for f in dataclasses.fields(call)
        }
        assert torch.equal(triton_law.adapter.law(LawCall(**some)), whole[rows])


@EVERY
def test_no_rows(kernel: Any) -> None:
    """R = 0 is a law of no rows."""
    call = LawCall(logits=torch.empty(0, 5), top_p=torch.empty(0))
    assert kernel.law(call).shape == (0, 5)


X = torch.zeros(2, 3)
MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "axes": ({"logits": X[0]}, "logits: got 1 axes, expected 2"),
    "integers": ({"logits": X.int()}, "logits: got torch.int32, expected floating point"),
    "no vocabulary": ({"logits": X[:, :0]}, "logits: got V = 0"),
    "mask shape": ({"mask": torch.ones(3, dtype=torch.bool)}, "mask: got shape"),
    "mask dtype": ({"mask": torch.ones(2, 3)}, "mask: got torch.float32"),
    "mask device": ({"mask": torch.ones(2, 3, dtype=torch.bool, device="meta")}, "mask: got meta"),
    "temperature shape": ({"temperature": torch.ones(3)}, "temperature: got shape"),
    "temperature dtype": ({"temperature": torch.ones(2).double()}, "temperature: got torch.float"),
    "temperature 0": ({"temperature": torch.tensor([1.0, 0.0])}, "got 0.0 in row 1, .* above 0"),
    "temperature nan": ({"temperature": torch.tensor([math.nan, 1])}, "got nan in row 0"),
    "temperature inf": ({"temperature": torch.tensor([1, math.inf])}, "got inf in row 1"),
    "k 0": ({"top_k": torch.tensor([0, 1], dtype=torch.int32)}, "top_k: got 0 in row 0"),
    "k large": ({"top_k": torch.tensor([3, 4], dtype=torch.int32)}, "top_k: got 4 .* at most 3"),
    "k dtype": ({"top_k": torch.tensor([3, 3])}, "top_k: got torch.int64"),
    "p 0": ({"top_p": torch.tensor([0.0, 1.0])}, "top_p: got 0.0 in row 0"),
    "p large": ({"top_p": torch.tensor([0.5, 1.5])}, "top_p: got 1.5 in row 1, .* at most 1"),
    "ratio": ({"min_p": torch.tensor([0.5, -0.5])}, "min_p: got -0.5 in row 1, .* at least 0"),
    "ratio large": ({"min_p": torch.tensor([0.5, 2.0])}, "min_p: got 2.0 in row 1"),
    "nothing": ({"logits": X - math.inf}, "logits: got no token left in row 0"),
    "nothing masked": (
        {"mask": torch.tensor([[True] * 3, [False] * 3])}, "got no token left in row 1"
    ),
    "nan": ({"logits": X + math.nan}, "logits: got NaN or .inf in row 0"),
    "inf": ({"logits": torch.tensor([[0.0, 1.0], [0.0, math.inf]])}, "NaN or .inf in row 1"),
}  # fmt: skip


@EVERY
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_calls_raise(kernel: Any, name: str) -> None:
    """A ValueError names the argument, what came and what is expected."""
    given, message = MALFORMED[name]
    with pytest.raises(ValueError, match=message):
        kernel.law(LawCall(**({"logits": X} | given)))


@EVERY
def test_the_adapters_keep_to_the_contract(kernel: Any) -> None:
    """Name, capabilities and law are what the contract asks for; all is supported."""
    assert checked_adapter(kernel) is kernel
    assert kernel.capabilities.supports == set(LOGITS)
    assert kernel.capabilities.maps is not None


@EVERY
def test_what_is_not_offered_is_refused(kernel: Any) -> None:
    """A dtype, and a map that capabilities do not list."""
    with pytest.raises(Unsupported, match="dtype fp64; it takes fp32, bf16, fp16"):
        kernel.law(LawCall(logits=X.double()))
    fewer = dataclasses.replace(kernel.capabilities, supports=frozenset({"law", "law.top_p"}))
    lesser = dataclasses.replace(kernel, capabilities=fewer)
    assert lesser.law(LawCall(logits=X, top_p=torch.ones(2))).shape == X.shape
    for name in ("temperature", "min_p"):
        with pytest.raises(Unsupported, match=f"{name}; it does not offer law.{name}"):
            lesser.law(LawCall(logits=X, **{name: torch.ones(2)}))


@pytest.mark.skipif(interpreting() or triton_law is None, reason="Triton compiles in this mode")
def test_the_kernel_refuses_the_cpu_when_not_interpreted() -> None:
    """It says what to set."""
    with pytest.raises(Unsupported, match="set TRITON_INTERPRET=1 before Triton is imported"):
        triton_law.adapter.law(LawCall(logits=X))


@TRITON
def test_what_is_compiled_without_a_device_is_all_there_is_to_say() -> None:
    """Each spec types every argument of the kernel; each optional one is there and is absent."""
    present: set[str] = set()
    absent: set[str] = set()
    for kernel, signature, constexprs, _ in triton_law.compile_specs():
        assert set(signature) == set(kernel.arg_names)
        absent |= {name for name in triton_law.OPTIONAL if name in constexprs}
        present |= {name for name in triton_law.OPTIONAL if name not in constexprs}
    assert present == absent == set(triton_law.OPTIONAL)
