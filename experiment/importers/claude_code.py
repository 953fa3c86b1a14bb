"""Claude Code session logs: a record a content block, several of them one call of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiment.importers.base import Call, Context, Source
from experiment.importers.json_fields import Fields
from experiment.importers.json_log import first_objects, objects
from experiment.importers.usage import (
    MULTI_PASS,
    Usage,
    anthropic,
    note_tokenizer,
    used_server_tools,
)

SYNTHETIC = "<synthetic>"
"""The model that Claude Code names in messages of its own, such as API errors."""

DISAGREEING = "records of one call disagree on its prompt's tokens; the last one counts"


@dataclass(slots=True)
class _Open:
    """A call whose records are being read; the last record's usage counts."""

    message_id: str
    where: str
    usage: Usage


class ClaudeCodeImporter:
    """Reads ``~/.claude/projects/…/*.jsonl``.

    A call ends when its conversation goes on with another message. What grows with the log is one
    message id a call, and one id a record of those side conversations that have no agent id.
    """

    name = "claude_code"
    what = "Claude Code session logs (JSONL)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """A record with ``sessionId``, ``parentUuid`` and ``type``."""
        for record in first_objects(source):
            if isinstance(record.get("sessionId"), str) and "parentUuid" in record:
                return "records with sessionId and parentUuid, as Claude Code writes them"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call for each message id of the assistant, side conversations as tasks of their own.

        Raises:
            TraceImportError: a line that is no record, or a call whose usage lacks a count.
        """
        opened: dict[str, _Open] = {}
        seen: set[str] = set()
        for task, record, message in _messages(source, context):
            message_id = message.needed_text("id")
            last = opened.get(task)
            going_on = last is not None and last.message_id == message_id
            if message_id in seen and not going_on:
                continue  # a session that was resumed repeats the records of the one before
            seen.add(message_id)
            usage = message.needed_fields("usage")
            counts = anthropic(usage)
            if used_server_tools(usage):
                context.log.warn(MULTI_PASS)
            if last and going_on:
                if (last.usage.depth, last.usage.total) != (counts.depth, counts.total):
                    context.log.warn(DISAGREEING)
                last.usage = counts
                continue
            if last:
                yield _call(task, last)
            note_tokenizer(context.log, message.text("model"))
            opened[task] = _Open(message_id, record.where, counts)
        for task, last in opened.items():
            yield _call(task, last)


def _messages(source: Source, context: Context) -> Iterator[tuple[str, Fields, Fields]]:
    """Each record of an answer with its task and its message."""
    side = _SideConversations()
    for record in objects(source.path, context.progress):
        chain = side.of(record)
        if record.text("type") != "assistant":
            continue
        message = record.needed_fields("message")
        if message.text("model") == SYNTHETIC:
            context.log.drop("messages of Claude Code itself (no call of a model)")
            continue
        session = record.needed_text("sessionId")
        yield f"{session}/{chain}" if chain else session, record, message


class _SideConversations:
    """Tells which side conversation (of a subagent) a record is of."""

    def __init__(self) -> None:
        self._root_of: dict[str, str] = {}

    def of(self, record: Fields) -> str | None:
        """A name for it; None for the main conversation."""
        if not record.flag("isSidechain"):
            return None
        agent = record.text("agentId")
        if agent:
            return f"agent-{agent}"
        uuid = record.needed_text("uuid")
        parent = record.text("parentUuid")
        # A parent that is not in the log (it was cut) is as good a root as its first record.
        root = self._root_of.get(parent, parent) if parent else uuid
        self._root_of[uuid] = root
        return f"sidechain-{root}"


def _call(task: str, call: _Open) -> Call:
    return Call(
        task_id=task,
        where=call.where,
        depth=call.usage.depth,
        total=call.usage.total,
        output=call.usage.output,
    )


IMPORTER = ClaudeCodeImporter()
