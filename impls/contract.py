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

from kernelassay.oracle.formats import FORMATS
from kernelassay.oracle.numerics import Numerics, default_numerics
from kernelassay.oracle.scoring import Scoring
from kernelassay.oracle.visibility import Visibility

__all__ = [
    "FEATURES",
    "AttendCall",
    "AttendResult",
    "Attends",
    "Capabilities",
    "ContractError",
    "Conventions",
    "Numerics",
    "Scoring",
    "Unsupported",
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
"""What a kernel may support or decline, with what each name means."""


class Unsupported(Exception):
    """An adapter raises this to refuse a call outside what it declared."""


class ContractError(Exception):
    """An adapter does not keep to the contract; names the field, what came, what is expected."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttendCall:
    """One attention forward: out[b, h, i] = sum_j softmax_j(scale q[b,h,i].k[b,g,j]) v[b,g,j].

    Query head h uses KV head g = h // (Hq / Hkv). Tensors are views in the layout the adapter
    declared; their shapes are always logical. *visibility* says which keys a query sees,
    *scoring* what is done to a score before the softmax (soft cap, ALiBi, bias, sink).
    """

    q: Tensor  # [B, Hq, Tq, D]
    k: Tensor  # [B, Hkv, Tk, D]
    v: Tensor  # [B, Hkv, Tk, Dv]
    scale: float | None = None  # None: the kernel's default, which must be 1/sqrt(D)
    visibility: Visibility = field(default_factory=Visibility)
    scoring: Scoring = field(default_factory=Scoring)

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

    The domain (devices, dtypes, head_sizes) has no default. A feature in *supports* is tested and
    must not be refused; one in *declines* must be refused with `Unsupported`, never answered
    silently; one in neither is UNDECLARED: not run, shown and counted.
    """

    devices: tuple[str, ...]
    """of "cpu", "cuda", "interpreter" (Triton's, TRITON_INTERPRET=1)."""
    dtypes: tuple[str, ...]
    """of "fp16", "bf16", "fp32", "e4m3", "e5m2": what q, k, v may be."""
    head_sizes: tuple[int, ...]
    """the values of D that the suite may use."""
    supports: frozenset[str]
    declines: frozenset[str] = frozenset()
    conventions: Conventions = Conventions()
    layouts: tuple[str, ...] = ("BHTD",)
    """physical layouts of q, k, v the kernel takes: "BHTD", "BTHD"."""
    tiles: tuple[int, ...] = (16, 32, 64, 128)
    """sizes near which something changes: tiles, pages, thresholds; lengths are aimed there."""
    min_keys: int = 1
    """the smallest Tk that is not 0; "no_keys" says whether 0 is possible."""
    max_tokens: int = 4096
    """the largest Tq or Tk to use."""
    compiled: bool = False
    """the kernel goes through torch.compile. PyTorch compiles nothing under the mode that gives a
    launcher's allocations guard zones, so such a kernel's outputs are not watched."""
    work_limit: Mapping[str, int] = field(default_factory=dict)
    """device -> most tile steps of one launch; for the interpreter 16 by default."""

    def __post_init__(self) -> None:
        for name in ("devices", "dtypes", "head_sizes", "layouts", "tiles"):
            object.__setattr__(self, name, tuple(_several(name, getattr(self, name))))
        for name in ("supports", "declines"):
            object.__setattr__(self, name, frozenset(_several(name, getattr(self, name))))
        _known("devices", self.devices, DEVICES)
        _known("dtypes", self.dtypes, DTYPES)
        _known("layouts", self.layouts, ("BHTD", "BTHD"))
        _known("supports", self.supports, FEATURES)
        _known("declines", self.declines, FEATURES)
        for name in ("devices", "dtypes", "head_sizes", "layouts", "tiles"):
            if not getattr(self, name):
                raise ContractError(f"Capabilities.{name}: got nothing, expected at least one")
        for name in ("head_sizes", "tiles"):
            if bad := [n for n in getattr(self, name) if not _positive(n)]:
                raise ContractError(
                    f"Capabilities.{name}: got {bad!r}, expected positive integers"
                )
        _known("work_limit", self.work_limit, DEVICES)
        single = {"min_keys": self.min_keys, "max_tokens": self.max_tokens}
        for name, n in [*single.items(), *(("work_limit", n) for n in self.work_limit.values())]:
            if not _positive(n):
                raise ContractError(f"Capabilities.{name}: got {n!r}, expected a positive integer")
        if not isinstance(self.conventions, Conventions):
            raise ContractError(
                f"Capabilities.conventions: got {self.conventions!r}, expected Conventions(...)"
            )
        if both := self.supports & self.declines:
            raise ContractError(
                f"Capabilities: {', '.join(sorted(both))} is both supported and declined; "
                f"expected each feature in one of the two sets at most"
            )

    @property
    def undeclared(self) -> frozenset[str]:
        """Features in neither set."""
        return frozenset(FEATURES) - self.supports - self.declines


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
    if "attend" in capabilities.supports and not callable(getattr(adapter, "attend", None)):
        raise wrong("attend", repr(getattr(adapter, "attend", None)), "a method attend(call)")
    if "attend" not in capabilities.supports and callable(getattr(adapter, "attend", None)):
        raise wrong(
            "capabilities.supports", "no 'attend' beside an attend method", "'attend' in it"
        )
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
