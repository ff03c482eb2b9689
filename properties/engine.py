"""The engine: runs one law on one subject, finds the smallest counterexample, makes a record."""

import hashlib
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import SkipTest

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky, Unsatisfiable

from kernelassay.properties.case import Case, case_id, to_json
from kernelassay.properties.database import Namespaced
from kernelassay.properties.domain import domain_of
from kernelassay.properties.expectations import Expectation, Expectations
from kernelassay.properties.failures import (
    Failure,
    Found,
    NonDeterministic,
    NotCovered,
    StillFails,
    TimedOut,
)
from kernelassay.properties.labels import labels
from kernelassay.properties.limit import time_limit
from kernelassay.properties.property import Property
from kernelassay.properties.records import Record
from kernelassay.properties.regressions import Regressions
from kernelassay.properties.room import with_room
from kernelassay.properties.subject import Subject

LEVELS = {"smoke": 20, "pr": 100, "nightly": 1000, "replay": 0}
"""Cases of one law on one subject, dealt over its strata."""


@dataclass(frozen=True)
class Options:
    """How to run. *seed* None at nightly: random, with a database; elsewhere: run seed 0."""

    level: str = "smoke"
    seed: int | None = None
    limit: float = 120.0
    shrink: bool = True
    case: Case | None = None
    expectations: Expectations = field(default_factory=Expectations)
    regressions: Regressions = field(default_factory=Regressions)
    database: str | None = ".kernelassay/examples"

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level: got {self.level!r}, expected one of {', '.join(LEVELS)}")


