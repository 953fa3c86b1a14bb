"""Facts about the machine and the checkout a run was made on; what may really be used of it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import psutil

RAW_COMMANDS = ("uname -a", "lscpu", "free -b", "df -k")
"""Commands whose output is kept word for word beside the parsed facts."""

REVISION_VARIABLE = "PREFIX_REPLAY_REVISION"
"""Set inside the image: commit of the checkout it was built from, with ``-dirty`` if changed."""

COMMAND_TIMEOUT_S = 20.0
"""`df` hangs on a network file system that is gone."""


class HostFacts(TypedDict):
    """One row of the ``host`` table; None where the system does not tell."""

    hostname: str
    system: str
    kernel: str
    architecture: str
    cpu_model: str
    cpu_flags: list[str]
    cores_total: int
    cores_affinity: int
    cores_quota: float | None
    cores_usable: int
    governor: str | None
    load_1min: float | None
    load_5min: float | None
    load_15min: float | None
    memory_total_bytes: int
    memory_available_bytes: int
    memory_limit_bytes: int | None
    container: str | None
    python_version: str


class GitState(TypedDict):
    """The checkout's commit, and whether files differ from it or are new; None = no checkout."""

    commit: str | None
    dirty: bool | None


@dataclass(frozen=True)
class Limits:
    """What the control groups around this process allow; None = no limit."""

    cores: float | None
    memory_bytes: int | None


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many cores may really run at once, at least 1.

    The smaller of the CPU affinity (which cpusets show up in) and the CPU quota of every control
    group around the process, rounded down: one thread more than the quota gets all of them
    throttled, and a measurement with them.
    """
    quota = cgroup_limits(root).cores
    cores = _affinity()
    return max(1, cores if quota is None else min(cores, int(quota)))


def cgroup_limits(root: Path = Path("/")) -> Limits:
    """Read CPU quota and memory limit from cgroup v2 and v1; the tightest of all levels counts.

    Args:
        root: the folder that holds ``proc`` and ``sys``; another one than ``/`` is for tests.
    """
    cores: list[float] = []
    memory: list[int] = []
    for folder in cgroup_folders(root, controller=None):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        cores += _cores(quota, period)
        memory += _number(_read(folder / "memory.max"))
    for folder in cgroup_folders(root, controller="cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        cores += _cores(quota, period)
    for folder in cgroup_folders(root, controller="memory"):
        # v1 writes "no limit" as the largest number of pages: about 2**63 bytes.
        limit = _number(_read(folder / "memory.limit_in_bytes"))
        memory += [size for size in limit if size < 1 << 60]
    return Limits(min(cores, default=None), min(memory, default=None))


def host_facts(root: Path = Path("/")) -> HostFacts:
    """Gather the facts that a measurement depends on (sizes in bytes, load as run-queue length)."""
    limits = cgroup_limits(root)
    memory = psutil.virtual_memory()
    load = os.getloadavg() if hasattr(os, "getloadavg") else (None, None, None)
    cpu = _cpuinfo(root)
    return HostFacts(
        hostname=platform.node(),
        system=platform.system(),
        kernel=platform.release(),
        architecture=platform.machine(),
        cpu_model=cpu.get("model name") or platform.processor() or platform.machine(),
        cpu_flags=sorted((cpu.get("flags") or cpu.get("Features") or "").split()),
        cores_total=os.cpu_count() or 1,
        cores_affinity=_affinity(),
        cores_quota=limits.cores,
        cores_usable=usable_cores(root),
        governor=_read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        load_1min=load[0],
        load_5min=load[1],
        load_15min=load[2],
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        memory_limit_bytes=limits.memory_bytes,
        container=_container(root),
        python_version=platform.python_version(),
    )


def raw_outputs() -> dict[str, str]:
    """Run `RAW_COMMANDS` and return what each printed, or in brackets why it printed nothing."""
    return {command: _output(command.split()) for command in RAW_COMMANDS}


def git_state(root: Path) -> GitState:
    """Return commit and dirty state of the checkout whose top folder is ``root``.

    An unpacked archive inside somebody else's checkout must not pass for that checkout, so a
    ``root`` that is not the top folder counts as no checkout. An image says in `REVISION_VARIABLE`
    which state it was built from.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return _baked_state(os.environ.get(REVISION_VARIABLE, ""))
    status = _git(root, "status", "--porcelain")
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    return GitState(commit=commit, dirty=None if status is None else bool(status))


def _baked_state(revision: str) -> GitState:
    commit, changed, _ = revision.partition("-dirty")
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        return GitState(commit=None, dirty=None)
    return GitState(commit=commit, dirty=bool(changed))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_folders(root: Path, controller: str | None) -> Iterator[Path]:
    """Yield the process's control group and all groups above it; ``controller`` None means v2."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controller is None and not controllers:
            tops = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            # Some systems mount "cpu,cpuacct" under that name, some under "cpu", some under both.
            tops = [mount / controllers, mount / controller]
        else:
            continue
        # Inside a container the path may be the host's, which is not mounted: the folders that
        # are missing read as nothing, and the container's own limits lie at the top.
        names = [name for name in group.split("/") if name]
        for top in tops:
            yield from (top.joinpath(*names[:n]) for n in range(len(names), -1, -1))


def _cores(quota: str, period: str) -> list[float]:
    """Return the quota in cores, or nothing for "max" (v2), -1 (v1) and missing files."""
    quota_us, period_us = _number(quota), _number(period)
    return [quota_us[0] / period_us[0]] if quota_us and period_us and period_us[0] else []


def _number(text: str) -> list[int]:
    return [int(text)] if text.isdigit() else []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo(root: Path) -> dict[str, str]:
    """Read the first processor's block of ``/proc/cpuinfo``."""
    block, _, _ = _read(root / "proc/cpuinfo").partition("\n\n")
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _container(root: Path) -> str | None:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    return None


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return "[no such command here]"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"[failed: {error}]"
    # `df` prints all it could find out and exits with 1 when one file system could not be read.
    return done.stdout or f"[printed nothing; exit code {done.returncode}: {done.stderr.strip()}]"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
