"""Small archives: right ones, and hostile ones made with `tarfile`, as others would."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from experiment import archive
from experiment.archive_gzip import Deflater
from experiment.progress import SilentProgress

NAME = "2026-11-30_02-41-05_host_smoke-handoff"
FACTS = archive.Facts(NAME, "r1", datetime(2026, 11, 30, 2, 41, 5, tzinfo=UTC), 2)
FILES: dict[str, Path | bytes] = {
    "REPRODUCE.md": b"# How\n",
    "repository/inv": b"#!/bin/sh\n",
    "results/raw/a.json": b"{}\n",
}

Members = list[tuple[tarfile.TarInfo, bytes]]


def written(
    folder: Path, files: dict[str, Path | bytes] = FILES, facts: archive.Facts = FACTS
) -> Path:
    """A right archive; ``repository/inv`` can be executed."""
    file = folder / "x.tar.gz"
    archive.write(file, facts, files, executables=["repository/inv"], progress=SilentProgress())
    return file


def members(file: Path) -> Members:
    """What an archive holds, manifest first."""
    with tarfile.open(file) as opened:
        found = []
        for info in opened:
            info.pax_headers = {}
            source = opened.extractfile(info)
            found.append((info, source.read() if source else b""))
        return found


def packed(file: Path, content: Members) -> Path:
    """Write members, whatever they are, in the gzip that an archive must have."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for info, data in content:
            opened.addfile(info, io.BytesIO(data))
    return gzipped(file, tar.getvalue())


def gzipped(file: Path, tar: bytes) -> Path:
    """Any bytes in the gzip that an archive must have."""
    with file.open("wb") as sink:
        deflater = Deflater(sink)
        deflater.write(tar)
        deflater.close()
    return file


def changed(folder: Path, change: Callable[[Members], None]) -> Path:
    """An archive whose members were changed; the manifest stays as it was."""
    content = members(written(folder))
    change(content)
    return packed(folder / "x.tar.gz", content)


def tree(folder: Path) -> set[str]:
    """Everything below a folder, with its links and hidden files."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def named(name: str, data: bytes = b"") -> tuple[tarfile.TarInfo, bytes]:
    """One more member with the right metadata."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(data), int(FACTS.created.timestamp())
    return info, data
