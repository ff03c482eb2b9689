"""A time limit for a case, as far as one can be kept from inside the process."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernelassay.properties.failures import TimedOut


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimedOut` in the main thread after *seconds*.

    Python code is interrupted; a wait inside a library is not: `kernelassay run` watches its
    workers from outside. Elsewhere than in the main thread of a POSIX system nothing is done.
    """
    if seconds <= 0 or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(signum: int, frame: Any) -> None:
        raise TimedOut(f"the case ran past its limit of {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
