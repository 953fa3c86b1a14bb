"""llama-server: the timings of its answers (JSON), and its log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from experiment.errors import TraceImportError
from experiment.importers.base import Call, Context, Options, Source
from experiment.importers.json_fields import Fields
from experiment.importers.json_log import first_objects, records
from experiment.importers.llama_log import log_calls, slot_lines
from experiment.importers.probe import beginning
from experiment.importers.usage import Tasks, note_tokenizer

JSON = re.compile(rb"\s*(?:\{|\[\s*[\[{\]])")
MS = 1000


class LlamaServerImporter:
    """Reads answers that hold ``timings``, or records that hold one under ``response``; or a log.

    Nothing grows with the answers; with a log, a slot's state.
    """

    name = "llama_server"
    what = "llama-server logs, and timings in its answers (JSON)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """``timings.prompt_n`` in JSON, or lines of a slot."""
        head = beginning(source)
        if _is_json(head):
            for record in first_objects(source):
                response = record.get("response", record)
                timings = response.get("timings") if isinstance(response, dict) else None
                if isinstance(timings, dict) and "prompt_n" in timings:
                    return "answers with timings, as llama-server gives them"
            return None
        number = slot_lines(head)
        return f"{number} lines of a slot of llama-server in the log" if number else None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """One call an answer, or a request in the log.

        Raises:
            TraceImportError: a call whose depth or new tokens cannot be told, or a slot that
                several conversations share.
        """
        if _is_json(beginning(source)):
            return _answers(source, context)
        return log_calls(source, context)


def _is_json(head: bytes) -> bool:
    """Whether a file begins with an object or array; the router's log does with ``[port]``."""
    return JSON.match(head) is not None


def _answers(source: Source, context: Context) -> Iterator[Call]:
    tasks = Tasks(source.path, context.options, context.log)
    for record in records(source.path, context.progress):
        wrapped = isinstance(record.members.get("response"), dict)
        response = record.needed_fields("response") if wrapped else record
        if response.members.get("timings") is None and response.members.get("error") is not None:
            context.log.drop("failed calls (an error, no timings)")
            continue
        timings = response.needed_fields("timings")
        depth, total = _split(response, timings, context.options)
        note_tokenizer(context.log, response.text("model"))
        yield Call(
            task_id=tasks.of(record),
            where=record.where,
            depth=depth,
            total=total,
            output=timings.count("predicted_n"),
            prefill_s=timings.seconds("prompt_ms", per_second=MS),
            decode_s=timings.seconds("predicted_ms", per_second=MS),
        )


def _split(response: Fields, timings: Fields, options: Options) -> tuple[int | None, int]:
    """Depth (None where it is to be assumed) and total of an answer's prompt.

    Servers before September 2025 have no ``cache_n``; the answer tells the total all the same.
    """
    new = timings.needed_count("prompt_n")
    depth = timings.count("cache_n")
    usage = response.fields("usage")
    total = usage.count("prompt_tokens") if usage else response.count("tokens_evaluated")
    if depth is None and total is not None:
        depth = total - new
    if depth is None and not options.assume_cold:
        # The total is not known either: whether a prompt was appended to cannot be checked.
        raise TraceImportError(
            "no cached-token field", where=response.where, hint="pass --assume-cold"
        )
    known = (depth or 0) + new
    if (depth or 0) < 0 or (total is not None and total != known):
        reason = f"{depth} cached and {new} new tokens are not the prompt's {total}"
        raise response.bad("timings", reason)
    return depth, known


IMPORTER = LlamaServerImporter()
