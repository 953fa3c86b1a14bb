"""The driver is killed at random moments of a run: nothing is lost, and a resume completes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.crashing import ALL_PHASES

PROGRAM = Path(__file__).with_name("crashing.py")
IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of writes to a disk take minutes."""
    place = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield Path(folder)


def killed(scratch: Path, moments: int, seed: int, kills: int = 1) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, PROGRAM, scratch, str(moments), str(seed), str(kills)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any], moments: int) -> None:
    cases = found["cases"]
    assert [case for case in cases if case["problems"]] == []
    assert len(cases) == moments
    assert {case["phase"] for case in cases} == ALL_PHASES
    assert sum(case["killed"] for case in cases) >= moments - 3  # the last one may come too late
    assert any(case["interrupted"] for case in cases)
    # The reference itself is a run of all that there is to be lost.
    assert len(found["reference"]["rows"]) == 38
    assert found["reference"]["raw"]
    assert "limit of 5 rounds reached" in found["reference"]["rounds"][0]


def test_killed_in_every_phase(scratch: Path) -> None:
    check(killed(scratch, 20, seed=7), 20)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_fifty_random_moments(scratch: Path, seed: int) -> None:
    check(killed(scratch, 50, seed), 50)


@pytest.mark.soak
def test_killed_again_and_again(scratch: Path) -> None:
    check(killed(scratch, 50, seed=3, kills=4), 50)
