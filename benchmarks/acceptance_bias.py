"""How small a fault of a sampler is found: by the exact laws, and by samples.

    python benchmarks/acceptance_bias.py --json benchmarks/results/NAME.json

Exact laws: kernels that accept a draft a little too often, by d = 2^-4 to 2^-24, or hand out
weights that are off by d. For each d it is counted at how many seeds of a smoke run a law kills
the kernel. Sampled laws: one draft over four tokens,

    p = (2, 3, 1, 2) / 8    q = (1, 1, 4, 2) / 8    min(1, p/q) = (1, 1, 1/4, 1)

so that token 2 alone is rejected, [p - q]+ / Z = (1/3, 2/3, 0, 0). A kernel that accepts below
min(1, p/q) + 2 d emits a law of total variation d from p: half of the drafts are token 2. For each
d it is measured after how many samples E reaches 1 / level, beside the promise of the plan for an
effect of d, and how often the laws find it with the plan that they have. Other faults follow, each
with the samples that the plan promises for its own total variation.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch

from kernelassay.impls.variants import Variant, build_module
from kernelassay.oracle.speculative import residual
from kernelassay.oracle.statistics import EACH, log_evalue, plan
from kernelassay.properties.engine import Options, check
from kernelassay.properties.failures import WrongDistribution
from kernelassay.properties.laws import sampling
from kernelassay.properties.property import Property, select
from kernelassay.properties.speculative import strata
from kernelassay.properties.speculative.case import VerifyCase
from kernelassay.properties.speculative.laws_of import draft_chain, target_chain
from kernelassay.properties.speculative.sampling import Sampler
from kernelassay.properties.subject import Subject

Floats = npt.NDArray[np.float64]

TORCH = "kernelassay.impls.torch_verify"
TRANSFORMERS = "kernelassay.impls.transformers_speculative"
CASE = VerifyCase(p=((2, 3, 1, 2), (3, 1, 2, 2)), q=((1, 1, 4, 2),))
EXPONENTS = (4, 12, 16, 18, 19, 20, 21, 22, 24)
EFFECTS = (0.2, 0.1, 0.05, 0.02, 0.01)
SAMPLED = ("speculative.first_token", "speculative.rounds")

RULE = "accepted = u * q_x < p_x"
PLUS = "u.double() * q_x.double() < p_x.double() + {d} * q_x.double()"
TIMES = "u.double() * q_x.double() < (1 + {d}) * p_x.double()"
UNIFORM = "v = philox_uniforms(call.seeds[:, None], 2 * i + 1)"
DRAFT = "q = None if call.q is None else call.q.reshape(-1, V)"
EXCESS = "excess = (weights - law).clamp_min(0.0)"
RESIDUAL = "weights = torch.where(rejects, excess, weights)"
CAUGHT = "(weights,) = caught"
HANDED = "return accept.to(like.dtype)"

BIASES: dict[str, tuple[str, tuple[str, str]]] = {
    "u < min(1, p/q) + d": (TORCH, (RULE, f"accepted = {PLUS}")),
    "the same where p > 0": (TORCH, (RULE, f"accepted = ({PLUS}) & (p_x > 0)")),
    "u < (1 + d) p/q": (TORCH, (RULE, f"accepted = {TIMES}")),
    "captured: u - d <= p/q": (TRANSFORMERS, (HANDED, "return accept.to(like.dtype) - {d}")),
    "captured: weights of every second token times 1 + d": (
        TRANSFORMERS,
        (CAUGHT, "weights = caught[0] * (1 + {d} * (torch.arange(p.shape[1]) % 2))"),
    ),
}
"""What the kernel does with d -> the base module and the edit."""


def variant(name: str, base: str, *edits: tuple[str, str]) -> Any:
    """The module of a kernel with these edits."""
    return build_module(Variant(name=name, base=base, edits=edits, law="speculative.decisions"))


draws_from_p = variant("draws_from_p", TORCH, (RESIDUAL, "weights = weights * 1.0")).seeded
"""A wrong sampler to run laws on: after a rejection it draws from p itself."""
draws_from_p.name = "draws_from_p"


def exact_laws(base: str) -> list[Property]:
    """The laws that place the noise themselves, with cases on which the base itself passes."""
    if base == TORCH:
        return select("speculative.decisions", "speculative.implied_law")
    (decisions,) = select("speculative.decisions")
    # transformers keeps drafts of p = 0 at u = 0; here p > 0.
    return [replace(decisions, strata={"wide_residual": strata.wide_residual})]


def kills(law: Property, kernel: Any, seeds: int) -> int:
    """At how many seeds of a smoke run the law fails."""
    found = 0
    for seed in range(seeds):
        subject = Subject(kernel, "fp32", "cpu")
        subject.unwatchable = True  # where it allocates is no matter here
        options = Options(level="smoke", seed=seed, shrink=False, database=None)
        record = check(law, subject, options).record
        if record.status not in ("passed", "failed"):
            raise RuntimeError(f"{law.name}: {record.status}: {record.reason}")
        found += record.status == "failed"
    return found


def exactly_found(seeds: int, exponents: tuple[int, ...] = EXPONENTS) -> Iterator[dict[str, Any]]:
    """For each bias, law and d how many seeds show it; d = 0 is the right kernel."""
    for number, (name, (base, (old, new))) in enumerate(BIASES.items()):
        if base == TRANSFORMERS and find_spec("transformers") is None:
            continue
        for law in exact_laws(base):
            line: dict[str, Any] = {"bias": name, "law": law.name, "seeds": seeds, "kills": {}}
            for exponent in (*exponents, None):
                d = 0.0 if exponent is None else 2.0**-exponent
                module = variant(f"bias_{number}_{exponent}", base, (old, new.format(d=repr(d))))
                line["kills"][str(exponent)] = kills(law, module.adapter, seeds)
            yield line


@dataclass(frozen=True)
class Fault:
    """A wrong sampler: its edits, and what it does to a draft of `CASE`.

    accept [V]: the probability that draft x stays. drawn [V, V]: the law of the token after x was
    rejected.
    """

    edits: tuple[tuple[str, str], ...]
    accept: Floats
    drawn: Floats

    def distance(self, law: str) -> float:
        """The total variation between what it emits and what is right, as the law sees it."""
        p, q = laws()
        kept = q * self.accept
        lost = (q * (1 - self.accept)) @ self.drawn
        if law == "speculative.first_token":
            return float(np.abs(kept + lost - p).sum() / 2)
        right = np.minimum(p, q)
        return float((np.abs(kept - right) + np.abs(lost - (p - right))).sum() / 2)


def laws() -> tuple[Floats, Floats]:
    """p and q of the draft of `CASE`."""
    p, q = target_chain(CASE, 0)(()), draft_chain(CASE, 0)(())
    return np.array([float(w) for w in p]), np.array([float(w) for w in q])


def biased(d: float) -> Fault:
    """Accepts below min(1, p/q) + 2 d: its distance is d."""
    right = step()
    edit = (RULE, f"accepted = u * q_x < p_x + {2 * d!r} * q_x")
    return replace(right, edits=(edit,), accept=np.minimum(right.accept + 2 * d, 1.0))


def step() -> Fault:
    """The right sampler."""
    p, q = laws()
    after = residual(target_chain(CASE, 0)(()), draft_chain(CASE, 0)(()))
    assert after is not None
    drawn = np.tile([float(w) for w in after], (len(p), 1))
    return Fault((), np.minimum(1.0, p / q), drawn)


def faults() -> dict[str, Fault]:
    """Wrong samplers by name."""
    right, (p, q) = step(), laws()
    # A uniform that was not below t is uniform in [t, 1): so much of each token's piece is left.
    ends = np.clip(right.drawn.cumsum(1), right.accept[:, None], None)
    left = np.diff(ends, axis=1, prepend=right.accept[:, None])
    rejected = right.accept < 1
    again = right.drawn.copy()
    again[rejected] = left[rejected] / left[rejected].sum(1, keepdims=True)
    warm = q ** (1 / 1.3)
    warm /= warm.sum()
    excess = np.maximum(p - warm, 0)
    # C_y > v C with C = sum (p - q) = 0, whatever v is: the first token with C_y > 0.
    first = np.eye(len(p))[int(((p - q).cumsum() > 0).argmax())]
    return {
        "accepts below min(1, p/q) + 0.1": biased(0.05),
        "draws again from p": replace(
            right,
            edits=((RESIDUAL, "weights = weights * 1.0"),),
            drawn=np.tile(p, (len(p), 1)),
        ),
        "the uniform of the acceptance serves the draw": replace(
            right, edits=((UNIFORM, UNIFORM.replace(" + 1", "")),), drawn=again
        ),
        "p - q without the clamp": replace(
            right,
            edits=((EXCESS, "excess = weights - law"),),
            drawn=np.tile(first, (len(p), 1)),
        ),
        "q of temperature 1.3": Fault(
            (
                (
                    DRAFT,
                    "q = call.q.reshape(-1, V) ** (1 / 1.3)\n    q = q / q.sum(-1, keepdim=True)",
                ),
            ),
            np.minimum(1.0, p / warm),
            np.tile(excess / excess.sum(), (len(p), 1)),
        ),
    }


def subject_of(name: str, fault: Fault) -> Subject:
    """The kernel with this fault, which draws by itself."""
    subject = Subject(variant(name, TORCH, *fault.edits).seeded, "fp32", "cpu")
    subject.unwatchable = True  # where it allocates is no matter here
    return subject


def rejected(law: str, subject: Subject, seeds: int) -> int:
    """At how many seeds the law finds that the samples of `CASE` do not follow it."""
    (found,) = select(law)
    return sum(_rejects(found.body, subject, replace(CASE, seed=seed)) for seed in range(seeds))


def _rejects(body: Callable[[Subject, Any], None], subject: Subject, case: VerifyCase) -> bool:
    try:
        body(subject, case)
    except WrongDistribution:
        return True
    return False


def needed(subject: Subject, effect: float, seed: int) -> float:
    """After how many first tokens E reaches 1 / level; infinite if not within the plan."""
    p, _ = laws()
    planned = plan(len(p), effect)
    case = replace(CASE, seed=seed)
    emitted = Sampler(subject, case, "needed").rounds("confirm", 0, planned.confirm)
    counts = (emitted.tokens[:, :1] == np.arange(len(p))).cumsum(0)
    reached = log_evalue(counts, p, planned.prior) >= -math.log(EACH)
    return float(reached.argmax()) + 1 if reached.any() else math.inf


def cells_of(law: str) -> int:
    """How many outcomes the law counts."""
    p, q = laws()
    if law == "speculative.first_token":
        return len(p)
    bonus = sum(w > 0 for w in CASE.p[1])
    return int((np.minimum(p, q) > 0).sum() * bonus + (p > q).sum())


def bias_table(seeds: int, effects: tuple[float, ...] = EFFECTS) -> Iterator[dict[str, Any]]:
    """For each bias the samples it took, the plan's, and how often the laws' own plan finds it."""
    for number, effect in enumerate(effects):
        subject = subject_of(f"biased_{number}", biased(effect))
        took = [needed(subject, effect, seed) for seed in range(seeds)]
        planned = plan(cells_of("speculative.first_token"), effect)
        yield {
            "effect": effect,
            "seeds": seeds,
            "reached": sum(map(math.isfinite, took)),
            "median": statistics.median(took),
            "most": max(took),
            "screen": planned.screen,
            "confirm": planned.confirm,
            "own_plan": {law: rejected(law, subject, seeds) for law in SAMPLED},
        }


def fault_table(seeds: int) -> Iterator[dict[str, Any]]:
    """For each fault and law its distance, the samples promised for it and how often it is found.

    A fault of distance 0 is one that the law cannot see.
    """
    for number, (name, fault) in enumerate(faults().items()):
        subject = subject_of(f"fault_{number}", fault)
        for law in SAMPLED:
            effect = fault.distance(law)
            line: dict[str, Any] = {"fault": name, "law": law, "effect": effect, "seeds": seeds}
            if effect > 1e-9:
                planned = plan(cells_of(law), effect)
                with patch.object(sampling, "EFFECT", effect):
                    line["found"] = rejected(law, subject, seeds)
                line |= {"screen": planned.screen, "confirm": planned.confirm}
            line["own_plan"] = rejected(law, subject, seeds)
            yield line


def main() -> None:
    """Print each line as it comes, keep them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--smoke-seeds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    own = {law: plan(cells_of(law), sampling.EFFECT) for law in SAMPLED}
    made: dict[str, Any] = {
        "torch": torch.__version__,
        "level": EACH,
        "own_plan": {
            law: {"effect": at.effect, "screen": at.screen, "confirm": at.confirm}
            for law, at in own.items()
        },
    }
    tables = {
        "bias": bias_table(args.seeds),
        "faults": fault_table(args.seeds),
        "exact": exactly_found(args.smoke_seeds),
    }
    for name, lines in tables.items():
        made[name] = []
        for line in lines:
            made[name].append(line)
            print(json.dumps(line), flush=True)
    if args.json:
        args.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
