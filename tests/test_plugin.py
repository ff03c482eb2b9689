"""The pytest plugin: three-line adopters, the shipped suite, records, xdist, and good manners."""

import json
import textwrap
from pathlib import Path

import pytest
from tiny_kernels import source

ADOPTER = """
from kernelassay import parametrize_with_properties
from my_kernels import {names}

@parametrize_with_properties([{names}]{more})
def test_conformance(kernel, prop):
    prop.check(kernel)
"""
EXPECTED = """
[[expect]]
property = "attention.memory"
kernel = "shifted"
kind = "InputMutated"
witness = { D = 16, q = "random:1" }
reason = "known: #7"
"""
LOSE = "raise torch.AcceleratorError('illegal memory access')"
WRONG = "call.q.mul_(2)\nreturn out"


def adopter(pytester: pytest.Pytester, more: str = "", **bodies: str) -> None:
    """A repository with kernels and a three-line test file."""
    pytester.makepyfile(
        my_kernels=source(**bodies),
        test_adopter=ADOPTER.format(names=", ".join(bodies), more=more),
    )


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """pytest in a process of its own."""
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *args)


def records(path: Path) -> dict[tuple[str, str], dict[str, object]]:
    """Records of a JSON file by kernel and law."""
    return {(r["kernel"], r["law"]): r for r in json.loads(path.read_text())["records"]}


def test_unrelated_tests_are_left_alone(pytester: pytest.Pytester) -> None:
    """Because of us nothing heavy is imported and no Hypothesis profile is chosen."""
    pytester.makeconftest(
        """
        import sys

        def pytest_collection_finish(session):
            heavy = {"torch", "numpy", "hypothesis", "triton"} & set(sys.modules)
            assert not heavy, heavy
            assert session.config.pluginmanager.hasplugin("kernelassay")
        """
    )
    pytester.makepyfile("def test_theirs():\n    pass")
    result = run(pytester, "--co", "-p", "no:hypothesispytest", "--strict-markers")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*kernelassay 0*")


def test_hypothesis_profile_of_the_host(pytester: pytest.Pytester) -> None:
    """A host's own Hypothesis profile is in force in its tests, beside ours."""
    adopter(pytester, ', select="attention.memory"', good="return out")
    pytester.makeconftest(
        """
        from hypothesis import settings
        settings.register_profile("theirs", max_examples=7, deadline=123)
        settings.load_profile("theirs")
        """
    )
    pytester.makepyfile(
        test_host="""
        from hypothesis import settings
        def test_theirs():
            assert settings().max_examples == 7
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=2)


def test_three_lines(pytester: pytest.Pytester) -> None:
    """Ids, reports without a traceback, expected failures, skips with reasons, counts, JSON."""
    select = '["attention.memory", "attention.lse"]'
    more = f', select={select}, expect="known.toml"'
    adopter(pytester, more, good="return out", mutates=WRONG, shifted=WRONG)
    pytester.path.joinpath("known.toml").write_text(EXPECTED)
    result = run(pytester, "-v", "-rs", "--assay-json=run.json", "--strict-markers")
    result.assert_outcomes(passed=1, failed=1, xfailed=1, skipped=3)
    result.stdout.fnmatch_lines(
        [
            "kernelassay *: level smoke, seed 0, devices all declared",
            "*test_conformance?attention.lse-good-fp32-cpu? SKIPPED*",
            "*test_conformance?attention.memory-good-fp32-cpu? PASSED*",
            "*test_conformance?attention.memory-mutates-fp32-cpu? FAILED*",
            "FAILED attention.memory  kernel=mutates  dtype=fp32  device=cpu",
            "INPUT MUTATED: *",
            "kernelassay: 2 laws x 3 kernels: 1 passed (*cases*), 1 FAILED, 1 expected failure, "
            "3 UNDECLARED",
            "SKIPPED*declares nothing of lse",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_items.py*in check*")
    found = records(pytester.path / "run.json")
    assert len(found) == 6
    failed = found["mutates", "attention.memory"]
    assert str(failed["report"]) in result.stdout.str()
    assert "kernelassay run --kernel my_kernels.py:mutates" in str(failed["report"])
    stored = (pytester.path / ".kernelassay" / "cases.jsonl").read_text()
    assert json.loads(stored)["id"] == failed["case_id"]
    again = run(pytester, "-k", "memory-mutates", f"--assay-case={failed['case_id']}")
    again.assert_outcomes(failed=1, deselected=5)


def test_strict_features(pytester: pytest.Pytester) -> None:
    """Under --assay-strict-features what is undeclared fails, with the feature's name."""
    adopter(pytester, ', select="attention.lse"', good="return out")
    result = run(pytester, "--assay-strict-features")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["good declares nothing of lse; *support or decline it*"])


def test_conformance_module(pytester: pytest.Pytester) -> None:
    """The shipped module runs on named kernels; a bad name among them fails alone."""
    pytester.makepyfile(my_kernels=source(good="return out"))
    result = run(
        pytester,
        *("--pyargs", "kernelassay.conformance", "--assay-select=attention.memory"),
        *("--assay-kernel=my_kernels.py:good", "--assay-kernel=my_kernels.py:goood"),
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "kernelassay *: level smoke*",
            "*kernel 'my_kernels.py:goood': my_kernels.py has no attribute 'goood'; did*",
            "kernelassay: 1 law x 1 kernel: 1 passed (*), 1 unusable kernel",
        ]
    )


