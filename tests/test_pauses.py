"""Pauses: what is lost while this process is stopped or the machine sleeps, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from experiment.paths import ROOT
from experiment.pauses import BEAT_S, LIMIT_S, PauseMeter


class Clocks:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s = 7.0

    def meter(self) -> PauseMeter:
        """One that nothing beats but its caller."""
        return PauseMeter(clock_s=lambda: self.now_s, suspended_s=lambda: self.slept_s)


def test_a_beat_that_is_late_is_a_pause() -> None:
    clocks = Clocks()
    meter = clocks.meter()
    for _ in range(20):
        clocks.now_s += BEAT_S
        assert meter.lost_s() == 0
    clocks.now_s += BEAT_S + 5
    assert meter.lost_s() == pytest.approx(5)
    clocks.now_s += BEAT_S
    assert meter.lost_s() == pytest.approx(5)
    clocks.now_s += BEAT_S + 2
    assert meter.lost_s() == pytest.approx(7)


def test_waiting_for_a_core_is_none() -> None:
    clocks = Clocks()
    meter = clocks.meter()
    clocks.now_s += BEAT_S + LIMIT_S
    assert meter.lost_s() == 0


def test_what_the_machine_slept_is_lost() -> None:
    clocks = Clocks()
    meter = clocks.meter()
    assert meter.lost_s() == 0  # what was before does not count
    clocks.slept_s += 0.0005  # two clocks are not read at once
    assert meter.lost_s() == 0
    clocks.slept_s += 30
    assert meter.lost_s() == pytest.approx(30, abs=0.001)
    assert meter.lost_s() == pytest.approx(30, abs=0.001)


def test_it_beats_by_itself_while_the_caller_waits_and_ends() -> None:
    before = threading.active_count()
    with PauseMeter() as meter:
        time.sleep(BEAT_S + LIMIT_S + 0.5)
        assert meter.lost_s() == 0
    assert threading.active_count() == before


STOPPED = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from experiment.pauses import PauseMeter
with PauseMeter() as meter:
    print("up", flush=True)
    sys.stdin.readline()
    print(meter.lost_s(), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_stopped_process_notices() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(BEAT_S + LIMIT_S + 1)
        child.stdin.write("\n")
        child.stdin.flush()
        os.kill(child.pid, signal.SIGCONT)
        assert 1 < float(child.stdout.readline()) < 10
