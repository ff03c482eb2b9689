"""The package as others get it: a wheel, in an environment that does not see this repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content in a folder of its own, entry points included."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, files):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in an interpreter that finds the wheel's content first."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True
    )


def test_the_wheel_holds_every_module_and_data_file(installed: Path) -> None:
    """Every source file and expected-failure file of the package is in the wheel, nothing else."""
    for folder in ("oracle", "impls", "properties"):
        for path in (ROOT / folder).rglob("*.py"):
            assert (installed / "kernelassay" / folder / path.relative_to(ROOT / folder)).is_file()
    for path in (ROOT / "kernelassay").glob("*.py"):
        assert (installed / "kernelassay" / path.name).is_file()
    assert (installed / "kernelassay" / "py.typed").is_file()
    assert list((installed / "kernelassay" / "expect").glob("*.toml"))
    top = {p.name for p in installed.iterdir() if not p.name.endswith(".dist-info")}
    assert top == {"kernelassay"}


def test_an_adopter_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The adopter's example passes outside the repository, on the wheel's modules alone."""
    for path in (ROOT / "examples" / "adopter").glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ran = run(
        installed, tmp_path, "-m", "pytest", "-q", "-m", "not gpu", "-k", "alignment",
        "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "--assay-json", "run.json",
        f"--override-ini=pythonpath={tmp_path}",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    where = run(installed, tmp_path, "-c", "import kernelassay.oracle as o; print(o.__file__)")
    assert where.stdout.startswith(str(installed))
    assert (tmp_path / "run.json").is_file()
