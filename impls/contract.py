"""The contract between the suite and a kernel: calls, results, capabilities, conventions.

An adapter is any object with `name`, `capabilities`, optionally `numerics`, and one method per
operation it offers. There is no base class. What an author declares here drives everything:
which cases are generated, which conventions the oracle follows, which error is allowed.
An adapter of a library names the modules that it imports in `needs`, a tuple, and imports them
when called: where one is not installed, the kernel is skipped in one line.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, get_type_hints, runtime_checkable

from torch import Tensor

from kernelassay.impls.caching import CACHING, Caches, CacheSpec, Caching, PageUse, Pools, Store
from kernelassay.impls.decoding import DECODING, DecodeCall, DecodeResult, Decodes, Decoding
from kernelassay.impls.logits import LOGITS, LawCall, Laws, Maps
from kernelassay.impls.prefixes import (
    PREFIXES,
    BlockUse,
    Prefixed,
    Prefixes,
    PrefixSpec,
    PrefixStore,
    Scope,
)
from kernelassay.impls.recurrences import RECURRENCES, States, StateSpec, StateStore
from kernelassay.impls.verification import (
    VERIFYING,
    Sampling,
    Verifies,
    VerifyCall,
    VerifyResult,
)
from kernelassay.oracle.formats import FORMATS
from kernelassay.oracle.numerics import Numerics, default_numerics
from kernelassay.oracle.scoring import Scoring
from kernelassay.oracle.visibility import Visibility

__all__ = [
    "CACHING",
    "DECODING",
    "FEATURES",
    "LOGITS",
    "MERGING",
    "PREFIXES",
    "RECURRENCES",
    "VERIFYING",
    "AttendCall",
    "AttendResult",
    "Attends",
    "BlockUse",
    "CacheSpec",
    "Caches",
    "Caching",
    "Capabilities",
    "ContractError",
    "Conventions",
    "DecodeCall",
    "DecodeResult",
    "Decodes",
    "Decoding",
    "LawCall",
    "Laws",
    "Maps",
    "MergeCall",
    "Merges",
    "Numerics",
    "PageUse",
    "Pages",
    "Pools",
    "PrefixSpec",
    "PrefixStore",
    "Prefixed",
    "Prefixes",
    "Sampling",
    "Scope",
    "Scoring",
    "StateSpec",
    "StateStore",
    "States",
    "Store",
    "Unsupported",
    "Verifies",
    "VerifyCall",
    "VerifyResult",
    "Visibility",
    "checked_adapter",
    "numerics_for",
]

DEVICES = ("cpu", "cuda", "interpreter")
DTYPES = tuple(name for name in FORMATS if name not in ("tf32", "fp64"))

FEATURES: Mapping[str, str] = {
    "attend": "attention forward: attend(call) -> out[, lse]",
    "lse": "attend returns the log-sum-exp of each row",
    "causal.bottom_right": "query i sees keys j <= i + (L - Tq)",
    "causal.top_left": "query i sees keys j <= i",
    "causal.positions": "query i sees keys with k_position <= q_position",
    "unequal_lengths": "Tq and Tk differ",
    "more_queries": "Tk < Tq",
    "no_keys": "Tk = 0",
    "no_queries": "Tq = 0",
    "value_size": "Dv differs from D",
    "window": "sliding windows (left, right)",
    "sink_tokens": "the first keys stay visible outside the window",
    "lengths": "a number of used keys per request, zero included",
    "mask": "a boolean mask, broadcastable to [B, Hq, Tq, Tk]",
    "gqa": "fewer KV heads than query heads",
    "scale": "a scale other than 1/sqrt(D)",
    "scale.nonpositive": "a scale of zero or below",
    "softcap": "z = cap tanh(scale q.k / cap), before bias and mask",
    "alibi": "slope[h] |position(i) - position(j)| is subtracted from the score",
    "bias": "an additive bias, broadcastable to [B, Hq, Tq, Tk]",
    "bias.minus_infinity": "a bias of -inf hides its key, as False in a mask does",
    "sink_logits": "a logit for each head in the denominator, and in the LSE, without a value",
    "strides": "views of any strides: transposed, expanded, interleaved, padded",
}
"""What attention forward may support or decline, with what each name means."""

MERGING: Mapping[str, str] = {
    "merge": "partial results of the same rows become one: merge(call) -> out, lse",
    "merge.many": "more than two parts in one call, and one alone",
}
"""The same for a merge of partial results."""

OPERATIONS: Mapping[str, Mapping[str, str]] = {
    "attend": FEATURES,
    "merge": MERGING,
    "verify": VERIFYING,
    "law": LOGITS,
    "decode": DECODING,
    "cache": CACHING,
    "prefix": PREFIXES,
    "recurrence": RECURRENCES,
}
"""What an adapter may do, one of these, with the features of each."""


class Unsupported(Exception):
    """An adapter raises this to refuse a call outside what it declared."""


class ContractError(Exception):
    """An adapter does not keep to the contract; names the field, what came, what is expected."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pages:
    """Where keys and values lie that are kept in pages: key j of request b is in slot j % size of
    page table[b, j // size].

    Entries past a request's last page are -1. Pages may be shared, lie in any order, and hold
    what earlier requests left; a slot at or past the request's length holds garbage.
    """

    table: Tensor  # [B, most pages of a request], int32
    size: int  # keys to a page
    layout: Literal["NHD", "HND"]  # a pool is [pages, size, Hkv, D] or [pages, Hkv, size, D]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttendCall:
    """One attention forward: out[b, h, i] = sum_j softmax_j(scale q[b,h,i].k[b,g,j]) v[b,g,j].

    Query head h uses KV head g = h // (Hq / Hkv). Tensors are views in the layout the adapter
    declared; their shapes are always logical. *visibility* says which keys a query sees,
    *scoring* what is done to a score before the softmax (soft cap, ALiBi, bias, sink).

    A kernel that declares `Capabilities.pages` gets *pages*: k and v are then pools, and
    visibility.lengths is given, the number of each request's keys. One that declares
    `Capabilities.splits` gets *splits*, the number of parts that the keys are to be cut into.
    """

    q: Tensor  # [B, Hq, Tq, D]
    k: Tensor  # [B, Hkv, Tk, D]
    v: Tensor  # [B, Hkv, Tk, Dv]
    scale: float | None = None  # None: the kernel's default, which must be 1/sqrt(D)
    visibility: Visibility = field(default_factory=Visibility)
    scoring: Scoring = field(default_factory=Scoring)
    pages: Pages | None = None
    splits: int | None = None

    @property
    def softmax_scale(self) -> float:
        """The scale as a number."""
        return 1.0 / math.sqrt(self.q.shape[-1]) if self.scale is None else self.scale


