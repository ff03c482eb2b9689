"""What an author says of a kernel's arithmetic. Budgets derive from it; it holds no tolerance."""

from dataclasses import dataclass, fields, replace
from typing import Literal

from kernelassay.oracle.formats import FORMATS


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """How a kernel computes attention. "input" stands for the dtype of q, k and v.

    Too coarse a declaration weakens the test and raises no false alarm; too fine a one fails
    with a recognisable factor (bf16 probabilities under an fp16 declaration: about 2.5).
    """

    out: str = "input"
    """dtype of the output."""
    p: str = "input"
    """dtype of the probabilities at the P.V product; "fp32": no cast."""
    p_scale: float = 1.0
    """factor on the probabilities before that cast (fp8 kernels: often 256)."""
    l_from_p: bool | None = None
    """True: the row sum adds rounded probabilities; False: unrounded; None: not known."""
    p_normalised: bool | None = None
    """True: P is divided by the row sum before its cast (an unfused softmax); False: the output is
    divided at the end, so weights that are powers of two are exact in any dtype; None: not known
    (what is divided first underflows sooner, so that is allowed for)."""
    dot: Literal["exact", "tf32", "tf32_trunc", "3xtf32"] = "exact"
    """what the matrix units do to their operands: nothing, round to tf32, truncate to tf32, or
    split them into two truncated tf32 numbers, of whose products the smallest is left out."""
    acc_u: float = 2.0**-23
    """error of one accumulation step relative to the partial sum. 2**-23: truncating fp32
    (tensor cores); 2**-24: fp32 to nearest; 2**-11: fp16; 2**-13: Hopper fp8."""
    acc_biased: bool = True
    """True: the accumulator truncates, errors add up; False: rounds to nearest."""
    kstep: int = 16
    """products per accumulation step: 16 in fp16/bf16 matrix units, 8 tf32, 32 fp8, 1 FMA."""
    score: str = "fp32"
    """dtype the scores are rounded to before the softmax."""
    score_roundings: int = 1
    """how often the scaled score is: 2 in an unfused kernel, after the dot product and after the
    scale. From 2 on each operation rounds, the soft cap's quotient, tanh and product; with 1 the
    cap rounds its result. What is added rounds each sum, and ALiBi its product."""
    q_prescaled: bool = False
    """True: scale * q is rounded to the input dtype before the dot product."""
    scale_rounded: bool = False
    """True: q and k are each multiplied by sqrt(scale), an fp32 number, and rounded to the input
    dtype before the dot (PyTorch's math path)."""
    fma: bool = False
    """True: exp2(fma(score, c, -m c)), no rounding of the scaled score of its own."""
    exp_u: float = 2.0**-22
    """relative error of exp beyond what its argument's rounding explains."""
    tanh_u: float = 2.0**-21
    """error of the soft cap's tanh, relative to its largest value, 1: 2**-21 for one made of an
    exponential and a quotient (2**-21.5 at most); 2**-11 for the GPU's tanh.approx."""
    div_u: float = 2.0**-22
    """relative error of the final division."""
    block: int = 16
    """the smallest key tile: bounds how often the accumulator is rescaled."""
    lse: str = "fp32"
    """dtype of the log-sum-exp."""
    states: bool = False
    """True: a merge takes and gives states (u, m, l) of the softmax, not outputs and LSEs."""

    def __post_init__(self) -> None:
        for name in ("out", "p", "score", "lse"):
            value = getattr(self, name)
            if value != "input" and value not in FORMATS:
                raise ValueError(
                    f"Numerics.{name}: got {value!r}, expected 'input' or one of "
                    f"{', '.join(FORMATS)}"
                )
        for name in (
            "acc_u",
            "exp_u",
            "tanh_u",
            "div_u",
            "p_scale",
            "kstep",
            "block",
            "score_roundings",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"Numerics.{name}: got {getattr(self, name)!r}, expected more than 0"
                )

    def resolved(self, dtype: str) -> "Numerics":
        """The same with "input" replaced by *dtype*."""
        named = {f.name: dtype for f in fields(self) if getattr(self, f.name) == "input"}
        return replace(self, **named)  # type: ignore[arg-type]


def default_numerics(dtype: str) -> Numerics:
    """What to assume of a kernel whose author declared nothing, for inputs of *dtype*.

    16 bit: tensor cores with fp32 accumulation and probabilities cast to the input dtype.
    fp32: true fp32 throughout; a kernel that uses tf32 must say so.
    """
    if dtype in ("fp32", "fp64"):
        # The score is rounded once more in an unfused kernel; kstep 1 is plain FMA.
        return Numerics(p=dtype, out=dtype, acc_u=2.0**-24, acc_biased=False, kstep=1)
    return Numerics()
