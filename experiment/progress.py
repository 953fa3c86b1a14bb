"""How long work tells a person how far it is: a bar on a terminal, lines in a log, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichBar

REFRESHES_PER_S = 2.0
"""Redraws of the bar. Few, because the bar shares the cores with what is being measured."""

LINE_EVERY_S = 15.0
"""Without a terminal, at most one line on the way in this time."""


class Progress(Protocol):
    """What a library function reports its progress to."""

    def start(self, what: str, total: float | None) -> None:
        """Begin (or replace) the current bar; ``total`` in any unit, None if it is not known."""

    def advance(self, done: float, note: str = "") -> None:
        """Set the absolute amount done, in the unit of the total, and a note of a few words."""

    def finish(self, summary: str = "") -> None:
        """End the current bar and leave one permanent line."""

    def say(self, line: str) -> None:
        """Print a permanent line above the bar."""


class SilentProgress:
    """Drops everything: for tests and for callers that print a result only."""

    def start(self, what: str, total: float | None) -> None:
        """Do nothing."""

    def advance(self, done: float, note: str = "") -> None:
        """Do nothing."""

    def finish(self, summary: str = "") -> None:
        """Do nothing."""

    def say(self, line: str) -> None:
        """Do nothing."""


class RichProgress:
    """A bar with the time left on a terminal, plain lines elsewhere; on standard error.

    Use it as a context manager, so that an exception leaves no half-drawn bar behind.
    """

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Standard output belongs to results: `compare --format json > file` must stay JSON.
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._bar: RichBar | None = None
        self._task = TaskID(0)
        self._what = ""
        self._total: float | None = None
        self._started_s = self._last_line_s = 0.0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away, whatever happened."""
        self._stop()

    def start(self, what: str, total: float | None) -> None:
        """Begin (or replace) the current bar; ``total`` in any unit, None if it is not known."""
        self._stop()
        self._what, self._total = what, total
        self._started_s = self._last_line_s = self._clock()
        if not self._console.is_terminal:
            self.say(f"{what} …")
            return
        self._bar = RichBar(
            *_columns(total is not None),
            console=self._console,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
        )
        self._task = self._bar.add_task(what, total=total, note="")
        self._bar.start()

    def advance(self, done: float, note: str = "") -> None:
        """Set the absolute amount done, in the unit of the total, and a note of a few words."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=note)
            return
        now_s = self._clock()
        if not self._what or now_s - self._last_line_s < LINE_EVERY_S:
            return
        self._last_line_s = now_s
        share = f"{min(done / self._total, 1.0):.0%}" if self._total else ""
        left = self._left(done, now_s)
        self.say(f"{self._what}: " + ", ".join(filter(None, [share, note, left])))

    def finish(self, summary: str = "") -> None:
        """End the current bar and leave one permanent line: ``summary``, or what took how long."""
        if not self._what:
            return
        took = _duration(self._clock() - self._started_s)
        line = summary or f"{self._what}: done in {took}"
        self._stop()
        self.say(line)

    def say(self, line: str) -> None:
        """Print a permanent line above the bar."""
        # Paths and notes may hold [brackets]; they are text, not rich's markup. Soft wrap keeps a
        # line whole, so that it can be searched for in a log.
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _left(self, done: float, now_s: float) -> str:
        if not self._total or done <= 0 or done >= self._total:
            return ""
        return f"{_duration((now_s - self._started_s) * (self._total - done) / done)} left"

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._what, self._total = None, "", None


def _columns(total_known: bool) -> list[ProgressColumn]:
    what = TextColumn("{task.description}", markup=False)
    note = TextColumn("{task.fields[note]}", style="dim", markup=False)
    if not total_known:
        return [SpinnerColumn(), what, TimeElapsedColumn(), note]
    return [what, BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), note]


def _duration(seconds: float) -> str:
    """Write a time the way a person reads it: ``4.2 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
