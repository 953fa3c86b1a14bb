"""Usage records of model APIs: what each kind of count means, and which task a record is of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiment.errors import TraceImportError
from experiment.importers.base import Log, Options
from experiment.importers.json_fields import Fields
from experiment.strict_json import shown

MULTI_PASS = (
    "server-side tools (web search, code run) ran within calls: the usage of such a call sums "
    "several passes over its prompt"
)
MAY_BE_MULTI_PASS = (
    "the log does not say whether server-side tools (web search, code run) ran within a call; "
    "where they did, its usage sums several passes over the prompt"
)

SESSION_FIELDS = ("session_id", "conversation_id", "thread_id", "task_id", "trajectory_id")
"""Names under which logs keep what tells tasks apart."""

MAX_NAMES = 8
"""Models whose names the trace's header lists."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call: ``depth`` of the prompt's ``total`` came from the cache.

    ``depth`` is None where the record has no cached count.
    """

    depth: int | None
    total: int
    output: int | None


def inclusive(usage: Fields, total_name: str, cached: Fields | None, output_name: str) -> Usage:
    """Counts of OpenAI's kind: the prompt's tokens include the cached ones.

    Args:
        usage: the usage record.
        total_name: its field with the tokens of the prompt.
        cached: the object that holds ``cached_tokens``, None where the record lacks it.
        output_name: its field with the tokens of the answer.

    Raises:
        TraceImportError: no prompt tokens, or more cached ones than those.
    """
    total = usage.needed_count(total_name)
    depth = cached.count("cached_tokens") if cached else None
    if cached and depth is not None and depth > total:
        reason = f"{depth} cached tokens are more than the prompt's {total}"
        raise cached.bad("cached_tokens", reason)
    return Usage(depth, total, usage.count(output_name))


def anthropic(usage: Fields) -> Usage:
    """Counts of Anthropic's kind: the prompt is what was read, written and neither, together.

    A record with neither cache field is of an API without a cache: its input is the prompt.

    Raises:
        TraceImportError: one of the three counts is missing though another is there.
    """
    computed = usage.needed_count("input_tokens")
    read = usage.count("cache_read_input_tokens")
    written = _written(usage)
    output = usage.count("output_tokens")
    if read is None:
        return Usage(None, computed + (written or 0), output)
    if written is None:
        raise usage.missing("cache_creation_input_tokens")
    return Usage(read, read + written + computed, output)


def _written(usage: Fields) -> int | None:
    """Tokens written into the cache: the sum, or else its two parts by lifetime."""
    written = usage.count("cache_creation_input_tokens")
    parts = usage.fields("cache_creation")
    if written is not None or parts is None:
        return written
    return parts.needed_count("ephemeral_5m_input_tokens") + parts.needed_count(
        "ephemeral_1h_input_tokens"
    )


def used_server_tools(usage: Fields) -> bool:
    """Whether an Anthropic usage record counts requests of server-side tools, or several passes."""
    tools = usage.fields("server_tool_use")
    if tools and any(isinstance(count, int) and count > 0 for count in tools.members.values()):
        return True
    return len(usage.items("iterations") or []) > 1


def note_tokenizer(log: Log, model: str | None) -> None:
    """Write down that counts come from this model's tokenizer."""
    if not model:
        return
    names = log.tokenizer.split(", ") if log.tokenizer else []
    if model in names or len(names) > MAX_NAMES:
        return
    log.tokenizer = ", ".join([*names, model if len(names) < MAX_NAMES else "…"])


class Tasks:
    """Which task a record of a log without sessions is of: a field says so, or its file."""

    def __init__(self, path: Path, options: Options, log: Log) -> None:
        self._path = path
        self._key = options.task_key
        self._seen: dict[str, object] = {}
        if self._key is None:
            log.assume("each file is one task (no --task-key)")
        else:
            log.assume(f"records with the same {self._key} are one task (--task-key={self._key})")

    def of(self, record: Fields) -> str:
        """The task of a record.

        Raises:
            TraceImportError: the key's field is missing; or without a key, a field shows that the
                file holds several sessions.
        """
        if self._key is not None:
            return self._keyed(record, self._key)
        for name in SESSION_FIELDS:
            value = record.members.get(name)
            if isinstance(value, (str, int)) and self._seen.setdefault(name, value) != value:
                what = f"{name} differs from the record before: the file holds several tasks"
                raise TraceImportError(
                    what,
                    where=record.where,
                    hint=f"pass --task-key={name}, or one file per task",
                )
        return self._path.name

    def _keyed(self, record: Fields, key: str) -> str:
        *outer, name = key.split(".")
        holder: Fields | None = record
        for part in outer:
            holder = holder and holder.fields(part)
        value = holder.members.get(name) if holder else None
        if value is None or value == "":
            raise record.missing(key, "--task-key names a field that every record has")
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise record.bad(key, f"{shown(value)} names no task")
        assert holder is not None
        return holder.needed_text(name)
