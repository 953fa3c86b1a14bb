"""Codex CLI rollout logs: an event after each call of the model tells what it used."""

from __future__ import annotations

from collections.abc import Iterator

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Context, Source
from experiment.importers.json_fields import Fields
from experiment.importers.json_log import first_objects, objects
from experiment.importers.usage import note_tokenizer

RECORD_TYPES = {"session_meta", "turn_context", "response_item", "event_msg", "compacted"}


class CodexImporter:
    """Reads ``~/.codex/sessions/…/rollout-*.jsonl``. Nothing grows with the log."""

    name = "codex"
    what = "Codex CLI rollout logs (JSONL)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """Records of a rollout's types, each with its ``payload``."""
        for record in first_objects(source):
            kind = record.get("type")
            known = isinstance(kind, str) and kind in RECORD_TYPES
            if known and isinstance(record.get("payload"), dict) and "timestamp" in record:
                return f"records of type {kind} with a payload, as Codex writes them"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call for each ``token_count`` event that tells of a new one.

        Codex repeats an event when only a rate limit has changed; the running total, used for
        nothing else, is unchanged then.

        Raises:
            TraceImportError: a line that is no record, a call before the session is named, or a
                second session's history in the file.
        """
        session: str | None = None
        total_before: object = None
        for record in objects(source.path, context.progress):
            kind = record.text("type")
            if kind == "session_meta":
                session = _session(record, session)
            elif kind == "turn_context":
                payload = record.needed_fields("payload")
                note_tokenizer(context.log, payload.text("model"))
            info = _info(record) if kind == "event_msg" else None
            if info is None:
                continue
            running_total = info.members.get("total_token_usage")
            if running_total is not None and running_total == total_before:
                context.log.drop("token_count events that repeat the one before (no call)")
                continue
            total_before = running_total
            call = _call(session, info.needed_fields("last_token_usage"))
            if call is None:
                context.log.drop("token_count events of 0 input tokens (no call)")
            else:
                yield call


def _session(record: Fields, before: str | None) -> str:
    payload = record.needed_fields("payload")
    session = payload.needed_text("id")
    if before is not None and session != before:
        # A fork or subagent begins with a copy of its parent's records, which nothing marks.
        raise TraceImportError(
            "a second session_meta: the file begins with a copy of another session's history, "
            "and does not say where its own calls begin",
            where=record.where,
            hint="import the log of the session that it was forked from",
        )
    return session


def _info(record: Fields) -> Fields | None:
    """The ``info`` of a ``token_count`` event; null in events that only tell of rate limits."""
    payload = record.needed_fields("payload")
    return payload.fields("info") if payload.text("type") == "token_count" else None


def _call(session: str | None, usage: Fields) -> Call | None:
    total = usage.needed_count("input_tokens")
    cached = usage.count("cached_input_tokens")
    if session is None:
        raise TraceImportError(
            "no session_meta record before this call, whose payload.id names the task",
            where=usage.where,
        )
    if cached is not None and cached > total:
        reason = f"{cached} cached tokens are more than the prompt's {total}"
        raise usage.bad("cached_input_tokens", reason)
    if total == 0:  # after a compaction, an estimate of the context is told, and no call
        return None
    return Call(
        task_id=session,
        where=usage.where,
        depth=cached,
        total=total,
        output=usage.count("output_tokens"),
    )


IMPORTER = CodexImporter()
