"""The command line: `kernelassay run`, `list`, `repro`, `keep`, `expect`, `mutants`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from kernelassay import __version__
from kernelassay.messages import paragraph

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

NOTHING_WRONG, FAULTS, UNUSABLE, SUITE_FAILED, INTERRUPTED = 0, 1, 2, 3, 130

_EPILOG = """\
A kernel is named by module:attribute, by path/file.py:attribute, or by the name under which an
installed package publishes it (kernelassay list shows them). Try:

  kernelassay run --kernel torch_reference --law attention.value
  kernelassay run --kernel my_pkg/kernels.py:adapter --device cpu --json run.json

exit codes:  0 nothing wrong    1 faults found    2 unusable arguments    3 the suite failed
           130 interrupted (finished records are kept)
"""


class Unusable(Exception):
    """Arguments that cannot be used; the message is for the user."""


def parser() -> argparse.ArgumentParser:
    """All commands."""
    root = argparse.ArgumentParser(
        prog="kernelassay",
        description="Find wrong answers in LLM inference kernels.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"kernelassay {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_run, _list, _repro, _keep, _expect, _mutants):
        add(commands)
    return root


def _command(
    commands: "Commands",
    name: str,
    sentence: str,
    module: str,
    function: str = "main",
) -> argparse.ArgumentParser:
    """A command whose code is imported when it runs."""

    def call(args: argparse.Namespace) -> int:
        run: Callable[[argparse.Namespace], int] = getattr(import_module(module), function)
        return run(args)

    made = commands.add_parser(name, help=sentence, description=sentence)
    made.set_defaults(call=call)
    return made


def _run(commands: "Commands") -> None:
    add = _command(
        commands, "run", "Run laws on kernels, in worker processes.", "kernelassay.cli_run"
    ).add_argument
    add("--kernel", action="append", default=[], metavar="SPEC", required=True,
        help="module:attribute, path/file.py:attribute or published name; repeatable")  # fmt: skip
    add("--family", action="append", default=[], metavar="F", help="all laws of a family")
    add("--law", nargs="+", action="extend", default=[], metavar="PATTERN",
        help="laws by name, wildcards allowed (default: all)")  # fmt: skip
    add("--level", default="smoke", choices=("smoke", "pr", "nightly", "replay"),
        help="20, 100, 1000 or 0 new cases of each law (default: smoke)")  # fmt: skip
    add("--dtype", nargs="+", action="extend", default=[], metavar="T",
        help="dtypes of q, k, v (default: all that a kernel declares)")  # fmt: skip
    add("--device", nargs="+", action="extend", default=[], metavar="D",
        help="cpu, cuda, interpreter (default: cpu, and cuda or else interpreter)")  # fmt: skip
    add("--seed", type=int, help="run seed (default: 0; nightly: random)")
    add("--workers", type=_at_least(1), default=0, metavar="N", help="worker processes")
    add("--timeout", type=_seconds, default=120.0, metavar="S",
        help="seconds that one case may take (default: %(default)g)")  # fmt: skip
    add("--json", metavar="FILE", help="write the records there")
    add("--text", metavar="FILE", help="write reports and summary there as well")
    add("--case", metavar="LITERAL", help='this case only, as "AttendCase(Tq=1, Tk=17)"')
    add("--expect", action="append", default=[], metavar="FILE", help="expected failures (TOML)")
    add("--regressions", action="append", default=[], metavar="FILE", help="kept cases (JSONL)")
    add("--strict-features", action="store_true", help="an undeclared feature is a fault")


def _list(commands: "Commands") -> None:
    add = _command(
        commands, "list", "Show the laws, and kernels with their features.", "kernelassay.cli_list"
    ).add_argument
    add("--kernels", nargs="+", action="extend", metavar="SPEC",
        help="show these kernels instead of the published ones")  # fmt: skip


def _repro(commands: "Commands") -> None:
    add = _command(
        commands, "repro", "Print a failed case as a script of its own.", "kernelassay.cli_cases",
        "repro",
    ).add_argument  # fmt: skip
    add("id", metavar="ID", help="case id as reports show it; its beginning will do")


def _keep(commands: "Commands") -> None:
    add = _command(
        commands, "keep", "Keep a failed case: it is run first from now on.",
        "kernelassay.cli_cases", "keep",
    ).add_argument  # fmt: skip
    add("id", metavar="ID", help="case id")
    add("--file", default="kernelassay-regressions.jsonl", help="(default: %(default)s)")
    add("--note", default="", help="a few words on what it shows")


def _expect(commands: "Commands") -> None:
    add = _command(
        commands, "expect", "Declare a failed case a known fault, or prune what is mended.",
        "kernelassay.cli_cases", "expect",
    ).add_argument  # fmt: skip
    add("id", metavar="ID", nargs="?", help="case id")
    add("--file", default="kernelassay-expect.toml", help="(default: %(default)s)")
    add("--reason", help="why it is left as it is (required with ID)")
    add("--prune", action="store_true", help="rerun every witness; drop entries that pass now")
    add("--kernel", action="append", default=[], metavar="SPEC",
        help="with --prune: where the kernels are, if not known from earlier runs")  # fmt: skip
    add("--timeout", type=_seconds, default=120.0, metavar="S", help="seconds for one case")


def _mutants(commands: "Commands") -> None:
    add = _command(
        commands, "mutants", "Plant known faults in bundled kernels; every one must be found.",
        "kernelassay.mutants_command",
    ).add_argument  # fmt: skip
    add("--family", action="append", default=[], metavar="F", help="mutants of this family only")
    add("--level", default="smoke", choices=("smoke", "pr", "nightly"), help="(default: smoke)")
    add("--seed", type=int, help="first run seed (default: 0)")
    add("--seeds", type=_at_least(1), default=1, metavar="N", help="as many seeds from there on")
    add("--device", choices=("cpu", "cuda", "interpreter"), help="variants that run there only")
    add("--only", choices=("mutants", "controls"), help="one of the two kinds only")
    add("--json", metavar="FILE", help="write the outcome there")
    add("--workers", type=_at_least(1), default=0, metavar="N", help="worker processes")


def _at_least(least: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"got {text}, expected at least {least}")
        return int(text)

    return integer


def _seconds(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text}, expected a positive number of seconds")
    return float(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    args = parser().parse_args(argv)
    try:
        code: int = args.call(args)
    except Unusable as error:
        print("\n\n".join(paragraph(f"kernelassay: {e}") for e in error.args), file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # what reads us, such as head, has seen enough
        sys.stderr.close()
        return NOTHING_WRONG
    return code


if __name__ == "__main__":
    sys.exit(main())
