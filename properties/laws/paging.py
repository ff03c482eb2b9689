"""Laws of pages: where keys and values lie, and what lies beside them, does not matter."""

from dataclasses import replace

from kernelassay.properties import strata as s
from kernelassay.properties.case import AttendCase
from kernelassay.properties.inputs import Logical, Plan, logical
from kernelassay.properties.judge import budget_for, judge
from kernelassay.properties.laws.comparing import kept
from kernelassay.properties.laws.equality import agree
from kernelassay.properties.property import law
from kernelassay.properties.subject import Subject


def _same(subject: Subject, case: AttendCase, what: str, first: Plan, second: Plan) -> None:
    """Two plans for the same keys give the same answer."""
    tensors = logical(case, subject.dtype, subject.place)

    def under(plan: Plan) -> Logical:
        return replace(tensors, plan=plan)

    a, b = (kept(subject.attend(under(plan))) for plan in (first, second))
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    agree(subject, what, a, b, budget)


def _plan(case: AttendCase, pages: str) -> Plan:
    return Plan(page=case.page, pages=pages, splits=case.splits)


@law(
    "paged.page_order",
    "Pages lie anywhere: their order in the pool changes nothing.",
    operation="pages",
    strata={
        "random_content": s.random_content,
        "page_edges": s.page_edges,
        "ragged": s.ragged,
    },
)
def page_order(subject: Subject, case: AttendCase) -> None:
    seed = case.at + 1
    what = "the pages lay in another order"
    _same(subject, case, what, _plan(case, "ordered"), _plan(case, f"shuffled:{seed}"))


@law(
    "paged.shared_pages",
    "Requests may share pages.",
    operation="pages",
    strata={"shared_pages": s.shared_pages},
    weight=0.5,
)
def shared_pages(subject: Subject, case: AttendCase) -> None:
    what = "equal pages of several requests were kept once"
    _same(subject, case, what, _plan(case, "shuffled:1"), _plan(case, "shared:1"))


@law(
    "paged.stale_slots",
    "What unused slots and pages hold, from whomever it is, changes nothing.",
    operation="pages",
    strata={"page_edges": s.page_edges, "ragged": s.ragged},
)
def stale_slots(subject: Subject, case: AttendCase) -> None:
    plan = _plan(case, "shuffled:1")
    _same(subject, case, "unused slots held other values", replace(plan, fill=0.0), plan)


@law(
    "paged.reserved_pages",
    "Pages past a request's length are not read, though they are full: a step that is appended "
    "counts when the length says so.",
    operation="pages",
    requires=["lengths"],
    strata={"reserved_pages": s.reserved_pages},
)
def reserved_pages(subject: Subject, case: AttendCase) -> None:
    what = "pages past the lengths were in the table"
    _same(subject, case, what, _plan(case, "shuffled:1"), _plan(case, "reserved:1"))


@law(
    "paged.page_size",
    "The answer does not depend on the size of a page.",
    operation="pages",
    strata={"random_content": s.random_content, "ragged": s.ragged, "page_edges": s.page_edges},
    weight=0.5,
)
def page_size(subject: Subject, case: AttendCase) -> None:
    for page in subject.capabilities.pages:
        judge(subject, case, subject.attend(replace(case, page=page)))
