"""ATIF files and the files that they name: continuations, found beside them, and only there."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from experiment.errors import TraceImportError
from experiment.importers.base import Log
from experiment.importers.documents import read_records
from experiment.importers.json_fields import Fields
from experiment.progress import Progress, SilentProgress
from experiment.strict_json import shown

CONTINUED = "continued_trajectory_ref"
USUAL_NAME = "trajectory."
"""What the name of a trajectory begins with; collections put a prefix before it."""


@dataclass(frozen=True)
class Trajectory:
    """A trajectory document: its members, and its steps with the lines they begin on."""

    path: Path
    whole: Fields
    steps: list[Fields]


def trajectories(path: Path, progress: Progress, log: Log) -> Iterator[Trajectory]:
    """The trajectory in a file, and those that continue it, each held on its own.

    Raises:
        TraceImportError: one of them is no ATIF document, or they continue each other.
    """
    read: set[Path] = set()
    following: Path | None = path
    while following is not None:
        read.add(following.resolve())
        trajectory = read_trajectory(following, progress)
        yield trajectory
        following = continuation(trajectory)
        reference = trajectory.whole.text(CONTINUED)
        if following is not None and following.resolve() in read:
            what = f"{shown(reference)} was read before: the trajectories continue each other"
            raise trajectory.whole.bad(CONTINUED, what)
        if following is None and reference:
            log.warn(
                f"the continuation {shown(reference)} is not there: the trace ends where "
                f"{trajectory.path.name} ends"
            )


def read_trajectory(path: Path, progress: Progress) -> Trajectory:
    """The trajectory in a file.

    Raises:
        TraceImportError: it is no ATIF document.
    """
    whole, steps = read_records(path, "steps", progress)
    version = whole.needed_text("schema_version")
    if not version.startswith("ATIF"):
        raise whole.bad("schema_version", f"{shown(version)} is not ATIF's")
    return Trajectory(path, whole, steps)


def continuation(trajectory: Trajectory) -> Path | None:
    """The file that continues a trajectory; None where none does, or it is not there.

    Raises:
        TraceImportError: the reference leads out of the trajectory's folder.
    """
    reference = trajectory.whole.text(CONTINUED)
    if not reference:
        return None
    if "\0" in reference or "://" in reference or PurePosixPath(reference).is_absolute():
        what = f"{shown(reference)} is no file name relative to the trajectory"
        raise trajectory.whole.bad(CONTINUED, what)
    folder, name = trajectory.path.parent, trajectory.path.name
    prefix = name[: max(0, name.rfind(USUAL_NAME))]
    for candidate in (reference, prefix + reference):
        path = folder / candidate
        try:
            if not path.resolve().is_relative_to(folder.resolve()):
                what = f"{shown(reference)} leaves the folder of the trajectory"
                raise trajectory.whole.bad(CONTINUED, what)
            if path.is_file():
                return path
        except (OSError, RuntimeError):  # a name too long, links that go round in a circle
            continue
    return None


@lru_cache(maxsize=1)
def continued_in(files: tuple[Path, ...]) -> frozenset[Path]:
    """Those of some files that another one of them continues in; they are read with that one."""
    found = set()
    for path in files:
        try:
            if _mentions(path, CONTINUED.encode()):
                following = continuation(read_trajectory(path, SilentProgress()))
                if following is not None:
                    found.add(following.resolve())
        except TraceImportError:
            continue  # told when the file itself is imported
    return frozenset(found)


def _mentions(path: Path, name: bytes) -> bool:
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return data.rfind(name) >= 0
    except (OSError, ValueError):  # ValueError: an empty file
        return False
