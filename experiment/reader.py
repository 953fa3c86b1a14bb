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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

import duckdb

from experiment.database import DATABASE, SCHEMA, DatabaseInUse, connect, explain, find_run_id
from experiment.errors import StoreError
from experiment.intervals import median_ranks

MEMORY_MB = 320
"""What DuckDB may take for each begun million measurements; a million need about half of it. What a
query holds for each group cannot be moved to the disk, so a fixed limit would fail in the end."""

SHARED_VIEWS = frozenset({"step_variant", "pair", "step_comparison", "stability_figures"})

FEW_SIZES = 32
"""Up to so many different sizes of samples, quantiles are quicker than sorted lists (measured)."""

_COPIES = 5
"""How often a copy is tried; a writer folds its log into the file once in many measurements."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Reader:
    """One run of an open database."""

    connection: duckdb.DuckDBPyConnection
    folder: Path
    run_id: str

    def rows(
        self, kind: type[Row], source: str, *, key: str = "run_id", order: str = "ALL"
    ) -> tuple[Row, ...]:
        """The run's rows of ``source`` (a table, view or join), the columns that ``kind`` names."""
        names = ", ".join(field.name for field in fields(kind))  # type: ignore[arg-type]
        found = self.connection.execute(
            f"SELECT {names} FROM {source} WHERE {key} = ? ORDER BY {order}", [self.run_id]
        ).fetchall()
        return tuple(kind(*row) for row in found)

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
        self.connection.execute(
            f"CREATE TEMP TABLE {table} AS "
            f"WITH place (n, low, high) AS (VALUES {place}), "
            f"sample AS (SELECT {keys}, {samples} FROM {source} GROUP BY {keys}) "
            f"SELECT {keys}, {ends} FROM sample {joins}"
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
            ((rows,),) = connection.execute("SELECT count(*) FROM measurement").fetchall()
            limit_mb = MEMORY_MB * (1 + rows // 1_000_000)
            connection.execute(f"SET memory_limit = '{limit_mb}MB'")
            connection.execute("SET temp_directory = $1", [spill])
            connection.execute("SET preserve_insertion_order = false")
            # A sum's last digits hang on the order, which several threads do not keep. For a
            # million measurements one thread took no longer than two.
            connection.execute("SET threads = 1")
            connection.execute(_views())
            yield Reader(connection, database.parent, found)
        except duckdb.Error as error:
            raise explain(error, database) from error


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


def _views() -> str:
    text = SCHEMA.read_text(encoding="utf-8")

    def own(match: re.Match[str]) -> str:
        return f"CREATE TEMP {'TABLE' if match[1] in SHARED_VIEWS else 'VIEW'} {match[1]} AS"

    return re.sub(
        r"^CREATE VIEW (\w+) AS$", own, text[text.index("CREATE VIEW") :], flags=re.MULTILINE
    )
