"""The programs a build needs: finds CMake, Ninja and the compilers, and identifies them."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from experiment.errors import BuildError
from experiment.host import cgroup_limits, usable_cores

BYTES_PER_JOB = 1_500_000_000
"""Memory to reckon with for a compiler process (0.7 GB was seen, for server-context.cpp)."""

MINIMUM_CMAKE = (3, 24)
"""The first with ``--fresh``."""

_PACKAGES = (
    "Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install"
)


@dataclass(frozen=True)
class Tool:
    """A program that was found. ``identity`` says what it is, without where it lies."""

    path: Path
    identity: str


@dataclass(frozen=True)
class Toolchain:
    """What configures and compiles.

    ``environment_flags`` are those of the user's variables that CMake obeys; ``cpu`` is a digest of
    what the processor can do, because code built for this host's processor may crash on another.
    """

    cmake: Tool
    ninja: Tool
    cc: Tool
    cxx: Tool
    environment_flags: dict[str, str]
    cpu: str


def find_toolchain(environment: dict[str, str] | None = None) -> Toolchain:
    """Find the programs: CC and CXX if set, CMake and Ninja first beside the running Python.

    Raises:
        BuildError: one is missing, does not run, or is too old; says what to install.
    """
    variables = dict(os.environ) if environment is None else environment
    cmake = _beside_python("cmake", variables)
    if (version := _version(cmake.identity)) < MINIMUM_CMAKE:
        wanted = ".".join(map(str, MINIMUM_CMAKE))
        raise BuildError(
            f"{cmake.path} is CMake {'.'.join(map(str, version))}, {wanted} or later is needed",
            hint="install the locked requirements (./inv does): CMake is among them",
        )
    return Toolchain(
        cmake=cmake,
        ninja=_beside_python("ninja", variables),
        cc=_compiler("CC", ("cc", "gcc", "clang"), variables),
        cxx=_compiler("CXX", ("c++", "g++", "clang++"), variables),
        environment_flags={
            name: variables[name]
            for name in ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")
            if variables.get(name)
        },
        cpu=_cpu(),
    )


def jobs(asked: int) -> int:
    """Return how many compilers to run at once; ``asked`` = 0: as cores and memory allow."""
    if asked:
        return asked
    free_bytes = psutil.virtual_memory().available
    limit_bytes = cgroup_limits().memory_bytes
    usable_bytes = min(free_bytes, limit_bytes) if limit_bytes else free_bytes
    return max(1, min(usable_cores(), usable_bytes // BYTES_PER_JOB))


def _beside_python(name: str, variables: dict[str, str]) -> Tool:
    # Not resolved: in a virtual environment the scripts lie beside the link to Python.
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    found = beside or shutil.which(name, path=variables.get("PATH"))
    if found is None:
        raise BuildError(
            f"there is no {name} here",
            hint=f"install the locked requirements (./inv does): {name} is among them",
        )
    return Tool(Path(found), _first_line(found, "--version"))


def _compiler(variable: str, names: tuple[str, ...], variables: dict[str, str]) -> Tool:
    if asked := variables.get(variable):
        words = shlex.split(asked)
        if len(words) != 1:
            raise BuildError(
                f"{variable}={asked} holds more than the name of a program",
                hint=f"put options into {'CXXFLAGS' if variable == 'CXX' else 'CFLAGS'}",
            )
        names = (words[0],)
    for name in names:
        if found := shutil.which(name, path=variables.get("PATH")):
            version, target = _first_line(found, "--version"), _first_line(found, "-dumpmachine")
            return Tool(Path(found), f"{version}; {target}")
    asked_for = f"{variable}={asked}" if asked else " or ".join(names)
    raise BuildError(f"there is no compiler here ({asked_for})", hint=_PACKAGES)


def _first_line(program: str, option: str) -> str:
    try:
        done = subprocess.run(
            [program, option],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{program} {option} fails: {error}", hint=_PACKAGES) from error
    return done.stdout.strip().partition("\n")[0]


def _version(identity: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", identity)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return a short digest of the machine type and the processor's features."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if re.match(r"(flags|Features)\s*:", line)), "")
    words = sorted(features.partition(":")[2].split())
    text = " ".join([platform.machine(), platform.processor() if not words else "", *words])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
