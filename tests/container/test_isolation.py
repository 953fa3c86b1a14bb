"""What a container of a run can do, seen from inside and as the engine has it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from experiment.paths import ROOT
from tests.container.calling import (
    Caller,
    containers_of,
    ended,
    measured,
    only_run,
    query,
    wait_for,
)

MEMORY_MIB = 3000
CPUS = 1

# Runs inside, with nothing but the image's own Python.
PROBE = r"""
import errno, json, os, shutil, socket
from pathlib import Path

def attempt(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return None

def create(folder):
    path = os.path.join(folder, "probe")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)

def reach(family, address):
    # A datagram socket: this asks for a route and sends nothing.
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((address, 9))

mounts = {}
for line in Path("/proc/1/mountinfo").read_text().splitlines():
    fields = line.split()
    mounts[fields[4]] = fields[5].split(",")
networks = Path("/sys/class/net")
tools = "cc gcc g++ c++ clang clang++ as ld make cmake ninja git patch pip pip3 uv sudo"
print(json.dumps({
    "up": [name.name for name in networks.iterdir() if int((name / "flags").read_text(), 16) & 1],
    "reach": [attempt(lambda: reach(socket.AF_INET, "203.0.113.1")),
              attempt(lambda: reach(socket.AF_INET6, "2001:db8::1"))],
    "status": dict(line.split(":", 1) for line in Path("/proc/1/status").read_text().splitlines()),
    "command": Path("/proc/1/cmdline").read_bytes().decode().split("\0"),
    "mounts": mounts,
    "create": {folder: attempt(lambda: create(folder)) for folder in FOLDERS},
    "tools": [tool for tool in tools.split() if shutil.which(tool)],
    "files": {name: os.path.exists(name) for name in ("/var/run/docker.sock", "/run/docker.sock")},
    "limits": {name: Path(name).read_text().split() for name in LIMITS if os.path.exists(name)},
}))
"""
READ_ONLY = ["/", "/etc", "/usr/bin", "/opt/app", "/opt/llama/bin", "/var/tmp", "/trace", "/cache"]
WRITABLE = ["/tmp", "/results"]
LIMITS = {
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": [str(MEMORY_MIB << 20)],
    "/sys/fs/cgroup/memory.max": [str(MEMORY_MIB << 20)],
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": [str(CPUS * 100_000)],
    "/sys/fs/cgroup/cpu.max": [str(CPUS * 100_000), "100000"],
}


@dataclass(frozen=True)
class Seen:
    """A container of a run while it measures."""

    engine: dict[str, Any]
    inside: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def seen(
    image: str,
    caller: Caller,
    client: docker.DockerClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Seen:
    results = caller.own_folder(tmp_path_factory.mktemp("isolation") / "results")
    limits = {
        "EXPERIMENT_CONTAINER__MEMORY_MIB": str(MEMORY_MIB),
        "EXPERIMENT_CONTAINER__CPUS": str(CPUS),
    }
    run = caller.invoke(results, "run", "--engine=docker", "--rounds=100", environment=limits)
    wait_for(lambda: measured(results) > 0, run)
    (container,) = containers_of(client, results)
    names = f"FOLDERS = {READ_ONLY + WRITABLE!r}\nLIMITS = {list(LIMITS)!r}\n"
    probe = container.exec_run(["/opt/venv/bin/python", "-c", names + PROBE], demux=True)
    container.reload()
    os.kill(run.pid, signal.SIGINT)
    assert ended(run, 60).code == 130
    output, errors = probe.output
    assert probe.exit_code == 0, errors
    return Seen(container.attrs, json.loads(output), only_run(results))


def test_no_network(seen: Seen) -> None:
    assert seen.engine["HostConfig"]["NetworkMode"] == "none"
    assert seen.inside["up"] == ["lo"]
    for answer in seen.inside["reach"]:
        assert answer in ("ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT")
    assert "ENETUNREACH" in seen.inside["reach"]


def test_only_results_and_tmp_can_be_written(seen: Seen) -> None:
    assert seen.engine["HostConfig"]["ReadonlyRootfs"] is True
    assert "ro" in seen.inside["mounts"]["/"]
    refusals = {folder: seen.inside["create"][folder] for folder in READ_ONLY}
    assert refusals == dict.fromkeys(READ_ONLY, "EROFS")
    assert {folder: seen.inside["create"][folder] for folder in WRITABLE} == dict.fromkeys(WRITABLE)
    assert {"noexec", "nosuid", "nodev"} <= set(seen.inside["mounts"]["/tmp"])


def test_mounts_are_read_only_but_for_the_results(seen: Seen, caller: Caller) -> None:
    mounts = {mount["Destination"]: mount for mount in seen.engine["Mounts"]}
    assert {target for target, mount in mounts.items() if mount["RW"]} == {"/results"}
    assert mounts["/results"]["Source"] == str(seen.folder.parent)
    assert mounts["/trace"]["Source"] == str(ROOT / "data" / "traces")
    assert mounts["/cache"]["Source"].startswith(caller.environment["EXPERIMENT_CACHE_DIR"])
    assert set(mounts) == {"/results", "/trace", "/cache"}
    for target in ("/trace", "/cache"):
        assert "ro" in seen.inside["mounts"][target]
    assert not any(seen.inside["files"].values()), "the engine's socket is inside"


def test_no_capabilities_and_no_way_to_gain_any(seen: Seen) -> None:
    status = {name: value.strip() for name, value in seen.inside["status"].items()}
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    settings = seen.engine["HostConfig"]
    assert settings["CapDrop"] == ["ALL"]
    assert not settings["CapAdd"]
    assert "no-new-privileges" in settings["SecurityOpt"]
    assert settings["Privileged"] is False
    assert not settings["Devices"]
    assert settings["PidMode"] == ""
    assert settings["IpcMode"] in ("private", "shareable")


def test_runs_as_the_caller(seen: Seen, caller: Caller) -> None:
    assert seen.engine["Config"]["User"] == f"{caller.uid}:{caller.gid}"
    # Real, effective, saved and file system ids.
    assert seen.inside["status"]["Uid"].split() == [str(caller.uid)] * 4
    assert seen.inside["status"]["Gid"].split() == [str(caller.gid)] * 4
    assert set(seen.inside["status"]["Groups"].split()) <= {str(caller.gid)}
    assert any("tasks.py" in word for word in seen.inside["command"])


def test_no_compiler_and_no_installer_in_the_image(seen: Seen) -> None:
    assert seen.inside["tools"] == []


def test_limits_are_those_of_the_settings(seen: Seen) -> None:
    settings = seen.engine["HostConfig"]
    assert settings["Memory"] == settings["MemorySwap"] == MEMORY_MIB << 20
    assert settings["NanoCpus"] == CPUS * 10**9
    # cgroup v1 or v2, whichever this machine has: a limit on memory and one on the processor.
    found = seen.inside["limits"]
    assert len(found) == 2
    assert found == {name: LIMITS[name] for name in found}
    sql = "SELECT memory_limit_bytes, cores_quota, cores_usable FROM host"
    assert query(seen.folder, sql) == [(MEMORY_MIB << 20, CPUS, CPUS)]
