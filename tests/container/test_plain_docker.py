"""The README's lines for a host with nothing but Docker, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from experiment.image import CA_BUNDLE, default_ca_bundle
from experiment.paths import ROOT
from experiment.settings import load_settings
from tests.container.calling import (
    Caller,
    complete,
    counts,
    invoke_command,
    only_run,
    query,
    succeeded,
)
from tests.container.conftest import missing

README = (ROOT / "README.md").read_text(encoding="utf-8")
# A checkout without what git does not keep.
NOT_IN_A_CHECKOUT = shutil.ignore_patterns(
    ".git", ".venv*", ".cache", "results", "__pycache__", ".*_cache", ".hypothesis", "*.toml.local"
)
# Fewer rounds than the default: it is the lines that are tested.
ROUNDS = 1


def lines() -> list[str]:
    (block,) = re.findall(r"^```sh\n(docker build .*?)^```", README, re.MULTILINE | re.DOTALL)
    return str(block).splitlines()


@pytest.fixture
def checkout(caller: Caller, tmp_path: Path) -> Path:
    """What a user has: the files, with the proxy's certificates where this machine needs them."""
    if shutil.which("docker") is None:
        missing("needs Docker's command line")
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, ignore=NOT_IN_A_CHECKOUT)
    if bundle := default_ca_bundle(os.environ):
        shutil.copy(bundle, copy / CA_BUNDLE)
        (copy / CA_BUNDLE).chmod(0o644)
    caller.own_folder(copy / "results")
    return copy


def build_arguments() -> str:
    """What a closed network makes necessary: the base image that the tests are told to use."""
    container = load_settings().container
    given = [f"--build-arg BASE_IMAGE={container.base_image}"] if container.base_image else []
    return " ".join([*given, *([] if container.apt_snapshot else ["--build-arg APT_SNAPSHOT=0"])])


def test_there_are_two_lines() -> None:
    build, run = lines()
    assert build.startswith("docker build -t prefix-replay .")
    assert run.startswith("docker run --rm ")
    assert '-v "$PWD/results:/results"' in run


def test_two_lines_do_the_default_job(image: str, caller: Caller, checkout: Path) -> None:
    build, run = lines()
    build = build.replace("docker build", f"docker build {build_arguments()}", 1)
    fewer = f"--env EXPERIMENT_SCHEDULE__ROUNDS={ROUNDS} --env EXPERIMENT_SCHEDULE__MAX_ROUNDS=1"
    run = run.replace("docker run", f"docker run {fewer}", 1)
    succeeded(caller.start(["sh", "-ec", build], cwd=checkout), 2400)
    done = succeeded(caller.start(["sh", "-ec", run], cwd=checkout), 1500)
    results = checkout / "results"
    folder = only_run(results)
    assert counts(folder) == complete(ROUNDS, 23)
    assert query(folder, "SELECT engine, status FROM run") == [("docker", "finished")]
    assert folder.stat().st_uid == caller.uid
    assert "file-invoices" in done.output
    # The host reads it like any other run, with the same table.
    command = invoke_command("compare", f"--run={folder.name}", "--format=json")
    compare = caller.start(command, environment={"EXPERIMENT_RESULTS_DIR": str(results)})
    assert json.loads(succeeded(compare).output)["overall"]["steps"] == 23
