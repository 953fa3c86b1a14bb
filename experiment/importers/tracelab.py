"""TraceLab (uw-syfi) coding-agent rounds: sanitized JSONL, replay CSV, and the project's DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import duckdb
import numpy as np

from experiment.importers import tracelab_database
from experiment.importers.base import Call, Context, Source
from experiment.importers.fields import Cells, Record
from experiment.importers.lines import csv_rows, json_rows
from experiment.importers.probe import columns, first_rows, is_json
from experiment.importers.scratch import rows_of, scratch
from experiment.importers.tokenizers import Tokenizers
from experiment.importers.tracelab_rounds import depth_and_total, exec_s

JSON_FIELDS = {"session_id", "round_index"}
JSON_COUNTS = {"prefix_tokens", "newly_append_tokens", "input_tokens_total"}
CSV_COLUMNS = {"round_idx", "prefix_len", "input_len"}

BATCH_ROUNDS = 20_000
NONE = -1
"""In the temporary table: not known."""

TABLE = """
CREATE TABLE rounds (
    number BIGINT, line BIGINT, session BIGINT, round BIGINT,
    depth BIGINT, total BIGINT, output BIGINT, exec_us BIGINT
)
"""
# Sessions are numbered as they first come. Neither id is unique: the file's order decides then.
SORTED = """
SELECT session, line, depth, total, output, exec_us FROM rounds ORDER BY session, round, number
"""


@dataclass(frozen=True, slots=True)
class _Round:
    """A row of the log; None is what it does not tell."""

    where: str
    session: str
    index: int
    depth: int | None
    total: int
    output: int | None
    exec_s: float | None


class TraceLabImporter:
    """A session is a task; its steps are its rounds by index, those of one index in file order."""

    name = "tracelab"
    what = "TraceLab rounds (JSONL, replay CSV, DuckDB)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """Rounds in JSON Lines, a replay workload in CSV, or a DuckDB with a table of rounds."""
        rows = first_rows(source)
        if rows and rows[0].keys() >= JSON_FIELDS and rows[0].keys() & JSON_COUNTS:
            return "JSON Lines with session_id, round_index and token counts of rounds"
        names = set(columns(source))
        if names >= CSV_COLUMNS and names & {"session_id", "id"}:
            return "CSV with round_idx, prefix_len and input_len"
        return tracelab_database.recognise(source)

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """The rounds of each session, after the whole file was read.

        What grows with the input is an entry a session; the rounds are sorted on disk.
        """
        if tracelab_database.is_database(source):
            yield from tracelab_database.calls(source, context)
            return
        rounds = _json_rounds(source, context) if is_json(source) else _replay(source, context)
        with scratch(context.work) as database:
            database.execute(TABLE)
            sessions = _store(database, rounds)
            context.progress.start("Sorting the rounds", None)
            for session, line, *figures in rows_of(database, SORTED):
                depth, total, output, exec_us = (
                    None if figure == NONE else figure for figure in figures
                )
                yield Call(
                    task_id=sessions[session],
                    where=f"{source.path}:{line}",
                    depth=depth,
                    total=total,
                    output=output,
                    exec_s=None if exec_us is None else exec_us / 1e6,
                )


def _json_rounds(source: Source, context: Context) -> Iterator[_Round]:
    tokenizers = Tokenizers(context.log)
    for row in json_rows(source.path, context.progress):
        tokenizers.add(row.text("model"))
        yield _json_round(row, context)


def _json_round(row: Record, context: Context) -> _Round:
    depth, total = depth_and_total(row)
    tools = row.each("tools")
    begins = [tool.time("emitted_at") for tool in tools]
    ends = [tool.time("result_at") for tool in tools]
    return _Round(
        where=row.where,
        session=row.needed_label("session_id"),
        index=row.needed_count("round_index"),
        depth=depth,
        total=total,
        output=row.count("output_tokens"),
        exec_s=exec_s(begins, ends, context.log),
    )


def _replay(source: Source, context: Context) -> Iterator[_Round]:
    for row in csv_rows(source.path, context.progress):
        yield _replay_round(row)


def _replay_round(row: Cells) -> _Round:
    depth, new = row.count("prefix_len"), row.needed_count("input_len")
    if depth is None:
        # input_len is what is new; without the other, T is not known either.
        raise row.missing("prefix_len")
    return _Round(
        where=row.where,
        session=row.needed_label("session_id" if "session_id" in row.members else "id"),
        index=row.needed_count("round_idx"),
        depth=depth,
        total=depth + new,
        output=row.count("output_len"),
        exec_s=row.seconds("tool_wait_after_ms", per_second=1000),
    )


def _store(database: duckdb.DuckDBPyConnection, rounds: Iterator[_Round]) -> list[str]:
    """Fill the table; gives the sessions' names by the numbers that it has for them."""
    sessions: dict[str, int] = {}
    number = 0
    while batch := list(islice(rounds, BATCH_ROUNDS)):
        rows = np.array(
            [
                (
                    number + offset,
                    int(read.where.rpartition(":")[2]),
                    sessions.setdefault(read.session, len(sessions)),
                    read.index,
                    NONE if read.depth is None else read.depth,
                    read.total,
                    NONE if read.output is None else read.output,
                    NONE if read.exec_s is None else round(read.exec_s * 1e6),
                )
                for offset, read in enumerate(batch)
            ],
            dtype=np.int64,
        )
        database.register("batch", {f"c{i}": rows[:, i].copy() for i in range(rows.shape[1])})
        database.execute("INSERT INTO rounds SELECT * FROM batch")
        database.unregister("batch")
        number += len(batch)
    return list(sessions)


IMPORTER = TraceLabImporter()
