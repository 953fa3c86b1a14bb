"""How ``results.duckdb`` is opened, by writers and readers alike, and what may be wrong with it."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import duckdb

from experiment.errors import StoreError
from experiment.paths import ROOT

DATABASE = "results.duckdb"
SCHEMA = ROOT / "schemas" / "results.sql"
SCHEMA_VERSION = 3

# DuckDB 2 writes its newest format into a new file unless told otherwise, and 1.4 cannot open that.
STORAGE_VERSION = "v1.4.0"


_IN_USE = ("onflicting lock", "same database file", "file handle conflict")


class DatabaseInUse(StoreError):
    """Another connection writes the database."""


def connect(
    database: Path, *, read_only: bool, memory_mb: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Open ``database``; a writable connection makes the file if there is none.

    Args:
        database: the file.
        read_only: whether nothing is going to be written.
        memory_mb: what DuckDB may take; None = most of what the machine has.

    Raises:
        DatabaseInUse: another connection holds it.
        StoreError: it is not a DuckDB file, or cannot be read.
    """
    config: dict[str, str | bool | int | float | list[str]] = {}
    if not read_only:
        config["storage_compatibility_version"] = STORAGE_VERSION
    if memory_mb is not None:
        config["memory_limit"] = f"{memory_mb}MB"
    try:
        return duckdb.connect(str(database), read_only=read_only, config=config)
    except duckdb.Error as error:
        raise explain(error, database) from error


def explain(error: duckdb.Error, database: Path) -> StoreError:
    """Put what DuckDB says into a sentence that names the file and the next step."""
    text = str(error).strip().splitlines()[0]
    if any(words in text for words in _IN_USE):
        holder = re.search(r"\(PID (\d+)\)", text)
        who = f"process {holder[1]}" if holder else "another connection of this process"
        return DatabaseInUse(
            f"the database is in use by {who}",
            where=str(database),
            hint="DuckDB admits one writer and no reader beside it: wait until that run has ended",
        )
    if os.strerror(errno.ENOSPC) in text:
        return StoreError(
            "there is no space left to write the database",
            where=str(database),
            hint="nothing that was recorded is lost: make room, then `invoke run --resume NAME`",
        )
    return StoreError(text, where=str(database))


def find_run_id(
    connection: duckdb.DuckDBPyConnection, database: Path, run_id: str | None = None
) -> str:
    """The id of the wanted run, or of the one that was started last.

    Raises:
        StoreError: there is no such run, or the tables are not those of this ``SCHEMA_VERSION``.
    """
    try:
        runs = connection.execute(
            "SELECT id, schema_version FROM run ORDER BY started, id"
        ).fetchall()
    except duckdb.Error as error:
        raise StoreError(
            "this is not a database of results: it has no table of runs",
            where=str(database),
            hint="name a results folder that a run has written",
        ) from error
    wanted = [run for run in runs if run_id is None or run[0] == run_id]
    if not wanted:
        raise StoreError(
            f"there is no run {run_id!r}" if run_id else "the database holds no run",
            where=str(database),
            hint=f"it holds {', '.join(run[0] for run in runs)}" if runs else None,
        )
    found, version = wanted[-1]
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"the results have schema version {version}, this program reads {SCHEMA_VERSION}",
            where=str(database),
            hint="use the commit that host.json beside it names",
        )
    return str(found)
