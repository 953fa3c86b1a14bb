"""Host facts: cgroup limits from made-up trees, raw outputs, state of a checkout."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

from experiment import host
from experiment.host import Limits, cgroup_limits, git_state, host_facts, raw_outputs, usable_cores

V1_UNLIMITED = str(0x7FFFFFFFFFFFF000)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        pytest.param({}, Limits(None, None), id="no cgroups"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/memory.max": "1073741824\n",
            },
            Limits(1.5, 1 << 30),
            id="v2 in a container",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/user.slice/run.scope\n",
                "sys/fs/cgroup/user.slice/run.scope/cpu.max": "max 100000\n",
                "sys/fs/cgroup/user.slice/run.scope/memory.max": "max\n",
                "sys/fs/cgroup/user.slice/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/user.slice/memory.max": "4096\n",
            },
            Limits(3.0, 4096),
            id="v2, limit at a level above",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            Limits(2.0, None),
            id="v2, the tightest level counts",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/docker/0123\n",
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
            },
            Limits(0.5, None),
            id="v2, path of the host that is not mounted here",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/../../other\n",
                "sys/fs/cgroup/cpu.max": "100000 100000\n",
            },
            Limits(1.0, None),
            id="v2, path that leads out of the namespace",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2048\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
            },
            Limits(2.5, 2048),
            id="v1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "50000\n",
            },
            Limits(2.0, None),
            id="v1, joint controllers mounted under one name",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpuacct:/x\n2:cpu:/x\n1:memory:/\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
            },
            Limits(None, None),
            id="v1 without limits",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "garbage\n0::/\n\n",
                "sys/fs/cgroup/cpu.max": "100000\n",
                "sys/fs/cgroup/memory.max": "lots\n",
            },
            Limits(None, None),
            id="files that make no sense",
        ),
    ],
)
def test_cgroup_limits(tmp_path: Path, files: dict[str, str], limits: Limits) -> None:
    assert cgroup_limits(tree(tmp_path, files)) == limits


@pytest.mark.parametrize(
    ("affinity", "cpu_max", "cores"),
    [
        (8, "max 100000", 8),
        (8, "300000 100000", 3),
        (8, "390000 100000", 3),
        (2, "800000 100000", 2),
        (8, "50000 100000", 1),
        (1, "max 100000", 1),
    ],
)
def test_usable_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: int, cpu_max: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False)
    tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": cpu_max})
    assert usable_cores(tmp_path) == cores


def test_without_affinity_every_core_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores(tmp_path) == 6


def test_host_facts_from_a_tree(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nmodel name\t: Fast CPU\nflags\t\t: sse2 avx2\n\nprocessor\t: 1\n"
    tree(
        tmp_path,
        {
            "proc/cpuinfo": cpuinfo + "model name\t: Other CPU\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "100000 100000",
            "sys/fs/cgroup/memory.max": "1000000",
            "run/.containerenv": "",
        },
    )
    facts = host_facts(tmp_path)
    assert (facts["cpu_model"], facts["cpu_flags"]) == ("Fast CPU", ["avx2", "sse2"])
    assert (facts["cores_quota"], facts["cores_usable"]) == (1.0, 1)
    assert (facts["governor"], facts["container"]) == ("powersave", "podman")
    assert facts["memory_limit_bytes"] == 1_000_000


def test_host_facts_of_this_machine() -> None:
    facts = host_facts()
    assert 1 <= facts["cores_usable"] <= facts["cores_affinity"] <= facts["cores_total"]
    assert 0 < facts["memory_available_bytes"] <= facts["memory_total_bytes"]
    assert facts["python_version"] == platform.python_version()
    assert json.loads(json.dumps(facts)) == facts


def test_arm_names_its_flags_otherwise(tmp_path: Path) -> None:
    facts = host_facts(tree(tmp_path, {"proc/cpuinfo": "processor : 0\nFeatures : fp asimd\n"}))
    assert facts["cpu_flags"] == ["asimd", "fp"]
    assert facts["cpu_model"]


def test_raw_outputs_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {
        "uname": "echo system $1",
        "free": "echo partly; exit 1",
        "df": "echo refused >&2; exit 3",
    }
    for name, body in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert raw_outputs() == {
        "uname -a": "system -a\n",
        "lscpu": "[no such command here]",
        "free -b": "partly\n",
        "df -k": "[printed nothing; exit code 3: refused]",
    }


def test_raw_output_of_a_command_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "df").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "df").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host, "COMMAND_TIMEOUT_S", 0.2)
    assert raw_outputs()["df -k"].startswith("[failed: ")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "-q")
    (root / "file").write_text("1\n")
    git(root, "add", "file")
    return root


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.invalid", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, stdout=-1)
    return done.stdout.decode().strip()


def test_git_state(checkout: Path) -> None:
    assert git_state(checkout) == {"commit": None, "dirty": True}
    git(checkout, "commit", "-q", "-m", "one")
    commit = git(checkout, "rev-parse", "HEAD")
    assert git_state(checkout) == {"commit": commit, "dirty": False}
    (checkout / "new").write_text("")
    assert git_state(checkout) == {"commit": commit, "dirty": True}


def test_folder_inside_somebody_elses_checkout_is_none(checkout: Path) -> None:
    inside = checkout / "unpacked"
    inside.mkdir()
    assert git_state(inside) == {"commit": None, "dirty": None}


def test_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert git_state(checkout) == {"commit": None, "dirty": None}
