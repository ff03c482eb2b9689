"""How much faster decoding over many keys is in splits: one query, 65536 keys, in one run.

    python benchmarks/split_decode.py --json benchmarks/results/NAME.json

Times are medians of launches on a GPU; what counts is their ratio. The unsplit kernel is the same
one with splits = 1, and the bundled prefill kernel beside it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import triton

from kernelassay.impls import triton_attention, triton_split
from kernelassay.impls.contract import AttendCall

SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)


def call(Tk: int, splits: int | None, dtype: torch.dtype) -> AttendCall:
    """One query of 32 heads over *Tk* keys of 8 KV heads, D = 128."""
    q = torch.randn(1, 32, 1, 128, device="cuda", dtype=dtype)
    k, v = (torch.randn(1, 8, Tk, 128, device="cuda", dtype=dtype) for _ in range(2))
    return AttendCall(q=q, k=k, v=v, splits=splits)


def milliseconds(kernel: Any, given: AttendCall) -> float:
    """The median time of a call."""
    return float(triton.testing.do_bench(lambda: kernel.attend(given), return_mode="median"))


def main() -> None:
    """Print times and ratios, keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=65536)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "keys": args.keys}
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        whole = milliseconds(triton_attention.adapter, call(args.keys, None, dtype))
        times = {n: milliseconds(triton_split.adapter, call(args.keys, n, dtype)) for n in SPLITS}
        found[name] = {"triton_attention": whole, "triton_split": times}
        for n, ms in times.items():
            print(
                f"{name} splits {n:4}: {ms:8.4f} ms, {times[1] / ms:6.1f}x of one split, "
                f"{whole / ms:6.1f}x of triton_attention"
            )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
