"""However a container ends, the caller is told, nothing is left, and the run can go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import docker
import pytest

from tests.container.calling import (
    Caller,
    Ended,
    complete,
    containers_of,
    counts,
    ended,
    measured,
    only_run,
    query,
    succeeded,
    wait_for,
)

ROUNDS = 3
# A stop after so many requests leaves some that count: the warm-up round, which each start of the
# server has anew, is 8 of them.
BEFORE_THE_STOP = 12
COMMITTED = """
    SELECT task_id, step, variant, round, prompt_ms, started_at FROM measurement
    WHERE status = 'ok'
"""


def resumed(caller: Caller, results: Path) -> Ended:
    """Go on with the run in ``results``; what was measured stays, what is missing is added once."""
    folder = only_run(results)
    before = set(query(folder, COMMITTED))
    assert before
    done = succeeded(caller.invoke(results, "run", "--engine=docker", f"--resume={folder.name}"))
    assert only_run(results) == folder
    assert before <= set(query(folder, COMMITTED))
    assert counts(folder) == complete(ROUNDS)
    ((status,),) = query(folder, "SELECT status FROM run")
    assert status == "finished"
    return done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_host_stops_the_container(
    number: signal.Signals, image: str, caller: Caller, client: docker.DockerClient, results: Path
) -> None:
    run = caller.invoke(results, "run", "--engine=docker", f"--rounds={ROUNDS}")
    wait_for(lambda: measured(results) >= BEFORE_THE_STOP, run)
    assert len(containers_of(client, results)) == 1
    os.kill(run.pid, number)
    done = ended(run, 60)
    assert done.code in {signal.SIGINT: {130}, signal.SIGTERM: {130, 143}}[number]
    assert "--resume" in done.errors
    assert containers_of(client, results) == []
    ((status,),) = query(only_run(results), "SELECT status FROM run")
    assert status == "interrupted"
    assert counts(only_run(results)) != complete(ROUNDS)
    resumed(caller, results)


def test_killed_from_outside(
    image: str, caller: Caller, client: docker.DockerClient, results: Path
) -> None:
    run = caller.invoke(results, "run", "--engine=docker", f"--rounds={ROUNDS}")
    wait_for(lambda: measured(results) >= BEFORE_THE_STOP, run)
    (container,) = containers_of(client, results)
    container.kill()
    done = ended(run, 60)
    assert done.code == 137
    assert "stopped from outside" in done.errors
    assert "--resume" in done.errors
    assert "out of memory" not in done.errors
    assert containers_of(client, results) == []
    resumed(caller, results)


def test_stopped_from_outside(
    image: str, caller: Caller, client: docker.DockerClient, results: Path
) -> None:
    run = caller.invoke(results, "run", "--engine=docker", f"--rounds={ROUNDS}")
    wait_for(lambda: measured(results) >= BEFORE_THE_STOP, run)
    (container,) = containers_of(client, results)
    container.stop(timeout=30)
    done = ended(run, 60)
    assert done.code != 0
    assert "stopped from outside" in done.errors
    assert "--resume" in done.errors
    ((status,),) = query(only_run(results), "SELECT status FROM run")
    assert status == "interrupted"


# Less than the driver itself needs; and enough for the driver, but not for the server.
@pytest.mark.parametrize("memory_mib", [32, 200])
def test_too_little_memory_is_named(
    memory_mib: int, image: str, caller: Caller, client: docker.DockerClient, results: Path
) -> None:
    limit = {"EXPERIMENT_CONTAINER__MEMORY_MIB": str(memory_mib)}
    done = ended(caller.invoke(results, "run", "--engine=docker", environment=limit), 120)
    assert done.code != 0
    assert f"out of memory: the limit is {memory_mib} MiB" in done.errors
    assert "container.memory_mib" in done.errors
    assert "stopped from outside" not in done.errors
    assert containers_of(client, results) == []


# Takes what the limit leaves, for a moment.
HOG = "import time; taken = [bytearray(1 << 20) for _ in range({mib})]; time.sleep(2)"


@pytest.mark.parametrize("victim", ["llama-server", "tasks.py"])
def test_memory_that_runs_out_in_the_midst(
    victim: str, image: str, caller: Caller, client: docker.DockerClient, results: Path
) -> None:
    memory_mib = 900
    run = caller.invoke(
        results,
        *("run", "--engine=docker", f"--rounds={ROUNDS}"),
        environment={"EXPERIMENT_CONTAINER__MEMORY_MIB": str(memory_mib)},
    )
    wait_for(lambda: measured(results) >= BEFORE_THE_STOP, run)
    (container,) = containers_of(client, results)
    (pid,) = [process[1] for process in container.top()["Processes"] if victim in process[-1]]
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")  # it is the one that the kernel takes
    container.exec_run(["/opt/venv/bin/python", "-c", HOG.format(mib=memory_mib)])
    done = ended(run, 300)
    assert containers_of(client, results) == []
    if victim == "llama-server":  # which the run starts again
        assert done.code == 0, str(done)
        assert counts(only_run(results)) == complete(ROUNDS)
        lost = query(only_run(results), "SELECT message FROM event WHERE kind = 'server_lost'")
        assert any("signal 9 (out of memory?)" in message for (message,) in lost)
    else:
        assert done.code != 0
        assert f"out of memory: the limit is {memory_mib} MiB" in done.errors
        resumed(caller, results)
