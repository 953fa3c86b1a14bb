"""A run that is killed at any moment goes on where it was, and leaves no server behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from experiment.paths import ROOT

ROUNDS = 3
STEPS = 4
# fake, control and restored in every round, full and arithmetic once.
EXPECTED = {
    *((variant, ROUNDS * STEPS) for variant in ("fake", "control", "restored")),
    *((variant, STEPS) for variant in ("full", "arithmetic")),
}


def invoke(results: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *arguments],
        env=os.environ
        | {
            "EXPERIMENT_RESULTS_DIR": str(results),
            "EXPERIMENT_ENGINE": "native",
            "TMPDIR": str(results.parent),  # where the lock lies that keeps other runs away
            "EXPERIMENT_SCHEDULE__MAX_ROUNDS": "1",  # none is added to those that are asked for
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def servers_of(results: Path) -> list[int]:
    """Processes whose output goes to a log in ``results``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            target = (entry / "fd" / "1").readlink()
        except OSError:
            continue
        if results in target.parents:
            found.append(int(entry.name))
    return found


def measuring(results: Path) -> bool:
    """Whether the warm-up is over: a server that dies before it serves is not started again."""
    return any(results.glob("*/raw/*_fake_0.json"))


def wait_for(condition: object, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def counts(folder: Path) -> set[tuple[str, int]]:
    with duckdb.connect(str(folder / "results.duckdb"), read_only=True) as connection:
        return set(
            connection.execute(
                "SELECT variant, count(*) FROM measurement WHERE status = 'ok' GROUP BY variant"
            ).fetchall()
        )


def committed(folder: Path) -> list[tuple[object, ...]]:
    with duckdb.connect(str(folder / "results.duckdb"), read_only=True) as connection:
        return connection.execute(
            "SELECT task_id, step, variant, round, prompt_ms FROM measurement "
            "WHERE status = 'ok' ORDER BY ALL"
        ).fetchall()


@pytest.fixture(scope="module", autouse=True)
def _built(tmp_path_factory: pytest.TempPathFactory) -> None:
    build = invoke(tmp_path_factory.mktemp("none"), "build")
    _, errors = build.communicate(timeout=3000)
    assert build.returncode == 0, errors


@pytest.mark.parametrize(
    ("kills", "seed"), [(4, 7), *(pytest.param(10, n, marks=pytest.mark.soak) for n in range(5))]
)
def test_killed_at_random_moments(kills: int, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    first = invoke(tmp_path, "run", f"--rounds={ROUNDS}")
    assert wait_for(lambda: list(tmp_path.glob("*/results.duckdb")), 60)
    (folder,) = tmp_path.iterdir()
    assert wait_for(lambda: servers_of(tmp_path), 120), first.communicate()
    before: list[tuple[object, ...]] = []
    process = first
    for _ in range(kills):
        time.sleep(chance.uniform(0.2, 2.5))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert wait_for(lambda: not servers_of(tmp_path), 5), "the server outlived the driver"
        now = committed(folder)
        assert set(before) <= set(now), "a committed measurement is gone or was made again"
        before = now
        process = invoke(tmp_path, "run", f"--resume={folder.name}")
        assert wait_for(lambda p=process: servers_of(tmp_path) or p.poll() is not None, 120)
        if process.poll() is not None:
            break
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert counts(folder) == EXPECTED
    assert set(before) <= set(committed(folder))
    assert "Results:" in output
    assert not (folder / "results.duckdb.wal").exists()


def test_killed_server_is_started_again(tmp_path: Path) -> None:
    run = invoke(tmp_path, "run", f"--rounds={ROUNDS}")
    assert wait_for(lambda: measuring(tmp_path), 120)
    (server,) = servers_of(tmp_path)
    os.kill(server, signal.SIGKILL)
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    (folder,) = tmp_path.iterdir()
    assert counts(folder) == EXPECTED
    with duckdb.connect(str(folder / "results.duckdb"), read_only=True) as connection:
        lost = connection.execute("SELECT message FROM event WHERE kind = 'server_lost'").fetchall()
    assert len(lost) == 1
    assert "signal 9" in lost[0][0]


def test_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    run = invoke(tmp_path, "run", f"--rounds={ROUNDS}")
    assert wait_for(lambda: measuring(tmp_path), 120)
    os.kill(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert not servers_of(tmp_path)
    (folder,) = tmp_path.iterdir()
    with duckdb.connect(str(folder / "results.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT status FROM run").fetchall() == [("interrupted",)]
    again = invoke(tmp_path, "run", f"--resume={folder.name}")
    _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert counts(folder) == EXPECTED
