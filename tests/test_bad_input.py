"""Bad arguments and bad kernels: each has its own message, and the other kernels still run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_kernels import HEAD, source

import kernelassay
from kernelassay import cli
from kernelassay.loading import LoadError, load_kernel

BAD = {
    "good": "return out",
    "shape": "return out[..., :-1]",
    "dtype": "return out.double()",
    "raises": "raise KeyError('no such tile')",
    "sleeps": "while True: time.sleep(0.01)",
    "stuck": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\ntime.sleep(600)",
    "exits": "sys.stderr.write('giving up\\n')\nsys.stderr.flush()\nos._exit(7)",
    "segfaults": "ctypes.string_at(0)",
    "mutates": "call.q.mul_(2)\nreturn out",
    "beyond": (
        "mine = torch.empty(out.shape)\nmine.copy_(out)\n"
        "mine.as_strided((1,), (1,), mine.storage_offset() + mine.numel()).zero_()\nreturn mine"
    ),
}
MALFORMED = {
    "klass": "klass = Tiny",
    "bare": "bare = object()",
    "method": "class M(Tiny):\n    attend = None\n\nmethod = M()",
    "nothing": "nothing = []",
}


def command(*args: object, **options: Any) -> "subprocess.Popen[str]":
    """`kernelassay ARGS` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "kernelassay.cli", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run over all bad kernels: exit code, text, records by kernel and law."""
    folder = tmp_path_factory.mktemp("bad")
    text = source(**BAD) + "\n\n" + "\n\n".join(MALFORMED.values()) + "\n"
    (folder / "bad.py").write_text(text)
    (folder / "quits.py").write_text("import os\nos._exit(5)\n")
    specs = [f"bad.py:{name}" for name in (*BAD, *MALFORMED)] + ["absent.py:adapter", "quits.py:x"]
    process = command(
        "run",
        *(part for spec in specs for part in ("--kernel", spec)),
        *("--law", "attention.memory", "--timeout", 1, "--workers", 2),
        *("--json", "run.json", "--text", "run.txt"),
        cwd=folder,
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == cli.FAULTS, err
    document = json.loads((folder / "run.json").read_text())
    records = {(r["kernel"], r["law"].split(".")[1]): r for r in document["records"]}
    lines = next((folder / ".kernelassay").glob("run-*.jsonl")).read_text().splitlines()
    assert (folder / "run.txt").read_text() == out
    return {
        "out": out,
        "err": err,
        "records": records,
        "flushed": [json.loads(line) for line in lines],
        "store": (folder / ".kernelassay" / "cases.jsonl").read_text(),
    }


@pytest.mark.parametrize(
    ("kernel", "law", "status", "kind", "words"),
    [
        ("good", "memory", "passed", None, ""),
        ("shape", "memory", "failed", "WrongShape", "got shape"),
        ("dtype", "memory", "failed", "WrongDtype", "got dtype"),
        ("raises", "memory", "failed", "Raised", "no such tile"),
        ("sleeps", "memory", "timed_out", None, "limit of 1 s"),
        ("stuck", "memory", "timed_out", None, "could not be interrupted"),
        ("exits", "memory", "crashed", None, "exit code 7"),
        ("segfaults", "memory", "crashed", None, "signal 11 (SIGSEGV)"),
        ("mutates", "memory", "failed", "InputMutated", ""),
        ("beyond", "memory", "failed", "OutOfBounds", ""),
        ("bad.py:klass", "adapter", "failed", "ContractError", "an instance"),
        ("bad.py:bare", "adapter", "failed", "ContractError", "name"),
        ("bad.py:method", "adapter", "failed", "ContractError", "a method attend(call)"),
        ("bad.py:nothing", "adapter", "failed", "LoadError", "the list is empty"),
        ("absent.py:adapter", "adapter", "failed", "LoadError", "absent.py is not there"),
        ("quits.py:x", "adapter", "failed", "LoadError", "exit code 5 while it was imported"),
    ],
)
def test_kernel(
    ran: dict[str, Any], kernel: str, law: str, status: str, kind: str | None, words: str
) -> None:
    """Each bad kernel has a record that says what is wrong, and a report with the same words."""
    record = ran["records"][kernel, law]
    assert (record["status"], record["kind"]) == (status, kind), record
    assert words in record["reason"]
    if status == "passed":
        assert record["cases"] >= 20
    elif law != "adapter":
        assert record["report"] in ran["out"]
        assert record["case"] is not None
        assert record["case_id"] in ran["store"]


def test_run_as_a_whole(ran: dict[str, Any]) -> None:
    """What a worker said last is kept; all records were flushed."""
    assert "giving up" in ran["records"]["exits", "memory"]["traceback"]
    assert len(ran["flushed"]) == len(ran["records"])
    assert "kernelassay: ContractError: kernel 'bad.py:klass': no adapter" in ran["out"]
    assert "FAILED attention.memory-mutates-fp32-cpu: InputMutated" in ran["err"]
    assert "6 unusable kernels" in ran["out"].splitlines()[-1]


def test_nan_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kernelassay.check` needs no pytest: NaN is a failure of its own kind, raised on request."""
    (tmp_path / "bad.py").write_text(source(nan="return out.fill_(float('nan'))"))
    monkeypatch.chdir(tmp_path)
    (record,) = kernelassay.check("bad.py:nan", "attention.value")
    assert (record.status, record.kind) == ("failed", "NonFinite")
    with pytest.raises(kernelassay.KernelFailed, match="NOT FINITE") as error:
        kernelassay.check("bad.py:nan", "attention.value", raise_on_failure=True)
    assert [r.kind for r in error.value.records] == ["NonFinite"]


