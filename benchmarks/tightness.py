"""How much of its budget a right kernel uses: largest error / allowed, on N(0, 1) inputs.

    python benchmarks/tightness.py --device cpu torch_reference sdpa_math
    python benchmarks/tightness.py --device cuda --json benchmarks/results/NAME.json ...

A budget that no kernel comes near finds nothing; one that a right kernel exceeds is wrong. For
each kernel, dtype and mode: the median and the worst over calls of the largest ratio in a call,
for the output and for the LSE, and the largest z_rms of calls with enough elements.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernelassay.loading import load_kernel
from kernelassay.oracle.budget import Z_RMS_ELEMENTS
from kernelassay.properties.case import AttendCase
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.judge import budget_for, empty_rows
from kernelassay.properties.subject import Subject

MODES: dict[str, dict[str, Any]] = {
    "dense": {},
    "causal": {"causal": "bottom_right"},
    "window": {"window": (40, 0), "causal": "bottom_right"},
    "mask": {"mask": "keep:1:50:qk"},
    "bias": {"bias": "random:9:1.0:hqk"},
    "soft cap": {"softcap": 2.0},
    "ALiBi": {"alibi": "standard", "causal": "bottom_right"},
    "sink": {"sink_logits": "random:9:1.0"},
    "GQA": {"Hq": 4, "Hkv": 2},
}
MERGES: dict[str, dict[str, Any]] = {
    "2 parts": {"parts": 2},
    "8 parts": {"parts": 8},
    "16 parts in pairs": {"parts": 16, "tree": "balanced"},
    "16 parts in a row": {"parts": 16, "tree": "left"},
}
SHAPES = ((33, 33), (17, 95), (1, 300), (64, 257), (128, 128), (64, 1000))


def cases(subject: Subject, mode: dict[str, Any], seeds: int) -> Iterator[AttendCase]:
    """Calls of a mode within the subject's capabilities."""
    domain = domain_of(subject)
    for Tq, Tk in SHAPES:
        for D in (64, 128):
            for seed in range(seeds):
                content = {n: f"random:{3 * seed + i}" for i, n in enumerate("qkv")}
                case = AttendCase(
                    **({"Hq": 2, "Hkv": 2} | divided(subject, mode, Tk)),
                    Tq=Tq, Tk=Tk, D=D, **content,
                )  # fmt: skip
                if domain.fits(case.B, case.Hq, Tq, Tk) and not lacking(case, domain):
                    yield case


def divided(subject: Subject, mode: dict[str, Any], Tk: int) -> dict[str, Any]:
    """The fields of a mode, with cuts for a merge and splits where the kernel is told them."""
    fields = dict(mode)
    if subject.merges:
        n = fields.pop("parts")
        fields["cuts"] = tuple(Tk * i // n for i in range(1, n))
    elif subject.capabilities.splits:
        fields["splits"] = 5
    return fields


def measured(subject: Subject, case: AttendCase) -> dict[str, float]:
    """Largest error / allowed of one call, and z_rms where it is a statistic."""
    subject.current = case
    answer = subject.attend(case)
    budget = budget_for(case, subject.dtype, subject.place, subject.numerics)
    rows = ~empty_rows(budget)
    ratio = ((answer.out.double() - budget.out).abs() / budget.out_allowed)[rows]
    found = {"out": float(ratio.max())}
    if answer.out[rows].numel() >= Z_RMS_ELEMENTS:
        found["z_rms"] = budget.z_rms(answer.out.double())
    if answer.lse is not None:
        error = (answer.lse.double() - budget.lse).abs() / budget.lse_allowed
        found["lse"] = float(error[rows].max())
    return found


def summary(subject: Subject, mode: str, seeds: int) -> dict[str, Any] | None:
    """One line of the table."""
    modes = MERGES if subject.merges else MODES
    rows = [measured(subject, c) for c in cases(subject, modes[mode], seeds)]
    if not rows:
        return None
    line: dict[str, Any] = {"kernel": subject.name, "dtype": subject.dtype, "mode": mode}
    line |= {"device": subject.device, "calls": len(rows)}
    for name in ("out", "lse", "z_rms"):
        if values := [r[name] for r in rows if name in r]:
            line[name] = {"median": statistics.median(values), "worst": max(values)}
    return line


def main() -> None:
    """Print the table as Markdown, keep the numbers as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kernels", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines = []
    print("| kernel | dtype | mode | calls | out median | worst | LSE median | worst | z_rms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for spec in args.kernels:
        for loaded in load_kernel(spec):
            for dtype in loaded.adapter.capabilities.dtypes:
                merges = "merge" in loaded.adapter.capabilities.operations
                for mode in MERGES if merges else MODES:
                    subject = Subject(loaded.adapter, dtype, args.device)
                    if (line := summary(subject, mode, args.seeds)) is not None:
                        lines.append(line)
                        print(row(line), flush=True)
    if args.json:
        device = torch.cuda.get_device_name() if args.device == "cuda" else args.device
        made = {"device": device, "torch": torch.__version__, "lines": lines}
        args.json.write_text(json.dumps(made, indent=1) + "\n")


def row(line: dict[str, Any]) -> str:
    """A line of the table as Markdown."""
    cells = [line["kernel"], line["dtype"], line["mode"], str(line["calls"])]
    for name in ("out", "lse"):
        found = line.get(name)
        cells += [f"{found[k]:.2f}" for k in ("median", "worst")] if found else ["", ""]
    cells.append(f"{line['z_rms']['worst']:.2f}" if "z_rms" in line else "")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
