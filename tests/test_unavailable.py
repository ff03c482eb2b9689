"""A kernel whose library is not installed is skipped in one line, wherever it is named."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_kernels import source

import kernelassay
from kernelassay import cli
from kernelassay.loading import UNAVAILABLE, LoadError, load_kernel


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two kernels, one of which needs what nobody has."""
    text = source(needy="return out", good="return out")
    (tmp_path / "lib.py").write_text(text + "\nneedy.needs = ('torch', 'no_such_library.part')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*args: str) -> "subprocess.CompletedProcess[str]":
    """`kernelassay ARGS` in a process of its own."""
    words = [
        sys.executable,
        "-c",
        "import sys; from kernelassay.cli import main; sys.exit(main())",
        *args,
    ]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_loading_it_says_what_is_missing(lib: Path) -> None:
    """The error names the kernel and the missing module, and is of a kind of its own."""
    with pytest.raises(LoadError) as error:
        load_kernel("lib.py:needy")
    assert error.value.kind == UNAVAILABLE
    assert str(error.value) == (
        "kernel 'lib.py:needy': skipped: needs no_such_library.part, not installed here"
    )
    with pytest.raises(LoadError, match="skipped: needs no_such_library"):
        kernelassay.check("lib.py:needy")


def test_a_run_of_both_runs_the_other(lib: Path) -> None:
    """One line, a count in the summary, a record; the exit code is that of the other kernel."""
    kernels = ("--kernel", "lib.py:needy", "--kernel", "lib.py:good")
    ran = command("run", *kernels, "--law", "attention.value", "--json", "run.json")
    assert ran.returncode == cli.NOTHING_WRONG
    assert ran.stdout.count("skipped: needs no_such_library") == 1
    assert "1 passed" in ran.stdout
    assert "1 kernel skipped" in ran.stdout
    assert "FAIL" not in ran.stdout + ran.stderr
    records: list[dict[str, Any]] = json.loads((lib / "run.json").read_text())["records"]
    assert [r["status"] for r in records] == ["unavailable", "passed"]


def test_a_run_of_nothing_else_has_nothing_to_run(lib: Path) -> None:
    """Alone it is unusable, in the same words."""
    ran = command("run", "--kernel", "lib.py:needy")
    assert ran.returncode == cli.UNUSABLE
    assert "skipped: needs no_such_library" in ran.stderr


def test_list_shows_it(lib: Path) -> None:
    """The list has a line in its place."""
    ran = command("list", "--kernel", "lib.py:needy", "--kernel", "lib.py:good")
    assert ran.returncode == cli.NOTHING_WRONG
    assert "skipped: needs no_such_library" in ran.stdout
    assert "good  (lib.py:good)" in ran.stdout


def test_pytest_skips_it(pytester: pytest.Pytester) -> None:
    """One skipped item says why; an adapter given as an object is skipped alike."""
    pytester.makepyfile(
        lib=source(needy="return out") + "\nneedy.needs = ('no_such_library',)\n",
        test_lib="""
            import lib
            from kernelassay import parametrize_with_properties

            @parametrize_with_properties([lib.needy, "lib.py:needy"], select="attention.value")
            def test_conformance(kernel, prop):
                prop.check(kernel)
        """,
    )
    ran = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rs")
    ran.assert_outcomes(skipped=2)
    ran.stdout.fnmatch_lines(["*skipped: needs no_such_library, not installed here*"])
    ran.stdout.fnmatch_lines(["*2 kernels skipped*"])


@pytest.mark.parametrize(
    ("spec", "library"),
    [
        ("flashinfer_merge:pair", "flashinfer"),
        ("vllm_merge:adapter", "vllm"),
        ("vllm_unified:segments", "vllm"),
        ("sglang_merge:adapter", "sglang"),
        ("sglang_extend:adapter", "sglang"),
    ],
)
def test_an_absent_library_is_named_with_its_extra(spec: str, library: str) -> None:
    """A GPU library has an extra of its own."""
    if importlib.util.find_spec(library) is not None:
        pytest.skip(f"{library} is installed here")
    with pytest.raises(
        LoadError, match=rf"needs {library}.*pip install 'kernelassay\[{library}\]"
    ):
        load_kernel(f"kernelassay.impls.{spec}")
