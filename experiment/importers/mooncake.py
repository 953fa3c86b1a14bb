"""Mooncake traces (kvcache-ai, FAST'25): requests as lists of hashed 512-token blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import duckdb
import numpy as np

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Context, Source
from experiment.importers.chains import prefixes
from experiment.importers.fields import Record
from experiment.importers.lines import json_rows
from experiment.importers.probe import first_rows
from experiment.importers.scratch import rows_of, scratch

BLOCK_TOKENS = 512

TASK_BLOCKS = 2
"""Requests that share this many blocks are one task. Block 0 is shared by nearly all requests."""

BATCH_BLOCKS = 1 << 18
"""Blocks that are hashed at once."""

INFINITE_CACHE = (
    "the prefix cache is infinite and shared: each block of an earlier request, and only that, "
    "is in the cache"
)
TASKS = (
    "the log has no task: requests that share their first two blocks of 512 tokens are one task, "
    "named mc-<row of its first request, from 0>"
)

TABLES = """
CREATE TABLE requests (
    number BIGINT, line BIGINT, total BIGINT, output BIGINT, blocks BIGINT,
    head_high UBIGINT, head_low UBIGINT
);
CREATE TABLE first_seen (high UBIGINT, low UBIGINT, number BIGINT);
"""

# Within a batch, too, only the first request with a prefix counts: that keeps the table small.
ADD_PREFIXES = """
INSERT INTO first_seen
SELECT high, low, min(number) FROM batch_prefixes GROUP BY high, low
"""

# A request's prefixes were seen before, all but those that it is the first to have; and when a
# prefix was seen before, so was each shorter one. Hence k = blocks - how many it is the first of.
CALLS = f"""
WITH first_of AS (
    SELECT number, count(*) AS fresh
    FROM (SELECT min(number) AS number FROM first_seen GROUP BY high, low)
    GROUP BY number
), task AS (
    SELECT head_high, head_low, min(number) AS number
    FROM requests WHERE blocks >= {TASK_BLOCKS} GROUP BY head_high, head_low
)
SELECT
    request.line, request.total, request.output,
    request.blocks - coalesce(first_of.fresh, 0) AS known,
    coalesce(task.number, request.number) AS task
FROM requests AS request
LEFT JOIN first_of USING (number)
LEFT JOIN task ON request.blocks >= {TASK_BLOCKS}
    AND request.head_high = task.head_high AND request.head_low = task.head_low
ORDER BY request.number
"""


@dataclass
class _Batch:
    """Requests that are on their way into the database."""

    first: int
    facts: list[tuple[int, int, int]] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    blocks: int = 0

    def add(self, line: int, total: int, output: int | None, ids: list[int]) -> None:
        """Take the next request; an output that is not known is -1."""
        self.facts.append((line, total, -1 if output is None else output))
        self.ids.append(ids)
        self.blocks += len(ids)


class MooncakeImporter:
    """Depth follows from the blocks that earlier requests had; tasks follow from shared ones."""

    name = "mooncake"
    what = "Mooncake traces (JSONL with hash_ids)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """JSON Lines with ``hash_ids`` and ``input_length``."""
        rows = first_rows(source)
        if rows and {"hash_ids", "input_length"} <= rows[0].keys():
            return "JSON Lines with input_length and hash_ids"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """The requests in the file's order, after the whole file was read.

        What grows with the input is on disk: 40 bytes a request, 24 a distinct prefix of a batch.
        """
        context.log.assume(INFINITE_CACHE)
        context.log.assume(TASKS)
        with scratch(context.work) as database:
            database.execute(TABLES)
            batch = _Batch(0)
            for number, row in enumerate(json_rows(source.path, context.progress)):
                batch.add(int(row.where.rpartition(":")[2]), *_request(row))
                if batch.blocks >= BATCH_BLOCKS:
                    _store(database, batch)
                    batch = _Batch(number + 1)
            _store(database, batch)
            context.progress.start("Looking for prefixes in earlier requests", None)
            yield from _found(database, source)


def _request(row: Record) -> tuple[int, int | None, list[int]]:
    """Input tokens, output tokens and block ids of a row."""
    total = row.needed_count("input_length")
    output = row.count("output_length")
    ids = row.items("hash_ids")
    if ids is None:
        raise row.missing("hash_ids")
    for index, block in enumerate(ids):
        if type(block) is not int or not -(2**63) <= block < 2**63:
            raise row.bad(f"hash_ids.{index}", f"{block!r} is not a 64-bit integer")
    blocks = -(-total // BLOCK_TOKENS)
    if blocks != len(ids):
        raise TraceImportError(
            f"hash_ids has {len(ids)} blocks, but input_length {total} makes {blocks} of "
            f"{BLOCK_TOKENS} tokens: these are not Mooncake's own blocks",
            where=row.where,
            hint="the block size is not in the file; only blocks of 512 tokens can be imported",
        )
    if not ids:
        raise row.bad("input_length", "a prompt of 0 tokens; a step computes at least one")
    return total, output, cast("list[int]", ids)


def _store(database: duckdb.DuckDBPyConnection, batch: _Batch) -> None:
    if not batch.ids:
        return
    named = prefixes(batch.ids)
    lengths = np.array([len(ids) for ids in batch.ids], dtype=np.int64)
    numbers = np.arange(len(lengths), dtype=np.int64) + batch.first
    head = np.cumsum(lengths) - lengths + np.minimum(lengths, TASK_BLOCKS) - 1
    facts = np.array(batch.facts, dtype=np.int64)
    database.register(
        "batch_requests",
        {
            "number": numbers,
            "line": facts[:, 0].copy(),
            "total": facts[:, 1].copy(),
            "output": facts[:, 2].copy(),
            "blocks": lengths,
            "head_high": named.high[head],
            "head_low": named.low[head],
        },
    )
    database.register(
        "batch_prefixes",
        {"high": named.high, "low": named.low, "number": np.repeat(numbers, lengths)},
    )
    database.execute("INSERT INTO requests SELECT * FROM batch_requests")
    database.execute(ADD_PREFIXES)
    database.unregister("batch_requests")
    database.unregister("batch_prefixes")


def _found(database: duckdb.DuckDBPyConnection, source: Source) -> Iterator[Call]:
    for line, total, output, known, task in rows_of(database, CALLS):
        yield Call(
            task_id=f"mc-{task}",
            where=f"{source.path}:{line}",
            depth=min(BLOCK_TOKENS * known, total),
            total=total,
            output=None if output < 0 else output,
        )


IMPORTER = MooncakeImporter()
