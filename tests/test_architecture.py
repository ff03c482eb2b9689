"""The shape of the package: imports go one way, start-up is light, every law has its place."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "oracle": {"oracle"},
    "impls": {"oracle", "impls"},
    "properties": {"oracle", "impls", "properties"},
}
SOURCES = sorted(p for folder in (*ALLOWED, "tests") for p in (ROOT / folder).rglob("*.py"))
DRAWS = {f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "multinomial")}
MODULES = [p for folder in ALLOWED for p in sorted((ROOT / folder).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """The modules of this package that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return {name for name in found if name.startswith("kernelassay")}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    """oracle <- impls <- properties <- kernelassay; nothing below looks up."""
    folder = path.relative_to(ROOT).parts[0]
    for name in imported(path) - {"kernelassay"}:
        below = name.split(".")[1]
        allowed = below in ALLOWED[folder]
        assert allowed, f"{path.relative_to(ROOT)} imports {name}: {folder} must not know of it"


def test_no_kernel_uses_the_oracle_of_visibility() -> None:
    """A mask function that kernel and oracle shared could not fail."""
    for path in (ROOT / "impls").rglob("*.py"):
        taken = {n for n in imported(path) if n.startswith("kernelassay.oracle.visibility.")}
        assert taken <= {"kernelassay.oracle.visibility.Visibility"}, path


def test_the_package_and_its_plugin_import_neither_torch_nor_hypothesis() -> None:
    """A host whose tests have nothing to do with kernels pays nothing."""
    code = (
        "import sys, kernelassay, kernelassay.plugin\n"
        "print(sorted({'torch', 'hypothesis', 'triton', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_chance_is_left_to_the_global_generator(path: Path) -> None:
    """What is drawn from it differs from run to run: a test that fails once in forty, say."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in DRAWS:
            assert "generator" in {k.arg for k in node.keywords}, f"{path}:{node.lineno}"
