"""The command line: what it prints, writes and returns; what happens to a case that failed."""

import io
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_kernels import HEAD, source

import kernelassay
from kernelassay import cli, store
from kernelassay.parent import Request, Run
from kernelassay.progress import Progress
from kernelassay.properties.records import Record
from kernelassay.prune import without
from kernelassay.summary import exit_code, summary_line, table

Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Main:
    """Run a command in a folder of its own: exit code, what it printed, what it complained of."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(args)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def record(law: str, status: str, **facts: object) -> Record:
    """A record as a run makes it."""
    made = Record(law, "attention", "mine", "bf16", "cpu", "smoke").ended(status)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def failing(body: str = "call.q.mul_(2)\nreturn out", law: str = "attention.memory") -> str:
    """The id of a case that just failed in this folder."""
    Path("my_kernels.py").write_text(source(mine=body))
    sys.modules.pop("my_kernels", None)
    (made,) = kernelassay.check("my_kernels.py:mine", law)
    assert made.status == "failed"
    assert made.case_id is not None
    return made.case_id


def test_import_is_light() -> None:
    """Neither the package nor the command's help imports torch or Hypothesis."""
    code = (
        "import sys, kernelassay as k; dir(k); k.__version__\n"
        "from kernelassay import cli; cli.parser().format_help()\n"
        "heavy = {'torch', 'numpy', 'hypothesis', 'triton'} & set(sys.modules); assert not heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names() -> None:
    """Every public name is there, sorted, and a wrong one is an AttributeError."""
    assert kernelassay.__all__ == sorted(kernelassay.__all__)
    for name in kernelassay.__all__:
        assert getattr(kernelassay, name) is not None
    assert set(kernelassay.__all__) <= set(dir(kernelassay))
    with pytest.raises(AttributeError, match="Capabilites"):
        _ = kernelassay.Capabilites  # type: ignore[attr-defined]


def test_help_states_the_time_limit_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    """The number in the help is the one that a run without the option has."""
    limit = cli.parser().parse_args(["run", "--kernel", "k"]).timeout
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert f"seconds that one case may take (default: {limit:g})" in words


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names every command and every exit code; no command is an error."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ("run", "list", "repro", "keep", "expect", "mutants", "exit codes", "130"):
        assert word in text
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == cli.UNUSABLE


@pytest.mark.parametrize("value", ["0", "-1", "nan", "soon"])
def test_bad_timeout(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit must be a positive number of seconds."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--kernel", "torch_reference", "--timeout", value])
    assert ended.value.code == cli.UNUSABLE
    assert "--timeout" in capsys.readouterr().err


def test_list(main: Main) -> None:
    """Laws come with their sentences, kernels with what they support, decline and leave open."""
    code, out, _ = main("list")
    assert code == 0
    assert "attention.lse                   lse = log sum_j exp" in out
    assert "\ntorch_reference\n  devices     cpu, cuda\n" in out
    Path("my_kernels.py").write_text(source(one="return out"))
    code, out, _ = main("list", "--kernels", "my_kernels.py:one", "nowhere:x")
    assert code == 0
    assert out.startswith("one  (my_kernels.py:one)\n  devices     cpu\n")
    assert "UNDECLARED  alibi, bias, bias.minus_infinity, causal.bottom_right," in out
    assert "no module named 'nowhere'" in out
    assert main("list", "--kernels", "nowhere:x")[0] == cli.UNUSABLE


