"""The lock that lets one run measure at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.alone import LOCK_NAME, BusyError, alone
from experiment.paths import ROOT

HOLD = (
    "import sys; from pathlib import Path; from experiment.alone import alone\n"
    "with alone('the first', folder=Path(sys.argv[1])):\n"
    "    print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_the_second_run_is_refused_with_the_first_ones_name(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(BusyError) as caught, alone("the second", folder=tmp_path):
        pytest.fail("measured beside another run")
    text = str(caught.value)
    assert f"another run is measuring on this machine (the first, process {holder.pid})" in text
    assert "--force" in text


def test_it_may_be_forced_and_the_first_keeps_the_lock(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with alone("the second", force=True, folder=tmp_path):
        pass
    with pytest.raises(BusyError, match="the first"), alone("a third", folder=tmp_path):
        pass


def test_a_kill_lets_go_of_it(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()
    with alone("the second", folder=tmp_path):
        assert (tmp_path / LOCK_NAME).read_text() == f"the second, process {os.getpid()}\n"


def test_one_after_the_other(tmp_path: Path) -> None:
    for number in range(3):
        with alone(f"run {number} with a longer name" if not number else "x", folder=tmp_path):
            pass
    assert (tmp_path / LOCK_NAME).read_text() == f"x, process {os.getpid()}\n"
    assert (tmp_path / LOCK_NAME).stat().st_mode & 0o777 == 0o666


def test_a_link_is_not_followed_and_no_reason_to_stop(tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.write_text("precious")
    (tmp_path / LOCK_NAME).symlink_to(other)
    with alone("run", folder=tmp_path):
        pass
    assert other.read_text() == "precious"


def test_a_folder_that_is_not_there_is_no_reason_to_stop(tmp_path: Path) -> None:
    with alone("run", folder=tmp_path / "missing"):
        pass