def test_conformance_without_a_kernel(pytester: pytest.Pytester) -> None:
    """Without --assay-kernel the shipped module is a usage error that says what to write."""
    result = run(pytester, "--pyargs", "kernelassay.conformance")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *say which with --assay-kernel module:attribute*"])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (', select="attention.valeu"', "*law 'attention.valeu': matches none of * laws*"),
        (', expect="absent.toml"', "*absent.toml: cannot be read*"),
        (', devices=["gpu"]', "*device: got 'gpu', expected some of cpu, cuda, interpreter*"),
    ],
)
def test_unusable_decorator(pytester: pytest.Pytester, more: str, words: str) -> None:
    """What a decorator says and cannot be used is a collection error in words."""
    adopter(pytester, more, good="return out")
    result = run(pytester)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([words])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_gpu_items(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of devices that are not there carry their mark and are skipped with one clear line."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    text = source(good="return out").replace('("cpu",)', '("cpu", "cuda", "interpreter")')
    adopter(pytester, ', select="attention.memory"', good="return out")
    pytester.makepyfile(my_kernels=text)
    result = run(pytester, "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "kernelassay: 1 gpu item skipped: no CUDA device",
            "kernelassay: 1 interpreter item skipped: *set TRITON_INTERPRET=1*",
        ]
    )
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    result = run(pytester, "-m", "not gpu", "--assay-device=interpreter", "--assay-device=cuda")
    result.assert_outcomes(passed=1, deselected=1)


def test_xdist(pytester: pytest.Pytester) -> None:
    """Under xdist records of all workers meet in one file; a worker that dies names its case."""
    select = '["attention.memory", "attention.views"]'
    bodies = {"good": "return out", "mutates": WRONG, "exits": "os._exit(3)", "lost": LOSE}
    adopter(pytester, f", select={select}", **bodies)
    result = run(pytester, "-n2", "--assay-json=run.json")
    result.assert_outcomes(passed=1, failed=3, skipped=4)
    found = records(pytester.path / "run.json")
    assert len(found) == 8
    assert found["lost", "attention.memory"]["status"] == "device_lost"
    crashed = found["exits", "attention.memory"]
    assert crashed["status"] == "crashed"
    assert crashed["case"] is not None
    assert found["mutates", "attention.memory"]["kind"] == "InputMutated"
    result.stdout.fnmatch_lines(["CRASHED: the worker process ended while this case ran"])
    result.stdout.fnmatch_lines(["kernelassay: 2 laws x 4 kernels: 1 passed (*), 3 FAILED, *"])
    assert not list(pytester.path.glob(".kernelassay/running-*"))


def test_device_lost(pytester: pytest.Pytester) -> None:
    """A lost device is the fault of the item that lost it; nothing else runs in that process."""
    adopter(pytester, ', select=["attention.memory", "attention.value"]', lost=LOSE)
    result = run(pytester, "--assay-json=run.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["DEVICE LOST: *illegal memory access*", "*cpu is lost*"])
    statuses = [r["status"] for r in records(pytester.path / "run.json").values()]
    assert sorted(map(str, statuses)) == ["device_lost", "not_run"]


def test_timeout_and_interrupt(pytester: pytest.Pytester) -> None:
    """A case past its limit fails its item alone; an interrupt leaves the records so far."""
    bodies = {
        "good": "return out",
        "slow": "while True: time.sleep(0.01)",
        "stops": "raise KeyboardInterrupt",
        "later": "return out",
    }
    adopter(pytester, ', select="attention.memory"', **bodies)
    result = run(pytester, "--assay-timeout=1", "--assay-json=run.json")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    found = records(pytester.path / "run.json")
    by_kernel = {kernel: found[kernel, "attention.memory"]["status"] for kernel in bodies}
    assert list(by_kernel.values()) == ["passed", "timed_out", "not_run", "not_run"]
    result.stdout.fnmatch_lines(["TIMED OUT: the case ran past its limit of 1 s"])


def test_suite_error(pytester: pytest.Pytester) -> None:
    """A fault of the suite fails the item with its traceback."""
    adopter(pytester, ', select="attention.memory"', good="return out")
    pytester.makeconftest(
        textwrap.dedent(
            """
            from kernelassay.properties import engine

            def boom(subject, *rest):
                raise ArithmeticError("boom")

            engine.domain_of = boom
            engine._Runner.run = boom
            """
        )
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Traceback*", "ArithmeticError: boom"])


def test_example(pytester: pytest.Pytester) -> None:
    """The adopter in examples/ passes."""
    example = Path(__file__).parents[1] / "examples" / "adopter"
    for path in example.glob("*.py"):
        pytester.path.joinpath(path.name).write_text(path.read_text())
    result = run(pytester, "-m", "not gpu", "-k", "value or memory or corner or declines")
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] >= 4
