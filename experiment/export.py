"""A run as files for other programs: its tables as Parquet and CSV, its steps as JSON lines.

The same run gives the same bytes: rows are sorted by all their columns (steps by their line in the
trace) and written by one thread. CSV holds every text as it is: one that begins with ``=``, ``+``,
``-`` or ``@`` is data here, but a formula to a spreadsheet that opens the file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import duckdb

from experiment.copied import copied, limit_memory, quoted
from experiment.database import DATABASE, connect, find_run_id
from experiment.errors import ExportError
from experiment.reader import SHARED_VIEWS, STEP_KEY, Reader

Form = Literal["parquet", "csv", "jsonl"]
FORMATS: tuple[Form, ...] = ("parquet", "csv", "jsonl")

VIEWS = ("step_comparison", "run_comparison", "depth_comparison", "task_wall", "run_stability")
"""The views that are written beside every table."""

STEPS = "steps.jsonl"

_OPTIONS = {"parquet": "FORMAT parquet, COMPRESSION zstd", "csv": "FORMAT csv, HEADER"}

# A step is what most of its answers without a figure were: refused before invalid before failed.
_STEPS = f"""
WITH unmeasured AS (
    SELECT
        run_id, task_id, step,
        arg_min(status, (place, -round)) AS status,
        arg_min(error, (place, -round)) AS error
    FROM (
        SELECT m.*, list_position(['refused', 'invalid', 'failed'], m.status) AS place
        FROM measurement AS m JOIN step AS s USING ({STEP_KEY})
        WHERE m.variant = CASE WHEN s.depth = 0 THEN 'full' ELSE 'fake' END
    )
    WHERE place > 0
    GROUP BY run_id, task_id, step
)
SELECT
    c.task_id, c.step, c.depth, c.new_tokens,
    o.prefill_ms / 1000 AS measured_opt_prefill_s,
    t.fake_low / 1000 AS measured_opt_prefill_s_low,
    t.fake_high / 1000 AS measured_opt_prefill_s_high,
    coalesce(o.n, 0) AS n,
    c.restored_prefill_ms / 1000 AS restored_prefill_s,
    c.full_prefill_ms / 1000 AS full_prefill_s,
    c.arithmetic_prefill_ms / 1000 AS arithmetic_prefill_s,
    c.fake_install_ms / 1000 AS install_s,
    o.encode_ms / 1000 AS encode_s,
    CASE
        WHEN o.n > 0 THEN 'measured'
        WHEN c.left_out IS NOT NULL THEN 'left_out'
        WHEN u.status IN ('refused', 'invalid') THEN u.status
        ELSE 'missing'
    END AS status,
    CASE WHEN o.n IS NULL THEN coalesce(c.left_out, u.error, 'not measured') END AS reason
FROM step_comparison AS c
LEFT JOIN (FROM step_time WHERE variant = 'fake') AS o USING ({STEP_KEY})
LEFT JOIN fake_bounds AS t USING ({STEP_KEY})
LEFT JOIN unmeasured AS u USING ({STEP_KEY})
ORDER BY c.line, c.task_id, c.step
"""


def export(folder: Path, to: Path, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
    """Write the run in ``folder`` as files into the folder ``to`` and return their paths.

    Args:
        folder: of the results; its database is only read.
        to: is made if there is none. Files of the same names are replaced, each in one step, once
            all are written; others are left alone.
        formats: ``parquet`` and ``csv``: a file a table of ``schemas/results.sql`` and a view of
            `VIEWS`. ``jsonl``: ``steps.jsonl``, an object a step with times in seconds.
            ``measured_opt_prefill_s`` is the median prefill of only the new tokens behind a
            fabricated prefix, or of the whole prompt where nothing was cached (L = 0), image
            encoding included, install left out; its interval is a 95 % bootstrap interval of ``n``
            rounds. ``status`` is ``measured``, ``left_out``, ``refused``, ``invalid`` or
            ``missing``, with the reason where there is no figure. A figure that was not measured is
            null.

    Raises:
        StoreError: there is no database, another process writes it, or it holds no run.
        ExportError: a format is unknown, or the files cannot be written.
    """
    wanted = [_form(name) for name in dict.fromkeys(formats)]
    try:
        to.mkdir(parents=True, exist_ok=True)
        with copied(folder) as copy, tempfile.TemporaryDirectory(prefix=".export-", dir=to) as made:
            targets = tuple(to / name for name in _write(copy, Path(made), wanted))
            for target in targets:
                if target.is_dir():
                    raise ExportError("is a folder, not a file to replace", where=str(target))
            for target in targets:
                Path(made, target.name).replace(target)
    except (OSError, duckdb.Error) as error:
        told = error.strerror if isinstance(error, OSError) else str(error).strip().splitlines()[0]
        raise ExportError(
            f"the files cannot be written: {told}",
            where=str(to),
            hint="name a folder that can be written, with room for the files",
        ) from error
    return targets


def _form(name: str) -> Form:
    for form in FORMATS:
        if form == name:
            return form
    raise ExportError(f"there is no format {name!r}", hint=f"choose from {', '.join(FORMATS)}")


def _write(copy: Path, made: Path, forms: Sequence[Form]) -> list[str]:
    """Write the files of ``forms`` into the folder ``made``; their names."""
    database = copy / DATABASE
    with connect(database, read_only=True) as connection:
        connection.execute("SET threads = 1")
        limit_memory(connection)
        queries: dict[str, tuple[str, str]] = {}
        for form in forms:
            if form == "jsonl":
                _add_bounds(connection, database)
                queries[STEPS] = (_STEPS, "FORMAT json")
            else:
                queries |= {
                    f"{table}.{form}": (_rows(connection, table), _OPTIONS[form])
                    for table in _tables(connection)
                }
        for name, (query, options) in queries.items():
            connection.execute(f"COPY ({query}) TO {quoted(str(made / name))} ({options})")
    return list(queries)


def _add_bounds(connection: duckdb.DuckDBPyConnection, database: Path) -> None:
    """Make the table of the steps' intervals."""
    Reader(connection, database.parent, find_run_id(connection, database)).add_bounds(
        "fake_bounds",
        # At L = 0, where there is no prefix to fabricate, that is what `full` measures.
        f"(SELECT m.* FROM measurement AS m JOIN step AS s USING ({STEP_KEY}) "
        "WHERE m.status = 'ok' "
        "AND m.variant = CASE WHEN s.depth = 0 THEN 'full' ELSE 'fake' END)",
        STEP_KEY,
        {"fake": "prefill_ms"},
    )


def _tables(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """What is written: every table, and of the views some."""
    found = connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary")
    return sorted(({name for (name,) in found.fetchall()} - SHARED_VIEWS) | set(VIEWS))


def _rows(connection: duckdb.DuckDBPyConnection, table: str) -> str:
    """The query for all rows. Sums of integers are narrowed: Parquet would make them DOUBLE."""
    columns = connection.execute(f"DESCRIBE {table}").fetchall()
    narrow = ", ".join(f"{n}::BIGINT AS {n}" for n, kind, *_ in columns if kind == "HUGEINT")
    return f"SELECT *{f' REPLACE ({narrow})' if narrow else ''} FROM {table} ORDER BY ALL"