def test_interrupted(tmp_path: Path) -> None:
    """An interrupt keeps what is finished, and writes JSON and text all the same."""
    (tmp_path / "slow.py").write_text(source(slow="time.sleep(0.1)\nreturn out"))
    process = command(
        *("run", "--kernel", "slow.py:slow", "--json", "run.json", "--text", "run.txt"),
        *("--law", "attention.*", "--workers", 1),
        cwd=tmp_path,
    )
    until = time.monotonic() + 60
    while not any(f.read_text() for f in tmp_path.glob(".kernelassay/run-*.jsonl")):
        assert time.monotonic() < until, process.kill()
        time.sleep(0.1)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == cli.INTERRUPTED
    statuses = [r["status"] for r in json.loads((tmp_path / "run.json").read_text())["records"]]
    assert statuses[0] == "passed"
    assert "not_run" in statuses
    assert "interrupted; finished records are in" in out
    assert (tmp_path / "run.txt").read_text() == out


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        ("no_such_module:adapter", "LoadError", "no module named 'no_such_module'"),
        ("json.nothing:adapter", "LoadError", "no module named 'json.nothing'"),
        ("here.py:adapter", "LoadError", "has no attribute 'adapter'; did you mean adapters"),
        ("here.py", "LoadError", "write here.py:attribute"),
        ("here.py:", "LoadError", "expected module:attribute"),
        (".:adapter", "LoadError", "is a folder"),
        ("./:adapter", "LoadError", "is a folder"),
        ("torch_referense", "LoadError", "did you mean 'torch_reference'?"),
        ("raises.py:x", "LoadError", "ZeroDivisionError: division by zero at"),
        ("raises.py:x", "LoadError", "raises.py:2"),
        ("syntax.py:x", "LoadError", "syntax.py:1"),
        ("leaves.py:x", "LoadError", "SystemExit"),
        ("imports.py:x", "LoadError", "No module named 'not_installed'"),
        ("here.py:caps", "ContractError", "capabilities: got none"),
        ("here.py:twice", "LoadError", "has no attribute"),
        ("typo.py:x", "LoadError", "did you mean 'cuda'?"),
    ],
)
def test_unusable_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, kind: str, words: str
) -> None:
    """What names no usable adapter is an error that says what is wrong, and where."""
    files = {
        "here": "from types import SimpleNamespace\nadapters = caps = SimpleNamespace(name='n')",
        "raises": "\n1 / 0",
        "syntax": "def f(:",
        "leaves": "raise SystemExit('no GPU')",
        "imports": "import not_installed",
        "typo": HEAD + "\nCapabilities(devices=('cudaa',), dtypes=(), head_sizes=(), supports=())",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError) as error:
        load_kernel(spec)
    assert error.value.kind == kind
    assert repr(spec) in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--law", "attention.valeu"], "law 'attention.valeu': matches none"),
        (["--family", "atention"], "matches none"),
        (["--law", "attention.value", "--case", "AttendCase(Tq=1"], "no Python expression"),
        (["--law", "attention.value", "--case", "AttendCase(Tq='x')"], "expected int"),
        (["--law", "attention.value", "--case", "deadbeef"], "no such id"),
        (["--case", "AttendCase(Tq=1)"], "add --law NAME"),
        (["--dtype", "float32"], "dtype: got 'float32'"),
        (["--device", "gpu"], "device: got 'gpu'"),
        (["--expect", "absent.toml"], "absent.toml: cannot be read"),
        (["--expect", "bad.toml"], "bad.toml: no TOML"),
        (["--expect", "law.toml"], "did you mean 'attention.value'?"),
        (["--expect", "bytes.toml"], "not UTF-8"),
        (["--regressions", "bad.jsonl"], "bad.jsonl:1: no JSON"),
        (["--json", "no/such/folder/run.json"], "its folder is not there"),
    ],
)
def test_unusable_arguments(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    words: str,
) -> None:
    """Arguments that cannot be used end with exit code 2 and a paragraph, before anything runs."""
    entry = 'property = "attention.valu"\nkernel = "k"\nkind = "WrongValue"\n'
    (tmp_path / "law.toml").write_text(f'[[expect]]\n{entry}witness = {{}}\nreason = "r"\n')
    (tmp_path / "bad.toml").write_text("[[expect]\n")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "bad.jsonl").write_text("{'law'}\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "--kernel", "torch_reference", *args]) == cli.UNUSABLE
    shown = capsys.readouterr()
    assert words in " ".join(shown.err.split())
    assert shown.err.startswith("kernelassay: ")
    assert "Traceback" not in shown.err
    assert "\n\n" not in shown.err
    assert not shown.out


def test_no_usable_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no kernel can be used, the arguments are unusable: exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "--kernel", "nowhere:adapter"]) == cli.UNUSABLE
    assert "no module named 'nowhere'" in capsys.readouterr().err.replace("\n", " ")
