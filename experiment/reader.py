"""A run's database opened to be read: bounded memory, views of today, intervals of medians.

The views are made anew from ``schemas/results.sql``, so that a database which an older program
wrote is read by today's; those that several queries need are worked out once, as tables. All of
it lives in the connection: the file is opened read-only and stays as it is. While a run writes it,
a copy is read.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TypeVar

import duckdb

from experiment.database import DATABASE, SCHEMA, DatabaseInUse, connect, explain, find_run_id
from experiment.errors import StoreError
from experiment.intervals import median_ranks
from experiment.spooled import Spooled

MEMORY_MB = 320
"""What DuckDB may take for each begun million measurements; a million need about half of it. What a
query holds for each group cannot be moved to the disk, so a fixed limit would fail in the end."""

PART_MEMORY_MB, ALL_MEMORY_MB = 256, 16
"""The same where steps are worked out in parts: for each begun 100,000 steps (or where that is more
400,000 measurements of a part), and for each million measurements, whose pairs are one sample of 8
bytes each. 100,000 steps need up to 192, most where the tasks have long names and for the report's
sums in the order of steps."""

STEP_KEY = "run_id, task_id, step"

STEPS_AT_ONCE = 10_000
"""Medians of so many steps are worked out at once: while a query groups, each group's values are
in memory and cannot be moved to the disk."""

TABLES = ("step", "measurement")

PARTED_VIEWS = {
    "step_variant": ("measurement",),
    "pair": ("measurement",),
    "step_comparison": ("step", "step_variant", "pair"),
    "step_load": ("measurement",),
    "step_centre": ("pair",),
    "step_drift": ("outer_third",),
}
"""Views that are worked out once and part by part, with what they read a part of."""

SHARED_VIEWS = frozenset({*PARTED_VIEWS, "stability_figures"})

FEW_SIZES = 32
"""Up to so many different sizes of samples, quantiles are quicker than sorted lists (measured)."""

FEW_ROWS = 2_000
"""Rows that are kept in memory, of which one takes up to 2 kB."""

ROWS_AT_ONCE = 1_000

_COPIES = 5
"""How often a copy is tried; a writer folds its log into the file once in many measurements."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Reader:
    """One run of an open database."""

    connection: duckdb.DuckDBPyConnection
    folder: Path
    run_id: str
    parts: int = 1
    """In how many parts the steps are worked out."""

    def rows(
        self, kind: type[Row], source: str, *, key: str = "run_id", order: str = "ALL"
    ) -> tuple[Row, ...]:
        """The run's rows of ``source`` (a table, view or join), the columns that ``kind`` names."""
        return tuple(kind(*row) for row in self._select(kind, source, key, order).fetchall())

    def many_rows(self, kind: type[Row], source: str, *, order: str) -> Sequence[Row]:
        """The same where there may be very many of them: they are in memory only if they are few.

        Their values have to be numbers, texts and None.
        """
        found = self._select(kind, source, "run_id", order)
        first = found.fetchmany(FEW_ROWS + 1)
        if len(first) <= FEW_ROWS:
            return tuple(kind(*row) for row in first)
        batches = iter(lambda: found.fetchmany(ROWS_AT_ONCE), [])
        return Spooled(kind, chain(first, chain.from_iterable(batches)))

    def _select(
        self, kind: type[Row], source: str, key: str, order: str
    ) -> duckdb.DuckDBPyConnection:
        names = ", ".join(field.name for field in fields(kind))  # type: ignore[arg-type]
        return self.connection.execute(
            f"SELECT {names} FROM {source} WHERE {key} = ? ORDER BY {order}", [self.run_id]
        )

    def add_bounds(self, table: str, source: str, keys: str, figures: Mapping[str, str]) -> None:
        """Make ``table``: one row a group of ``keys``, the interval of each figure.

        ``figures`` maps a column to the SQL expression of its values in ``source``; NULLs are left
        out. The columns are ``<figure>_low`` and ``<figure>_high``.
        """
        counts = ", ".join(f"count({values}) AS {name}" for name, values in figures.items())
        counted = self.connection.execute(
            f"SELECT DISTINCT unnest([{', '.join(figures)}]) AS n "
            f"FROM (SELECT {counts} FROM {source} GROUP BY {keys}) ORDER BY n"
        ).fetchall()
        ranks = [(n, *found) for (n,) in counted if (found := median_ranks(n))]
        if len(ranks) > FEW_SIZES:
            sample, places = "list_sort(list({0}) FILTER (({0}) IS NOT NULL))", ranks
        else:
            # Nothing is sorted. A quantile in the middle of its rank is that value itself, however
            # it is rounded; those that any group needs are taken in each.
            shares = [(rank - 0.5) / n for n, *both in ranks for rank in both]
            quantiles = ", ".join(f"{share!r}::DOUBLE" for share in shares or [0.5])
            sample = f"quantile_disc({{0}}, [{quantiles}])"
            places = [(n, 2 * i + 1, 2 * i + 2) for i, (n, *_) in enumerate(ranks)]
        place = ", ".join(map(str, places)) or "(NULL, NULL, NULL)"
        samples = ", ".join(
            f"count({values}) AS {name}_n, {sample.format(values)} AS {name}"
            for name, values in figures.items()
        )
        ends = ", ".join(
            f"sample.{name}[{name}_at.low] AS {name}_low, "
            f"sample.{name}[{name}_at.high] AS {name}_high"
            for name in figures
        )
        joins = " ".join(
            f"LEFT JOIN place AS {name}_at ON {name}_at.n = sample.{name}_n" for name in figures
        )
        parts = self.parts if keys == STEP_KEY else 1
        for part in range(parts):
            self.connection.execute(
                f"{_begin(table, part)} "
                f"WITH place (n, low, high) AS (VALUES {place}), "
                f"sample AS (SELECT {keys}, {samples} FROM {source} {_only(part, parts)} "
                f"GROUP BY {keys}) SELECT {keys}, {ends} FROM sample {joins}"
            )


