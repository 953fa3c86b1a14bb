"""vLLM's records of requests with the times of their phases, one a line."""

from __future__ import annotations

from collections.abc import Iterator

from experiment.importers.base import Call, Context, Source
from experiment.importers.fields import Record
from experiment.importers.lines import json_rows
from experiment.importers.probe import first_rows
from experiment.importers.single_requests import task_of

FIELDS = {"input_toks", "output_toks", "scheduled_ts", "first_token_ts"}

NANOSECOND_DIGITS = 9
"""Of the times in the log; a difference of two has no more."""

BATCHED = (
    "prefill_s is from being scheduled to the first token: requests with the same time of the "
    "first token were in one batch, and their prefill_s holds the work of the others too"
)


class VLLMImporter:
    """Depth is not in the log (prefix caching may have been on); prefill time is."""

    name = "vllm"
    what = "vLLM request records (JSONL with phase times)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """JSON Lines with vLLM's token counts and times."""
        rows = first_rows(source)
        if rows and rows[0].keys() >= FIELDS:
            return "JSON Lines with input_toks, output_toks, scheduled_ts and first_token_ts"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """The requests in the file's order."""
        before: float | None = None
        for number, row in enumerate(json_rows(source.path, context.progress)):
            total = row.needed_count("input_toks")
            output = row.count("output_toks")
            first = row.number("first_token_ts")
            if first is not None and first == before:
                context.log.warn(BATCHED)
            before = first
            yield Call(
                task_id=task_of(row, number, "vllm", context.options, context.log),
                where=row.where,
                depth=None,
                total=total,
                output=output,
                prefill_s=_prefill_s(row, first),
            )


def _prefill_s(row: Record, first: float | None) -> float | None:
    scheduled = row.number("scheduled_ts")
    if scheduled is None or first is None:
        return None
    if first < scheduled:
        raise row.bad("first_token_ts", f"{first} is before scheduled_ts {scheduled}")
    return round(first - scheduled, NANOSECOND_DIGITS)


IMPORTER = VLLMImporter()
