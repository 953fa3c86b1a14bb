"""What the beginning of a file holds, for importers to recognise their format by."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Collection

from experiment.importers.base import PROBE_BYTES, Source
from experiment.importers.lines import BYTE_ORDER_MARK, GZIP
from experiment.strict_json import parse_line, shown

MAX_ROWS = 20
MAX_SHOWN = 12
"""Names of fields or columns that a message lists."""

KINDS = (
    (0, b"PAR1", "a Parquet file"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"\x28\xb5\x2f\xfd", "a file compressed with zstd"),
    (0, b"BZh", "a file compressed with bzip2"),
    (0, b"\xfd7zXZ\0", "a file compressed with xz"),
    (257, b"ustar", "a tar archive"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (8, b"DUCK", "a DuckDB database"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
)
"""What files of a kind have at a place, for those that nobody recognises."""


def beginning(source: Source) -> bytes:
    """The file's first bytes, unpacked if it is gzipped, without a byte order mark."""
    head = source.head
    if head.startswith(GZIP):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, PROBE_BYTES)
        except zlib.error:
            return b""
    return head.removeprefix(BYTE_ORDER_MARK)


def first_rows(source: Source) -> list[dict[str, object]]:
    """The objects on the first lines of a JSON Lines file; none if it is something else."""
    head = beginning(source)
    whole = head if len(head) < PROBE_BYTES else head[: head.rfind(b"\n") + 1]
    rows: list[dict[str, object]] = []
    for line in whole.split(b"\n"):
        if len(rows) == MAX_ROWS:
            break
        if not line.strip():
            continue
        row = _parsed(line)
        if not isinstance(row, dict):
            break
        rows.append(row)
    return rows


def is_json(source: Source) -> bool:
    """Whether a file begins like JSON, and not like CSV."""
    return beginning(source).lstrip()[:1] in {b"{", b"["}


def document(source: Source) -> object:
    """The value of a JSON file that is small enough to be in the beginning whole, else None."""
    head = beginning(source)
    return None if len(head) >= PROBE_BYTES else _parsed(head)


def columns(source: Source) -> tuple[str, ...]:
    """The names in the first line of a CSV file; none if it is something else."""
    for line in beginning(source).split(b"\n", 100)[:100]:
        if not line.strip():
            continue
        try:
            (names,) = csv.reader([line.decode("utf-8")], strict=True)
        except (UnicodeDecodeError, csv.Error, ValueError):
            return ()
        return tuple(name.strip() for name in names) if len(names) > 1 else ()
    return ()


def described(source: Source) -> str:
    """What kind of file it is, in words for a person whose file nobody recognises."""
    if source.path.is_dir():
        return "a folder"
    if not source.head.strip():
        return "an empty file"
    for place, magic, kind in KINDS:
        if source.head[place : place + len(magic)] == magic:
            return kind
    packed = ", gzipped" if source.head.startswith(GZIP) else ""
    rows = first_rows(source)
    if rows:
        return f"JSON Lines{packed} with the fields {listed(list(rows[0]))}"
    value = document(source)
    if isinstance(value, dict):
        return f"a JSON object{packed} with the fields {listed(list(value))}"
    if value is not None:
        return f"{shown(value)} in JSON{packed}"
    names = columns(source)
    if names and all(name.isprintable() for name in names):
        return f"CSV{packed} with the columns {listed(names)}"
    return f"neither JSON nor CSV{packed}"


def listed(names: Collection[str]) -> str:
    """Names as a message shows them, the first ones if they are many."""
    first = ", ".join(shown(name)[1:-1] for name in list(names)[:MAX_SHOWN])
    return first + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")


def _parsed(data: bytes) -> object:
    try:
        return parse_line(data)
    except (ValueError, RecursionError):
        return None