@dataclass(frozen=True, eq=False)
class AttendResult:
    """out [B, Hq, Tq, Dv], lse [B, Hq, Tq] or None, and which backend ran, if it has several."""

    out: Tensor
    lse: Tensor | None = None
    backend: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class MergeCall:
    """n partial results of the same rows, over keys that no two of them share, to be made one:

        lse = log sum_i exp(lse_i)      out = sum_i exp(lse_i - lse) out_i

    LSEs are in the declared base, -inf for a part that saw no key; such a part's output is
    finite garbage and counts for nothing. With `Capabilities.state` "mlu" a part is a state of
    the online softmax: numerators u in *outs*, maxima m in *lses*, denominators l in *sums*; m
    and l are natural numbers of the scores, m = -inf and l = 0 without a key.
    """

    outs: Tensor  # [n, B, H, T, Dv]
    lses: Tensor  # [n, B, H, T], of dtype Numerics.lse
    sums: Tensor | None = None  # [n, B, H, T], likewise


@runtime_checkable
class Merges(Protocol):
    """An adapter that offers a merge. It returns (out, lse), or (u, m, l) where it declares so."""

    name: str
    capabilities: "Capabilities"

    def merge(self, call: MergeCall) -> tuple[Tensor, ...]:
        """The parts of *call* as one: out [B, H, T, Dv], lse [B, H, T]."""


