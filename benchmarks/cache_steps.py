"""How long the steps of a paged KV cache take, in Triton's kernels beside plain PyTorch.

    python benchmarks/cache_steps.py --json benchmarks/results/NAME.json

One program of steps is run on both: prefill of every request, then rounds of ragged drafts of
which a part is accepted (appended, attended to, compacted or cut), forks that write. Seconds are
those of whole steps, host bookkeeping included, which is the same code for both. `--small` is a
program for `compute-sanitizer`.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelassay.impls import torch_cache, triton_cache
from kernelassay.impls.caching import CacheSpec, Store

DRAFTS, ROUNDS = 4, 8


class Program:
    """Steps with the same tensors for every cache."""

    def __init__(self, R: int, prefill: int, device: str) -> None:
        self.R, self.prefill, self.device = R, prefill, torch.device(device)
        self.made = torch.Generator(device).manual_seed(0)
        Hkv, D, page = 8, 128, 16
        most = prefill + (DRAFTS + 1) * ROUNDS
        self.spec = CacheSpec(
            R=2 * R, Hq=4 * Hkv, Hkv=Hkv, D=D, Dv=D, most=most, dtype=torch.bfloat16,
            device=self.device, page=page, pages=2 * R * (most // page + 2),
        )  # fmt: skip
        ragged = torch.randint(0, DRAFTS + 1, (ROUNDS, 2 * R), generator=self.made, device=device)
        self.counts = [row.tolist() for row in ragged]
        self.rows = {n: self.random(n, Hkv, D) for n in {R * prefill, *map(sum, self.counts)}}
        self.q = self.random(2 * R, 4 * Hkv, 1, D)

    def random(self, *shape: int) -> Tensor:
        """Random numbers, bf16."""
        return torch.randn(shape, generator=self.made, device=self.device, dtype=self.spec.dtype)

    def run(self, store: Store) -> dict[str, float]:
        """Seconds of each kind of step, and what attention saw at the end as a checksum."""
        spent = dict.fromkeys(("prefill", "fork", "append", "attend", "compact", "truncate"), 0.0)

        def step(name: str, *arguments: Any, kind: str = "") -> Any:
            torch.cuda.synchronize() if self.device.type == "cuda" else None
            began = time.perf_counter()
            came = getattr(store, name)(*arguments)
            torch.cuda.synchronize() if self.device.type == "cuda" else None
            spent[kind or name] += time.perf_counter() - began
            return came

        def append(counts: Sequence[int], kind: str) -> None:
            ends = [0, *torch.tensor(counts).cumsum(0).tolist()]
            offsets = torch.tensor(ends, dtype=torch.int32, device=self.device)
            rows = self.rows[sum(counts)]
            step("append", rows, rows, offsets, kind=kind)

        append([self.prefill] * self.R + [0] * self.R, "prefill")
        lengths = [self.prefill] * (2 * self.R)
        for r in range(self.R):  # a page is shared in the middle: the next append copies it
            lengths[self.R + r] = self.prefill - 3
            step("fork", r, self.R + r, self.prefill - 3)
        for counts in self.counts:
            append(counts, "append")
            out = step("attend", self.q)
            kept = [n // 2 for n in counts]
            for r in range(0, 2 * self.R, 4):  # a tree: every second entry was accepted
                n = counts[r]
                step("compact", r, lengths[r], list(range(1, 2 * (n // 2), 2)))
            lengths = [L + n for L, n in zip(lengths, kept, strict=True)]
            step("truncate", torch.tensor(lengths, dtype=torch.int32, device=self.device))
        spent["sum of outputs"] = float(out.float().sum())
        return spent


def main() -> None:
    """Print seconds and ratios, keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prefill", type=int, default=1024)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sizes = (3, 37) if args.small else (args.requests, args.prefill)
    program = Program(*sizes, args.device)
    found: dict[str, Any] = {"requests": 2 * sizes[0], "prefill": sizes[1], "rounds": ROUNDS}
    for kernel in (triton_cache.adapter, torch_cache.adapter):
        for _ in range(1 if args.small else 3):  # the first compiles
            spent = program.run(kernel.cache(program.spec))
        found[kernel.name] = spent
        print(kernel.name, ", ".join(f"{name} {t:.4g}" for name, t in spent.items()))
    pair = found["torch_cache"], found["triton_cache"]
    found["ratio"] = {n: pair[0][n] / pair[1][n] for n in pair[0] if n != "sum of outputs"}
    print("PyTorch / Triton:", ", ".join(f"{n} {x:.2f}" for n, x in found["ratio"].items()))
    if args.device == "cuda":
        found["device"] = torch.cuda.get_device_name()
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
