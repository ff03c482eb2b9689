"""Floating-point formats: unit roundoff and underflow threshold of each."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, rounded to nearest.

    *precision* counts the significand's bits, the hidden one included; *emin* is the exponent
    of the smallest normal number.
    """

    name: str
    precision: int
    emin: int
    dtype: torch.dtype

    @property
    def unit(self) -> float:
        """Unit roundoff: a rounded normal number is off by at most this, relatively."""
        return float(2.0**-self.precision)

    @property
    def eta(self) -> float:
        """Half the smallest subnormal: a rounded tiny number is off by at most this."""
        return float(2.0 ** (self.emin - self.precision))

    @property
    def max(self) -> float:
        """The largest finite number."""
        return float(torch.finfo(self.dtype).max)


FORMATS = {
    f.name: f
    for f in (
        Format("fp64", 53, -1022, torch.float64),
        Format("fp32", 24, -126, torch.float32),
        Format("tf32", 11, -126, torch.float32),
        Format("fp16", 11, -14, torch.float16),
        Format("bf16", 8, -126, torch.bfloat16),
        Format("e4m3", 4, -6, torch.float8_e4m3fn),
        Format("e5m2", 3, -14, torch.float8_e5m2),
    )
}


def format_of(name: str) -> Format:
    """The format called *name*; a KeyError's message lists the names there are."""
    try:
        return FORMATS[name]
    except KeyError:
        raise KeyError(f"unknown dtype {name!r}; there are {', '.join(FORMATS)}") from None


def name_of(dtype: torch.dtype) -> str:
    """The name of a torch dtype, as the contract spells it ('bf16'), or torch's own."""
    return next(
        (f.name for f in FORMATS.values() if f.dtype == dtype and f.name != "tf32"),
        str(dtype).removeprefix("torch."),
    )
