"""The tar of a handoff archive: the one header a file may have, and what is wrong with another.

Headers are made here and not by `tarfile`, whose bytes differ between versions of Python. A reader
compares a header with the one that must stand there, so nothing in a hostile one is ever followed;
it is only looked into to say what is wrong with it.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Collection
from dataclasses import dataclass

from experiment.archive_manifest import Entry, Manifest, name_problem
from experiment.errors import ArchiveError

BLOCK = 512
RECORD = 20 * BLOCK
"""A tar ends with two blocks of zeros, filled up to this."""

_NAME_BYTES = 100
_MAX_EXTENSION_BYTES = 1 << 16

_REFUSED = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.DIRTYPE: "a folder of its own",
    tarfile.GNUTYPE_LONGLINK: "a link with a long target",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)


def header(name: str, size_bytes: int, *, executable: bool, changed_s: int) -> bytes:
    """The header of a file: of the user 0, with no name of a user.

    Args:
        name: with the top folder.
        size_bytes: of the content, which follows.
        executable: mode 0755, else 0644.
        changed_s: time of change, seconds since 1970.
    """
    mode = 0o755 if executable else 0o644
    encoded = name.encode()
    if len(encoded) <= _NAME_BYTES and name.isascii():
        return _block(encoded, tarfile.REGTYPE, mode, size_bytes, changed_s)
    record = _pax_record(encoded)
    short = name.encode("ascii", "replace")[:_NAME_BYTES]
    return (
        _block(b"././@PaxHeader", tarfile.XHDTYPE, 0, len(record), 0)
        + record
        + padding(len(record))
        + _block(short, tarfile.REGTYPE, mode, size_bytes, changed_s)
    )


def padding(size_bytes: int, to: int = BLOCK) -> bytes:
    """The zeros that fill content up to a whole block."""
    return bytes(-size_bytes % to)


def ending(size_bytes: int) -> bytes:
    """What stands behind the last file, for a tar of this size before it."""
    return bytes(2 * BLOCK) + padding(size_bytes + 2 * BLOCK, RECORD)


def _block(name: bytes, kind: bytes, mode: int, size_bytes: int, changed_s: int) -> bytes:
    # POSIX ustar; the fields left empty are link, user, group and device.
    block = bytearray(BLOCK)
    block[:100] = name.ljust(100, b"\0")
    block[100:124] = b"%07o\0" % mode + b"0000000\0" * 2
    block[124:148] = b"%011o\0%011o\0" % (size_bytes, changed_s)
    block[148:156] = b" " * 8  # how the sum over all bytes counts its own place
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _pax_record(name: bytes) -> bytes:
    # "<length> path=<name>\n", and the length counts its own digits.
    rest = len(b" path=\n") + len(name)
    length = rest + len(str(rest))
    if length - rest != len(str(length)):
        length += 1
    return b"%d path=%s\n" % (length, name)


@dataclass(frozen=True, slots=True)
class Expected:
    """What must stand at a place of the archive.

    Attributes:
        entry: the file; None = nothing, all have been there.
        seen: paths of the files before it.
    """

    entry: Entry | None
    seen: Collection[str]


def complaint(
    block: bytes, read: Callable[[int], bytes], manifest: Manifest, expected: Expected
) -> ArchiveError:
    """Say what is wrong with a header that is not the one that must stand there.

    Args:
        block: its first block.
        read: gives the bytes behind it.
        manifest: of the archive.
        expected: what must stand there.
    """
    entry = expected.entry
    if not any(block):
        left = [file.path for file in manifest.files if file.path not in expected.seen]
        more = f", and {len(left) - 1} more" if len(left) > 1 else ""
        return ArchiveError(f"{left[0]} is missing{more}: the manifest lists it, the archive ends")
    try:
        name, info = member(block, read)
    except ArchiveError as error:
        place = f"where {entry.path} must begin" if entry else "behind the last file"
        return ArchiveError(f"{place}: {error.what}")
    top, _, path = name.partition("/")
    if problem := _problem(name, info):
        return ArchiveError(f"{name!r:.200} {problem}", where="member of the archive")
    if top != manifest.name or not path:
        return ArchiveError(f"{name} is not in the archive's only folder, {manifest.name}/")
    if path in expected.seen:
        return ArchiveError(f"{path} stands in the archive twice")
    if path not in {file.path for file in manifest.files}:
        return ArchiveError(f"{path} is not listed in the manifest")
    if entry is None or path != entry.path:
        wanted = entry.path if entry else "the end"
        return ArchiveError(f"{wanted} is missing: {path} stands in its place")
    return ArchiveError(f"{path}: {difference(info, entry, manifest)}")


def member(block: bytes, read: Callable[[int], bytes]) -> tuple[str, tarfile.TarInfo]:
    """Name and header of a member that may be anything; only numbers and names are read.

    Raises:
        ArchiveError: this is no header.
    """
    info = _info(block)
    name, raw = info.name, block[:_NAME_BYTES]
    if info.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        if not 0 <= info.size <= _MAX_EXTENSION_BYTES:
            raise ArchiveError(f"a name of {info.size:,} bytes")
        data = read(info.size + len(padding(info.size)))[: info.size]
        if info.type == tarfile.XHDTYPE:
            records = re.findall(rb"\d+ path=([^\n]*)\n", data)
            raw = records[-1] if records else b""
        else:
            raw = data
        info = _info(read(BLOCK))
        name = raw.rstrip(b"\0").decode("utf-8", "surrogateescape") or info.name
    if raw.rstrip(b"\0").count(b"\0"):
        name = raw.rstrip(b"\0").decode("utf-8", "surrogateescape")
    return name, info


def _info(block: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        raise ArchiveError(f"there is no header of a tar ({error})") from error


def _problem(name: str, info: tarfile.TarInfo) -> str | None:
    # A folder's name may end with a slash.
    if problem := name_problem(name.rstrip("/") if info.isdir() else name):
        return problem
    if info.type not in _FILES:
        kind = _REFUSED.get(info.type, f"of the type {info.type!r}")
        return f"is {kind}; an archive of this project holds plain files only"
    return None


def difference(info: tarfile.TarInfo, entry: Entry, manifest: Manifest) -> str:
    """What a header says of the right file that it must not say."""
    if info.size != entry.size_bytes:
        return f"it has {info.size:,} bytes, the manifest lists {entry.size_bytes:,}"
    wanted = {
        "mode": 0o755 if entry.executable else 0o644,
        "mtime": manifest.created_s,
        "uid": 0,
        "gid": 0,
        "uname": "",
        "gname": "",
        "linkname": "",
    }
    for field, value in wanted.items():
        found = getattr(info, field)
        if found != value:
            if field == "mode":
                return f"its mode is {found:04o}, not {value:04o}"
            return f"its {field} is {found!r}, not {value!r}"
    return "its header is not written as handoff writes it"
