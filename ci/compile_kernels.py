"""Compile every bundled Triton kernel and every Triton mutant for GPUs that need not be present.

The interpreter runs kernels that no compiler accepts (a name assigned only inside a loop, say),
and knows no limit of shared memory, so a machine without a GPU compiles as well as interprets.
Mutants are compiled for the first target alone. Usage: ci/compile [target ...]
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module, util
from multiprocessing import get_context
from typing import Any

KERNELS = (
    "triton_attention",
    "triton_split",
    "triton_paged",
    "triton_merge",
    "triton_partial",
    "triton_verify",
    "triton_law",
    "triton_cache",
)
"""Modules of kernelassay.impls with compile_specs()."""
TARGETS = {
    "sm_90": ("cuda", 90, 32),
    "sm_80": ("cuda", 80, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
KIB = {"sm_90": 227, "sm_80": 99, "sm_100": 227, "gfx942": 64}
"""Shared memory of a program; of the family of sm_80, what the smallest, sm_86, has."""
PROCESSES = 2

Spec = tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]
Job = tuple[str, int, str]  # kernel or mutant, number of its spec, target


def specs_of(name: str) -> list[Spec]:
    """All specs of a bundled kernel, or the specs of a mutant's module."""
    if name in KERNELS:
        return list(import_module(f"kernelassay.impls.{name}").compile_specs())
    variants = import_module("kernelassay.impls.variants")
    mutant = next(m for m in triton_mutants() if m.name == name)
    return list(variants.build_module(mutant).compile_specs())


def triton_mutants() -> Iterator[Any]:
    """Text mutants of the bundled Triton kernels; none while there is no bank."""
    if util.find_spec("kernelassay.impls.mutants") is None:
        return
    for mutant in import_module("kernelassay.impls.mutants").MUTANTS:
        if mutant.base.rpartition(".")[2] in KERNELS:
            yield mutant


def jobs(targets: list[str]) -> Iterator[Job]:
    """Every spec of the bundled kernels for each target, the last spec of each mutant for one."""
    for target in targets:
        for name in KERNELS:
            for number in range(len(specs_of(name))):
                yield name, number, target
    for mutant in triton_mutants():
        yield mutant.name, -1, targets[0]


def compile_one(job: Job) -> tuple[Job, str, float]:
    """The job, what went wrong ("" if nothing did), and the seconds it took."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    name, number, target = job
    began = time.perf_counter()
    try:
        kernel, signature, constexprs, options = specs_of(name)[number]
        source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
        made = triton_compile(source, target=GPUTarget(*TARGETS[target]), options=options)
        if (takes := made.metadata.shared) > (limit := KIB[target] * 1024):
            error = f"{takes} bytes of shared memory; {target} has {limit}: take smaller tiles"
            return job, error, time.perf_counter() - began
    except Exception as error:  # whatever a compiler raises is the answer
        return job, f"{type(error).__name__}: {error}", time.perf_counter() - began
    return job, "", time.perf_counter() - began


def main() -> int:
    targets = sys.argv[1:] or list(TARGETS)
    if unknown := [t for t in targets if t not in TARGETS]:
        sys.exit(f"ci/compile: unknown target {unknown[0]}; there are {', '.join(TARGETS)}")
    began, failed, count = time.perf_counter(), 0, 0
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for (name, number, target), error, seconds in pool.map(compile_one, jobs(targets)):
            count += 1
            failed += bool(error)
            which = "" if number == -1 else f"[{number}]"
            print(f"{target:7} {name + which:40} {error or f'ok {seconds:5.1f} s'}", flush=True)
    seconds = time.perf_counter() - began
    print(f"{count - failed} of {count} compiled for {', '.join(targets)} in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
