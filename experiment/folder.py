"""The files of a results folder beside its database, among them the trace that resume reads."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiment import whole_file
from experiment.build import Build
from experiment.clock import CLOCK
from experiment.errors import StoreError, TraceError
from experiment.host import git_state, host_facts, raw_outputs
from experiment.patches import Series
from experiment.paths import ROOT
from experiment.repository import record
from experiment.trace import Trace, load_trace

RAW = "raw"
SERVER_LOG = f"{RAW}/server.log"
BENCH_LOG = f"{RAW}/llama-bench.log"
TRACE = "trace.jsonl"

MAX_KEPT_BYTES = 8 << 30
"""Of a trace and its pictures, which are copied into the folder of each run."""

_ATTEMPTS = 3

RESERVED = re.compile(
    r"(raw|export|(results|host|build|graph|repository|git_diff|trace|report|sweep|under-way)\..*"
    r"|\.[0-9]+-[0-9]+\.draft)",
    re.IGNORECASE,
)
"""What a run's folder holds already: no picture of a trace can have such a name or folder."""


def new_folder(results_dir: Path, hostname: str, name: str) -> Path:
    """Make ``results/<UTC date_time>_<host>_<name>/raw`` and return the folder.

    Raises:
        StoreError: it cannot be made.
    """
    safe = [re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip("-.") or "x" for part in (hostname, name)]
    taken: OSError | None = None
    for _ in range(_ATTEMPTS):
        stamp = CLOCK.now().strftime("%Y-%m-%d_%H-%M-%S")
        folder = results_dir / "_".join([stamp, *safe])
        try:
            (folder / RAW).mkdir(parents=True)
            return folder
        except FileExistsError as error:  # another run began in this second
            taken = error
            time.sleep(1)
        except OSError as error:
            taken = error
            break
    raise StoreError(
        f"the results folder cannot be made: {taken and taken.strerror}",
        where=str(folder),
        hint="set results_dir to a folder that can be written",
    ) from taken


def keep_trace(trace: Trace, folder: Path) -> Trace:
    """Copy the trace and its image files, so that the folder alone can be resumed and checked.

    Raises:
        TraceError: an image file would take the place of one of the run's own, or they take more
            room than there is or than is reasonable.
    """
    names = sorted(_pictures(trace.path))
    for name in names:
        if RESERVED.fullmatch(Path(posixpath.normpath(name)).parts[0]):
            raise TraceError(
                f"a screenshot has the name of a file that a run writes itself: {name!r}",
                where=str(trace.path),
                hint="put the pictures into a folder of their own, such as shots/",
            )
    _require_room(folder, [trace.path, *(trace.path.parent / name for name in names)])
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        whole_file.copy(trace.path.parent / name, target)
    whole_file.copy(trace.path, folder / TRACE)
    return load_trace(folder / TRACE)


def _require_room(folder: Path, files: Sequence[Path]) -> None:
    """Links to one file become as many copies, so that a small trace could fill the disk."""
    needed_bytes = sum(file.stat().st_size for file in files)
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > min(MAX_KEPT_BYTES, free_bytes):
        raise TraceError(
            f"the copy of the trace and its pictures takes {needed_bytes:,} bytes; "
            f"{MAX_KEPT_BYTES:,} are allowed, {free_bytes:,} are free",
            where=str(files[0]),
            hint="split the trace, or make room",
        )


def _pictures(trace: Path) -> set[str]:
    """The image files by the names in the trace, not by where they lead: links are followed."""
    names = set()
    with trace.open("rb") as lines:
        for line in lines:
            # Most rows have no picture, and parsing a million takes seconds.
            if b"screenshot" not in line and b"\\u" not in line:
                continue
            shot = json.loads(line).get("new", {}).get("screenshot")
            if isinstance(shot, str):
                names.add(shot)
    return names


def write_records(folder: Path, build: Build, series: Series) -> None:
    """Write ``host.json``, ``build.json``, ``repository.json`` and ``git_diff.patch``.

    The last is the patch series as one diff.
    """
    host = {
        "facts": host_facts(),
        "raw": raw_outputs(),
        "repository": git_state(ROOT),
    }
    write_json(folder / "host.json", host)
    write_json(folder / "build.json", build.record)
    record(folder)
    whole_file.write_text(folder / "git_diff.patch", series.as_diff())


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file for people to read as well, whole or not at all."""
    whole_file.write_json(path, value, default=str)
