"""TraceLab's DuckDB: the tables ``rounds`` and ``tool_calls``, joined by ``round_pk``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Context, Source
from experiment.importers.fields import Record
from experiment.importers.scratch import first_line, rows_of, scratch
from experiment.importers.tokenizers import Tokenizers
from experiment.importers.tracelab_rounds import depth_and_total, exec_s

MAGIC = b"DUCK"
MAGIC_OFFSET = 8
"""Behind a checksum; https://duckdb.org/docs/stable/internals/storage.html."""

NEEDED = ("round_pk", "session_id", "round_index", "prefix_tokens", "newly_append_tokens")
OPTIONAL = ("input_tokens_total", "output_tokens", "model")

COLUMNS = """
SELECT column_name FROM duckdb_columns()
WHERE database_name = 'log' AND schema_name = 'main' AND table_name = $table
AND table_name IN (SELECT table_name FROM duckdb_tables() WHERE database_name = 'log')
"""

TOOLS = """
SELECT
    round_pk, count(*) AS tools, count(emitted_at) AS begun, count(result_at) AS ended,
    epoch_us(min(emitted_at)) AS begin_us, epoch_us(max(result_at)) AS end_us
FROM log.main.tool_calls GROUP BY round_pk
"""
NO_TOOLS = (
    "SELECT NULL AS round_pk, 0 AS tools, 0 AS begun, 0 AS ended, NULL AS begin_us, "
    "NULL AS end_us WHERE false"
)

# Sessions in the order in which they first come; a session's rounds as TraceLab's notes say.
ROUNDS = """
WITH tools AS ({tools}),
began AS (SELECT session_id, min(round_pk) AS first_pk FROM log.main.rounds GROUP BY session_id)
SELECT {columns}, tools, begun, ended, begin_us, end_us
FROM log.main.rounds AS round
LEFT JOIN began ON began.session_id IS NOT DISTINCT FROM round.session_id
LEFT JOIN tools ON tools.round_pk = round.round_pk
ORDER BY began.first_pk, round.session_id, round.round_index, round.round_pk
"""


def is_database(source: Source) -> bool:
    """Whether a file begins as DuckDB's do."""
    return source.head[MAGIC_OFFSET : MAGIC_OFFSET + len(MAGIC)] == MAGIC


def recognise(source: Source) -> str | None:
    """A DuckDB file with TraceLab's table, or one that cannot be opened to look for it."""
    if not is_database(source):
        return None
    try:
        with duckdb.connect(":memory:") as database:
            _attach(database, source.path)
            if set(NEEDED) <= set(_columns(database, "rounds")):
                return "DuckDB with a table rounds of session_id, round_index and token counts"
    except duckdb.Error:
        return "DuckDB"
    return None


def calls(source: Source, context: Context) -> Iterator[Call]:
    """The rounds of each session.

    Raises:
        TraceImportError: the database cannot be opened, or lacks the table or one of its columns.
    """
    tokenizers = Tokenizers(context.log)
    with scratch(context.work) as database, _readable(source.path):
        _attach(database, source.path)
        found = _columns(database, "rounds")
        missing = [name for name in NEEDED if name not in found]
        if missing:
            what = f"no table rounds with the column {missing[0]}" if found else "no table rounds"
            raise TraceImportError(what, where=str(source.path))
        names = [*NEEDED, *(name for name in OPTIONAL if name in found)]
        has_tools = {"round_pk", "emitted_at", "result_at"} <= set(_columns(database, "tool_calls"))
        query = ROUNDS.format(
            tools=TOOLS if has_tools else NO_TOOLS,
            columns=", ".join(f"round.{name}" for name in names),
        )
        context.progress.start(f"Reading {source.path.name}", None)
        for values in rows_of(database, query):
            row = dict(zip(names, values, strict=False))
            record = Record(row, f"{source.path}: round_pk {row['round_pk']}")
            tokenizers.add(record.text("model"))
            yield _call(record, _exec_s(values[len(names) :], context))


def _call(row: Record, took_s: float | None) -> Call:
    row.needed_count("round_index")
    depth, total = depth_and_total(row)
    return Call(
        task_id=row.needed_label("session_id"),
        where=row.where,
        depth=depth,
        total=total,
        output=row.count("output_tokens"),
        exec_s=took_s,
    )


def _exec_s(tools: tuple[object, ...], context: Context) -> float | None:
    """From the number of tools, how many have a begin and an end, the first begin, the last end."""
    number, begun, ended, begin_us, end_us = tools
    if not number:
        return None
    whole = begun == ended == number
    return exec_s([_time(begin_us)], [_time(end_us) if whole else None], context.log)


def _time(epoch_us: object) -> datetime | None:
    # Not fromtimestamp(): it refuses years that DuckDB can hold.
    if not isinstance(epoch_us, int):
        return None
    try:
        return datetime.fromtimestamp(epoch_us // 1_000_000, UTC).replace(
            microsecond=epoch_us % 1_000_000
        )
    except (ValueError, OverflowError, OSError):
        return None


def _attach(database: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Attach a file read-only as ``log``, and let nothing in it reach other files."""
    name = str(path.resolve()).replace("'", "''")
    database.execute(f"ATTACH '{name}' AS log (TYPE duckdb, READ_ONLY)")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


def _columns(database: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    """The columns of a table; none of a view, whose text could ask for anything."""
    rows = database.execute(COLUMNS, {"table": table}).fetchall()
    return [name for (name,) in rows]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        what = f"the database cannot be read: {first_line(error)}"
        raise TraceImportError(what, where=str(path)) from error
