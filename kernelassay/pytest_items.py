"""What pytest items of KernelAssay are made of; imported with the first of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kernelassay import plugin
from kernelassay.checking import as_loaded
from kernelassay.flight import Flight
from kernelassay.loading import Loaded, LoadError
from kernelassay.plan import Item, plan
from kernelassay.properties.engine import Options
from kernelassay.properties.property import REGISTRY, Property, select
from kernelassay.properties.records import WRONG, Record, run_document
from kernelassay.running import (
    device_is_lost,
    nobody,
    report_of,
    run_item,
    unusable,
)
from kernelassay.settings import UNUSABLE, Settings
from kernelassay.store import record_from


@dataclass(frozen=True, eq=False)
class BoundLaw:
    """A law with the dtype and device of one item: the `prop` of a decorated test."""

    law: Property
    item: Item
    options: Options

    @property
    def name(self) -> str:
        """The law's name."""
        return self.law.name

    @property
    def sentence(self) -> str:
        """What must hold."""
        return self.law.sentence

    def check(self, kernel: Any) -> None:
        """The law holds on *kernel*: else the test fails with the report, or is skipped."""
        node = plugin.running_item()
        loaded, options, flight = Loaded(self.item.spec, kernel), self.options, None
        if node is not None and plugin.is_worker(node.config):
            flight = Flight(node.nodeid, self.item, options.level, options.seed)
        record = run_item(self.law, loaded, self.item, options, flight or nobody)
        if flight is not None:
            if device_is_lost(record):
                flight.crash(record)
            flight.land()
        conclude(record, self.item.spec, node)


@dataclass(frozen=True, eq=False)
class BrokenKernel:
    """A kernel that cannot be used; its only item fails, or is skipped, and says why."""

    error: LoadError
    level: str

    def check(self, kernel: Any) -> None:
        """End with the reason."""
        del kernel
        record = unusable(self.error.spec, self.error.kind, str(self.error), self.level)
        conclude(record, self.error.spec, plugin.running_item())


def conclude(record: Record, spec: str, node: pytest.Item | None) -> None:
    """Attach *record* to the running item, and end its test as the record says."""
    strict = False
    if node is not None:
        node.user_properties.append((plugin.PROPERTY, json.dumps(record.to_json())))
        strict = node.config.getoption("assay_strict_features")
        if device_is_lost(record):
            node.session.shouldstop = f"{record.device} is lost: {record.reason}"
    if record.status in (*WRONG, "suite_error"):
        pytest.fail(report_of(record, spec), pytrace=False)
    if record.status == "undeclared" and strict:
        pytest.fail(
            f"{record.kernel} {record.reason}; --assay-strict-features: support or decline it",
            pytrace=False,
        )
    if record.status == "expected":
        pytest.xfail(record.reason)
    if record.status != "passed":
        pytest.skip(_why(record))


def _why(record: Record) -> str:
    plain = record.status in ("declined", "undeclared", "no_device", "unavailable")
    return record.reason if plain else f"{record.status.replace('_', ' ')}: {record.reason}"


def parametrize(
    metafunc: pytest.Metafunc,
    kernels: Sequence[Any] | None,
    select: Sequence[str],
    expect: str | Path | None,
    regressions: str | Path | None,
    devices: Sequence[str],
) -> None:
    """Give the test its items; a selection that cannot be made is a collection error in words."""
    config = metafunc.config
    if kernels is None:
        kernels = config.getoption("assay_kernel")
        if not kernels:
            raise pytest.Collector.CollectError(plugin.NO_KERNEL)
    try:
        settings = settings_of(metafunc, expect, regressions)
        laws = selected(select, config.getoption("assay_select"))
        good, broken = usable(kernels, metafunc)
        chosen = config.getoption("assay_device")
        if devices and chosen:
            chosen = [d for d in devices if d in chosen]
            items = plan(good, laws, chosen) if chosen else []
        else:
            items = plan(good, laws, chosen or devices)
        params = _params(items, laws, good, settings.options())
    except UNUSABLE as error:
        refuse(str(error))
    params += [
        pytest.param(
            None, BrokenKernel(error, settings.level), id=f"contract.adapter-{error.spec}"
        )
        for error in broken
    ]
    metafunc.parametrize(("kernel", "prop"), params)


