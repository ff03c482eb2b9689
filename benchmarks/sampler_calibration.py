"""How often right samplers are rejected, and whether p-values and e-values are what they say.

    python benchmarks/sampler_calibration.py --tests 10000 --json ... torch_verify ...
    TRITON_INTERPRET=1 python benchmarks/sampler_calibration.py --device interpreter ...

Every statistical law judges cases of its strata as in a run; nothing may be rejected. Beside each
decision it is noted what led to it: the screen's p-value (Cressie-Read, pooled) and e-value, those
of each group where a law has groups, and the e-values that a law averages. Of laws with a screen
every third decision stage is also run by itself, on samples of its own, at its level and prior:
else one case of a hundred would come to it. Of a right sampler P(p <= a) is about a and
P(E >= 1/a) at most a.

Kernels are named as on the command line. No two tests share samples: each has another seed, or
with `--repeats` a part of what was drawn with one seed. `--effect` sets what a test looks for, and
with it the number of samples.
"""

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis
import numpy as np
import numpy.typing as npt
import torch
from hypothesis import HealthCheck, Phase, settings
from scipy import stats

from kernelassay.loading import load_kernel
from kernelassay.oracle import statistics
from kernelassay.oracle.independence import log_matches
from kernelassay.oracle.pooling import divergence
from kernelassay.properties.domain import domain_of
from kernelassay.properties.failures import WrongDistribution
from kernelassay.properties.laws import sampling
from kernelassay.properties.property import Property, select
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.sampling import Emitted, Sampler
from kernelassay.properties.subject import Subject

LAWS = {
    "speculative.rounds": 1,
    "speculative.sequence": 1,
    "speculative.first_token": 1,
    "speculative.commit_length": 1,
    "speculative.positions": 1,
    "speculative.branches": 1,
    "speculative.independent": 10,
}
"""Of how many cases each law sees one: a case of the last costs 24 calls."""
LEVELS = (0.5, 0.2, 0.1, 0.05, 0.01, 0.001)
BINS = 20
ALONE = 3
"""Of how many tests with a screen one has its decision stage run by itself."""
CAPACITY = 256
"""Cases that are drawn at a time."""


@dataclass
class Noted:
    """What was seen of one kernel: numbers by kind, and by law what was decided."""

    p_values: dict[str, list[float]] = field(default_factory=dict)
    log_e: dict[str, list[float]] = field(default_factory=dict)
    samples: list[int] = field(default_factory=list)
    decisions: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    single: int = 0

    def p_value(self, kind: str, table: npt.ArrayLike, law: npt.ArrayLike) -> None:
        """Note the p-value of a table, unless it is one cell, of which p is always 1."""
        found = divergence(table, law)
        if found.degrees:
            self.p_values.setdefault(kind, []).append(float(found.p_value))
        else:
            self.single += 1

    def e_value(self, kind: str, log_e: float) -> None:
        """Note an e-value."""
        self.log_e.setdefault(kind, []).append(float(log_e))


@dataclass
class Shared:
    """Samples of one law and case, drawn for *many* tests at once: each gets a part of its own."""

    many: int
    test: int = 0
    drawn: dict[tuple[str, int, int], Emitted] = field(default_factory=dict)

    def sampler(self, subject: Subject, case: VerifyCase, purpose: str) -> Sampler:
        """What a law takes for its sampler."""
        return Part(subject, case, purpose, self)


@dataclass(eq=False)
class Part(Sampler):
    """Emits the part of one test."""

    shared: Shared

    def rounds(self, stage: str, look: int, n: int) -> Emitted:
        """What n requests emit that no other test has seen."""
        shared, key = self.shared, (stage, look, n)
        if key not in shared.drawn:
            shared.drawn[key] = super().rounds(stage, look, n * shared.many)
        whole, part = shared.drawn[key], slice(n * shared.test, n * (shared.test + 1))
        return Emitted(whole.tokens[part], whole.accepted[part], whole.lengths[part])


@contextmanager
def watching(noted: Noted) -> Iterator[None]:
    """Inside, what the laws hand to the statistics is noted; what they decide stays the same."""
    turn = count()

    def two_stages(
        sample: statistics.Sampler, law: npt.ArrayLike, planned: statistics.Plan
    ) -> statistics.Verdict:
        if next(turn) % ALONE == 0:
            counts = sample("alone", 0, planned.confirm)
            alone = statistics.decide(counts, law, planned.level, planned.prior)
            noted.e_value("decision stage", alone.log_e)
            noted.decisions["decision stage by itself"] += 1
            noted.rejected["decision stage by itself"] += alone.rejected

        def seen(stage: str, look: int, n: int) -> npt.ArrayLike:
            counts = sample(stage, look, n)
            if stage == "screen":
                noted.samples.append(n)
                noted.p_value("screen", counts, law)
                screen = statistics.decide(counts, law, statistics.SCREEN)
                noted.e_value("screen", screen.log_e)
            elif look == 0:
                noted.decisions["reached after the screen"] += 1
            return counts

        return statistics.two_stages(seen, law, planned)

    def log_evalue(table: npt.ArrayLike, law: npt.ArrayLike, prior: float) -> Any:
        noted.p_value("groups", table, law)
        log_e = statistics.log_evalue(table, law, prior)
        noted.e_value("groups", float(log_e))
        return log_e

    def matches(*args: Any, **kwargs: Any) -> float:
        log_e = log_matches(*args, **kwargs)
        noted.e_value("equal tokens", log_e)
        return log_e

    def log_average(log_e: npt.ArrayLike) -> float:
        mean = statistics.log_average(log_e)
        noted.e_value("averages", mean)
        return mean

    doubles: dict[str, Any] = {
        "two_stages": two_stages,
        "log_evalue": log_evalue,
        "log_matches": matches,
        "log_average": log_average,
        "plan": cache(statistics.plan),
    }
    with patch.multiple(sampling, **doubles):
        yield


