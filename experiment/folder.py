"""The files of a results folder beside its database, among them the trace that resume reads."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from experiment.build import Build
from experiment.errors import StoreError
from experiment.host import git_state, host_facts, raw_outputs
from experiment.patches import Series
from experiment.paths import ROOT
from experiment.repository import record
from experiment.trace import Trace, load_trace

RAW = "raw"
SERVER_LOG = f"{RAW}/server.log"
BENCH_LOG = f"{RAW}/llama-bench.log"
TRACE = "trace.jsonl"


def new_folder(results_dir: Path, hostname: str, name: str) -> Path:
    """Make ``results/<UTC date_time>_<host>_<name>/raw`` and return the folder.

    Raises:
        StoreError: it cannot be made.
    """
    stamp = datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S")
    safe = [re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip("-.") or "x" for part in (hostname, name)]
    folder = results_dir / "_".join([stamp, *safe])
    try:
        (folder / RAW).mkdir(parents=True)
    except OSError as error:
        raise StoreError(
            f"the results folder cannot be made: {error.strerror}",
            where=str(folder),
            hint="set results_dir to a folder that can be written",
        ) from error
    return folder


def keep_trace(trace: Trace, folder: Path) -> Trace:
    """Copy the trace and its image files, so that the folder alone can be resumed and checked."""
    # By the names in the file, not by where they lead: a picture may be a link within the folder.
    rows = [json.loads(line) for line in trace.path.read_bytes().split(b"\n") if line.strip()]
    # A header row, which says where a trace comes from, has no content.
    contents = (row.get("new", {}) for row in rows)
    names = {shot for new in contents if isinstance(shot := new.get("screenshot"), str)}
    for name in sorted(names):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(trace.path.parent / name, target)
    shutil.copyfile(trace.path, folder / TRACE)
    return load_trace(folder / TRACE)


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
    (folder / "git_diff.patch").write_text(series.as_diff(), encoding="utf-8")


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file for people to read as well."""
    path.write_text(json.dumps(value, indent=2, default=str) + "\n", encoding="utf-8")
