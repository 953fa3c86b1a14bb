"""The gzip of a handoff archive, which says of itself whether a byte of it was changed.

Deflate has many spellings of the same bytes, and bits that nothing reads. So the header's extra
field (RFC 1952) holds a sha256 of all that comes behind the header; other programs pass it over.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import BinaryIO

from experiment.errors import ArchiveError

_LEVEL = 6
_MAGIC = bytes([0x1F, 0x8B, 8])
# An extra field follows; no time, no hint of speed, system unknown.
_START = _MAGIC + bytes([4, 0, 0, 0, 0, 0, 255])
_SUBFIELD = b"PR" + (32).to_bytes(2, "little")
_HEAD = _START + (len(_SUBFIELD) + 32).to_bytes(2, "little") + _SUBFIELD
_HEADER_BYTES = len(_HEAD) + 32
_CHUNK = 1 << 18
_REPACK = "verify the archive as handoff wrote it, not one that was packed again"


class Deflater:
    """Writes a gzip to ``sink``, which can seek; it is complete only after `close`."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._digest = hashlib.sha256()
        self._crc = 0
        self.size_bytes = 0
        """Of what was written, not compressed."""
        sink.write(bytes(_HEADER_BYTES))

    def write(self, data: bytes) -> None:
        """Compress some more."""
        self._crc = zlib.crc32(data, self._crc)
        self.size_bytes += len(data)
        self._put(self._deflate.compress(data))

    def close(self) -> None:
        """Write the end and then the header."""
        self._put(self._deflate.flush())
        self._put(self._crc.to_bytes(4, "little"))
        self._put((self.size_bytes % (1 << 32)).to_bytes(4, "little"))
        self._sink.seek(0)
        self._sink.write(_HEAD + self._digest.digest())

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self._sink.write(data)


class Inflater:
    """Reads a gzip; never inflates more than is asked for.

    Every method raises ArchiveError where the file ends too early or is damaged; it names
    ``reading``, which the caller sets.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._digest = hashlib.sha256()
        self._head = self._waiting = source.read(_HEADER_BYTES)
        self.reading = "its beginning"
        self.size_bytes = 0
        """Of what was read, inflated."""
        if not self._head.startswith(_MAGIC):
            raise ArchiveError(
                "this is not a gzip file" if self._head else "the file is empty",
                hint="name the .tar.gz that invoke handoff wrote",
            )

    def read(self, size_bytes: int) -> bytes:
        """Exactly this many bytes."""
        parts = []
        while size_bytes:
            part = self._some(size_bytes)
            if not part:
                raise self._cut_short("the tar ends too early")
            parts.append(part)
            size_bytes -= len(part)
        return b"".join(parts)

    def finish(self) -> str | None:
        """Read the end, behind which nothing may come.

        Returns:
            None if this is the very gzip that `Deflater` wrote, else what is different.
        """
        self.reading = "its end"
        if self._some(1):
            raise ArchiveError("more data come behind the end of the tar")
        if self._inflate.unused_data or self._source.read(1):
            raise ArchiveError("more data come behind the end of the archive")
        if not self._head.startswith(_HEAD):
            return f"the gzip was not written by handoff; {_REPACK}"
        if self._head[len(_HEAD) :] != self._digest.digest():
            return "bytes of the gzip were changed that do not change its content"
        return None

    def _some(self, limit: int) -> bytes:
        """At least one byte and at most ``limit``; none where the gzip ends."""
        while not self._inflate.eof:
            if not self._waiting:
                self._waiting = self._source.read(_CHUNK)
                self._digest.update(self._waiting)
                if not self._waiting:
                    raise self._cut_short("the file ends too early")
            try:
                found = self._inflate.decompress(self._waiting, limit)
            except zlib.error as error:
                raise ArchiveError(
                    f"the compressed data are damaged, found at {self.reading} ({error})",
                    hint="download it again",
                ) from error
            self._waiting = self._inflate.unconsumed_tail
            if found:
                self.size_bytes += len(found)
                return found
        return b""

    def _cut_short(self, how: str) -> ArchiveError:
        return ArchiveError(
            f"the archive is cut short in {self.reading}: {how}", hint="download it again"
        )
