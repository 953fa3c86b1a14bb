"""How the container tests call the command line: as an ordinary user, whoever runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import duckdb
from docker.models.containers import Container

from experiment.container import RUN_LABEL
from experiment.paths import ROOT

STEPS = 4  # of the smoke trace

FIXED_ROUNDS = {"EXPERIMENT_SCHEDULE__MAX_ROUNDS": "1"}
"""No round is added to those that are asked for, so that a test knows how many there are."""


@dataclass(frozen=True)
class Caller:
    """Who calls; ``become`` stands before each command, ``environment`` is added to the tests'."""

    uid: int
    gid: int
    become: tuple[str, ...]
    environment: Mapping[str, str]

    def own_folder(self, path: Path) -> Path:
        path.mkdir(parents=True)
        os.chown(path, self.uid, self.gid)
        return path

    def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> subprocess.Popen[str]:
        """Start a command with both outputs piped, in a session of its own."""
        return subprocess.Popen(
            [*self.become, *command],
            cwd=cwd,
            env={**os.environ, **FIXED_ROUNDS, **self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def invoke(
        self, results: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return self.start(
            invoke_command(*arguments),
            environment={"EXPERIMENT_RESULTS_DIR": str(results), **(environment or {})},
        )


def invoke_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *arguments]


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    errors: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.output}\n{self.errors}"


def ended(process: subprocess.Popen[str], seconds: float = 600) -> Ended:
    """Wait for it; whatever it did, it has not shown a user a traceback."""
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, errors = process.communicate(timeout=60)
        raise AssertionError(f"not ended after {seconds} s:\n{output}\n{errors}") from None
    assert "Traceback" not in output + errors, errors
    return Ended(process.returncode, output, errors)


def succeeded(process: subprocess.Popen[str], seconds: float = 600) -> Ended:
    done = ended(process, seconds)
    assert done.code == 0, str(done)
    return done


def wait_for(
    condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"ended too early: {ended(process)}")
        if time.monotonic() > deadline:
            process.terminate()
            raise AssertionError(f"waited {seconds} s for nothing: {ended(process)}")
        time.sleep(0.05)


def measured(results: Path) -> int:
    """How many requests the run in ``results`` has made: each leaves a file at once."""
    return sum(1 for _ in results.glob("*/raw/*.json"))


def containers_of(client: docker.DockerClient, results: Path) -> list[Container]:
    """Containers of this project, running or not, that have ``results`` mounted."""
    found = client.containers.list(all=True, filters={"label": RUN_LABEL}, ignore_removed=True)
    return [
        container
        for container in found
        if any(mount.get("Source") == str(results) for mount in container.attrs["Mounts"])
    ]


def only_run(results: Path) -> Path:
    (folder,) = results.iterdir()
    return folder


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(folder / "results.duckdb"), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def counts(folder: Path) -> dict[str, int]:
    """Valid measurements of each variant."""
    sql = "SELECT variant, count(*) FROM measurement WHERE status = 'ok' GROUP BY variant"
    return dict(query(folder, sql))


def complete(rounds: int, steps: int = STEPS) -> dict[str, int]:
    """What `counts` gives for a complete run with one round of full."""
    paired = rounds * steps
    both = {"fake": paired, "control": paired, "restored": paired}
    return {**both, "full": steps, "arithmetic": steps}
