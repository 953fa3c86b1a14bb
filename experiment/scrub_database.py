"""A run's database written anew without what is private; the same run gives the same bytes.

A DuckDB file has one thing in it that is random: 16 bytes that identify it, in the first of its
header blocks, under a checksum (``duckdb/src/storage/single_file_block_manager.cpp``). They are
replaced by a digest of the file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import duckdb

from experiment.database import DATABASE, SCHEMA, connect, explain
from experiment.errors import HandoffError, StoreError
from experiment.scrub import Scrubber, strings

_HEADER_BYTES = 4096
_CHECKSUM_BYTES = 8
_CHUNK_BYTES = 1 << 20
_MAGIC = slice(8, 12)
_LIBRARY = slice(52, 116)
"""Version and commit of the DuckDB that wrote the file."""
_ID = slice(124, 140)


def write(source: Path, target: Path, scrubber: Scrubber) -> None:
    """Copy the database ``source`` to ``target``, tables by the schema of today.

    Args:
        source: read only.
        target: a new file; it has to be called `DATABASE`, since that name is in its bytes.
        scrubber: what is replaced in run ids, host names, settings, messages and errors.

    Raises:
        HandoffError: the source cannot be read, is in use or lacks columns, or the file that this
            DuckDB writes is not built as it should be.
    """
    if target.name != DATABASE:
        raise ValueError(f"{target} is not called {DATABASE}")
    try:
        with connect(target, read_only=False) as connection:
            _fill(connection, source, scrubber)
        _fix(target)
        with connect(target, read_only=True) as connection:
            connection.execute("SELECT count(*) FROM run JOIN measurement ON run_id = id")
    except StoreError as error:
        raise HandoffError(error.what, where=error.where, hint=error.hint) from error
    except duckdb.Error as error:
        told = explain(error, source)
        raise HandoffError(told.what, where=told.where, hint=told.hint) from error


def _fill(connection: duckdb.DuckDBPyConnection, source: Path, scrubber: Scrubber) -> None:
    # One thread, all at once, in order: anything else may lay the blocks out differently.
    connection.execute("SET threads = 1")
    quoted = str(source).replace("'", "''")
    connection.execute(f"ATTACH '{quoted}' AS source (READ_ONLY)")
    connection.execute("BEGIN")
    connection.execute(SCHEMA.read_text(encoding="utf-8"))
    columns = connection.execute(
        "SELECT table_name, list(column_name ORDER BY ordinal_position) "
        "FROM information_schema.columns JOIN information_schema.tables "
        "USING (table_catalog, table_schema, table_name) "
        "WHERE table_catalog = current_database() AND table_type = 'BASE TABLE' "
        "AND is_generated = 'NEVER' GROUP BY table_name ORDER BY table_name"
    ).fetchall()
    for table, names in columns:
        values = ", ".join(_value(connection, table, name, scrubber) for name in names)
        connection.execute(
            f"INSERT INTO {table} ({', '.join(names)}) "
            f"SELECT {values} FROM source.{table} AS t ORDER BY ALL"
        )
    connection.execute("COMMIT")
    connection.execute("DETACH source")
    connection.execute("CHECKPOINT")


def _value(
    connection: duckdb.DuckDBPyConnection, table: str, column: str, scrubber: Scrubber
) -> str:
    """The SQL expression of a column; what has changed in it is looked up in a table."""
    change = _change(table, column, scrubber)
    if change is None:
        return f"t.{column}"
    found = connection.execute(
        f"SELECT DISTINCT {column} FROM source.{table} WHERE {column} IS NOT NULL"
    ).fetchall()
    changed = [(old, new) for (old,) in found if (new := change(old)) != old]
    if not changed:
        return f"t.{column}"
    names = f"scrubbed_{table}_{column}"
    connection.execute(f"CREATE TEMP TABLE {names} (old VARCHAR, new VARCHAR)")
    connection.executemany(f"INSERT INTO {names} VALUES (?, ?)", changed)
    return f"coalesce((SELECT new FROM {names} WHERE old = t.{column}), t.{column})"


def _change(table: str, column: str, scrubber: Scrubber) -> Callable[[str], str] | None:
    match table, column:
        case ("run", "id") | (_, "run_id"):
            return scrubber.run_id
        case "run", "settings":
            return lambda text: _settings(text, scrubber)
        case "host", "hostname":
            return scrubber.host
        case "graph", "value":
            return scrubber.paths
        case ("event", "message") | ("measurement", "error"):
            return scrubber.words
    return None


def _settings(text: str, scrubber: Scrubber) -> str:
    values = json.loads(text)
    scrubbed = strings(values, scrubber.paths)
    return text if scrubbed == values else json.dumps(scrubbed)


def _fix(database: Path) -> None:
    """Put a digest of the file in the place of its random identifier.

    Raises:
        HandoffError: the header is not the one that is known here; the file stays as it is.
    """
    with database.open("rb") as file:
        header = bytearray(file.read(_HEADER_BYTES))
    rest = header[_LIBRARY.stop : _ID.start] + header[_ID.stop :]
    if (
        len(header) != _HEADER_BYTES
        or bytes(header[_MAGIC]) != b"DUCK"
        or not any(header[_ID])
        or any(rest)
        or header[:_CHECKSUM_BYTES] != _checksum(header)
    ):
        raise HandoffError(
            f"DuckDB {duckdb.__version__} writes another header than is known here, so the "
            "database would have other bytes each time",
            where=str(database),
            hint="use the version of duckdb in requirements/run.txt",
        )
    header[:_CHECKSUM_BYTES] = bytes(_CHECKSUM_BYTES)
    header[_ID] = bytes(16)
    digest = hashlib.sha256(header)
    with database.open("r+b") as file:
        file.seek(_HEADER_BYTES)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        header[_ID] = digest.digest()[:16]
        header[:_CHECKSUM_BYTES] = _checksum(header)
        file.seek(0)
        file.write(header)


def _checksum(block: bytes | bytearray) -> bytes:
    """DuckDB's checksum of a block, which stands in its first 8 bytes.

    ``duckdb/src/common/checksum.cpp``: 5381, xor each word times a constant.
    """
    result = 5381
    for (word,) in struct.iter_unpack("<Q", block[_CHECKSUM_BYTES:]):
        result ^= word * 0xBF58476D1CE4E5B9 % (1 << 64)
    return result.to_bytes(_CHECKSUM_BYTES, "little")
