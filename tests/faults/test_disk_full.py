"""A full disk ends a run with a sentence; nothing is lost, and with room again it goes on."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from fake_world import World, counts, events, status, structure, the_run

from experiment.errors import StoreError
from tests.faults.own_mounts import needs_mounts, told

PROGRAM = Path(__file__).with_name("filling.py")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return structure(World(tmp_path_factory.mktemp("whole"), with_refused=False).start())


def check(
    folder: Path, cases: list[tuple[int, int]], uninterrupted: list[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    """Each case is a request and the KiB that are free from it on, see `filling.filled`."""
    found: list[dict[str, Any]] = told(PROGRAM, folder, *(f"{at}:{kib}" for at, kib in cases))
    assert len(found) == len(cases)
    rows = json.loads(json.dumps(uninterrupted))
    for case in found:
        assert (case["then"], case["status"], case["rows"]) == ("", "finished", rows), case
        assert case.get("lost", []) == []
        assert not [name for name in case["files"] if name.endswith((".draft", ".new"))]
        if case["said"]:
            assert re.search("o space left|0 are free", case["said"]), case
            assert len(case["said"].splitlines()) <= 2  # a sentence, and what to do
    return found


@needs_mounts
def test_a_disk_that_is_full_anywhere(tmp_path: Path, uninterrupted: list[tuple[Any, ...]]) -> None:
    cases = [(-1, 0), (-1, 12), (-1, 300), (-1, 900), (0, 0), (5, 4), (11, 30), (18, 60), (23, 900)]
    found = check(tmp_path, cases, uninterrupted)
    assert all(case["said"] for case in found)
    assert [case["begun"] for case in found] == [False] * 4 + [True] * 5
    measured = [case["measured"] for case in found[4:]]
    assert measured == sorted(measured)
    assert measured[0] == 0
    assert 0 < measured[2] < 20
    assert measured[-1] == 22  # full when the log is folded into the file


@needs_mounts
@pytest.mark.soak
def test_a_disk_that_is_full_everywhere(
    tmp_path: Path, uninterrupted: list[tuple[Any, ...]]
) -> None:
    cases = [(at, kib) for at in range(-1, 24) for kib in (0, 4, 8, 20, 60, 200, 600, 1500)]
    check(tmp_path, cases, uninterrupted)


@pytest.mark.parametrize("at", [0, 4, 11, 17, 25])
def test_an_answer_that_cannot_be_kept(
    at: int, tmp_path: Path, uninterrupted: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, with_refused=False)
    write_bytes = Path.write_bytes
    kept = 0

    def full(path: Path, data: bytes) -> int:
        nonlocal kept
        if path.parent.name == "raw":
            kept += 1
            if kept > at:
                write_bytes(path, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_bytes(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(StoreError, match="the answer cannot be kept: No space left") as caught:
            world.start()
    assert "--resume" in str(caught.value)
    folder = the_run(world)
    assert status(folder) == "failed"
    assert len(list((folder / "raw").iterdir())) == at
    assert sum(counts(folder).values()) == min(at, 24) + (at < 24)  # and the one that failed
    assert events(folder, "failed") == [str(caught.value)]
    assert world.resume(folder) == folder
    assert status(folder) == "finished"
    assert structure(folder) == uninterrupted
