"""How long verification takes: many requests over small laws, some over a large vocabulary.

    python benchmarks/verify_rows.py --json benchmarks/results/NAME.json

Rows are the target's: a request of k drafts has k + 1. Seconds are those of whole calls of the
bundled Triton kernel, the checks of its launcher included and apart; memory bandwidth is what its
reads of p and q come to.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from kernelassay.impls import triton_verify
from kernelassay.impls.contract import VerifyCall

DRAFTS = 4


def call(requests: int, V: int, device: str) -> VerifyCall:
    """Requests of four drafts with random laws; one law in the table for each of 1024 requests."""
    made = torch.Generator(device).manual_seed(0)
    N, some = requests * DRAFTS, min(requests, 1024)
    p = torch.softmax(torch.randn(some * (DRAFTS + 1), V, generator=made, device=device), -1)
    q = torch.softmax(torch.randn(some * DRAFTS, V, generator=made, device=device), -1)
    times = -(-requests // some)
    return VerifyCall(
        drafts=torch.randint(0, V, (N,), generator=made, device=device, dtype=torch.int32),
        offsets=torch.arange(0, N + 1, DRAFTS, device=device, dtype=torch.int32),
        p=p.repeat(times, 1)[: requests * (DRAFTS + 1)],
        q=q.repeat(times, 1)[:N],
        accept=torch.rand(N, generator=made, device=device),
        draw=torch.rand(N + requests, generator=made, device=device),
        most=DRAFTS,
    )


def seconds(run: Any, device: str) -> float:
    """The least of five runs."""

    def once() -> float:
        began = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    once()
    return min(once() for _ in range(5))


def main() -> None:
    """Print seconds, keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", nargs=2, type=int, default=(10**7, 10**4))
    parser.add_argument("--vocabulary", nargs=2, type=int, default=(32, 152_064))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    named = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    found: dict[str, Any] = {"device": named, "drafts": DRAFTS, "sizes": []}
    for rows, V in zip(args.rows, args.vocabulary, strict=True):
        given = call(rows // (DRAFTS + 1), V, args.device)
        whole = seconds(lambda given=given: triton_verify.adapter.verify(given), args.device)
        kernel = seconds(lambda given=given: triton_verify.verified(given, -1), args.device)
        read = given.p.nbytes + (0 if given.q is None else given.q.nbytes)
        found["sizes"].append({"rows": rows, "V": V, "call": whole, "kernel": kernel})
        print(
            f"{rows:,} rows of V = {V:,}: {whole:.3f} s a call, {kernel:.3f} s without its "
            f"checks, {read / kernel / 1e9:.0f} GB/s of p and q"
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
