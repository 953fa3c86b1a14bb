"""The handoff archive: a ``.tar.gz`` with a manifest, written the same every time, read safely.

There is one spelling of an archive: its tar follows from the manifest and the files. A reader
expects that and nothing else, so no name, link or mode of a hostile archive is ever followed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from experiment.archive_gzip import Deflater, Inflater
from experiment.archive_manifest import (
    MANIFEST,
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    Entry,
    Facts,
    Manifest,
    make,
    read,
    spell,
)
from experiment.archive_tar import (
    BLOCK,
    Expected,
    complaint,
    difference,
    ending,
    header,
    member,
    padding,
)
from experiment.errors import ArchiveError
from experiment.progress import Progress

__all__ = ["MAX_BYTES", "Entry", "Facts", "Manifest", "Unpacked", "extract", "unpack", "write"]

MAX_BYTES = 8 << 30
"""How much an archive may hold unless told otherwise; an image is some hundreds of MB of it."""

_CHUNK = 1 << 20


def write(
    target: Path,
    facts: Facts,
    files: Mapping[str, Path | bytes],
    *,
    executables: Collection[str] = (),
    progress: Progress,
) -> str:
    """Write an archive of these files and their manifest, beside ``target`` first.

    The same facts and contents give the same bytes (with the same version of zlib).

    Args:
        target: the file; one that is there is replaced.
        facts: what the manifest says about the run.
        files: contents by their path in the archive's top folder; files are read piece by piece.
        executables: those of the paths that can be executed.
        progress: where to show it.

    Returns:
        sha256 of the archive.

    Raises:
        ArchiveError: a name that no archive admits, a file that is a link or changes meanwhile, or
            the disk refuses.
    """
    entries = [_entry(path, files[path], path in executables) for path in files]
    manifest = make(facts, entries)
    spelled = spell(manifest)
    if len(spelled) > MAX_MANIFEST_BYTES:
        raise ArchiveError(f"{len(entries):,} files are too many for an archive")
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    progress.start("pack", manifest.total_bytes)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as sink:
                _write(Deflater(sink), manifest, spelled, files, progress)
            with draft.open("rb") as made:
                digest = hashlib.file_digest(made, "sha256").hexdigest()
            size_bytes = draft.stat().st_size
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ArchiveError(
            f"the archive cannot be written: {error.strerror}", where=str(error.filename or target)
        ) from error
    progress.finish(f"packed {len(entries):,} files, {size_bytes / 1e6:,.1f} MB")
    return digest


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An archive that could be extracted safely.

    Attributes:
        manifest: what it lists, all of which is there.
        altered: a sentence for each file whose sha256 is not the listed one.
        repacked: what is different from the gzip that `write` made, or None.
    """

    manifest: Manifest
    altered: tuple[str, ...]
    repacked: str | None


def extract(file: Path, to: Path, *, max_bytes: int = MAX_BYTES, progress: Progress) -> Manifest:
    """Extract an archive into ``to / manifest.name``, if it is exactly what `write` made.

    Args:
        file: the archive.
        to: a folder; made if it is not there.
        max_bytes: how much it may hold.
        progress: where to show it.

    Raises:
        ArchiveError: it is not; nothing is left of what was extracted.
    """
    with _extracted(file, to, max_bytes, progress) as found:
        if flaws := [*found.altered, *filter(None, [found.repacked])]:
            raise ArchiveError(flaws[0])
    return found.manifest


def unpack(file: Path, to: Path, *, max_bytes: int = MAX_BYTES, progress: Progress) -> Unpacked:
    """Extract as `extract` does, but keep files whose content is not the listed one.

    Raises:
        ArchiveError: anything else is wrong; nothing is left of what was extracted.
    """
    with _extracted(file, to, max_bytes, progress) as found:
        return found


def _entry(path: str, content: Path | bytes, executable: bool) -> Entry:
    if isinstance(content, bytes):
        size_bytes, digest = len(content), hashlib.sha256(content).hexdigest()
    else:
        if content.is_symlink() or not content.is_file():
            raise ArchiveError(f"{path} cannot be packed: no plain file", where=str(content))
        try:
            with content.open("rb") as source:
                digest = hashlib.file_digest(source, "sha256").hexdigest()
                size_bytes = source.tell()
        except OSError as error:
            raise ArchiveError(
                f"{path} cannot be packed: {error.strerror}", where=str(content)
            ) from error
    if size_bytes > MAX_FILE_BYTES:
        raise ArchiveError(f"{path} has {size_bytes:,} bytes, more than a file of an archive may")
    return Entry(path=path, sha256=digest, size_bytes=size_bytes, executable=executable)


def _write(
    sink: Deflater,
    manifest: Manifest,
    spelled: bytes,
    files: Mapping[str, Path | bytes],
    progress: Progress,
) -> None:
    sink.write(_header(manifest, _of_manifest(spelled)))
    sink.write(spelled + padding(len(spelled)))
    done = 0
    for entry in manifest.files:
        progress.advance(done, entry.path)
        sink.write(_header(manifest, entry))
        digest, left = hashlib.sha256(), entry.size_bytes
        for piece in _pieces(files[entry.path]):
            digest.update(piece)
            left -= len(piece)
            if left < 0:
                break
            sink.write(piece)
        if left or digest.hexdigest() != entry.sha256:
            raise ArchiveError(
                f"{entry.path} changed while it was packed",
                hint="pack when nothing is writing there any more",
            )
        sink.write(padding(entry.size_bytes))
        done += entry.size_bytes
    sink.write(ending(sink.size_bytes))
    sink.close()


def _pieces(content: Path | bytes) -> Iterator[bytes]:
    with BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
        while piece := source.read(_CHUNK):
            yield piece


