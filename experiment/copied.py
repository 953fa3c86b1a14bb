"""A run's rows copied into a new database that this program lays out: rows only, nothing else.

Views, macros and expressions of the old file are left behind, so that a file which somebody has
altered cannot answer through them. The same rows give the same answers to the last digit: one
thread makes everything, in the order of the keys.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from experiment.database import DATABASE, SCHEMA, connect, explain, find_run_id
from experiment.errors import StoreError
from experiment.reader import MEMORY_MB, SHARED_VIEWS
from experiment.recorded import StepKey

_OLD = "old"


@contextmanager
def copied(folder: Path, steps: Collection[StepKey] | None = None) -> Iterator[Path]:
    """Yield a folder with a ``results.duckdb`` that holds the run of ``folder`` started last.

    The views that others read (``SHARED_VIEWS``) are tables in it. It is removed at the end.

    Args:
        folder: of the results; its database is only read.
        steps: the steps whose rows are copied (of one that is not there, none are); None = all.
            Rows that belong to no step are copied in any case.

    Raises:
        StoreError: there is no database, another process writes it, its tables are not those of
            ``schemas/results.sql``, or there is no room for the copy.
    """
    database = folder / DATABASE
    if not database.is_file():
        raise StoreError(
            f"there is no {DATABASE} here",
            where=str(folder),
            hint="name a results folder that a run has written",
        )
    with tempfile.TemporaryDirectory(prefix="copy-") as made:
        with connect(Path(made, DATABASE), read_only=False) as connection:
            try:
                _copy(connection, database, steps)
            except duckdb.Error as error:
                raise explain(error, database) from error
        yield Path(made)


def quoted(text: str) -> str:
    """``text`` as a string of SQL, for the statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"


def limit_memory(connection: duckdb.DuckDBPyConnection, table: str = "measurement") -> None:
    """Let DuckDB take as much as a run with so many rows in ``table`` needs."""
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    connection.execute(f"SET memory_limit = '{MEMORY_MB * (1 + rows // 1_000_000)}MB'")


def _copy(
    connection: duckdb.DuckDBPyConnection, database: Path, steps: Collection[StepKey] | None
) -> None:
    schema = SCHEMA.read_text(encoding="utf-8")
    cut = schema.index("CREATE VIEW")
    connection.execute("SET threads = 1")
    connection.execute(schema[:cut])
    tables = _stored_columns(connection, "current_database()")
    # The old database is never the current one, so its macros and views are not in the way.
    connection.execute(f"ATTACH {quoted(str(database))} AS {_OLD} (READ_ONLY)")
    old = _stored_columns(connection, quoted(_OLD))
    if "run" not in old:
        raise StoreError(
            "this is not a database of results: it has no table of runs",
            where=str(database),
            hint="name a results folder that a run has written",
        )
    _require("run", tables["run"], old, database)
    _insert(connection, "run", tables.pop("run"))
    run = find_run_id(connection, database)
    connection.execute("DELETE FROM run WHERE id <> ?", [run])
    for table, columns in tables.items():
        _require(table, columns, old, database)
    limit_memory(connection, f"{_OLD}.main.measurement")
    connection.execute("CREATE TEMP TABLE wanted (task_id VARCHAR, step INTEGER)")
    if steps:
        connection.executemany("INSERT INTO wanted VALUES (?, ?)", sorted(steps))
    for table, columns in tables.items():
        condition = "run_id = $1"
        if steps is not None and "task_id" in columns:
            condition += " AND (step IS NULL OR (task_id, step) IN (FROM wanted))"
        _insert(connection, table, columns, condition, [run])
    connection.execute(f"DETACH {_OLD}")
    shared = "|".join(sorted(SHARED_VIEWS))
    connection.execute(
        re.sub(rf"^CREATE VIEW ({shared}) AS$", r"CREATE TABLE \1 AS", schema[cut:], flags=re.M)
    )


def _stored_columns(
    connection: duckdb.DuckDBPyConnection, attached: str
) -> dict[str, Sequence[str]]:
    """The columns of each table of a database; neither views nor columns that are computed."""
    rows = connection.execute(
        "SELECT table_name, list(column_name ORDER BY ordinal_position) "
        "FROM system.information_schema.columns JOIN system.information_schema.tables "
        "USING (table_catalog, table_schema, table_name) "
        f"WHERE table_catalog = {attached} AND table_schema = 'main' "
        "AND table_type = 'BASE TABLE' AND is_generated = 'NEVER' "
        "GROUP BY table_name ORDER BY table_name"
    ).fetchall()
    return dict(rows)


def _require(
    table: str, columns: Sequence[str], old: Mapping[str, Sequence[str]], database: Path
) -> None:
    missing = [name for name in columns if name not in old.get(table, ())]
    if missing:
        raise StoreError(
            f"the table {table} does not store {', '.join(missing)}",
            where=str(database),
            hint="the file is damaged, or this program did not write it",
        )


def _insert(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    columns: Sequence[str],
    condition: str = "TRUE",
    values: Sequence[str] = (),
) -> None:
    names = ", ".join(columns)
    connection.execute(
        f"INSERT INTO {table} ({names}) SELECT {names} FROM {_OLD}.main.{table} "
        f"WHERE {condition} ORDER BY ALL",
        list(values),
    )
