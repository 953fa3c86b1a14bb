"""A temporary DuckDB for importers that sort or group more rows than the memory should hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from experiment.errors import TraceImportError

MEMORY_LIMIT = "512MB"
"""Of DuckDB's own buffers; what does not fit goes to files in the work folder."""

FETCH_ROWS = 10_000


@contextmanager
def scratch(work: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database in a file of ``work`` (an existing folder), closed at the end.

    Raises:
        TraceImportError: DuckDB failed, most likely because the disk is full.
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(work / "spill"),
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    try:
        with duckdb.connect(str(work / "scratch.duckdb"), config=settings) as database:
            yield database
    except duckdb.Error as error:
        raise TraceImportError(f"the temporary database failed: {first_line(error)}") from error


def rows_of(database: duckdb.DuckDBPyConnection, query: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a query, a few at a time."""
    found = database.execute(query)
    while rows := found.fetchmany(FETCH_ROWS):
        yield from rows


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
