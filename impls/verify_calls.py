"""What a verification is asked for: malformed calls raise ValueError, unsupported `Unsupported`.

Shared by the bundled kernels' launchers. Laws and oracles do not use it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernelassay.impls.contract import Capabilities, Unsupported
from kernelassay.impls.verification import Sampling, VerifyCall
from kernelassay.oracle.formats import name_of

__all__ = ["check_verify", "drafting_used", "refuse_verify"]

NOISE = ("accept", "draw", "race", "bonus", "seeds", "generators")
TINY = 2.0**-149  # the least positive fp32 number
Packing = Literal["flat", "padded"]
Shape = tuple[int, ...]


def check_verify(call: VerifyCall, capabilities: Capabilities) -> None:
    """A `ValueError` that names the argument, unless *call* is well formed for these capabilities.

    Tokens, uniforms and budgets are looked at where they are in use. So are laws where
    `Sampling.bad_laws` is "refused": rows of p that a request may emit from, and rows of q that
    the draft of a sampled request was drawn from. Nothing is emitted after a first draft of -1 or
    stop token; that a draft of -1 was drawn from q is what `Sampling.skipped` "rejected" says.
    """
    sampling, packing = capabilities.sampling, capabilities.packing
    assert sampling is not None
    _check_offsets(call)
    shapes = _shapes(call, sampling, packing)
    tokens = getattr(torch, sampling.tokens)
    dtypes = {"drafts": tokens, "bonus": tokens, "stop": tokens, "seeds": torch.int64}
    dtypes |= {"p": call.p.dtype, "q": call.p.dtype, "greedy": torch.bool, "budget": torch.int32}
    _check_noise(call, sampling)
    for name, shape in shapes.items():
        x: Tensor | None = getattr(call, name)
        if x is not None:
            got, dtype = tuple(x.shape), dtypes.get(name, torch.float32)
            _expect(got == shape, name, f"shape {got}", str(shape))
            _expect(x.dtype == dtype, name, str(x.dtype), str(dtype))
            _expect(x.device == call.p.device, name, str(x.device), f"{call.p.device}, as p")
    looked_at = [*_values(call, packing)]
    if sampling.bad_laws == "refused":
        looked_at += _laws(call, sampling, packing)
    # One question to the device, not one for each argument.
    if looked_at and bool(torch.stack([found.bad.any() for found in looked_at]).any()):
        for found in looked_at:
            found.refuse()


def _check_offsets(call: VerifyCall) -> None:
    """Offsets count up from 0; K is the most drafts of a request."""
    offsets, most = call.offsets, call.most
    got = f"{offsets.dtype} {tuple(offsets.shape)}"
    good = offsets.ndim == 1 and len(offsets) > 0 and offsets.dtype == torch.int32
    _expect(good, "offsets", got, "torch.int32 (R + 1,)")
    same = offsets.device == call.p.device
    _expect(same, "offsets", str(offsets.device), f"{call.p.device}, as p")
    if not call.requests:
        first, least, k = int(offsets[0]), 0, 0
    else:
        counts = call.counts
        first, least, k = torch.stack([offsets[0], counts.min(), counts.max()]).tolist()
    if first or least < 0:
        _expect(False, "offsets", str(offsets.tolist()), "0, then none below the one before it")
    _expect(type(most) is int and most == k, "most", repr(most), f"{k}, the most drafts")


def _shapes(call: VerifyCall, sampling: Sampling, packing: Packing) -> Mapping[str, Shape]:
    """The shape of every tensor but the offsets; p says V."""
    R, N, K, p = call.requests, int(call.offsets[-1]), call.most, call.p
    drafts: Shape = (N,) if packing == "flat" else (R, K)
    rows: Shape = (N + R,) if packing == "flat" else (R, K + 1)
    if sampling.bonus == "given":
        rows = drafts
    axes = len(rows) + 1
    _expect(p.ndim == axes, "p", f"{p.ndim} axes", f"{axes}: {packing} rows of V weights")
    _expect(p.dtype.is_floating_point, "p", str(p.dtype), "floating point")
    V = p.shape[-1]
    _expect(V > 0, "p", "V = 0", "V of 1 or more")
    if (stop := call.stop) is not None:
        _expect(stop.ndim == 2, "stop", f"{stop.ndim} axes", "2: [R, S]")
    return {
        "p": (*rows, V),
        "q": (*drafts, V),
        "drafts": drafts,
        "accept": drafts,
        "draw": (R,) if sampling.shared_draw else rows,
        "race": (R, V),
        "bonus": (R,),
        "seeds": (R,),
        "greedy": (R,),
        "stop": (R, 0 if stop is None else stop.shape[1]),
        "budget": (R,),
    }


def _check_noise(call: VerifyCall, sampling: Sampling) -> None:
    """All the noise that is declared is there, and no other."""
    made_with = "draw" if sampling.draw == "inverse_cdf" else "race"
    brought = {"injected": {"accept", made_with}, "captured": {"accept"}}
    brought |= {"seeded": {"seeds"}, "generators": {"generators"}}
    wanted = brought.get(sampling.noise, set())
    if sampling.bonus == "given":
        wanted.add("bonus")
    for name in NOISE:
        came = getattr(call, name) is not None
        declared = f"noise is {sampling.noise}, the bonus {sampling.bonus}"
        kind = "a tuple" if name == "generators" else "a tensor"
        expected = f"{kind if name in wanted else 'None'}: {declared}"
        _expect(came == (name in wanted), name, kind if came else "None", expected)
    if (some := call.generators) is not None:
        places = {g.device.type for g in some} or {call.p.device.type}
        got = f"{len(some)} on {', '.join(sorted(places))}"
        good = len(some) == call.requests and places == {call.p.device.type}
        _expect(good, "generators", got, f"{call.requests} on {call.p.device.type}, as p")


def _owners(call: VerifyCall, packing: Packing, rows: int) -> tuple[Tensor, Tensor]:
    """Of each draft (*rows* = 0) or row (*rows* = 1), its request and its place there."""
    R, device = call.requests, call.offsets.device
    requests = torch.arange(R, device=device)
    if packing == "padded":
        r, i = torch.meshgrid(
            requests, torch.arange(call.most + rows, device=device), indexing="ij"
        )
        return r, i
    # The size is known: else the device would be asked for it.
    size = call.drafts.shape[0] + rows * R
    r = torch.repeat_interleave(requests, call.counts.long() + rows, output_size=size)
    first = call.offsets[:-1] + rows * requests
    return r, torch.arange(len(r), device=device) - first[r]


@dataclass(frozen=True, eq=False)
class Found:
    """Where an argument is *bad*, what it holds there, and what is expected."""

    name: str
    bad: Tensor
    got: Callable[[tuple[int, ...]], str]
    expected: str

    def refuse(self) -> None:
        """A `ValueError` for the first bad place, if there is one."""
        if bool(self.bad.any()):
            at = self.bad.nonzero()[0].tolist()
            _expect(False, self.name, f"{self.got(tuple(at))} at {at}", self.expected)


def _values(call: VerifyCall, packing: Packing) -> Iterator[Found]:
    """Tokens are of the vocabulary, uniforms in [0, 1), budgets at least 0."""
    V = call.p.shape[-1]
    ranges: tuple[tuple[str, float, float, str], ...] = (
        ("drafts", -1, V, f"-1 to {V - 1}"),
        ("bonus", 0, V, f"0 to {V - 1}"),
        ("accept", 0.0, 1.0, "0 <= u < 1"),
        ("draw", 0.0, 1.0, "0 <= u < 1"),
        ("race", TINY, math.inf, "a finite number above 0"),
        ("budget", 0, math.inf, "0 or more"),
    )
    for name, low, end, expected in ranges:
        x: Tensor | None = getattr(call, name)
        if x is None:
            continue
        bad = ~((x >= low) & (x < end))
        if packing == "padded" and name in ("drafts", "accept", "draw") and x.ndim == 2:
            r, i = _owners(call, packing, x.shape[1] - call.most)
            bad &= i < call.counts[r] + x.shape[1] - call.most

        def got(at: tuple[int, ...], x: Tensor = x) -> str:
            return str(x[at].item())

        yield Found(name, bad, got, expected)


def _last_places(call: VerifyCall, packing: Packing) -> Tensor:
    """The last place [R] that each request may emit at.

    It is that of the first draft of -1 or stop token, and the one after all drafts without such.
    """
    r, i = _owners(call, packing, 0)
    ends = call.drafts == -1
    if call.stop is not None:
        ends = ends | (call.drafts[..., None] == call.stop[r]).any(-1)
    places = torch.where(ends, i, call.counts[r])
    return call.counts.long().scatter_reduce(0, r.flatten(), places.flatten(), "amin")


def _laws(call: VerifyCall, sampling: Sampling, packing: Packing) -> Iterator[Found]:
    """Rows in use are finite, nowhere negative, somewhere positive."""
    bonus = int(sampling.bonus == "drawn")
    last = _last_places(call, packing)
    for name, law, rows in (("p", call.p, bonus), ("q", call.q, 0)):
        if law is None:
            continue
        r, i = _owners(call, packing, rows)
        used = (i < call.counts[r] + rows) & (i <= last[r])
        if call.budget is not None:
            used &= i < call.budget[r]
        if name == "q":
            if sampling.skipped == "never_made":
                used &= call.drafts >= 0
            if call.greedy is not None:
                used &= ~call.greedy[r]
        least, most = law.amin(-1), law.amax(-1)
        bad = used & ~((least >= 0) & (most > 0) & (most < math.inf))

        def got(at: tuple[int, ...], least: Tensor = least, most: Tensor = most) -> str:
            return f"weights from {least[at].item()} to {most[at].item()}"

        yield Found(name, bad, got, "finite ones, none negative, not all 0")


def _expect(good: bool, name: str, got: str, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}: got {got}, expected {expected}")


def drafting_used(call: VerifyCall, packing: Packing) -> frozenset[str]:
    """The features of the contract that *call* needs."""
    k, some = call.counts, call.most > 0
    r, i = _owners(call, packing, 0)
    skipped = (call.drafts == -1) & (i < k[r])
    greedy = torch.zeros_like(k) if call.greedy is None else call.greedy
    asked = torch.stack([x.any() for x in (k != call.most, skipped, greedy)])
    is_ragged, is_skipped, is_greedy = asked.tolist()
    used = {
        "verify": True,
        "requests": call.requests > 1,
        "drafts.many": call.most > 1,
        "drafts.ragged": is_ragged,
        "drafts.none": not some,
        "drafts.skipped": is_skipped,
        "draft_law": some and call.q is not None,
        "draft_certain": some and call.q is None,
        "greedy": is_greedy,
        "stop": call.stop is not None,
        "budget": call.budget is not None,
    }
    return frozenset(name for name, needed in used.items() if needed)


def refuse_verify(name: str, capabilities: Capabilities, call: VerifyCall) -> None:
    """An `Unsupported` if *call* needs a dtype or a feature that *capabilities* do not list."""
    dtype = name_of(call.p.dtype)
    if dtype not in capabilities.dtypes:
        raise Unsupported(f"{name}: dtype {dtype}; it takes {', '.join(capabilities.dtypes)}")
    if missing := drafting_used(call, capabilities.packing) - capabilities.supports:
        raise Unsupported(f"{name}: the call needs {', '.join(sorted(missing))}")
