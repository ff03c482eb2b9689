"""`benchmarks/automatic_mutants.py`: which changes are made, and what becomes of one."""

import argparse
import ast
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = '''
"""Sums: 1 + 1."""
LIMIT = 3

def most(x: int, *, at: int = 2) -> float:
    """The most."""
    if x < 0 and at:
        raise ValueError(f"x: got {x + 1}")
    x += 1
    return where(x > at, max(x, -at), not x)
'''


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names of the script."""
    return runpy.run_path(str(ROOT / "benchmarks" / "automatic_mutants.py"))


def test_what_is_changed(script: dict[str, Any]) -> None:
    """Statements of functions, place by place; no declaration, message or annotation."""
    found = [(c.line, c.old, c.new) for c in script["Changes"](SOURCE).found]
    assert found == [
        (7, "x < 0 and at", "True"),
        (7, "x < 0 and at", "False"),
        (7, "x < 0 and at", "(at)"),
        (7, "x < 0 and at", "(x < 0)"),
        (7, "x < 0", "(x <= 0)"),
        (7, "0", "1"),
        (9, "x += 1", "pass"),
        (9, "1", "2"),
        (10, "where(x > at, max(x, -at), not x)", "where(x > at, not x, max(x, -at))"),
        (10, "where(x > at, max(x, -at), not x)", "(max(x, -at))"),
        (10, "x > at", "(x >= at)"),
        (10, "max", "min"),
        (10, "-at", "(at)"),
        (10, "not x", "(x)"),
    ]


@pytest.mark.parametrize("kernel", ["torch_reference", "triton_attention", "torch_verify"])
def test_each_change_is_a_program(script: dict[str, Any], kernel: str) -> None:
    """A changed source parses and differs from the kernel's in one place."""
    source = (ROOT / "impls" / f"{kernel}.py").read_text()
    for change in script["Changes"](source).found:
        text = script["changed"](source, change)
        ast.parse(text)
        assert text != source
        assert text.replace("\n", "").count("def ") == source.replace("\n", "").count("def ")


def test_what_becomes_of_a_change(script: dict[str, Any]) -> None:
    """No weight by mass is killed, and by whom is said; the same sum in another order survives."""
    changes = script["Changes"]((ROOT / "impls" / "torch_merge.py").read_text()).found
    args = argparse.Namespace(level="smoke", seed=0, timeout=100, device="")
    laws = ["merging.value"]

    def status(old: str, new: str) -> dict[str, Any]:
        (change,) = [c for c in changes if (c.old, c.new) == (old, new)]
        return dict(script["judged"]("torch_merge", 0, change, laws, args))

    dead = status("weight[..., None] * part", "(weight[..., None])")
    assert dead["status"] == "killed"
    assert dead["why"].startswith("merging.value (fp16): failed: out ")
    assert status("top == -math.inf", "(top != -math.inf)")["status"] == "killed"
    same = status("u[i].float()", "(u[i])")
    assert (same["status"], same["why"]) == ("survived", "")
    assert same["cases"] > 0
    broken = status("m.amax", "m.amin")
    assert broken["line"] == 39
    assert {"seconds", "old", "new"} <= set(broken)


def test_a_kernel_that_hangs_is_seen(script: dict[str, Any]) -> None:
    """A mutant that takes longer than it may is stopped, and called hung."""
    (change, *_) = script["Changes"]((ROOT / "impls" / "torch_merge.py").read_text()).found
    args = argparse.Namespace(level="nightly", seed=0, timeout=0.05, device="")
    assert script["judged"]("torch_merge", 0, change, ["merging.value"], args)["status"] == "hung"


def test_one_of_several_adapters(script: dict[str, Any]) -> None:
    """What only another adapter of the module runs is judged with that one."""
    changes = script["Changes"]((ROOT / "impls" / "torch_verify.py").read_text()).found
    (change,) = [c for c in changes if (c.old, c.new) == ("r * K", "(r)")]
    args = argparse.Namespace(level="smoke", seed=0, timeout=100, device="")
    for kernel, status in (("torch_verify", "survived"), ("torch_verify:padded", "killed")):
        came = script["judged"](kernel, 0, change, ["speculative.decisions"], args)
        assert came["status"] == status, came
