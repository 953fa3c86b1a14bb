"""OpenTelemetry GenAI spans in OTLP JSON: a span a call, with its tokens as attributes."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Context, Source
from experiment.importers.json_fields import Fields
from experiment.importers.json_log import document, is_document, objects
from experiment.importers.otel_tokens import INPUT, MODEL, InputTokens, Span
from experiment.importers.probe import beginning
from experiment.importers.usage import note_tokenizer
from experiment.strict_json import shown

START = re.compile(rb'\s*\{\s*"resourceSpans"\s*:')

SPAN_ID = re.compile(rb'"spanId"\s*:\s*"([^"\\]*)"')

OUTPUT = ("gen_ai.usage.output_tokens",)

STATUS_ERROR = (2, "STATUS_CODE_ERROR")

UNKNOWN = -1


class OtelGenaiImporter:
    """Reads OTLP JSON: one document, or one a line as the collector's file exporter writes it.

    Spans come in the order in which they ended, so calls are sorted: about 100 bytes a call are
    kept, and the names of the tasks.
    """

    name = "otel_genai"
    what = "OpenTelemetry GenAI spans (OTLP JSON)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """A document, or a first line, that begins with ``resourceSpans``."""
        return "resourceSpans, as OTLP JSON has them" if START.match(beginning(source)) else None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call for each span of the operation ``chat``, in the order in which they began.

        Raises:
            TraceImportError: what is no OTLP JSON; a call without its input tokens, or whose input
                tokens may include cached ones or not.
        """
        meaning = InputTokens(context.options, context.log)
        tasks: dict[str, int] = {}
        columns = tuple(array("q") for _ in range(6))
        for fields in _spans(source, context):
            span = Span.of(fields)
            if not _is_call(span, context):
                continue
            depth, total = meaning.split(span)
            output = span.count(OUTPUT)
            task = span.text("gen_ai.conversation.id") or fields.needed_text("traceId")
            note_tokenizer(context.log, span.text(*MODEL))
            row = (
                _start(fields),
                int(fields.where.rpartition(":")[2]),
                tasks.setdefault(task, len(tasks)),
                UNKNOWN if depth is None else depth,
                total,
                UNKNOWN if output is None else output,
            )
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        starts, lines, task_numbers, depths, totals, outputs = columns
        names = list(tasks)
        for index in sorted(range(len(starts)), key=starts.__getitem__):
            yield Call(
                task_id=names[task_numbers[index]],
                where=f"{source.path}:{lines[index]}",
                depth=None if depths[index] == UNKNOWN else depths[index],
                total=totals[index],
                output=None if outputs[index] == UNKNOWN else outputs[index],
            )


def _spans(source: Source, context: Context) -> Iterator[Fields]:
    """The spans, each with its ``FILE:LINE``."""
    if not is_document(source.path):
        for row in objects(source.path, context.progress):
            yield from _of_batch(row)
        return
    value, data = document(source.path, context.progress)
    if not isinstance(value, dict):
        raise TraceImportError(f"{shown(value)} is not a JSON object", where=f"{source.path}:1")
    line, position = 1, 0
    places = SPAN_ID.finditer(data)
    for span in _of_batch(Fields(value, f"{source.path}:1")):
        # The parser does not tell where a span stands; its id does.
        span_id = span.needed_text("spanId").encode()
        found = next((place for place in places if place[1] == span_id), None)
        if found:
            line += data.count(b"\n", position, found.start())
            position = found.start()
        yield Fields(span.members, f"{source.path}:{line}", span.path)


def _of_batch(batch: Fields) -> Iterator[Fields]:
    if batch.items("resourceSpans") is None:
        raise batch.missing("resourceSpans")
    for resource in _each(batch, "resourceSpans"):
        for scope in _each(resource, "scopeSpans"):
            for span in _each(scope, "spans"):
                yield Fields(span.members, span.where)


def _each(fields: Fields, name: str) -> Iterator[Fields]:
    for element in fields.items(name) or []:
        if not isinstance(element, dict):
            raise fields.bad(name, f"holds {shown(element)}, not an object")
        yield Fields(element, fields.where, f"{fields.path}{name}.")


def _is_call(span: Span, context: Context) -> bool:
    operation = span.text("gen_ai.operation.name")
    if operation is None:
        context.log.drop("spans without gen_ai.operation.name (no call of a model)")
    elif operation != "chat":
        context.log.drop("spans of operations other than chat (invoke_agent repeats their totals)")
    elif span.count(INPUT) is None and _failed(span.fields):
        context.log.drop("failed calls (an error, no usage)")
    else:
        return True
    return False


def _failed(span: Fields) -> bool:
    status = span.fields("status")
    return status is not None and status.members.get("code") in STATUS_ERROR


def _start(span: Fields) -> int:
    """Nanoseconds since 1970; JSON holds 64-bit integers as strings."""
    value = span.members.get("startTimeUnixNano")
    if value is None:
        raise span.missing("startTimeUnixNano")
    if not re.fullmatch(r"[0-9]{1,18}|[1-8][0-9]{18}", str(value)) or isinstance(value, bool):
        raise span.bad("startTimeUnixNano", f"{shown(value)} is no time in nanoseconds")
    return int(str(value))


IMPORTER = OtelGenaiImporter()
