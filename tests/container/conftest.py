"""The engine, the image and the caller, made once for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from experiment.docker_client import Connection, connect
from experiment.errors import EngineError
from experiment.paths import ROOT
from experiment.settings import load_settings
from tests.container.calling import Caller, containers_of, invoke_command

NEEDED = "PREFIX_REPLAY_NEED_ENGINE"
"""Set to 1, as in CI, a missing engine is a failure."""

SOMEBODY = 12345
"""A user and group that no image and no machine has a name for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.container)


def missing(what: str) -> None:
    if os.environ.get(NEEDED) == "1":
        pytest.fail(f"{what}, and {NEEDED} is 1", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def connection() -> Iterator[Connection]:
    try:
        found = connect()
    except EngineError as error:
        missing(f"needs a container engine: {error.what}")
        raise
    yield found
    found.client.close()


@pytest.fixture(scope="session")
def client(connection: Connection) -> docker.DockerClient:
    return connection.client


@pytest.fixture(scope="session")
def caller(connection: Connection, tmp_path_factory: pytest.TempPathFactory) -> Caller:
    """An ordinary user who may use the engine; root's tests become one."""
    folder = tmp_path_factory.mktemp("caller")
    # pip's cache, Docker's settings and the stand-in models are then nobody else's.
    environment = {"HOME": str(folder / "home"), "EXPERIMENT_CACHE_DIR": str(folder / "cache")}
    if os.getuid() != 0:
        somebody = Caller(os.getuid(), os.getgid(), (), environment)
    else:
        if shutil.which("setpriv") is None:
            missing("as root needs setpriv (util-linux)")
        # The socket's group may use the engine. The capability reads a checkout and a temporary
        # folder that are closed to others; it writes nothing.
        groups = f"--groups={Path(connection.endpoint.removeprefix('unix://')).stat().st_gid}"
        become = (
            *("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", groups),
            *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
        )
        # git trusts a checkout of another user only when told to.
        environment |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": str(ROOT),
        }
        somebody = Caller(SOMEBODY, SOMEBODY, become, environment)
    somebody.own_folder(folder / "home")
    somebody.own_folder(folder / "cache")
    return somebody


@pytest.fixture(scope="session")
def image(caller: Caller, pytestconfig: pytest.Config) -> str:
    """The image's tag, after the public command has built it; its output goes to the terminal."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    command = [*caller.become, *invoke_command("build", "--engine=docker")]
    with capture.global_and_fixture_disabled():
        done = subprocess.run(
            command, env={**os.environ, **caller.environment}, stdin=subprocess.DEVNULL, check=False
        )
    if done.returncode != 0:
        pytest.fail("invoke build --engine=docker failed; its output is above", pytrace=False)
    return load_settings().container.image


@pytest.fixture
def results(caller: Caller, client: docker.DockerClient, tmp_path: Path) -> Iterator[Path]:
    """A results folder that belongs to the caller; what a failed test has left running ends."""
    folder = caller.own_folder(tmp_path / "results")
    yield folder
    for container in containers_of(client, folder):
        container.remove(force=True)
