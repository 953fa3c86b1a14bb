"""JSON documents that hold their records in one array: the records with their lines, and a shape.

A document is held whole; for recognising it, the shape of its beginning is enough.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path

from experiment.errors import TraceImportError
from experiment.importers.json_fields import Fields
from experiment.importers.json_log import document
from experiment.progress import Progress
from experiment.strict_json import shown

MAX_DEPTH = 6
"""Levels of objects and arrays whose fields a shape tells."""

MAX_NESTING = 1000
MAX_TOKENS = 50_000
"""Of JSON that a shape looks at; it takes a fifth of a second."""

MAX_SHOWN_CHARACTERS = 200

CLOSING = ("}", "]")

_SPACE = re.compile(r"[ \t\r\n]*")
# Strings match to their end in one go, an unfinished one too: nothing is looked at twice.
_TOKEN = re.compile(r'"((?:[^"\\]++|\\.?)*+)(?:"|\Z)|([{}\[\]:,])|([^\s{}\[\]:,"]++)', re.DOTALL)


def read_records(path: Path, array: str, progress: Progress) -> tuple[Fields, list[Fields]]:
    """The document's object, and the objects of its member ``array`` with the lines they begin on.

    Raises:
        TraceImportError: the file cannot be read, is no such document, or is too large.
    """
    value, data = document(path, progress)
    if not isinstance(value, dict):
        raise TraceImportError(f"{shown(value)} is not an object", where=f"{path}:1")
    whole = Fields(value, f"{path}:1")
    items = whole.items(array)
    if items is None:
        raise whole.missing(array)
    records = []
    try:
        lines = _lines(data, array)
    except RecursionError:
        raise TraceImportError("the document is nested too deeply", where=str(path)) from None
    for index, (item, line) in enumerate(zip(items, lines, strict=True)):
        if not isinstance(item, dict):
            what = f"{array}.{index}: {shown(item)} is not an object"
            raise TraceImportError(what, where=f"{path}:{line}")
        records.append(Fields(item, f"{path}:{line}", f"{array}.{index}."))
    return whole, records


def _lines(data: bytes, array: str) -> list[int]:
    """The lines on which the elements of an array begin, in a document known to be right."""
    text = data.decode()
    # Its numbers are not looked at, and may have more digits than Python reads.
    decoder = json.JSONDecoder(parse_int=str)
    position = _skip(text, 0) + 1
    while True:
        key, position = decoder.raw_decode(text, _skip(text, position))
        position = _skip(text, _skip(text, position) + 1)
        if key == array:
            break
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position) + 1
    lines: list[int] = []
    line = 1
    counted = 0
    position = _skip(text, position + 1)
    while text[position] != "]":
        line += text.count("\n", counted, position)
        counted = position
        lines.append(line)
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return lines


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


@lru_cache(maxsize=2)
def shape(head: bytes) -> Mapping[str, str]:
    """The fields of the first JSON value in a file's beginning, however long it goes on behind it.

    Fields are named by their paths, as ``steps[].source``; each has the text or literal that it
    holds first, cut to ``MAX_SHOWN_CHARACTERS``, or nothing where it holds an object or array.
    """
    seen: dict[str, str] = {}
    # Of each open object the name that is being read, None before it; of an array "[]".
    stack: list[str | None] = []
    tokens = _TOKEN.finditer(head.decode("utf-8", errors="replace"))
    for found in islice(tokens, MAX_TOKENS):
        text, mark, literal = found.groups()
        if text is not None and stack and stack[-1] is None:
            stack[-1] = f".{text}"
            continue
        if mark in CLOSING:
            if stack:
                stack.pop()
        elif mark == ",":
            if stack and stack[-1] != "[]":
                stack[-1] = None
        elif mark != ":":
            if len(stack) <= MAX_DEPTH:
                path = "".join(name or "" for name in stack).removeprefix(".")
                seen.setdefault(path, (text or literal or "")[:MAX_SHOWN_CHARACTERS])
            if mark:
                stack.append(None if mark == "{" else "[]")
        if not stack or len(stack) > MAX_NESTING:
            break
    return seen
