"""Runs of the fake world on a disk that gets full, and what has to hold once there is room again.

This file is a program, called within a mount namespace of its own, where it mounts small disks.
"""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fake_world import World, events, query, status, structure

from experiment.database import DATABASE
from experiment.errors import ExperimentError

IDENTITY = "SELECT task_id, step, variant, round, started_at FROM measurement WHERE status = 'ok'"


BALLAST = "ballast"


def attempt(world: World, folder: Path | None = None) -> str:
    """The sentence that a run or a resume ends with; empty if it finishes."""
    try:
        if folder is None:
            world.start()
        else:
            world.resume(folder)
    except ExperimentError as error:
        return str(error)
    except OSError as error:  # which the command line makes a sentence of
        if error.errno != errno.ENOSPC:
            raise
        return f"{error.strerror}: {error.filename}"
    return ""


def fill(disk: Path, free_kib: int) -> None:
    """Leave so much room on the disk."""
    left = shutil.disk_usage(disk).free - free_kib * 1024
    (disk / BALLAST).write_bytes(bytes(max(0, left)))


def filled(disk: Path, scratch: Path, request: int, free_kib: int) -> dict[str, Any]:
    """Run on a disk that has so much room from a request on (-1: from the start); make room, go on.

    The requests are 24, then come the calibration and the end.
    """
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", disk], check=True)
    try:
        world = World(scratch, with_refused=False)
        world.settings = world.settings.model_copy(update={"results_dir": disk / "results"})
        if request < 0:
            fill(disk, free_kib)
        else:
            world.trouble = lambda number, _: fill(disk, free_kib) if number == request else None
        found: dict[str, Any] = {
            "request": request,
            "free_kib": free_kib,
            "said": attempt(world),
        }
        again = World(scratch, with_refused=False)
        again.settings = world.settings
        (disk / BALLAST).unlink()
        begun = [path.parent for path in disk.glob(f"results/*/{DATABASE}")]
        found["begun"] = bool(begun)
        if begun:
            (folder,) = begun
            before = query(folder, IDENTITY)
            found["measured"] = len(before)
            found["then"] = attempt(again, folder)
            now = query(folder, IDENTITY)
            found["lost"] = [str(row) for row in before if row not in now]
        else:
            found["then"] = attempt(again)
            (folder,) = [path.parent for path in disk.glob(f"results/*/{DATABASE}")]
        found["status"] = status(folder)
        found["rows"] = [list(row) for row in structure(folder)]
        found["files"] = sorted(path.name for path in folder.iterdir())
        found["failed"] = events(folder, "failed")
        return found
    finally:
        subprocess.run(["umount", disk], check=True)


def main(scratch: Path, cases: list[str]) -> list[dict[str, Any]]:
    disk = scratch / "disk"
    disk.mkdir()
    return [filled(disk, scratch, *map(int, case.split(":"))) for case in cases]


if __name__ == "__main__":
    folder, *cases = sys.argv[1:]
    sys.stdout.write(json.dumps(main(Path(folder), cases)))