def refuse(message: str) -> NoReturn:
    """End the collection of this test with a message and no traceback."""
    raise pytest.Collector.CollectError(f"kernelassay: {message}")


def _params(
    items: list[Item], laws: list[Property], kernels: list[Loaded], options: Options
) -> list[Any]:
    law, adapter = {p.name: p for p in laws}, {k.name: k.adapter for k in kernels}
    return [
        pytest.param(
            adapter[item.kernel],
            BoundLaw(law[item.law], item, options),
            id=item.id,
            marks=[pytest.mark.gpu] if item.device == "cuda" else [],
        )
        for item in items
    ]


def selected(*choices: Sequence[str]) -> list[Property]:
    """The laws that every one of the choices selects; an empty choice selects all."""
    found = select()
    for patterns in choices:
        if patterns:
            names = {p.name for p in select(*patterns)}
            found = [p for p in found if p.name in names]
    return found


def usable(
    kernels: Sequence[Any], metafunc: pytest.Metafunc
) -> tuple[list[Loaded], list[LoadError]]:
    """The kernels that can be used, and what is wrong with the others."""
    from kernelassay.impls.contract import ContractError

    good: list[Loaded] = []
    broken: list[LoadError] = []
    several = kernels if isinstance(kernels, (list, tuple)) else [kernels]
    for kernel in several:
        try:
            found = as_loaded(kernel, metafunc.module)
            plan([*good, *found], [])
        except LoadError as error:
            broken.append(error)
        except ContractError as error:
            name = getattr(kernel, "__name__", type(kernel).__name__)
            broken.append(LoadError(name, f"no adapter: {error}", kind="ContractError"))
        else:
            good += found
    return good, broken


def settings_of(
    metafunc: pytest.Metafunc, expect: str | Path | None, regressions: str | Path | None
) -> Settings:
    """The options of the command line, and the files that the decorator names."""
    option = metafunc.config.getoption

    def files(name: str, own: str | Path | None) -> tuple[str, ...]:
        return (*option(name), *([_near(metafunc, own)] if own is not None else []))

    return Settings(
        level=option("assay_level"),
        seed=option("assay_seed"),
        limit=option("assay_timeout"),
        case=option("assay_case"),
        expect=files("assay_expect", expect),
        regressions=files("assay_regressions", regressions),
    )


def _near(metafunc: pytest.Metafunc, path: str | Path) -> str:
    """A file beside the test, or at pytest's root."""
    for folder in (metafunc.definition.path.parent, metafunc.config.rootpath):
        if (folder / path).exists():
            return str(folder / path)
    return str(metafunc.definition.path.parent / path)


def document(config: pytest.Config, items: Sequence[pytest.Item]) -> dict[str, Any]:
    """The run as JSON: what was recorded, and `not_run` for items that never got their turn."""
    select()
    records = [record_from(v) for v in config.stash[plugin.records_key]]
    done = {r.item for r in records}
    for node in items:
        prop = node.callspec.params.get("prop") if hasattr(node, "callspec") else None
        if isinstance(prop, BoundLaw) and prop.item.id not in done:
            records.append(_not_run(prop))
    laws = {r.law: REGISTRY[r.law].sentence for r in records if r.law in REGISTRY}
    level, seed = config.getoption("assay_level"), config.getoption("assay_seed")
    return run_document(records, level=level, seed=seed, laws=laws)


def _not_run(prop: BoundLaw) -> Record:
    item, options = prop.item, prop.options
    record = Record(item.law, prop.law.family, item.kernel, item.dtype, item.device, options.level)
    record.seed = options.seed
    return record.ended("not_run", reason="interrupted before it was done")
