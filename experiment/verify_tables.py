"""Whether a database and its exports are what this program makes: tables, views, steps, files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb

from experiment.archive_manifest import Manifest
from experiment.claim_file import SAME
from experiment.copied import quoted
from experiment.database import DATABASE, SCHEMA, SCHEMA_VERSION, explain
from experiment.errors import ArchiveError
from experiment.export import STEPS, VIEWS, export
from experiment.trace import Trace

# Everything that a database may hold besides rows, and that could answer in place of a table.
_OBJECTS = {
    "table": "SELECT table_name, sql FROM duckdb_tables() WHERE NOT internal",
    "view": "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal",
    "macro": "SELECT function_name, macro_definition FROM duckdb_functions() WHERE NOT internal",
    "index": "SELECT index_name, sql FROM duckdb_indexes()",
    "sequence": "SELECT sequence_name, sql FROM duckdb_sequences()",
    "type": "SELECT type_name, logical_type FROM duckdb_types() WHERE NOT internal",
    "schema": "SELECT schema_name, sql FROM duckdb_schemas() WHERE NOT internal",
    "trigger": "SELECT trigger_name, sql FROM duckdb_triggers()",
}

# A row of `step` is the trace's but for this: what the tokenizer has counted, what was left out.
_NOT_IN_TRACE = ("new_text_tokens", "left_out", "stratum")


def connect(database: Path, *readable: Path) -> duckdb.DuckDBPyConnection:
    """Open a database that may be anything, so that nothing in it reaches other files.

    Args:
        database: opened read-only.
        readable: folders whose files queries may read.

    Raises:
        StoreError: it cannot be opened.
    """
    try:
        connection = duckdb.connect(
            str(database),
            read_only=True,
            config={
                "autoload_known_extensions": "false",
                "autoinstall_known_extensions": "false",
                "threads": "1",
            },
        )
    except duckdb.Error as error:
        raise explain(error, database) from error
    folders = ", ".join(quoted(str(folder)) for folder in readable)
    connection.execute(f"SET allowed_directories = [{folders}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def tables(database: Path, manifest: Manifest) -> str:
    """Check that a database is whole, holds the manifest's run alone, and has no other tables.

    Returns:
        what was checked, as a sentence.

    Raises:
        ArchiveError: it is not; names the object.
        StoreError: it cannot be read.
    """
    if manifest.schema_version != SCHEMA_VERSION:
        raise ArchiveError(
            f"schema_version is {manifest.schema_version}, this program reads {SCHEMA_VERSION}; "
            "the program in repository/ reads it"
        )
    log = database.with_name(f"{DATABASE}.wal")
    if log.exists():
        raise ArchiveError("a write-ahead log lies beside the database", where=log.name)
    with connect(database) as connection:
        try:
            for kind in _OBJECTS:
                if kind != "view":
                    _compare_objects(connection, kind)
            _check_run(connection, manifest)
            counts = dict(_row_counts(connection))
        except duckdb.Error as error:
            raise explain(error, database) from error
    return f"{len(counts)} tables as this program makes them, {sum(counts.values()):,} rows, no log"


def views(database: Path) -> str:
    """Check that the stored views are those of ``schemas/results.sql``.

    Raises:
        ArchiveError: one is not.
    """
    with connect(database) as connection:
        count = _compare_objects(connection, "view")
    return f"{count} views have the text that this program stores"


def steps(connection: duckdb.DuckDBPyConnection, trace: Trace) -> str:
    """Check the digest of the trace and that the step table is what it says.

    Args:
        connection: holds one run.
        trace: the archive's.

    Raises:
        ArchiveError: a step is another one.
    """
    ((digest,),) = connection.execute("SELECT trace_digest FROM run").fetchall()
    if digest != trace.sha256:
        raise ArchiveError(f"its sha256 is {trace.sha256}, the run was made with {digest}")
    wanted = {(step.task_id, step.step): step for step in trace.steps}
    found = connection.execute("SELECT * EXCLUDE (run_id) FROM step ORDER BY ALL")
    columns = [column[0] for column in found.description]
    rows = [dict(zip(columns, row, strict=True)) for row in found.fetchall()]
    for row in rows:
        step = wanted.pop((row["task_id"], row["step"]), None)
        what = f"step {row['task_id']}/{row['step']}"
        if step is None:
            raise ArchiveError(f"{what} is in the table, but not in the trace")
        shot = step.screenshot
        said = {
            "task_id": step.task_id,
            "step": step.step,
            "line": step.line,
            "depth": step.depth,
            "depth_unit": step.depth_unit,
            "new_text": step.new_text,
            "image_width": shot.width if shot else None,
            "image_height": shot.height if shot else None,
            "baseline_prefill_s": step.baseline.prefill_s,
            "baseline_decode_s": step.baseline.decode_s,
            "baseline_exec_s": step.baseline.exec_s,
        }
        for column in columns:
            if column not in _NOT_IN_TRACE and row[column] != said[column]:
                raise ArchiveError(
                    f"{what}: {column} is {row[column]!r:.80} in the table, "
                    f"{said[column]!r:.80} in the trace"
                )
    for task_id, number in wanted:
        raise ArchiveError(f"step {task_id}/{number} is in the trace, but not in the table")
    return f"{len(rows):,} steps are those of trace.jsonl, which is the one the run was made with"


def graph(connection: duckdb.DuckDBPyConnection, record: Mapping[str, Any]) -> str:
    """Check that the table ``graph`` is what ``graph.json`` says."""
    rows: dict[str, str] = dict(connection.execute("SELECT key, value FROM graph").fetchall())
    said = {
        key: json.dumps(value) if isinstance(value, bool) else str(value)
        for key, value in record.items()
    }
    for key in sorted(rows.keys() | said.keys()):
        if rows.get(key) != said.get(key):
            raise ArchiveError(
                f"{key} is {rows.get(key)!r:.80} in the table, {said.get(key)!r:.80} in graph.json"
            )
    return f"{len(rows)} values are those of graph.json"


def exports(connection: duckdb.DuckDBPyConnection, folder: Path, results: Path, work: Path) -> str:
    """Check that the exported files hold what the database does.

    Args:
        connection: holds the run's rows and today's views, and may read ``folder``.
        folder: of the exported files.
        results: the folder of the run.
        work: an empty folder for files that are made anew.

    Raises:
        ArchiveError: a file is missing, is none of an export, or holds something else.
    """
    stored = [name for name, _ in _row_counts(connection)]
    wanted = {f"{name}.parquet" for name in (*stored, *VIEWS)} | {STEPS}
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    for name in sorted(wanted ^ there):
        problem = "is missing" if name in wanted else "is none of an export"
        raise ArchiveError(f"{name} {problem}")
    for name in sorted({*stored, *VIEWS}):
        try:
            _compare_parquet(connection, name, folder / f"{name}.parquet", name in VIEWS)
        except duckdb.Error as error:
            told = str(error).strip().splitlines()[0]
            raise ArchiveError(f"{name}.parquet cannot be read: {told}") from error
    (made,) = export(results, work, ("jsonl",))
    _compare_lines(made, folder / STEPS)
    return f"{len(wanted)} files hold what the database does"


def close(one: Any, other: Any) -> bool:
    """Whether two values are the same, figures but for what sums in another order make of them."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=SAME, abs_tol=SAME)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return bool(one == other)