def drawn_cases(strategy: Any, seed: int) -> list[VerifyCase]:
    """Different cases of a stratum, some hundred of them."""
    found: dict[VerifyCase, None] = {}

    @hypothesis.seed(seed)
    @settings(
        max_examples=CAPACITY,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=strategy)
    def draw(case: VerifyCase) -> None:
        found[case] = None

    draw()
    return [*found]


def cases(law: Property, subject: Subject) -> Iterator[VerifyCase]:
    """Cases of the law's strata in turn, each with a seed of its own, without end."""
    domain = domain_of(subject)
    strategies = [made for build in law.strata.values() if (made := build(domain)) is not None]
    seeds = count()
    for drawing in count():
        batches = [drawn_cases(strategy, drawing) for strategy in strategies]
        for i in range(CAPACITY):
            for batch in batches:
                if i < len(batch):
                    yield replace(batch[i], seed=next(seeds))


def calibrated(subject: Subject, tests: int, minutes: float, repeats: int = 1) -> Noted:
    """What so many decisions of all laws show, law by law; fewer where time runs out.

    A law that takes rounds judges each case *repeats* times, each time by samples of its own.
    """
    noted, end = Noted(), time.monotonic() + 60 * minutes
    laws = [law for law in select(*LAWS) if law.standing(subject) == ("", "")]
    supply = {id(law.strata): cases(law, subject) for law in laws}  # laws share their cases
    done = 0
    with watching(noted):
        for turn in count():
            now = {at: next(of_strata) for at, of_strata in supply.items()}
            for law in laws:
                if done >= tests or time.monotonic() > end:
                    return noted
                if turn % LAWS[law.name] == 0:
                    many = repeats if LAWS[law.name] == 1 else 1
                    decided(noted, law, subject, now[id(law.strata)], many)
                    done += many
    raise AssertionError("there is no last turn")


def decided(noted: Noted, law: Property, subject: Subject, case: VerifyCase, many: int) -> None:
    """Let the law judge the case so many times."""
    shared = Shared(many)
    with patch.object(sampling, "Sampler", shared.sampler):
        for shared.test in range(many):
            subject.current = replace(case, seed=case.seed * many + shared.test)
            noted.decisions[law.name] += 1
            try:
                law.body(subject, subject.current)
            except WrongDistribution as failure:
                noted.rejected[law.name] += 1
                print(f"{law.name}: {failure}: {subject.current}")


def of_p_values(values: list[float]) -> dict[str, Any]:
    """P(p <= a) / a at each level, and a histogram with its chi-squared p-value."""
    p = np.array(values)
    bins, _ = np.histogram(p, BINS, (0, 1))
    return {
        "tests": len(p),
        "hits": {str(a): int((p <= a).sum()) for a in LEVELS},
        "ratio": {str(a): float((p <= a).mean() / a) for a in LEVELS},
        "bins": bins.tolist(),
        "uniform_p": float(stats.chisquare(bins).pvalue),
    }


def of_e_values(values: list[float]) -> dict[str, Any]:
    """P(E >= 1/a) / a at each level, and the mean of E, which is 1 at most."""
    log_e = np.array(values)
    return {
        "tests": len(log_e),
        "hits": {str(a): int((log_e >= -math.log(a)).sum()) for a in LEVELS},
        "ratio": {str(a): float((log_e >= -math.log(a)).mean() / a) for a in LEVELS},
        "largest_log_e": float(log_e.max()),
    }


def summary(subject: Subject, noted: Noted) -> dict[str, Any]:
    """One kernel's numbers."""
    return {
        "kernel": subject.name,
        "dtype": subject.dtype,
        "device": subject.device,
        "decisions": dict(sorted(noted.decisions.items())),
        "rejected": sum(noted.rejected.values()),
        "samples": {"least": min(noted.samples), "most": max(noted.samples)},
        "one_cell": noted.single,
        "p_values": {kind: of_p_values(v) for kind, v in noted.p_values.items()},
        "e_values": {kind: of_e_values(v) for kind, v in noted.log_e.items()},
    }


def main() -> None:
    """Print what was decided, keep the numbers as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tests", type=int, default=10000, help="of each kernel")
    parser.add_argument("--minutes", type=float, default=15, help="for each kernel, at most")
    parser.add_argument("--repeats", type=int, default=1, help="tests of each case")
    parser.add_argument("--effect", type=float, default=sampling.EFFECT)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines = []
    with patch.multiple(sampling, EFFECT=args.effect, EFFECT_ALONE=args.effect):
        for spec in args.kernels:
            for loaded in load_kernel(spec):
                subject = Subject(loaded.adapter, "fp32", args.device)
                subject.unwatchable = True  # where it allocates is no matter here
                noted = calibrated(subject, args.tests, args.minutes, args.repeats)
                lines.append({**summary(subject, noted), "repeats": args.repeats})
                print(json.dumps(lines[-1]), flush=True)
    if args.json:
        made = {"torch": torch.__version__, "effect": args.effect, "lines": lines}
        args.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
