"""An archive with the image, taken up by a reviewer with an empty folder and Docker alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import docker
import pytest

from tests.container.calling import Caller, Ended, ended, only_run, query, succeeded
from tests.container.conftest import missing

ROUNDS = {"EXPERIMENT_SCHEDULE__ROUNDS": "2", "EXPERIMENT_SCHEDULE__MAX_ROUNDS": "2"}


@pytest.fixture(scope="module")
def archive(image: str, caller: Caller, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smoke run in a container, packed with its image."""
    if shutil.which("docker") is None:
        missing("needs Docker's command line")
    folder = tmp_path_factory.mktemp("handoff")
    results, out = caller.own_folder(folder / "results"), caller.own_folder(folder / "out")
    succeeded(caller.invoke(results, "run", "--engine=docker", environment=ROUNDS), 900)
    run = only_run(results)
    assert query(run, "SELECT engine, status FROM run") == [("docker", "finished")]
    target = out / "smoke-handoff.tar.gz"
    packing = caller.invoke(results, "handoff", "--with-image", f"--to={target}")
    succeeded(packing, 600)
    return target


@pytest.fixture(scope="module")
def reviewer(caller: Caller, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the archive in it and nothing else."""
    folder = caller.own_folder(tmp_path_factory.mktemp("reviewer") / "desk")
    with tarfile.open(archive) as tar:
        name = tar.next()
    assert name is not None
    shutil.copyfile(archive, folder / f"{name.name.partition('/')[0]}.tar.gz")
    return folder


def blocks(guide: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)


def guide_of(folder: Path) -> str:
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as tar:
        file = tar.extractfile(f"{packed.name.removesuffix('.tar.gz')}/REPRODUCE.md")
        assert file is not None
        return file.read().decode()


def replayed(done: Ended) -> None:
    """Every claim has its line, and those that no machine's noise can touch hold.

    The ratios are for a quiet machine to judge, not for a test.
    """
    assert done.code in (0, 1), str(done)
    verdicts = re.findall(r"^(\w+) .* (equal|±\S+(?: %)?) +(within|OUTSIDE)", done.output, re.M)
    assert {"speedup", "fidelity", "structure_differs"} <= {key for key, _, _ in verdicts}
    exact = [verdict for _, tolerance, verdict in verdicts if tolerance == "equal"]
    assert exact == ["within"] * 7, done.output
    assert "claims that are judged on another machine are within their tolerance" in done.output


def test_the_archive_holds_the_image_of_the_run(archive: Path, client: docker.DockerClient) -> None:
    with tarfile.open(archive) as tar:
        names = [member.name.partition("/")[2] for member in tar]
    assert names[0] == "manifest.json"
    assert {"image/image.tar", "image/image.json", "results/results.duckdb"} <= set(names)
    assert "repository/tasks.py" in names


def test_docker_alone_verifies_and_reruns_it(caller: Caller, reviewer: Path) -> None:
    found = blocks(guide_of(reviewer))
    (load,) = (block for block in found if "docker load" in block)
    (quick,) = (block for block in found if block.startswith("replay ") and "--quick" in block)
    script = load + quick
    done = ended(caller.start(["sh", "-ec", script], cwd=reviewer), 1500)
    assert "FAILED" not in done.output
    replayed(done)
    run = only_run(reviewer / "results")
    assert query(run, "SELECT engine, status FROM run") == [("docker", "finished")]
    assert run.stat().st_uid == caller.uid


def test_the_host_loads_the_image_and_reruns_in_it(
    caller: Caller, reviewer: Path, tmp_path: Path
) -> None:
    results = caller.own_folder(tmp_path / "results")
    (packed,) = reviewer.glob("*.tar.gz")
    rerun = caller.invoke(results, "verify", str(packed), "--rerun", "--quick", "--engine=docker")
    replayed(ended(rerun, 1500))
    assert query(only_run(results), "SELECT engine FROM run") == [("docker",)]


def test_the_same_run_gives_the_same_bytes_with_its_image(
    caller: Caller, archive: Path, tmp_path: Path
) -> None:
    out = caller.own_folder(tmp_path / "out")
    again = out / "again.tar.gz"
    results = archive.parent.parent / "results"
    succeeded(caller.invoke(results, "handoff", "--with-image", f"--to={again}"), 600)
    assert again.read_bytes() == archive.read_bytes()


def test_nothing_of_this_machine_is_in_it(archive: Path, caller: Caller) -> None:
    """The caller's home stands in the environment of every command that made the archive."""
    home = caller.environment.get("HOME", os.environ["HOME"]).encode()
    done = subprocess.run(
        ["tar", "xOf", str(archive), "--wildcards", "*/results/*", "*/report.html", "*/*.json"],
        capture_output=True,
        check=True,
    )
    assert home not in done.stdout
