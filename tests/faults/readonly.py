"""Runs of the fake world in a results folder that cannot be written, not even by root.

This file is a program, called within a mount namespace of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fake_world import World, status, structure, the_run

from experiment.errors import ExperimentError


def said(world: World, folder: Path | None = None) -> str:
    try:
        if folder is None:
            world.start()
        else:
            world.resume(folder)
    except ExperimentError as error:
        return str(error)
    return ""


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=True)


def main(scratch: Path) -> dict[str, Any]:
    disk = scratch / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", disk], check=True)
    try:
        world = World(scratch, with_refused=False)
        world.settings = world.settings.model_copy(update={"results_dir": disk / "results"})
        found: dict[str, Any] = {}
        remount(disk, "ro")
        found["start"] = said(world)
        remount(disk, "rw")
        world.trouble = lambda number, _: KeyboardInterrupt() if number == 9 else None
        try:
            world.start()
        except KeyboardInterrupt:
            folder = the_run(world)
        world.trouble = lambda _number, _ask: None
        before = structure(folder)
        remount(disk, "ro")
        found["resume"] = said(world, folder)
        found["changed"] = structure(folder) != before
        remount(disk, "rw")
        found["then"] = said(world, folder)
        found["status"] = status(folder)
        found["rows"] = [list(row) for row in structure(folder)]
        return found
    finally:
        subprocess.run(["umount", disk], check=True)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
