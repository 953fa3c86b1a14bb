"""The last look at everything that is to be packed: is anything private in it after all?"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import duckdb

from experiment import handoff_image
from experiment.database import explain
from experiment.errors import HandoffError
from experiment.scrub import Leak, Scrubber

_PIECE_BYTES = 1 << 20
_OVERLAP_BYTES = 1 << 10
_FETCHED_ROWS = 1000

_RUN_AGAIN = "take it out of {} and run again: what is packed is what the run was made with"
# Why a file cannot be changed, by the beginning of its path in the archive, and what to do then.
_FIXED = {
    "repository/": _RUN_AGAIN.format("the file, commit"),
    "results/git_diff.patch": _RUN_AGAIN.format("patches/, commit"),
    "source/": _RUN_AGAIN.format("the llama.cpp checkout"),
    "image/": "the image cannot be changed: pack without --with-image",
}
_TRACE = "the trace and its pictures cannot be changed, their digests stand in the run: {}".format(
    "take it out of the trace and run again"
)
_RESULTS = ("results.duckdb", "host.json", "build.json", "graph.json", "sweep.json", "raw/")
_FOREIGN = ("repository/", "source/", "image/")
"""What was not made on this machine, or only from what was: a host name means something else."""


def check(files: Mapping[str, Path | bytes], scrubber: Scrubber) -> None:
    """Look for private paths, users' names in paths and host names in all that is to be packed.

    Args:
        files: contents by their path in the archive.
        scrubber: knows what is private.

    Raises:
        HandoffError: something is there; names the file and line, and says what to do.
    """
    for name, content in files.items():
        if leak := scrubber.leak(name, hosts=False):
            raise _error(leak, f"the name of {name}", name)
        hosts = not name.startswith(_FOREIGN)
        for where, text in _texts(name, content):
            if leak := scrubber.leak(text, hosts=hosts):
                raise _error(leak, _place(where, text, leak.start), name)


def _error(leak: Leak, where: str, name: str) -> HandoffError:
    return HandoffError(f"{leak.what} is still there", where=where, hint=_hint(leak, name))


def _hint(leak: Leak, name: str) -> str:
    for start, advice in _FIXED.items():
        if name.startswith(start):
            return advice
    made = not name.startswith("results/") or name.removeprefix("results/").startswith(_RESULTS)
    if leak.is_host and made:
        return "--with-host-name lets host names stay"
    if not made:
        return _TRACE
    return "nobody but you can tell how it came there: run again from another folder, or report it"


def _place(where: tuple[str, int | None], text: str, start: int) -> str:
    name, lines_before = where
    if lines_before is None:
        return name
    return f"{name}, line {lines_before + text.count(chr(10), 0, start) + 1}"


def _texts(name: str, content: Path | bytes) -> Iterator[tuple[tuple[str, int | None], str]]:
    """Pieces of a file: where from, with the number of lines before it if that says anything."""
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
        for lines, text in _pieces(stream):
            yield (name, lines), text
    if isinstance(content, bytes):
        return
    # What is compressed is looked into as well.
    if content.suffix in (".duckdb", ".parquet"):
        for column, text in _values(content):
            yield (f"{name}, {column}", None), text
    if name == "image/image.tar":
        with handoff_image.layers(content) as layers:
            for layer, unpacked in layers:
                for _, text in _pieces(unpacked):
                    yield (f"{name}, {layer}", None), text


def _pieces(stream: IO[bytes]) -> Iterator[tuple[int | None, str]]:
    """The stream as pieces of whole lines, each with the number of lines before it.

    Of a line that does not end, the pieces overlap. What holds a zero byte has no lines to tell.
    """
    lines: int | None = 0
    rest = b""
    while chunk := stream.read(_PIECE_BYTES):
        data = rest + chunk
        if b"\0" in data:
            lines = None
        end = data.rfind(b"\n") + 1
        if end:
            piece, rest = data[:end], data[end:]
        else:
            piece, rest = data, data[-_OVERLAP_BYTES:]
        yield lines, piece.decode("utf-8", "surrogateescape")
        if lines is not None:
            lines += piece.count(b"\n")
    if rest:
        yield lines, rest.decode("utf-8", "surrogateescape")


def _values(path: Path) -> Iterator[tuple[str, str]]:
    """All texts of a database or Parquet file, each once: the column, and a number of them."""
    quoted = str(path).replace("'", "''")
    with contextlib.closing(duckdb.connect()) as connection:
        try:
            if path.suffix == ".parquet":
                connection.execute(f"CREATE VIEW parquet AS FROM read_parquet('{quoted}')")
            else:
                connection.execute(f"ATTACH '{quoted}' AS packed (READ_ONLY)")
                connection.execute("USE packed")
            columns = connection.execute(
                "SELECT table_name, column_name FROM information_schema.columns "
                "JOIN information_schema.tables USING (table_catalog, table_schema, table_name) "
                "WHERE table_catalog = current_database() "
                "AND (table_type = 'BASE TABLE' OR table_name = 'parquet') "
                "AND (data_type LIKE 'VARCHAR%' OR data_type = 'JSON') "
                "ORDER BY table_name, ordinal_position"
            ).fetchall()
            for table, column in columns:
                found = connection.execute(
                    f'SELECT DISTINCT "{column}"::VARCHAR FROM "{table}" '
                    f'WHERE "{column}" IS NOT NULL'
                )
                while rows := found.fetchmany(_FETCHED_ROWS):
                    yield f"{table}.{column}", "\n".join(value for (value,) in rows)
        except duckdb.Error as error:
            told = explain(error, path)
            raise HandoffError(told.what, where=told.where, hint=told.hint) from error