def _compare_objects(connection: duckdb.DuckDBPyConnection, kind: str) -> int:
    found, wanted = _objects(connection, kind), _fresh_objects(kind)
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise ArchiveError(f"the {kind} {name} is missing")
        if name not in wanted:
            raise ArchiveError(f"the {kind} {name} is none of this program's")
        if found[name] != wanted[name]:
            raise ArchiveError(f"the {kind} {name} is not the one that this program makes")
    return len(wanted)


def _objects(connection: duckdb.DuckDBPyConnection, kind: str) -> dict[str, str]:
    # DuckDB keeps the names of an EXCLUDE in no order: each time a view is stored, it is another.
    return {
        name: re.sub(
            r"EXCLUDE \(([^()]*)\)", lambda names: str(sorted(names[1].split(", "))), str(text)
        )
        for name, text in connection.execute(_OBJECTS[kind]).fetchall()
    }


@lru_cache
def _fresh_objects(kind: str) -> Mapping[str, str]:
    """Those that this program makes."""
    with duckdb.connect() as fresh:
        fresh.execute(SCHEMA.read_text(encoding="utf-8"))
        return _objects(fresh, kind)


def _check_run(connection: duckdb.DuckDBPyConnection, manifest: Manifest) -> None:
    runs = connection.execute("SELECT id, schema_version, status, finished FROM run").fetchall()
    if len(runs) != 1:
        raise ArchiveError(f"the database holds {len(runs)} runs, not one")
    ((run_id, version, status, finished),) = runs
    facts = {
        "run_id": (run_id, manifest.run_id),
        "schema_version": (version, manifest.schema_version),
        "finished": (finished and f"{finished:%Y-%m-%dT%H:%M:%SZ}", manifest.created),
    }
    for name, (found, listed) in facts.items():
        if found != listed:
            raise ArchiveError(f"{name} is {found!r:.80}, the manifest says {listed!r:.80}")
    if status != "finished":
        raise ArchiveError(f"the run is {status}, not finished")
    for table, rows in _row_counts(connection):
        if table == "run":
            continue
        ((own,),) = connection.execute(
            f"SELECT count(*) FROM {table} WHERE run_id = ?", [run_id]
        ).fetchall()
        if own != rows:
            raise ArchiveError(f"the table {table} has {rows - own:,} rows of another run")


