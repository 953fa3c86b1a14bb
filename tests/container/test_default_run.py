"""The default job in a container: complete, the caller's own, and the same as without one."""

from __future__ import annotations

import json
from pathlib import Path

import docker
import pytest

from tests.container.calling import (
    Caller,
    Ended,
    complete,
    counts,
    invoke_command,
    only_run,
    query,
    succeeded,
)

TRACE_STEPS = 23
ROUNDS = 2

STRUCTURE = """
    SELECT DISTINCT task_id, step, variant, cache_n, prompt_n, n_kv FROM measurement
    WHERE status = 'ok' AND variant <> 'arithmetic'
"""


@pytest.fixture(scope="module")
def results(caller: Caller, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return caller.own_folder(tmp_path_factory.mktemp("default") / "results")


@pytest.fixture(scope="module")
def done(image: str, caller: Caller, results: Path) -> Ended:
    """The default trace, replayed in a container."""
    run = caller.invoke(results, "run", "--engine=docker", "--trace", f"--rounds={ROUNDS}")
    return succeeded(run, 1500)


@pytest.fixture(scope="module")
def folder(done: Ended, results: Path) -> Path:
    return only_run(results)


def test_every_step_has_every_variant(folder: Path, results: Path, caller: Caller) -> None:
    assert counts(folder) == complete(ROUNDS, TRACE_STEPS)
    command = invoke_command("compare", f"--run={folder.name}", "--format=json")
    compare = caller.start(command, environment={"EXPERIMENT_RESULTS_DIR": str(results)})
    overall = json.loads(succeeded(compare).output)["overall"]
    variants = ("fake", "restored", "full", "arithmetic")
    assert [overall[f"{variant}_steps"] for variant in variants] == [TRACE_STEPS] * 4


def test_says_where_it_runs_and_prints_the_comparison_once(done: Ended, folder: Path) -> None:
    first = done.output.splitlines()[0]
    assert first.startswith("engine: docker (asked for, ")
    assert done.output.count("Results: ") == 1
    # The folder that it names is the host's, not the one inside.
    named = done.output.split("Results: ")[1].splitlines()[0]
    assert named.endswith(folder.name)
    assert not named.startswith("/results")


def test_everything_written_belongs_to_the_caller(folder: Path, caller: Caller) -> None:
    written = [folder, *folder.rglob("*")]
    assert len(written) > TRACE_STEPS
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in written} == {
        (caller.uid, caller.gid)
    }


def test_record_names_engine_image_and_processor_variant(
    folder: Path, client: docker.DockerClient, image: str
) -> None:
    ((engine, digest, status),) = query(folder, "SELECT engine, image_digest, status FROM run")
    assert (engine, status) == ("docker", "finished")
    assert digest == client.images.get(image).id
    ((variant,),) = query(folder, "SELECT value FROM graph WHERE key = 'cpu_variant'")
    library = client.containers.run(
        image,
        entrypoint=["ls", "/opt/llama/bin"],
        network_mode="none",
        remove=True,
    ).decode()
    loaded = [name for name in library.split() if "ggml-cpu" in name and variant in name]
    assert variant
    assert len(loaded) == 1, (variant, library)
    # One for each generation of the architecture, of which it is the best that runs here.
    assert library.count("ggml-cpu-") > 3
    ((container,),) = query(folder, "SELECT DISTINCT container FROM host")
    assert container


def test_native_run_asks_for_the_same(
    image: str, caller: Caller, results: Path, tmp_path: Path
) -> None:
    """The same trace gives the same cache_n, prompt_n and n_kv for each step and variant."""
    rounds = "--rounds=2"
    inside = caller.own_folder(tmp_path / "inside")
    succeeded(caller.invoke(inside, "run", "--engine=docker", rounds))
    outside = tmp_path / "outside"
    native = Caller(caller.uid, caller.gid, (), {})
    succeeded(native.invoke(outside, "run", "--engine=native", rounds), 3000)
    structure = sorted(query(only_run(inside), STRUCTURE))
    assert structure == sorted(query(only_run(outside), STRUCTURE))
    # One of each: within a run it does not change from round to round either.
    assert len(structure) == len({row[:3] for row in structure}) == 4 * 4
    ((engine,),) = query(only_run(outside), "SELECT engine FROM run")
    assert engine == "native"