def _of_manifest(spelled: bytes) -> Entry:
    """The manifest as a file, which it does not list itself."""
    digest = hashlib.sha256(spelled).hexdigest()
    return Entry(path=MANIFEST, sha256=digest, size_bytes=len(spelled), executable=False)


def _header(manifest: Manifest, entry: Entry) -> bytes:
    return header(
        f"{manifest.name}/{entry.path}",
        entry.size_bytes,
        executable=entry.executable,
        changed_s=manifest.created_s,
    )


@contextmanager
def _extracted(file: Path, to: Path, max_bytes: int, progress: Progress) -> Iterator[Unpacked]:
    """Extract; what is there is put in place only if the caller's block ends well."""
    try:
        with file.open("rb") as source:
            stream = Inflater(source)
            manifest, spelled = _read_manifest(stream)
            target = to / manifest.name
            if target.exists() or target.is_symlink():
                raise ArchiveError(f"{target} is there already", hint="give an empty folder")
            to.mkdir(parents=True, exist_ok=True)
            _check_room(manifest, len(spelled), to, max_bytes)
            with TemporaryDirectory(prefix=".extracting-", dir=to) as side:
                folder = Path(side) / manifest.name
                folder.mkdir()
                (folder / MANIFEST).write_bytes(spelled)
                altered = _read_files(stream, manifest, folder, progress)
                yield Unpacked(manifest, altered, stream.finish())
                folder.rename(target)
    except OSError as error:
        raise ArchiveError(
            f"the archive cannot be extracted: {error.strerror}",
            where=str(error.filename or file),
        ) from error
    except ArchiveError as error:
        error.where = error.where or str(file)
        raise
    progress.finish(f"extracted {len(manifest.files):,} files")


def _read_manifest(stream: Inflater) -> tuple[Manifest, bytes]:
    block = stream.read(BLOCK)
    try:
        name, info = member(block, stream.read)
    except ArchiveError as error:
        raise ArchiveError(f"this is a gzip file, but not of a tar: {error.what}") from error
    if name.count("/") != 1 or not name.endswith(f"/{MANIFEST}") or not info.isreg():
        raise ArchiveError(
            f"the archive does not begin with its manifest, but with {name!r:.200}",
            hint="verify the archive as handoff wrote it, not one that was packed again",
        )
    if not 0 <= info.size <= MAX_MANIFEST_BYTES:
        raise ArchiveError(f"the manifest is too large: {info.size:,} bytes")
    stream.reading = MANIFEST
    spelled = stream.read(info.size)
    manifest = read(spelled)
    if name != f"{manifest.name}/{MANIFEST}":
        raise ArchiveError(f"the folder of {name!r:.200} is not {manifest.name}, as it says itself")
    itself = _of_manifest(spelled)
    if block != _header(manifest, itself):
        raise ArchiveError(f"{MANIFEST}: {difference(info, itself, manifest)}")
    _read_padding(stream, itself)
    return manifest, spelled


def _check_room(manifest: Manifest, spelled_bytes: int, to: Path, max_bytes: int) -> None:
    total_bytes = manifest.total_bytes + spelled_bytes
    if total_bytes > max_bytes:
        raise ArchiveError(
            f"the archive holds {total_bytes:,} bytes, more than the {max_bytes:,} allowed"
        )
    free_bytes = shutil.disk_usage(to).free
    if total_bytes > free_bytes:
        raise ArchiveError(
            f"the archive holds {total_bytes:,} bytes, but only {free_bytes:,} are free in {to}"
        )


def _read_files(
    stream: Inflater, manifest: Manifest, folder: Path, progress: Progress
) -> tuple[str, ...]:
    """Read everything behind the manifest; gives a sentence for each file that was altered."""
    progress.start("extract", manifest.total_bytes)
    altered = []
    done, seen = 0, {MANIFEST}
    for entry in manifest.files:
        progress.advance(done, entry.path)
        stream.reading = entry.path
        _read_header(stream, manifest, Expected(entry, seen))
        digest = _read_content(stream, entry, folder / entry.path)
        _read_padding(stream, entry)
        if digest != entry.sha256:
            altered.append(f"{entry.path} has the sha256 {digest}, the manifest lists another")
        seen.add(entry.path)
        done += entry.size_bytes
    stream.reading = "its end"
    wanted = ending(stream.size_bytes)
    block = stream.read(BLOCK)
    if any(block):
        raise complaint(block, stream.read, manifest, Expected(None, seen))
    if any(stream.read(len(wanted) - BLOCK)):
        raise ArchiveError("more data come behind the end of the tar")
    return tuple(altered)


def _read_header(stream: Inflater, manifest: Manifest, expected: Expected) -> None:
    assert expected.entry is not None
    wanted = _header(manifest, expected.entry)
    block = stream.read(BLOCK)
    if block != wanted[:BLOCK]:
        raise complaint(block, stream.read, manifest, expected)
    rest = stream.read(len(wanted) - BLOCK)  # a long name, and the header proper
    if rest != wanted[BLOCK:]:
        raise complaint(block, BytesIO(rest).read, manifest, expected)


def _read_content(stream: Inflater, entry: Entry, path: Path) -> str:
    """Write a file of the new folder; gives the sha256 of what came."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, left = hashlib.sha256(), entry.size_bytes
    with path.open("xb") as sink:
        while left:
            piece = stream.read(min(left, _CHUNK))
            digest.update(piece)
            sink.write(piece)
            left -= len(piece)
    path.chmod(0o755 if entry.executable else 0o644)
    return digest.hexdigest()


def _read_padding(stream: Inflater, entry: Entry) -> None:
    if any(stream.read(len(padding(entry.size_bytes)))):
        raise ArchiveError(f"{entry.path}: what fills its last block is not zero")