def _row_counts(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, int]]:
    """Each table of the schema and its rows."""
    for name in sorted(_fresh_objects("table")):
        ((rows,),) = connection.execute(f"SELECT count(*) FROM {name}").fetchall()
        yield name, rows


def _compare_parquet(
    connection: duckdb.DuckDBPyConnection, name: str, path: Path, computed: bool
) -> None:
    file = f"read_parquet({quoted(str(path))})"
    columns = [connection.execute(f"DESCRIBE FROM {of}").fetchall() for of in (name, file)]
    # Parquet has no type for the sum of whole numbers, which a view may have.
    compared = slice(1) if computed else slice(2)
    if [row[compared] for row in columns[0]] != [row[compared] for row in columns[1]]:
        raise ArchiveError(f"{path.name} has other columns than {name}")
    if computed:
        # A sum in another order has other last digits; views have few rows, and keys lead them.
        found = [connection.execute(f"FROM {of} ORDER BY ALL").fetchall() for of in (file, name)]
        different = not close(found[0], found[1])
    else:
        different = any(
            connection.execute(
                f"SELECT count(*) FROM ((FROM {one}) EXCEPT ALL (FROM {other}))"
            ).fetchall()[0][0]
            for one, other in ((file, name), (name, file))
        )
    if different:
        raise ArchiveError(f"{path.name} holds other rows than {name} in the database")


def _compare_lines(made: Path, found: Path) -> None:
    one, other = made.read_bytes().splitlines(), found.read_bytes().splitlines()
    for number, (wanted, line) in enumerate(zip(one, other, strict=False), 1):
        if wanted != line and not close(_parsed(wanted), _parsed(line)):
            raise ArchiveError(f"{found.name}, line {number} is not what the database gives")
    if len(one) != len(other):
        raise ArchiveError(f"{found.name} has {len(other):,} lines for {len(one):,} steps")


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line
