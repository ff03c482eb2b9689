"""How to run, as plain values: command line, pytest and workers share them."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from kernelassay import store
from kernelassay.plan import BUNDLED_EXPECTATIONS, PlanError, check_expectations
from kernelassay.properties.case import Case, CaseError, case_from, parse_case
from kernelassay.properties.engine import Options
from kernelassay.properties.expectations import ExpectationError, Expectations
from kernelassay.properties.property import select
from kernelassay.properties.regressions import RegressionError, Regressions

UNUSABLE = (PlanError, CaseError, ExpectationError, RegressionError, LookupError)
"""What unusable arguments raise; the message says all. (`LoadError` is a kernel's own affair.)"""


@dataclass(frozen=True)
class Settings:
    """How to run, as plain values that can be sent to another process."""

    level: str = "smoke"
    seed: int | None = None
    limit: float = 120.0
    case: str | None = None
    expect: tuple[str, ...] = ()
    regressions: tuple[str, ...] = ()

    def options(self) -> Options:
        """The engine's options; files and literals are read and checked here."""
        select()
        try:
            bundled = sorted(BUNDLED_EXPECTATIONS.glob("*.toml"))
            expectations = Expectations.load(*bundled, *self.expect)
            regressions = Regressions.load(*self.regressions)
        except UnicodeDecodeError as error:
            files = ", ".join((*self.expect, *self.regressions))
            raise ExpectationError(f"{files}: not UTF-8 text: {error}") from None
        check_expectations(expectations)
        return Options(
            level=self.level,
            seed=self.seed,
            limit=self.limit,
            case=None if self.case is None else case_of(self.case),
            expectations=expectations,
            regressions=regressions,
        )

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Settings":
        """What `to_json` made."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in value.items()
        }
        return cls(**fields)


def case_of(text: str) -> Case:
    """The case that *text* is: a literal, or the id of one that failed here before."""
    if re.fullmatch(r"[0-9a-f]{4,8}", text.strip()):
        return case_from(store.find(text.strip())[-1]["case"])
    return parse_case(text)
