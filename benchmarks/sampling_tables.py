"""Writes docs/sampling.md from records of sampler_calibration.py and acceptance_bias.py.

    python benchmarks/sampling_tables.py benchmarks/results/2026-11-30-*sampl*.json \\
        benchmarks/results/2026-11-30-acceptance-bias.json \\
        benchmarks/results/2026-11-30-wrong-distribution.txt > docs/sampling.md

The text file is what `kernelassay run --text` wrote of a wrong sampler.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from kernelassay.oracle.statistics import plan
from kernelassay.properties.laws.sampling import EFFECT, EFFECT_ALONE

HEAD = """# How a sampler is judged

A verification of drafts draws at random, so one answer proves nothing. It is judged twice: by its
decisions, where its noise can be set, and by its samples. Both rest on exact laws: those of a case
are fractions, and the law of a round is enumerated (`oracle/speculative.py`).

`benchmarks/sampler_calibration.py` and `benchmarks/acceptance_bias.py` measure,
`benchmarks/sampling_tables.py` writes this page. Records, in `benchmarks/results/`:
"""

EXACT = """
## First the decisions

This holds for kernels whose noise comes with the call (`Sampling.noise = "injected"`), or whose
weights are handed out (`"captured"`). With uniforms given, what a round emits is piecewise
constant in them. The laws put a uniform at 0, inside each piece, to both sides of each breakpoint
and at 1 - 2^-24, the largest float32 below 1. Every round is compared with the exact one. Nearer
to a breakpoint than 2^-20, or than the declared rounding can move it, either side is right.
`speculative.implied_law` finds every breakpoint by bisection to 2^-24 and adds up the law of the
first token that they imply; it must be the target's. No chance is left and no level is spent, and
a breakpoint is seen to a millionth; by samples, a hundredth takes 400,000 of them (see below).

Kernels that accept a little too often, by d, at {seeds} seeds of a smoke run: the least d at which
a law fails at every seed, and at some. Without d none fails. At u = 0 a draft of p = 0 is accepted
whatever d > 0 is: the first line shows that, the second leaves such drafts out. Tried were d =
{tried}.
The captured kernel is transformers' `_speculative_sampling`, with cases of p > 0.
"""

STAGES = """
## Then the samples

A kernel that draws by itself (`"seeded"`, `"generators"`, `"global"`) shows samples alone; one
with injected noise is judged by both. Where weights are captured no samples are taken: what
draws from them is not the kernel's. Each case has seeds of its own, made from the case, the law
and the stage: a failure replays.

1. Screen. A token or round of probability 0 is a failure at once, whatever its number. Else the
   counts are compared with their law by the Cressie-Read statistic, cells pooled until each
   expects 5. Where p > 0.01 (and E < 100) the case passes. The screen rejects nobody else.
2. Decision, on fresh samples. E is a mixture likelihood ratio of the counts to their law; its mean
   is 1 for a right sampler, at any sample size, with any cells. It fails where E >= 1e11,
   log E >= 25.33. That happens to a right sampler with probability 1e-11 at most, however often
   one looks. Looks are at 512 samples, 1024, and so on. A run of 50,000 tests rejects a right
   sampler with probability 5e-7 at most.

A p-value cannot decide at 1e-11: the chi-squared approximation is wrong there by orders of
magnitude. It is shown as an illustration.

Sample sizes are planned for a total variation: {effect} where a call takes many requests, {alone}
where it takes one. The least visible fault of that size is missed with probability 1e-3 at most.
They go with the inverse square: a fifth of the bias needs 25 times the samples.

| outcomes | screen, {effect} | decision, {effect} | screen, {alone} | decision, {alone} |
|--:|--:|--:|--:|--:|
"""

LAWS = """
## What each law sees

| law | what is counted | does not see | holds for |
|---|---|---|---|
| `rounds` | accepted drafts and tokens, together | requests that depend on each other | token |
| `sequence` | tokens of a round, completed by draws from the target | drafts that are rejected \
needlessly, if the token then has the right law | all |
| `first_token` | the first token | the same; all after the first token | all |
| `commit_length` | the number of tokens | which tokens come | token |
| `positions` | the token at each place, given those before | whether drafts are accepted | token |
| `branches` | the first token, apart for accepted drafts and draws | all after the first token \
| token |
| `independent` | equal tokens of two requests, and of two calls | a wrong law | all |
| `calls_apart` | drafts accepted, and the first token, given how the round before ended | noise \
that rounds further apart share | own noise; drafts: token |

