"""The shell scripts that the Dockerfile runs, tried in a folder instead of an image."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from experiment.paths import ROOT

SOURCES = """\
Types: deb
# http://snapshot.example/archive/debian/20260918T000000Z
URIs: http://deb.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
# http://snapshot.example/archive/debian-security/20260918T000000Z
URIs: http://deb.example/debian-security
Suites: bookworm-security
Components: main
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/apt/apt.conf.d").mkdir()
    (tmp_path / "etc/apt/sources.list.d/debian.sources").write_text(SOURCES)
    return tmp_path


def snapshot(root: Path, switch: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(ROOT / "docker" / "apt-snapshot"), switch, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_apt_is_pinned_to_the_snapshot_that_the_sources_name(root: Path) -> None:
    assert snapshot(root, "1").returncode == 0
    pinned = (root / "etc/apt/sources.list.d/debian.sources").read_text()
    assert [line for line in pinned.splitlines() if line.startswith("URIs")] == [
        "URIs: http://snapshot.example/archive/debian/20260918T000000Z",
        "URIs: http://snapshot.example/archive/debian-security/20260918T000000Z",
    ]
    assert pinned.count("\n") == SOURCES.count("\n")
    assert "Check-Valid-Until" in (root / "etc/apt/apt.conf.d/90snapshot").read_text()


def test_sources_stay_where_no_snapshot_is_wanted(root: Path) -> None:
    assert snapshot(root, "0").returncode == 0
    assert (root / "etc/apt/sources.list.d/debian.sources").read_text() == SOURCES
    assert not list((root / "etc/apt/apt.conf.d").iterdir())


def test_base_image_without_a_snapshot_is_told(root: Path) -> None:
    sources = root / "etc/apt/sources.list.d/debian.sources"
    without = "".join(line for line in SOURCES.splitlines(True) if not line.startswith("#"))
    sources.write_text(without)
    done = snapshot(root, "1")
    assert done.returncode == 1
    assert "names no snapshot" in done.stderr
    assert "APT_SNAPSHOT=0" in done.stderr
    assert sources.read_text() == without


def test_pip_is_told_to_check_hashes_and_given_every_file(tmp_path: Path) -> None:
    pip = tmp_path / "venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text('#!/bin/sh\necho "$@"\n')
    pip.chmod(0o755)
    done = subprocess.run(
        ["sh", str(ROOT / "docker" / "pip-install"), str(tmp_path / "venv"), "one.txt", "two.txt"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    words = done.stdout.split()
    assert "--require-hashes" in words
    assert words[-4:] == ["-r", "one.txt", "-r", "two.txt"]
