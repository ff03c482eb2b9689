"""KernelAssay: a property-based correctness suite for LLM inference kernels.

Importing this package imports neither torch nor Hypothesis: its names are looked up on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelassay.checking import KernelFailed, check
    from kernelassay.impls.contract import (
        AttendCall,
        AttendResult,
        CacheSpec,
        Caching,
        Capabilities,
        ContractError,
        Conventions,
        Numerics,
        PageUse,
        Pools,
        Sampling,
        Scoring,
        Unsupported,
        VerifyCall,
        VerifyResult,
        Visibility,
    )
    from kernelassay.loading import LoadError, load_kernel
    from kernelassay.parametrize import parametrize_with_properties
    from kernelassay.properties.caching.case import CacheCase
    from kernelassay.properties.case import AttendCase
    from kernelassay.properties.failures import (
        Accepted,
        DeviceLost,
        Different,
        Failure,
        Imprecise,
        InputMutated,
        NonDeterministic,
        NonFinite,
        NotWritten,
        OutOfBounds,
        Raised,
        Refused,
        StillFails,
        TimedOut,
        WrongDistribution,
        WrongDtype,
        WrongShape,
        WrongState,
        WrongToken,
        WrongValue,
    )
    from kernelassay.properties.records import Record
    from kernelassay.properties.speculative.case import VerifyCase
    from kernelassay.properties.subject import Subject

    __version__: str

__all__ = [
    "Accepted",
    "AttendCall",
    "AttendCase",
    "AttendResult",
    "CacheCase",
    "CacheSpec",
    "Caching",
    "Capabilities",
    "ContractError",
    "Conventions",
    "DeviceLost",
    "Different",
    "Failure",
    "Imprecise",
    "InputMutated",
    "KernelFailed",
    "LoadError",
    "NonDeterministic",
    "NonFinite",
    "NotWritten",
    "Numerics",
    "OutOfBounds",
    "PageUse",
    "Pools",
    "Raised",
    "Record",
    "Refused",
    "Sampling",
    "Scoring",
    "StillFails",
    "Subject",
    "TimedOut",
    "Unsupported",
    "VerifyCall",
    "VerifyCase",
    "VerifyResult",
    "Visibility",
    "WrongDistribution",
    "WrongDtype",
    "WrongShape",
    "WrongState",
    "WrongToken",
    "WrongValue",
    "__version__",
    "check",
    "load_kernel",
    "parametrize_with_properties",
]

_ELSEWHERE = {
    "impls.contract": (
        "AttendCall", "AttendResult", "CacheSpec", "Caching", "Capabilities", "ContractError",
        "Conventions", "Numerics", "PageUse", "Pools", "Sampling", "Scoring", "Unsupported",
        "VerifyCall", "VerifyResult", "Visibility",
    ),
    "checking": ("KernelFailed", "check"),
    "loading": ("LoadError", "load_kernel"),
    "parametrize": ("parametrize_with_properties",),
    "properties.caching.case": ("CacheCase",),
    "properties.case": ("AttendCase",),
    "properties.speculative.case": ("VerifyCase",),
    "properties.records": ("Record",),
    "properties.subject": ("Subject",),
}  # fmt: skip
_HOME = {name: module for module, names in _ELSEWHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("kernelassay")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME.get(name, "properties.failures")
    found = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
