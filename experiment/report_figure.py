"""One figure of a report: a table, the SQL that gives it, and what a reader must know besides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiment.reader import Reader

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its table and where that comes from.

    Attributes:
        key: names it in the page.
        title: what it shows.
        about: how to read it.
        columns: of ``rows``; times are ms or s as the name says.
        query: gives ``rows`` without the columns ``intervals`` and ``extrapolated``, in that order.
        intervals: columns that `experiment.intervals` works out.
        extrapolated: columns that `experiment.extrapolated` works out.
        rows: finite values only.
        notes: what a reader must know besides: what is left out, what could not be fitted.
        missing: why there is nothing to draw; empty if there is.
    """

    key: str
    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    query: str
    intervals: tuple[str, ...] = ()
    extrapolated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: str = ""

    def values(self, *names: str) -> list[float]:
        """All numbers that stand in the named columns."""
        places = [self.columns.index(name) for name in names]
        found = (row[place] for row in self.rows for place in places)
        return [value for value in found if isinstance(value, int | float)]

    def measured_steps(self, measure: str) -> dict[str, list[int]]:
        """By task the steps with a value in a column that ends so, in the order of the rows."""
        places = [i for i, name in enumerate(self.columns) if name.endswith(measure)]
        task_id, step = (self.columns.index(name) for name in ("task_id", "step"))
        found: dict[str, list[int]] = {}
        for row in self.rows:
            if any(row[place] is not None for place in places):
                found.setdefault(str(row[task_id]), []).append(int(row[step] or 0))
        return found


def figure_of(
    reader: Reader, *, key: str, title: str, about: str, query: str, notes: tuple[str, ...] = ()
) -> Figure:
    """The figure whose rows ``query`` gives."""
    found = reader.connection.execute(query)
    columns = tuple(column[0] for column in found.description)
    rows = tuple(tuple(_finite(value) for value in row) for row in found.fetchall())
    return Figure(key, title, about, columns, rows, query, notes=notes)


def missing(figure: Figure, why: str, is_missing: bool) -> Figure:
    """``figure``, which ``why`` stands in place of if there is nothing to draw."""
    return replace(figure, missing=why) if is_missing else figure


def _finite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def of_all(shown: int, number: int, noun: str) -> tuple[str, ...]:
    """A note that some of many are shown; none where all are."""
    if shown == number:
        return ()
    return (
        f"Chart and table show {shown:,} of {number:,} {noun}, evenly spaced in the trace's order, "
        f"so that the page stays small.",
    )


def spread(items: Sequence[str], most: int) -> tuple[str, ...]:
    """At most ``most`` of the items: the first, the last, and evenly spaced ones between."""
    if len(items) <= most:
        return tuple(items)
    return tuple(items[i * (len(items) - 1) // (most - 1)] for i in range(most))
