"""A results folder that cannot be written, or whose database somebody else has open."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_world import World, counts, status, structure, the_run

from experiment.database import DATABASE, DatabaseInUse
from experiment.errors import StoreError
from experiment.paths import ROOT
from experiment.reader import read
from tests.faults.own_mounts import needs_mounts, told

PROGRAM = Path(__file__).with_name("readonly.py")

HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == 'read'); "
HOLD += "print('held', flush=True); sys.stdin.readline()"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return structure(World(tmp_path_factory.mktemp("whole"), with_refused=False).start())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, with_refused=False)


@pytest.fixture
def interrupted(world: World) -> Path:
    world.trouble = lambda number, _: KeyboardInterrupt() if number == 9 else None
    with pytest.raises(KeyboardInterrupt):
        world.start()
    world.trouble = lambda _number, _ask: None
    return the_run(world)


@contextmanager
def held(database: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """Another process has the database open."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, database, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.kill()


@pytest.mark.parametrize("how", ["write", "read"])
def test_a_database_that_another_process_has_open(
    how: str, world: World, interrupted: Path, uninterrupted: list[tuple[Any, ...]]
) -> None:
    before = sorted(path.name for path in interrupted.iterdir())
    with held(interrupted / DATABASE, how) as holder:
        with pytest.raises(DatabaseInUse, match=f"in use by process {holder.pid}") as caught:
            world.resume(interrupted)
        assert "wait until that run has ended" in str(caught.value)
        assert len(world.asked) == 10  # none was made by the resume
        with read(interrupted) as reader:  # and whoever only reads is served
            assert reader.connection.execute("SELECT status FROM run").fetchall() == [
                ("interrupted",)
            ]
    assert sorted(path.name for path in interrupted.iterdir()) == before
    world.resume(interrupted)
    assert status(interrupted) == "finished"
    assert structure(interrupted) == uninterrupted


def test_the_command_says_it_in_a_sentence(interrupted: Path, tmp_path: Path) -> None:
    with held(interrupted / DATABASE, "write") as holder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "invoke", "--search-root", ROOT),
                *("run", "--engine=native", f"--resume={interrupted}"),
            ],
            env={**os.environ, "TMPDIR": str(tmp_path), "EXPERIMENT_RESULTS_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    assert f"the database is in use by process {holder.pid}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_holder_that_is_killed_holds_nothing(world: World, interrupted: Path) -> None:
    with held(interrupted / DATABASE, "write") as holder:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        world.resume(interrupted)
    assert status(interrupted) == "finished"


@needs_mounts
def test_a_folder_that_even_root_cannot_write(
    tmp_path: Path, uninterrupted: list[tuple[Any, ...]]
) -> None:
    found = told(PROGRAM, tmp_path)
    assert "the results folder cannot be made: Read-only file system" in found["start"]
    assert "set results_dir" in found["start"]
    assert "ead-only" in found["resume"]
    assert DATABASE in found["resume"]
    assert len(found["resume"].splitlines()) <= 2
    assert not found["changed"]
    assert (found["then"], found["status"]) == ("", "finished")
    assert found["rows"] == json.loads(json.dumps(uninterrupted))


def test_a_file_in_the_way(world: World) -> None:
    world.settings.results_dir.write_text("mine")
    with pytest.raises(StoreError, match="cannot be made: Not a directory"):
        world.start()
    assert world.settings.results_dir.read_text() == "mine"
    assert world.asked == []


def test_a_folder_that_is_taken_away_meanwhile(world: World) -> None:
    world.trouble = lambda number, _: (
        shutil.rmtree(the_run(world) / "raw") if number == 9 else None  # type: ignore[func-returns-value]
    )
    with pytest.raises(StoreError, match="the answer cannot be kept: No such file") as caught:
        world.start()
    assert len(str(caught.value).splitlines()) == 2
    folder = the_run(world)
    assert status(folder) == "failed"
    assert sum(counts(folder).values()) == 10
