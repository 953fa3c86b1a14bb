"""Fields of a log's JSON objects, read strictly: of a bad one, file, line and name are told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from experiment.errors import TraceImportError
from experiment.strict_json import shown

MAX_COUNT = 2**31 - 1
"""Largest token count that is believed; a trace holds no larger one."""

MAX_SECONDS = 1e6
"""Largest duration that is believed; a trace holds no larger one."""


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object of a log.

    A field that is absent or null reads as None, never as zero. Every method raises
    TraceImportError for a value of another type or out of range.

    Attributes:
        members: the object.
        where: ``FILE:LINE`` of its record.
        path: its dotted path within the record, with a dot at the end; empty for the record.
    """

    members: Mapping[str, object]
    where: str
    path: str = ""

    def count(self, name: str) -> int | None:
        """A number of tokens, 0 to ``MAX_COUNT``."""
        value = self.members.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.bad(name, f"{shown(value)} is not a whole number")
        if not 0 <= value <= MAX_COUNT:
            raise self.bad(name, f"{shown(value)} is not between 0 and {MAX_COUNT}")
        return value

    def seconds(self, name: str, *, per_second: int = 1) -> float | None:
        """A duration in seconds; ``per_second`` is 1000 where the field holds milliseconds."""
        value = self.members.get(name)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.bad(name, f"{shown(value)} is not a number")
        if not math.isfinite(value) or not 0 <= value <= MAX_SECONDS * per_second:
            raise self.bad(name, f"{shown(value)} is no duration")
        return scaled(str(value), per_second)

    def text(self, name: str) -> str | None:
        """A text that UTF-8 can hold."""
        value = self.members.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.bad(name, f"{shown(value)} is not a text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.bad(name, "holds a lone surrogate (half of a UTF-16 pair)") from None
        return value

    def flag(self, name: str) -> bool | None:
        """True or false."""
        value = self.members.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.bad(name, f"{shown(value)} is neither true nor false")
        return value

    def items(self, name: str) -> list[object] | None:
        """An array."""
        value = self.members.get(name)
        if value is not None and not isinstance(value, list):
            raise self.bad(name, f"{shown(value)} is not an array")
        return value

    def fields(self, name: str) -> Fields | None:
        """An object inside this one."""
        value = self.members.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.bad(name, f"{shown(value)} is not an object")
        return Fields(value, self.where, f"{self.path}{name}.")

    def needed_count(self, name: str) -> int:
        """As `count`, of a field that cannot be missing."""
        value = self.count(name)
        if value is None:
            raise self.missing(name)
        return value

    def needed_text(self, name: str) -> str:
        """As `text`, of a field that can be neither missing nor empty."""
        value = self.text(name)
        if not value:
            raise self.missing(name)
        return value

    def needed_fields(self, name: str) -> Fields:
        """As `fields`, of a field that cannot be missing."""
        value = self.fields(name)
        if value is None:
            raise self.missing(name)
        return value

    def missing(self, name: str, hint: str | None = None) -> TraceImportError:
        """What to raise where a field is absent, null or empty."""
        return TraceImportError(f"no field {self.path}{name}", where=self.where, hint=hint)

    def bad(self, name: str, reason: str) -> TraceImportError:
        """What to raise where a field's value cannot be used."""
        return TraceImportError(f"{self.path}{name}: {reason}", where=self.where)


def scaled(digits: str, per_second: int) -> float:
    """Seconds from decimal digits, divided in decimal so that 3634.18 ms is 3.63418 s."""
    return float(Decimal(digits) / per_second)
