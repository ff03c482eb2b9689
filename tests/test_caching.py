"""Programs of cache steps: cases, what reads can tell apart, strata, laws, the report."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis.stateful import run_state_machine_as_test

from kernelassay.impls import torch_cache, torch_ring, transformers_cache
from kernelassay.impls.contract import CacheSpec, Unsupported
from kernelassay.impls.mutants import CONTROLS, MUTANTS
from kernelassay.impls.torch_cache import PagedStore
from kernelassay.impls.variants import Variant, build
from kernelassay.oracle.formats import format_of
from kernelassay.oracle.transactions import append, start, truncate
from kernelassay.properties.caching import ledger
from kernelassay.properties.caching.case import CacheCase
from kernelassay.properties.caching.domain import CacheDomain
from kernelassay.properties.caching.labels import facts
from kernelassay.properties.caching.machine import cache_machine
from kernelassay.properties.caching.reads import KINDS, expected, off, reads
from kernelassay.properties.caching.run import played
from kernelassay.properties.case import CaseError, case_from, case_id, parse_case, to_json
from kernelassay.properties.diagnosis import diagnose
from kernelassay.properties.domain import domain_of, lacking
from kernelassay.properties.engine import Options, Outcome, check
from kernelassay.properties.failures import Failure, WrongState
from kernelassay.properties.fewer_steps import without_a_step
from kernelassay.properties.labels import LABELS, labels
from kernelassay.properties.property import REGISTRY, select
from kernelassay.properties.subject import Subject
from kernelassay.report import render
from kernelassay.script import repro_script

NAMED = {v.name: v for v in (*MUTANTS, *CONTROLS)}
LAWS = [p for p in select() if p.operation == "cache"]
PAGED = Subject(torch_cache.adapter, "fp32", "cpu")
RING = Subject(torch_ring.adapter, "fp32", "cpu")
ROUND = CacheCase(
    R=2,
    Hq=4,
    Hkv=2,
    page=3,
    steps=(("append", (4, 0)), ("fork", 0, 1, 4), ("append", (2, 1)), ("truncate", (5, 4)),
           ("compact", 0, 1, (1, 3)), ("append", (0, 2)), ("free", 0)),
)  # fmt: skip


@pytest.mark.parametrize("case", [CacheCase(), ROUND, CacheCase(window=3, spare=1, padding=2)])
def test_a_case_is_its_text(case: CacheCase) -> None:
    """What is printed, and what JSON keeps, reads back as the same case under the same id."""
    case.checked()
    again, from_json = parse_case(repr(case)), case_from(to_json(case))
    assert again == from_json == case
    assert case_id("a law", again) == case_id("a law", case)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("steps=(('append', (1, 1)),)", "step 0: got ('append', (1, 1)), expected 1 counts"),
        ("steps=(('append', (2,)), ('truncate', (3,)))", "step 1: .* a length of 0 to 2"),
        ("steps=(('append', (65,)),)", "step 0: .* at most 64 entries"),
        ("steps=('append',)", "step 0: got 'append', expected a name and arguments"),
        ("steps=(('append', (5,)),), page=2, pages=2", "pages: got 2, expected at least the 3"),
        ("pages=2", "pages: got a size of the pool without a page"),
        ("Hq=3, Hkv=2", "Hq=3 is not a multiple of Hkv=2"),
        ("D=4", "D: got 4, expected at least 8"),
        ("R=0", "R: got 0, expected at least 1"),
        ("padding=-1", "padding: got -1, expected at least 0"),
    ],
)
def test_an_impossible_program_says_which_step(fields: str, expected: str) -> None:
    """A `CaseError` names the step, or the field, and what is expected."""
    pattern = expected.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(CaseError, match=pattern):
        parse_case(f"CacheCase({fields})")


def attended(case: CacheCase, entries: Any, read: Any, dtype: str) -> torch.Tensor:
    """Attention of the read's queries over these entries of request 0, naively, as *dtype* has."""
    kind = format_of(dtype).dtype
    k = ledger.keys(entries, case.Hkv, case.D).to(kind).double()
    v = ledger.values(entries, case.Hkv, case.value_size).to(kind).double()
    group, L, T = case.Hq // case.Hkv, len(entries), read.rows
    k, v = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    z = read.q[0].to(kind).double() @ k.mT / case.D**0.5
    hidden = torch.arange(L) > torch.arange(L - T, L)[:, None]
    p = z.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
    return (p.to(kind).double() @ v).to(kind).double()[None]


