"""Usage records of model APIs: OpenAI chat (Groq, DeepSeek, … too), OpenAI responses, Anthropic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiment.importers.base import Call, Context, Source
from experiment.importers.json_fields import Fields
from experiment.importers.json_log import first_objects, records
from experiment.importers.usage import (
    MAY_BE_MULTI_PASS,
    MULTI_PASS,
    Tasks,
    Usage,
    anthropic,
    inclusive,
    note_tokenizer,
    used_server_tools,
)

CHAT, RESPONSES, ANTHROPIC = "OpenAI chat", "OpenAI responses", "Anthropic"

ANTHROPIC_FIELDS = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")

SERVER_TOOL_ITEMS = {
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
    "mcp_call",
    "server_tool_use",
    "web_search_call",
}
"""Types of the items in an answer that a tool of the provider has left there."""


class ApiUsageImporter:
    """Reads responses, or records that hold one under ``response``. Nothing grows with the log."""

    name = "api_usage"
    what = "usage records of OpenAI chat, OpenAI responses, Anthropic and Groq"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """A ``usage`` with the fields of one of the APIs, and no timings of llama-server."""
        for record in first_objects(source):
            response = record.get("response", record)
            usage = response.get("usage") if isinstance(response, dict) else None
            if not isinstance(response, dict) or not isinstance(usage, dict):
                continue
            if "timings" not in response and ("prompt_tokens" in usage or "input_tokens" in usage):
                return f"usage records of {_kind(usage)}"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call a record, in the order of the file.

        Raises:
            TraceImportError: a record without usage or prompt tokens, or whose task is not known.
        """
        tasks = Tasks(source.path, context.options, context.log)
        for record in records(source.path, context.progress):
            wrapped = isinstance(record.members.get("response"), dict)
            response = record.needed_fields("response") if wrapped else record
            usage = response.fields("usage")
            if usage is None:
                if not _failed(record) and not _failed(response):
                    raise response.missing("usage")
                context.log.drop("failed calls (an error, no usage)")
                continue
            task_id = tasks.of(record)
            counts, sentence = _read(response, usage)
            if sentence:
                context.log.warn(sentence)
            note_tokenizer(context.log, response.text("model"))
            yield Call(
                task_id=task_id,
                where=record.where,
                depth=counts.depth,
                total=counts.total,
                output=counts.output,
                # Groq tells them; `openai_processing_ms` covers the whole call and is neither.
                prefill_s=usage.seconds("prompt_time"),
                decode_s=usage.seconds("completion_time"),
            )


def _failed(record: Fields) -> bool:
    return record.members.get("error") is not None


def _kind(usage: Mapping[str, object]) -> str:
    if "prompt_tokens" in usage or "input_tokens" not in usage:
        return CHAT
    return ANTHROPIC if any(name in usage for name in ANTHROPIC_FIELDS) else RESPONSES


def _read(response: Fields, usage: Fields) -> tuple[Usage, str | None]:
    """The counts of a record, and what to warn of, in the terms of its API."""
    kind = _kind(usage.members)
    if kind == CHAT:
        return _chat(usage), None
    answer = response.items("content" if kind == ANTHROPIC else "output")
    ran = any(_type(item) in SERVER_TOOL_ITEMS for item in answer or [])
    if kind == ANTHROPIC:
        counts = anthropic(usage)
        ran = ran or used_server_tools(usage)
        unclear = answer is None and usage.members.get("server_tool_use") is not None
    else:
        counts = inclusive(
            usage, "input_tokens", usage.fields("input_tokens_details"), "output_tokens"
        )
        unclear = answer is None
    return counts, MULTI_PASS if ran else MAY_BE_MULTI_PASS if unclear else None


def _type(item: object) -> str | None:
    kind = item.get("type") if isinstance(item, dict) else None
    return kind if isinstance(kind, str) else None


def _chat(usage: Fields) -> Usage:
    counts = inclusive(
        usage, "prompt_tokens", usage.fields("prompt_tokens_details"), "completion_tokens"
    )
    # DeepSeek tells both parts of the prompt by names of its own, too.
    hit, missed = usage.count("prompt_cache_hit_tokens"), usage.count("prompt_cache_miss_tokens")
    if hit is None:
        return counts
    depth = hit if counts.depth is None else counts.depth
    if hit != depth or hit + (missed or 0) > counts.total:
        reason = f"{hit} is not the cached part of the prompt's {counts.total} tokens"
        raise usage.bad("prompt_cache_hit_tokens", reason)
    return Usage(depth, counts.total, counts.output)


IMPORTER = ApiUsageImporter()
