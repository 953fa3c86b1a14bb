"""One line of JSON, read strictly: repeated keys and NaN, which ``json`` lets pass, are caught."""

from __future__ import annotations

import json
from collections.abc import Sequence

MAX_INTEGER_DIGITS = 40
"""Digits of an integer that are read; more only make a number that no field allows still larger."""


class NotJson:
    """``NaN``, ``Infinity`` or ``-Infinity``: of no JSON type, so a schema refuses its field."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def parse_line(line: bytes) -> object:
    """The value that one line of UTF-8 JSON holds.

    ``NaN`` and the infinities come back as ``NotJson``; an integer of more than
    ``MAX_INTEGER_DIGITS`` digits is cut to its first ones (Python refuses thousands of digits).

    Raises:
        ValueError: what is wrong with the line, in words fit for a user.
    """
    if b"\0" in line:
        raise ValueError("holds a NUL byte")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start + 1} of the line)") from None
    if text.startswith("\ufeff"):
        raise ValueError("begins with a byte order mark; plain UTF-8 is wanted")
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=NotJson,
            parse_int=lambda digits: int(digits[:MAX_INTEGER_DIGITS]),
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"names {shown(key)} twice in one object")
        members[key] = value
    return members


def shown(value: object, limit: int = 60) -> str:
    """A value as a message shows it: escaped, on one line, cut to about ``limit`` characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return repr(value if len(value) <= limit else value[:limit] + "…")
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
