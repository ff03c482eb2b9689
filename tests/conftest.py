"""Fixtures for all tests, and room on Python's stack for what they call."""

from collections.abc import Iterator

import pytest

from kernelassay.properties.room import with_room

pytest_plugins = ["pytester"]


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """The test is called from a frame with room below it, as laws are."""
    test = pyfuncitem.obj
    pyfuncitem.obj = lambda **arguments: with_room(lambda: test(**arguments))
    yield
    pyfuncitem.obj = test