def test_devices_run_in_processes_of_their_own(main: Main) -> None:
    """Interpreter items run where TRITON_INTERPRET=1, the others where it is unset."""
    text = HEAD.replace('devices=("cpu",)', 'devices=("cpu", "interpreter")')
    noted = "open('modes', 'a').write(os.environ.get('TRITON_INTERPRET', 'unset') + ' ')"
    Path("both.py").write_text(f"{text}\n{noted}\nadapter = Tiny()\nadapter.name = 'both'\n")
    args = ("--kernel", "both.py:adapter", "--law", "attention.value", "--json", "run.json")
    code, out, err = main("run", *args, "--device", "cpu", "interpreter", "--workers", "1")
    assert code == 0, err
    assert "both             fp32 cpu  fp32 interpreter\nattention.value  ok 0." in out
    document = json.loads(Path("run.json").read_text())
    each = [r["cases"] for r in document["records"]]
    assert min(each) >= 20
    last = f"kernelassay: 1 law x 1 kernel: 2 passed ({sum(each)} cases, "
    assert out.splitlines()[-1].startswith(last)
    assert [r["device"] for r in document["records"]] == ["cpu", "interpreter"]
    assert document["kernels"]["both"]["supports"] == ["attend"]
    assert set(document["laws"]) == {"attention.value"}
    assert Path("modes").read_text() == "unset 1 "


def test_repro(main: Main) -> None:
    """A failed case becomes a script by the beginning of its id; an unknown one is refused."""
    case = failing()
    code, out, _ = main("repro", case[:5])
    assert code == 0
    compile(out, "repro.py", "exec")
    assert case in out
    code, _, err = main("repro", "0000")
    assert code == cli.UNUSABLE
    assert f"the newest there are {case}" in " ".join(err.split())


def test_keep(main: Main) -> None:
    """A kept case is run first from then on, and kept once."""
    case = failing()
    assert main("keep", case, "--note", "scaled twice")[0] == 0
    assert "already" in main("keep", case)[1]
    (line,) = Path("kernelassay-regressions.jsonl").read_text().splitlines()
    kept = json.loads(line)
    assert (kept["law"], kept["kernel"], kept["note"]) == (
        "attention.memory", "mine", "scaled twice",
    )  # fmt: skip
    Path("kernelassay-regressions.jsonl").write_text("{")
    assert "mend it first" in main("keep", case)[2]


def test_expect_and_prune(main: Main) -> None:
    """An expected failure passes while it fails, and is pruned once it is mended."""
    case = failing()
    assert "got no reason" in main("expect", case)[2]
    assert "got no case id" in main("expect")[2]
    assert main("expect", case, "--reason", 'scales "q" in place')[0] == 0
    assert "expects this case already" in " ".join(
        main("expect", case, "--reason", "x")[2].split()
    )
    path = Path("kernelassay-expect.toml")
    (entry,) = tomllib.loads(path.read_text())["expect"]
    assert entry["reason"] == 'scales "q" in place'
    (made,) = kernelassay.check("my_kernels.py:mine", "attention.memory", expect=path)
    assert (made.status, made.reason) == ("expected", entry["reason"])
    code, out, _ = main("expect", "--prune")
    assert (code, out.split()[:2]) == (0, ["still", "fails"])
    Path("my_kernels.py").write_text(source(mine="return out[..., 1:]"))
    sys.modules.pop("my_kernels")
    code, out, _ = main("expect", "--prune")
    assert (code, out.split()[:2]) == (1, ["FAILS", "ANEW"])
    Path("my_kernels.py").write_text(source(mine="return out"))
    sys.modules.pop("my_kernels")
    path.write_text("# Known faults.\n\n" + path.read_text())
    code, out, _ = main("expect", "--prune")
    assert (code, out.split()[0]) == (0, "FIXED")
    assert path.read_text() == "# Known faults.\n"
    assert main("expect", "--prune", "--file", "absent.toml")[0] == cli.UNUSABLE


def test_pruning_keeps_comments() -> None:
    """Only an entry and the comments right above it go; all else stays as it was written."""
    first = '# head\n\n# about one\n[[expect]]  # 1\nreason = "one"  # why\n\n'
    second, third = (
        '[[expect]]\nreason = "two"\n\n',
        '# about three\n[[expect]]\nreason = "three"\n',
    )
    text = first + second + third
    assert without(text, {1}) == first + third
    assert without(text, {2}) == first + second.rstrip() + "\n"
    assert without(text, {0}) == "# head\n\n" + second + third
    assert without(text, {0, 1, 2}) == "# head\n"
    with pytest.raises(cli.Unusable, match="drop them by hand"):
        without('[[expect]]\nreason = """\n[[expect]]\n"""\n[[expect]]\nreason = "b"\n', {1})


