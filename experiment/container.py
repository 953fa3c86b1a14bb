"""Runs the experiment in a container that can do nothing but compute and write its results."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import requests
from docker.types import Mount

from experiment.docker_client import Connection
from experiment.errors import EngineError
from experiment.image import Image
from experiment.settings import Settings

if TYPE_CHECKING:
    from docker.models.containers import Container

RESULTS = "/results"
CACHE = "/cache"
TRACE = "/trace"
MODEL = "/model"
RUN_LABEL = "prefix-replay.run"
IMAGE_VARIABLE = "PREFIX_REPLAY_IMAGE"
"""Set inside the image: whoever finds it runs in a container; its value is the image's id."""

# Settings that are the host's own business, or that the command line inside gives.
_NOT_PASSED = ("engine", "cache_dir", "results_dir", "build.", "model.", "container.")
_PASSED_LIMITS = ("container.memory_mib", "container.cpus")
_STOP_GRACE_S = 30
_FOLDER = re.compile(rb"results in " + RESULTS.encode() + rb"/([^\s/]+)\n")


class ContainerError(EngineError):
    """The container ended with an error of its own, which it has printed, or was ended."""

    def __init__(self, what: str, code: int, *, hint: str | None = None) -> None:
        super().__init__(what, hint=hint)
        self.exit_code = code


def environment_of(settings: Settings) -> dict[str, str]:
    """The settings that hold inside as well, as the variables that name them."""

    def walk(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from walk(f"{prefix}{name}.", value)
            else:
                yield prefix + name, value

    return {
        f"EXPERIMENT_{key.upper().replace('.', '__')}": str(value)
        for key, value in walk("", settings.model_dump(mode="json"))
        if key in _PASSED_LIMITS or not key.startswith(_NOT_PASSED)
    }


def run_inside(
    connection: Connection,
    image: Image,
    settings: Settings,
    command: Sequence[str],
    mounts: Sequence[Mount],
    *,
    label: str,
) -> str | None:
    """Run one task of the image and wait for it; its progress goes to standard error as it comes.

    The container has no network, a read-only root, no capabilities, no way to gain any, and the
    caller's user and group, so that what it writes belongs to the caller.

    Returns:
        The name of the results folder that it said last that it uses, if any.

    Raises:
        ContainerError: it ended with an error, ran out of memory, or was stopped from outside.
        EngineError: the engine refused to run it.
        KeyboardInterrupt: passed on after the container has ended.
    """
    limits = settings.container
    # The user namespace of a rootless engine maps its root to the caller.
    user = "0:0" if connection.rootless else f"{os.getuid()}:{os.getgid()}"
    environment = {IMAGE_VARIABLE: image.id, **environment_of(settings)}
    if any(mount["Target"] == CACHE for mount in mounts):
        environment["EXPERIMENT_CACHE_DIR"] = CACHE
    with _engine_errors():
        container = connection.client.containers.create(
            image.id,
            command=list(command),
            user=user,
            hostname=platform.node(),  # the results are the host's
            environment=environment,
            mounts=list(mounts),
            tmpfs={"/tmp": "rw,nosuid,nodev,noexec,mode=1777"},
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=1024,
            labels={RUN_LABEL: label},
            **_limits(limits.memory_mib, limits.cpus),
        )
    try:
        with _engine_errors():
            stream = container.attach(stream=True, logs=True, demux=True)
            container.start()
            folder = _follow(stream)
            code = int(container.wait()["StatusCode"])
            container.reload()
        _judge(code, container.attrs["State"], limits.memory_mib)
        return folder
    except KeyboardInterrupt:
        _interrupt(container)
        raise
    finally:
        with contextlib.suppress(docker.errors.DockerException, requests.RequestException):
            container.remove(force=True)


def bind(source: Path, target: str, *, read_only: bool) -> Mount:
    """A folder of the host at ``target``."""
    return Mount(target, str(source.resolve()), type="bind", read_only=read_only)


def _limits(memory_mib: int, cpus: float) -> dict[str, object]:
    limits: dict[str, object] = {}
    if memory_mib:
        # The same with swap: a run that swaps measures the disk.
        limits |= {"mem_limit": f"{memory_mib}m", "memswap_limit": f"{memory_mib}m"}
    if cpus:
        limits["nano_cpus"] = int(cpus * 1e9)
    return limits


def _follow(stream: Iterator[tuple[bytes | None, bytes | None]]) -> str | None:
    # The table on standard output is left out: the caller prints it from the database.
    folder, seen = None, b""
    for _, errors in stream:
        if not errors:
            continue
        sys.stderr.buffer.write(errors)
        sys.stderr.buffer.flush()
        seen = (seen + errors)[-4096:]
        if found := _FOLDER.findall(seen):  # the last: a run with a budget makes a probe's first
            folder = found[-1].decode()
    return folder


def _judge(code: int, state: Mapping[str, Any], memory_mib: int) -> None:
    if code == 0:
        return
    if state.get("OOMKilled"):
        limit = f"the limit is {memory_mib} MiB" if memory_mib else "the machine has no more"
        raise ContainerError(
            f"the container ran out of memory: {limit}",
            code,
            hint="raise container.memory_mib, or choose a smaller model or trace",
        )
    if code > 128:
        name = signal.Signals(code - 128).name if code - 128 in set(signal.Signals) else code - 128
        raise ContainerError(
            f"the container was stopped from outside ({name})",
            code,
            hint="`invoke run --resume NAME` goes on with the run",
        )
    raise ContainerError(
        f"the container ended with exit code {code}; its own words are above", code
    )


def _interrupt(container: Container) -> None:
    """Let the run inside note that it was interrupted; a second Ctrl-C does not wait for that."""
    with contextlib.suppress(
        docker.errors.DockerException, requests.RequestException, KeyboardInterrupt
    ):
        container.kill("SIGINT")
        container.wait(timeout=_STOP_GRACE_S)


@contextlib.contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise EngineError(f"the engine could not run the container: {error}") from error
