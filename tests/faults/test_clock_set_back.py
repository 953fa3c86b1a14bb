"""The machine's clock is set back during a run, or while it was stopped: nothing gets confused."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_world import World, events, query, status, structure, the_run

from experiment.clock import CLOCK

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
TIMES = (
    "SELECT started_at AS moment FROM measurement UNION ALL SELECT happened_at FROM event "
    "UNION ALL SELECT recorded_at FROM host"
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return structure(World(tmp_path_factory.mktemp("whole"), with_refused=False).start())


@pytest.fixture
def falling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at the clock finds it an hour behind what it was the last time."""
    now = datetime.now(UTC)

    def back() -> datetime:
        nonlocal now
        now -= HOUR
        return now

    class Falling(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return back()

    for name, module in list(sys.modules.items()):
        if name.startswith("experiment.") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Falling)
    monkeypatch.setattr(time, "time", lambda: back().timestamp())
    monkeypatch.setattr(time, "time_ns", lambda: int(back().timestamp() * 1e9))
    monkeypatch.setattr(CLOCK, "_wall", back)


def check_times(folder: Path, asked: list[tuple[str, int, str]]) -> None:
    """Times are in the order in which things were done, and no duration is negative."""
    done = query(
        folder,
        "SELECT task_id, step, variant FROM measurement WHERE variant <> 'arithmetic' "
        "ORDER BY started_at",
    )
    assert done == asked
    assert query(folder, "SELECT count(*) FROM run WHERE finished >= started") == [(1,)]
    ((first, last),) = query(folder, f"SELECT min(moment), max(moment) FROM ({TIMES})")
    ((started, finished),) = query(folder, "SELECT started, finished FROM run")
    assert started - SECOND <= first <= last <= finished
    assert query(folder, "SELECT min(wall_ms) > 0 FROM measurement") == [(True,)]


@pytest.mark.usefixtures("falling")
def test_set_back_during_a_run(tmp_path: Path, uninterrupted: list[tuple[Any, ...]]) -> None:
    world = World(tmp_path, with_refused=False)
    folder = world.start()
    assert status(folder) == "finished"
    assert structure(folder) == uninterrupted
    check_times(folder, world.asked)
    (told,) = events(folder, "clock")
    assert told.startswith("the machine's clock was set back by 3,6")


def test_a_clock_that_is_right_is_not_spoken_of(tmp_path: Path) -> None:
    assert events(World(tmp_path, with_refused=False).start(), "clock") == []


def test_set_back_between_a_run_and_its_resume(
    tmp_path: Path, uninterrupted: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, with_refused=False)
    world.trouble = lambda number, _: KeyboardInterrupt() if number == 9 else None
    with pytest.raises(KeyboardInterrupt):
        world.start()
    world.trouble = lambda _number, _ask: None
    folder = the_run(world)
    ((before,),) = query(folder, f"SELECT max(moment) FROM ({TIMES})")
    ok = "SELECT started_at FROM measurement WHERE status = 'ok'"
    old = query(folder, ok)
    # Another process, begun at another time, of which this one's clock knows nothing.
    monkeypatch.setattr(CLOCK, "_start", CLOCK._start - HOUR)
    monkeypatch.setattr(CLOCK, "_wall", lambda: datetime.now(UTC) - HOUR)
    world.resume(folder)
    assert status(folder) == "finished"
    assert structure(folder) == uninterrupted
    assert min(at for (at,) in query(folder, ok) if (at,) not in old) >= before
    check_times(folder, in_the_end(world.asked))
    assert len(events(folder, "clock")) == 1


def in_the_end(asked: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Without the interrupted request, and the warm-up as the resume made it again."""
    first, second = asked[:9], asked[10:]
    assert first[:4] == second[:4]
    return [*first[4:], *second]