def test_crash_cannot_be_expected(main: Main) -> None:
    """What would end every run is no expected failure."""
    made = record("attention.memory", "crashed", case={"Tq": 2}, case_id="0123abcd")
    store.remember(made, "my_kernels.py:mine")
    code, _, err = main("expect", "0123", "--reason", "later")
    assert code == cli.UNUSABLE
    assert "crashed, which cannot be expected" in " ".join(err.split())


def test_store_passes_over_broken_lines(main: Main) -> None:
    """A line cut short by a crash costs that line; git ignores the folder."""
    assert main("repro", "0123")[0] == cli.UNUSABLE
    made = record("attention.memory", "failed", case={}, case_id="0123abcd", worst=float("inf"))
    store.remember(made, "a:b")
    with (store.FOLDER / "cases.jsonl").open("a") as file:
        file.write('{"id": "0123')
    assert [line["spec"] for line in store.find("0123abcd")] == ["a:b"]
    assert (store.FOLDER / ".gitignore").read_text() == "*\n"


def test_summary() -> None:
    """Counts say all that happened; the table has glyphs and worst ratios; exit codes differ."""
    records = [
        record("attention.value", "passed", cases=1200, worst=0.74),
        record("attention.lse", "failed", ratio=51.3),
        record("attention.memory", "crashed"),
        record("attention.views", "undeclared"),
        record("attention.declines", "expected"),
    ]
    assert summary_line(records) == (
        "kernelassay: 5 laws x 1 kernel: 1 passed (1,200 cases, worst 0.74 of allowed), 2 FAILED, "
        "1 expected failure, 1 UNDECLARED"
    )
    assert table(records).splitlines() == [
        "mine                bf16 cpu",
        "attention.value     ok 0.74",
        "attention.lse       FAIL 51x",
        "attention.memory    CRASH",
        "attention.views     UNDECL",
        "attention.declines  known",
    ]
    assert exit_code(records) == 1
    assert exit_code(records[:1]) == 0
    assert exit_code(records[3:]) == 0
    assert exit_code(records[3:], strict=True) == 1
    assert exit_code([*records, record("attention.value", "suite_error")]) == 3


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(tmp_path: Path, terminal: bool) -> None:
    """A terminal has one line that is rewritten, anything else plain lines; failures at once."""
    stream, now = io.StringIO(), [0.0]
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    progress = Progress(stream, clock=lambda: now[0])
    run = Run(Request((), ()), tmp_path / "run.jsonl")
    for n in range(4):
        now[0] += 6.0
        made = record("attention.value", "passed" if n != 2 else "failed", cases=20, worst=0.5)
        run.done[str(n)] = made
        progress(run, made)
    progress.end()
    text = stream.getvalue()
    assert text.count("FAILED attention.value-mine-bf16-cpu: failed: ") == 1
    assert ("\r" in text) == terminal
    assert text.count("items") == (4 if terminal else 2)
    last = "kernelassay: 4/0 items, 80 cases, worst 0.50 of allowed, 1 failure so far, 24 s"
    assert last in text


def test_mutants_are_somebody_elses(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mutants` hands its arguments to a module that is imported only then."""
    from types import SimpleNamespace

    seen = []
    module = SimpleNamespace(main=lambda args: seen.append(args) or 0)
    monkeypatch.setitem(sys.modules, "kernelassay.mutants_command", module)  # type: ignore[arg-type]
    assert main("mutants", "--family", "attention", "--level", "pr", "--workers", "2")[0] == 0
    (args,) = seen
    assert (args.family, args.level, args.seed, args.json, args.workers) == (
        ["attention"], "pr", None, None, 2,
    )  # fmt: skip


def test_mutants_of_no_family_are_unusable(main: Main) -> None:
    """A family that there is none of is named, with those there are."""
    code, _, err = main("mutants", "--family", "nope")
    assert code == cli.UNUSABLE
    assert "'nope'" in err
    assert "alignment, attention" in " ".join(err.split())