@runtime_checkable
class Attends(Protocol):
    """An adapter that offers attention forward. A tensor or a tuple (out, lse) may be returned."""

    name: str
    capabilities: "Capabilities"

    def attend(self, call: AttendCall) -> AttendResult | Tensor | tuple[Tensor, Tensor | None]:
        """Attention of *call*; `Unsupported` refuses it."""


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """Where correct kernels differ. The oracle follows what is declared; the rest is a fault."""

    empty_row: Literal["zeros", "nan", "undefined"] = "zeros"
    """the output of a row that sees no key."""
    empty_lse: Literal["-inf", "+inf", "undefined"] = "-inf"
    """its log-sum-exp."""
    lse_base: Literal["e", "2"] = "e"
    """lse = log_base(sum_j base**score)."""
    mask_polarity: Literal["keep", "drop"] = "keep"
    """what True means in a boolean mask as the adapter receives it."""
    masked_content: Literal["finite_only", "nan_safe", "never_read"] = "finite_only"
    """finite_only: finite garbage under a mask is harmless, NaN there may leak as 0 x NaN (not
    beyond a length); nan_safe, never_read: NaN and infinities under a mask are harmless too."""
    deterministic: bool = False
    """the same call gives the same bits."""
    batch_invariant: bool = False
    """a row's bits depend on its query and on the keys and values that it sees alone: not on the
    batch, the other rows and their number, unseen content, or how the tensors are laid out. Among
    calls that use the same features: a path for masks may round in another order."""
    validates_calls: bool = False
    """malformed calls raise."""

    def __post_init__(self) -> None:
        for name, known in get_type_hints(type(self)).items():
            choices = (True, False) if known is bool else get_args(known)
            if (value := getattr(self, name)) not in choices or type(value) is not type(
                choices[0]
            ):
                listed = "True or False" if known is bool else ", ".join(choices)
                raise ContractError(f"Conventions.{name}: got {value!r}, expected one of {listed}")


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a kernel's author says that it can do.

    The domain (devices, dtypes, head_sizes; for a verification devices, dtypes and sampling) has
    no default. A feature in *supports* is tested and
    must not be refused; one in *declines* must be refused with `Unsupported`, never answered
    silently; one in neither is UNDECLARED: not run, shown and counted.
    """

    devices: tuple[str, ...]
    """of "cpu", "cuda", "interpreter" (Triton's, TRITON_INTERPRET=1)."""
    dtypes: tuple[str, ...]
    """of "fp16", "bf16", "fp32", "e4m3", "e5m2": what q, k, v may be, or laws p and q."""
    head_sizes: tuple[int, ...] = ()
    """the values of D that the suite may use."""
    supports: frozenset[str]
    declines: frozenset[str] = frozenset()
    conventions: Conventions = Conventions()
    layouts: tuple[str, ...] = ("BHTD",)
    """physical layouts of q, k, v the kernel takes: "BHTD", "BTHD". For a merge those of a part,
    the parts one after the other, or "BTNHD": the parts of a row side by side."""
    tiles: tuple[int, ...] = (16, 32, 64, 128)
    """sizes near which something changes: tiles, pages, thresholds; lengths are aimed there, and
    vocabularies."""
    min_keys: int = 1
    """the smallest Tk that is not 0; "no_keys" says whether 0 is possible."""
    max_tokens: int = 4096
    """the largest Tq or Tk to use."""
    pages: tuple[int, ...] = ()
    """the page sizes that the kernel takes, if keys and values come in pages."""
    page_layout: Literal["NHD", "HND"] = "NHD"
    """how such a page is laid out: [size, Hkv, D] or [Hkv, size, D]."""
    splits: bool = False
    """the call says into how many parts the keys are cut."""
    state: Literal["out_lse", "mlu"] = "out_lse"
    """what a merge takes and gives: outputs with their log-sum-exps, or states (u, m, l)."""
    sampling: Sampling | None = None
    """how a verification draws."""
    packing: Literal["flat", "padded"] = "flat"
    """how it wants drafts and rows, see `VerifyCall`."""
    maps: Maps | None = None
    """how logits become laws."""
    decoding: Decoding | None = None
    """how a decode loop works."""
    caching: Caching | None = None
    """where a KV cache differs from others; None for the defaults."""
    prefixing: Prefixed | None = None
    """where a prefix cache differs from others; None for the defaults."""
    max_drafts: int = 8
    """the most drafts of a request to use."""
    max_vocabulary: int = 4096
    """the largest vocabulary to use."""
    max_requests: int = 4096
    """the most requests of a verification to put into one call."""
    compiled: bool = False
    """the kernel goes through torch.compile. PyTorch compiles nothing under the mode that gives a
    launcher's allocations guard zones, so such a kernel's outputs are not watched."""
    work_limit: Mapping[str, int] = field(default_factory=dict)
    """device -> most tile steps of one launch; for the interpreter 16 by default."""

    def __post_init__(self) -> None:
        for name in ("devices", "dtypes", "head_sizes", "layouts", "tiles", "pages"):
            object.__setattr__(self, name, tuple(_several(name, getattr(self, name))))
        for name in ("supports", "declines"):
            object.__setattr__(self, name, frozenset(_several(name, getattr(self, name))))
        _known("devices", self.devices, DEVICES)
        _known("dtypes", self.dtypes, DTYPES)
        _known("layouts", self.layouts, ("BHTD", "BTHD", "BTNHD"))
        _known("packing", [self.packing], ("flat", "padded"))
        features = tuple(name for operation in OPERATIONS.values() for name in operation)
        _known("supports", self.supports, features)
        _known("declines", self.declines, features)
        _known("page_layout", [self.page_layout], ("NHD", "HND"))
        _known("state", [self.state], ("out_lse", "mlu"))
        needed = {"sampling": "verify", "maps": "law", "decoding": "decode"}
        own = [name for name, feature in needed.items() if feature in self.supports]
        for name in ("devices", "dtypes", "layouts", "tiles", *(own or ["head_sizes"])):
            if not getattr(self, name):
                raise ContractError(f"Capabilities.{name}: got nothing, expected at least one")
        for name in ("head_sizes", "tiles", "pages"):
            if bad := [n for n in getattr(self, name) if not _positive(n)]:
                raise ContractError(
                    f"Capabilities.{name}: got {bad!r}, expected positive integers"
                )
        _known("work_limit", self.work_limit, DEVICES)
        names = ("min_keys", "max_tokens", "max_drafts", "max_vocabulary", "max_requests")
        single = [(name, getattr(self, name)) for name in names]
        for name, n in [*single, *(("work_limit", n) for n in self.work_limit.values())]:
            if not _positive(n):
                raise ContractError(f"Capabilities.{name}: got {n!r}, expected a positive integer")
        if not isinstance(self.conventions, Conventions):
            raise ContractError(
                f"Capabilities.conventions: got {self.conventions!r}, expected Conventions(...)"
            )
        kinds: dict[str, type] = {"sampling": Sampling, "maps": Maps}
        kinds |= {"caching": Caching, "decoding": Decoding, "prefixing": Prefixed}
        for name, kind in kinds.items():
            if (given := getattr(self, name)) is not None and not isinstance(given, kind):
                raise ContractError(
                    f"Capabilities.{name}: got {given!r}, expected {kind.__name__}(...)"
                )
        if both := self.supports & self.declines:
            raise ContractError(
                f"Capabilities: {', '.join(sorted(both))} is both supported and declined; "
                f"expected each feature in one of the two sets at most"
            )

    @property
    def operations(self) -> frozenset[str]:
        """What the kernel does, as in OPERATIONS; attention also over "pages" or in "splits"."""
        if beside := (set(OPERATIONS) - {"attend"}) & self.supports:
            return frozenset(beside)
        special = {"pages": bool(self.pages), "splits": self.splits}
        return frozenset({"attend", *(name for name, given in special.items() if given)})

    @property
    def undeclared(self) -> frozenset[str]:
        """Features of the kernel's operations that are in neither set."""
        named = [OPERATIONS[name] for name in self.operations & set(OPERATIONS)]
        return frozenset().union(*named) - self.supports - self.declines


def _positive(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0


def _several(name: str, value: object) -> Iterable[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ContractError(
            f"Capabilities.{name}: got {value!r}, expected several values, such as a tuple"
        )
    return value


def _known(name: str, got: Iterable[str], allowed: Iterable[str]) -> None:
    allowed = tuple(allowed)
    for value in got:
        if value not in allowed:
            close = difflib.get_close_matches(str(value), allowed, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ContractError(
                f"Capabilities.{name}: got {value!r}, expected some of {', '.join(allowed)}{hint}"
            )


def checked_adapter(adapter: Any, where: str = "adapter") -> Any:
    """*adapter* itself, if it keeps to the contract; a `ContractError` says where not."""

    def wrong(what: str, got: str, expected: str) -> ContractError:
        return ContractError(f"{where}: {what}: got {got}, expected {expected}")

    if isinstance(adapter, type):
        raise wrong("the object", f"the class {adapter.__name__}", "an instance; call it: ...()")
    name = getattr(adapter, "name", None)
    if not isinstance(name, str) or not name:
        raise wrong("name", repr(name), "a non-empty string")
    capabilities = getattr(adapter, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        raise wrong(
            "capabilities",
            "none" if capabilities is None else type(capabilities).__name__,
            "kernelassay.Capabilities(devices=..., dtypes=..., head_sizes=..., supports=...)",
        )
    for operation in OPERATIONS:
        method = getattr(adapter, operation, None)
        if operation in capabilities.supports and not callable(method):
            raise wrong(operation, repr(method), f"a method {operation}(call)")
        if operation not in capabilities.supports and callable(method):
            raise wrong(
                "capabilities.supports",
                f"no {operation!r} beside a method {operation}",
                f"{operation!r} in it",
            )
    several = sorted(capabilities.supports & set(OPERATIONS))
    if len(several) > 1:
        named = " and ".join(map(repr, several))
        raise wrong("capabilities.supports", named, "an adapter for each")
    declared = getattr(adapter, "numerics", None)
    per_dtype = declared if isinstance(declared, Mapping) else {"every dtype": declared}
    for dtype, numerics in per_dtype.items():
        if numerics is not None and not isinstance(numerics, Numerics):
            raise wrong(
                f"numerics ({dtype})", type(numerics).__name__, "kernelassay.Numerics(...) or None"
            )
    return adapter


def numerics_for(adapter: Any, dtype: str) -> tuple[Numerics, bool]:
    """The numerics of *adapter* for inputs of *dtype*, and whether its author declared them."""
    declared = getattr(adapter, "numerics", None)
    if isinstance(declared, Mapping):
        declared = declared.get(dtype)
    found = declared if declared is not None else default_numerics(dtype)
    return found.resolved(dtype), declared is not None