token: `Sampling.rounds = "token"`, draft by draft; a sampler declared `"joint"` is judged by what
it emits. Own noise: `Sampling.noise` is not injected. `positions`, `branches`, `independent` and
`calls_apart` average the e-values of several tables, which is an e-value again.

Declared lossy: `Sampling.lossy` says why what is emitted does not follow the target's law, as in
acceptance by a threshold. These laws are then "not applicable", with that reason in the report,
and a wrong law is not looked for. Memory, refusals, determinism and independence of the place in
the batch still are, and so is `possible`: no token of target probability 0, nothing after a stop
token or beyond the budget. A sampler is not lossy because it fails.
"""

CALIBRATION = """
## Right samplers

Every law judged random cases of its strata. Numbers of samples are those of plans for a total
variation of {effects}, see the head of each column; the code that decides is the same. x10: ten
tests of each case, each by samples of its own. "Decision stage by itself" is run in
addition, for every third test with a screen: the screen lets one of a hundred through to it.
`independent` judges 24 calls of 32 requests each.
"""

RATIOS = """
P(p <= a) / a is 1 where a p-value is what it says, P(E >= 1/a) / a is 1 at most. In brackets the
number of tests below a. Of p-values: tables with one cell after pooling, of which p is always 1,
are left out, and "uniform" is the chi-squared p-value of 20 equal bins. It is small where counts
are: two cells of 216 samples have so few p-values above 1/2 that bins stay empty, others are twice
as full (so are those of numpy's multinomial). What the screen rests on is P(p <= a) at small a.
"""

BIAS = """
## How small a bias the samples show

p = (2, 3, 1, 2) / 8, q = (1, 1, 4, 2) / 8, one draft. The sampler accepts below
min(1, p/q) + 2 d, which moves a mass of d: total variation d. Samples until E >= 1e11, looked at
after each, over {seeds} seeds; beside them the plan's promise for an effect of d, which holds for
the least visible fault of that size. On the right, how often the laws find it with the plan that
they have, for an effect of {effect}.
"""

FAULTS = """
Other faults, at the same p and q. "Promised" is the plan's number of samples for the fault's own
total variation (screen + decision), "found" how often the law found it with them; on the right
again with the laws' own plan.
"""

REPORT = """
## Reading a report

A sampler that after a rejection draws from p, not from [p - q]+ / Z:
`kernelassay run --kernel benchmarks/acceptance_bias.py:draws_from_p --law speculative.rounds`
prints

"""

READING = """
- First line: the law, the kernel, its dtype and device.
- WRONG DISTRIBUTION: what decided. Either an outcome of probability 0 came, as here; no number of
  samples excuses that. Or log E reached 25.33, with the number of samples it took.
- Minimal case: integer masses, each row divided by its sum. Here p = (1/2, 1/2), q = (0, 1): the
  draft is always token 1 and is accepted half of the time. Else [p - q]+ leaves token 0 alone.
- The table: outcomes that are furthest off, as observed and as expected. Rare ones may be pooled,
  joined by +. Token 1 comes after a rejection, where it cannot.
- Distance: the total variation of the counts, and which branch of the rounds has it. Here all of
  it lies in draws after a rejection: acceptance is right, the residual is wrong.
- The exact p-value illustrates; it decided nothing.
- Repeats: the same seeds give the same samples. "Rerun" has the case to run alone.

Where several laws fail, read `independent` and `calls_apart` first: with shared noise the others
fail as well, with laws that are right. Then `rounds`, which names the branch. Where `first_token`
holds and `rounds` or `sequence` fails, the fault lies after the first token: in the bonus token,
or in a row that is read at another place.
"""


def columns(names: Sequence[str], left: int = 1) -> Iterator[str]:
    """The head of a table, its first columns aligned to the left."""
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * left + "--:|" * (len(names) - left)


def cells(*values: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, values))} |"


def thousands(n: float) -> str:
    """A whole number with commas."""
    return f"{n:,.0f}"


def least(kills: dict[str, int], enough: int) -> str:
    """The least d from which on the law fails at so many seeds, downwards from the largest."""
    found = None
    for exponent in sorted(int(e) for e in kills if e != "None"):
        if kills[str(exponent)] < enough:
            break
        found = exponent
    return "none" if found is None else f"2^-{found}"


def exact_part(record: dict[str, Any]) -> Iterator[str]:
    """What the exact laws find."""
    lines = record["exact"]
    if any(line["kills"]["None"] for line in lines):
        raise ValueError("a law fails where there is no bias")
    tried = ", ".join(f"2^-{e}" for e in lines[0]["kills"] if e != "None")
    yield EXACT.format(seeds=lines[0]["seeds"], tried=tried)
    yield from columns(("bias", "law", "at every seed", "at some seed"), 2)
    for line in lines:
        at = (least(line["kills"], n) for n in (line["seeds"], 1))
        yield cells(line["bias"], f"`{line['law'].split('.')[1]}`", *at)


def stages_part() -> Iterator[str]:
    """The two stages, with the sample sizes of the plans."""
    yield STAGES.format(effect=EFFECT, alone=EFFECT_ALONE).rstrip("\n")
    for k in (2, 4, 8, 16):
        plans = [plan(k, effect) for effect in (EFFECT, EFFECT_ALONE)]
        yield cells(k, *(thousands(n) for x in plans for n in (x.screen, x.confirm)))


def calibration_part(records: list[dict[str, Any]]) -> Iterator[str]:
    """What right samplers show."""
    lines = [(record["effect"], line) for record in records for line in record["lines"]]
    yield CALIBRATION.format(effects=" or ".join(sorted({str(effect) for effect, _ in lines})))
    yield from columns(("decisions", *(titled(effect, line) for effect, line in lines)))
    tests = [*dict.fromkeys(test for _, line in lines for test in line["decisions"])]
    for test in sorted(tests, key=lambda x: "." not in x):
        name = f"`{test.split('.')[1]}`" if "." in test else test
        yield cells(name, *(thousands(line["decisions"].get(test, 0)) for _, line in lines))
    yield cells("rejected", *(line["rejected"] for _, line in lines))
    yield ""
    total = sum(sum(line["decisions"].values()) - reached(line) for _, line in lines)
    lost = sum(line["rejected"] for _, line in lines)
    yield f"{thousands(total)} decisions in all, {lost} rejections."
    yield RATIOS
    for kind, title in (("p_values", "p-values"), ("e_values", "e-values")):
        levels = [*next(iter(lines[0][1][kind].values()))["hits"]]
        last = ("uniform",) if kind == "p_values" else ("largest log E",)
        yield from columns((title, "run", "tests", *levels, *last), 2)
        for name in dict.fromkeys(name for _, line in lines for name in line[kind]):
            runs = {titled(*x): x[1][kind][name] for x in lines if name in x[1][kind]}
            runs["all"] = together([*runs.values()])
            for run, found in runs.items():
                yield cells(name, run, thousands(found["tests"]), *ratios(found))
        yield ""


def titled(effect: float, line: dict[str, Any]) -> str:
    """A run: its kernel, the total variation that is planned for, tests of each case."""
    many = line.get("repeats", 1)
    return f"{line['kernel']}, {effect}" + (f", x{many}" if many > 1 else "")


def together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The p-values or e-values of several runs as if of one."""
    tests = sum(x["tests"] for x in found)
    hits = {level: sum(x["hits"][level] for x in found) for level in found[0]["hits"]}
    ratio = {level: n / tests / float(level) for level, n in hits.items()}
    made: dict[str, Any] = {"tests": tests, "hits": hits, "ratio": ratio}
    if "bins" in found[0]:
        bins = [sum(x) for x in zip(*(x["bins"] for x in found), strict=True)]
        return {**made, "bins": bins, "uniform_p": float(stats.chisquare(bins).pvalue)}
    return {**made, "largest_log_e": max(x["largest_log_e"] for x in found)}


def reached(line: dict[str, Any]) -> int:
    """How many tests came to the decision stage: they are counted under their laws already."""
    return int(line["decisions"].get("reached after the screen", 0))


def ratios(found: dict[str, Any]) -> Iterator[str]:
    """P / a at each level, with the number of tests, and the last column."""
    for level, ratio in found["ratio"].items():
        yield f"{ratio:.2f} ({found['hits'][level]})"
    yield f"{found.get('uniform_p', found.get('largest_log_e')):.2f}"


def histogram(records: list[dict[str, Any]]) -> Iterator[str]:
    """The screen's p-values of all kernels in 20 bins, as shares of what each should hold."""
    lines = [line for record in records for line in record["lines"]]
    sums = together([x["p_values"]["screen"] for x in lines if "screen" in x["p_values"]])["bins"]
    each = sum(sums) / len(sums)
    yield f"The screen's {thousands(sum(sums))} p-values in 20 bins of [0, 1], each divided by"
    yield f"its expected {each:.1f}; the standard deviation of one is {each**-0.5:.2f}:\n"
    yield "    " + " ".join(f"{n / each:.2f}" for n in sums[:10])
    yield "    " + " ".join(f"{n / each:.2f}" for n in sums[10:])
    tests = sum(x["p_values"]["screen"]["tests"] for x in lines if "screen" in x["p_values"])
    if missing := tests - sum(sums):
        yield f"\nOf {missing} more tables p is not a number: counts are as expected, and rounding"
        yield "makes the statistic negative. They go on to the decision."


def bias_part(record: dict[str, Any]) -> Iterator[str]:
    """Biases, and other faults, by samples."""
    seeds = record["bias"][0]["seeds"]
    yield BIAS.format(seeds=seeds, effect=EFFECT)
    own = [f"`{law.split('.')[1]}`" for law in record["own_plan"]]
    names = ("d", "reached", "median", "most", "promised", *(f"found by {x}" for x in own))
    yield from columns(names, 0)
    for x in record["bias"]:
        took = (f"{x['reached']}/{seeds}", *(thousands(x[n]) for n in ("median", "most")))
        found = (f"{n}/{seeds}" for n in x["own_plan"].values())
        yield cells(x["effect"], *took, thousands(x["confirm"]), *found)
    yield FAULTS
    yield from columns(("fault", "law", "distance", "promised", "found", "own plan"), 2)
    for x in record["faults"]:
        promised = f"{thousands(x['screen'])} + {thousands(x['confirm'])}"
        found = (f"{x[n]}/{x['seeds']}" for n in ("found", "own_plan"))
        law = f"`{x['law'].split('.')[1]}`"
        yield cells(x["fault"], law, f"{x['effect']:.4f}", promised, *found)


def report_part(text: str) -> Iterator[str]:
    """The first report of a run, and how it is read."""
    yield REPORT.rstrip("\n")
    yield ""
    yield from (f"    {line}".rstrip() for line in first_report(text))
    yield READING.rstrip("\n")


def first_report(text: str) -> Iterable[str]:
    """Lines from FAILED up to the way to keep the case."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("FAILED"))
    end = next(i for i, line in enumerate(lines) if i > start and line.startswith("Script:"))
    return lines[start:end]


def page(paths: Sequence[Path]) -> Iterator[str]:
    """The page, paragraph by paragraph."""
    calibrations, bias, text = [], None, None
    yield HEAD
    for path in paths:
        yield f"- `{path.name}`"
        if path.suffix == ".txt":
            text = path.read_text()
        elif "lines" in (record := json.loads(path.read_text())):
            calibrations.append(record)
        else:
            bias = record
    if bias is None or text is None or not calibrations:
        raise ValueError("records of calibration and of bias, and a report, expected")
    yield from exact_part(bias)
    yield from stages_part()
    yield LAWS.rstrip("\n")
    yield from calibration_part(calibrations)
    yield from histogram(calibrations)
    yield from bias_part(bias)
    yield from report_part(text)


if __name__ == "__main__":
    print("\n".join(page([Path(name) for name in sys.argv[1:]])))
