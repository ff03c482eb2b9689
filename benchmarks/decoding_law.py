"""How a decode loop stands by its target's law, at stated sample sizes, and by its greedy text.

    python benchmarks/decoding_law.py --samples 20000 --models 1000

Joint law: for each seed and kind of drafts, the e-value of the counts of emitted texts against the
target's autoregressive law (V = 3, three tokens, stop token included), their total variation and
its expectation under the law. A right loop reaches 1 / 1e-11 in no cell. Greedy: so many random
models and prompts, the share whose text is that of full forwards, margins above 16 x slack. JSON
to stdout or --json. On one core of a 2 GHz server the defaults take about 5 minutes.
"""

import argparse
import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from kernelassay.loading import load_kernel
from kernelassay.oracle.decoding import greedy_text, text_law
from kernelassay.oracle.statistics import EACH, log_evalue, strength
from kernelassay.properties.decoding.answers import call_of, decode, models_of
from kernelassay.properties.decoding.case import DecodeCase
from kernelassay.properties.decoding.labels import clear
from kernelassay.properties.laws.decoding_chance import sampled
from kernelassay.properties.speculative.sampling import generator
from kernelassay.properties.subject import Subject

KINDS = ("near", "far", "same", "lookup")


def joint(subject: Subject, seed: int, drafts: str, samples: int) -> dict[str, Any]:
    """The e-value of one joint law and the distance to it."""
    case = DecodeCase(
        model=seed, prompts=((0, 1, 0),), drafts=drafts, budget=(3,), stop=((2,),), noise=seed
    )
    models = models_of(subject, case)
    law = text_law(models.task(0), models.target(0))
    counts = Counter[tuple[int, ...]]()
    for result in sampled(subject, case, "benchmark", samples):
        counts.update(tuple(text) for text in result.tokens)
    masses = np.array([*(float(w) for w in law.values()), 0.0])
    seen = np.array([*(counts.pop(cell, 0) for cell in law), sum(counts.values())])
    p = masses / masses.sum()
    # E|count/n - p| of a binomial share, summed: what chance alone makes of the distance.
    chance = float(np.sqrt(2 * p * (1 - p) / (math.pi * samples)).sum() / 2)
    log_e = float(log_evalue(seen, p, strength(len(law), EACH) * samples))
    distance = float(np.abs(seen / samples - p).sum() / 2)
    return {
        "seed": seed,
        "drafts": drafts,
        "cells": len(law),
        "samples": samples,
        "log_e": round(log_e, 3),
        "rejected": log_e >= -math.log(EACH),
        "distance": round(distance, 5),
        "distance_by_chance": round(chance, 5),
    }


def greedy(subject: Subject, models: int) -> dict[str, Any]:
    """Greedy texts of random models, prompts, schedules and kinds of drafts."""
    equal = judged = 0
    for m in range(models):
        chance = generator("greedy", m)
        V = int(chance.integers(3, 9))
        prompts = tuple(
            tuple(int(x) for x in chance.integers(V, size=int(chance.integers(1, 6))))
            for _ in range(int(chance.integers(1, 4)))
        )
        R = len(prompts)
        case = DecodeCase(
            model=m,
            V=V,
            prompts=prompts,
            drafts=KINDS[m % len(KINDS)],
            schedule=tuple(int(k) for k in chance.integers(0, 5, size=3)),
            budget=tuple(int(n) for n in chance.integers(1, 13, size=R)),
            stop=tuple((int(x),) for x in chance.integers(V, size=R)),
            minimum=tuple(int(n) for n in chance.integers(0, 3, size=R)),
            greedy=tuple(range(R)),
        )
        case.checked()
        tokens, known = decode(subject, call_of(subject, case)).tokens, models_of(subject, case)
        for r in range(R):
            if clear(known, r):
                judged += 1
                equal += greedy_text(known.task(r), known.target(r))[0] == tuple(tokens[r])
    return {"models": models, "requests": judged, "equal": equal}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", default="kernelassay.impls.speculative_decoder:adapter")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--json", default="-")
    options = parser.parse_args()
    kernel = load_kernel(options.kernel)[0].adapter
    subject = Subject(kernel, kernel.capabilities.dtypes[0], options.device)
    start = time.perf_counter()
    laws = [joint(subject, s, d, options.samples) for s in range(options.seeds) for d in KINDS]
    middle = time.perf_counter()
    made = {
        "kernel": kernel.name,
        "device": options.device,
        "joint": laws,
        "joint_seconds": round(middle - start, 1),
        "greedy": greedy(subject, options.models),
        "greedy_seconds": round(time.perf_counter() - middle, 1),
    }
    text = json.dumps(made, indent=1)
    if options.json == "-":
        print(text)
    else:
        Path(options.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
