"""BurstGPT (HPMLL): its CSVs, with a session from version 3 on, and a JSONL made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiment.importers.base import Call, Context, Source
from experiment.importers.fields import Record
from experiment.importers.lines import csv_rows, json_rows
from experiment.importers.probe import columns, first_rows, is_json
from experiment.importers.single_requests import task_of
from experiment.importers.tokenizers import Tokenizers

FAILED = "failed requests (0 tokens)"
API_LOG = (
    "requests with an empty session id (API log) are alone: each is a task, named burstgpt-<row "
    "of it, from 0>"
)


@dataclass(frozen=True)
class _Names:
    """What a version calls its fields."""

    total: str
    output: str
    session: str


CSV = _Names("Request tokens", "Response tokens", "Session ID")
JSONL = _Names("input_length", "output_length", "session_id")
JSONL_FIELDS = {"request_id", "arrival_ms", "input_length", "output_length"}


class BurstGPTImporter:
    """A session is a task. Depth is not in the log: one of the assumptions has to be made."""

    name = "burstgpt"
    what = "BurstGPT (CSV of versions 1 to 3, converted JSONL)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """By the columns, wherever they stand: version 3 puts two in the middle."""
        if {CSV.total, CSV.output} <= set(columns(source)):
            return "CSV with Request tokens and Response tokens"
        rows = first_rows(source)
        if rows and rows[0].keys() >= JSONL_FIELDS and "hash_ids" not in rows[0]:
            return "JSON Lines with request_id, arrival_ms, input_length and output_length"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """The requests in the file's order; failed ones are left out and counted."""
        tokenizers = Tokenizers(context.log)
        rows: Iterator[Record]
        if is_json(source):
            names, rows = JSONL, json_rows(source.path, context.progress)
        else:
            names, rows = CSV, csv_rows(source.path, context.progress)
        for number, row in enumerate(rows):
            total = row.needed_count(names.total)
            output = row.needed_count(names.output)
            task = _task(row, number, names, context)
            if not total or not output:
                context.log.drop(FAILED)
                continue
            tokenizers.add(row.text("Model"))
            yield Call(
                task_id=task,
                where=row.where,
                depth=None,
                total=total,
                output=output,
            )


def _task(row: Record, number: int, names: _Names, context: Context) -> str:
    if context.options.task_key is None and names.session in row.members:
        session = row.label(names.session)
        if session:
            return session
        context.log.assume(API_LOG)
        return f"burstgpt-{number}"
    return task_of(row, number, "burstgpt", context.options, context.log)


IMPORTER = BurstGPTImporter()
