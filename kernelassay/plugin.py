"""The pytest plugin. Importing it imports neither torch nor Hypothesis; both come with the first
item. Every option is --assay-*, so that no host's own option is taken."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LEVELS = ("smoke", "pr", "nightly", "replay")
PROPERTY = "kernelassay"
"""The key of records among a report's user properties: how they reach the controller."""
records_key = pytest.StashKey[list[dict[str, Any]]]()
_running: list[pytest.Item] = []


def running_item() -> pytest.Item | None:
    """The pytest item that runs now."""
    return _running[-1] if _running else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """All options, in a group of their own."""
    add = parser.getgroup("kernelassay", "KernelAssay: laws of inference kernels").addoption
    add("--assay-kernel", action="append", default=[], metavar="SPEC",
        help="kernel for kernelassay.conformance: module:attribute, path/file.py:attribute or a "
        "published name; repeatable")  # fmt: skip
    add("--assay-select", action="append", default=[], metavar="PATTERN",
        help="laws by name or family, such as attention.value; repeatable")  # fmt: skip
    add("--assay-level", default="smoke", choices=LEVELS,
        help="20, 100, 1000 or 0 new cases of each law")  # fmt: skip
    add("--assay-device", action="append", default=[], metavar="D",
        help="cpu, cuda or interpreter; repeatable (default: all declared)")  # fmt: skip
    add("--assay-case", metavar="CASE", help="this case only: a literal, or a case id")
    add("--assay-seed", type=int, metavar="N", help="run seed (default: 0; nightly: random)")
    add("--assay-timeout", type=float, default=120.0, metavar="S", help="seconds for one case")
    add("--assay-json", metavar="FILE", help="write the records there")
    add("--assay-expect", action="append", default=[], metavar="FILE",
        help="expected failures (TOML); repeatable")  # fmt: skip
    add("--assay-regressions", action="append", default=[], metavar="FILE",
        help="kept cases (JSONL); repeatable")  # fmt: skip
    add("--assay-strict-features", action="store_true", help="an undeclared feature is a failure")


def pytest_configure(config: pytest.Config) -> None:
    """Register marks; the shipped suite needs to be told of a kernel."""
    for line in (
        "gpu: needs a CUDA device",
        "slow: takes minutes",
        "assay(kernels, select, expect, regressions, devices): runs the laws of KernelAssay",
    ):
        config.addinivalue_line("markers", line)
    config.stash[records_key] = []
    if not is_worker(config):
        config.pluginmanager.register(Collector(config), "kernelassay-collector")
    path = config.getoption("assay_json")
    if path and not Path(path).resolve().parent.is_dir():
        raise pytest.UsageError(f"--assay-json {path}: its folder is not there")
    if _shipped(config) and not config.getoption("assay_kernel"):
        raise pytest.UsageError(NO_KERNEL)


NO_KERNEL = (
    "kernelassay.conformance runs the laws on a kernel of yours: say which with "
    "--assay-kernel module:attribute (or path/file.py:attribute, or a published name)"
)


def _shipped(config: pytest.Config) -> bool:
    return any("kernelassay.conformance" in arg for arg in config.args)


def pytest_report_header(config: pytest.Config) -> str | None:
    """What is run, where that is known from the command line."""
    return header(config) if _shipped(config) or config.getoption("assay_kernel") else None


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> str | None:
    """What is run, where an adopter's tests told."""
    found = sum(i.get_closest_marker("assay") is not None for i in items)
    return header(config) if found and pytest_report_header(config) is None else None


def header(config: pytest.Config) -> str:
    """Version, level, seed, devices."""
    from kernelassay import __version__

    level, seed = config.getoption("assay_level"), config.getoption("assay_seed")
    shown = "random" if seed is None and level == "nightly" else seed or 0
    devices = ", ".join(config.getoption("assay_device")) or "all declared"
    return f"kernelassay {__version__}: level {level}, seed {shown}, devices {devices}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each law, kernel, dtype and device."""
    marker = metafunc.definition.get_closest_marker("assay")
    if marker is not None:
        from kernelassay.pytest_items import parametrize

        parametrize(metafunc, **marker.kwargs)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Remember which item runs, so that `prop.check` finds its options."""
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


class Collector:
    """Collects records where reports arrive: in xdist's controller, or in the only process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the records that a report carries."""
        if report.when in ("call", "???"):
            found = [json.loads(str(v)) for k, v in report.user_properties if k == PROPERTY]
            self._config.stash[records_key].extend(found)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """A worker ended in the middle of an item: say which case ran, and blame nothing else."""
        from kernelassay.flight import landed

        record = landed(crashitem)
        if record is not None:
            report.longrepr = record.report
            report.user_properties.append((PROPERTY, json.dumps(record.to_json())))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the records, of an interrupted run as well."""
        path = self._config.getoption("assay_json")
        if path and not self._config.option.collectonly:
            from kernelassay.pytest_items import document
            from kernelassay.store import finite

            made = finite(document(self._config, session.items))
            Path(path).write_text(json.dumps(made, indent=1, allow_nan=False) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line of counts, one for each kind of device that is not there."""
        values = self._config.stash[records_key]
        if values:
            from kernelassay.store import record_from
            from kernelassay.summary import device_lines, summary_line

            records = [record_from(v) for v in values]
            for line in (*device_lines(records), summary_line(records)):
                terminalreporter.write_line(line)