@contextmanager
def read(folder_or_database: Path, run_id: str | None = None) -> Iterator[Reader]:
    """Open a run (the last one started if ``run_id`` is None), also while it is being written.

    Raises:
        StoreError: there is no database, or it holds no such run; or a query within the block
            failed.
    """
    database = folder_or_database / DATABASE if folder_or_database.is_dir() else folder_or_database
    if not database.is_file():
        raise StoreError(
            f"there is no {DATABASE} here" if folder_or_database.is_dir() else "no such file",
            where=str(folder_or_database),
            hint="name a results folder that a run has written",
        )
    with (
        tempfile.TemporaryDirectory(prefix="compare-") as spill,
        _open(database, Path(spill)) as connection,
    ):
        found = find_run_id(connection, database, run_id)
        try:
            ((rows, steps),) = connection.execute(
                "SELECT (SELECT count(*) FROM measurement), (SELECT count(*) FROM step)"
            ).fetchall()
            parts = 1 + steps // STEPS_AT_ONCE
            connection.execute(f"SET memory_limit = '{_limit_mb(rows, steps, parts)}MB'")
            connection.execute("SET temp_directory = $1", [spill])
            connection.execute("SET preserve_insertion_order = false")
            # A sum's last digits hang on the order, which several threads do not keep. For a
            # million measurements one thread took no longer than two.
            connection.execute("SET threads = 1")
            ((name,),) = connection.execute("SELECT current_database()").fetchall()
            connection.execute(_views(f'"{name}"', parts))
            yield Reader(connection, database.parent, found, parts)
        except duckdb.Error as error:
            raise explain(error, database) from error


def _limit_mb(rows: int, steps: int, parts: int) -> int:
    """What DuckDB may take for so many measurements of so many steps, in so many parts."""
    if parts == 1:
        return MEMORY_MB * (1 + rows // 1_000_000)
    begun = max(1 + (steps - 1) // 100_000, 1 + rows // parts // 400_000)
    return PART_MEMORY_MB * begun + ALL_MEMORY_MB * (rows // 1_000_000)


def _open(database: Path, work: Path) -> duckdb.DuckDBPyConnection:
    """The database, or what is committed in it so far, as a copy, where a run is writing it.

    DuckDB admits no reader beside a writer. A copy of file and write-ahead log is what a kill at
    that moment would have left behind, which is what the next opening recovers from.
    """
    try:
        return connect(database, read_only=True)
    except DatabaseInUse as busy:
        for _ in range(_COPIES):
            if copy := _copied(database, work):
                return connect(copy, read_only=False)
        raise busy


def _copied(database: Path, work: Path) -> Path | None:
    """Copy file and log; None if the writer folded the log into the file meanwhile."""
    copy, log = work / database.name, database.with_name(database.name + ".wal")
    try:
        before = database.stat()
        shutil.copyfile(database, copy)
        copied_log = work / log.name
        copied_log.unlink(missing_ok=True)
        if log.exists():
            shutil.copyfile(log, copied_log)
        after = database.stat()
    except FileNotFoundError:
        return None
    same = (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    return copy if same else None


def _views(database: str, parts: int) -> str:
    text = SCHEMA.read_text(encoding="utf-8")

    def own(match: re.Match[str]) -> str:
        name, query = match.groups()
        if name not in SHARED_VIEWS:
            return f"CREATE TEMP VIEW {name} AS {query};"
        if name not in PARTED_VIEWS:
            return f"CREATE TEMP TABLE {name} AS {query};"
        return " ".join(
            f"{_begin(name, part)} {_of_part(query, PARTED_VIEWS[name], database, part, parts)};"
            for part in range(parts)
        )

    return re.sub(
        r"^CREATE VIEW (\w+) AS\n(.*?);$",
        own,
        text[text.index("CREATE VIEW") :],
        flags=re.MULTILINE | re.DOTALL,
    )


def _of_part(query: str, sources: Sequence[str], database: str, part: int, parts: int) -> str:
    """The query over the steps of a part of its sources, which stand before it by their names."""
    if parts == 1:
        return query
    told = ", ".join(
        f"{name} AS (FROM {database if name in TABLES else 'temp'}.main.{name} "
        f"{_only(part, parts)})"
        for name in sources
    )
    return f"WITH {told}, {query[5:]}" if query.startswith("WITH ") else f"WITH {told} {query}"


def _begin(table: str, part: int) -> str:
    """Make a table of the first part, and add the others to it."""
    return f"INSERT INTO {table}" if part else f"CREATE TEMP TABLE {table} AS"


def _only(part: int, parts: int) -> str:
    """The condition for the steps of a part; it has to stand where nothing is grouped yet."""
    return f"WHERE hash(task_id, step) % {parts} = {part}" if parts > 1 else ""
