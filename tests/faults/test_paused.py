"""The machine sleeps, or the run is stopped for a while: no such time becomes a measurement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_world import World, events, query, status, structure, the_run

from experiment.measure import MAX_REPEATS
from experiment.paths import ROOT
from experiment.replay import PAUSED

KEYS = f"SELECT task_id, step, variant, round FROM event WHERE kind = '{PAUSED}'"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return structure(World(tmp_path_factory.mktemp("whole"), with_refused=False).start())


class Asleep:
    """In place of the meter: the machine has slept for 30 s whenever ``when`` is asked."""

    def __init__(self, when: Callable[[], bool]) -> None:
        self.when = when
        self.lost = 0.0

    def __enter__(self) -> Asleep:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def lost_s(self) -> float:
        if self.when():
            self.lost += 30.0
        return self.lost


def sleeping(monkeypatch: pytest.MonkeyPatch, world: World, at: range) -> None:
    """The machine sleeps during these requests."""
    seen = set[int]()

    def when() -> bool:
        asked = len(world.asked) - 1
        if asked in at and asked not in seen:
            seen.add(asked)
            return True
        return False

    monkeypatch.setattr("experiment.replay.PauseMeter", lambda: Asleep(when))


def test_what_was_asked_for_meanwhile_is_asked_for_again(
    tmp_path: Path, uninterrupted: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, with_refused=False)
    sleeping(monkeypatch, world, range(9, 10))
    folder = world.start()
    assert status(folder) == "finished"
    assert structure(folder) == uninterrupted
    assert world.asked[9] == world.asked[10]
    assert len(world.asked) == 25
    assert query(folder, KEYS) == [(*world.asked[9], 0)]
    assert events(folder, PAUSED) == [
        "the machine or this program stood still for 30.0 s meanwhile; measured again"
    ]
    assert "paused_s" not in "".join(path.read_text() for path in folder.glob("raw/*.json"))


def test_a_machine_that_always_falls_asleep_gives_an_invalid_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, with_refused=False)
    sleeping(monkeypatch, world, range(9, 9 + MAX_REPEATS + 1))
    folder = world.start()
    assert status(folder) == "finished"
    ((task_id, step, variant, error, raw),) = query(
        folder,
        "SELECT task_id, step, variant, error, raw FROM measurement WHERE status = 'invalid'",
    )
    assert (task_id, step, variant) == world.asked[9]
    assert error == "the machine or this program stood still for 30.0 s meanwhile"
    assert '"paused_s": 30.0' in (folder / "raw" / raw).read_text()
    assert len(events(folder, PAUSED)) == MAX_REPEATS
    assert events(folder, "invalid") == [error]
    assert events(folder, "rounds")[0].startswith("4 rounds")  # one more for the pair that is lost


def test_nothing_is_read_off_a_warm_up(
    tmp_path: Path, uninterrupted: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, with_refused=False)
    sleeping(monkeypatch, world, range(4))
    folder = world.start()
    assert len(world.asked) == 24
    assert structure(folder) == uninterrupted
    assert events(folder, PAUSED) == []


def slow_at(folder: Path, at: int) -> None:
    """Run in a process of its own: one request takes long enough to be stopped in it."""
    world = World(folder, with_refused=False)

    def trouble(number: int, _: object) -> None:
        if number == at:
            (folder / "asking").touch()
            time.sleep(1.5)

    world.trouble = trouble
    world.start()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_a_driver_that_is_really_stopped(
    tmp_path: Path, uninterrupted: list[tuple[Any, ...]]
) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
        "from tests.faults.test_paused import slow_at; from pathlib import Path\n"
        f"slow_at(Path({str(tmp_path)!r}), 9)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as driver:
        while not (tmp_path / "asking").exists():
            assert driver.poll() is None
            time.sleep(0.01)
        os.kill(driver.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(driver.pid, signal.SIGCONT)
        assert driver.wait(60) == 0
    folder = the_run(World(tmp_path, with_refused=False))
    assert status(folder) == "finished"
    assert structure(folder) == uninterrupted
    (told,) = events(folder, PAUSED)
    assert "stood still for 2" in told or "stood still for 3" in told
