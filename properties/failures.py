"""Kinds of failure, each a class: Hypothesis tells failures apart by type and line."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """One element of an output, beside what it is compared with."""

    tensor: str
    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float
    wrong: int
    total: int


class Failure(AssertionError):
    """A law does not hold. *ratio* is error / allowed error, where there is one."""

    title = "FAILURE"

    def __init__(
        self,
        message: str,
        *,
        ratio: float | None = None,
        place: Place | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.ratio = ratio
        self.place = place
        self.facts = facts

    @property
    def kind(self) -> str:
        """The name of the kind, as records spell it."""
        return type(self).__name__


class WrongShape(Failure):
    """An output has another shape than the contract says."""

    title = "WRONG SHAPE"


class WrongDtype(Failure):
    """An output has another dtype or device than the contract says."""

    title = "WRONG DTYPE"


class NonFinite(Failure):
    """NaN or infinity where the oracle has a finite value."""

    title = "NOT FINITE"


class WrongValue(Failure):
    """An error of more than 8 times what the declared numerics allow."""

    title = "WRONG VALUE"


class Imprecise(Failure):
    """An error of 1 to 8 times what the declared numerics allow, or too large on average."""

    title = "IMPRECISE"


class Different(Failure):
    """Two runs that must agree bit for bit do not."""

    title = "DIFFERENT BITS"


class WrongToken(Failure):
    """A token that cannot be emitted there."""

    title = "WRONG TOKEN"


class WrongDistribution(Failure):
    """Tokens do not follow their law."""

    title = "WRONG DISTRIBUTION"


class WrongState(Failure):
    """A cache does not hold, or say that it holds, what its steps left."""

    title = "WRONG STATE"


class InputMutated(Failure):
    """The kernel wrote to one of its inputs."""

    title = "INPUT MUTATED"


class OutOfBounds(Failure):
    """The kernel wrote outside its output, into a guard zone."""

    title = "WRITTEN OUT OF BOUNDS"


class NotWritten(Failure):
    """An element of the output still holds the poison it was allocated with."""

    title = "NOT WRITTEN"


class NonDeterministic(Failure):
    """The same call gives different bits, though the kernel declares that it does not."""

    title = "NOT DETERMINISTIC"


class Accepted(Failure):
    """A call that must be refused was answered."""

    title = "ACCEPTED"


class Refused(Failure):
    """A call inside the declared domain was refused."""

    title = "REFUSED"


class Raised(Failure):
    """The kernel raised something other than `Unsupported`."""

    title = "RAISED"


class NotCovered(Failure):
    """The suite did not generate a case that the law must cover: the suite's fault."""

    title = "NOT COVERED"


class StillFails(Failure):
    """An expected failure no longer fails as recorded."""

    title = "EXPECTED FAILURE GONE"


class TimedOut(BaseException):
    """A case ran past its limit. No Exception: Hypothesis would shrink it, limit by limit."""


class DeviceLost(BaseException):
    """The device is in a sticky error state. No Exception: every later case would be blamed."""


@dataclass(frozen=True)
class Found:
    """One failure that a search ended with: the smallest case of its kind."""

    failure: Failure
    case: Any
    notes: tuple[str, ...] = field(default=())


KINDS: dict[str, type[Failure]] = {
    cls.__name__: cls
    for cls in (
        WrongShape,
        WrongDtype,
        NonFinite,
        WrongValue,
        Imprecise,
        Different,
        WrongToken,
        WrongDistribution,
        WrongState,
        InputMutated,
        OutOfBounds,
        NotWritten,
        NonDeterministic,
        Accepted,
        Refused,
        Raised,
        NotCovered,
        StillFails,
    )
}
