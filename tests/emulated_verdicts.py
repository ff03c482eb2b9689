"""How far emulated kernels are from the oracle, as a share of what the budget allows."""

import math
from collections.abc import Callable
from typing import Any

import torch
from emulated import NOTHING, Kernel, Terms
from emulated_inputs import SCHEDULES, Inputs
from torch import Tensor

from kernelassay.oracle.budget import Z_RMS_ELEMENTS, Z_RMS_LIMIT, Budget, attention_budget
from kernelassay.oracle.numerics import Numerics

Made = Callable[[Inputs], Terms]


def nothing(inputs: Inputs) -> Terms:
    """Scores as they are."""
    return NOTHING


def asked(terms: Terms) -> dict[str, Any]:
    """The same terms as arguments of `attention_budget`."""
    alibi = bias = None
    if terms.slopes is not None:
        assert terms.distance is not None
        alibi = -terms.slopes.double()[:, None, None] * terms.distance
    if terms.bias is not None:
        bias = terms.bias.double()
    parts = [x for x in (alibi, bias) if x is not None]
    return {
        "softcap": terms.softcap,
        "offset": sum(parts[1:], start=parts[0]) if parts else None,
        "alibi": alibi,
        "sink_logits": terms.sink,
    }


def budget_of(
    inputs: Inputs, numerics: Numerics, *, generic: bool, scale: float | None = None,
    terms: Terms = NOTHING,
) -> Budget:  # fmt: skip
    """What *numerics* allow, with the usual scale unless another is given."""
    q, k, v, visible = inputs
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return attention_budget(q, k, v, scale, visible, numerics, generic=generic, **asked(terms))


def attended(
    subject: Kernel, inputs: Inputs, *, scale: float | None = None, terms: Terms = NOTHING
) -> tuple[Tensor, Tensor]:
    """Output and LSE of an emulated kernel."""
    q, k, v, visible = inputs
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return subject.attend(q, k, v, scale, visible, terms)


def judged(
    subject: Kernel, inputs: Inputs, *, generic: bool, scale: float | None = None,
    terms: Terms = NOTHING,
) -> tuple[float, float, float]:  # fmt: skip
    """Worst error / allowed of the output and of the LSE, and z_rms, of an emulated kernel."""
    budget = budget_of(inputs, subject.x, generic=generic, scale=scale, terms=terms)
    return ratios(budget, *attended(subject, inputs, scale=scale, terms=terms))


def ratios(budget: Budget, out: Tensor, lse: Tensor) -> tuple[float, float, float]:
    """Worst error / allowed of output and LSE, and z_rms; empty rows must be exact."""
    empty = budget.lse == -torch.inf
    assert torch.equal(empty, lse == -torch.inf)
    assert out[empty].count_nonzero() == 0
    for allowed in (budget.out_allowed, budget.lse_allowed, budget.rms_scale):
        assert allowed.isfinite().all()
    lse_error = torch.where(empty, 0.0, lse - budget.lse).abs()
    worst = ((out - budget.out).abs() / budget.out_allowed).max()
    return float(worst), float((lse_error / budget.lse_allowed).max()), budget.z_rms(out)


def kept(subject: Kernel, inputs: Inputs, made: Made = nothing) -> float:
    """Asserts that both forms of the budget hold; the generic form's worst ratio."""
    terms = made(inputs)
    answer = attended(subject, inputs, terms=terms)
    generic, rigorous = (
        ratios(budget_of(inputs, subject.x, generic=g, terms=terms), *answer)
        for g in (True, False)
    )
    assert max(generic[:2]) <= 1, generic
    assert max(rigorous[:2]) <= 1, rigorous
    assert inputs[0].numel() >= Z_RMS_ELEMENTS
    assert generic[2] <= Z_RMS_LIMIT, generic
    return generic[0]


def schedules(numerics: Numerics) -> list[dict[str, Any]]:
    """The schedules that make sense: a fused multiply-add needs exp2, a whole row one sum."""
    hows = [s for s in SCHEDULES if s.get("base2", True) or not numerics.fma]
    return [h | {"sink": "first"} for h in hows] if numerics.p_normalised else hows