@dataclass
class Search:
    """What has been seen while looking for a counterexample."""

    cases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    first: Case | None = None
    to_first: int = 0
    worst: tuple[float, Case] | None = None
    failing_runs: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of an item: its record and, if the law failed, the smallest counterexample."""

    record: Record
    search: Search
    found: Found | None = None


def check(
    prop: Property,
    subject: Subject,
    options: Options = Options(),
    on_case: Callable[[Case], None] = lambda case: None,
) -> Outcome:
    """Run *prop* on *subject*. A failing law is an outcome; `TimedOut`, `DeviceLost` pass through.

    *on_case* is called before each case, so that a watchdog outside knows what was running.
    """
    record, search = Record.of(prop, subject, options.level, options.seed), Search()
    status, reason = prop.standing(subject)
    if status:
        return Outcome(record.ended(status, reason=reason), search)
    began = time.perf_counter()
    domain = domain_of(subject, options.level, options.seed or 0)
    runner = _Runner(prop, subject, domain, options, search, on_case)
    main = None
    try:
        found = with_room(runner.run)
        if found:
            main = _failed(record, prop, found, search)
        else:
            known = options.expectations.of(prop.name, subject)
            reasons = "; ".join(e.reason for e in known)
            record.ended("expected" if known else "passed", reason=reasons)
    except Exception as error:  # the suite's own fault is not the kernel's
        record.ended("suite_error", reason=f"{type(error).__name__}: {error}")
        record.traceback = "".join(traceback.format_exception(error))
    _measured(record, subject, search, time.perf_counter() - began)
    return Outcome(record, search, main)


def _measured(record: Record, subject: Subject, search: Search, seconds: float) -> None:
    record.cases, record.labels = search.cases, dict(sorted(search.counts.items()))
    record.launches, record.seconds = subject.launches, round(seconds, 4)
    record.worst = subject.worst if math.isfinite(subject.worst) else None
    record.z_rms = subject.z_rms or None
    record.watched, record.backends = sorted(subject.watched), sorted(subject.backends)


def _failed(record: Record, prop: Property, found: list[Found], search: Search) -> Found:
    """Fill in the failure that matters most: the grossest."""
    main = max(found, key=lambda f: f.failure.ratio or math.inf)
    record.ended("failed", reason=main.failure.message)
    record.kind = main.failure.kind
    record.ratio = main.failure.ratio
    record.also = sorted({f.failure.kind for f in found} - {main.failure.kind})
    record.to_first = search.to_first
    if main.case is not None:
        record.case = to_json(main.case)
        record.case_id = case_id(prop.name, main.case)
    return main


@dataclass(eq=False)
class _Runner:
    prop: Property
    subject: Subject
    domain: Any
    options: Options
    search: Search
    on_case: Callable[[Case], None]

    def run(self) -> list[Found] | None:
        """The first failures found, or None."""
        if self.options.case is not None:
            return self._one(self.options.case)
        expected = self.options.expectations.of(self.prop.name, self.subject)
        for entry in expected:
            if gone := self._witness(entry):
                return gone
        if any(e.whole for e in expected):
            return None
        for case in self.options.regressions.of(self.prop.name, self.subject):
            if not any(e.covers(case, self.domain) for e in expected) and (
                found := self._one(case)
            ):
                return found
        return self._search(expected)

    def _search(self, expected: list[Expectation]) -> list[Found] | None:
        total = math.ceil(LEVELS[self.options.level] * self.prop.weight)
        if not total:
            return None
        built = {label: build(self.domain) for label, build in self.prop.strata.items()}
        strata = {label: strategy for label, strategy in built.items() if strategy is not None}
        each = max(1, math.ceil(total / max(1, len(strata))))
        if self._keeps():  # what failed last time comes first, whichever stratum it is in
            for label, strategy in strata.items():
                if found := self._stratum(label, strategy, each, expected, again=True):
                    return found
        for label, strategy in strata.items():
            before = self.search.counts[label]
            found = self._stratum(label, strategy, each, expected)
            if found:
                return found
            if self.search.counts[label] == before and not expected:
                raise NotCovered(f"no case of {self.prop.name} carries the label {label!r}")
        return None

    def _stratum(
        self,
        label: str,
        strategy: Any,
        cases: int,
        expected: list[Expectation],
        *,
        again: bool = False,
    ) -> list[Found] | None:
        ran, failing = 0, self.search.failing_runs

        # Cases that are expected to fail are passed over, and others drawn in their place.
        @settings(self._settings(label, cases * (6 if expected else 1), again))
        @hypothesis.given(case=strategy)
        def test(case: Case) -> None:
            nonlocal ran
            enough = ran >= cases and self.search.failing_runs == failing
            if expected and (enough or any(e.covers(case, self.domain) for e in expected)):
                return
            ran += 1
            self.execute(case)

        seeded = self._seed(label)
        if seeded is not None:
            test = hypothesis.seed(seeded)(test)
        try:
            test()
        except (Unsatisfiable, SkipTest):  # nothing that is kept can be used
            if not again:
                raise
        except Flaky as error:
            failure = NonDeterministic(
                f"the law failed and then held on the same case ({str(error).splitlines()[0]})"
            )
            return [Found(failure, self.search.first)]
        except BaseExceptionGroup as group:
            return [f for e in _leaves(group) for f in _found(e)]
        except Failure as failure:
            return _found(failure)
        return None

    def execute(self, case: Case) -> None:
        """Run the law's body on one case, within the time limit; the failure carries the case."""
        self.search.cases += 1
        self.search.counts.update(labels(case, self.domain))
        self.subject.current = case
        self.on_case(case)
        try:
            with time_limit(self.options.limit):
                self.prop.body(self.subject, case)
        except Failure as failure:
            failure.facts["case"] = case
            self._note(failure, case)
            raise
        except TimedOut as late:
            late.args = (*late.args, case)
            raise

    def _note(self, failure: Failure, case: Case) -> None:
        search = self.search
        search.failing_runs += 1
        if search.first is None:
            search.first, search.to_first = case, search.cases
        if failure.ratio is not None and (search.worst is None or failure.ratio > search.worst[0]):
            search.worst = (failure.ratio, case)

    def _one(self, case: Case) -> list[Found] | None:
        try:
            self.execute(case)
        except Failure as failure:
            return [Found(failure, case)]
        return None

    def _witness(self, entry: Expectation) -> list[Found] | None:
        """The witness must still fail, with the recorded kind."""
        found = self._one(entry.witness)
        kind = found[0].failure.kind if found else "nothing"
        # What the witness shows is known; it does not count as the worst of the run.
        self.subject.worst, self.subject.z_rms = 0.0, 0.0
        self.search.first, self.search.worst = None, None
        if kind == entry.kind:
            return None
        return [
            Found(
                StillFails(
                    f"{entry.where}: the witness must fail with {entry.kind}, not with {kind}. "
                    + (f"Delete these lines: {entry.reason}" if not found else "Look again.")
                ),
                entry.witness,
            )
        ]

    def _keeps(self) -> bool:
        """Whether failing cases are kept in a database: at a nightly run without a seed."""
        options = self.options
        return options.level == "nightly" and options.seed is None and bool(options.database)

    def _settings(self, label: str, cases: int, again: bool) -> settings:
        phases = [Phase.generate] + ([Phase.shrink] if self.options.shrink else [])
        database = None
        if self._keeps():
            subject = self.subject
            key = f"{subject.name}/{self.prop.name}/{label}/{subject.dtype}/{subject.device}"
            database = Namespaced(str(self.options.database), key)
        if again:
            phases = [Phase.reuse]
        return settings(
            max_examples=cases,
            derandomize=False,
            database=database,
            deadline=None,
            phases=phases,
            print_blob=False,
            report_multiple_bugs=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
        )

    def _seed(self, label: str) -> int | None:
        seed = self.options.seed
        if seed is None and self.options.level == "nightly":
            return None
        text = f"{self.prop.name} {label} {seed or 0}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for e in group.exceptions:
        if isinstance(e, BaseExceptionGroup):
            yield from _leaves(e)
        else:
            yield e


def _found(error: BaseException) -> list[Found]:
    if isinstance(error, Failure):
        return [Found(error, error.facts.get("case"))]
    raise error


__all__ = ["LEVELS", "Options", "Outcome", "Search", "check"]
