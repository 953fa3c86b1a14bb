"""What records of more than one kind hold: names, times and lists in JSON, and the cells of CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from experiment.importers.json_fields import Fields, scaled
from experiment.strict_json import shown

_DIGITS = re.compile(r"-?[0-9]{1,40}")
_DECIMAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")


class Record(Fields):
    """A JSON object of a log. A member that is absent or null is None, never 0."""

    def number(self, name: str) -> float | None:
        """A finite number, a time in seconds for one.

        Raises:
            TraceImportError: it is something else.
        """
        value = self.members.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.bad(name, f"{shown(value)} is not a number")
        if not math.isfinite(value):
            raise self.bad(name, f"{value} is not a finite number")
        return float(value)

    def label(self, name: str) -> str | None:
        """A name that tells records apart; the log may have it as an integer.

        Raises:
            TraceImportError: it is neither a text nor an integer.
        """
        value = self.members.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text(name)

    def needed_label(self, name: str) -> str:
        """As `label`, of a field that can be neither missing nor empty."""
        value = self.label(name)
        if not value:
            raise self.missing(name)
        return value

    def time(self, name: str) -> datetime | None:
        """A time in ISO 8601; one without an offset is UTC.

        Raises:
            TraceImportError: it is something else.
        """
        value = self.text(name)
        if value is None:
            return None
        try:
            time = datetime.fromisoformat(value)
            # Not astimezone(): it takes a time without an offset for one of this machine's zone.
            offset = time.utcoffset() or timedelta()
            return (time.replace(tzinfo=None) - offset).replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            raise self.bad(name, f"{shown(value)} is not a time in ISO 8601") from None

    def inner(self, name: str) -> Record | None:
        """An object inside this one.

        Raises:
            TraceImportError: it is something else.
        """
        value = self.members.get(name)
        return None if value is None else self._record(name, value)

    def each(self, name: str) -> list[Record]:
        """The objects of an array; none where it is absent or null.

        Raises:
            TraceImportError: it is something else, or holds something else.
        """
        values = self.items(name) or []
        return [self._record(f"{name}.{index}", value) for index, value in enumerate(values)]

    def _record(self, name: str, value: object) -> Record:
        if not isinstance(value, dict):
            raise self.bad(name, f"{shown(value)} is not an object")
        return Record(value, self.where, f"{self.path}{name}.")


class Cells(Record):
    """The cells of a CSV row by the names of their columns. An empty cell is None, never 0."""

    @classmethod
    def of(cls, cells: Mapping[str, str], where: str) -> Cells:
        """The row ``where`` with these cells."""
        return cls({name: cell or None for name, cell in cells.items()}, where)

    def count(self, name: str) -> int | None:
        """A number of tokens, written in digits.

        Raises:
            TraceImportError: it is something else, or out of range.
        """
        cell = self.text(name)
        if cell is None:
            return None
        if not _DIGITS.fullmatch(cell):
            raise self.bad(name, f"{shown(cell)} is not a whole number")
        return Fields({name: int(cell)}, self.where).count(name)

    def seconds(self, name: str, *, per_second: int = 1) -> float | None:
        """A duration in seconds, written in digits.

        Raises:
            TraceImportError: it is something else, or negative.
        """
        value = self.number(name)
        if value is None:
            return None
        if value < 0:
            raise self.bad(name, f"{self.members[name]} is no duration")
        return scaled(str(self.members[name]), per_second)

    def number(self, name: str) -> float | None:
        """A finite number, written in digits.

        Raises:
            TraceImportError: it is something else.
        """
        cell = self.text(name)
        if cell is None:
            return None
        if not _DECIMAL.fullmatch(cell) or not math.isfinite(float(cell)):
            raise self.bad(name, f"{shown(cell)} is not a number")
        return float(cell)
