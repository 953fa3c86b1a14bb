"""GitHub Copilot coding-agent traces of 2026 (AzurePublicDataset): a session a line, nested."""

from __future__ import annotations

from collections.abc import Iterator

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Context, Source
from experiment.importers.fields import Record
from experiment.importers.lines import json_rows
from experiment.importers.probe import beginning, document, first_rows
from experiment.importers.tokenizers import Tokenizers

SUCCESS = "Success"
NANOSECOND_DIGITS = 9
"""Kept of a sum, so that 0.1 + 0.2 is 0.3."""

FAILED = "calls that did not succeed and have no token counts"


class CopilotImporter:
    """A session is a task; its steps are the calls of its turns, in the file's order."""

    name = "copilot"
    what = "GitHub Copilot coding-agent traces 2026 (JSONL)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """A session with turns of calls, or the schema that describes one."""
        if _is_schema(source):
            return "the schema of the data, with no data"
        rows = first_rows(source)
        if any(_is_session(row) for row in rows) or (not rows and _begins_session(source)):
            return "JSON Lines with session_id and turns of llm_calls"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """The calls of each session."""
        if _is_schema(source):
            raise TraceImportError(
                "is the schema of the Copilot traces, with no data",
                where=str(source.path),
                hint="the data are the shard-*.jsonl.gz of the release",
            )
        tokenizers = Tokenizers(context.log)
        for session in json_rows(source.path, context.progress):
            task = session.needed_label("session_id")
            for turn in session.each("turns"):
                exec_s = _exec_s_by_message(turn)
                for call in turn.each("llm_calls"):
                    tokenizers.add(call.text("model"))
                    yield from _call(call, task, exec_s, context)


def _call(
    call: Record, task: str, exec_s: dict[str, float | None], context: Context
) -> Iterator[Call]:
    tokens = call.inner("tokens")
    total = None if tokens is None else tokens.count("prompt")
    if not total and call.text("result") not in (None, SUCCESS):
        context.log.drop(FAILED)
        return
    if tokens is None:
        raise call.missing("tokens")
    if total is None:
        raise tokens.missing("prompt")
    output = tokens.count("completion")
    both = tokens.count("total")
    if output is not None and both is not None and both != total + output:
        raise tokens.bad("total", f"{both} is not prompt + completion = {total + output}")
    yield Call(
        task_id=task,
        where=f"{call.where}: {call.path.rstrip('.')}",
        depth=tokens.count("cached"),
        total=total,
        output=output,
        exec_s=exec_s.get(call.label("message_id") or ""),
    )


def _exec_s_by_message(turn: Record) -> dict[str, float | None]:
    """Seconds of the batches of tools that each call asked for; None where one is not known.

    The tools of a batch overlap, its own duration does not count them twice. The batches of a call
    run one after the other.
    """
    took: dict[str, float | None] = {}
    for batch in turn.each("tool_batches"):
        message = batch.label("request_id")
        if not message:
            continue
        seconds = batch.seconds("duration_ms", per_second=1000)
        before = took.get(message, 0.0)
        if seconds is None or before is None:
            took[message] = None
        else:
            took[message] = round(before + seconds, NANOSECOND_DIGITS)
    return took


def _is_session(row: dict[str, object]) -> bool:
    turns = row.get("turns")
    return (
        "session_id" in row
        and isinstance(turns, list)
        and any(isinstance(turn, dict) and "llm_calls" in turn for turn in turns)
    )


def _begins_session(source: Source) -> bool:
    """Whether a first line that is too long to be read whole here is a session's."""
    head = beginning(source)
    names = (b'"session_id"', b'"turns"', b'"llm_calls"')
    return head.lstrip().startswith(b"{") and all(name in head for name in names)


def _is_schema(source: Source) -> bool:
    value = document(source)
    record = value.get("record") if isinstance(value, dict) else None
    return isinstance(record, dict) and "turns" in record and "session_id" in record


IMPORTER = CopilotImporter()
