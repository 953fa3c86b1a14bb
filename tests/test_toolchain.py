"""Finding the programs, and saying what is missing."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiment import toolchain
from experiment.errors import BuildError
from experiment.host import Limits
from experiment.toolchain import find_toolchain, jobs


def program(path: Path, *, version: str, target: str = "x86_64-linux-gnu") -> Path:
    """Write a program that answers as compilers do."""
    path.parent.mkdir(exist_ok=True)
    script = f'if [ "$1" = -dumpmachine ]; then echo {target}; else echo "{version}"; echo 2; fi'
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with CMake, Ninja, cc and c++ on PATH and nothing beside Python."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "python3"))
    program(tmp_path / "bin" / "cmake", version="cmake version 3.25.1")
    program(tmp_path / "bin" / "ninja", version="1.11.1")
    program(tmp_path / "bin" / "cc", version="cc (Debian) 12.2.0")
    program(tmp_path / "bin" / "c++", version="c++ (Debian) 12.2.0")
    return {"PATH": str(tmp_path / "bin")}


def test_programs_are_found_and_identified(tools: dict[str, str], tmp_path: Path) -> None:
    found = find_toolchain(tools)
    assert found.cxx.path == tmp_path / "bin" / "c++"
    assert found.cxx.identity == "c++ (Debian) 12.2.0; x86_64-linux-gnu"
    assert found.cc.identity == "cc (Debian) 12.2.0; x86_64-linux-gnu"
    assert (found.cmake.identity, found.ninja.identity) == ("cmake version 3.25.1", "1.11.1")
    assert found.environment_flags == {}


def test_those_beside_python_come_first(tools: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "python" / "cmake", version="cmake version 4.0.0")
    assert find_toolchain(tools).cmake.path == tmp_path / "python" / "cmake"


def test_the_users_choice_of_compiler_is_respected(tools: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "bin" / "clang++-19", version="clang version 19.1")
    chosen = {**tools, "CXX": "clang++-19", "CXXFLAGS": "-g", "CFLAGS": ""}
    found = find_toolchain(chosen)
    assert found.cxx.identity.startswith("clang version 19.1")
    assert found.environment_flags == {"CXXFLAGS": "-g"}


@pytest.mark.parametrize(
    ("missing", "message", "hint"),
    [
        ("cmake", "there is no cmake here", "locked requirements"),
        ("ninja", "there is no ninja here", "locked requirements"),
        ("cc", r"no compiler here \(cc or gcc or clang\)", r"apt install g\+\+"),
        ("c++", r"no compiler here \(c\+\+ or g\+\+ or clang\+\+\)", r"apt install g\+\+"),
    ],
)
def test_a_missing_program_is_named(
    tools: dict[str, str], tmp_path: Path, missing: str, message: str, hint: str
) -> None:
    (tmp_path / "bin" / missing).unlink()
    with pytest.raises(BuildError, match=rf"(?s){message}.*{hint}"):
        find_toolchain(tools)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CXX": "nosuch++"}, r"CXX=nosuch\+\+"),
        ({"CXX": "ccache g++"}, r"(?s)CXX=ccache g\+\+ holds more.*CXXFLAGS"),
        ({"CC": "gcc -m32"}, r"(?s)CC=gcc -m32 holds more.*CFLAGS"),
    ],
)
def test_a_compiler_that_cannot_be_is_refused(
    tools: dict[str, str], variables: dict[str, str], message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        find_toolchain({**tools, **variables})


def test_an_old_cmake_is_refused(tools: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "bin" / "cmake", version="cmake version 3.18.4")
    with pytest.raises(BuildError, match=r"is CMake 3\.18, 3\.24 or later"):
        find_toolchain(tools)


def test_a_compiler_that_does_not_run(tools: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "c++").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(BuildError, match=r"c\+\+ --version fails"):
        find_toolchain(tools)


@pytest.mark.parametrize(
    ("asked", "cores", "free_gb", "limit_gb", "expected"),
    [
        (0, 8, 32.0, None, 8),
        (0, 8, 4.6, None, 3),
        (0, 8, 32.0, 3.1, 2),
        (0, 8, 0.5, None, 1),
        (16, 2, 0.5, None, 16),
    ],
)
def test_jobs_fit_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch,
    asked: int,
    cores: int,
    free_gb: float,
    limit_gb: float | None,
    expected: int,
) -> None:
    limit = None if limit_gb is None else int(limit_gb * 1e9)
    free = SimpleNamespace(available=int(free_gb * 1e9))
    monkeypatch.setattr(toolchain, "usable_cores", lambda: cores)
    monkeypatch.setattr(toolchain, "cgroup_limits", lambda: Limits(None, limit))
    monkeypatch.setattr(toolchain.psutil, "virtual_memory", lambda: free)
    assert jobs(asked) == expected


def test_the_cpus_digest_follows_its_features(tmp_path: Path) -> None:
    path, seen = tmp_path / "cpuinfo", []
    for text in ("flags\t\t: sse avx\n", "flags : avx sse\nflags: x\n", "Features\t: asimd\n", ""):
        path.write_text(f"model name : X\ncpu MHz : {len(seen)}\n{text}")
        seen.append(toolchain._cpu(path))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3
    assert toolchain._cpu(tmp_path / "missing") == seen[3]
