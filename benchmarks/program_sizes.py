"""How small the programs are that mutants of caches and decode loops shrink to.

    python benchmarks/program_sizes.py --json benchmarks/results/NAME.json

Each mutant of the family `transactions` that runs without a device and without Triton is judged by
the law that it names, with shrinking. Counted are the cases to the first failure, and the steps of
the smallest program; of a decode loop, which has none, the tokens of its prompts and its budgets.
"""

import argparse
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

from kernelassay.impls.mutants import MUTANTS
from kernelassay.impls.variants import Variant, build
from kernelassay.properties.case import literal
from kernelassay.properties.engine import Options, check
from kernelassay.properties.property import select
from kernelassay.properties.subject import Subject


def size_of(case: Any) -> int:
    """Steps of a program; tokens given and asked for of a decode loop."""
    if (steps := getattr(case, "steps", None)) is not None:
        return len(steps)
    return sum(map(len, case.prompts)) + sum(case.budget)


def shrunk(mutant: Variant, level: str, seed: int) -> dict[str, Any]:
    """What became of one mutant."""
    kernel, (prop,) = build(mutant), select(mutant.law)
    subject = Subject(kernel, mutant.dtype or kernel.capabilities.dtypes[0], "cpu")
    began = time.perf_counter()
    outcome = check(prop, subject, Options(level=level, seed=seed))
    found: dict[str, Any] = {
        "mutant": mutant.name,
        "law": mutant.law,
        "status": outcome.record.status,
        "to_first": outcome.record.to_first,
        "seconds": round(time.perf_counter() - began, 2),
    }
    if outcome.found is not None and outcome.found.case is not None:
        found["case"] = literal(outcome.found.case)
        found["size"] = size_of(outcome.found.case)
        found["steps"] = hasattr(outcome.found.case, "steps")
    return found


def main() -> None:
    """Print a line for each mutant and a summary, keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="pr")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    family = [m for m in MUTANTS if m.law.startswith("transactions.")]
    family = [m for m in family if "cpu" in build(m).capabilities.devices]
    found = []
    with ProcessPoolExecutor(args.workers) as pool:
        for one in pool.map(shrunk, family, repeat(args.level), repeat(args.seed)):
            found.append(one)
            print({k: v for k, v in one.items() if k != "case"}, flush=True)
    killed = [one for one in found if one["status"] == "failed"]
    sizes = sorted(one["size"] for one in killed if one.get("steps"))
    print(
        f"killed {len(killed)} of {len(found)}; steps of the smallest programs: median "
        f"{statistics.median(sizes)}, most {sizes[-1]}"
    )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
