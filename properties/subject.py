"""A kernel under test: runs a call, checks the form of what comes back, watches memory."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from kernelassay.impls.contract import (
    AttendCall,
    Capabilities,
    Conventions,
    MergeCall,
    Numerics,
    Unsupported,
    numerics_for,
)
from kernelassay.impls.interpreter import launching, mend
from kernelassay.oracle.formats import format_of, name_of
from kernelassay.oracle.merging import fold
from kernelassay.properties.answers import Answer, Attended, as_result, innermost, sticky
from kernelassay.properties.case import AttendCase, Case
from kernelassay.properties.failures import (
    DeviceLost,
    Failure,
    Raised,
    Refused,
    WrongDtype,
    WrongShape,
)
from kernelassay.properties.inputs import Inputs, Logical, inputs, layout_of, logical
from kernelassay.properties.memory import Watch, guarded_empty
from kernelassay.properties.pages import paged_inputs
from kernelassay.properties.parts import finished, merge_inputs, parts_of_call, stacked

A = TypeVar("A", bound=Answer)
SHAPES_PARTS = frozenset(
    {
        "lse", "causal.bottom_right", "causal.top_left", "unequal_lengths", "more_queries",
        "no_keys", "lengths", "mask", "scale", "sink_logits", "bias",
    }
)  # fmt: skip
"""What may decide which keys a part has and what it holds: nothing that a merge would notice."""

SMALL = 1 << 22
"""Work up to which a case is judged on the CPU; see `work_of`."""


def work_of(case: AttendCase) -> int:
    """About how many products the oracle forms: query-key pairs times channels."""
    return case.B * case.Hq * case.Tq * case.Tk * (case.D + case.value_size)


@dataclass(eq=False)
class Subject:
    """One kernel with one dtype on one device.

    *device* is the declared one ("cpu", "cuda", "interpreter"); the kernel's tensors live at
    *home*, content, oracle and answers at *place*.
    """

    kernel: Any
    dtype: str
    device: str
    numerics: Numerics = field(init=False)
    declared: bool = field(init=False)
    backends: set[str] = field(default_factory=set)
    watched: set[str] = field(default_factory=set)
    launches: int = 0
    unwatchable: bool = False
    worst: float = 0.0
    worst_case: Case | None = None
    z_rms: float = 0.0
    current: Case | None = None

    def __post_init__(self) -> None:
        numerics, self.declared = numerics_for(self.kernel, self.dtype)
        self.numerics = replace(numerics, states=self.capabilities.state == "mlu")
        if self.device == "interpreter":
            mend()  # third-party kernels are interpreted as a GPU would run them, too

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.name)

    @property
    def capabilities(self) -> Capabilities:
        """What its author says that it can do."""
        found: Capabilities = self.kernel.capabilities
        return found

    @property
    def merges(self) -> bool:
        """Whether the kernel merges partial results."""
        return "merge" in self.capabilities.operations

    @property
    def supports(self) -> frozenset[str]:
        """The features that calls may use. A merge sees parts alone, whatever made them."""
        supports = self.capabilities.supports
        return supports | SHAPES_PARTS if self.merges else supports

    @property
    def conventions(self) -> Conventions:
        """The conventions that its author declared."""
        return self.capabilities.conventions

    @property
    def home(self) -> str:
        """The torch device of the kernel's tensors."""
        return "cuda" if self.device == "cuda" else "cpu"

    @property
    def place(self) -> str:
        """The torch device of content and oracle: the kernel's own, the CPU for a small case.

        Oracle and budget are some two hundred operations. On a device that several workers share
        their launches take longer than the arithmetic of a small case.
        """
        small = isinstance(self.current, AttendCase) and work_of(self.current) <= SMALL
        return "cpu" if small else self.home

    def has(self, *features: str) -> bool:
        """Whether all these features are supported."""
        return all(f in self.supports for f in features)

    def observe(self, ratio: float, case: Case | None = None) -> None:
        """Note an error / allowed error; the worst is kept for the record."""
        if ratio > self.worst or math.isnan(ratio):
            self.worst, self.worst_case = ratio, case or self.current

    def prepare(self, case: AttendCase) -> Inputs:
        """The call of *case*, freshly laid out."""
        return self.lay_out(logical(case, self.dtype, self.place), case.view)

    def lay_out(self, tensors: Logical, view: str = "contiguous") -> Inputs:
        """A call of these logical tensors in the kernel's layout."""
        c = self.capabilities
        if self.merges:
            return merge_inputs(tensors, c, self.numerics, self.home)
        if c.pages:
            return paged_inputs(tensors, c, view=view, device=self.home)
        return inputs(
            tensors,
            layout=layout_of(tensors.q, c.layouts),
            view=view,
            device=self.home,
            mask_polarity=c.conventions.mask_polarity,
        )

    def attend(self, source: AttendCase | Logical | Inputs) -> Attended:
        """The kernel's answer; a refusal, an exception or a malformed answer is a failure."""
        given = self._given(source)
        try:
            answer = self._answered(given)
        except Unsupported as why:
            raise Refused(
                f"{self.name} refused a call that it declares to support: {why}. "
                f"Answer it, or take the feature out of capabilities.supports"
            ) from why
        answer = replace(
            answer,
            out=answer.out.to(self.place),
            lse=None if answer.lse is None else answer.lse.to(self.place),
        )
        # An LSE that is not declared is nobody's promise: no law looks at it.
        return answer if self.has("lse") else replace(answer, lse=None)

    def _answered(self, given: Inputs) -> Attended:
        """The answer, of the form that was declared; parts are merged along their tree."""
        call, tree = given.call, given.tree
        if isinstance(call, AttendCall) or not isinstance(tree, tuple):
            return self._formed(call)
        parts = parts_of_call(call)
        if tree == tuple(range(len(parts))):  # all at once, from where they were placed
            return self._formed(call)

        def node(*some: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return self._formed(stacked(some, given.layout)).state

        below = [fold(part, parts, node) for part in tree]
        return self._formed(stacked(below, given.layout))

    def _formed(self, call: AttendCall | MergeCall) -> Attended:
        answer = self.answer(call)
        self._check_form(call, answer)
        return answer

    def answer(self, call: AttendCall | MergeCall) -> Attended:
        """The kernel's answer as it came; `Unsupported` passes through."""
        into = getattr(self.kernel, "attend_into", None)
        if into and isinstance(call, AttendCall):
            return self.guarded(call.q, lambda: self._destination(into, call))
        first = call.q if isinstance(call, AttendCall) else call.outs
        return self.guarded(first, lambda: self.watching(lambda: self._run(call), self._result))

    def guarded(self, first: Tensor, run: Callable[[], A]) -> A:
        """The answer that *run*, a call with tensors such as *first*, returns.

        An exception is a failure, of the device or the kernel; `Unsupported` passes through.
        """
        self.launches += 1
        quiet = launching(first) if self.device == "interpreter" else nullcontext()
        try:
            with quiet:
                answer = run()
            if self.home == "cuda":
                torch.cuda.synchronize()
        except (Unsupported, Failure):
            raise
        except Exception as error:
            if sticky(error):
                raise DeviceLost(f"{type(error).__name__}: {error}") from error
            raise Raised(
                f"{self.name} raised {type(error).__name__}: {error}".split("\n")[0],
                where=innermost(error),
            ) from error
        if answer.backend:
            self.backends.add(answer.backend)
        self.watched.add(answer.watched)
        return answer

    def watching(self, run: Callable[[], Any], made: Callable[[Any, str, Watch | None], A]) -> A:
        """What *made* makes of what *run* returns, its allocations watched if that can be."""
        if self.capabilities.compiled or self.unwatchable:
            return made(run(), "opaque", None)
        try:
            with Watch() as watch:
                came = run()
        except Unsupported:
            raise
        except Exception as error:
            # What cannot run under a dispatch mode is no fault; what raises without one is.
            return self._unwatched(run, made, error)
        answer = made(came, "allocations", watch)
        return answer if watch.owns(answer.first) else replace(answer, watched="opaque")

    def _unwatched(
        self,
        run: Callable[[], Any],
        made: Callable[[Any, str, Watch | None], A],
        error: Exception,
    ) -> A:
        """Once more without the watch, under which *error* was raised.

        What the watch is to blame for is raised under it again; anything else is the kernel's.
        """
        try:
            answer = made(run(), "opaque", None)
        except Exception as again:
            if "dispatch mode" not in str(error):
                raise
            raise Raised(
                f"{self.name} cannot run under the mode that watches its allocations. If it goes "
                f"through torch.compile, declare Capabilities(compiled=True)",
                where=innermost(error),
            ) from again
        try:
            with Watch():
                run()
        except Exception:
            self.unwatchable = True
            return answer
        raise error

    def _given(self, source: AttendCase | Logical | Inputs) -> Inputs:
        if isinstance(source, AttendCase):
            return self.prepare(source)
        return self.lay_out(source) if isinstance(source, Logical) else source

    def _run(self, call: AttendCall | MergeCall) -> Any:
        return (
            self.kernel.attend(call) if isinstance(call, AttendCall) else self.kernel.merge(call)
        )

    def _result(self, came: Any, watched: str, watch: Watch | None) -> Attended:
        if self.capabilities.state == "mlu" and self.merges:
            if not (isinstance(came, tuple) and len(came) == 3):
                raise WrongShape(
                    f"{self.name}.merge returned {type(came).__name__}; expected a tuple (u, m, l)"
                )
            out, lse = finished(came, format_of(self.numerics.out).dtype)
            return Attended(out=out, lse=lse, watched=watched, watch=watch, raw=came)
        result = as_result(f"{self.name}.{'merge' if self.merges else 'attend'}", came)
        return Attended(
            out=result.out,
            lse=result.lse,
            backend=result.backend,
            watched=watched,
            watch=watch,
        )

    def _destination(self, into: Callable[..., Any], call: AttendCall) -> Attended:
        B, H, Tq, _ = call.q.shape
        shape = (B, H, Tq, call.v.shape[-1])
        strides = (H * Tq * shape[3], Tq * shape[3], shape[3], 1)
        numerics = self.numerics
        out, storage = guarded_empty(shape, strides, format_of(numerics.out).dtype, call.q.device)
        lse, lse_storage = guarded_empty(
            shape[:3], (H * Tq, Tq, 1), format_of(numerics.lse).dtype, call.q.device
        )
        wants = self.has("lse")
        came = into(call, out, lse if wants else None)
        backend = getattr(came, "backend", None)
        guarded = (storage, lse_storage) if wants else (storage,)
        return Attended(
            out=out,
            lse=lse if wants else None,
            backend=backend,
            watched="destination",
            guarded=guarded,
        )

    def _check_form(self, call: AttendCall | MergeCall, answer: Attended) -> None:
        if isinstance(call, AttendCall):
            given, shape = call.q, (*call.q.shape[:3], call.v.shape[-1])
        else:
            given, shape = call.outs, tuple(call.outs.shape[1:])
        B, H, Tq, _ = shape
        expected: dict[str, tuple[tuple[int, ...], str]] = {"out": (shape, self.numerics.out)}
        if self.has("lse"):
            if answer.lse is None:
                raise WrongShape(f"{self.name} returned no LSE; it declares that it supports lse")
            expected["lse"] = ((B, H, Tq), self.numerics.lse)
        for name, (shape, dtype) in expected.items():
            came: Tensor = getattr(answer, name)
            if tuple(came.shape) != shape:
                raise WrongShape(f"{name}: got shape {tuple(came.shape)}, expected {shape}")
            if came.dtype != format_of(dtype).dtype:
                raise WrongDtype(
                    f"{name}: got dtype {name_of(came.dtype)}, expected {dtype} "
                    f"(Numerics.{name} says so)"
                )
            if came.device.type != given.device.type:
                raise WrongDtype(f"{name}: got device {came.device}, expected {given.device}")
