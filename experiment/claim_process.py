"""Answers the queries of claims in a process of its own, which nothing but the answers leaves.

A query comes from whoever wrote the claims. DuckDB keeps it from files and from settings, the
limit on the address space from the machine's memory (DuckDB's own limit does not cover the text or
list that one function makes), and the parent ends a process that takes too long. Run as a file of
its own: ``claim_process.py DATABASE``, a JSON list of queries as its input; it prints a line of
JSON for each as soon as it is answered.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
from decimal import Decimal

import duckdb

MEMORY_MB = 1024
"""What DuckDB may take, so much as it counts."""

SPILL_MB = 4096
"""What it may put on the disk beyond that."""

SPACE_MB = 4096
"""Address space of the process; it maps 0.8 GB before it has any data."""


def answer(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, object]:
    """The ``value`` of a query, or what is wrong with it as ``error``."""
    try:
        found = connection.execute(query)
        columns, rows = len(found.description), found.fetchmany(2)
    except duckdb.Error as error:
        return {"error": str(error).strip().splitlines()[0]}
    if columns != 1 or len(rows) != 1:
        many = "more than one row" if len(rows) > 1 else f"{len(rows)} rows"
        return {"error": f"gives {many} of {columns} columns, not one number"}
    ((value,),) = rows
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return {"error": f"gives a {type(value).__name__}, not a number"}
    if isinstance(value, float) and not math.isfinite(value):
        return {"error": f"gives {value}, which is no figure"}
    return {"value": value}


def main(database: str) -> None:
    """Answer the queries on the standard input."""
    # Not every system lets a process limit its space; DuckDB's own limit holds on all.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (SPACE_MB << 20, SPACE_MB << 20))
    connection = duckdb.connect(
        database,
        read_only=True,
        config={
            "threads": "1",
            "memory_limit": f"{MEMORY_MB}MB",
            "max_temp_directory_size": f"{SPILL_MB}MB",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "enable_external_access": "false",
            "lock_configuration": "true",
        },
    )
    for query in json.load(sys.stdin):
        sys.stdout.write(json.dumps(answer(connection, query), allow_nan=False) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
