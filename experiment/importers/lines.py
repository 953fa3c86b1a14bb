"""Reads a log line by line: plain or gzipped, JSON Lines or CSV, with its progress."""

from __future__ import annotations

import csv
import gzip
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from experiment.errors import TraceImportError
from experiment.importers.fields import Cells, Record
from experiment.progress import Progress
from experiment.strict_json import parse_line, shown

MAX_LINE_BYTES = 64 << 20
ADVANCE_EVERY_BYTES = 1 << 20

GZIP = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def json_rows(path: Path, progress: Progress) -> Iterator[Record]:
    """The objects of a JSON Lines file, blank lines passed over.

    Raises:
        TraceImportError: the file cannot be read, or a line is no JSON object.
    """
    for number, line in lines(path, progress):
        if line.isspace():
            continue
        where = f"{path}:{number}"
        try:
            row = parse_line(line.rstrip(b"\r\n"))
        except ValueError as error:
            raise TraceImportError(f"the line {error}", where=where) from None
        except RecursionError:
            raise TraceImportError("the line is nested too deeply", where=where) from None
        if not isinstance(row, dict):
            raise TraceImportError(f"the line is {shown(row)}, not a JSON object", where=where)
        yield Record(row, where)


def csv_rows(path: Path, progress: Progress) -> Iterator[Cells]:
    """The rows of a CSV file by the names in its first one, blank lines passed over.

    Raises:
        TraceImportError: the file cannot be read, is no CSV, or a row has more or fewer cells than
            the first.
    """
    reader = csv.reader(_texts(path, progress), strict=True)
    names: list[str] | None = None
    before = 0
    while True:
        where = f"{path}:{before + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise TraceImportError(f"the line is no CSV: {error}", where=where) from None
        if row is None:
            return
        before = reader.line_num
        if len(row) <= 1 and not any(map(str.strip, row)):
            continue
        if names is None:
            names = [name.strip() for name in row]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise TraceImportError(f"the column {shown(twice[0])} occurs twice", where=where)
        elif len(row) != len(names):
            what = f"the row has {len(row)} cells, the header {len(names)}"
            raise TraceImportError(what, where=where)
        else:
            yield Cells.of(dict(zip(names, map(str.strip, row), strict=True)), where)


def lines(path: Path, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """The lines of a file as they stand, numbered from 1; a byte order mark is left out.

    Starts the progress, in bytes of the file.

    Raises:
        TraceImportError: the file cannot be read, or a line is longer than ``MAX_LINE_BYTES``.
    """
    where = str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceImportError("is not a file", where=where)
        with path.open("rb") as file:
            progress.start(f"Reading {path.name}", path.stat().st_size)
            zipped = file.read(len(GZIP)) == GZIP
            file.seek(0)
            with gzip.open(file) if zipped else file as content:
                yield from _numbered(path, content, file, progress)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceImportError(f"is a damaged gzip file: {error}", where=where) from None
    except OSError as error:
        raise TraceImportError(f"cannot be read: {error.strerror or error}", where=where) from None


def _numbered(
    path: Path, content: IO[bytes] | gzip.GzipFile, file: IO[bytes], progress: Progress
) -> Iterator[tuple[int, bytes]]:
    number = told = 0
    while line := content.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            what = f"the line is longer than {MAX_LINE_BYTES >> 20} MiB"
            raise TraceImportError(what, where=f"{path}:{number}")
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        yield number, line
        if file.tell() - told >= ADVANCE_EVERY_BYTES:
            told = file.tell()
            progress.advance(told)
    progress.advance(file.tell())


def _texts(path: Path, progress: Progress) -> Iterator[str]:
    for number, line in lines(path, progress):
        where = f"{path}:{number}"
        if b"\0" in line:
            raise TraceImportError("the line holds a NUL byte", where=where)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            what = f"the line is not UTF-8 (byte {error.start + 1} of the line)"
            raise TraceImportError(what, where=where) from None
