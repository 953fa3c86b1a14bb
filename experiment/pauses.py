"""Whether the machine or this process stood still: suspended, stopped, frozen with its container.

A time that was measured across such a gap is not the time of what was measured: the server's clock
may have run on, or its caches have gone cold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

BEAT_S = 0.25
"""How often the process looks whether it is alive; 4 wakings a second are not seen in a prefill."""

LIMIT_S = 1.0
"""A beat that is later than this was not merely waiting for a core."""

MAX_REPEATS = 2
"""How often what was paused is measured again before it is given up."""


def _suspended_s() -> float:
    """Seconds that the machine has slept since it was started; 0 where the system does not tell."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if boot is None else time.clock_gettime(boot) - time.clock_gettime(_AWAKE)


_AWAKE = time.CLOCK_MONOTONIC


class PauseMeter:
    """Counts the seconds that are lost while it is open. Use as a context manager.

    A thread wakes every `BEAT_S`; where it wakes far too late, this process did not run. What the
    machine slept, the kernel tells.

    Args:
        clock_s: runs on while this process is stopped.
        suspended_s: how long the machine slept.
    """

    def __init__(
        self,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        suspended_s: Callable[[], float] = _suspended_s,
    ) -> None:
        self._clock_s = clock_s
        self._suspended_s = suspended_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pauses", daemon=True)
        self._lost_s = 0.0
        self._last_s = clock_s()
        self._slept_s = suspended_s()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def lost_s(self) -> float:
        """Seconds lost so far; ask before and after what must not be paused."""
        with self._lock:
            # Who wakes first after a pause, the thread or the caller, is not known.
            now_s = self._clock_s()
            late_s = now_s - self._last_s - BEAT_S
            if late_s > LIMIT_S:
                self._lost_s += late_s
            self._last_s = now_s
            slept_s = self._suspended_s()
            # Two clocks are read one after the other: what lies below a millisecond is that.
            if slept_s - self._slept_s > 1e-3:
                self._lost_s += slept_s - self._slept_s
                self._slept_s = slept_s
            return self._lost_s

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.lost_s()
