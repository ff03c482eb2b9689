"""The decorator that turns a three-line test file into the whole suite."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])


def parametrize_with_properties(
    kernels: Sequence[Any] | None,
    *,
    select: str | Sequence[str] = (),
    expect: str | Path | None = None,
    regressions: str | Path | None = None,
    devices: Sequence[str] | None = None,
) -> Callable[[Test], Test]:
    """Run the decorated test once for each law, kernel, dtype and device.

        @parametrize_with_properties([adapter], expect="kernelassay-expect.toml")
        def test_conformance(kernel, prop):
            prop.check(kernel)

    *kernels*: adapters, or what names them ("module:attribute"); None: those of --assay-kernel.
    *select*: laws by name or family ("attention.*", "alignment"). *expect*, *regressions*: files,
    relative to the test's folder or to pytest's root. *devices*: of those that a kernel declares.
    """
    return pytest.mark.assay(
        kernels=kernels,
        select=(select,) if isinstance(select, str) else tuple(select),
        expect=expect,
        regressions=regressions,
        devices=tuple(devices or ()),
    )
