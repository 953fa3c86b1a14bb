"""A real run whose server hangs, or that is stopped for a while: it ends complete all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import duckdb
import pytest

from experiment.replay import PAUSED
from tests.engine.test_kill_and_resume import (
    EXPECTED,
    ROUNDS,
    counts,
    invoke,
    measuring,
    servers_of,
    wait_for,
)

STOPS = 3


@pytest.fixture(scope="module", autouse=True)
def _built(tmp_path_factory: pytest.TempPathFactory) -> None:
    build = invoke(tmp_path_factory.mktemp("none"), "build")
    _, errors = build.communicate(timeout=3000)
    assert build.returncode == 0, errors


def events(folder: Path, kind: str) -> list[str]:
    with duckdb.connect(str(folder / "results.duckdb"), read_only=True) as connection:
        found = connection.execute("SELECT message FROM event WHERE kind = $1", [kind]).fetchall()
    return [message for (message,) in found]


def complete(run: subprocess.Popen[str], results: Path) -> Path:
    """The folder of a run that has ended well, with all measurements and nothing left behind."""
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert servers_of(results) == []
    (folder,) = results.iterdir()
    assert counts(folder) == EXPECTED
    left = {path.name for path in folder.iterdir()} - {"repository.patch"}
    assert left == {
        *("build.json", "git_diff.patch", "graph.json", "host.json", "raw", "report.html"),
        *("repository.json", "results.duckdb", "trace.jsonl"),
    }
    assert all(path.suffix in (".json", ".log") for path in (folder / "raw").iterdir())
    return folder


def test_a_server_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERIMENT_SERVER__REQUEST_TIMEOUT_S", "20")
    run = invoke(tmp_path, "run", f"--rounds={ROUNDS}")
    assert wait_for(lambda: measuring(tmp_path), 120)
    (server,) = servers_of(tmp_path)
    os.kill(server, signal.SIGSTOP)
    folder = complete(run, tmp_path)
    (told,) = events(folder, "server_lost")
    assert told.startswith("no answer to /completion within 20 s")


def test_a_run_that_is_stopped_for_a_while(tmp_path: Path) -> None:
    """As a machine that is suspended: driver and server stand still together."""
    run = invoke(tmp_path, "run", f"--rounds={ROUNDS}")
    assert wait_for(lambda: measuring(tmp_path), 120)
    (server,) = servers_of(tmp_path)
    for _ in range(STOPS):
        for pid in (run.pid, server):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2.5)
        for pid in (server, run.pid):
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
    folder = complete(run, tmp_path)
    # A stop may come between two requests, where nothing is measured.
    told = events(folder, PAUSED)
    assert 1 <= len(told) <= STOPS
    assert all(message.endswith("s meanwhile; measured again") for message in told)
