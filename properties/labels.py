"""Labels: what kind of input a case is. Counted in records; a stratum's label must occur."""

from kernelassay.oracle.visibility import visible
from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import Domain, lacking
from kernelassay.properties.inputs import visibility_of
from kernelassay.properties.memory import VIEWS


def labels(case: AttendCase, domain: Domain) -> set[str]:
    """Everything that is true of *case* and worth counting."""
    true = {name for name, holds in _facts(case, domain).items() if holds}
    return {f"causal={case.causal}"} | true


def _facts(case: AttendCase, domain: Domain) -> dict[str, bool]:
    tail = [t for t in domain.tiles if case.Tk % t and case.Tk > t]
    offset = float(case.k.split(":")[2]) if case.k.startswith("around:") else 0.0
    slope = float(case.k.split(":")[2]) if case.k.startswith("ramp:") else 0.0
    empty = _empty_rows(case)
    return {
        "plain": True,
        "random_content": case.generic,
        "partial_tile": bool(tail) or case.Tk % min(domain.tiles) != 0,
        "padded_head": bool(case.D & (case.D - 1)) or max(domain.head_sizes) == case.D,
        "decode": case.Tq <= 3 <= case.Tk or case.Tq < case.Tk,
        "more_queries": case.Tk < case.Tq,
        "no_keys": case.Tk == 0,
        "whole_tiles": case.Tk > 0 and any(case.Tk % t == 0 for t in domain.tiles),
        "long_context": case.Tk >= min(512, _most_keys(case, domain)),
        "long_sums": case.v.startswith("around:") and float(case.v.split(":")[2]) >= 40,
        "grouped": 1 < case.Hkv < case.Hq,
        "ragged": case.lengths is not None and len(set(case.lengths)) > 1,
        "ragged_corner": case.lengths is not None and case.causal == "bottom_right",
        "empty_member": case.lengths is not None and 0 in case.lengths,
        "boolean_mask": case.mask is not None,
        "full_mask": case.mask is not None and case.mask.endswith(":bhqk"),
        "first_tile_masked": case.mask is not None and case.mask.startswith("suffix:"),
        "masked_rows": case.mask is not None and case.mask.startswith("rows:"),
        "scores_far_above": offset > 90,
        "scores_far_below": offset < -90,
        "scores_rising": slope > 0,
        "scores_falling": slope < 0,
        "scores_leap": case.k.startswith("peak:"),
        "spike_rows": case.k.startswith("spike:"),
        "needles": case.q.startswith("seek:"),
        "one_hot_softmax": case.q.startswith("random:") and case.q.count(":") == 2,
        "counting": case.q == "zeros",
        "dyadic": case.k.startswith("integers:"),
        "windows": case.window != (None, None),
        "causal_windows": case.window[0] is not None and case.causal != "none",
        "wide_windows": (case.window[1] or 0) >= case.Tq > case.Tk,
        "sink_tokens": case.sinks > 0,
        "positions": case.positions is not None,
        "unequal_lengths": case.Tq != case.Tk,
        "several_requests": case.B > 1,
        "single_elements": ";" in case.q + case.k + case.v,
        "scale": case.scale is not None,
        "nonpositive_scale": case.scale is not None and case.scale <= 0,
        **{f"view_{name}": case.view == name for name in VIEWS[1:]},
        "bottom_right": case.causal == "bottom_right",
        "top_left": case.causal == "top_left",
        "prefill": case.causal == "bottom_right" and 1 < case.Tq <= case.Tk,
        "several_rows": case.Tq > 1,
        "unseen_by_length": case.lengths is not None and min(case.lengths) < case.Tk,
        "unseen_by_mask": case.mask is not None and case.mask.split(":")[-1][:1] in "0123456789k",
        "unseen_by_corner": case.causal == "top_left" and case.Tk > case.Tq,
        "declined": bool(set(lacking(case, domain)) & domain.declines),
        "malformed": True,
        "empty_row": empty == "some",
        "all_rows_empty": empty == "all",
    }


def _most_keys(case: AttendCase, domain: Domain) -> int:
    if domain.has("unequal_lengths"):
        return domain.most_keys(case.B, case.Hq, case.Tq)
    return domain.most_square(case.B, case.Hq)


def _empty_rows(case: AttendCase) -> str:
    """Whether "some", "all" or "no" query rows see no key."""
    if case.Tq == 0:
        return "no"
    sees = visible(visibility_of(case), case.shape, device="cpu").expand(case.shape).any(-1)
    return "no" if bool(sees.all()) else "some" if bool(sees.any()) else "all"


_ANY = Domain(
    supports=frozenset(), declines=frozenset(), head_sizes=(64,), tiles=(64,), min_keys=1,
    max_tokens=1, cells=1, steps=None, dtype="fp32", out="fp32",
)  # fmt: skip
LABELS = frozenset(_facts(AttendCase(), _ANY))
"""All labels that regions may name."""
