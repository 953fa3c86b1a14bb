"""The time that results carry: UTC that never goes back, whatever is done to the machine's clock.

Durations are not taken from it but from the monotonic clock, where they are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


def _elapsed_s() -> float:
    # Linux: goes on while the machine is suspended, which the usual monotonic clock does not.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _wall() -> datetime:
    return datetime.now(UTC)


class Clock:
    """Reads the machine's time once and counts on from there.

    Args:
        wall: the machine's time, with its zone.
        elapsed_s: seconds that passed, of which only differences count.
    """

    def __init__(
        self,
        wall: Callable[[], datetime] = _wall,
        elapsed_s: Callable[[], float] = _elapsed_s,
    ) -> None:
        self._wall = wall
        self._elapsed_s = elapsed_s
        self._start, self._start_s = wall(), elapsed_s()

    def now(self) -> datetime:
        """The present time; never before one that it has given."""
        return self._start + timedelta(seconds=self._elapsed_s() - self._start_s)

    def go_on_after(self, moment: datetime) -> None:
        """Give no time before ``moment``, at which something was recorded."""
        self._start += max(timedelta(), moment - self.now())

    def ahead_s(self) -> float:
        """Seconds by which the machine's time is behind the one given (negative: ahead of it)."""
        return (self.now() - self._wall()).total_seconds()


CLOCK = Clock()
"""What everything that stamps a result asks."""
