"""Labels: what kind of input a case is. Counted in records; a stratum's label must occur."""

import math
from functools import singledispatch
from itertools import pairwise
from typing import Any

from kernelassay.oracle.visibility import visible
from kernelassay.properties.case import AttendCase, Case
from kernelassay.properties.content_terms import bias_content
from kernelassay.properties.domain import Domain, lacking
from kernelassay.properties.inputs import visibility_of
from kernelassay.properties.memory import VIEWS


@singledispatch
def labels(case: Case, domain: Any) -> set[str]:
    """Everything that is true of *case* and worth counting."""
    raise NotImplementedError(f"cases of class {type(case).__name__}")


@labels.register
def _(case: AttendCase, domain: Any) -> set[str]:
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
        "large_products": case.k.startswith("pair:"),
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
        "zero_scale": case.scale == 0,
        **{f"view_{name}": case.view == name for name in VIEWS[1:]},
        "bottom_right": case.causal == "bottom_right",
        "top_left": case.causal == "top_left",
        "prefill": case.causal == "bottom_right" and 1 < case.Tq <= case.Tk,
        "several_rows": case.Tq > 1,
        "several_heads": case.Hkv > 1,
        "one_tile": 0 < case.Tk <= max(min(domain.tiles), domain.min_keys),
        "any_order": case.causal == "none" and case.window == (None, None) and not case.alibi,
        "masked_corner": case.mask is not None and case.causal != "none",
        "masked_window": case.mask is not None and case.window != (None, None),
        "positions_window": case.positions is not None and case.window != (None, None),
        "integer_masses": case.k.startswith("logs:"),
        "by_slicing": case.lengths is None,
        "by_length": case.lengths is not None,
        "unseen_by_length": case.lengths is not None and min(case.lengths) < case.Tk,
        "unseen_by_mask": _hides_keys(case.mask) or _hides_keys(_filled(case, "-inf")),
        "unseen_by_corner": case.causal == "top_left" and case.Tk > case.Tq,
        **{f"far_{axis}": n > 1 for axis, n in zip(_AXES, case.shape[:3], strict=True)},
        "declined": bool(set(lacking(case, domain)) & domain.declines),
        "malformed": True,
        "empty_row": empty == "some",
        "all_rows_empty": empty == "all",
        "sink_of_empty_rows": case.sink_logits is not None and empty != "no",
        **_scoring_facts(case),
        **_facts_of_parts(case),
    }


def _facts_of_parts(case: AttendCase) -> dict[str, bool]:
    """What is true of parts, splits and pages."""
    cut, page, lengths = case.cuts is not None, case.page or 1, case.lengths or (case.Tk,)
    edges = [0, *sorted(min(c, case.Tk) for c in case.cuts or ()), case.Tk]
    return {
        "trees": case.tree != "flat",
        "many_parts": cut and len(case.cuts or ()) > 7,
        "empty_part": cut and any(a == b for a, b in pairwise(edges)),
        "empty_for_some": cut and (case.mask is not None or case.causal != "none"),
        "all_parts_empty": cut and 0 in lengths,
        "maxima_apart": case.k.startswith("peak:"),
        "rows_apart": cut and case.bias is not None,
        "single_empty_part": case.cuts == () and 0 in lengths,
        "equal_maxima": cut and case.k == "zeros",
        "three_parts": cut and len(case.cuts or ()) != 1,
        "single_part": case.cuts == (),
        "cut_keys": case.causal == "none",
        "cascade": case.causal == "bottom_right",
        "cut_ragged": case.lengths is not None,
        "more_splits_than_keys": case.splits is not None and case.splits > case.Tk,
        "page_edges": case.page is not None and case.Tk % page in (0, 1, page - 1),
        "shared_pages": case.view == "expanded" and case.B > 1,
        "reserved_pages": case.lengths is not None,
    }


def _scoring_facts(case: AttendCase) -> dict[str, bool]:
    """What is true of soft cap, ALiBi, bias and sink, and of sizes and positions of their own."""
    bias, cap = case.bias or "", case.softcap
    hides = case.mask is not None or case.lengths is not None or case.causal != "none"
    parts, ring = bias.split(";"), (case.positions or "").startswith("ring:")
    fills = [float(x.split(":")[1]) for x in parts if x.startswith("fill:")]
    level = case.sink_logits is not None and case.sink_logits.startswith("level:")
    return {
        "no_queries": case.Tq == 0,
        "value_size": case.value_size != case.D,
        "wide_heads": case.D >= 256,
        "equal_values": case.v.startswith("level:"),
        "ring": ring,
        "ring_windows": ring and case.window != (None, None),
        "softcap": cap is not None,
        "softcap_far": cap is not None and cap >= 30,
        "softcap_and_mask": cap is not None and hides,
        "softcap_and_bias": cap is not None and bias != "",
        "alibi": case.alibi is not None,
        "alibi_ragged": case.alibi is not None and case.lengths is not None,
        "alibi_positions": case.alibi is not None and case.positions is not None,
        "bias": bias != "",
        "row_bias": bias != "" and not fills and not any("k" in x.split(":")[-1] for x in parts),
        "bias_minus_infinity": -math.inf in fills,
        "bias_and_minus_infinity": -math.inf in fills and len(parts) > len(fills),
        "bias_hides_rows": bias.startswith("fill:-inf:rows:"),
        "bias_far_below": any(-math.inf < x <= -60000 for x in fills),
        "bias_far_above": any(x >= 200 for x in fills),
        "sink_logits": case.sink_logits is not None,
        "no_sink": case.sink_logits == "level:-inf",
        "sink_far": level and abs(float(str(case.sink_logits).split(":")[1])) >= 100,
        "scoring": {cap, case.alibi, case.bias, case.sink_logits} != {None},
    }


def _filled(case: AttendCase, fill: str) -> str | None:
    """The mask recipe of a bias that is nothing but *fill* where that mask drops."""
    start = f"fill:{fill}:"
    return case.bias[len(start) :] if case.bias and case.bias.startswith(start) else None


def _hides_keys(mask: str | None) -> bool:
    """Whether a mask recipe hides the same keys from every query."""
    return mask is not None and mask.split(":")[-1][:1] in "0123456789k"


_AXES = ("requests", "heads", "tokens")


def _most_keys(case: AttendCase, domain: Domain) -> int:
    if domain.has("unequal_lengths"):
        return domain.most_keys(case.B, case.Hq, case.Tq)
    return domain.most_square(case.B, case.Hq)


def _empty_rows(case: AttendCase) -> str:
    """Whether "some", "all" or "no" query rows see no key."""
    if case.Tq == 0:
        return "no"
    seen = visible(visibility_of(case), case.shape, device="cpu").expand(case.shape)
    if case.bias is not None and "-inf" in case.bias:
        seen = seen & (bias_content(case.bias, case, "fp32") > -math.inf)
    sees = seen.any(-1)
    return "no" if bool(sees.all()) else "some" if bool(sees.any()) else "all"


_ANY = Domain(
    supports=frozenset(), declines=frozenset(), head_sizes=(64,), few_head_sizes=(64,),
    tiles=(64,), min_keys=1, max_tokens=1, cells=1, steps=None, dtype="fp32", out="fp32",
)  # fmt: skip
LABELS = set(_facts(AttendCase(), _ANY))
"""All labels that regions may name; every class of cases adds its own."""
