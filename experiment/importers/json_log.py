"""Logs of JSON records, an object a line or one document; recognised by their first objects.

Lines are read one by one; a document is held whole.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from experiment.errors import TraceImportError
from experiment.importers.base import Source
from experiment.importers.json_fields import Fields
from experiment.importers.lines import BYTE_ORDER_MARK, GZIP, MAX_LINE_BYTES, json_rows
from experiment.importers.probe import beginning
from experiment.progress import Progress
from experiment.strict_json import parse_line, shown

MAX_DOCUMENT_BYTES = 512 << 20

PROBED_LINES = 500

SPACE = re.compile(r"[ \t\r\n]*")


def first_objects(source: Source) -> Iterator[dict[str, object]]:
    """The objects at the beginning of a file, as far as it tells them."""
    head = beginning(source)
    if not head.lstrip().startswith(b"["):
        found = False
        for line in head.split(b"\n", PROBED_LINES)[:PROBED_LINES]:
            for row in _objects(line):
                found = True
                yield row
        if found:
            return
    complete = _objects(head)
    yield from complete or _first_element(head)


def objects(path: Path, progress: Progress) -> Iterator[Fields]:
    """The records of a file that holds one JSON object a line.

    Raises:
        TraceImportError: a line is not an object.
    """
    yield from json_rows(path, progress)


def records(path: Path, progress: Progress) -> Iterator[Fields]:
    """The records of a file that holds one a line, or is a document: an object, or an array.

    Raises:
        TraceImportError: it is neither, or an element is not an object.
    """
    if not is_document(path):
        yield from objects(path, progress)
        return
    value, data = document(path, progress)
    if isinstance(value, dict):
        yield Fields(value, f"{path}:1")
        return
    if not isinstance(value, list):
        raise TraceImportError(f"{shown(value)} is not a JSON object", where=f"{path}:1")
    for element, line in zip(value, element_lines(data, str(path)), strict=True):
        where = f"{path}:{line}"
        if not isinstance(element, dict):
            raise TraceImportError(f"{shown(element)} is not a JSON object", where=where)
        yield Fields(element, where)


def element_lines(data: bytes, where: str) -> Iterator[int]:
    """The lines on which the elements of a document begin that is an array, and known to be right.

    Raises:
        TraceImportError: it is nested almost too deeply.
    """
    text = data.decode()
    # Python refuses integers of thousands of digits; here no value is wanted.
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)
    line, counted = 1, 0
    position = _past_space(text, text.index("[") + 1)
    while text[position] != "]":
        line += text.count("\n", counted, position)
        counted = position
        yield line
        try:
            _, position = decoder.raw_decode(text, position)
        except RecursionError:
            raise TraceImportError("the document is nested too deeply", where=where) from None
        position = _past_space(text, position)
        if text[position] == ",":
            position = _past_space(text, position + 1)


def _past_space(text: str, position: int) -> int:
    found = SPACE.match(text, position)
    return found.end() if found else position


def is_document(path: Path) -> bool:
    """Whether a JSON file is one document, and not an object a line: its first line tells.

    Raises:
        TraceImportError: the file cannot be read.
    """
    with _content(path) as file:
        first = file.readline(MAX_LINE_BYTES)
        while first and first.isspace():
            first = file.readline(MAX_LINE_BYTES)
    first = first.removeprefix(BYTE_ORDER_MARK).strip()
    return first.startswith(b"[") or not first.endswith(b"}")


def document(path: Path, progress: Progress) -> tuple[object, bytes]:
    """The value of a file that is one JSON document, and the document.

    Raises:
        TraceImportError: it is larger than ``MAX_DOCUMENT_BYTES``, or is not JSON.
    """
    with _content(path) as file:
        progress.start(f"Reading {path.name}", path.stat().st_size)
        data = file.read(MAX_DOCUMENT_BYTES + 1).removeprefix(BYTE_ORDER_MARK)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise TraceImportError(
            f"the document is larger than {MAX_DOCUMENT_BYTES >> 20} MiB", where=str(path)
        )
    try:
        value = parse_line(data)
    except ValueError as error:
        raise TraceImportError(f"the document {error}", where=_place(path, data)) from None
    progress.advance(path.stat().st_size)
    return value, data


@contextmanager
def _content(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The file's content from its beginning, unpacked if it is gzipped."""
    try:
        with path.open("rb") as file:
            zipped = file.read(len(GZIP)) == GZIP
            file.seek(0)
            with gzip.open(file) if zipped else file as content:
                yield content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        what = f"is a damaged gzip file: {error}"
        raise TraceImportError(what, where=str(path)) from None
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise TraceImportError(what, where=str(path)) from None


def _objects(data: bytes) -> list[dict[str, object]]:
    try:
        value = parse_line(data)
    except ValueError:
        return []
    elements = value if isinstance(value, list) else [value]
    return [element for element in elements if isinstance(element, dict)]


def _first_element(head: bytes) -> list[dict[str, object]]:
    """The first object of an array that is cut off somewhere."""
    text = head.decode("utf-8", errors="replace").lstrip()
    if not text.startswith("["):
        return []
    try:
        first, _ = json.JSONDecoder().raw_decode(text[1:].lstrip())
    except (ValueError, RecursionError):
        return []
    return [first] if isinstance(first, dict) else []


def _place(path: Path, data: bytes) -> str:
    """``FILE:LINE`` of what is not JSON in a document, ``FILE`` where it cannot be told."""
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return f"{path}:{error.lineno}"
    except (ValueError, RecursionError):
        pass
    return str(path)
