"""What a verification is asked for: malformed calls raise ValueError, unsupported `Unsupported`.

Shared by the bundled kernels' launchers. Laws and oracles do not use it.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from kernelassay.impls.contract import Capabilities, Unsupported
from kernelassay.impls.verification import Sampling, VerifyCall
from kernelassay.oracle.formats import name_of

__all__ = ["check_verify", "drafting_used", "refuse_verify"]

NOISE = ("accept", "draw", "race", "bonus", "seeds")
TINY = 2.0**-149  # the least positive fp32 number
Packing = Literal["flat", "padded"]
Shape = tuple[int, ...]


def check_verify(call: VerifyCall, capabilities: Capabilities) -> None:
    """A `ValueError` that names the argument, unless *call* is well formed for these capabilities.

    Tokens, uniforms and budgets are looked at where they are in use. So are laws where
    `Sampling.bad_laws` is "refused": rows of p that a request may emit from, and rows of q of
    sampled requests that have a draft there.
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
    _check_values(call, packing)
    if sampling.bad_laws == "refused":
        _check_laws(call, sampling, packing)


def _check_offsets(call: VerifyCall) -> None:
    """Offsets count up from 0; K is the most drafts of a request."""
    offsets, most = call.offsets, call.most
    got = f"{offsets.dtype} {tuple(offsets.shape)}"
    good = offsets.ndim == 1 and len(offsets) > 0 and offsets.dtype == torch.int32
    _expect(good, "offsets", got, "torch.int32 (R + 1,)")
    same = offsets.device == call.p.device
    _expect(same, "offsets", str(offsets.device), f"{call.p.device}, as p")
    good = int(offsets[0]) == 0 and bool((call.counts >= 0).all())
    _expect(good, "offsets", str(offsets.tolist()), "0, then none below the one before it")
    k = int(call.counts.max()) if call.requests else 0
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
    brought = {"injected": {"accept", made_with}, "captured": {"accept"}, "seeded": {"seeds"}}
    wanted = brought.get(sampling.noise, set())
    if sampling.bonus == "given":
        wanted.add("bonus")
    for name in NOISE:
        came = getattr(call, name) is not None
        declared = f"noise is {sampling.noise}, the bonus {sampling.bonus}"
        expected = f"{'a tensor' if name in wanted else 'None'}: {declared}"
        _expect(came == (name in wanted), name, "a tensor" if came else "None", expected)


def _owners(call: VerifyCall, packing: Packing, rows: int) -> tuple[Tensor, Tensor]:
    """Of each draft (*rows* = 0) or row (*rows* = 1), its request and its place there."""
    R, device = call.requests, call.offsets.device
    requests = torch.arange(R, device=device)
    if packing == "padded":
        r, i = torch.meshgrid(
            requests, torch.arange(call.most + rows, device=device), indexing="ij"
        )
        return r, i
    r = torch.repeat_interleave(requests, call.counts.long() + rows)
    first = call.offsets[:-1] + rows * requests
    return r, torch.arange(len(r), device=device) - first[r]


def _check_values(call: VerifyCall, packing: Packing) -> None:
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
        if bool(bad.any()):
            at = bad.nonzero()[0].tolist()
            _expect(False, name, f"{x[tuple(at)].item()} at {at}", expected)


def _check_laws(call: VerifyCall, sampling: Sampling, packing: Packing) -> None:
    """Rows in use are finite, nowhere negative, somewhere positive."""
    bonus = int(sampling.bonus == "drawn")
    for name, law, rows in (("p", call.p, bonus), ("q", call.q, 0)):
        if law is None:
            continue
        r, i = _owners(call, packing, rows)
        used = i < call.counts[r] + rows
        if call.budget is not None:
            used &= i < call.budget[r]
        if name == "q":
            used &= call.drafts >= 0
            if call.greedy is not None:
                used &= ~call.greedy[r]
        least, most = law.amin(-1), law.amax(-1)
        bad = used & ~((least >= 0) & (most > 0) & (most < math.inf))
        if bool(bad.any()):
            at = bad.nonzero()[0].tolist()
            got = f"weights from {least[tuple(at)].item()} to {most[tuple(at)].item()} at {at}"
            _expect(False, name, got, "finite ones, none negative, not all 0")


def _expect(good: bool, name: str, got: str, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}: got {got}, expected {expected}")


def drafting_used(call: VerifyCall, packing: Packing) -> frozenset[str]:
    """The features of the contract that *call* needs."""
    k, some = call.counts, call.most > 0
    r, i = _owners(call, packing, 0)
    skipped = (call.drafts == -1) & (i < k[r])
    used = {
        "verify": True,
        "requests": call.requests > 1,
        "drafts.many": call.most > 1,
        "drafts.ragged": bool((k != call.most).any()),
        "drafts.none": not some,
        "drafts.skipped": bool(skipped.any()),
        "draft_law": some and call.q is not None,
        "draft_certain": some and call.q is None,
        "greedy": call.greedy is not None and bool(call.greedy.any()),
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