def read_of(case: CacheCase, state: Any, kind: str) -> Any:
    """The one call of a read with many queries."""
    (read,) = reads(case, state, kind, many=True)
    return read


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("D", [8, 16, 64, 80, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_naive_attention_reads_what_is_held(dtype: str, D: int, kind: str) -> None:
    """In every format and size the reads of 40 entries are right, probabilities rounded."""
    case = CacheCase(Hq=2, Hkv=2, D=D)
    state = append(start(1), (40,))
    read = read_of(case, state, kind)
    got = attended(case, state.entries[0], read, dtype)
    assert not off(read, got, expected(case, state, read), empty_zeros=True).any()


def test_reads_tell_one_entry_more_fewer_twice_and_another_one_apart() -> None:
    """Of 2 to 40 entries, each fault of one of them shows in a needle or in a mean."""
    case = CacheCase(D=16)
    for n in (2, 3, 7, 19, 40):
        state = append(start(1), (n,))
        held = list(state.entries[0])
        draft = append(truncate(append(start(1), (n + 1,)), (n,)), (1,)).entries[0][n]
        for j in {0, n // 2, n - 1}:
            wrongs = {
                "twice": [held[j] if i == (j + 1) % n else held[i] for i in range(n)],
                "another": [*held[:j], draft, *held[j + 1 :]],
                "exchanged": [*held[:j], *held[j:][::-1]] if j < n - 1 else held[::-1],
            }
            for what, entries in wrongs.items():
                seen = [read_of(case, state, kind) for kind in ("needle", "mean")]
                assert any(
                    off(
                        read,
                        attended(case, entries, read, "fp32"),
                        expected(case, state, read),
                        empty_zeros=True,
                    ).any()
                    for read in seen
                ), (n, j, what)


def test_stale_keys_show_in_bits() -> None:
    """Keys of a draft beside values of the entry: needles find it, bits of the token differ."""
    case = CacheCase(D=16)
    state = append(start(1), (6,))
    token, position, owner = state.entries[0][2]
    stale = [*state.entries[0]]
    stale[2] = (token + 8, position, owner)
    k = ledger.keys(stale, 1, 16)
    wrong = 0
    for turn in range(0, 16, 5):
        (read,) = reads(case, state, "bit", many=True, turn=turn)
        v = ledger.values(state.entries[0], 1, 16)
        z = read.q[0] @ k.transpose(0, 1).mT / 4
        hidden = torch.arange(6) > torch.arange(6)[:, None]
        got = (z.masked_fill(hidden, -torch.inf).softmax(-1) @ v.transpose(0, 1))[None]
        wrong += int(off(read, got, expected(case, state, read), empty_zeros=True).sum())
    assert wrong


def test_nothing_is_no_entry() -> None:
    """A value of zeros, of NaN or of fractions is none of the entries."""
    for row in ([0.0, 0.0, 0.0], [torch.nan] * 3, [1.5, 2.0, 0.0], [torch.inf, 0.0, 0.0]):
        assert ledger.tokens_in(row) is None
    assert ledger.tokens_in(ledger.values([(7, 3, 1)], 1, 8)[0, 0].tolist()) == (7, 3, 1)


def strata() -> Iterator[Any]:
    """Every stratum of every law, once."""
    found = {label: build for law in LAWS for label, build in law.strata.items()}
    yield from found.items()


DOMAINS: dict[str, CacheDomain] = {
    "pages": domain_of(PAGED),
    "rings": domain_of(RING),
    "one length": domain_of(Subject(transformers_cache.dynamic_cache, "fp32", "cpu")),
}


def made_by(strategy: Any, domain: CacheDomain, label: str) -> None:
    """Ten programs of a stratum are valid, within the domain, and carry its label."""

    @settings(
        max_examples=10, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
    )
    @given(case=strategy)
    def holds(case: CacheCase) -> None:
        case.checked()
        assert label in labels(case, domain)
        assert label in LABELS
        assert label == "declined" or not lacking(case, domain), (label, case)

    holds()


@pytest.mark.parametrize("kind", DOMAINS)
def test_strata_make_programs_of_their_label(kind: str) -> None:
    """Every program is valid, within the domain, and does what its stratum is about."""
    domain, made = DOMAINS[kind], 0
    for label, build_stratum in strata():
        if (strategy := build_stratum(domain)) is not None:
            made_by(strategy, domain, label)
            made += 1
    assert made >= 10


def test_labels_are_known() -> None:
    """Everything that programs are labelled with can be named in an expectation."""
    assert facts(ROUND) <= LABELS
    assert {"fork_inside_page", "copied_on_write", "freed", "exact_pool"} <= facts(ROUND)


def outcome(kernel: Any, law: str, seed: int = 0) -> tuple[Outcome, Subject]:
    """What becomes of a kernel under a law, shrunk."""
    subject = Subject(kernel, "fp32", "cpu")
    return check(REGISTRY[law], subject, Options(level="smoke", seed=seed)), subject


def test_a_report_shows_the_program_and_the_cache() -> None:
    """The step that broke, what it dropped, entries expected beside read, pages."""
    kernel = build(NAMED["cache_shares_pages_that_are_written_to"])
    came, subject = outcome(kernel, "transactions.copy_on_write")
    assert came.found is not None
    law = REGISTRY["transactions.copy_on_write"]
    picture = diagnose(law, subject, came.found, came.search)
    text = render(came.record, law, subject, came.found, picture, came.search)
    lines = text.splitlines()
    (broke,) = [line for line in lines if line.startswith("->")]
    assert "append" in broke
    assert "Before that step" in lines
    (after,) = [line for line in lines if line.endswith(", expected and read")]
    at = lines.index(after)
    assert lines[at + 1].startswith("  request ")
    assert lines[at + 2].startswith("       read: ")
    assert lines[at + 1].split(":")[1] != lines[at + 2].split(":")[1]
    assert lines[at + 3].startswith("      pages: ")
    assert len(lines) <= 60
    assert text.isascii()
    assert max(map(len, lines)) <= 100


def test_a_report_says_where_a_rejected_entry_came_from() -> None:
    """The token, the step that appended it and the one that dropped it."""
    kernel = build(NAMED["cache_appends_at_the_start_of_the_page"])
    case = CacheCase(page=4, steps=(("append", (3,)), ("truncate", (2,)), ("append", (1,))))
    with pytest.raises(WrongState) as failed:
        played(Subject(kernel, "fp32", "cpu"), case)
    assert "after step 3" in failed.value.message
    assert "t3, which step 3 appended to request 0 at 2 at position 0; expected t0" in (
        failed.value.message
    )
    kept = build(NAMED["cache_keeps_rejected_entries"])
    with pytest.raises(WrongState, match=r"as if it saw t2, which step 1 .* and step 2 dropped"):
        played(Subject(kept, "fp32", "cpu"), replace(case, steps=case.steps[:2]), each=("mean",))


def test_a_failure_replays_from_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    """`kernelassay repro` writes a script that fails as the law does."""
    came, _ = outcome(build(NAMED["cache_forks_request_0"]), "transactions.copy_on_write")
    record = {**vars(came.record), "case_id": came.record.case_id}
    script = repro_script(record, "kernelassay.impls.torch_cache:adapter")
    exec(compile(script, "repro.py", "exec"), {"__name__": "repro"})  # the base is right
    assert "the law holds" in capsys.readouterr().out
    wrong = script.replace("\n\n(law,)", '\nkernel = variant("cache_forks_request_0")\n\n(law,)')
    assert wrong != script
    names = {"variant": lambda name: build(NAMED[name])}
    with pytest.raises(Failure):
        exec(compile(wrong, "repro.py", "exec"), {"__name__": "repro", **names})


def quick(machine: Any, runs: int) -> settings:
    """At most so many runs, the same every time."""
    return settings(
        machine.TestCase.settings, max_examples=runs, derandomize=True, database=None,
        phases=[Phase.generate],
    )  # fmt: skip


@pytest.mark.parametrize("kernel", [torch_cache.adapter, torch_ring.adapter], ids=lambda k: k.name)
def test_a_state_machine_passes_a_right_cache(kernel: Any) -> None:
    """Any steps leave what the model says."""
    machine = cache_machine(kernel)
    run_state_machine_as_test(machine, settings=quick(machine, 12))


@pytest.mark.parametrize(
    "name", ["cache_keeps_one_entry_too_many", "cache_shares_pages_that_are_written_to"]
)
def test_a_state_machine_finds_a_fault(name: str) -> None:
    """The text of the failure has the program with an arrow at the step that broke."""
    machine = cache_machine(build(NAMED[name]))
    with pytest.raises(Failure, match=r"(?s)Program.*->"):
        run_state_machine_as_test(machine, settings=quick(machine, 100))


class Sloppy:
    """A store whose answers can be spoilt."""

    def __init__(self, spec: CacheSpec, spoil: Any) -> None:
        self.inner, self.spoil = torch_cache.adapter.cache(spec), spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def attend(self, q: torch.Tensor) -> Any:
        return self.spoil(self.inner.attend(q), q)


class Spoilt:
    """An adapter of such stores."""

    name = "spoilt"
    capabilities = torch_cache.adapter.capabilities

    def __init__(self, spoil: Any) -> None:
        self.spoil = spoil

    def cache(self, spec: CacheSpec) -> Any:
        return Sloppy(spec, self.spoil)


def raising(out: torch.Tensor, q: torch.Tensor) -> Any:
    raise Unsupported("not today")


@pytest.mark.parametrize(
    ("spoil", "kind", "said"),
    [
        (lambda out, q: out[..., :-1], "WrongShape", "attend: got shape"),
        (lambda out, q: None, "WrongShape", "got NoneType"),
        (lambda out, q: out.double(), "WrongDtype", "attend: got"),
        (lambda out, q: out + 0 * q.mul_(2).sum(), "InputMutated", "q changed during attend"),
        (lambda out, q: out / 0 * 0, "WrongState", "reads no entry"),
        (lambda out, q: [][1], "Raised", "raised IndexError in attend"),
        (raising, "Refused", "refused a call that it declares to support: not today"),
    ],
)
def test_a_malformed_answer_is_a_failure(spoil: Any, kind: str, said: str) -> None:
    """Of its own kind, with a sentence."""
    with pytest.raises(Failure, match=said) as failed:
        played(Subject(Spoilt(spoil), "fp32", "cpu"), CacheCase(page=4))
    assert failed.value.kind == kind


def test_a_store_without_a_method_refuses() -> None:
    """A feature that is supported needs its method; one that is declined may lack it."""

    class Bare(PagedStore):
        truncate: Any = None

    class Adapter:
        name = "bare"
        capabilities = torch_cache.adapter.capabilities

        def cache(self, spec: CacheSpec) -> Any:
            whole = torch_cache.adapter.cache(spec)
            return Bare(spec, whole.device)

    case = CacheCase(page=4, steps=(("append", (2,)), ("truncate", (1,))))
    with pytest.raises(Failure, match="the store has no truncate"):
        played(Subject(Adapter(), "fp32", "cpu"), case)


@pytest.mark.parametrize("law", LAWS, ids=lambda p: p.name)
@pytest.mark.parametrize(
    "kernel",
    [torch_ring.adapter, transformers_cache.dynamic_cache, transformers_cache.static_cache],
    ids=lambda k: k.name,
)
def test_other_bundled_caches_keep_the_law(kernel: Any, law: Any) -> None:
    """At the smoke level, in a dtype that differs from law to law."""
    if kernel.name.startswith("transformers"):
        pytest.importorskip("transformers")
    dtype = kernel.capabilities.dtypes[LAWS.index(law) % 3]
    record = check(law, Subject(kernel, dtype, "cpu"), Options(level="smoke", seed=0)).record
    assert record.status in ("passed", "declined", "not_applicable"), record.reason


def test_customary_tests_miss_most_mutants() -> None:
    """One request, a prompt and single tokens after it: half of the faults are missed, or more."""
    case = CacheCase(page=16, steps=(("append", (24,)), *[("append", (1,))] * 6), D=64)
    plain = [m for m in MUTANTS if m.base == torch_cache.__name__]
    assert len(plain) >= 30

    def passes(mutant: Variant) -> bool:
        try:
            played(Subject(build(mutant), "fp32", "cpu"), case, each=(), last=("needle", "mean"))
        except Failure:
            return False
        return True

    missed = [m.name for m in plain if passes(m)]
    assert 2 * len(missed) > len(plain), missed


def test_neighbours_of_a_program_are_without_a_step() -> None:
    """Which steps the failure needs."""
    wrong = build(NAMED["cache_copies_only_keys_on_write"])
    (prop,) = select("transactions.copy_on_write")
    case = CacheCase(
        R=2, page=4, steps=(("append", (1, 0)), ("fork", 0, 1, 1), ("append", (1, 1)))
    )
    near = without_a_step(prop, Subject(wrong, "fp32", "cpu"), case)
    assert near == ("  with a step fewer: passes without 2, 3",)
