"""A run's folder copied without what is private, only the files that a run writes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiment import scrub_database
from experiment.database import DATABASE
from experiment.errors import HandoffError
from experiment.folder import RAW, TRACE
from experiment.scrub import Scrubber, strings

HOST = "host.json"
RECORDS = ("build.json", "graph.json")
DIFF = "git_diff.patch"
PLAN = "sweep.json"

_DF_LINE = re.compile(r"(.+?)((?:\s+(?:\d+|-)){3}\s+(?:\d+%|-)\s+)([/<].*)")
# Disks, kernel file systems and places that are the same on every machine.
_DF_DEVICE = re.compile(
    r"/dev/(?:[hsv]d[a-z]+\d*|nvme\d+n\d+(?:p\d+)?|mmcblk\d+(?:p\d+)?)"
    r"|devtmpfs|efivarfs|none|overlay|shm|tmpfs|udev"
)
_DF_MOUNT = re.compile(
    r"/|/(?:boot|dev|home|opt|proc|root|run|srv|sys|tmp|usr|var)(?:/(?:efi|lock|log|shm|tmp))*"
)


def copy(source: Path, target: Path, scrubber: Scrubber) -> None:
    """Copy the results folder ``source`` to the new folder ``target``.

    Copied as they are: the trace, its pictures and the patch series, since digests of them stand in
    the run. The raw files of requests keep every number and prompt; only strings with a private
    path in them change. Other files than a run's own stay out.

    Raises:
        HandoffError: a file is missing or cannot be read.
    """
    try:
        (target / RAW).mkdir(parents=True)
        for name in _pictures(source):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)
        for name in (TRACE, DIFF):
            shutil.copyfile(source / name, target / name)
        _rewrite_json(source / HOST, target / HOST, lambda value: _host(value, scrubber))
        for name in (*RECORDS, *([PLAN] if (source / PLAN).is_file() else [])):
            _rewrite_json(source / name, target / name, lambda v: strings(v, scrubber.words))
        for path in sorted((source / RAW).iterdir()):
            if path.suffix == ".json":
                _rewrite_json(path, target / RAW / path.name, lambda v: strings(v, scrubber.paths))
            elif path.suffix == ".log":
                _rewrite(path, target / RAW / path.name, scrubber.words)
    except OSError as error:
        raise HandoffError(
            f"a file of the run is missing or cannot be read: {error.strerror}",
            where=str(error.filename or source),
            hint="restore the file, or run again",
        ) from error
    scrub_database.write(source / DATABASE, target / DATABASE, scrubber)


def _pictures(folder: Path) -> list[str]:
    """The files that the trace names; that they lie within its folder was checked by the run."""
    lines = (folder / TRACE).read_bytes().split(b"\n")
    rows = [json.loads(line) for line in lines if line.strip()]
    # The first row may be a header, which has no content.
    shots = [row["new"].get("screenshot") for row in rows if "new" in row]
    return sorted({shot for shot in shots if isinstance(shot, str)})


def _rewrite(source: Path, target: Path, change: Callable[[str], str]) -> None:
    # Whatever a program has printed, UTF-8 or not, is kept byte for byte.
    text = source.read_bytes().decode("utf-8", "surrogateescape")
    target.write_bytes(change(text).encode("utf-8", "surrogateescape"))


def _rewrite_json(source: Path, target: Path, change: Callable[[Any], Any]) -> None:
    """Copy a JSON file; written anew, as the run wrote it, only if something in it changes."""
    content = source.read_bytes()
    try:
        value = json.loads(content)
    except ValueError as error:
        raise HandoffError(
            f"this is not JSON: {error}",
            where=str(source),
            hint="the file was changed or cut short: restore it, or run again",
        ) from error
    changed = change(value)
    if changed == value:
        target.write_bytes(content)
        return
    indent = 1 if source.parent.name == RAW else 2
    target.write_text(json.dumps(changed, indent=indent) + "\n", encoding="utf-8")


def _host(value: Any, scrubber: Scrubber) -> object:
    """What a command printed may name the machine, disks and mounts of the user."""
    record: Any = strings(value, scrubber.words)
    try:
        facts, raw = record["facts"], record["raw"]
        facts["hostname"] = scrubber.host(facts["hostname"])
        raw["df -k"] = _df(raw["df -k"])
        # "Linux NAME 6.1.0 ..."; in brackets why there is no output.
        system, _, behind = raw["uname -a"].partition(" ")
        name, space, rest = behind.partition(" ")
        if not system.startswith("["):
            raw["uname -a"] = f"{system} {scrubber.host(name)}{space}{rest}"
    except (KeyError, TypeError, AttributeError) as error:
        raise HandoffError(
            f"{HOST} lacks what a run records about its machine: {error}",
            hint="restore the file, or run again",
        ) from error
    return record


def _df(text: str) -> str:
    """Sizes of file systems stay; names of disks, servers and folders of the user's do not."""
    head, *lines = text.splitlines(keepends=True) or [""]
    told = [head]
    for found in filter(None, map(_DF_LINE.match, lines)):
        device = found[1] if _DF_DEVICE.fullmatch(found[1]) else "<device>"
        # One that the scrubber knows begins with what it put in its place.
        known = found[3].startswith("<") or _DF_MOUNT.fullmatch(found[3])
        mount = found[3] if known else "<mount>"
        told.append(f"{device:<{len(found[1])}}{found[2]}{mount}\n")
    return "".join(told)
