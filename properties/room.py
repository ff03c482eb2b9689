"""Room on Python's stack for what runs in Python for long.

CPython, from 3.11 on, keeps frames in chunks of 16 KiB and gives each back to the system when it
is left. Where the depth of a caller puts the end of one into a hot loop, every call there maps and
unmaps memory: below pytest that was two fifths of the time of kernels in Triton's interpreter. A
frame too large for what is left opens a chunk of its own, with room for the frames that follow.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")
SLOTS = 1 << 17
"""Words of the frame, which are reserved and not touched: 1 MiB."""


def _call(call: Callable[[], Any]) -> Any:
    return call()


_large = FunctionType(_call.__code__.replace(co_stacksize=SLOTS), globals())


def with_room(call: Callable[[], T]) -> T:
    """What *call* returns, called from a frame with room below it."""
    came: T = _large(call)
    return came
