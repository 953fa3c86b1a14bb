"""The time of the results: even, and never before what was recorded."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from experiment.clock import CLOCK, Clock
from experiment.paths import ROOT

NOON = datetime(2026, 6, 5, 12, tzinfo=UTC)


class Machine:
    """Two clocks, one of which can be set."""

    def __init__(self) -> None:
        self.wall = NOON
        self.elapsed_s = 1000.0

    def pass_s(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.elapsed_s += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.wall, lambda: self.elapsed_s)


def test_it_is_the_machines_time() -> None:
    before = datetime.now(UTC)
    clock = Clock()
    assert before - timedelta(seconds=1) < clock.now() < before + timedelta(seconds=1)
    assert clock.now() <= CLOCK.now() + timedelta(seconds=1)  # which may have gone on after others
    assert CLOCK.now().tzinfo is UTC


def test_setting_the_machines_clock_changes_nothing() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.pass_s(10)
    assert (clock.now(), clock.ahead_s()) == (NOON + timedelta(seconds=10), 0)
    machine.wall -= timedelta(hours=1)
    machine.pass_s(5)
    assert (clock.now(), clock.ahead_s()) == (NOON + timedelta(seconds=15), 3600)
    machine.wall += timedelta(hours=2)
    assert (clock.now(), clock.ahead_s()) == (NOON + timedelta(seconds=15), -3600)


def test_it_goes_on_after_what_was_recorded() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.go_on_after(NOON - timedelta(hours=1))  # which is past anyway
    assert clock.now() == NOON
    clock.go_on_after(NOON + timedelta(hours=1))
    assert clock.now() == NOON + timedelta(hours=1)
    machine.pass_s(3)
    assert clock.now() == NOON + timedelta(hours=1, seconds=3)


def test_nothing_else_reads_the_machines_clock() -> None:
    """What stamps a result, or takes a duration, does so with a clock that cannot be set."""
    reads = re.compile(r"datetime\.(?:now|utcnow|today)\(|\btime\.(?:time|time_ns|localtime)\(")
    found = {
        path.name
        for path in ROOT.glob("experiment/**/*.py")
        if reads.search(path.read_text(encoding="utf-8"))
    }
    # Of a build's record and of an archive's check no order is made and no duration is taken.
    assert found == {"clock.py", "build.py", "verify_raw.py"}
